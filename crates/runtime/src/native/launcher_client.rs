//! The client of the launcher: its socket, requests with tickets, and answers. Callers write to the
//! socket directly; one task reads it and passes each answer to the holder of the ticket. An answer
//! whose caller has gone is dropped.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use guest_protocol::launcher::{
    CgroupPaths, FromLauncher, InstanceBytes, LauncherFeatures, Spec, ToLauncher,
};
use guest_protocol::message::ExitStatus;
use guest_protocol::network::{NetworkRequest, RefusedAddress};
use model::{InstanceId, WorkspaceId};
use tokio::sync::oneshot;
use tokio::time::timeout;

use jail::packet::Packet;

use crate::deaths::Died;
use crate::error::{RuntimeError, RuntimeErrorCode};
use crate::socket::{Carries, Socket};

/// How long the launcher may take for any request but a launch.
const PATIENCE: Duration = Duration::from_secs(30);

/// How many packets are read before other tasks get their turn.
const PACKETS_PER_TURN: usize = 64;

/// An answer of the launcher.
#[derive(Debug)]
enum Answer {
    Launched(Launched),
    Done,
    Listed(Vec<InstanceId>),
    Network(NetworkAnswer),
}

/// What came of a request about a network.
#[derive(Debug)]
pub(super) enum NetworkAnswer {
    Done,
    /// With the socket for connections and perhaps that for names.
    Armed(Vec<OwnedFd>),
    Refused(Vec<RefusedAddress>),
}

/// The launcher started the process of a sandbox.
#[derive(Debug)]
pub(super) struct Launched {
    pub pid: u32,
    pub cgroup: CgroupPaths,
}

/// What arrived from the launcher, in its order.
#[derive(Debug)]
pub(super) enum LauncherEvent {
    /// The launcher is ready.
    Up(LauncherFeatures),
    /// The launcher cannot work on this machine.
    Unable(RuntimeError),
    /// A sandbox exited and nothing of it is left.
    Died(Died),
    /// A failed or abandoned launch is removed for certain.
    Gone(InstanceId),
    /// An answer. It is passed on after all events before it are handled.
    Answer(Answered),
}

/// An answer and the caller that waits for it.
#[derive(Debug)]
pub(super) struct Answered {
    reply: oneshot::Sender<Reply>,
    answer: Reply,
}

impl Answered {
    pub(super) fn deliver(self) {
        // The caller may have gone; then the answer is not needed.
        let _ = self.reply.send(self.answer);
    }
}

type Reply = Result<Answer, RuntimeError>;

/// What becomes of an answer.
enum Waiting {
    /// A caller waits for it.
    Caller {
        reply: oneshot::Sender<Reply>,
        /// Parts of a long answer.
        listed: Vec<InstanceId>,
    },
    /// No caller waits: an abandoned launch is being removed.
    Unawaited(InstanceId),
}

/// The client of one launcher.
pub(super) struct LauncherClient {
    state: Mutex<State>,
}

struct State {
    socket: Option<Socket>,
    unsent: VecDeque<(Vec<u8>, Option<OwnedFd>)>,
    blocked: bool,
    waiting: BTreeMap<u64, Waiting>,
    last_ticket: u64,
    reader: Option<Waker>,
    /// Why the launcher no longer answers, if it does not.
    lost: Option<RuntimeError>,
}

fn died(instance: InstanceBytes, status: ExitStatus, out_of_memory: bool) -> Died {
    let instance = InstanceId::from_u128(u128::from_be_bytes(instance));
    Died::alone(instance, Some(status), out_of_memory)
}

fn bytes_of(instance: InstanceId) -> InstanceBytes {
    instance.as_u128().to_be_bytes()
}

impl LauncherClient {
    /// Takes over the socket. Must be called inside a tokio runtime.
    pub(super) fn new(socket: OwnedFd) -> io::Result<Self> {
        let state = State {
            socket: Some(Socket::new(socket, Carries::Packets)?),
            unsent: VecDeque::new(),
            blocked: false,
            waiting: BTreeMap::new(),
            last_ticket: 0,
            reader: None,
            lost: None,
        };
        Ok(Self { state: Mutex::new(state) })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // No code panics between two changes that belong together, so a poisoned state is whole.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Why the launcher no longer answers, if it does not.
    pub(super) fn lost(&self) -> Option<RuntimeError> {
        self.lock().lost.clone()
    }

    /// Launches a sandbox. It has no deadline of its own.
    pub(super) async fn launch(
        &self,
        spec: Spec,
        connection: OwnedFd,
    ) -> Result<Launched, RuntimeError> {
        let request = |ticket| ToLauncher::Launch { ticket, spec };
        let reply = self.ask("launch", request, Some(connection))?;
        match self.answer("launch", reply).await? {
            Answer::Launched(launched) => Ok(launched),
            Answer::Done | Answer::Listed(_) | Answer::Network(_) => {
                Err(unexpected_answer("launch"))
            }
        }
    }

    /// Mounts a workspace in a sandbox.
    pub(super) async fn attach(
        &self,
        instance: InstanceId,
        workspace: WorkspaceId,
    ) -> Result<(), RuntimeError> {
        let (instance, workspace) = (bytes_of(instance), workspace.as_u128().to_be_bytes());
        let request = |ticket| ToLauncher::Attach { ticket, instance, workspace };
        self.done("attach a workspace", request).await
    }

    /// Does something with the network of a sandbox.
    pub(super) async fn network(
        &self,
        step: &'static str,
        instance: InstanceId,
        request: NetworkRequest,
    ) -> Result<NetworkAnswer, RuntimeError> {
        let instance = bytes_of(instance);
        let request = |ticket| ToLauncher::Network { ticket, instance, request };
        let reply = self.ask(step, request, None)?;
        let answer = timeout(PATIENCE, self.answer(step, reply)).await;
        match answer.map_err(|_| RuntimeError::deadline(step))?? {
            Answer::Network(answer) => Ok(answer),
            Answer::Done => Ok(NetworkAnswer::Done),
            Answer::Launched(_) | Answer::Listed(_) => Err(unexpected_answer(step)),
        }
    }

    /// Removes a sandbox; done when nothing of it is left.
    pub(super) async fn kill(&self, instance: InstanceId) -> Result<(), RuntimeError> {
        let instance = bytes_of(instance);
        self.done("kill", |ticket| ToLauncher::Kill { ticket, instance }).await
    }

    /// Removes a sandbox without waiting. [`LauncherEvent::Gone`] follows when it is gone.
    pub(super) fn kill_unawaited(&self, instance: InstanceId) {
        let mut state = self.lock();
        if state.lost.is_none() {
            let ticket = state.wait(Waiting::Unawaited(instance));
            state.send(&ToLauncher::Kill { ticket, instance: bytes_of(instance) }, None);
        }
    }

    /// Which sandboxes exist.
    pub(super) async fn list(&self) -> Result<Vec<InstanceId>, RuntimeError> {
        let reply = self.ask("list", |ticket| ToLauncher::List { ticket }, None)?;
        let answer = timeout(PATIENCE, self.answer("list", reply)).await;
        match answer.map_err(|_| RuntimeError::deadline("list"))?? {
            Answer::Listed(instances) => Ok(instances),
            Answer::Done | Answer::Launched(_) | Answer::Network(_) => {
                Err(unexpected_answer("list"))
            }
        }
    }

    async fn done(
        &self,
        step: &'static str,
        request: impl FnOnce(u64) -> ToLauncher,
    ) -> Result<(), RuntimeError> {
        let reply = self.ask(step, request, None)?;
        let answer = timeout(PATIENCE, self.answer(step, reply)).await;
        match answer.map_err(|_| RuntimeError::deadline(step))?? {
            Answer::Done => Ok(()),
            Answer::Launched(_) | Answer::Listed(_) | Answer::Network(_) => {
                Err(unexpected_answer(step))
            }
        }
    }

    fn ask(
        &self,
        step: &'static str,
        request: impl FnOnce(u64) -> ToLauncher,
        descriptor: Option<OwnedFd>,
    ) -> Result<oneshot::Receiver<Reply>, RuntimeError> {
        let mut state = self.lock();
        if let Some(lost) = &state.lost {
            return Err(RuntimeError { step: step.into(), ..lost.clone() });
        }
        let (reply, receiver) = oneshot::channel();
        let ticket = state.wait(Waiting::Caller { reply, listed: Vec::new() });
        state.send(&request(ticket), descriptor);
        Ok(receiver)
    }

    async fn answer(&self, step: &'static str, reply: oneshot::Receiver<Reply>) -> Reply {
        reply.await.unwrap_or_else(|_| {
            let lost = self.lost().unwrap_or_else(lost);
            Err(RuntimeError { step: step.into(), ..lost })
        })
    }

    /// Closes the socket, which ends the launcher. Waiting callers fail with the reason, and so do
    /// later ones. The last reason counts, except that a shutdown stays the reason.
    pub(super) fn close(&self, reason: RuntimeError) {
        let mut state = self.lock();
        let is_shutdown = |lost: &RuntimeError| lost.code == RuntimeErrorCode::ShuttingDown;
        if !state.lost.as_ref().is_some_and(is_shutdown) {
            state.lost = Some(reason);
        }
        let closed = (
            state.socket.take(),
            std::mem::take(&mut state.unsent),
            std::mem::take(&mut state.waiting),
        );
        let reader = state.reader.take();
        drop(state);
        drop(closed);
        if let Some(reader) = reader {
            reader.wake();
        }
    }

    /// What has arrived since the last call, in its order; none once the launcher is gone.
    pub(super) fn poll_events(
        &self,
        cx: &mut Context<'_>,
        buffer: &mut [u8],
    ) -> Poll<Option<Vec<LauncherEvent>>> {
        let mut events = Vec::new();
        let mut state = self.lock();
        let replaced = state.reader.replace(cx.waker().clone());
        let polled = state.poll_read(cx, buffer, &mut events);
        drop(state);
        drop(replaced);
        match polled {
            // Events before the end count; the next call finds the end again.
            _ if !events.is_empty() => Poll::Ready(Some(events)),
            Poll::Ready(()) => Poll::Ready(None),
            Poll::Pending => Poll::Pending,
        }
    }
}

impl State {
    fn wait(&mut self, waiting: Waiting) -> u64 {
        self.last_ticket += 1;
        self.waiting.insert(self.last_ticket, waiting);
        self.last_ticket
    }

    fn send(&mut self, message: &ToLauncher, descriptor: Option<OwnedFd>) {
        // Our own messages can be encoded; the Linux kernel refuses what does not fit into a
        // packet.
        let Ok(bytes) = postcard::to_allocvec(message) else { return };
        self.unsent.push_back((bytes, descriptor));
        let Some(socket) = &self.socket else { return };
        if !self.blocked && send_all(socket.as_fd(), &mut self.unsent).is_err() {
            self.blocked = true;
            if let Some(reader) = &self.reader {
                reader.wake_by_ref();
            }
        }
    }

    /// Ready when the launcher has closed its socket.
    fn poll_read(
        &mut self,
        cx: &mut Context<'_>,
        buffer: &mut [u8],
        events: &mut Vec<LauncherEvent>,
    ) -> Poll<()> {
        for _ in 0..PACKETS_PER_TURN {
            let Some(socket) = &self.socket else { return Poll::Ready(()) };
            match socket.poll_packet(cx, buffer) {
                Poll::Pending => return self.poll_write(cx),
                Poll::Ready(Ok(Packet { bytes: 0, .. }) | Err(_)) => return Poll::Ready(()),
                Poll::Ready(Ok(packet)) => match postcard::from_bytes(&buffer[..packet.bytes]) {
                    Ok(message) => events.extend(self.on_message(message, packet.descriptors)),
                    Err(_) => return Poll::Ready(()),
                },
            }
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    }

    fn poll_write(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if self.blocked {
            let Self { socket, unsent, .. } = self;
            let Some(socket) = socket else { return Poll::Ready(()) };
            match socket.poll_write(cx, |fd| send_all(fd, unsent)) {
                Poll::Pending => {}
                Poll::Ready(Err(_)) => return Poll::Ready(()),
                Poll::Ready(Ok(())) => self.blocked = false,
            }
        }
        Poll::Pending
    }

    fn on_message(
        &mut self,
        message: FromLauncher,
        descriptors: Vec<OwnedFd>,
    ) -> Option<LauncherEvent> {
        match message {
            FromLauncher::Up { features } => Some(LauncherEvent::Up(features)),
            FromLauncher::Died { instance, status, out_of_memory } => {
                Some(LauncherEvent::Died(died(instance, status, out_of_memory)))
            }
            FromLauncher::Launched { ticket, pid, cgroup } => {
                let launched = Launched { pid, cgroup };
                self.answered(ticket, Ok(Answer::Launched(launched)))
            }
            FromLauncher::Armed { ticket } => {
                self.answered(ticket, Ok(Answer::Network(NetworkAnswer::Armed(descriptors))))
            }
            FromLauncher::RefusedAddresses { ticket, addresses } => {
                self.answered(ticket, Ok(Answer::Network(NetworkAnswer::Refused(addresses))))
            }
            FromLauncher::Done { ticket } => self.answered(ticket, Ok(Answer::Done)),
            FromLauncher::Refused { ticket: 0, refusal } => {
                Some(LauncherEvent::Unable(RuntimeError::from_refusal(refusal)))
            }
            FromLauncher::Refused { ticket, refusal } => {
                self.answered(ticket, Err(RuntimeError::from_refusal(refusal)))
            }
            FromLauncher::Listed { ticket, instances, more } => {
                let Some(Waiting::Caller { listed, .. }) = self.waiting.get_mut(&ticket) else {
                    return None;
                };
                let ids = instances.into_iter().map(u128::from_be_bytes);
                listed.extend(ids.map(InstanceId::from_u128));
                if more {
                    return None;
                }
                let listed = std::mem::take(listed);
                self.answered(ticket, Ok(Answer::Listed(listed)))
            }
        }
    }

    fn answered(&mut self, ticket: u64, answer: Reply) -> Option<LauncherEvent> {
        match self.waiting.remove(&ticket)? {
            Waiting::Caller { reply, .. } => {
                Some(LauncherEvent::Answer(Answered { reply, answer }))
            }
            Waiting::Unawaited(instance) => Some(LauncherEvent::Gone(instance)),
        }
    }
}

/// Sends packets until the socket is full.
fn send_all(
    socket: BorrowedFd<'_>,
    unsent: &mut VecDeque<(Vec<u8>, Option<OwnedFd>)>,
) -> io::Result<()> {
    while let Some((bytes, descriptor)) = unsent.front() {
        let descriptors: Vec<_> = descriptor.iter().map(|fd| fd.as_fd()).collect();
        match jail::packet::send(socket, bytes, &descriptors) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Err(error),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            // The reader finds out that the launcher is gone. Any other refusal concerns this
            // packet alone: its caller sees that the descriptor is closed.
            Ok(()) | Err(_) => drop(unsent.pop_front()),
        }
    }
    Ok(())
}

fn lost() -> RuntimeError {
    RuntimeError::new(RuntimeErrorCode::LauncherLost, "", "the launcher has ended")
}

fn unexpected_answer(step: &'static str) -> RuntimeError {
    RuntimeError::new(RuntimeErrorCode::Protocol, step, "the launcher sent an unexpected answer")
}

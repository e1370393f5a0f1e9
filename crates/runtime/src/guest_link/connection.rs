//! The state of one connection, and what is done to it under its lock: send, receive, dispatch.
//! Nothing here may block: what the socket does not take now stays queued, and the pump sends it
//! later. Wakers must be woken and dropped where the lock is not held.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use guest_protocol::message::{Reply, Request, VERSION};
use guest_protocol::{Endpoint, Incoming, ProtocolError, decode};

use super::channel::{Channel, Kind, remember};
use super::wire::Wire;
use super::{LinkSettings, Surroundings};
use crate::error::{RuntimeError, RuntimeErrorCode};
use crate::inside::ScaleNote;
use crate::socket::{Carries, Socket};

/// How many calls may be open, cancelled ones included. The protocol allows some more, which are
/// reserved for the kills of dropped programs.
const MAX_CALLS: usize = 1024;

/// Bytes that may wait for the socket before writers of streams have to wait.
pub(super) const MAX_BACKLOG_BYTES: usize = 1 << 20;

/// How often the socket is read before other tasks get their turn.
const READS_PER_TURN: usize = 16;

/// One connection.
pub(super) struct Connection {
    pub settings: LinkSettings,
    pub surroundings: Arc<dyn Surroundings>,
    state: Mutex<State>,
}

/// Whether the guest has reported that it is ready.
#[derive(Debug)]
enum Readiness {
    Awaited(Option<Waker>),
    Ready,
    Failed { step: String, errno: i32 },
}

/// The result of one turn of the pump.
pub(super) enum Pumped {
    /// There was nothing more to read.
    Idle,
    /// There may be more, but other tasks get their turn.
    Busy,
    /// The connection is at its end.
    Ended,
    /// The guest broke the protocol.
    Broken(ProtocolError),
    /// Writing failed.
    Refused(io::Error),
}

pub(super) struct State {
    socket: Option<Socket>,
    wire: Wire,
    channels: BTreeMap<u32, Box<Channel>>,
    last_channel: u32,
    /// The socket is full; the pump waits for room.
    blocked: bool,
    readiness: Readiness,
    /// Scale notes that are not reported yet.
    note: Option<ScaleNote>,
    /// Why the connection is broken, if it is.
    gone: Option<RuntimeError>,
    /// The task that reads.
    pump: Option<Waker>,
}

impl Connection {
    pub(super) fn new(
        socket: OwnedFd,
        settings: LinkSettings,
        surroundings: Arc<dyn Surroundings>,
    ) -> io::Result<Self> {
        let socket = Socket::new(socket, Carries::Bytes)?;
        let state = State {
            socket: Some(socket),
            wire: Wire::default(),
            channels: BTreeMap::new(),
            last_channel: 0,
            blocked: false,
            readiness: Readiness::Awaited(None),
            note: None,
            gone: None,
            pump: None,
        };
        Ok(Self { settings, surroundings, state: Mutex::new(state) })
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        // No code panics between two changes that belong together, so a poisoned state is whole.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Opens a call and sends its request, with descriptors.
    pub(super) fn open(
        &self,
        step: &'static str,
        kind: Kind,
        request: &Request,
        descriptors: Vec<OwnedFd>,
    ) -> Result<u32, RuntimeError> {
        let mut state = self.lock();
        state.refuse_if_gone(step)?;
        if state.channels.len() >= MAX_CALLS {
            return Err(RuntimeError::new(
                RuntimeErrorCode::LimitReached,
                step,
                format!("{MAX_CALLS} calls are under way in this sandbox already"),
            ));
        }
        state.send_request(step, kind, request, descriptors)
    }

    /// Sends a request without waiting for its answer. It does not count towards the limit of
    /// calls: there is at most one for each call.
    pub(super) fn send_unawaited(&self, request: &Request) {
        let mut state = self.lock();
        if state.gone.is_none()
            && let Ok(channel) = state.send_request("", Kind::Single, request, Vec::new())
            && let Some(channel) = state.channels.get_mut(&channel)
        {
            channel.abandoned = true;
        }
    }

    /// The caller of a call is done with it.
    pub(super) fn close(&self, number: u32) {
        let mut state = self.lock();
        let State { channels, wire, .. } = &mut *state;
        let Some(channel) = channels.get_mut(&number) else { return };
        let mut closed = None;
        if channel.finished {
            wire.endpoint.close(number);
            closed = channels.remove(&number);
        } else {
            channel.abandon(number, &mut wire.endpoint);
        }
        state.flush();
        drop(state);
        drop(closed);
    }

    /// Whether the guest is ready.
    pub(super) fn poll_ready(&self, cx: &mut Context<'_>) -> Poll<Result<(), RuntimeError>> {
        let mut state = self.lock();
        let gone = state.refuse_if_gone("wait for the guest");
        let replaced = match &mut state.readiness {
            Readiness::Ready => return Poll::Ready(gone),
            Readiness::Failed { step, errno } => {
                let error = RuntimeError::new(
                    RuntimeErrorCode::LaunchFailed,
                    step.clone(),
                    "the sandbox could not be made",
                );
                return Poll::Ready(Err(error.with_errno(*errno)));
            }
            Readiness::Awaited(_) if gone.is_err() => return Poll::Ready(gone),
            Readiness::Awaited(waker) => remember(waker, cx),
        };
        drop(state);
        drop(replaced);
        Poll::Pending
    }

    /// Breaks the connection for this reason. The first reason counts.
    pub(super) fn fail(&self, reason: RuntimeError) {
        let mut wakes = Vec::new();
        let closed = {
            let mut state = self.lock();
            state.gone.get_or_insert(reason);
            for channel in state.channels.values_mut() {
                channel.wake_all(&mut wakes);
            }
            state.channels.retain(|_, channel| !channel.abandoned);
            if let Readiness::Awaited(waker) = &mut state.readiness {
                wakes.extend(waker.take());
            }
            wakes.extend(state.pump.take());
            state.blocked = false;
            (state.socket.take(), std::mem::take(&mut state.wire))
        };
        drop(closed);
        wakes.into_iter().for_each(Waker::wake);
    }

    /// Reads what has arrived, writes what is queued, and wakes the callers concerned.
    pub(super) fn poll_pump(&self, cx: &mut Context<'_>, scratch: &mut [u8]) -> Pumped {
        let mut wakes = Vec::new();
        let (pumped, replaced, note) = {
            let mut state = self.lock();
            let pumped = state.pump(cx, scratch, &mut wakes);
            (pumped, remember(&mut state.pump, cx), state.note.take())
        };
        drop(replaced);
        if let Some(note) = note {
            self.surroundings.scale_written(note);
        }
        wakes.into_iter().for_each(Waker::wake);
        pumped
    }
}

impl State {
    /// Refuses if the connection is broken.
    pub(super) fn refuse_if_gone(&self, step: &'static str) -> Result<(), RuntimeError> {
        match &self.gone {
            None => Ok(()),
            Some(reason) => Err(RuntimeError { step: step.into(), ..reason.clone() }),
        }
    }

    /// How many calls are open, cancelled ones included.
    #[cfg(test)]
    pub(super) fn open_calls(&self) -> usize {
        self.channels.len()
    }

    /// A call that is not closed.
    pub(super) fn channel(&mut self, number: u32) -> Option<&mut Channel> {
        self.channels.get_mut(&number).map(|channel| &mut **channel)
    }

    /// The endpoint and one call, for what concerns both.
    pub(super) fn parts(&mut self, number: u32) -> (&mut Endpoint, Option<&mut Channel>) {
        let channel = self.channels.get_mut(&number).map(|channel| &mut **channel);
        (&mut self.wire.endpoint, channel)
    }

    fn send_request(
        &mut self,
        step: &'static str,
        kind: Kind,
        request: &Request,
        descriptors: Vec<OwnedFd>,
    ) -> Result<u32, RuntimeError> {
        let Some(number) = self.last_channel.checked_add(1) else {
            let cause = "the sandbox has used up its call numbers: launch another sandbox";
            return Err(RuntimeError::new(RuntimeErrorCode::LimitReached, step, cause));
        };
        self.wire.queue(number, request, descriptors).map_err(|error| {
            RuntimeError::new(RuntimeErrorCode::TooLarge, step, error.to_string())
        })?;
        self.last_channel = number;
        self.channels.insert(number, Box::new(Channel::new(kind)));
        self.flush();
        Ok(number)
    }

    /// Writes as much of the queue as the socket takes. The pump handles the rest, and failures.
    pub(super) fn flush(&mut self) {
        let Some(socket) = &self.socket else { return };
        if !self.blocked && self.wire.write_out(socket.as_fd()).is_err() {
            self.blocked = true;
            // This only schedules its task.
            if let Some(pump) = &self.pump {
                pump.wake_by_ref();
            }
        }
    }

    fn pump(&mut self, cx: &mut Context<'_>, scratch: &mut [u8], wakes: &mut Vec<Waker>) -> Pumped {
        for _ in 0..READS_PER_TURN {
            let Some(socket) = &self.socket else { return Pumped::Ended };
            let read = match socket.poll_read(cx, scratch) {
                Poll::Pending => return self.poll_write(cx, wakes),
                Poll::Ready(Ok(0) | Err(_)) => return Pumped::Ended,
                Poll::Ready(Ok(read)) => read,
            };
            let fed = self.wire.endpoint.feed(&scratch[..read]);
            if let Err(error) = self.dispatch(wakes).and(fed) {
                return Pumped::Broken(error);
            }
            // Credit may have been given back.
            self.flush();
        }
        Pumped::Busy
    }

    /// Goes on writing once the socket takes more.
    fn poll_write(&mut self, cx: &mut Context<'_>, wakes: &mut Vec<Waker>) -> Pumped {
        if self.blocked {
            let Self { socket, wire, .. } = self;
            let Some(socket) = socket else { return Pumped::Ended };
            match socket.poll_write(cx, |fd| wire.write_out(fd)) {
                Poll::Pending => {}
                Poll::Ready(Err(error)) => return Pumped::Refused(error),
                Poll::Ready(Ok(())) => self.blocked = false,
            }
            if self.wire.endpoint.outgoing().len() < MAX_BACKLOG_BYTES {
                for channel in self.channels.values_mut() {
                    for lane in channel.kind.lanes() {
                        wakes.extend(channel.lane(lane).writer.take());
                    }
                }
            }
        }
        Pumped::Idle
    }

    /// Passes what arrived to the calls concerned.
    fn dispatch(&mut self, wakes: &mut Vec<Waker>) -> Result<(), ProtocolError> {
        while let Some(incoming) = self.wire.endpoint.next() {
            match incoming {
                Incoming::Message { channel: 0, payload } => {
                    self.guest_said(decode(&payload)?, wakes)?;
                }
                Incoming::Message { channel: number, payload } => {
                    let reply: Reply = decode(&payload)?;
                    let (endpoint, Some(channel)) = self.parts(number) else { continue };
                    if !channel.answered(reply, wakes) {
                        return Err(ProtocolError::BadMessage);
                    }
                    if channel.finished && channel.abandoned {
                        endpoint.close(number);
                        self.channels.remove(&number);
                    }
                }
                Incoming::Data { channel: number, lane, bytes } => {
                    let (endpoint, Some(channel)) = self.parts(number) else { continue };
                    let lane_buffer = channel.lane(lane);
                    if lane_buffer.unwanted {
                        endpoint.consumed(number, lane, bytes.len());
                    } else {
                        lane_buffer.push(bytes);
                        wakes.extend(lane_buffer.reader.take());
                    }
                }
                Incoming::End { channel, lane } => {
                    let Some(channel) = self.channel(channel) else { continue };
                    let lane = channel.lane(lane);
                    lane.ended = true;
                    wakes.extend(lane.reader.take());
                }
                Incoming::Reset { channel, lane } => {
                    let Some(channel) = self.channel(channel) else { continue };
                    let lane = channel.lane(lane);
                    lane.reset = true;
                    wakes.extend(lane.reader.take());
                    wakes.extend(lane.writer.take());
                }
                Incoming::Writable { channel, lane } => {
                    let Some(channel) = self.channel(channel) else { continue };
                    wakes.extend(channel.lane(lane).writer.take());
                }
            }
        }
        Ok(())
    }

    /// Takes a scale note. It is acknowledged at once: the guest sends one note at a time.
    fn scale_written(&mut self, note: ScaleNote) {
        let drops = note.drops || self.note.is_some_and(|before| before.drops);
        self.note = Some(ScaleNote { drops, ..note });
        let heard = Request::ScaleHeard { seq: note.seq };
        if let Ok(channel) = self.send_request("", Kind::Single, &heard, Vec::new())
            && let Some(channel) = self.channels.get_mut(&channel)
        {
            channel.abandoned = true;
        }
    }

    /// Handles messages without a call: first whether the guest is ready, then notes of its scale
    /// file.
    fn guest_said(&mut self, reply: Reply, wakes: &mut Vec<Waker>) -> Result<(), ProtocolError> {
        let waker = match (&mut self.readiness, &reply) {
            (Readiness::Awaited(waker), _) => waker,
            (Readiness::Ready, &Reply::Scale { seq, scale, drops }) => {
                self.scale_written(ScaleNote { seq, scale, drops });
                return Ok(());
            }
            (Readiness::Ready | Readiness::Failed { .. }, _) => {
                return Err(ProtocolError::BadMessage);
            }
        };
        wakes.extend(waker.take());
        self.readiness = match reply {
            Reply::Ready { version: VERSION } => Readiness::Ready,
            Reply::Ready { version } => Readiness::Failed {
                step: format!("use protocol version {VERSION} with a guest of version {version}"),
                errno: 0,
            },
            Reply::SetupFailed { step, errno } => Readiness::Failed { step, errno },
            Reply::Done
            | Reply::Started { .. }
            | Reply::Exited(_)
            | Reply::Entry(_)
            | Reply::Entries { .. }
            | Reply::Ports(_)
            | Reply::Processes(_)
            | Reply::Failed(_)
            | Reply::Scale { .. } => return Err(ProtocolError::BadMessage),
        };
        Ok(())
    }
}

//! The task that talks to the keeper: it takes one request after the other, and answers each or
//! says why it could not. It must never repeat a request: the first attempt may have been carried
//! out.

use std::future::poll_fn;
use std::os::fd::{AsFd as _, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use guest_protocol::keeper::{
    Ask, Fact, FromKeeper, MAX_PACKET_BYTES, ToKeeper, WritableMountSpec,
};
use guest_protocol::network::RefusedAddress;
use tasks::spawn_blocking;
use tokio::sync::{mpsc, oneshot};
use tokio::time::timeout;

use super::process::{KeeperChild, KeeperProcess};
use super::{refused, unexpected_answer};
use crate::error::{RuntimeError, RuntimeErrorCode};
use crate::socket::{Carries, Socket};

/// How long the keeper may take for one request. After that it counts as stuck.
const PATIENCE: Duration = Duration::from_secs(5);

const STEP: &str = "ask the keeper";

/// A request to the keeper.
pub(super) struct Request {
    pub ask: Ask,
    /// The container's first process.
    pub process: Arc<OwnedFd>,
    pub places: Vec<WritableMountSpec>,
    pub reply: oneshot::Sender<Result<Answer, RuntimeError>>,
}

/// The keeper's answer.
#[derive(Debug)]
pub(super) enum Answer {
    /// The facts that the keeper recorded.
    Seen(Vec<Fact>),
    /// The writable mounts are replaced.
    Renewed,
    /// The sockets that came along, and the refused addresses.
    Networked(Vec<OwnedFd>, Vec<RefusedAddress>),
}

/// Serves requests until all senders are gone.
pub(super) async fn serve(
    process: KeeperProcess,
    tables: bool,
    mut requests: mpsc::Receiver<Request>,
) {
    let mut keeper = KeeperConnection::new(process).ok();
    loop {
        let request = tokio::select! {
            // The death first: a request that waits already then gets a new keeper.
            biased;
            cause = death_of(&mut keeper) => {
                if let Some(dead) = keeper.take() {
                    dead.child.give_up(&cause, 0);
                }
                continue;
            }
            request = requests.recv() => request,
        };
        let Some(request) = request else { return };
        // A request whose caller has gone is not begun: its sandbox could not be used afterwards.
        if request.reply.is_closed() {
            continue;
        }
        let Request { ask, process, places, reply } = request;
        let connected = match keeper.take() {
            Some(connection) => Ok(connection),
            None => restart_keeper(tables).await.inspect_err(|error| {
                tracing::error!(%error, "the keeper restart failed, and the request with it");
            }),
        };
        let answer = match connected {
            Ok(mut connection) => {
                let answer = timeout(PATIENCE, connection.ask(ask, &process, places)).await;
                match answer.unwrap_or_else(|_| Err(KeeperLost(RuntimeError::deadline(STEP)))) {
                    Ok(answer) => {
                        keeper = Some(connection);
                        answer
                    }
                    Err(KeeperLost(error)) => {
                        connection.child.give_up(&error, 1);
                        Err(error)
                    }
                }
            }
            Err(error) => Err(error),
        };
        // The caller may have gone; then the answer is not needed.
        let _ = reply.send(answer);
    }
}

async fn restart_keeper(tables: bool) -> Result<KeeperConnection, RuntimeError> {
    let started = spawn_blocking(move || KeeperProcess::start(tables)).await;
    let lost =
        |_| RuntimeError::new(RuntimeErrorCode::ShuttingDown, STEP, "the server is shutting down");
    let connection = KeeperConnection::new(started.map_err(lost)??)?;
    tracing::info!(pid = connection.child.pid(), "a new keeper was started");
    Ok(connection)
}

/// Waits until an idle keeper dies, and returns the cause. Without a keeper, it waits for ever.
async fn death_of(keeper: &mut Option<KeeperConnection>) -> RuntimeError {
    match keeper {
        Some(connection) => connection.wait_for_death().await,
        None => std::future::pending().await,
    }
}

/// The keeper no longer answers.
struct KeeperLost(RuntimeError);

/// A connection to a running keeper.
struct KeeperConnection {
    socket: Socket,
    /// Dropped with the connection, which kills and reaps the keeper.
    child: KeeperChild,
    last_ticket: u64,
    buffer: Vec<u8>,
}

impl KeeperConnection {
    fn new(process: KeeperProcess) -> Result<Self, RuntimeError> {
        let KeeperProcess { socket, child, network: _ } = process;
        let socket = Socket::new(socket, Carries::Packets)
            .map_err(|error| RuntimeError::system(STEP, &error))?;
        let buffer = vec![0; MAX_PACKET_BYTES];
        Ok(Self { socket, child, last_ticket: 0, buffer })
    }

    /// Waits until the keeper closes its socket. It sends nothing without a request, so a message
    /// is a protocol error, too.
    async fn wait_for_death(&mut self) -> RuntimeError {
        let Self { socket, buffer, .. } = self;
        match poll_fn(|cx| socket.poll_read(cx, buffer)).await {
            Ok(0) => RuntimeError::new(RuntimeErrorCode::System, STEP, "the keeper has ended"),
            Ok(_) => unexpected_answer(STEP),
            Err(error) => RuntimeError::system(STEP, &error),
        }
    }

    async fn ask(
        &mut self,
        ask: Ask,
        process: &OwnedFd,
        places: Vec<WritableMountSpec>,
    ) -> Result<Result<Answer, RuntimeError>, KeeperLost> {
        let lost = |cause: &'static str| {
            KeeperLost(RuntimeError::new(RuntimeErrorCode::System, STEP, cause))
        };
        self.last_ticket += 1;
        let request = ToKeeper { ticket: self.last_ticket, ask, places };
        let bytes =
            postcard::to_allocvec(&request).map_err(|_| lost("the request cannot be encoded"))?;
        // The keeper reads each request before the next is sent, so the socket always has room.
        jail::packet::send(self.socket.as_fd(), &bytes, &[process.as_fd()])
            .map_err(|error| KeeperLost(RuntimeError::system(STEP, &error)))?;
        let Self { socket, buffer, .. } = self;
        let packet = poll_fn(|cx| socket.poll_packet(cx, buffer)).await;
        let packet = packet.map_err(|error| KeeperLost(RuntimeError::system(STEP, &error)))?;
        if packet.bytes == 0 {
            return Err(lost("the keeper has ended"));
        }
        let unexpected = || KeeperLost(unexpected_answer(STEP));
        match postcard::from_bytes(&self.buffer[..packet.bytes]).map_err(|_| unexpected())? {
            FromKeeper::Seen { ticket, facts } if ticket == self.last_ticket => {
                Ok(Ok(Answer::Seen(facts)))
            }
            FromKeeper::Renewed { ticket } if ticket == self.last_ticket => Ok(Ok(Answer::Renewed)),
            FromKeeper::Networked { ticket, refused } if ticket == self.last_ticket => {
                Ok(Ok(Answer::Networked(packet.descriptors, refused)))
            }
            FromKeeper::Refused { ticket, refusal } if ticket == self.last_ticket => {
                Ok(Err(refused(refusal)))
            }
            FromKeeper::Up { .. }
            | FromKeeper::Seen { .. }
            | FromKeeper::Renewed { .. }
            | FromKeeper::Networked { .. }
            | FromKeeper::Refused { .. } => Err(unexpected()),
        }
    }
}

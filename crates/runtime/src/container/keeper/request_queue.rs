//! The task that speaks with the keeper: takes one request after the other, and gives each an answer
//! or the reason why there is none.

use std::future::poll_fn;
use std::os::fd::{AsFd as _, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use guest_protocol::keeper::{Ask, Fact, FromKeeper, MAX_PACKET_BYTES, Place, ToKeeper};
use tasks::spawn_blocking;
use tokio::sync::{mpsc, oneshot};
use tokio::time::timeout;

use super::process::{End, KeeperProcess};
use super::{nonsense, refused};
use crate::error::{RuntimeError, RuntimeErrorCode};
use crate::socket::{Carries, Socket};

/// How long the keeper may take for one thing. Later it is stuck.
const PATIENCE: Duration = Duration::from_secs(5);

const STEP: &str = "ask the keeper";

/// Something to be done.
pub(super) struct Request {
    pub ask: Ask,
    /// The container's first process.
    pub process: Arc<OwnedFd>,
    pub places: Vec<Place>,
    pub reply: oneshot::Sender<Result<Answer, RuntimeError>>,
}

/// What came of it.
#[derive(Debug)]
pub(super) enum Answer {
    /// How it is.
    Seen(Vec<Fact>),
    /// It is done.
    Renewed,
}

/// Deals with requests until nobody can make any more.
pub(super) async fn serve(process: KeeperProcess, mut requests: mpsc::Receiver<Request>) {
    let mut speaking = Speaking::with(process).ok();
    while let Some(request) = requests.recv().await {
        // What nobody waits for is not begun: a sandbox of which nobody knows what was done to it
        // is of no use.
        if request.reply.is_closed() {
            continue;
        }
        let Request { ask, process, places, reply } = request;
        let answer = match speaking.take() {
            Some(now) => Ok(now),
            None => started_again().await,
        };
        let answer = match answer {
            Ok(mut now) => {
                let answer = timeout(PATIENCE, now.ask(ask, &process, places)).await;
                match answer.unwrap_or_else(|_| Err(Lost(RuntimeError::deadline(STEP)))) {
                    Ok(answer) => {
                        speaking = Some(now);
                        answer
                    }
                    // It is dropped, which ends it.
                    Err(Lost(error)) => Err(error),
                }
            }
            Err(error) => Err(error),
        };
        // Whoever does not wait any more does not want it.
        let _ = reply.send(answer);
    }
}

async fn started_again() -> Result<Speaking, RuntimeError> {
    let started = spawn_blocking(KeeperProcess::start).await;
    let lost = |_| RuntimeError::new(RuntimeErrorCode::ShuttingDown, STEP, "all ends");
    Speaking::with(started.map_err(lost)??)
}

/// The keeper does not answer any more.
struct Lost(RuntimeError);

/// A keeper that is spoken with.
struct Speaking {
    socket: Socket,
    /// It ends when it is not spoken with any more.
    _end: End,
    last_ticket: u64,
    buffer: Vec<u8>,
}

impl Speaking {
    fn with(process: KeeperProcess) -> Result<Self, RuntimeError> {
        let KeeperProcess { socket, end } = process;
        let socket = Socket::new(socket, Carries::Packets)
            .map_err(|error| RuntimeError::system(STEP, &error))?;
        let buffer = vec![0; MAX_PACKET_BYTES];
        Ok(Self { socket, _end: end, last_ticket: 0, buffer })
    }

    async fn ask(
        &mut self,
        ask: Ask,
        process: &OwnedFd,
        places: Vec<Place>,
    ) -> Result<Result<Answer, RuntimeError>, Lost> {
        let lost =
            |cause: &'static str| Lost(RuntimeError::new(RuntimeErrorCode::System, STEP, cause));
        self.last_ticket += 1;
        let request = ToKeeper { ticket: self.last_ticket, ask, places };
        let bytes = postcard::to_allocvec(&request).map_err(|_| lost("the request has no form"))?;
        // It takes the last one before it is given another, so there is always room.
        jail::packet::send(self.socket.as_fd(), &bytes, &[process.as_fd()])
            .map_err(|error| Lost(RuntimeError::system(STEP, &error)))?;
        let Self { socket, buffer, .. } = self;
        let length = poll_fn(|cx| socket.poll_read(cx, buffer)).await;
        let length = length.map_err(|error| Lost(RuntimeError::system(STEP, &error)))?;
        if length == 0 {
            return Err(lost("the keeper has ended"));
        }
        let nonsense = || Lost(nonsense(STEP));
        match postcard::from_bytes(&self.buffer[..length]).map_err(|_| nonsense())? {
            FromKeeper::Seen { ticket, facts } if ticket == self.last_ticket => {
                Ok(Ok(Answer::Seen(facts)))
            }
            FromKeeper::Renewed { ticket } if ticket == self.last_ticket => Ok(Ok(Answer::Renewed)),
            FromKeeper::Refused { ticket, refusal } if ticket == self.last_ticket => {
                Ok(Err(refused(refusal)))
            }
            FromKeeper::Up
            | FromKeeper::Seen { .. }
            | FromKeeper::Renewed { .. }
            | FromKeeper::Refused { .. } => Err(nonsense()),
        }
    }
}

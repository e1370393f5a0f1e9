//! The host's side of the keeper: a privileged process that records, wipes and proves containers
//! from outside, and makes the networks of policies in them. One task sends it one request after the other; callers wait in a queue. The keeper
//! knows containers by handles (pidfds) of their first processes, never by numbers alone.
//!
//! A keeper that dies is reaped at once, and logged. A keeper that died or does not answer in time
//! is replaced at the next request. The request in progress fails: no one knows whether it was
//! carried out, so its sandbox must not be handed out.

mod process;
mod request_queue;
#[cfg(test)]
mod tests;

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use guest_protocol::keeper::{self as protocol, Ask, Fact, KeeperRefusal, KeeperRefusalCode};
use guest_protocol::network::{NetworkRequest, RefusedAddress};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use tokio::sync::{mpsc, oneshot};
use tokio::time::timeout;

use self::process::KeeperProcess;
use self::request_queue::{Answer, Request};
use super::writable_mounts::WritableMount;
use crate::error::{RuntimeError, RuntimeErrorCode};
use crate::spec::NetworkAbility;

/// How long a caller waits, with the requests before its own.
const PATIENCE: Duration = Duration::from_secs(20);

/// How many requests may wait.
const MAX_WAITING: usize = 4096;

/// The keeper of containers. Dropped, it ends.
pub(crate) struct Keeper {
    requests: mpsc::Sender<Request>,
    network: NetworkAbility,
}

/// What came of a request about a network.
#[derive(Debug)]
pub(crate) struct Networked {
    /// The socket for connections and, where the kernel has tables, that for names.
    pub sockets: Vec<OwnedFd>,
    /// Refused addresses, if they were asked for.
    pub refused: Vec<RefusedAddress>,
}

/// How containers with a policy reach the network on this machine: a keeper is started, and ended.
pub(crate) async fn tried_network() -> NetworkAbility {
    let tried = tasks::spawn_blocking(|| KeeperProcess::start(true)).await;
    match tried {
        Ok(Ok(process)) => process.network,
        // Without a keeper there are no networks.
        Ok(Err(_)) | Err(_) => NetworkAbility::None,
    }
}

/// The state of a container at its launch, and which container it is.
#[derive(Debug)]
pub(crate) struct Baseline {
    process: Arc<OwnedFd>,
    places: Vec<protocol::WritableMountSpec>,
    facts: Vec<Fact>,
}

impl Keeper {
    /// Starts a keeper, or says why this host cannot have one. Must be called inside a tokio
    /// runtime. Blocks for a moment.
    pub(crate) fn start() -> Result<Arc<Self>, RuntimeError> {
        Self::start_with(true)
    }

    /// The same, with or without the kernel's tables.
    fn start_with(tables: bool) -> Result<Arc<Self>, RuntimeError> {
        let process = KeeperProcess::start(tables)?;
        let network = process.network;
        let (requests, queue) = mpsc::channel(MAX_WAITING);
        tokio::spawn(request_queue::serve(process, tables, queue));
        Ok(Arc::new(Self { requests, network }))
    }

    /// How containers with a policy reach the network on this machine.
    pub(crate) const fn network(&self) -> NetworkAbility {
        self.network
    }

    /// Records the state of a container that was just made, by the pid of its first process. The
    /// caller must make sure that the pid is still that process: if its guest answers afterwards,
    /// it was.
    pub(crate) async fn record_baseline(
        &self,
        pid: u32,
        mounts: &[WritableMount],
    ) -> Result<Baseline, RuntimeError> {
        const STEP: &str = "record the state of a container from outside";
        let number = i32::try_from(pid).ok().and_then(Pid::from_raw);
        let process = match number.map(|pid| pidfd_open(pid, PidfdFlags::empty())) {
            Some(Ok(process)) => Arc::new(process),
            None | Some(Err(Errno::SRCH)) => {
                let cause = format!(
                    "the first process {pid} of the container is not visible to this server"
                );
                return Err(RuntimeError::new(RuntimeErrorCode::SandboxGone, STEP, cause));
            }
            Some(Err(errno)) => return Err(RuntimeError::system(STEP, &errno.into())),
        };
        let places: Vec<_> = mounts.iter().map(as_message).collect();
        match self.ask(STEP, Ask::Look, &process, &places).await? {
            Answer::Seen(facts) => Ok(Baseline { process, places, facts }),
            Answer::Renewed | Answer::Networked(..) => Err(unexpected_answer(STEP)),
        }
    }

    /// Replaces the writable mounts of a container, removes what programs left in memory, and takes
    /// the network of a policy away. All
    /// its programs must have ended; only the guest runs.
    pub(crate) async fn renew(&self, baseline: &Baseline) -> Result<(), RuntimeError> {
        const STEP: &str = "replace the writable mounts of a container";
        match self.ask(STEP, Ask::Renew, &baseline.process, &baseline.places).await? {
            Answer::Renewed => Ok(()),
            Answer::Seen(_) | Answer::Networked(..) => Err(unexpected_answer(STEP)),
        }
    }

    /// Proves that nothing of a use is left, and that all else is as it was at the launch.
    pub(crate) async fn prove(&self, baseline: &Baseline) -> Result<(), RuntimeError> {
        const STEP: &str = "prove that nothing of the last use is left";
        match self.ask(STEP, Ask::Prove, &baseline.process, &baseline.places).await? {
            Answer::Seen(facts) => match difference(&baseline.facts, &facts) {
                None => Ok(()),
                Some(cause) => Err(RuntimeError::new(RuntimeErrorCode::System, STEP, cause)),
            },
            Answer::Renewed | Answer::Networked(..) => Err(unexpected_answer(STEP)),
        }
    }

    /// Does something with the network of a container. If the call is dropped, it may be done all
    /// the same, and its sockets are closed then.
    pub(crate) async fn network_request(
        &self,
        step: &'static str,
        baseline: &Baseline,
        request: NetworkRequest,
    ) -> Result<Networked, RuntimeError> {
        match self.ask(step, Ask::Network(request), &baseline.process, &[]).await? {
            Answer::Networked(sockets, refused) => Ok(Networked { sockets, refused }),
            Answer::Seen(_) | Answer::Renewed => Err(unexpected_answer(step)),
        }
    }

    async fn ask(
        &self,
        step: &'static str,
        ask: Ask,
        process: &Arc<OwnedFd>,
        places: &[protocol::WritableMountSpec],
    ) -> Result<Answer, RuntimeError> {
        let (reply, answer) = oneshot::channel();
        let process = Arc::clone(process);
        let request = Request { ask, process, places: places.to_vec(), reply };
        let asked = async {
            // The task ends together with this handle, and not before.
            let cause = "the keeper's task has ended";
            let lost = || RuntimeError::new(RuntimeErrorCode::ShuttingDown, step, cause);
            self.requests.send(request).await.map_err(|_| lost())?;
            answer.await.map_err(|_| lost())?
        };
        let answer = timeout(PATIENCE, asked).await.map_err(|_| RuntimeError::deadline(step))?;
        answer.map_err(|error| RuntimeError { step: step.into(), ..error })
    }
}

fn as_message(mount: &WritableMount) -> protocol::WritableMountSpec {
    let &WritableMount { path, bytes, mode, uid, no_programs } = mount;
    protocol::WritableMountSpec { path: path.to_owned(), bytes, mode, uid, no_programs }
}

fn unexpected_answer(step: &'static str) -> RuntimeError {
    RuntimeError::new(RuntimeErrorCode::Protocol, step, "the keeper sent an unexpected answer")
}

/// A refusal of the keeper as an error.
fn refused(refusal: KeeperRefusal) -> RuntimeError {
    let KeeperRefusal { code, step, errno } = refusal;
    let (code, cause) = match code {
        KeeperRefusalCode::Gone => (RuntimeErrorCode::SandboxGone, step),
        KeeperRefusalCode::Left => (RuntimeErrorCode::System, step),
        KeeperRefusalCode::Foreign | KeeperRefusalCode::Powerless => {
            (RuntimeErrorCode::Unsupported, step)
        }
        KeeperRefusalCode::System => {
            (RuntimeErrorCode::System, format!("the Linux kernel refused: {step}"))
        }
    };
    RuntimeError::new(code, "ask the keeper", cause).with_errno(errno)
}

/// Describes the first fact that changed.
fn difference(then: &[Fact], now: &[Fact]) -> Option<String> {
    if then.len() != now.len() {
        return Some("the keeper reports other facts than at the launch".to_owned());
    }
    let (then, now) = then.iter().zip(now).find(|(then, now)| then != now)?;
    let (was, is) = lines(&then.value, &now.value);
    Some(format!("the sandbox's {} changed: `{is}` was `{was}`", now.name))
}

/// The first lines in which two texts differ.
fn lines<'a>(then: &'a str, now: &'a str) -> (&'a str, &'a str) {
    let (mut then, mut now) = (then.lines(), now.lines());
    loop {
        match (then.next(), now.next()) {
            (Some(was), Some(is)) if was == is => {}
            (was, is) => return (was.unwrap_or("nothing"), is.unwrap_or("nothing")),
        }
    }
}

//! The keeper of containers, as the host knows it: a privileged process that looks at containers from
//! outside, gives them fresh places and makes sure that nothing of a use is left. One task speaks with
//! it, because it does one thing after the other anyway; whoever asks waits in line. It knows
//! containers by handles of their first processes, never by numbers alone.
//!
//! A keeper that dies or does not answer in time is replaced at the next request. What it was asked
//! for is refused then: whether it was done, nobody knows, so the sandbox is not fit for anyone.

mod process;
mod request_queue;
#[cfg(test)]
mod tests;

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use guest_protocol::keeper::{self as words, Ask, Fact, KeeperRefusal, KeeperRefusalCode};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use tokio::sync::{mpsc, oneshot};
use tokio::time::timeout;

use self::process::KeeperProcess;
use self::request_queue::{Answer, Request};
use super::places::Place;
use crate::error::{RuntimeError, RuntimeErrorCode};

/// How long anybody waits, others before it included.
const PATIENCE: Duration = Duration::from_secs(20);

/// How many may wait.
const MAX_WAITING: usize = 4096;

/// The keeper of containers. Dropped, it ends.
pub(crate) struct Keeper {
    line: mpsc::Sender<Request>,
}

/// What a container was like at birth, and which one it is.
#[derive(Debug)]
pub(crate) struct Baseline {
    process: Arc<OwnedFd>,
    places: Vec<words::Place>,
    facts: Vec<Fact>,
}

impl Keeper {
    /// Starts a keeper, or says why there can be none here. Must be called inside a tokio runtime;
    /// waits for a moment.
    pub(crate) fn start() -> Result<Arc<Self>, RuntimeError> {
        let process = KeeperProcess::start()?;
        let (line, asked) = mpsc::channel(MAX_WAITING);
        tokio::spawn(request_queue::serve(process, asked));
        Ok(Arc::new(Self { line }))
    }

    /// Looks at a container that was just made, by the number of its first process. That the number
    /// is still its own has to be known from elsewhere: if its guest answers afterwards, it was.
    pub(crate) async fn look(&self, pid: u32, places: &[Place]) -> Result<Baseline, RuntimeError> {
        const STEP: &str = "look at a container from outside";
        let number = i32::try_from(pid).ok().and_then(Pid::from_raw);
        let process = match number.map(|pid| pidfd_open(pid, PidfdFlags::empty())) {
            Some(Ok(process)) => Arc::new(process),
            None | Some(Err(Errno::SRCH)) => {
                let cause = format!("its process {pid} cannot be seen from here");
                return Err(RuntimeError::new(RuntimeErrorCode::SandboxGone, STEP, cause));
            }
            Some(Err(errno)) => return Err(RuntimeError::system(STEP, &errno.into())),
        };
        let places: Vec<_> = places.iter().map(as_words).collect();
        match self.ask(STEP, Ask::Look, &process, &places).await? {
            Answer::Seen(facts) => Ok(Baseline { process, places, facts }),
            Answer::Renewed => Err(nonsense(STEP)),
        }
    }

    /// Gives a container fresh places, and removes what programs left in memory. Everything in it
    /// but its guest must have ended.
    pub(crate) async fn renew(&self, baseline: &Baseline) -> Result<(), RuntimeError> {
        const STEP: &str = "renew the places of a container";
        match self.ask(STEP, Ask::Renew, &baseline.process, &baseline.places).await? {
            Answer::Renewed => Ok(()),
            Answer::Seen(_) => Err(nonsense(STEP)),
        }
    }

    /// Makes sure that nothing of a use is left, and that all else is as it was at birth.
    pub(crate) async fn prove(&self, baseline: &Baseline) -> Result<(), RuntimeError> {
        const STEP: &str = "prove that nothing is left";
        match self.ask(STEP, Ask::Prove, &baseline.process, &baseline.places).await? {
            Answer::Seen(facts) => match difference(&baseline.facts, &facts) {
                None => Ok(()),
                Some(cause) => Err(RuntimeError::new(RuntimeErrorCode::System, STEP, cause)),
            },
            Answer::Renewed => Err(nonsense(STEP)),
        }
    }

    async fn ask(
        &self,
        step: &'static str,
        ask: Ask,
        process: &Arc<OwnedFd>,
        places: &[words::Place],
    ) -> Result<Answer, RuntimeError> {
        let (reply, answer) = oneshot::channel();
        let process = Arc::clone(process);
        let request = Request { ask, process, places: places.to_vec(), reply };
        let asked = async {
            // The task ends with us, and not before.
            let lost = || RuntimeError::new(RuntimeErrorCode::ShuttingDown, step, "it has ended");
            self.line.send(request).await.map_err(|_| lost())?;
            answer.await.map_err(|_| lost())?
        };
        let answer = timeout(PATIENCE, asked).await.map_err(|_| RuntimeError::deadline(step))?;
        answer.map_err(|error| RuntimeError { step: step.into(), ..error })
    }
}

fn as_words(place: &Place) -> words::Place {
    let &Place { path, bytes, mode, uid, no_programs } = place;
    words::Place { path: path.to_owned(), bytes, mode, uid, no_programs }
}

fn nonsense(step: &'static str) -> RuntimeError {
    RuntimeError::new(RuntimeErrorCode::Protocol, step, "the keeper's answer makes no sense")
}

/// What a refusal means here.
fn refused(refusal: KeeperRefusal) -> RuntimeError {
    let KeeperRefusal { code, step, errno } = refusal;
    let (code, cause) = match code {
        KeeperRefusalCode::Gone => (RuntimeErrorCode::SandboxGone, step),
        KeeperRefusalCode::Left => (RuntimeErrorCode::System, step),
        KeeperRefusalCode::Foreign | KeeperRefusalCode::Powerless => {
            (RuntimeErrorCode::Unsupported, step)
        }
        KeeperRefusalCode::System => {
            (RuntimeErrorCode::System, format!("the kernel refused: {step}"))
        }
    };
    RuntimeError::new(code, "look after containers", cause).with_errno(errno)
}

/// The first thing that is not as it was, in words.
fn difference(then: &[Fact], now: &[Fact]) -> Option<String> {
    if then.len() != now.len() {
        return Some("the keeper tells of other things than at its birth".to_owned());
    }
    let (then, now) = then.iter().zip(now).find(|(then, now)| then != now)?;
    let (was, is) = lines(&then.value, &now.value);
    Some(format!("its {} changed: `{is}` was `{was}`", now.name))
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

//! Reports of deaths of sandboxes. Each subscriber has a queue, and no death is lost. The queues
//! stay bounded because a runtime launches nothing while too many deaths are unread. Nothing here
//! may wait while it holds a lock.

use std::collections::VecDeque;
use std::fmt;
use std::future::poll_fn;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::{Poll, Waker};

use guest_protocol::message::ExitStatus;
use model::InstanceId;

use crate::error::{RuntimeError, RuntimeErrorCode};

/// Unread deaths of one subscriber above which nothing is launched.
const MAX_UNREAD: usize = 65_536;

/// The death of a sandbox: it exited, and nothing of it is left.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Died {
    /// Which instance.
    pub instance: InstanceId,
    /// How its first process exited; unknown if its launcher died first.
    pub status: Option<ExitStatus>,
    /// Whether the Linux kernel killed something in it for want of memory.
    pub out_of_memory: bool,
    /// How its launcher ended, if the sandbox died with it and that is known.
    pub launcher: Option<LauncherExit>,
}

/// How a launcher ended. Its sandboxes died with it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LauncherExit {
    /// Its process.
    pub pid: i32,
    /// How that exited; unknown if another process reaped it.
    pub status: Option<ExitStatus>,
}

impl fmt::Display for LauncherExit {
    /// Without the process id, which is the host's: callers see this. The log has it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("its launcher ")?;
        match self.status {
            Some(ExitStatus::Signal(signal)) => write!(f, "was killed by signal {signal}"),
            Some(ExitStatus::Code(code)) => write!(f, "ended with exit code {code}"),
            None => f.write_str("ended"),
        }
    }
}

impl Died {
    /// It exited by itself, or was killed.
    pub(crate) const fn alone(
        instance: InstanceId,
        status: Option<ExitStatus>,
        out_of_memory: bool,
    ) -> Self {
        Self { instance, status, out_of_memory, launcher: None }
    }

    /// It died together with its launcher.
    pub(crate) const fn with_launcher(
        instance: InstanceId,
        launcher: Option<LauncherExit>,
    ) -> Self {
        Self { instance, status: None, out_of_memory: false, launcher }
    }

    /// The cause in words.
    pub fn cause(&self) -> String {
        match (self.out_of_memory, self.status) {
            (true, _) => "the sandbox ran out of memory".to_owned(),
            (false, Some(ExitStatus::Code(code))) => {
                format!("the sandbox ended with exit code {code}")
            }
            (false, Some(ExitStatus::Signal(signal))) => {
                format!("the sandbox was ended by signal {signal}")
            }
            (false, None) => match self.launcher {
                Some(exit) => exit.to_string(),
                None => "the sandbox ended together with its launcher".to_owned(),
            },
        }
    }

    /// As the failure of a step that needed the sandbox.
    pub(crate) fn error(&self, step: &'static str) -> RuntimeError {
        let code = if self.out_of_memory {
            RuntimeErrorCode::OutOfMemory
        } else {
            RuntimeErrorCode::SandboxGone
        };
        RuntimeError::new(code, step, self.cause())
    }
}

#[derive(Debug, Default)]
struct Queue {
    unread: VecDeque<Died>,
    closed: bool,
    waker: Option<Waker>,
}

type Shared = Mutex<Queue>;

fn lock(queue: &Shared) -> MutexGuard<'_, Queue> {
    // A queue is whole after every statement, so one that a panic left is good.
    queue.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The deaths of one runtime, each once, from the moment of subscription on.
#[derive(Debug)]
pub struct Deaths {
    queue: Arc<Shared>,
}

impl Deaths {
    /// The next death; none when the runtime is shut down or dropped and all have been taken.
    /// Dropping the future loses nothing.
    pub async fn next(&mut self) -> Option<Died> {
        poll_fn(|cx| {
            let mut queue = lock(&self.queue);
            if let Some(died) = queue.unread.pop_front() {
                return Poll::Ready(Some(died));
            }
            if queue.closed {
                return Poll::Ready(None);
            }
            queue.waker = Some(cx.waker().clone());
            Poll::Pending
        })
        .await
    }

    /// The next death, if there is one already.
    pub fn try_next(&mut self) -> Option<Died> {
        lock(&self.queue).unread.pop_front()
    }
}

/// Reports deaths to all subscribers.
#[derive(Debug, Default)]
pub(crate) struct DeathBoard {
    state: Mutex<Board>,
}

#[derive(Debug, Default)]
struct Board {
    subscribers: Vec<Weak<Shared>>,
    closed: bool,
}

impl DeathBoard {
    fn board(&self) -> MutexGuard<'_, Board> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn subscribe(&self) -> Deaths {
        let mut board = self.board();
        let queue = Arc::new(Mutex::new(Queue { closed: board.closed, ..Queue::default() }));
        board.subscribers.retain(|one| one.strong_count() > 0);
        board.subscribers.push(Arc::downgrade(&queue));
        Deaths { queue }
    }

    pub(crate) fn report(&self, died: Died) {
        self.each(|queue| queue.unread.push_back(died));
    }

    /// No further deaths will come.
    pub(crate) fn close(&self) {
        self.board().closed = true;
        self.each(|queue| queue.closed = true);
    }

    /// Refuses a launch while too many deaths are unread.
    pub(crate) fn check_room(&self) -> Result<(), RuntimeError> {
        let mut unread = 0;
        self.each(|queue| unread = unread.max(queue.unread.len()));
        if unread < MAX_UNREAD {
            return Ok(());
        }
        Err(RuntimeError::new(
            RuntimeErrorCode::EventsUnread,
            "launch",
            format!("{unread} deaths of sandboxes are still unread"),
        ))
    }

    fn each(&self, mut act: impl FnMut(&mut Queue)) {
        let mut wakers = Vec::new();
        self.board().subscribers.retain(|one| {
            let Some(queue) = one.upgrade() else { return false };
            let mut queue = lock(&queue);
            act(&mut queue);
            if queue.closed || !queue.unread.is_empty() {
                wakers.extend(queue.waker.take());
            }
            true
        });
        wakers.into_iter().for_each(Waker::wake);
    }
}

impl Drop for DeathBoard {
    fn drop(&mut self) {
        self.close();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn died(n: u128) -> Died {
        Died::with_launcher(InstanceId::from_u128(n), None)
    }

    #[tokio::test]
    async fn deaths_reach_every_subscriber_once_and_then_end() {
        let board = DeathBoard::default();
        board.report(died(1));
        let (mut a, mut b) = (board.subscribe(), board.subscribe());
        board.report(died(2));
        board.report(died(3));
        board.close();
        for deaths in [&mut a, &mut b] {
            assert_eq!(deaths.next().await, Some(died(2)));
            assert_eq!(deaths.next().await, Some(died(3)));
            assert_eq!(deaths.next().await, None);
        }
        assert_eq!(board.subscribe().next().await, None, "closed for those who come late too");
    }

    #[tokio::test]
    async fn deaths_end_when_their_runtime_is_dropped() {
        let board = DeathBoard::default();
        let mut deaths = board.subscribe();
        board.report(died(1));
        drop(board);
        assert_eq!((deaths.next().await, deaths.next().await), (Some(died(1)), None));
    }

    #[tokio::test]
    async fn death_subscriber_is_woken_and_a_dropped_wait_loses_nothing() {
        let board = Arc::new(DeathBoard::default());
        let mut deaths = board.subscribe();
        let wait = tokio::time::timeout(std::time::Duration::ZERO, deaths.next()).await;
        assert!(wait.is_err());
        let teller = Arc::clone(&board);
        let reported = tokio::spawn(async move { teller.report(died(7)) });
        assert_eq!(deaths.next().await, Some(died(7)));
        reported.await.unwrap();
    }

    #[test]
    fn launches_are_refused_while_too_many_deaths_are_unread() {
        let board = DeathBoard::default();
        let mut deaths = board.subscribe();
        for n in 0..MAX_UNREAD {
            board.check_room().unwrap();
            board.report(died(n as u128));
        }
        assert_eq!(board.check_room().unwrap_err().code, RuntimeErrorCode::EventsUnread);
        deaths.try_next().unwrap();
        board.check_room().unwrap();
        drop(deaths);
        board.check_room().unwrap();
    }
}

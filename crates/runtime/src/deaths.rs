//! Who is told that a sandbox is over. A death is queued for each subscriber until it is taken:
//! none is lost. That stays bounded because a runtime starts nothing more while too many are
//! unread. Nothing here waits while it holds a lock.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::{Poll, Waker};

use guest_protocol::message::ExitStatus;
use model::InstanceId;

use crate::error::{RuntimeError, RuntimeErrorCode};

/// Unread deaths of one subscriber above which nothing more is started.
const MAX_UNREAD: usize = 65_536;

/// A sandbox is over, and nothing of it is left.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Died {
    /// Which.
    pub instance: InstanceId,
    /// How its first process ended; not known if what started it went first.
    pub status: Option<ExitStatus>,
    /// Whether the kernel killed something in it for want of memory.
    pub out_of_memory: bool,
}

impl Died {
    /// It went with what had started it.
    pub(crate) fn with_launcher(instance: InstanceId) -> Self {
        Self { instance, status: None, out_of_memory: false }
    }

    /// In words, for whoever still waited for the sandbox.
    pub(crate) fn cause(&self) -> String {
        match (self.out_of_memory, self.status) {
            (true, _) => "the sandbox ran out of memory".to_owned(),
            (false, Some(ExitStatus::Code(code))) => {
                format!("the sandbox ended with exit code {code}")
            }
            (false, Some(ExitStatus::Signal(signal))) => {
                format!("the sandbox was ended by signal {signal}")
            }
            (false, None) => "the sandbox ended together with its launcher".to_owned(),
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

/// Tells deaths to all who subscribed.
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

    pub(crate) fn tell(&self, died: Died) {
        self.each(|queue| queue.unread.push_back(died));
    }

    /// No more deaths will come.
    pub(crate) fn close(&self) {
        self.board().closed = true;
        self.each(|queue| queue.closed = true);
    }

    /// Refuses to start anything while deaths pile up unread.
    pub(crate) fn check_room(&self) -> Result<(), RuntimeError> {
        let mut unread = 0;
        self.each(|queue| unread = unread.max(queue.unread.len()));
        if unread < MAX_UNREAD {
            return Ok(());
        }
        Err(RuntimeError::new(
            RuntimeErrorCode::EventsUnread,
            "launch",
            format!("{unread} deaths of sandboxes were not taken yet"),
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
        Died { instance: InstanceId::from_u128(n), status: None, out_of_memory: false }
    }

    #[tokio::test]
    async fn every_subscriber_gets_every_death_once_and_then_the_end() {
        let board = DeathBoard::default();
        board.tell(died(1));
        let (mut a, mut b) = (board.subscribe(), board.subscribe());
        board.tell(died(2));
        board.tell(died(3));
        board.close();
        for deaths in [&mut a, &mut b] {
            assert_eq!(deaths.next().await, Some(died(2)));
            assert_eq!(deaths.next().await, Some(died(3)));
            assert_eq!(deaths.next().await, None);
        }
        assert_eq!(board.subscribe().next().await, None, "closed for those who come late too");
    }

    #[tokio::test]
    async fn nobody_waits_for_deaths_of_what_was_dropped() {
        let board = DeathBoard::default();
        let mut deaths = board.subscribe();
        board.tell(died(1));
        drop(board);
        assert_eq!((deaths.next().await, deaths.next().await), (Some(died(1)), None));
    }

    #[tokio::test]
    async fn a_waiter_is_woken_and_a_dropped_wait_loses_nothing() {
        let board = Arc::new(DeathBoard::default());
        let mut deaths = board.subscribe();
        let wait = tokio::time::timeout(std::time::Duration::ZERO, deaths.next()).await;
        assert!(wait.is_err());
        let teller = Arc::clone(&board);
        let told = tokio::spawn(async move { teller.tell(died(7)) });
        assert_eq!(deaths.next().await, Some(died(7)));
        told.await.unwrap();
    }

    #[test]
    fn launches_are_refused_while_deaths_pile_up_and_only_then() {
        let board = DeathBoard::default();
        let mut deaths = board.subscribe();
        for n in 0..MAX_UNREAD {
            board.check_room().unwrap();
            board.tell(died(n as u128));
        }
        assert_eq!(board.check_room().unwrap_err().code, RuntimeErrorCode::EventsUnread);
        deaths.try_next().unwrap();
        board.check_room().unwrap();
        drop(deaths);
        board.check_room().unwrap();
    }
}

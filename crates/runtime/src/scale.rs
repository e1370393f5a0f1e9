//! Reports of what programs write to the scale files of sandboxes. Only the last note of each
//! sandbox is kept, so that no program can fill memory with them.

use std::collections::BTreeMap;
use std::future::poll_fn;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::{Poll, Waker};

use model::InstanceId;

use crate::inside::ScaleNote;

#[derive(Debug, Default)]
struct Queue {
    unread: BTreeMap<InstanceId, ScaleNote>,
    closed: bool,
    waker: Option<Waker>,
}

type Shared = Mutex<Queue>;

fn lock(queue: &Shared) -> MutexGuard<'_, Queue> {
    // A queue is whole after every statement, so one that a panic left is good.
    queue.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What is written to the scale files of one runtime, from the moment of subscription on.
#[derive(Debug)]
pub struct ScaleNotes {
    queue: Arc<Shared>,
}

impl ScaleNotes {
    /// Those of a runtime whose sandboxes have no such file.
    pub fn none() -> Self {
        Self { queue: Arc::new(Mutex::new(Queue { closed: true, ..Queue::default() })) }
    }

    /// The next note; none when the runtime is shut down or dropped and all are taken. Of several
    /// unread notes of a sandbox, the last counts. Dropping the future loses nothing.
    pub async fn next(&mut self) -> Option<(InstanceId, ScaleNote)> {
        poll_fn(|cx| {
            let mut queue = lock(&self.queue);
            if let Some(note) = queue.unread.pop_first() {
                return Poll::Ready(Some(note));
            }
            if queue.closed {
                return Poll::Ready(None);
            }
            queue.waker = Some(cx.waker().clone());
            Poll::Pending
        })
        .await
    }
}

/// Reports notes to all subscribers.
#[derive(Debug, Default)]
pub(crate) struct ScaleBoard {
    state: Mutex<Board>,
}

#[derive(Debug, Default)]
struct Board {
    subscribers: Vec<Weak<Shared>>,
    closed: bool,
}

impl ScaleBoard {
    fn board(&self) -> MutexGuard<'_, Board> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn subscribe(&self) -> ScaleNotes {
        let mut board = self.board();
        let queue = Arc::new(Mutex::new(Queue { closed: board.closed, ..Queue::default() }));
        board.subscribers.retain(|one| one.strong_count() > 0);
        board.subscribers.push(Arc::downgrade(&queue));
        ScaleNotes { queue }
    }

    /// Replaces an unread note of the same sandbox, but keeps its `drops`.
    pub(crate) fn report(&self, instance: InstanceId, note: ScaleNote) {
        self.each(|queue| {
            let before = queue.unread.get(&instance).is_some_and(|before| before.drops);
            let drops = note.drops || before;
            queue.unread.insert(instance, ScaleNote { drops, ..note });
        });
    }

    pub(crate) fn close(&self) {
        self.board().closed = true;
        self.each(|queue| queue.closed = true);
    }

    fn each(&self, act: impl Fn(&mut Queue)) {
        let queues: Vec<_> = self.board().subscribers.iter().filter_map(Weak::upgrade).collect();
        for queue in queues {
            let waker = {
                let mut queue = lock(&queue);
                act(&mut queue);
                queue.waker.take()
            };
            if let Some(waker) = waker {
                waker.wake();
            }
        }
    }
}

impl Drop for ScaleBoard {
    fn drop(&mut self) {
        self.close();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn note(seq: u64, scale: u32, drops: bool) -> ScaleNote {
        ScaleNote { seq, scale, drops }
    }

    #[tokio::test]
    async fn scale_notes_report_the_last_of_each_sandbox() {
        let board = ScaleBoard::default();
        let (one, two) = (InstanceId::from_u128(1), InstanceId::from_u128(2));
        board.report(one, note(1, 9, false));
        let mut notes = board.subscribe();
        board.report(one, note(2, 0, true));
        board.report(two, note(1, 5, false));
        board.report(one, note(3, 4, false));
        assert_eq!(notes.next().await, Some((one, note(3, 4, true))));
        assert_eq!(notes.next().await, Some((two, note(1, 5, false))));
        board.report(two, note(2, 6, false));
        board.close();
        assert_eq!(notes.next().await, Some((two, note(2, 6, false))));
        assert_eq!(notes.next().await, None);
        assert_eq!(board.subscribe().next().await, None);
        assert_eq!(ScaleNotes::none().next().await, None);
    }
}

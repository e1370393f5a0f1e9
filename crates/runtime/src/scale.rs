//! What programs wrote to the scale files of sandboxes, as it is told to whoever wants to know. Of
//! each sandbox only the last word is kept, so that no program can make it much.

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

    /// The next; none when the runtime is shut down or dropped and all have been taken. Of what a
    /// sandbox says before it is taken, the last counts. Dropping the future loses nothing.
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

/// Tells notes to all who subscribed.
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

    /// What was said in between is not forgotten where it matters: that all was dropped.
    pub(crate) fn tell(&self, instance: InstanceId, note: ScaleNote) {
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
    async fn the_last_word_of_each_is_told() {
        let board = ScaleBoard::default();
        let (one, two) = (InstanceId::from_u128(1), InstanceId::from_u128(2));
        board.tell(one, note(1, 9, false));
        let mut notes = board.subscribe();
        board.tell(one, note(2, 0, true));
        board.tell(two, note(1, 5, false));
        board.tell(one, note(3, 4, false));
        assert_eq!(notes.next().await, Some((one, note(3, 4, true))));
        assert_eq!(notes.next().await, Some((two, note(1, 5, false))));
        board.tell(two, note(2, 6, false));
        board.close();
        assert_eq!(notes.next().await, Some((two, note(2, 6, false))));
        assert_eq!(notes.next().await, None);
        assert_eq!(board.subscribe().next().await, None);
        assert_eq!(ScaleNotes::none().next().await, None);
    }
}

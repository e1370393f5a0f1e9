//! The life of one sandbox as those see it who wait for it: whether it is over, how it ended, and
//! whether nothing of it is left. The reason may be known before all is removed.

use std::sync::{Arc, Mutex, PoisonError};

use async_trait::async_trait;
use model::InstanceId;
use tokio::sync::{Notify, watch};

use super::maker::Maker;
use crate::deaths::Died;
use crate::guest_link::Surroundings;
use crate::inside::ScaleNote;
use crate::scale::ScaleBoard;

/// One life.
#[derive(Debug)]
pub(super) struct Life {
    /// How it ended, once that is known.
    reason: Mutex<Option<Died>>,
    known: Notify,
    /// Nothing of it is left.
    over: watch::Sender<bool>,
    /// Somebody wants its end although it is not born yet.
    unwanted: watch::Sender<bool>,
}

impl Life {
    pub(super) fn new() -> Self {
        Self {
            reason: Mutex::default(),
            known: Notify::new(),
            over: watch::Sender::new(false),
            unwanted: watch::Sender::new(false),
        }
    }

    /// How it ended, once nothing of it is left.
    pub(super) fn died(&self) -> Option<Died> {
        if *self.over.borrow() { self.reason() } else { None }
    }

    /// How it ended, as soon as that is known.
    pub(super) fn reason(&self) -> Option<Died> {
        *self.reason.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How it ended is known. What is known first counts.
    pub(super) fn ends(&self, died: Died) -> Died {
        let mut reason = self.reason.lock().unwrap_or_else(PoisonError::into_inner);
        let counts = *reason.get_or_insert(died);
        drop(reason);
        self.known.notify_waiters();
        counts
    }

    /// Nothing of it is left.
    pub(super) fn is_removed(&self) {
        self.over.send_replace(true);
    }

    /// Waits until nothing of it is left.
    pub(super) async fn removed(&self) {
        // The sender is ours, so it cannot be gone.
        let _ = self.over.subscribe().wait_for(|over| *over).await;
    }

    /// Its end is wanted before it is born.
    pub(super) fn reject(&self) {
        self.unwanted.send_replace(true);
    }

    pub(super) fn is_rejected(&self) -> bool {
        *self.unwanted.borrow()
    }

    /// Waits until its end is wanted.
    pub(super) async fn rejected(&self) {
        let _ = self.unwanted.subscribe().wait_for(|unwanted| *unwanted).await;
    }

    async fn known_reason(&self) -> Died {
        loop {
            // Listen before looking, or what is said in between would never be noticed.
            let known = self.known.notified();
            if let Some(died) = self.reason() {
                return died;
            }
            known.await;
        }
    }
}

/// What one connection to a guest is told of, and whom it tells that it is over. A sandbox has one
/// after the other: only the end of the present one is the end of the sandbox.
pub(super) struct Watch<M> {
    pub id: InstanceId,
    pub life: Arc<Life>,
    pub maker: Arc<M>,
    pub scale: Arc<ScaleBoard>,
    state: watch::Sender<State>,
}

/// How a connection is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Whole,
    Broken,
    /// Another has taken its place.
    Replaced,
}

impl<M: Maker> Watch<M> {
    pub(super) fn new(
        id: InstanceId,
        life: Arc<Life>,
        maker: Arc<M>,
        scale: Arc<ScaleBoard>,
    ) -> Self {
        Self { id, life, maker, scale, state: watch::Sender::new(State::Whole) }
    }

    /// Another connection takes its place: its end means nothing any more. Not if it is broken.
    pub(super) fn replace(&self) {
        self.turn(State::Replaced);
    }

    /// The first thing that happens to it counts.
    fn turn(&self, to: State) {
        self.state.send_if_modified(|state| {
            let first = *state == State::Whole;
            if first {
                *state = to;
            }
            first
        });
    }

    /// Waits until it is broken or replaced, and says whether it is broken.
    pub(super) async fn is_broken(&self) -> bool {
        let mut states = self.state.subscribe();
        // The sender is ours, so it cannot be gone.
        let end = states.wait_for(|state| *state != State::Whole).await;
        end.is_ok_and(|state| *state == State::Broken)
    }
}

#[async_trait]
impl<M: Maker> Surroundings for Watch<M> {
    fn memory_ran_out(&self) -> bool {
        self.maker.memory_ran_out(self.id)
    }

    fn scale_written(&self, note: ScaleNote) {
        self.scale.tell(self.id, note);
    }

    fn broken(&self) {
        self.turn(State::Broken);
    }

    async fn death(&self) -> Died {
        self.life.known_reason().await
    }
}

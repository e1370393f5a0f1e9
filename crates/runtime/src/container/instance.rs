//! One instance from its launch to its removal, for callers that wait for it: whether it was
//! cancelled, how it exited, and whether its removal is complete. The exit is often known before
//! the removal ends.

use std::sync::{Arc, Mutex, PoisonError};

use async_trait::async_trait;
use model::InstanceId;
use tokio::sync::{Notify, watch};

use super::maker::Maker;
use crate::deaths::Died;
use crate::guest_link::Surroundings;
use crate::inside::ScaleNote;
use crate::scale::ScaleBoard;

/// The state of one instance that its waiters share.
#[derive(Debug)]
pub(super) struct Instance {
    /// How it exited, once that is known.
    reason: Mutex<Option<Died>>,
    reason_known: Notify,
    /// Nothing of it is left.
    removed: watch::Sender<bool>,
    /// A caller killed it before its launch was complete.
    cancelled: watch::Sender<bool>,
}

impl Instance {
    pub(super) fn new() -> Self {
        Self {
            reason: Mutex::default(),
            reason_known: Notify::new(),
            removed: watch::Sender::new(false),
            cancelled: watch::Sender::new(false),
        }
    }

    /// How it exited, once nothing of it is left.
    pub(super) fn died(&self) -> Option<Died> {
        if *self.removed.borrow() { self.reason() } else { None }
    }

    /// How it exited, as soon as that is known.
    pub(super) fn reason(&self) -> Option<Died> {
        *self.reason.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records how it exited. The first report counts.
    pub(super) fn set_exit(&self, died: Died) -> Died {
        let mut reason = self.reason.lock().unwrap_or_else(PoisonError::into_inner);
        let counts = *reason.get_or_insert(died);
        drop(reason);
        self.reason_known.notify_waiters();
        counts
    }

    /// Nothing of it is left.
    pub(super) fn mark_removed(&self) {
        self.removed.send_replace(true);
    }

    /// Waits until nothing of it is left.
    pub(super) async fn wait_removed(&self) {
        // The sender is ours, so it cannot be gone.
        let _ = self.removed.subscribe().wait_for(|removed| *removed).await;
    }

    /// Cancels the launch.
    pub(super) fn cancel(&self) {
        self.cancelled.send_replace(true);
    }

    pub(super) fn is_cancelled(&self) -> bool {
        *self.cancelled.borrow()
    }

    /// Waits until the launch is cancelled.
    pub(super) async fn cancelled(&self) {
        let _ = self.cancelled.subscribe().wait_for(|cancelled| *cancelled).await;
    }

    async fn known_reason(&self) -> Died {
        loop {
            // Subscribe before the check, or a report in between would be missed.
            let reason_known = self.reason_known.notified();
            if let Some(died) = self.reason() {
                return died;
            }
            reason_known.await;
        }
    }
}

/// Watches one connection to a guest. A sandbox gets a new connection with each wipe: only the end
/// of the current one is the end of the sandbox.
pub(super) struct ConnectionWatch<M> {
    pub id: InstanceId,
    pub instance: Arc<Instance>,
    pub maker: Arc<M>,
    pub scale: Arc<ScaleBoard>,
    state: watch::Sender<State>,
}

/// The state of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Open,
    Broken,
    /// A newer connection replaced it.
    Replaced,
}

impl<M: Maker> ConnectionWatch<M> {
    pub(super) fn new(
        id: InstanceId,
        instance: Arc<Instance>,
        maker: Arc<M>,
        scale: Arc<ScaleBoard>,
    ) -> Self {
        Self { id, instance, maker, scale, state: watch::Sender::new(State::Open) }
    }

    /// A newer connection replaces this one, so that its end no longer counts. A broken one stays
    /// broken.
    pub(super) fn replace(&self) {
        self.change_state(State::Replaced);
    }

    /// Whether a newer connection replaced it.
    pub(super) fn is_replaced(&self) -> bool {
        *self.state.borrow() == State::Replaced
    }

    /// The first change counts.
    fn change_state(&self, to: State) {
        self.state.send_if_modified(|state| {
            let first = *state == State::Open;
            if first {
                *state = to;
            }
            first
        });
    }

    /// Waits until it is broken or replaced. True if it is broken.
    pub(super) async fn wait_broken(&self) -> bool {
        let mut states = self.state.subscribe();
        // The sender is ours, so it cannot be gone.
        let end = states.wait_for(|state| *state != State::Open).await;
        end.is_ok_and(|state| *state == State::Broken)
    }
}

#[async_trait]
impl<M: Maker> Surroundings for ConnectionWatch<M> {
    fn memory_ran_out(&self) -> bool {
        self.maker.memory_ran_out(self.id)
    }

    fn scale_written(&self, note: ScaleNote) {
        self.scale.report(self.id, note);
    }

    fn broken(&self) {
        self.change_state(State::Broken);
    }

    async fn death(&self) -> Died {
        self.instance.known_reason().await
    }
}

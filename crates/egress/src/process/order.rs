//! Keeps the order between what the server says and what programs begin: a message that the server has
//! sent holds for everything that comes after it. It must never let a connection be judged by a policy
//! that was replaced before the connection came.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use tokio::sync::Notify;

use crate::control::Channel;

#[derive(Default)]
pub(super) struct Order {
    /// None in tests without a server.
    channel: Option<Arc<Channel>>,
    /// A message was received, and is not carried out yet.
    carries_out: AtomicBool,
    carried_out: Notify,
}

impl Order {
    pub(super) fn of(channel: Arc<Channel>) -> Self {
        Self { channel: Some(channel), ..Self::default() }
    }

    /// Whether the server has said something that does not hold yet. To be asked after the connection
    /// or the question was taken from the kernel: what was sent before it has arrived by then.
    pub(super) fn is_behind(&self) -> bool {
        self.carries_out.load(Relaxed)
            || self.channel.as_ref().is_some_and(|channel| channel.has_message())
    }

    /// Waits until everything holds that the server has said.
    pub(super) async fn catch_up(&self) {
        loop {
            let carried_out = self.carried_out.notified();
            if !self.is_behind() {
                return;
            }
            carried_out.await;
        }
    }

    pub(super) fn begin(&self) {
        self.carries_out.store(true, Relaxed);
    }

    pub(super) fn end(&self) {
        self.carries_out.store(false, Relaxed);
        self.carried_out.notify_waiters();
    }
}

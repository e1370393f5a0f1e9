//! Reports of sandboxes whose guests are lost, ahead of their deaths: a death is reported when
//! nothing of the sandbox is left, and until then no caller should get it. A report may be missed
//! by a slow reader; its death follows in any case.

use model::InstanceId;
use tokio::sync::broadcast::{self, error::RecvError};

/// Reports that a slow reader may be behind.
const UNREAD_MAX: usize = 4096;

/// The lost guests of one runtime, from the moment of subscription on.
#[derive(Debug)]
pub struct LostGuests {
    reports: Option<broadcast::Receiver<InstanceId>>,
}

impl LostGuests {
    /// Those of a runtime that reports none, because it reports deaths at once.
    pub const fn none() -> Self {
        Self { reports: None }
    }

    /// The next sandbox whose guest is lost; none when the runtime is gone or reports none.
    pub async fn next(&mut self) -> Option<InstanceId> {
        let reports = self.reports.as_mut()?;
        loop {
            match reports.recv().await {
                Ok(instance) => return Some(instance),
                Err(RecvError::Lagged(_)) => {}
                Err(RecvError::Closed) => return None,
            }
        }
    }
}

/// Reports lost guests to all subscribers.
#[derive(Debug)]
pub(crate) struct LostGuestBoard {
    reports: broadcast::Sender<InstanceId>,
}

impl Default for LostGuestBoard {
    fn default() -> Self {
        Self { reports: broadcast::Sender::new(UNREAD_MAX) }
    }
}

impl LostGuestBoard {
    pub(crate) fn subscribe(&self) -> LostGuests {
        LostGuests { reports: Some(self.reports.subscribe()) }
    }

    pub(crate) fn report(&self, instance: InstanceId) {
        // Without a subscriber, the death is enough.
        let _ = self.reports.send(instance);
    }
}

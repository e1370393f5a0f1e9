//! The event history as callers read it: by number, only their own, and with a way to wait for
//! more.

use store::{EventPage, EventQuery};
use tokio::sync::watch;

use model::{Refusal, Role};

use crate::Engine;
use crate::boxed;
use crate::core::unavailable;
use crate::keys::Caller;

/// The most events in one page.
const PAGE_MAX: u32 = 1_000;

/// Waits for events to be stored. A slow reader misses nothing: this only says that there are more,
/// and the store has them.
pub struct EventWatch {
    last: watch::Receiver<u64>,
}

impl EventWatch {
    /// The number of the last stored event.
    pub fn last(&self) -> u64 {
        *self.last.borrow()
    }

    /// Waits until there are events after this number; false if there will never be any.
    pub async fn wait_past(&mut self, number: u64) -> bool {
        self.last.wait_for(|last| *last > number).await.is_ok()
    }
}

impl Engine {
    /// A page of the history, as far as the caller may see it.
    #[boxed]
    pub async fn events(&self, caller: Caller, query: EventQuery) -> Result<EventPage, Refusal> {
        let tenant = match caller.role {
            Role::Admin => query.tenant,
            Role::Use | Role::Read => Some(caller.key),
        };
        let query = EventQuery { tenant, limit: query.limit.min(PAGE_MAX), ..query };
        let page = self.core.store.events(&query).await;
        page.map_err(|error| unavailable(&format!("{error} ({})", error.remedy())))
    }

    /// A way to wait for more events.
    pub fn watch(&self) -> EventWatch {
        EventWatch { last: self.core.last_event.subscribe() }
    }
}

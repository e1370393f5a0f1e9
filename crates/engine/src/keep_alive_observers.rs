//! Those who want to hear what keeps sandboxes awake, as it happens: a dialect that writes it into
//! the log in the words of its vendor, say. The engine says what happened, and in no vendor's words.

use std::sync::{PoisonError, RwLock};

use model::{ProcessRecord, SandboxId};

use crate::Engine;

/// What happened to what keeps a sandbox awake.
#[derive(Debug, Clone, Copy)]
pub enum Observed<'a> {
    /// A process that keeps its sandbox awake started.
    Started(&'a ProcessRecord),
    /// One that did is over. Its record has its end.
    Ended(&'a ProcessRecord),
    /// It was asked that processes no longer keep a sandbox awake.
    Released {
        /// The sandbox.
        sandbox: SandboxId,
        /// How many processes that is about.
        processes: usize,
        /// After how long; at once if 0.
        after_ms: u64,
    },
    /// By that, at once, a process does no longer keep its sandbox awake.
    ReleasedOne(&'a ProcessRecord),
}

type Observer = Box<dyn Fn(Observed<'_>) + Send + Sync>;

/// All who want to hear of it.
#[derive(Default)]
pub(crate) struct Observers(RwLock<Vec<Observer>>);

impl Observers {
    pub(crate) fn tell(&self, observed: Observed<'_>) {
        match observed {
            Observed::Started(record) => {
                tracing::debug!(process = %record.id, sandbox = %record.sandbox, "a process keeps its sandbox awake");
            }
            Observed::Ended(record) => {
                tracing::debug!(process = %record.id, sandbox = %record.sandbox, "a process that kept its sandbox awake is over");
            }
            Observed::Released { sandbox, processes, after_ms } => {
                tracing::debug!(%sandbox, processes, after_ms, "processes are to keep a sandbox awake no more");
            }
            Observed::ReleasedOne(record) => {
                tracing::debug!(process = %record.id, sandbox = %record.sandbox, "a process keeps its sandbox awake no more");
            }
        }
        for observer in &*self.0.read().unwrap_or_else(PoisonError::into_inner) {
            observer(observed);
        }
    }
}

impl Engine {
    /// From now on, `observer` hears what keeps sandboxes awake. It must not wait for anything.
    pub fn observe(&self, observer: impl Fn(Observed<'_>) + Send + Sync + 'static) {
        let mut all = self.core.observers.0.write().unwrap_or_else(PoisonError::into_inner);
        all.push(Box::new(observer));
    }
}

//! Observers of what keeps sandboxes awake: a dialect, for example, that logs it in the words of
//! its vendor. The engine reports what happened and knows no vendor's words.

use std::sync::{PoisonError, RwLock};

use model::{ProcessRecord, SandboxId};

use crate::Engine;

/// A change of what keeps a sandbox awake.
#[derive(Debug, Clone, Copy)]
pub enum KeepAliveChange<'a> {
    /// A process that keeps its sandbox awake started.
    Started(&'a ProcessRecord),
    /// A process that kept its sandbox awake has ended. Its record has its end.
    Ended(&'a ProcessRecord),
    /// A caller asked that processes no longer keep a sandbox awake.
    Released {
        /// The sandbox.
        sandbox: SandboxId,
        /// How many processes.
        processes: usize,
        /// After how long; at once if 0.
        after_ms: u64,
    },
    /// A process no longer keeps its sandbox awake, because of such a call.
    ReleasedOne(&'a ProcessRecord),
}

type Observer = Box<dyn Fn(KeepAliveChange<'_>) + Send + Sync>;

/// All observers.
#[derive(Default)]
pub(crate) struct Observers(RwLock<Vec<Observer>>);

impl Observers {
    pub(crate) fn notify(&self, observed: KeepAliveChange<'_>) {
        match observed {
            KeepAliveChange::Started(record) => {
                tracing::debug!(
                    process = %record.id,
                    sandbox = %record.sandbox,
                    "a process keeps its sandbox awake"
                );
            }
            KeepAliveChange::Ended(record) => {
                tracing::debug!(
                    process = %record.id,
                    sandbox = %record.sandbox,
                    "a process that kept its sandbox awake has ended"
                );
            }
            KeepAliveChange::Released { sandbox, processes, after_ms } => {
                tracing::debug!(
                    %sandbox,
                    processes,
                    after_ms,
                    "processes will no longer keep a sandbox awake"
                );
            }
            KeepAliveChange::ReleasedOne(record) => {
                tracing::debug!(
                    process = %record.id,
                    sandbox = %record.sandbox,
                    "a process no longer keeps its sandbox awake"
                );
            }
        }
        for observer in &*self.0.read().unwrap_or_else(PoisonError::into_inner) {
            observer(observed);
        }
    }
}

impl Engine {
    /// Calls `observer` for every change from now on. It must not wait for anything.
    pub fn observe(&self, observer: impl Fn(KeepAliveChange<'_>) + Send + Sync + 'static) {
        let mut all = self.core.observers.0.write().unwrap_or_else(PoisonError::into_inner);
        all.push(Box::new(observer));
    }
}

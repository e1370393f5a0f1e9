//! Rarely used state of a sandbox, boxed to keep `Entry` small: uses, waiting requests, processes,
//! and what keeps the sandbox alive.

use std::collections::BTreeMap;

use model::{Mono, ProcessId, UseId, Wall};

use crate::entry::process::Process;
use crate::event::UseKind;
use crate::request::RequestIx;

/// Rarely used state, boxed to keep `Entry` small.
#[derive(Debug, Default)]
pub(crate) struct RareState {
    /// Uses in progress.
    pub(crate) uses: Vec<(UseId, UseKind)>,
    /// Requests that wait until it is thawed, frozen or removed.
    pub(crate) waiting: Vec<RequestIx>,
    /// Its processes that have not ended.
    pub(crate) processes: BTreeMap<ProcessId, Process>,
    /// The counter of the scale file.
    pub(crate) scale: u32,
    /// The number of the last report about the scale file.
    pub(crate) scale_seen: u64,
    pub(crate) stop: Option<ScheduledStop>,
    /// Since when the time limits of its processes are stopped, if they are.
    pub(crate) time_stopped_since: Option<Mono>,
    /// A caller asked for its freeze, so that only a use ends it.
    pub(crate) frozen_on_request: bool,
    /// A caller that waits for a process read about it while it was frozen or being frozen.
    pub(crate) thaw_for_reader: bool,
    /// Until when it stays quiesced at the latest, if it is.
    pub(crate) quiesced_until: Mono,
}

impl RareState {
    /// These processes no longer keep the sandbox alive, if they still exist.
    pub(crate) fn release(&mut self, processes: &[ProcessId]) {
        for id in processes {
            if let Some(process) = self.processes.get_mut(id) {
                process.keeps_alive = false;
            }
        }
    }
}

/// A stop that was scheduled for later.
#[derive(Debug, Clone)]
pub(crate) struct ScheduledStop {
    pub(crate) at: Mono,
    pub(crate) at_wall: Wall,
    /// The processes that existed when it was scheduled.
    pub(crate) processes: Vec<ProcessId>,
}

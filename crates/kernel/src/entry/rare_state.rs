//! What few sandboxes have, in a box of its own so that the many take less room: uses, waiting
//! requests, processes, and what programs do to keep their sandbox awake.

use std::collections::BTreeMap;

use model::{Mono, ProcessId, UseId, Wall};

use crate::entry::process::Process;
use crate::event::UseKind;
use crate::request::RequestIx;

/// What few sandboxes have.
#[derive(Debug, Default)]
pub(crate) struct RareState {
    /// Uses in progress.
    pub(crate) uses: Vec<(UseId, UseKind)>,
    /// Requests that wait for it to be thawed, frozen or gone.
    pub(crate) waiting: Vec<RequestIx>,
    /// Its processes that are not over.
    pub(crate) processes: BTreeMap<ProcessId, Process>,
    /// What programs wrote to the scale file.
    pub(crate) scale: u32,
    /// The last note about the scale file.
    pub(crate) scale_seen: u64,
    pub(crate) stop: Option<ScheduledStop>,
    /// Since when the time of its processes stands still, if it does.
    pub(crate) time_stopped_since: Option<Mono>,
    /// Until when it is held still at the latest, if it is.
    pub(crate) quiesced_until: Mono,
}

impl RareState {
    /// Processes keep their sandbox awake no more, as far as they still exist.
    pub(crate) fn release(&mut self, processes: &[ProcessId]) {
        for id in processes {
            if let Some(process) = self.processes.get_mut(id) {
                process.keeps_alive = false;
            }
        }
    }
}

/// A stop that was asked for ahead of time.
#[derive(Debug, Clone)]
pub(crate) struct ScheduledStop {
    pub(crate) at: Mono,
    pub(crate) at_wall: Wall,
    /// The processes that existed when it was asked for.
    pub(crate) processes: Vec<ProcessId>,
}

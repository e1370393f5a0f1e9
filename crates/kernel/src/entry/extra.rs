//! What few sandboxes have, in a box of its own so that the many take less room: uses, waiting
//! requests, and what programs do to keep their sandbox awake.

use std::collections::BTreeMap;

use model::{Mono, ProcessId, UseId, Wall};

use crate::event::UseKind;
use crate::request::RequestIx;

/// What few sandboxes have.
#[derive(Debug, Default)]
pub(crate) struct Extra {
    /// Uses in progress.
    pub(crate) uses: Vec<(UseId, UseKind)>,
    /// Requests that wait for it to be thawed, frozen or gone.
    pub(crate) waiting: Vec<RequestIx>,
    pub(crate) processes: BTreeMap<ProcessId, Process>,
    /// What programs wrote to the scale file.
    pub(crate) scale: u32,
    /// The last note about the scale file.
    pub(crate) scale_seen: u64,
    pub(crate) stop: Option<ScheduledStop>,
    /// Since when the time of its processes stands still, if it does.
    pub(crate) still_since: Option<Mono>,
}

impl Extra {
    /// Processes keep their sandbox awake no more, as far as they still exist.
    pub(crate) fn release(&mut self, processes: &[ProcessId]) {
        for id in processes {
            if let Some(process) = self.processes.get_mut(id) {
                process.holds = false;
            }
        }
    }
}

/// A process that keeps its sandbox awake, or did, or has a time limit.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Process {
    pub(crate) holds: bool,
    pub(crate) started_at: Wall,
    pub(crate) timeout_ms: u64,
    pub(crate) kill_at: Mono,
    /// It is being killed by this effect, until then.
    pub(crate) killing: Option<(u64, Mono)>,
    pub(crate) kills: u32,
}

/// A stop that was asked for ahead of time.
#[derive(Debug, Clone)]
pub(crate) struct ScheduledStop {
    pub(crate) at: Mono,
    pub(crate) at_wall: Wall,
    /// The processes that existed when it was asked for.
    pub(crate) processes: Vec<ProcessId>,
}

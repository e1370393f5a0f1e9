//! One instance from its launch to its exit: its process, its control groups, and how it exited.
//! Its connection is elsewhere.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use guest_protocol::launcher::CgroupPaths;
use model::InstanceId;
use tokio::sync::Notify;

use super::launcher_client::Launched;
use crate::deaths::Died;
use crate::groups::{CpuCounter, Freezer, KillCounter};
use crate::guest_link::Surroundings;
use crate::inside::ScaleNote;
use crate::scale::ScaleBoard;

/// One instance, from the start of its launch to its exit.
pub(super) struct Instance {
    id: InstanceId,
    scale: Arc<ScaleBoard>,
    process: OnceLock<InstanceProcess>,
    died: Mutex<Option<Died>>,
    /// This server froze its group and has not thawed it.
    frozen: AtomicBool,
    exited: Notify,
}

/// What the launcher made for an instance.
struct InstanceProcess {
    pid: u32,
    freezer: Option<Freezer>,
    kills: Option<KillCounter>,
    /// The end of the path of its groups, in every hierarchy.
    group: Option<String>,
    /// Found when it is first read.
    cpu: OnceLock<Option<CpuCounter>>,
}

impl Instance {
    pub(super) fn new(id: InstanceId, scale: Arc<ScaleBoard>) -> Self {
        Self {
            id,
            scale,
            process: OnceLock::new(),
            died: Mutex::default(),
            frozen: AtomicBool::new(false),
            exited: Notify::new(),
        }
    }

    /// Its label.
    pub(super) fn id(&self) -> InstanceId {
        self.id
    }

    /// The launcher has started its process.
    pub(super) fn launched(&self, launched: Launched) {
        let Launched { pid, cgroup: CgroupPaths { freezer, memory, out_of_memory_kills } } =
            launched;
        let group = freezer.as_deref().or(memory.as_deref()).and_then(group_of);
        let kills = memory.map(|directory| KillCounter::new(directory, out_of_memory_kills));
        let freezer = freezer.map(Freezer::new);
        let process = InstanceProcess { pid, freezer, kills, group, cpu: OnceLock::new() };
        // The launcher answers each launch once.
        let _ = self.process.set(process);
    }

    /// Its first process, as the host sees it.
    pub(super) fn pid(&self) -> Option<u32> {
        self.process.get().map(|process| process.pid)
    }

    /// Its freezer, if this machine has one.
    pub(super) fn freezer(&self) -> Option<&Freezer> {
        self.process.get()?.freezer.as_ref()
    }

    /// What its group counted of processor time, if it still has that group.
    pub(super) fn cpu_time(&self) -> Option<Duration> {
        let process = self.process.get()?;
        let find = || {
            let group = process.group.as_deref()?;
            CpuCounter::of_process(process.pid, |path| path.ends_with(group))
        };
        let time = process.cpu.get_or_init(find).as_ref()?.read()?;
        // The group serves the next sandbox as soon as this one has exited.
        self.died().is_none().then_some(time)
    }

    /// Called before this server freezes its group.
    pub(super) fn mark_frozen(&self) {
        self.frozen.store(true, Ordering::Release);
    }

    /// Called after its group is thawed.
    pub(super) fn mark_thawed(&self) {
        self.frozen.store(false, Ordering::Release);
    }

    /// How it exited, if it has.
    pub(super) fn died(&self) -> Option<Died> {
        *self.died.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records how it exited. The first report counts.
    pub(super) fn set_died(&self, died: Died) {
        self.died.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(died);
        // It may have been frozen after the launcher reused its group. The next sandbox in that
        // group would then be frozen from its launch on, and never become ready.
        if self.frozen.swap(false, Ordering::AcqRel)
            && let Some(freezer) = self.freezer()
        {
            // A group that is gone freezes nothing.
            let _ = freezer.thaw();
        }
        self.exited.notify_waiters();
    }
}

/// The end of the path of a group that only one sandbox of one run has: `/shoal/RUN/SLOT`.
fn group_of(path: &str) -> Option<String> {
    let path = Path::new(path);
    let run = path.parent()?;
    let name = |path: &Path| Some(path.file_name()?.to_str()?.to_owned());
    Some(format!("/{}/{}/{}", name(run.parent()?)?, name(run)?, name(path)?))
}

#[async_trait]
impl Surroundings for Instance {
    fn memory_ran_out(&self) -> bool {
        let kills = self.process.get().and_then(|process| process.kills.as_ref());
        kills.is_some_and(KillCounter::has_grown)
    }

    fn scale_written(&self, note: ScaleNote) {
        self.scale.report(self.id, note);
    }

    async fn death(&self) -> Died {
        loop {
            // Subscribe before the check, or a death in between would be missed.
            let exited = self.exited.notified();
            if let Some(died) = self.died() {
                return died;
            }
            exited.await;
        }
    }
}

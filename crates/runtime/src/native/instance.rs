//! What is known about one sandbox besides its connection: its process, its control groups, and
//! how it ended.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use async_trait::async_trait;
use guest_protocol::launcher::CgroupPaths;
use model::InstanceId;
use tokio::sync::Notify;

use super::launcher_client::Launched;
use crate::deaths::Died;
use crate::groups::{Freezer, KillCounter};
use crate::guest_link::Surroundings;
use crate::inside::ScaleNote;
use crate::scale::ScaleBoard;

/// One sandbox, from the start of its launch to its end.
pub(super) struct Instance {
    id: InstanceId,
    scale: Arc<ScaleBoard>,
    made: OnceLock<Made>,
    died: Mutex<Option<Died>>,
    /// We froze its group, and did not thaw it since.
    froze: AtomicBool,
    told: Notify,
}

/// What the launcher made for it.
struct Made {
    pid: u32,
    freezer: Option<Freezer>,
    kills: Option<KillCounter>,
}

impl Instance {
    pub(super) fn new(id: InstanceId, scale: Arc<ScaleBoard>) -> Self {
        Self {
            id,
            scale,
            made: OnceLock::new(),
            died: Mutex::default(),
            froze: AtomicBool::new(false),
            told: Notify::new(),
        }
    }

    /// It has a process now.
    pub(super) fn launched(&self, launched: Launched) {
        let Launched { pid, cgroup: CgroupPaths { freezer, memory, out_of_memory_kills } } =
            launched;
        let kills = memory.map(|directory| KillCounter::new(directory, out_of_memory_kills));
        let made = Made { pid, freezer: freezer.map(Freezer::new), kills };
        // There is one answer to a launch.
        let _ = self.made.set(made);
    }

    /// Its first process, as the host sees it.
    pub(super) fn pid(&self) -> Option<u32> {
        self.made.get().map(|made| made.pid)
    }

    /// What freezes it, if anything does.
    pub(super) fn freezer(&self) -> Option<&Freezer> {
        self.made.get()?.freezer.as_ref()
    }

    /// Its group is about to be frozen by us.
    pub(super) fn freezes(&self) {
        self.froze.store(true, Ordering::Release);
    }

    /// Its group is thawed.
    pub(super) fn thawed(&self) {
        self.froze.store(false, Ordering::Release);
    }

    /// How it ended, if it has.
    pub(super) fn died(&self) -> Option<Died> {
        *self.died.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// It is over.
    pub(super) fn set_died(&self, died: Died) {
        self.died.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(died);
        // It may have been frozen after the launcher gave its group back: the next sandbox there
        // would be frozen from its birth, and never be ready.
        if self.froze.swap(false, Ordering::AcqRel)
            && let Some(freezer) = self.freezer()
        {
            // A group that is gone freezes nobody.
            let _ = freezer.thaw();
        }
        self.told.notify_waiters();
    }
}

#[async_trait]
impl Surroundings for Instance {
    fn memory_ran_out(&self) -> bool {
        let kills = self.made.get().and_then(|made| made.kills.as_ref());
        kills.is_some_and(KillCounter::has_grown)
    }

    fn scale_written(&self, note: ScaleNote) {
        self.scale.tell(self.id, note);
    }

    async fn death(&self) -> Died {
        loop {
            // Listen before looking, or a death in between would never be noticed.
            let told = self.told.notified();
            if let Some(died) = self.died() {
                return died;
            }
            told.await;
        }
    }
}

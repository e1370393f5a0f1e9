//! Limits on the disk space of workspaces. The file system enforces a hard limit itself; the kernel
//! enforces a soft one: a sandbox that was measured above its limit ends. While the disk is short,
//! nothing is launched on it, and the largest sandbox with a soft limit ends, one at a time.

use std::sync::Arc;

use model::template::{RuntimeTraits, WorkspaceLimit};
use model::{EndCause, ErrorCode, InstanceId, Refusal, WorkspaceId};

use crate::Kernel;
use crate::entry::{AfterEnd, Entry, EntryIx, EntryOwner, Phase};
use crate::event::{Measured, UseKind};
use crate::pool::PoolIx;

/// Ending a sandbox that holds less than this would free almost nothing.
const OFFENDER_BYTES_MIN: u64 = 16 << 20;

/// How many times in a row a part of a workspace may be unmeasurable. Programs, tests above all,
/// make directories unreadable for a moment; a sandbox that is readable at each third measurement
/// hides nothing for long.
const HIDDEN_MAX: u8 = 3;

const MIB: u64 = 1 << 20;

/// A workspace whose limit the kernel enforces by measuring.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SoftWorkspace {
    /// The instance that uses it.
    pub instance: InstanceId,
    /// Which.
    pub workspace: WorkspaceId,
    /// Its limit.
    pub limit_bytes: u64,
}

impl Kernel {
    /// Workspaces that must be measured regularly.
    pub fn soft_workspaces(&self) -> Vec<SoftWorkspace> {
        let soft = self.entries.iter().filter(|(_, entry)| is_soft(entry) && is_up(entry));
        soft.map(|(_, entry)| SoftWorkspace {
            instance: entry.instance,
            workspace: entry.workspace,
            limit_bytes: entry.template.limits.workspace_bytes(),
        })
        .collect()
    }

    /// The instance that uses a workspace now, if any.
    pub fn user_of_workspace(&self, workspace: WorkspaceId) -> Option<InstanceId> {
        let mut all = self.entries.iter().map(|(_, entry)| entry);
        all.find(|entry| entry.workspace == workspace && is_up(entry)).map(|entry| entry.instance)
    }

    /// Whether the disk is so short that nothing is launched on it.
    pub fn is_disk_short(&self) -> bool {
        self.disk_short
    }

    pub(crate) fn workspace_measured(&mut self, instance: InstanceId, measured: Measured) {
        let Some(entry) = self.entries.by_instance(instance) else { return };
        let ignored = self.flaws.ignores_workspace_limit();
        let sandbox = &mut self.entries[entry];
        if !is_soft(sandbox) || !is_up(sandbox) || ignored {
            return;
        }
        sandbox.disk.measured(&measured);
        let limits = &sandbox.template.limits;
        let (bytes, files) = (limits.workspace_bytes(), limits.workspace_files());
        let why = if measured.bytes > bytes {
            format!("the workspace of the sandbox holds more than {} MB", limits.workspace_mb)
        } else if measured.files > files {
            format!("the workspace of the sandbox has more than {files} files")
        } else if sandbox.disk.hidden() >= HIDDEN_MAX {
            "some files of the workspace cannot be measured: they are too deep, or in directories \
             that cannot be read"
                .to_owned()
        } else {
            return;
        };
        self.end_for_disk(entry, why.into());
    }

    pub(crate) fn disk_measured(&mut self, free_bytes: u64) {
        let floor = self.config.workspace_free_floor_mb.saturating_mul(MIB);
        // Once short, it must be well above the floor before it counts as enough, or it would flap.
        let enough = if self.disk_short { floor + floor / 8 } else { floor };
        let short = free_bytes < enough;
        if short != self.disk_short {
            self.disk_short = short;
            let pools: Vec<PoolIx> = self.pools.iter().map(|(pool, _)| pool).collect();
            for pool in pools {
                self.pool_due(pool);
            }
        }
        if free_bytes < floor {
            self.end_largest(free_bytes);
            self.give_up_for_floor();
        }
    }

    /// Refuses a call that writes files while the disk is short.
    pub(crate) fn refuse_write_without_disk(
        &self,
        kind: UseKind,
        traits: RuntimeTraits,
    ) -> Result<(), Refusal> {
        let writes = match kind {
            UseKind::Files => true,
            // How much a program will write is not known before it runs.
            UseKind::Exec | UseKind::Read | UseKind::Port | UseKind::Stream | UseKind::Harness => {
                false
            }
        };
        let short = self.disk_short && !self.flaws.ignores_full_disk();
        if writes && short && traits.disk.is_some() { Err(disk_full()) } else { Ok(()) }
    }

    /// Ends the sandbox with the largest workspace, unless one is already ending for this reason:
    /// what that frees is not measured yet.
    fn end_largest(&mut self, free_bytes: u64) {
        let mut largest: Option<(u64, EntryIx)> = None;
        for (entry, sandbox) in self.entries.iter() {
            let going =
                sandbox.termination.as_ref().is_some_and(|e| e.cause == EndCause::DiskLimit);
            if going {
                return;
            }
            let larger = largest.is_none_or(|(bytes, _)| sandbox.disk.bytes() > bytes);
            let holds_much = sandbox.disk.bytes() >= OFFENDER_BYTES_MIN;
            if is_soft(sandbox) && is_up(sandbox) && holds_much && larger {
                largest = Some((sandbox.disk.bytes(), entry));
            }
        }
        if let Some((bytes, entry)) = largest {
            let why = format!(
                "the disk has {} MB left, and the sandbox had the largest workspace with {} MB",
                free_bytes / MIB,
                bytes / MIB
            );
            self.end_for_disk(entry, why.into());
        }
    }

    fn end_for_disk(&mut self, entry: EntryIx, why: Arc<str>) {
        let sandbox = &self.entries[entry];
        // A session keeps its files, as after a crash: its user may want to see what filled the
        // disk.
        let after = match sandbox.owner() {
            EntryOwner::Session(_) if sandbox.phase() == Phase::InUse => AfterEnd::Renamed,
            EntryOwner::Session(_) | EntryOwner::Unowned | EntryOwner::Lease(_) => AfterEnd::Gone,
        };
        self.end_now(entry, EndCause::DiskLimit, after, Some(why));
    }

    /// Whether the disk is too short to launch anything of a pool.
    pub(crate) fn lacks_disk(&self, pool: PoolIx) -> bool {
        let short = self.disk_short && !self.flaws.ignores_full_disk();
        short && self.pools[pool].traits.disk.is_some()
    }

    /// Refuses waiting checkouts that no sandbox is coming to, because none will be launched.
    pub(crate) fn refuse_without_disk(&mut self, pool: PoolIx) {
        if !self.lacks_disk(pool) {
            return;
        }
        loop {
            let known = &self.pools[pool];
            if known.expecting() <= known.occupied.launching() + known.occupied.cleaning() {
                return;
            }
            let Some(req) = self.last_in_pool_queue(pool) else { return };
            self.refuse_waiter(req, disk_full());
        }
    }
}

fn is_soft(entry: &Entry) -> bool {
    entry.traits.disk == Some(WorkspaceLimit::Soft)
}

/// Whether it may write: it is neither being launched nor being removed.
fn is_up(entry: &Entry) -> bool {
    match entry.phase() {
        Phase::Idle | Phase::Claiming(_) | Phase::InUse | Phase::Wiping | Phase::Proving => true,
        Phase::Cold | Phase::Launching | Phase::Killing => false,
    }
}

/// The refusal of a caller while the disk is short.
pub(crate) fn disk_full() -> Refusal {
    Refusal::new(ErrorCode::DiskFull, "the disk of the workspaces is nearly full")
        .retry_after(5_000)
}

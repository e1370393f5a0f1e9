//! Measures workspaces in use and the free space of their disk, and reports both to the kernel,
//! which decides what follows. A workspace with many files must not delay the others, and no
//! sandbox may end for a full disk because of an old number.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use kernel::{Event, Kernel, Measured};
use model::{InstanceId, WorkspaceId};
use tasks::spawn_blocking;
use tokio::task::JoinError;
use tokio::time::{Instant, sleep};
use workspaces::{Archives, Scan, Size, Usage, WorkspaceError, Workspaces};

use crate::core::Core;

/// Directory entries measured per second over all workspaces, unless the disk is short.
const ENTRIES_PER_S: u64 = 50_000;

/// The longest time between two looks at the free space.
const FREE_EVERY: Duration = Duration::from_secs(1);

/// A workspace that takes longer waits for the cheap ones.
const CHEAP: Duration = Duration::from_millis(50);

/// How long to measure before a sandbox ends for a full disk.
const URGENT: Duration = Duration::from_secs(2);

/// How many sleeping sessions are measured in one round.
const SLEEPING_PER_ROUND: usize = 64;

/// The last measurements.
#[derive(Default)]
pub(crate) struct UsageMeter {
    last: Mutex<BTreeMap<WorkspaceId, Last>>,
    /// Bytes in deleted files that programs still have open.
    deleted_but_open: Mutex<BTreeMap<WorkspaceId, Usage>>,
}

#[derive(Debug, Clone, Copy)]
struct Last {
    at: Instant,
    took: Duration,
    bytes: u64,
}

/// Why workspaces are measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Urgency {
    /// The interval has passed.
    None,
    /// The disk is short, and a sandbox must end for it.
    Short,
}

type Soft = BTreeMap<WorkspaceId, (InstanceId, Size)>;

impl UsageMeter {
    /// The size of a workspace when it was last measured.
    pub(crate) fn bytes_of(&self, id: WorkspaceId) -> Option<u64> {
        self.last().get(&id).map(|last| last.bytes)
    }

    fn last(&self) -> MutexGuard<'_, BTreeMap<WorkspaceId, Last>> {
        self.last.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn deleted_but_open(&self) -> MutexGuard<'_, BTreeMap<WorkspaceId, Usage>> {
        self.deleted_but_open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// All workspaces, cheap ones first, each group by how long they waited; and how many are
    /// cheap. A workspace that was never measured counts as cheap.
    fn order(&self, mut all: Vec<WorkspaceId>) -> (Vec<WorkspaceId>, usize) {
        let mut last = self.last();
        let there: BTreeSet<_> = all.iter().copied().collect();
        last.retain(|id, _| there.contains(id));
        let is_dear = |id: &WorkspaceId| last.get(id).is_some_and(|last| last.took > CHEAP);
        all.sort_by_key(|id| (is_dear(id), last.get(id).map(|last| last.at)));
        let cheap = all.iter().filter(|id| !is_dear(id)).count();
        (all, cheap)
    }
}

/// Reports the free space to the kernel for as long as the engine lives.
pub(crate) async fn watch_free(core: Arc<Core>) {
    let Some(workspaces) = core.disk.workspaces.clone() else { return };
    let every = FREE_EVERY.min(interval(&core));
    let mut pause_until = Instant::now();
    loop {
        if let Some(free_bytes) = free(&workspaces).await {
            if free_bytes < core.disk.spared_bytes && Instant::now() >= pause_until {
                let began = Instant::now();
                round(&core, &workspaces, Urgency::Short).await;
                // A disk may be short for days: measure at most a fifth of the time.
                pause_until = Instant::now() + began.elapsed() * 4;
            }
            report_free(&core, &workspaces, free_bytes);
        }
        sleep(every).await;
    }
}

async fn free(workspaces: &Arc<Workspaces>) -> Option<u64> {
    let asked = Arc::clone(workspaces);
    match spawn_blocking(move || asked.free_bytes()).await {
        Ok(Ok(free_bytes)) => return Some(free_bytes),
        Ok(Err(error)) => {
            tracing::warn!(%error, "the free space of the workspace disk could not be read");
        }
        Err(error) => tracing::error!(%error, "the task that reads the free space panicked"),
    }
    None
}

fn report_free(core: &Arc<Core>, workspaces: &Workspaces, free_bytes: u64) {
    core.metrics.disk_is(workspaces.count(), free_bytes);
    core.metrics.archives_are(core.disk.archives.as_ref().map_or((0, 0), Archives::count));
    let before = core.read(Kernel::is_disk_short);
    core.notify(Event::DiskMeasured { free_bytes });
    let short = core.read(Kernel::is_disk_short);
    let free_mb = free_bytes >> 20;
    if short && !before {
        tracing::warn!(
            free_mb,
            "the workspace disk has less free space than node.workspace_free_floor_mb"
        );
    } else if before && !short {
        tracing::info!(free_mb, "the workspace disk has enough free space again");
    }
}

/// Measures workspaces for as long as the engine lives, and reports those whose limit the kernel
/// enforces.
pub(crate) async fn measure(core: Arc<Core>) {
    let Some(workspaces) = core.disk.workspaces.clone() else { return };
    loop {
        let began = Instant::now();
        round(&core, &workspaces, Urgency::None).await;
        let bytes = core.disk.usage_meter.last().values().map(|last| last.bytes).sum();
        core.metrics.measured(bytes, began.elapsed());
        sleep(interval(&core)).await;
    }
}

/// Measures the files of sleeping sessions where a setting depends on it, for as long as the engine
/// lives.
pub(crate) async fn measure_sleeping(core: Arc<Core>) {
    loop {
        for id in core.read(|kernel| kernel.unmeasured_files(SLEEPING_PER_ROUND)) {
            let bytes = saved_bytes(&core, id).await;
            core.notify(Event::FilesMeasured { workspace: id, bytes });
        }
        sleep(interval(&core)).await;
    }
}

/// The size of saved files, on disk or in an archive; zero if they are gone.
pub(crate) async fn saved_bytes(core: &Arc<Core>, id: WorkspaceId) -> u64 {
    if let Some(workspaces) = core.disk.workspaces.clone().filter(|all| all.has(id)) {
        let enough = Size::of_bytes(u64::MAX);
        return match usage(core, &workspaces, id, enough, Urgency::None).await {
            Ok(Ok(usage)) => usage.bytes,
            // It may have been removed meanwhile.
            Ok(Err(_)) | Err(_) => 0,
        };
    }
    let archive = core.disk.archives.as_ref().and_then(|archives| archives.get(id));
    archive.map_or(0, |archive| archive.bytes)
}

/// Measures all cheap workspaces, and of the others at least one and as many as there is time for.
pub(crate) async fn round(core: &Arc<Core>, workspaces: &Arc<Workspaces>, urgency: Urgency) {
    let began = Instant::now();
    let soft: Soft = core
        .read(Kernel::soft_workspaces)
        .into_iter()
        .map(|one| (one.workspace, (one.instance, Size::of_bytes(one.limit_bytes))))
        .collect();
    measure_deleted_but_open(core, workspaces, &soft).await;
    let mut all = workspaces.list();
    all.retain(|id| match urgency {
        Urgency::None => soft.contains_key(id) || workspaces.is_counted(*id),
        Urgency::Short => soft.contains_key(id),
    });
    let (order, cheap) = core.disk.usage_meter.order(all);
    for (index, id) in order.into_iter().enumerate() {
        let is_time_up = match urgency {
            Urgency::None => index > cheap && began.elapsed() > interval(core),
            Urgency::Short => began.elapsed() > URGENT,
        };
        if is_time_up {
            break;
        }
        measure_one(core, workspaces, id, soft.get(&id).copied(), urgency).await;
    }
}

async fn measure_one(
    core: &Arc<Core>,
    workspaces: &Arc<Workspaces>,
    id: WorkspaceId,
    soft: Option<(InstanceId, Size)>,
    urgency: Urgency,
) {
    let at = Instant::now();
    let enough = soft.map_or(Size::of_bytes(u64::MAX), |(_, limit)| limit);
    match usage(core, workspaces, id, enough, urgency).await {
        Ok(Ok(walked)) => {
            let deleted_but_open =
                core.disk.usage_meter.deleted_but_open().get(&id).copied().unwrap_or_default();
            let Usage { bytes, files, hidden } = walked.and(deleted_but_open);
            let last = Last { at, took: at.elapsed(), bytes };
            core.disk.usage_meter.last().insert(id, last);
            if let Some((instance, _)) = soft {
                let measured = Measured { bytes, files, hidden };
                core.notify(Event::WorkspaceMeasured { instance, measured });
            }
        }
        // It may have been removed meanwhile.
        Ok(Err(error)) => tracing::debug!(workspace = %id, %error, "a workspace was not measured"),
        Err(error) => {
            tracing::error!(workspace = %id, %error, "the task that measures a workspace panicked");
        }
    }
}

/// Measures one workspace at a limited rate, so that many files do not keep the disk busy, unless
/// the disk is short.
async fn usage(
    core: &Arc<Core>,
    workspaces: &Arc<Workspaces>,
    id: WorkspaceId,
    enough: Size,
    urgency: Urgency,
) -> Result<Result<Usage, WorkspaceError>, JoinError> {
    let (core, workspaces) = (Arc::clone(core), Arc::clone(workspaces));
    spawn_blocking(move || {
        let began = Instant::now();
        let mut go_on = |entries: u64| match urgency {
            Urgency::None => {
                std::thread::sleep(Duration::from_micros(entries * 1_000_000 / ENTRIES_PER_S));
                !core.is_halted()
            }
            Urgency::Short => !core.is_halted() && began.elapsed() < URGENT,
        };
        workspaces.usage(id, Scan { enough, go_on: &mut go_on })
    })
    .await
}

/// Measures deleted files that programs still have open.
async fn measure_deleted_but_open(core: &Arc<Core>, workspaces: &Arc<Workspaces>, soft: &Soft) {
    if soft.is_empty() {
        core.disk.usage_meter.deleted_but_open().clear();
        return;
    }
    let (asked, halted) = (Arc::clone(workspaces), Arc::clone(core));
    let wanted: BTreeSet<_> = soft.keys().copied().collect();
    let looked =
        spawn_blocking(move || asked.deleted_but_open(&wanted, &mut |_| !halted.is_halted()));
    match looked.await {
        Ok(Ok(found)) => *core.disk.usage_meter.deleted_but_open() = found,
        Ok(Err(error)) => {
            tracing::warn!(%error, "deleted files that are still open could not be measured");
        }
        Err(error) => tracing::error!(%error, "the task that measures deleted open files panicked"),
    }
}

fn interval(core: &Core) -> Duration {
    Duration::from_millis(core.scan_interval_ms)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn workspace_with_many_files_is_measured_after_those_with_few() {
        let id = WorkspaceId::from_u128;
        let usage_meter = UsageMeter::default();
        let now = Instant::now();
        let last = |age_s, took_ms| Last {
            at: now - Duration::from_secs(age_s),
            took: Duration::from_millis(took_ms),
            bytes: 0,
        };
        for (n, one) in [(1, last(9, 1_300)), (2, last(20, 900)), (3, last(1, 2)), (4, last(5, 3))]
        {
            usage_meter.last().insert(id(n), one);
        }
        usage_meter.last().insert(id(9), last(0, 0));
        let (order, cheap) = usage_meter.order((1..=5).map(id).collect());
        assert_eq!(order, [5, 4, 3, 2, 1].map(id), "new, cheap by age, expensive by age");
        assert_eq!(cheap, 3);
        assert!(
            !usage_meter.last().contains_key(&id(9)),
            "a removed workspace leaves no measurement"
        );
    }
}

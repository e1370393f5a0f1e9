//! Workspaces on disk, for the engine: made before a launch, removed after a kill, measured in
//! between. What is measured is told to the kernel, which decides what follows. Nothing here blocks
//! a thread that serves requests.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use kernel::{Event, Kernel, Launch, Measured};
use model::template::{WorkspaceKind, WorkspaceLimit};
use model::{ErrorCode, Refusal, Template, WorkspaceId};
use runtime::{RuntimeError, RuntimeErrorCode, WorkspaceSource};
use tokio::sync::watch;
use tokio::task::spawn_blocking;
use tokio::time::{Instant, sleep};
use workspaces::{Scan, Size, Trouble, Usage, WorkspaceError, Workspaces};

use crate::core::Core;

/// Entries of workspaces that are looked at in a second, over all of them.
const ENTRIES_PER_S: u64 = 50_000;

/// How often it is looked how much is free, at least.
const FREE_EVERY: Duration = Duration::from_secs(1);

/// The workspaces of a node; none where it has no place for them.
#[derive(Default)]
pub(crate) struct Disk {
    workspaces: Option<Arc<Workspaces>>,
    /// What workspaces with a hard limit must leave free, however full they are.
    spared_bytes: u64,
    /// Those that are being made, whoever still waits for them.
    making: Arc<Mutex<Making>>,
}

type Making = BTreeMap<WorkspaceId, watch::Receiver<()>>;

impl Disk {
    pub(crate) fn new(workspaces: Option<Arc<Workspaces>>, spared_mb: u64) -> Self {
        let spared_bytes = spared_mb.saturating_mul(1 << 20);
        Self { workspaces, spared_bytes, making: Arc::default() }
    }

    /// How the size of a template's workspaces is kept here; none where they are in memory. A hard
    /// limit becomes a soft one only where the template agrees.
    pub(crate) fn limit_of(&self, template: &Template) -> Result<Option<WorkspaceLimit>, Refusal> {
        let refused = |cause: String| Err(Refusal::new(ErrorCode::Unsupported, cause));
        match template.workspace.kind {
            WorkspaceKind::Memory => return Ok(None),
            WorkspaceKind::Disk => {}
        }
        let Some(workspaces) = &self.workspaces else {
            return refused("workspace.kind: this node has no place for workspaces on disk".into());
        };
        match (template.workspace.limit, workspaces.hard().by) {
            (WorkspaceLimit::Soft, _) => Ok(Some(WorkspaceLimit::Soft)),
            (WorkspaceLimit::Hard, Some(_)) => Ok(Some(WorkspaceLimit::Hard)),
            (WorkspaceLimit::Hard, None) if template.limits.best_effort => {
                Ok(Some(WorkspaceLimit::Soft))
            }
            (WorkspaceLimit::Hard, None) => {
                let why = workspaces.hard().reasons();
                refused(format!("workspace.limit: no hard limit works here ({why})"))
            }
        }
    }

    /// What a sandbox that is to be launched has as its workspace, made if need be.
    pub(crate) async fn source_of(&self, launch: &Launch) -> Result<WorkspaceSource, RuntimeError> {
        let limit = self.limit_of(&launch.template).map_err(|refusal| {
            RuntimeError::new(RuntimeErrorCode::Unsupported, "launch", refusal.cause)
        })?;
        let (Some(limit), Some(workspaces)) = (limit, &self.workspaces) else {
            return Ok(WorkspaceSource::Memory);
        };
        let id = launch.workspace;
        if !launch.restore {
            let size = Size::of_bytes(launch.template.limits.workspace_bytes());
            self.make(Arc::clone(workspaces), id, size, limit).await?;
        }
        Ok(WorkspaceSource::Disk(id))
    }

    /// Whoever waits for it may go away: it is made all the same, and a removal waits for that.
    async fn make(
        &self,
        workspaces: Arc<Workspaces>,
        id: WorkspaceId,
        size: Size,
        limit: WorkspaceLimit,
    ) -> Result<(), RuntimeError> {
        let (done, waits) = watch::channel(());
        self.making().insert(id, waits);
        let (making, spared_bytes) = (Arc::clone(&self.making), self.spared_bytes);
        let made = spawn_blocking(move || {
            let made = workspaces.create(id, size, limit, spared_bytes);
            making.lock().unwrap_or_else(PoisonError::into_inner).remove(&id);
            drop(done);
            made
        });
        made.await.map_err(|error| given_up(&error))?.map_err(|error| failed(&error))
    }

    fn making(&self) -> MutexGuard<'_, Making> {
        self.making.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Removes a workspace. That it never existed is fine.
    pub(crate) async fn remove(&self, id: WorkspaceId) -> Result<(), RuntimeError> {
        let Some(workspaces) = &self.workspaces else { return Ok(()) };
        let making = self.making().get(&id).cloned();
        if let Some(mut making) = making {
            // Nothing is ever sent: it ends when the other end is dropped.
            while making.changed().await.is_ok() {}
        }
        if !workspaces.has(id) {
            return Ok(());
        }
        let workspaces = Arc::clone(workspaces);
        let removed = spawn_blocking(move || workspaces.remove(id));
        removed.await.map_err(|error| given_up(&error))?.map_err(|error| failed(&error))
    }

    /// Removes what nobody wrote down; says how many there were.
    pub(crate) async fn remove_all_but(
        &self,
        kept: BTreeSet<WorkspaceId>,
    ) -> Result<u32, RuntimeError> {
        let Some(workspaces) = self.workspaces.clone() else { return Ok(0) };
        let removed = spawn_blocking(move || {
            let unknown = workspaces.list().into_iter().filter(|id| !kept.contains(id));
            unknown
                .map(|id| workspaces.remove(id))
                .try_fold(0, |count, one| one.map(|()| count + 1))
        });
        removed.await.map_err(|error| given_up(&error))?.map_err(|error| failed(&error))
    }

    /// Waits until what was removed is gone, for a while.
    pub(crate) async fn wait_until_removed(&self, patience: Duration) {
        if let Some(workspaces) = self.workspaces.clone() {
            let waited = spawn_blocking(move || workspaces.wait_until_removed(patience)).await;
            if !waited.is_ok_and(|all| all) {
                tracing::warn!(
                    "not everything of removed workspaces is gone; the next start goes on"
                );
            }
        }
    }

    /// What could not be removed, in words.
    pub(crate) fn stuck(&self) -> Option<String> {
        self.workspaces.as_ref()?.stuck()
    }
}

/// Tells the kernel how much is free, for as long as the engine lives.
pub(crate) async fn watch_free(core: Arc<Core>) {
    let Some(workspaces) = core.disk.workspaces.clone() else { return };
    let every = FREE_EVERY.min(interval(&core));
    loop {
        let asked = Arc::clone(&workspaces);
        match spawn_blocking(move || asked.free_bytes()).await {
            Ok(Ok(free_bytes)) => {
                core.metrics.disk_is(workspaces.count(), free_bytes);
                let before = core.read(Kernel::is_disk_short);
                core.tell(Event::DiskMeasured { free_bytes });
                let short = core.read(Kernel::is_disk_short);
                if short && !before {
                    let free_mb = free_bytes >> 20;
                    tracing::warn!(free_mb, "the disk of the workspaces is nearly full");
                } else if before && !short {
                    tracing::info!("the disk of the workspaces has room again");
                }
            }
            Ok(Err(error)) => tracing::warn!(%error, "the disk could not be measured"),
            Err(error) => tracing::error!(%error, "measuring the disk was given up"),
        }
        sleep(every).await;
    }
}

/// Measures workspaces one after another, and tells the kernel of those whose limit it keeps, for
/// as long as the engine lives.
pub(crate) async fn measure(core: Arc<Core>) {
    let Some(workspaces) = core.disk.workspaces.clone() else { return };
    loop {
        let began = Instant::now();
        let soft: BTreeMap<_, _> = core
            .read(Kernel::soft_workspaces)
            .into_iter()
            .map(|one| (one.workspace, (one.instance, Size::of_bytes(one.limit_bytes))))
            .collect();
        let mut bytes = 0;
        for id in workspaces.list() {
            let soft = soft.get(&id).copied();
            if soft.is_none() && !workspaces.is_counted(id) {
                continue;
            }
            let enough = soft.map_or(Size::of_bytes(u64::MAX), |(_, limit)| limit);
            match usage(&core, &workspaces, id, enough).await {
                Ok(Ok(usage)) => {
                    bytes += usage.bytes;
                    if let Some((instance, _)) = soft {
                        let Usage { bytes, files, hidden } = usage;
                        let measured = Measured { bytes, files, hidden };
                        core.tell(Event::WorkspaceMeasured { instance, measured });
                    }
                }
                // It may have been removed in the meantime.
                Ok(Err(error)) => tracing::debug!(%error, "a workspace was not measured"),
                Err(error) => tracing::error!(%error, "measuring a workspace was given up"),
            }
        }
        core.metrics.measured(bytes, began.elapsed());
        sleep(interval(&core)).await;
    }
}

/// Measures one, no faster than it may: a program with many files must not keep the disk busy.
async fn usage(
    core: &Arc<Core>,
    workspaces: &Arc<Workspaces>,
    id: WorkspaceId,
    enough: Size,
) -> Result<Result<Usage, WorkspaceError>, tokio::task::JoinError> {
    let (core, workspaces) = (Arc::clone(core), Arc::clone(workspaces));
    spawn_blocking(move || {
        let mut go_on = |entries: u64| {
            std::thread::sleep(Duration::from_micros(entries * 1_000_000 / ENTRIES_PER_S));
            !core.is_halted()
        };
        workspaces.usage(id, Scan { enough, go_on: &mut go_on })
    })
    .await
}

fn interval(core: &Core) -> Duration {
    Duration::from_millis(core.scan_interval_ms)
}

fn failed(error: &WorkspaceError) -> RuntimeError {
    let code = match error.trouble {
        Trouble::Unsupported => RuntimeErrorCode::Unsupported,
        Trouble::DiskFull => RuntimeErrorCode::DiskFull,
        Trouble::Id => RuntimeErrorCode::Duplicate,
        Trouble::System => RuntimeErrorCode::System,
    };
    RuntimeError::new(code, error.step.clone(), error.source.to_string())
        .with_errno(error.source.raw_os_error().unwrap_or(0))
}

fn given_up(error: &tokio::task::JoinError) -> RuntimeError {
    RuntimeError::new(RuntimeErrorCode::System, "use a workspace", error.to_string())
}

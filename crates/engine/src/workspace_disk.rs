//! Workspaces on disk: made or restored before a launch, removed after a kill. Nothing here blocks
//! a thread that serves requests.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use kernel::Launch;
use model::template::RuntimeKind;
use model::{HardLimits, Placed, Refusal, Template, Wall, WorkspaceId, placed};
use runtime::{RuntimeError, RuntimeErrorCode, WorkspaceSource};
use tasks::spawn_blocking;
use workspaces::{
    Archives, LostFound, NewWorkspace, PutAside, Seeds, Size, WorkspaceError, WorkspaceErrorKind,
    Workspaces,
};

use crate::backup;
use crate::disk_usage::UsageMeter;
use crate::effects::EffectError;
use crate::workspace_locks::{CancelOnDrop, LockGuard, Priority, WorkspaceLocks};

/// The workspaces of a node; none where the node has no directory for them.
#[derive(Default)]
pub(crate) struct Disk {
    pub(crate) workspaces: Option<Arc<Workspaces>>,
    /// What enforces hard limits.
    pub(crate) hard: Option<HardLimits>,
    /// Runtimes that cannot use workspaces on disk, and why.
    pub(crate) unable: BTreeMap<RuntimeKind, String>,
    /// Runtimes whose trial of workspaces on disk failed at the start, and why.
    pub(crate) failed_trials: BTreeMap<RuntimeKind, String>,
    pub(crate) archives: Option<Archives>,
    pub(crate) seeds: Option<Seeds>,
    /// Where files that no record names are put; none if they are removed.
    pub(crate) lost_found: Option<LostFound>,
    /// What workspaces with a hard limit must leave free, however full they are.
    pub(crate) spared_bytes: u64,
    pub(crate) usage_meter: UsageMeter,
    pub(crate) locks: WorkspaceLocks,
    /// One backup at a time.
    pub(crate) backing_up: Arc<tokio::sync::Mutex<()>>,
}

/// The workspace of a sandbox that is about to be launched.
pub(crate) struct PreparedWorkspace {
    pub(crate) source: WorkspaceSource,
    /// The files are in an archive, and must be unpacked in the sandbox.
    pub(crate) unpack: bool,
}

impl Disk {
    /// Where the files of a template's workspaces are on this node, and how their size is limited.
    /// The answer does not change while the node runs.
    pub(crate) fn placed(&self, template: &Template) -> Result<Placed, Refusal> {
        let failed_trial = match template.workspace.kind {
            // A trial may fail by chance: it decides for templates that leave it open, and refuses
            // none.
            None => self.failed_trials.get(&template.runtime),
            Some(_) => None,
        };
        let unable = self.unable.get(&template.runtime).or(failed_trial);
        let disk = match (&self.hard, unable) {
            (None, _) => Err("this node has no directory for workspaces"),
            (Some(_), Some(why)) => Err(why.as_str()),
            (Some(hard), None) => Ok(hard),
        };
        placed(template, disk)
    }

    /// The settings of a new workspace for this template.
    pub(crate) fn new_for(
        &self,
        id: WorkspaceId,
        template: &Template,
    ) -> Result<Option<NewWorkspace>, RuntimeError> {
        let placed = self.placed(template).map_err(|refusal| {
            RuntimeError::new(RuntimeErrorCode::Unsupported, "launch", refusal.cause)
        })?;
        let size = Size::of_bytes(template.limits.workspace_bytes());
        Ok(placed.disk().map(|limit| NewWorkspace {
            id,
            size,
            limit,
            spared_bytes: self.spared_bytes,
        }))
    }

    /// Whether there is a workspace of this id on disk.
    pub(crate) fn has(&self, id: WorkspaceId) -> bool {
        self.workspaces.as_ref().is_some_and(|workspaces| workspaces.has(id))
    }

    /// Whether there is an archive of one.
    pub(crate) fn has_archive(&self, id: WorkspaceId) -> bool {
        self.archives.as_ref().is_some_and(|archives| archives.get(id).is_some())
    }

    /// Makes the workspace of a launch, or restores it from its archive. If the caller goes away,
    /// the work still runs to its end, and a removal waits for that.
    pub(crate) async fn prepare(&self, launch: &Launch) -> Result<PreparedWorkspace, EffectError> {
        let id = launch.workspace;
        let new = self.new_for(id, &launch.template)?;
        let memory = |unpack| Ok(PreparedWorkspace { source: WorkspaceSource::Memory, unpack });
        let disk = Ok(PreparedWorkspace { source: WorkspaceSource::Disk(id), unpack: false });
        if !launch.restore {
            let (Some(new), Some(workspaces)) = (new, self.workspaces.clone()) else {
                return memory(false);
            };
            let locked = self.locks.lock(id, Priority::Urgent).await;
            in_background(locked, move |_| {
                workspaces.create(id, new.size, new.limit, new.spared_bytes)
            })
            .await?;
            return disk;
        }
        let locked = self.locks.lock(id, Priority::Urgent).await;
        if self.has(id) {
            return disk;
        }
        if !self.has_archive(id) {
            let cause = format!("neither workspace {id} nor an archive of it exists");
            return Err(EffectError::FilesGone(cause));
        }
        let (Some(new), Some(workspaces), Some(archives)) =
            (new, self.workspaces.clone(), self.archives.clone())
        else {
            return memory(true);
        };
        let cancel = CancelOnDrop::default();
        let is_cancelled = cancel.is_cancelled();
        in_background(locked, move |_| {
            let Some(archive) = archives.read(id)? else {
                return Err(WorkspaceError::gone("restore a workspace", id));
            };
            workspaces.restore(new, archive, &mut |_| !is_cancelled())?;
            // From here on the archive is older than the workspace.
            archives.remove(id)
        })
        .await?;
        drop(cancel);
        disk
    }

    /// Removes a workspace and its archive. It is no error that they do not exist.
    pub(crate) async fn remove(&self, id: WorkspaceId) -> Result<(), RuntimeError> {
        if self.workspaces.is_none() && self.archives.is_none() {
            return Ok(());
        }
        let locked = self.locks.lock(id, Priority::Urgent).await;
        if !self.has(id) && !self.has_archive(id) {
            return Ok(());
        }
        let (workspaces, archives) = (self.workspaces.clone(), self.archives.clone());
        let removed = in_background(locked, move |_| {
            if let Some(archives) = archives {
                archives.remove(id)?;
            }
            workspaces.map_or(Ok(()), |workspaces| workspaces.remove(id))
        });
        removed.await.map_err(EffectError::into_runtime_error)
    }

    /// Puts aside the files that no record names, or removes them where there is no lost+found, and
    /// removes archives that are older than their workspace.
    pub(crate) async fn put_aside_strays(
        &self,
        named: BTreeSet<WorkspaceId>,
        at: Wall,
    ) -> Result<StrayReport, RuntimeError> {
        let (workspaces, archives) = (self.workspaces.clone(), self.archives.clone());
        let strays = StraySweep {
            named,
            lost_found: self.lost_found.clone(),
            at_s: i64::try_from(at.0 / 1_000).unwrap_or(i64::MAX),
            settled: StrayReport::default(),
        };
        let settled =
            spawn_blocking(move || strays.settle(workspaces.as_deref(), archives.as_ref()));
        settled.await.map_err(|error| given_up(&error))?.map_err(|error| failed(&error))
    }

    /// How many things are in lost+found.
    pub(crate) async fn lost(&self) -> usize {
        let Some(lost_found) = self.lost_found.clone() else { return 0 };
        match spawn_blocking(move || lost_found.list()).await {
            Ok(Ok(all)) => all.len(),
            Ok(Err(_)) | Err(_) => 0,
        }
    }

    /// Removes what was put aside before a moment.
    pub(crate) async fn remove_lost(&self, before: Wall) -> Result<u32, RuntimeError> {
        let Some(lost_found) = self.lost_found.clone() else { return Ok(0) };
        let before_s = i64::try_from(before.0 / 1_000).unwrap_or(i64::MAX);
        let removed = spawn_blocking(move || lost_found.remove(Some(before_s)));
        removed.await.map_err(|error| given_up(&error))?.map_err(|error| failed(&error))
    }

    /// Waits a while until removed workspaces are gone.
    pub(crate) async fn wait_until_removed(&self, patience: Duration) {
        if let Some(workspaces) = self.workspaces.clone() {
            let waited = spawn_blocking(move || workspaces.wait_until_removed(patience)).await;
            if !waited.is_ok_and(|all| all) {
                tracing::warn!(
                    "some removed workspaces still have files; the next start removes them"
                );
            }
        }
    }

    /// Whether less is free than the floor. If the free space cannot be read, the disk is not
    /// short.
    pub(crate) fn is_short(&self) -> bool {
        let free = self.workspaces.as_ref().and_then(|workspaces| workspaces.free_bytes().ok());
        free.is_some_and(|free| free < self.spared_bytes)
    }

    /// What could not be removed, in words.
    pub(crate) fn stuck(&self) -> Option<String> {
        self.workspaces.as_ref()?.stuck()
    }
}

/// What happened to files that no record names.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct StrayReport {
    /// Moved to lost+found.
    pub(crate) kept: u32,
    /// Removed: they were empty, or there is no lost+found.
    pub(crate) removed: u32,
    /// Left in place: lost+found is on another file system.
    pub(crate) left: u32,
}

struct StraySweep {
    named: BTreeSet<WorkspaceId>,
    lost_found: Option<LostFound>,
    at_s: i64,
    settled: StrayReport,
}

impl StraySweep {
    fn settle(
        mut self,
        workspaces: Option<&Workspaces>,
        archives: Option<&Archives>,
    ) -> Result<StrayReport, WorkspaceError> {
        if let Some(workspaces) = workspaces {
            for id in workspaces.list() {
                if self.named.contains(&id) {
                    continue;
                }
                if let Some(to) = &self.lost_found {
                    let put = workspaces.put_aside(id, to, self.at_s)?;
                    self.count("workspace", id, put);
                } else {
                    workspaces.remove(id)?;
                    self.settled.removed += 1;
                }
            }
        }
        if let Some(archives) = archives {
            for id in archives.list().into_keys() {
                if workspaces.is_some_and(|workspaces| workspaces.has(id)) {
                    archives.remove(id)?;
                    continue;
                }
                if self.named.contains(&id) {
                    continue;
                }
                if backup::is_spool(id) {
                    archives.remove(id)?;
                    continue;
                }
                if let Some(to) = &self.lost_found {
                    let put = archives.put_aside(id, to, self.at_s)?;
                    self.count("archive", id, put);
                } else {
                    archives.remove(id)?;
                    self.settled.removed += 1;
                }
            }
        }
        Ok(self.settled)
    }

    fn count(&mut self, what: &str, id: WorkspaceId, put: PutAside) {
        match put {
            PutAside::Kept => {
                self.settled.kept += 1;
                tracing::warn!(what, %id, "files that no record names were moved to lost+found");
            }
            PutAside::Empty => self.settled.removed += 1,
            PutAside::LeftInPlace => {
                self.settled.left += 1;
                tracing::warn!(
                    what,
                    %id,
                    "files that no record names stay in place: lost+found is on another file system"
                );
            }
        }
    }
}

/// Works on a workspace off the threads that serve requests, and keeps its lock until the work has
/// ended, even if the caller goes away.
pub(crate) async fn in_background<T: Send + 'static>(
    locked: LockGuard,
    act: impl FnOnce(&LockGuard) -> Result<T, WorkspaceError> + Send + 'static,
) -> Result<T, EffectError> {
    let done = spawn_blocking(move || act(&locked)).await;
    done.map_err(|error| EffectError::from(given_up(&error)))?.map_err(|error| match error.kind {
        WorkspaceErrorKind::Damaged => EffectError::FilesGone(error.to_string()),
        WorkspaceErrorKind::Unsupported
        | WorkspaceErrorKind::DiskFull
        | WorkspaceErrorKind::Id
        | WorkspaceErrorKind::InUse
        | WorkspaceErrorKind::Refused
        | WorkspaceErrorKind::CalledOff
        | WorkspaceErrorKind::Went
        | WorkspaceErrorKind::System => failed(&error).into(),
    })
}

pub(crate) fn failed(error: &WorkspaceError) -> RuntimeError {
    let code = match error.kind {
        WorkspaceErrorKind::Unsupported => RuntimeErrorCode::Unsupported,
        WorkspaceErrorKind::DiskFull => RuntimeErrorCode::DiskFull,
        WorkspaceErrorKind::Id => RuntimeErrorCode::Duplicate,
        WorkspaceErrorKind::Refused => RuntimeErrorCode::Invalid,
        // The workspace went with its sandbox.
        WorkspaceErrorKind::Went => RuntimeErrorCode::SandboxGone,
        WorkspaceErrorKind::System
        | WorkspaceErrorKind::InUse
        | WorkspaceErrorKind::Damaged
        | WorkspaceErrorKind::CalledOff => RuntimeErrorCode::System,
    };
    RuntimeError::new(code, error.step.clone(), error.source.to_string())
        .with_errno(error.source.raw_os_error().unwrap_or(0))
}

pub(crate) fn given_up(error: &tokio::task::JoinError) -> RuntimeError {
    RuntimeError::new(RuntimeErrorCode::System, "use a workspace", error.to_string())
}

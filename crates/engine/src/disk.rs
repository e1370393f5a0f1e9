//! Workspaces on disk, for the engine: made before a launch, removed after a kill. Nothing here
//! blocks a thread that serves requests.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use kernel::Launch;
use model::template::{WorkspaceKind, WorkspaceLimit};
use model::{ErrorCode, Refusal, Template, WorkspaceId};
use runtime::{RuntimeError, RuntimeErrorCode, WorkspaceSource};
use tokio::sync::watch;
use tokio::task::spawn_blocking;
use workspaces::{Size, Trouble, WorkspaceError, Workspaces};

use crate::measuring::Measuring;

/// The workspaces of a node; none where it has no place for them.
#[derive(Default)]
pub(crate) struct Disk {
    pub(crate) workspaces: Option<Arc<Workspaces>>,
    /// What workspaces with a hard limit must leave free, however full they are.
    pub(crate) spared_bytes: u64,
    pub(crate) measuring: Measuring,
    /// Those that are being made, whoever still waits for them.
    making: Arc<Mutex<Making>>,
}

type Making = BTreeMap<WorkspaceId, watch::Receiver<()>>;

impl Disk {
    pub(crate) fn new(workspaces: Option<Arc<Workspaces>>, spared_mb: u64) -> Self {
        let spared_bytes = spared_mb.saturating_mul(1 << 20);
        Self { workspaces, spared_bytes, ..Self::default() }
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

    /// Whether less is free than is to be spared. What cannot be asked is not short.
    pub(crate) fn is_short(&self) -> bool {
        let free = self.workspaces.as_ref().and_then(|workspaces| workspaces.free_bytes().ok());
        free.is_some_and(|free| free < self.spared_bytes)
    }

    /// What could not be removed, in words.
    pub(crate) fn stuck(&self) -> Option<String> {
        self.workspaces.as_ref()?.stuck()
    }
}

fn failed(error: &WorkspaceError) -> RuntimeError {
    let code = match error.trouble {
        Trouble::Unsupported => RuntimeErrorCode::Unsupported,
        Trouble::DiskFull => RuntimeErrorCode::DiskFull,
        Trouble::Id => RuntimeErrorCode::Duplicate,
        Trouble::Refused => RuntimeErrorCode::Invalid,
        Trouble::System | Trouble::InUse | Trouble::Damaged | Trouble::CalledOff => {
            RuntimeErrorCode::System
        }
    };
    RuntimeError::new(code, error.step.clone(), error.source.to_string())
        .with_errno(error.source.raw_os_error().unwrap_or(0))
}

fn given_up(error: &tokio::task::JoinError) -> RuntimeError {
    RuntimeError::new(RuntimeErrorCode::System, "use a workspace", error.to_string())
}

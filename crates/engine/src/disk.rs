//! Workspaces on disk, for the engine: made or brought back before a launch, removed after a kill.
//! Nothing here blocks a thread that serves requests.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use kernel::Launch;
use model::template::RuntimeKind;
use model::{HardLimits, Placed, Refusal, Template, WorkspaceId, placed};
use runtime::{RuntimeError, RuntimeErrorCode, WorkspaceSource};
use tokio::task::spawn_blocking;
use workspaces::{Archives, New, Seeds, Size, Trouble, WorkspaceError, Workspaces};

use crate::effects::EffectError;
use crate::measuring::Measuring;
use crate::works::{Entered, Haste, Waiting, Works};

/// The workspaces of a node; none where it has no place for them.
#[derive(Default)]
pub(crate) struct Disk {
    pub(crate) workspaces: Option<Arc<Workspaces>>,
    /// What keeps hard limits where they are.
    pub(crate) hard: Option<HardLimits>,
    /// Runtimes that cannot use workspaces on disk, and why.
    pub(crate) unable: BTreeMap<RuntimeKind, String>,
    /// Runtimes that could not when it was tried, and why.
    pub(crate) why_not: BTreeMap<RuntimeKind, String>,
    pub(crate) archives: Option<Archives>,
    pub(crate) seeds: Option<Seeds>,
    /// What workspaces with a hard limit must leave free, however full they are.
    pub(crate) spared_bytes: u64,
    pub(crate) measuring: Measuring,
    pub(crate) works: Works,
}

/// What a sandbox that is to be launched begins with.
pub(crate) struct Beginning {
    pub(crate) source: WorkspaceSource,
    /// Its files are in an archive, and are to be unpacked in it.
    pub(crate) unpack: bool,
}

impl Disk {
    /// Where the files of a template's workspaces are on this node, and how their size is kept. It
    /// gives the same for as long as the node runs.
    pub(crate) fn placed(&self, template: &Template) -> Result<Placed, Refusal> {
        let why_not = match template.workspace.kind {
            // A trial may fail by chance: it decides for those who leave it open, and refuses nothing.
            None => self.why_not.get(&template.runtime),
            Some(_) => None,
        };
        let why_not = self.unable.get(&template.runtime).or(why_not);
        let disk = match (&self.hard, why_not) {
            (None, _) => Err("this node has no place for workspaces on disk"),
            (Some(_), Some(why)) => Err(why.as_str()),
            (Some(hard), None) => Ok(hard),
        };
        placed(template, disk)
    }

    /// What a workspace for this template is to be.
    pub(crate) fn new_for(
        &self,
        id: WorkspaceId,
        template: &Template,
    ) -> Result<Option<New>, RuntimeError> {
        let placed = self.placed(template).map_err(|refusal| {
            RuntimeError::new(RuntimeErrorCode::Unsupported, "launch", refusal.cause)
        })?;
        let size = Size::of_bytes(template.limits.workspace_bytes());
        Ok(placed.disk().map(|limit| New { id, size, limit, spared_bytes: self.spared_bytes }))
    }

    /// Whether there is a workspace of this id on disk.
    pub(crate) fn has(&self, id: WorkspaceId) -> bool {
        self.workspaces.as_ref().is_some_and(|workspaces| workspaces.has(id))
    }

    /// Whether there is an archive of one.
    pub(crate) fn has_archive(&self, id: WorkspaceId) -> bool {
        self.archives.as_ref().is_some_and(|archives| archives.get(id).is_some())
    }

    /// What a sandbox that is to be launched has as its workspace: made, or brought back from its
    /// archive, if need be. Whoever waits for it may go away: what was begun comes to its end, and
    /// a removal waits for that.
    pub(crate) async fn begin(&self, launch: &Launch) -> Result<Beginning, EffectError> {
        let id = launch.workspace;
        let new = self.new_for(id, &launch.template)?;
        let memory = |unpack| Ok(Beginning { source: WorkspaceSource::Memory, unpack });
        let disk = Ok(Beginning { source: WorkspaceSource::Disk(id), unpack: false });
        if !launch.restore {
            let (Some(new), Some(workspaces)) = (new, self.workspaces.clone()) else {
                return memory(false);
            };
            let entered = self.works.enter(id, Haste::Urgent).await;
            in_background(entered, move |_| {
                workspaces.create(id, new.size, new.limit, new.spared_bytes)
            })
            .await?;
            return disk;
        }
        let entered = self.works.enter(id, Haste::Urgent).await;
        if self.has(id) {
            return disk;
        }
        if !self.has_archive(id) {
            let cause = format!("there is neither a workspace {id} nor an archive of it");
            return Err(EffectError::FilesGone(cause));
        }
        let (Some(new), Some(workspaces), Some(archives)) =
            (new, self.workspaces.clone(), self.archives.clone())
        else {
            return memory(true);
        };
        let waiting = Waiting::default();
        let is_gone = waiting.is_gone();
        in_background(entered, move |_| {
            let Some(archive) = archives.read(id)? else {
                return Err(WorkspaceError::gone("restore a workspace", id));
            };
            workspaces.restore(new, archive, &mut |_| !is_gone())?;
            // From here on it is older than what it was made for.
            archives.remove(id)
        })
        .await?;
        drop(waiting);
        disk
    }

    /// Removes a workspace and its archive. That they never existed is fine.
    pub(crate) async fn remove(&self, id: WorkspaceId) -> Result<(), RuntimeError> {
        if self.workspaces.is_none() && self.archives.is_none() {
            return Ok(());
        }
        let entered = self.works.enter(id, Haste::Urgent).await;
        if !self.has(id) && !self.has_archive(id) {
            return Ok(());
        }
        let (workspaces, archives) = (self.workspaces.clone(), self.archives.clone());
        let removed = in_background(entered, move |_| {
            if let Some(archives) = archives {
                archives.remove(id)?;
            }
            workspaces.map_or(Ok(()), |workspaces| workspaces.remove(id))
        });
        removed.await.map_err(EffectError::into_runtime_error)
    }

    /// Removes what nobody wrote down, and archives that are older than what is there; says how
    /// many there were.
    pub(crate) async fn remove_all_but(
        &self,
        kept: BTreeSet<WorkspaceId>,
    ) -> Result<u32, RuntimeError> {
        let (workspaces, archives) = (self.workspaces.clone(), self.archives.clone());
        let removed = spawn_blocking(move || {
            let mut removed = 0;
            if let Some(workspaces) = &workspaces {
                for id in workspaces.list().into_iter().filter(|id| !kept.contains(id)) {
                    workspaces.remove(id)?;
                    removed += 1;
                }
            }
            for id in archives.iter().flat_map(Archives::list).map(|(id, _)| id) {
                let is_old = workspaces.as_ref().is_some_and(|workspaces| workspaces.has(id));
                if let Some(archives) = archives.as_ref().filter(|_| is_old || !kept.contains(&id))
                {
                    archives.remove(id)?;
                    removed += u32::from(!is_old);
                }
            }
            Ok::<_, WorkspaceError>(removed)
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

/// Does something with a workspace off the threads that serve requests. Nobody else works on it
/// until that is over, whoever still waits for it.
pub(crate) async fn in_background<T: Send + 'static>(
    entered: Entered,
    act: impl FnOnce(&Entered) -> Result<T, WorkspaceError> + Send + 'static,
) -> Result<T, EffectError> {
    let done = spawn_blocking(move || act(&entered)).await;
    done.map_err(|error| EffectError::from(given_up(&error)))?.map_err(|error| {
        match error.trouble {
            Trouble::Damaged => EffectError::FilesGone(error.to_string()),
            Trouble::Unsupported
            | Trouble::DiskFull
            | Trouble::Id
            | Trouble::InUse
            | Trouble::Refused
            | Trouble::CalledOff
            | Trouble::Went
            | Trouble::System => failed(&error).into(),
        }
    })
}

pub(crate) fn failed(error: &WorkspaceError) -> RuntimeError {
    let code = match error.trouble {
        Trouble::Unsupported => RuntimeErrorCode::Unsupported,
        Trouble::DiskFull => RuntimeErrorCode::DiskFull,
        Trouble::Id => RuntimeErrorCode::Duplicate,
        Trouble::Refused => RuntimeErrorCode::Invalid,
        // It goes with the sandbox whose it is.
        Trouble::Went => RuntimeErrorCode::SandboxGone,
        Trouble::System | Trouble::InUse | Trouble::Damaged | Trouble::CalledOff => {
            RuntimeErrorCode::System
        }
    };
    RuntimeError::new(code, error.step.clone(), error.source.to_string())
        .with_errno(error.source.raw_os_error().unwrap_or(0))
}

pub(crate) fn given_up(error: &tokio::task::JoinError) -> RuntimeError {
    RuntimeError::new(RuntimeErrorCode::System, "use a workspace", error.to_string())
}

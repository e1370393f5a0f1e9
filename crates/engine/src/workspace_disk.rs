//! Workspaces on disk, for the engine: made or brought back before a launch, removed after a kill.
//! Nothing here blocks a thread that serves requests.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use kernel::Launch;
use model::template::RuntimeKind;
use model::{HardLimits, Placed, Refusal, Template, Wall, WorkspaceId, placed};
use runtime::{RuntimeError, RuntimeErrorCode, WorkspaceSource};
use tasks::spawn_blocking;
use workspaces::{
    Archives, LostFound, New, PutAside, Seeds, Size, Trouble, WorkspaceError, Workspaces,
};

use crate::backup;
use crate::disk_usage::Measuring;
use crate::effects::EffectError;
use crate::workspace_locks::{Entered, Haste, Waiting, Works};

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
    /// Where files are put that no record names; none if they are removed.
    pub(crate) lost_found: Option<LostFound>,
    /// What workspaces with a hard limit must leave free, however full they are.
    pub(crate) spared_bytes: u64,
    pub(crate) measuring: Measuring,
    pub(crate) works: Works,
    /// One backup at a time.
    pub(crate) backing_up: Arc<tokio::sync::Mutex<()>>,
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

    /// Puts aside what no record names, or removes it where there is no place for that, and removes
    /// archives that are older than what is there.
    pub(crate) async fn settle_strays(
        &self,
        named: BTreeSet<WorkspaceId>,
        at: Wall,
    ) -> Result<Settled, RuntimeError> {
        let (workspaces, archives) = (self.workspaces.clone(), self.archives.clone());
        let strays = Strayed {
            named,
            lost_found: self.lost_found.clone(),
            at_s: i64::try_from(at.0 / 1_000).unwrap_or(i64::MAX),
            settled: Settled::default(),
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

/// What became of files that no record names.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Settled {
    /// Those that were put aside.
    pub(crate) kept: u32,
    /// Those that were removed: they were empty, or there is no place to put them.
    pub(crate) removed: u32,
    /// Those that cannot be moved to lost+found, which is on another file system.
    pub(crate) left: u32,
}

struct Strayed {
    named: BTreeSet<WorkspaceId>,
    lost_found: Option<LostFound>,
    at_s: i64,
    settled: Settled,
}

impl Strayed {
    fn settle(
        mut self,
        workspaces: Option<&Workspaces>,
        archives: Option<&Archives>,
    ) -> Result<Settled, WorkspaceError> {
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
                tracing::warn!(what, %id, "no record names it: it was moved to lost+found");
            }
            PutAside::Empty => self.settled.removed += 1,
            PutAside::LeftInPlace => {
                self.settled.left += 1;
                tracing::warn!(
                    what,
                    %id,
                    "no record names it, and lost+found is on another file system: it stays where it is"
                );
            }
        }
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

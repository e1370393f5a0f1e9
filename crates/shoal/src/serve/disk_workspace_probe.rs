//! Finds out whether sandboxes can have their workspace on the disk of the data directory, by making
//! one. Not every file system can show files as another user's, and nothing else tells for sure. A disk
//! that is full and a machine that is slow prove nothing: where files are must not depend on that.

use std::time::Duration;

use engine::Workspaces;
use model::template::WorkspaceLimit;
use model::{InstanceId, Limits, WorkspaceId};
use runtime::{LaunchSpec, Root, Runtime, RuntimeErrorCode, WorkspaceSource};
use workspaces::{Size, Trouble};

use crate::failure::Failure;
use crate::native;

/// How long it may take: far longer than it does.
const PATIENCE: Duration = Duration::from_secs(10);

/// Makes a sandbox with its workspace on disk, and removes both. Why that cannot be, if it cannot.
pub(super) async fn probe(runtime: &dyn Runtime, workspaces: &Workspaces) -> Result<(), String> {
    if !runtime.capabilities().disk_workspaces {
        return Err("the runtime cannot do it here".to_owned());
    }
    let random = || native::random().map_err(|failure: Failure| failure.to_string());
    let id = WorkspaceId::from_u128(random()?);
    let instance = InstanceId::from_u128(random()?);
    let made = workspaces.create(id, Size::SMALLEST, WorkspaceLimit::Soft, 0);
    match made {
        Ok(()) => {}
        Err(error) if error.trouble == Trouble::DiskFull => return Ok(()),
        Err(error) => return Err(error.to_string()),
    }
    let spec = LaunchSpec {
        instance,
        root: Root::Host,
        limits: Limits { best_effort: true, ..Limits::default() },
        workspace: WorkspaceSource::Disk(id),
        aliases: Vec::new(),
        mounts: Vec::new(),
        settings: None,
        ready_timeout: PATIENCE,
    };
    let launched = runtime.launch(spec).await;
    let killed = runtime.kill(instance).await;
    let removed = workspaces.remove(id);
    for what in
        [killed.map_err(|error| error.to_string()), removed.map_err(|error| error.to_string())]
    {
        if let Err(error) = what {
            tracing::warn!(error, "something of a trial is left; the next start removes it");
        }
    }
    match launched {
        Ok(_) => Ok(()),
        Err(error) if proves_nothing(error.code) => Ok(()),
        Err(error) => Err(error.to_string()),
    }
}

/// Whether a launch that failed like this may work another time.
fn proves_nothing(code: RuntimeErrorCode) -> bool {
    let passing = [
        RuntimeErrorCode::DiskFull,
        RuntimeErrorCode::Full,
        RuntimeErrorCode::ReadyTimeout,
        RuntimeErrorCode::DeadlineExceeded,
        RuntimeErrorCode::LauncherLost,
    ];
    passing.contains(&code)
}

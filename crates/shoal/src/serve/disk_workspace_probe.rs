//! Finds out whether sandboxes can have their workspace on the disk of the data directory, by
//! launching one: not every file system can map owners, and only a trial proves it. A full disk or
//! a slow machine proves nothing: the place of workspaces must not depend on them.

use std::time::Duration;

use engine::Workspaces;
use model::template::WorkspaceLimit;
use model::{InstanceId, Limits, WorkspaceId};
use runtime::{LaunchSpec, Root, Runtime, RuntimeErrorCode, WorkspaceSource};
use workspaces::{Size, WorkspaceErrorKind};

use crate::failure::Failure;
use crate::native;

/// How long the launch may take: far longer than usual.
const PATIENCE: Duration = Duration::from_secs(10);

/// Launches a sandbox with its workspace on disk, and removes both. The error says why it failed.
pub(super) async fn probe(runtime: &dyn Runtime, workspaces: &Workspaces) -> Result<(), String> {
    if !runtime.capabilities().disk_workspaces {
        return Err("the native runtime cannot use workspaces on disk on this machine".to_owned());
    }
    let random = || native::random().map_err(|failure: Failure| failure.to_string());
    let id = WorkspaceId::from_u128(random()?);
    let instance = InstanceId::from_u128(random()?);
    let made = workspaces.create(id, Size::SMALLEST, WorkspaceLimit::Soft, 0);
    match made {
        Ok(()) => {}
        Err(error) if error.kind == WorkspaceErrorKind::DiskFull => return Ok(()),
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
            tracing::warn!(
                error,
                "cannot remove the trial sandbox or its workspace; the next start removes it"
            );
        }
    }
    match launched {
        Ok(_) => Ok(()),
        Err(error) if proves_nothing(error.code) => Ok(()),
        Err(error) => Err(error.to_string()),
    }
}

/// Whether a launch that failed with this code may succeed later.
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

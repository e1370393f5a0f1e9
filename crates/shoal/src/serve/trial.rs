//! Finds out whether sandboxes can have their workspace on the disk of the data directory, by making
//! one. Not every file system can show files as another user's, and nothing else tells for sure.

use std::time::Duration;

use engine::Workspaces;
use model::template::{WorkspaceKind, WorkspaceLimit, WorkspaceSettings};
use model::{InstanceId, Limits, Template, WorkspaceId};
use runtime::{LaunchSpec, Root, Runtime, WorkspaceSource};
use workspaces::Size;

use crate::failure::Failure;
use crate::native;

/// How long it may take: far longer than it does.
const PATIENCE: Duration = Duration::from_secs(10);

/// Makes a sandbox with its workspace on disk, and removes both.
pub(super) async fn of_disk(runtime: &dyn Runtime, workspaces: &Workspaces) -> Result<(), String> {
    if !runtime.capabilities().disk_workspaces {
        return Err("the runtime cannot do it here".to_owned());
    }
    let random = || native::random().map_err(|failure: Failure| failure.to_string());
    let id = WorkspaceId::from_u128(random()?);
    let instance = InstanceId::from_u128(random()?);
    let made = workspaces.create(id, Size::SMALLEST, WorkspaceLimit::Soft, 0);
    made.map_err(|error| error.to_string())?;
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
    launched.map_err(|error| error.to_string())?;
    killed.map_err(|error| error.to_string())?;
    removed.map_err(|error| error.to_string())
}

/// The same template with its workspaces on disk, where a program that writes too much is met when
/// it is measured.
pub(super) fn put_on_disk(template: &mut Template) {
    let (kind, limit) = (WorkspaceKind::Disk, WorkspaceLimit::Soft);
    template.workspace = WorkspaceSettings { kind, limit, ..template.workspace.clone() };
}

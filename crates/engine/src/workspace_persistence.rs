//! Makes the files of sessions durable, copies them for a fork, and archives them. The host does it
//! where it can; what only the guest reaches (a workspace in memory, or a mounted file system of
//! its own) is packed through the guest. This module must never freeze or thaw a sandbox: the
//! kernel decides that, and says with each effect whether the guest runs. An effect that needs a
//! guest that does not run fails with that cause.

use std::sync::Arc;

use kernel::{Event, Reply};
use model::{InstanceId, Refusal, RequestId, Template, WorkspaceId};
use runtime::{RuntimeError, RuntimeErrorCode};
use workspaces::Workspaces;

use crate::core::Core;
use crate::effects::{EffectError, find};
use crate::sandboxes::unexpected;
use crate::workspace_disk::in_background;
use crate::workspace_locks::{CancelOnDrop, LockGuard, Priority};

/// The workspace to copy.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Source {
    pub(crate) workspace: WorkspaceId,
    /// The instance that uses it, if one does.
    pub(crate) instance: Option<InstanceId>,
    /// Whether the guest of that instance runs and may be asked.
    pub(crate) guest_awake: bool,
}

/// Makes a workspace durable as it is now.
pub(crate) async fn persist(
    core: &Arc<Core>,
    instance: InstanceId,
    workspace: WorkspaceId,
    guest_awake: bool,
) -> Result<(), EffectError> {
    let sandbox = find(core, instance)?;
    let Some(workspaces) = core.disk.workspaces.clone().filter(|all| all.has(workspace)) else {
        if !guest_awake {
            return Err(EffectError::NeedsGuest);
        }
        return core.disk.pack_into_archive(sandbox, workspace).await;
    };
    if workspaces.is_closed(workspace) {
        sandbox.sync().await?;
    }
    // Without the lock: a removal need not wait until the files are durable.
    let synced = tasks::spawn_blocking(move || workspaces.sync(workspace)).await;
    let synced = synced.map_err(|error| crate::workspace_disk::given_up(&error))?;
    Ok(synced.map_err(|error| crate::workspace_disk::failed(&error))?)
}

/// Copies a workspace into a new one, all or nothing.
pub(crate) async fn copy(
    core: &Arc<Core>,
    source: Source,
    to: WorkspaceId,
    template: &Template,
) -> Result<(), EffectError> {
    let (disk, from) = (&core.disk, source.workspace);
    // An archive in progress is called off or has ended; then the workspace stays where it is.
    let locked = disk.locks.lock(from, Priority::Urgent).await;
    let on_host = disk.workspaces.clone().filter(|all| all.has(from));
    let closed = on_host.as_ref().is_some_and(|all| all.is_closed(from));
    // If the instance has ended meanwhile, its files may still be within reach.
    let live = source.instance.and_then(|instance| find(core, instance).ok());
    match (on_host, live) {
        (Some(workspaces), None) => on_disk(core, workspaces, locked, (from, to), template).await,
        (Some(workspaces), Some(_)) if !closed => {
            on_disk(core, workspaces, locked, (from, to), template).await
        }
        (Some(_) | None, Some(_)) if !source.guest_awake => Err(EffectError::NeedsGuest),
        (Some(_) | None, Some(sandbox)) => disk.pack_into_archive(sandbox, to).await,
        // A saved archive, if there is one, may be older than the lost files.
        (None, None) if source.instance.is_some() => {
            let cause = "the sandbox ended before its files were copied";
            Err(RuntimeError::new(RuntimeErrorCode::SandboxGone, "copy a workspace", cause).into())
        }
        (None, None) => {
            let Some(archives) = disk.archives.clone().filter(|all| all.get(from).is_some()) else {
                let cause = format!("neither workspace {from} nor an archive of it exists");
                return Err(EffectError::FilesGone(cause));
            };
            let target = disk.locks.lock(to, Priority::Patient).await;
            in_background(target, move |_| archives.copy(from, to)).await
        }
    }
}

/// Copies a workspace for the server itself once the kernel allows the read, and reports its end.
pub(crate) async fn read(
    core: &Arc<Core>,
    from: WorkspaceId,
    to: WorkspaceId,
    template: &Template,
) -> Result<(), EffectError> {
    let request = core.request();
    let mut reader = Reader { core, request, needs_guest: false };
    let asked = core.ask(request, Event::ReadRequested { request, workspace: from }).await;
    let (instance, guest_awake) = match asked {
        Ok(Reply::Readable { instance, guest_awake }) => (instance, guest_awake),
        Ok(other) => return Err(unreadable(unexpected(&other)).into()),
        Err(refusal) => return Err(unreadable(refusal).into()),
    };
    let source = Source { workspace: from, instance, guest_awake };
    let copied = copy(core, source, to, template).await;
    reader.needs_guest = matches!(copied, Err(EffectError::NeedsGuest));
    copied
}

fn unreadable(refusal: Refusal) -> RuntimeError {
    RuntimeError::new(RuntimeErrorCode::System, "read a workspace", refusal.cause)
}

/// A read of files, allowed or still waiting. The read ends when this is dropped.
struct Reader<'a> {
    core: &'a Arc<Core>,
    request: RequestId,
    needs_guest: bool,
}

impl Drop for Reader<'_> {
    fn drop(&mut self) {
        let Self { request, needs_guest, .. } = *self;
        self.core.notify(Event::ReadEnded { request, needs_guest });
    }
}

/// Copies a workspace that the host can read.
async fn on_disk(
    core: &Arc<Core>,
    workspaces: Arc<Workspaces>,
    locked: LockGuard,
    (from, to): (WorkspaceId, WorkspaceId),
    template: &Template,
) -> Result<(), EffectError> {
    let disk = &core.disk;
    // A file system of its own is locked while it is copied: a launch on it waits.
    let source = workspaces.is_closed(from).then_some(locked);
    let Some(new) = disk.new_for(to, template)? else { return into_archive(core, from, to).await };
    let target = disk.locks.lock(to, Priority::Patient).await;
    let cancel = CancelOnDrop::default();
    let is_cancelled = cancel.is_cancelled();
    let copied = in_background(target, move |_| {
        let _source = source;
        if workspaces.has(to) {
            // An earlier attempt, on which the kernel had given up, has succeeded.
            return Ok(());
        }
        let copied = workspaces.copy(from, new, &mut |_| !is_cancelled());
        if workspaces.has(from) {
            return copied;
        }
        // The copy may be incomplete: files that vanish while they are read are skipped.
        workspaces.remove(to)?;
        Err(went(from))
    })
    .await;
    drop(cancel);
    copied
}

/// The workspace was removed while it was read.
fn went(from: WorkspaceId) -> workspaces::WorkspaceError {
    workspaces::WorkspaceError::went("copy a workspace", from)
}

/// Copies a workspace on disk into an archive, for a sandbox that has its files in memory.
async fn into_archive(
    core: &Arc<Core>,
    from: WorkspaceId,
    to: WorkspaceId,
) -> Result<(), EffectError> {
    let disk = &core.disk;
    let (Some(workspaces), Some(archives)) = (disk.workspaces.clone(), disk.archives.clone())
    else {
        return Err(no_archives().into());
    };
    let (target, spared) = (disk.locks.lock(to, Priority::Patient).await, disk.spared_bytes);
    let cancel = CancelOnDrop::default();
    let is_cancelled = cancel.is_cancelled();
    let packed = in_background(target, move |_| {
        let mut writer = archives.write(to, spared)?;
        let packed = workspaces.pack(from, &mut writer, &mut |_| !is_cancelled());
        // The copy may be incomplete: files that vanish while they are read are skipped.
        if !workspaces.has(from) {
            return Err(went(from));
        }
        packed?;
        writer.finish().map(|_| ())
    })
    .await;
    drop(cancel);
    packed
}

/// Archives a workspace that no instance uses, and removes it from the disk.
pub(crate) async fn archive(core: &Arc<Core>, id: WorkspaceId) -> Result<(), EffectError> {
    let disk = &core.disk;
    let (Some(workspaces), Some(archives)) = (disk.workspaces.clone(), disk.archives.clone())
    else {
        return Err(no_archives().into());
    };
    let locked = disk.locks.lock(id, Priority::Patient).await;
    let cancel = CancelOnDrop::default();
    let is_cancelled = cancel.is_cancelled();
    let (halted, spared) = (Arc::clone(core), disk.spared_bytes);
    let archived = in_background(locked, move |locked| {
        if !workspaces.has(id) && archives.get(id).is_some() {
            return Ok(());
        }
        let mut go_on = |_| !locked.is_urgently_wanted() && !is_cancelled() && !halted.is_halted();
        let mut writer = archives.write(id, spared)?;
        workspaces.pack(id, &mut writer, &mut go_on)?;
        if !go_on(0) {
            // A launch uses the workspace as it is, and would make the archive out of date.
            return Err(workspaces::WorkspaceError::called_off("archive a workspace"));
        }
        writer.finish()?;
        workspaces.remove(id)
    })
    .await;
    drop(cancel);
    archived.map_err(|error| error.into_runtime_error().into())
}

fn no_archives() -> RuntimeError {
    let cause = "this node has no directory for archives";
    RuntimeError::new(RuntimeErrorCode::Unsupported, "archive a workspace", cause)
}

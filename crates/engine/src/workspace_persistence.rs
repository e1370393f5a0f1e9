//! Keeps the files of sessions: makes them durable, copies them for a fork, puts them into an
//! archive. On the host wherever that is possible; what only the guest can reach, a workspace in
//! memory or a file system of its own that is in use, is packed through it. It must never freeze or
//! thaw a sandbox: the kernel decides that, and says with each effect whether the guest runs. Where the
//! guest is needed and does not run, the effect fails and says so.

use std::sync::Arc;

use kernel::{Event, Reply};
use model::{InstanceId, Refusal, RequestId, Template, WorkspaceId};
use runtime::{RuntimeError, RuntimeErrorCode};
use workspaces::Workspaces;

use crate::core::Core;
use crate::effects::{EffectError, find};
use crate::sandboxes::unexpected;
use crate::workspace_disk::in_background;
use crate::workspace_locks::{Entered, Haste, Waiting};

/// What is copied.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Source {
    pub(crate) workspace: WorkspaceId,
    /// Where it is in use, if it is.
    pub(crate) instance: Option<InstanceId>,
    /// Whether the guest of that runs, and may be asked.
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
        return core.disk.take_out(sandbox, workspace).await;
    };
    if workspaces.is_closed(workspace) {
        sandbox.sync().await?;
    }
    // Somebody who removes it need not wait until it is durable.
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
    // What is being archived is called off, or over: after that nobody else moves it.
    let entered = disk.works.enter(from, Haste::Urgent).await;
    let on_host = disk.workspaces.clone().filter(|all| all.has(from));
    let closed = on_host.as_ref().is_some_and(|all| all.is_closed(from));
    // One that is over meanwhile is no obstacle where its files are within reach without it.
    let live = source.instance.and_then(|instance| find(core, instance).ok());
    match (on_host, live) {
        (Some(workspaces), None) => on_disk(core, workspaces, entered, (from, to), template).await,
        (Some(workspaces), Some(_)) if !closed => {
            on_disk(core, workspaces, entered, (from, to), template).await
        }
        (Some(_) | None, Some(_)) if !source.guest_awake => Err(EffectError::NeedsGuest),
        (Some(_) | None, Some(sandbox)) => disk.take_out(sandbox, to).await,
        // What was saved of it, if anything was, may be older than what it had.
        (None, None) if source.instance.is_some() => {
            let cause = "it ended before its files were copied";
            Err(RuntimeError::new(RuntimeErrorCode::SandboxGone, "copy a workspace", cause).into())
        }
        (None, None) => {
            let Some(archives) = disk.archives.clone().filter(|all| all.get(from).is_some()) else {
                let cause = format!("there is neither a workspace {from} nor an archive of it");
                return Err(EffectError::FilesGone(cause));
            };
            let target = disk.works.enter(to, Haste::Patient).await;
            in_background(target, move |_| archives.copy(from, to)).await
        }
    }
}

/// Copies a workspace for the server itself, when the kernel says that it can be read, and tells it
/// when that is over.
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

/// A reader of files, or one that waits until they can be read. When it is dropped, that is over.
struct Reader<'a> {
    core: &'a Arc<Core>,
    request: RequestId,
    needs_guest: bool,
}

impl Drop for Reader<'_> {
    fn drop(&mut self) {
        let Self { request, needs_guest, .. } = *self;
        self.core.tell(Event::ReadEnded { request, needs_guest });
    }
}

/// Copies a workspace that the host can read.
async fn on_disk(
    core: &Arc<Core>,
    workspaces: Arc<Workspaces>,
    entered: Entered,
    (from, to): (WorkspaceId, WorkspaceId),
    template: &Template,
) -> Result<(), EffectError> {
    let disk = &core.disk;
    // A file system of its own is locked while it is copied: a start on it waits.
    let source = workspaces.is_closed(from).then_some(entered);
    let Some(new) = disk.new_for(to, template)? else { return into_archive(core, from, to).await };
    let target = disk.works.enter(to, Haste::Patient).await;
    let waiting = Waiting::default();
    let is_gone = waiting.is_gone();
    let copied = in_background(target, move |_| {
        let _source = source;
        if workspaces.has(to) {
            // An earlier attempt, which the kernel had given up, came to its end.
            return Ok(());
        }
        let copied = workspaces.copy(from, new, &mut |_| !is_gone());
        if workspaces.has(from) {
            return copied;
        }
        // Whatever was found of it may be a part: files that go are not looked for.
        workspaces.remove(to)?;
        Err(went(from))
    })
    .await;
    drop(waiting);
    copied
}

/// Whoever it was of gave it up while it was read.
fn went(from: WorkspaceId) -> workspaces::WorkspaceError {
    workspaces::WorkspaceError::went("copy a workspace", from)
}

/// A workspace on disk for a sandbox that has it in memory.
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
    let (target, spared) = (disk.works.enter(to, Haste::Patient).await, disk.spared_bytes);
    let waiting = Waiting::default();
    let is_gone = waiting.is_gone();
    let packed = in_background(target, move |_| {
        let mut writer = archives.write(to, spared)?;
        let packed = workspaces.pack(from, &mut writer, &mut |_| !is_gone());
        // Whatever was found of it may be a part: files that go are not looked for.
        if !workspaces.has(from) {
            return Err(went(from));
        }
        packed?;
        writer.finish().map(|_| ())
    })
    .await;
    drop(waiting);
    packed
}

/// Puts a workspace that nothing uses into an archive, and takes it away from where it is.
pub(crate) async fn archive(core: &Arc<Core>, id: WorkspaceId) -> Result<(), EffectError> {
    let disk = &core.disk;
    let (Some(workspaces), Some(archives)) = (disk.workspaces.clone(), disk.archives.clone())
    else {
        return Err(no_archives().into());
    };
    let entered = disk.works.enter(id, Haste::Patient).await;
    let waiting = Waiting::default();
    let is_gone = waiting.is_gone();
    let (halted, spared) = (Arc::clone(core), disk.spared_bytes);
    let archived = in_background(entered, move |entered| {
        if !workspaces.has(id) && archives.get(id).is_some() {
            return Ok(());
        }
        let mut go_on = |_| !entered.is_wanted() && !is_gone() && !halted.is_halted();
        let mut writer = archives.write(id, spared)?;
        workspaces.pack(id, &mut writer, &mut go_on)?;
        if !go_on(0) {
            // Whoever starts on it has it as it is, and an archive would only grow old.
            return Err(workspaces::WorkspaceError::called_off("archive a workspace"));
        }
        writer.finish()?;
        workspaces.remove(id)
    })
    .await;
    drop(waiting);
    archived.map_err(|error| error.into_runtime_error().into())
}

fn no_archives() -> RuntimeError {
    let cause = "this node has no place for archives";
    RuntimeError::new(RuntimeErrorCode::Unsupported, "archive a workspace", cause)
}

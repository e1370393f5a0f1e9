//! Keeps the files of sessions: makes them durable, copies them for a fork, puts them into an
//! archive. On the host wherever that is possible; what only the guest can reach, a workspace in
//! memory or a file system of its own that is in use, is packed through it.

use std::sync::Arc;
use std::time::Duration;

use model::{InstanceId, Template, WorkspaceId};
use runtime::{RuntimeError, RuntimeErrorCode, Sandbox};
use tokio::time::timeout;

use crate::core::Core;
use crate::disk::in_background;
use crate::effects::{EffectError, find};
use crate::works::{Haste, Waiting};

/// How long a sandbox is kept from running while its files are copied: shorter than anybody who
/// waits for it to answer does. A copy that takes longer is of files that may be changing.
const STILL: Duration = Duration::from_secs(1);

/// Makes a workspace durable as it is now.
pub(crate) async fn persist(
    core: &Arc<Core>,
    instance: InstanceId,
    workspace: WorkspaceId,
) -> Result<(), EffectError> {
    let sandbox = find(core, instance)?;
    let Some(workspaces) = core.disk.workspaces.clone().filter(|all| all.has(workspace)) else {
        return through_guest(core, sandbox, workspace).await;
    };
    if workspaces.is_closed(workspace) {
        sandbox.sync().await?;
    }
    // Somebody who removes it need not wait until it is durable.
    let synced = tasks::spawn_blocking(move || workspaces.sync(workspace)).await;
    let synced = synced.map_err(|error| crate::disk::given_up(&error))?;
    Ok(synced.map_err(|error| crate::disk::failed(&error))?)
}

/// Copies a workspace into a new one, all or nothing.
pub(crate) async fn copy(
    core: &Arc<Core>,
    from: WorkspaceId,
    instance: Option<InstanceId>,
    to: WorkspaceId,
    template: &Template,
) -> Result<(), EffectError> {
    let disk = &core.disk;
    // What is being archived is called off, or over: after that nobody else moves it.
    let source = disk.works.enter(from, Haste::Urgent).await;
    let closed = disk.workspaces.as_ref().is_some_and(|all| all.is_closed(from));
    // One that is over meanwhile is no obstacle where its files are within reach without it.
    let live = instance.and_then(|instance| find(core, instance).ok());
    match (disk.workspaces.clone().filter(|all| all.has(from)), live) {
        (Some(_), Some(sandbox)) if closed => through_guest(core, sandbox, to).await,
        (None, Some(sandbox)) => through_guest(core, sandbox, to).await,
        (Some(workspaces), live) => {
            // A file system of its own is locked while it is copied: whoever starts on it waits.
            let source = closed.then_some(source);
            let Some(new) = disk.new_for(to, template)? else {
                let packed = into_archive(core, from, to);
                return match live {
                    Some(sandbox) => held_still(core, sandbox, packed).await,
                    None => packed.await,
                };
            };
            let target = disk.works.enter(to, Haste::Patient).await;
            let waiting = Waiting::default();
            let is_gone = waiting.is_gone();
            let copied = in_background(target, move |_| {
                let _source = source;
                if workspaces.has(to) {
                    // An attempt that nobody waited for came to its end.
                    return Ok(());
                }
                let copied = workspaces.copy(from, new, &mut |_| !is_gone());
                if workspaces.has(from) {
                    return copied;
                }
                // Whatever was found of it may be a part: files that go are not looked for.
                workspaces.remove(to)?;
                Err(went(from))
            });
            let copied = match live {
                Some(sandbox) => held_still(core, sandbox, copied).await,
                None => copied.await,
            };
            drop(waiting);
            copied
        }
        // What was saved of it, if anything was, may be older than what it had.
        (None, None) if instance.is_some() => {
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

/// Packs what a sandbox has into an archive. Its guest must run for that: one that is frozen is
/// let run meanwhile.
async fn through_guest(
    core: &Arc<Core>,
    sandbox: Arc<dyn Sandbox>,
    to: WorkspaceId,
) -> Result<(), EffectError> {
    let mut awake = None;
    loop {
        if awake.is_none() && core.read(|kernel| kernel.is_frozen(sandbox.instance())) {
            sandbox.thaw().await?;
            let (core, sandbox) = (Arc::clone(core), Arc::clone(&sandbox));
            awake = Some(Afterwards { core, sandbox, frozen: true });
        }
        let taken_out = core.disk.take_out(Arc::clone(&sandbox), to).await;
        // A freeze that was on its way when this began came to its end meanwhile.
        let frozen = awake.is_none() && core.read(|kernel| kernel.is_frozen(sandbox.instance()));
        if taken_out.is_ok() || !frozen {
            return taken_out;
        }
    }
}

/// Keeps a sandbox from running while something is done, if that can be and does not take long.
async fn held_still<T>(
    core: &Arc<Core>,
    sandbox: Arc<dyn Sandbox>,
    doing: impl Future<Output = T>,
) -> T {
    tokio::pin!(doing);
    if core.read(|kernel| kernel.is_frozen(sandbox.instance())) {
        return doing.await;
    }
    let still = Afterwards { core: Arc::clone(core), sandbox: Arc::clone(&sandbox), frozen: false };
    // What cannot be frozen is copied as it runs.
    let done = match sandbox.freeze().await {
        Ok(()) => timeout(STILL, &mut doing).await.ok(),
        Err(_) => None,
    };
    drop(still);
    match done {
        Some(done) => done,
        None => doing.await,
    }
}

/// Brings a sandbox back to how it was, whatever happens to whoever changed that. The kernel may
/// have decided otherwise meanwhile, and then that counts.
struct Afterwards {
    core: Arc<Core>,
    sandbox: Arc<dyn Sandbox>,
    frozen: bool,
}

impl Drop for Afterwards {
    fn drop(&mut self) {
        let (core, sandbox, frozen) =
            (Arc::clone(&self.core), Arc::clone(&self.sandbox), self.frozen);
        let Ok(tokio) = tokio::runtime::Handle::try_current() else { return };
        tokio.spawn(async move {
            let is_frozen = || core.read(|kernel| kernel.is_frozen(sandbox.instance()));
            if is_frozen() != frozen {
                return;
            }
            let mut done = if frozen { sandbox.freeze().await } else { sandbox.thaw().await };
            // What was decided meanwhile may have been done already.
            if is_frozen() != frozen {
                done = if frozen { sandbox.thaw().await } else { sandbox.freeze().await };
            }
            if let Err(error) = done {
                tracing::debug!(%error, "a sandbox could not be brought back to how it was");
            }
        });
    }
}

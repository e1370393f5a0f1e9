//! Ending processes: asked to stop and killed when they do not, killed at once, or killed because the
//! kernel says so. The kernel hears what is asked of a process and decides what follows; the program
//! that runs hears it too. A request is done when the process is over, and goes on without its client.

use std::sync::Arc;
use std::time::Duration;

use kernel::{EndAsked, Event};
use model::{ErrorCode, ProcessId, ProcessRecord, Refusal, SandboxId};
use runtime::{ProcessHandle, RuntimeError};
use tokio::time::timeout;

use super::live::Live;
use crate::Use;
use crate::core::Core;

const SIGKILL: i32 = 9;
const SIGTERM: i32 = 15;

/// The longest that a process may take to stop.
const GRACE_MS_MAX: u64 = 3_600_000;
/// How long a process that was killed may take to be over.
const KILL_PATIENCE: Duration = Duration::from_secs(10);

/// Asks a process to stop, and kills it after a while.
pub(super) async fn stop(
    used: Use,
    live: Arc<Live>,
    grace_ms: u64,
) -> Result<ProcessRecord, Refusal> {
    let grace = Duration::from_millis(grace_ms.min(GRACE_MS_MAX));
    let core = Arc::clone(used.core());
    let handle = ask(&core, &live, EndAsked::Stop)?;
    let first = live.begins_to_stop();
    let stopping = async move {
        let told = async {
            if let Some(handle) = handle {
                // If it cannot be told, it is killed.
                let _ = handle.signal_tree(SIGTERM).await;
            }
            live.over().await;
        };
        if timeout(grace, told).await.is_err() {
            force(&core, &live, EndAsked::StopForced).await?;
        }
        drop(used);
        Ok(live.record())
    };
    // One who sees to it that it ends is enough; others only wait.
    if first { to_the_end(stopping).await } else { stopping.await }
}

/// Kills a process.
pub(super) async fn kill(used: Use, live: Arc<Live>) -> Result<ProcessRecord, Refusal> {
    live.handle()?;
    let core = Arc::clone(used.core());
    let killing = async move {
        force(&core, &live, EndAsked::Kill).await?;
        drop(used);
        Ok(live.record())
    };
    to_the_end(killing).await
}

/// Sends a signal to a process, or to everything that descends from it too.
pub(super) async fn signal(
    used: Use,
    live: Arc<Live>,
    signal: i32,
    tree: bool,
) -> Result<(), Refusal> {
    let core = Arc::clone(used.core());
    let (instance, process, asked) = (live.instance, live.id, EndAsked::Signal(signal));
    let telling = async move {
        let event = Event::ProcessEndAsked { instance, process, asked };
        core.ask(core.request(), event).await?;
        // Between two programs there is none to tell, and the kernel has decided what that means.
        if let Ok(Some(handle)) = live.handle() {
            if tree {
                handle.signal_tree(signal).await?;
            } else {
                handle.signal(signal).await?;
            }
        }
        drop(used);
        Ok(())
    };
    // What the kernel heard, the program hears too, also if the client goes away in between.
    to_the_end(telling).await
}

/// Tells the kernel what is asked of a process. Gives back the program to tell; none if it is between
/// two, of which the next is never started, or killed by the kernel as soon as it runs. That the
/// process is over already is refused.
fn ask(core: &Arc<Core>, live: &Live, asked: EndAsked) -> Result<Option<ProcessHandle>, Refusal> {
    live.handle()?;
    core.tell(Event::ProcessEndAsked { instance: live.instance, process: live.id, asked });
    Ok(live.handle().unwrap_or(None))
}

/// Kills the program of a process because the kernel says so. That none runs is done too; the task of
/// the process reports that the program is over.
pub(crate) async fn kill_program(
    core: &Core,
    sandbox: SandboxId,
    process: ProcessId,
) -> Result<(), RuntimeError> {
    let Some(live) = core.processes.live(sandbox, process) else { return Ok(()) };
    if let Ok(Some(handle)) = live.handle() {
        handle.signal_tree(SIGKILL).await?;
    }
    Ok(())
}

const LATE: &str = "it was killed and is not over yet";

/// Kills a process and waits until it is over.
async fn force(core: &Arc<Core>, live: &Live, how: EndAsked) -> Result<(), Refusal> {
    let killing = async {
        let Ok(handle) = ask(core, live, how) else { return Ok(()) };
        let killed = async {
            match handle {
                Some(handle) => handle.signal_tree(SIGKILL).await,
                None => Ok(()),
            }
        };
        tokio::select! {
            biased;
            () = live.over() => Ok(()),
            killed = killed => {
                killed?;
                live.over().await;
                Ok(())
            }
        }
    };
    timeout(KILL_PATIENCE, killing)
        .await
        .unwrap_or_else(|_| Err(Refusal::new(ErrorCode::DeadlineExceeded, LATE)))
}

/// Does something to its end, also if nobody waits for it.
async fn to_the_end<T: Send + 'static>(
    doing: impl Future<Output = Result<T, Refusal>> + Send + 'static,
) -> Result<T, Refusal> {
    tasks::spawn(doing).await.unwrap_or_else(|error| {
        Err(Refusal::new(ErrorCode::Internal, format!("a mistake of the server: {error}")))
    })
}

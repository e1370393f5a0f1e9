//! Ends processes: asked to stop and killed when they do not, killed at once, or killed because the
//! kernel says so. The kernel learns what a caller asked of a process and decides what follows; the
//! running program gets the signal too. A request is done when the process has ended, and goes on
//! without its client.

use std::sync::Arc;
use std::time::Duration;

use kernel::{EndRequest, Event};
use model::{ErrorCode, ProcessId, ProcessRecord, Refusal, SandboxId};
use runtime::{ProcessHandle, RuntimeError};
use tokio::time::timeout;

use super::live::Live;
use crate::Use;
use crate::core::Core;

const SIGKILL: i32 = 9;
const SIGTERM: i32 = 15;

/// The longest grace of a stop.
const GRACE_MS_MAX: u64 = 3_600_000;
/// How long a killed process may take to end.
const KILL_PATIENCE: Duration = Duration::from_secs(10);

/// Asks a process to stop, and kills it after its grace.
pub(super) async fn stop(
    used: Use,
    live: Arc<Live>,
    grace_ms: u64,
) -> Result<ProcessRecord, Refusal> {
    let grace = Duration::from_millis(grace_ms.min(GRACE_MS_MAX));
    let core = Arc::clone(used.core());
    let handle = ask(&core, &live, EndRequest::Stop)?;
    let first = live.begins_to_stop();
    let stopping = async move {
        let stopped = async {
            if let Some(handle) = handle {
                // If the signal cannot be sent, the process is killed.
                let _ = handle.signal_tree(SIGTERM).await;
            }
            live.ended().await;
        };
        if timeout(grace, stopped).await.is_err() {
            force(&core, &live, EndRequest::StopForced).await?;
        }
        drop(used);
        Ok(live.record())
    };
    // One caller ends the process; the others only wait.
    if first { run_to_completion(stopping).await } else { stopping.await }
}

/// Kills a process.
pub(super) async fn kill(used: Use, live: Arc<Live>) -> Result<ProcessRecord, Refusal> {
    live.handle()?;
    let core = Arc::clone(used.core());
    let killing = async move {
        force(&core, &live, EndRequest::Kill).await?;
        drop(used);
        Ok(live.record())
    };
    run_to_completion(killing).await
}

/// Sends a signal to a process, or also to all its descendants.
pub(super) async fn signal(
    used: Use,
    live: Arc<Live>,
    signal: i32,
    tree: bool,
) -> Result<(), Refusal> {
    let core = Arc::clone(used.core());
    let (instance, process, asked) = (live.instance, live.id, EndRequest::Signal(signal));
    let signalling = async move {
        let event = Event::ProcessEndRequested { instance, process, asked };
        core.ask(core.request(), event).await?;
        // Between two programs there is none to signal, and the kernel has decided what that means.
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
    // What the kernel learned, the program must get too, also if the client goes away in between.
    run_to_completion(signalling).await
}

/// Tells the kernel what a caller asked of a process. Returns the program to signal; none between
/// two programs, of which the next is never started, or killed by the kernel as soon as it runs.
/// Refused if the process has ended already.
fn ask(core: &Arc<Core>, live: &Live, asked: EndRequest) -> Result<Option<ProcessHandle>, Refusal> {
    live.handle()?;
    core.notify(Event::ProcessEndRequested { instance: live.instance, process: live.id, asked });
    Ok(live.handle().unwrap_or(None))
}

/// Kills the program of a process because the kernel says so. It is no error if none runs; the task
/// of the process reports that the program exited.
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

const LATE: &str = "the process was killed and has not ended yet";

/// Kills a process and waits until it has ended.
async fn force(core: &Arc<Core>, live: &Live, how: EndRequest) -> Result<(), Refusal> {
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
            () = live.ended() => Ok(()),
            killed = killed => {
                killed?;
                live.ended().await;
                Ok(())
            }
        }
    };
    timeout(KILL_PATIENCE, killing)
        .await
        .unwrap_or_else(|_| Err(Refusal::new(ErrorCode::DeadlineExceeded, LATE)))
}

/// Runs work to its end, also if its caller goes away.
async fn run_to_completion<T: Send + 'static>(
    doing: impl Future<Output = Result<T, Refusal>> + Send + 'static,
) -> Result<T, Refusal> {
    tasks::spawn(doing).await.unwrap_or_else(|error| {
        Err(Refusal::new(ErrorCode::Internal, format!("internal error: {error}")))
    })
}

//! Ending processes: asked to stop and killed when they do not, killed at once, or killed because
//! their time is over. It is done when the process is over, and goes on if nobody waits for it.

use std::sync::Arc;
use std::time::Duration;

use kernel::EndAsked;
use model::{ErrorCode, ProcessId, ProcessRecord, Refusal, SandboxId};
use runtime::RuntimeError;
use tokio::time::timeout;

use super::live::Live;
use super::{SIGKILL, SIGTERM};
use crate::Use;
use crate::core::Core;

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
    let handle = live.ask(EndAsked::Stop)?;
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
            force(&live, EndAsked::StopForced).await?;
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
    let killing = async move {
        force(&live, EndAsked::Kill).await?;
        drop(used);
        Ok(live.record())
    };
    to_the_end(killing).await
}

/// Kills a process whose time is over. That it is over already is done too; that it is over then is
/// told by its own task.
pub(crate) async fn kill_overdue(
    core: &Core,
    sandbox: SandboxId,
    process: ProcessId,
) -> Result<(), RuntimeError> {
    let Some(live) = core.processes.live(sandbox, process) else { return Ok(()) };
    if let Ok(Some(handle)) = live.ask(EndAsked::Timeout) {
        handle.signal_tree(SIGKILL).await?;
    }
    Ok(())
}

const LATE: &str = "it was killed and is not over yet";

/// Kills a process and waits until it is over.
async fn force(live: &Live, how: EndAsked) -> Result<(), Refusal> {
    let killing = async {
        let Ok(handle) = live.ask(how) else { return Ok(()) };
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

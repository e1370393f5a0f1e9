//! Stopping in order: the kernel stops refill and sweep, lets what runs finish, saves and ends
//! everything; then the runtimes and the store are closed. Nothing is left.

use std::sync::Arc;
use std::time::Duration;

use kernel::Event;
use model::{ErrorCode, Refusal};
use runtime::Runtime;
use tokio::time::{Instant, sleep, timeout};

use crate::Engine;
use crate::boxed;
use crate::core::unavailable;

/// How long removing everything may take when nothing runs any more.
const END_PATIENCE: Duration = Duration::from_secs(30);

/// How long one try to end a runtime may take, and what is waited before the next.
const END_TRY: Duration = Duration::from_secs(10);
const END_PAUSE: Duration = Duration::from_millis(100);

/// How long files of what ended may take to be gone; what is left is removed at the next start.
const TRASH_PATIENCE: Duration = Duration::from_secs(5);

/// How long the ends of processes may take to be stored.
const STORED_PATIENCE: Duration = Duration::from_secs(10);
const STORED_PAUSE: Duration = Duration::from_millis(5);

/// How long the store may be unable to write before what can no longer be written down is given up:
/// half of the grace, within these bounds.
const WRITE_PATIENCE_MIN: Duration = Duration::from_secs(2);
const WRITE_PATIENCE_MAX: Duration = Duration::from_secs(10);
/// How often it is looked whether something runs.
const RUNNING_PAUSE: Duration = Duration::from_millis(50);

const LATE: &str = "not everything ended in time; what was left was killed";

impl Engine {
    /// Stops the node. Done when nothing is left. What runs may finish within its grace.
    #[boxed]
    pub async fn shutdown(&self) -> Result<(), Refusal> {
        self.shutdown_within(self.core.shutdown_grace_ms).await
    }

    /// Stops the node without waiting for what runs.
    #[boxed]
    pub async fn shutdown_now(&self) -> Result<(), Refusal> {
        self.shutdown_within(0).await
    }

    async fn shutdown_within(&self, grace_ms: u64) -> Result<(), Refusal> {
        let core = &self.core;
        core.tell(Event::ShutdownBegan { grace_ms });
        let mut stopped = core.stopped.subscribe();
        let patience = Duration::from_millis(grace_ms) + END_PATIENCE;
        let drained = tokio::select! {
            biased;
            drained = timeout(patience, stopped.wait_for(|stopped| *stopped)) => {
                drained.is_ok().then_some(()).ok_or_else(|| late(LATE))
            }
            cause = self.cannot_be_written(grace_ms) => Err(unavailable(&cause)),
        };
        let stored_patience = if self.core.trouble.now().is_none() {
            STORED_PATIENCE
        } else {
            // Nothing will be stored.
            Duration::ZERO
        };
        // What could not be drained is ended by force: a runtime owns what it launched.
        let mut failed = None;
        for runtime in core.runtimes.iter() {
            failed = end(&**runtime).await.err().or(failed);
        }
        core.disk.wait_until_removed(TRASH_PATIENCE).await;
        // The ends of processes are told first and stored behind.
        let stored = async {
            while !core.processes.are_at_rest() {
                sleep(STORED_PAUSE).await;
            }
        };
        if timeout(stored_patience, stored).await.is_err() {
            tracing::warn!("not everything that is known of processes was stored");
        }
        core.halt();
        match timeout(END_PATIENCE, core.store.close()).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => failed = Some(unavailable(&error.to_string())),
            Err(_) => failed = Some(late("the store was not closed in time")),
        }
        drained?;
        failed.map_or(Ok(()), Err)
    }

    /// Nothing can be ended in order while nothing can be written down, for want of space say. What
    /// runs may finish within its grace; then there is nothing to wait for.
    async fn cannot_be_written(&self, grace_ms: u64) -> Arc<str> {
        let core = &self.core;
        let (began, grace) = (Instant::now(), Duration::from_millis(grace_ms));
        let patience = (grace / 2).clamp(WRITE_PATIENCE_MIN, WRITE_PATIENCE_MAX);
        loop {
            let cause = core.trouble.lasting(patience).await;
            while core.trouble.now().is_some() {
                if began.elapsed() >= grace || self.stats().running == 0 {
                    return cause;
                }
                sleep(RUNNING_PAUSE).await;
            }
        }
    }
}

/// Ends a runtime, by more than one try if need be: it meets what nobody could end before.
async fn end(runtime: &dyn Runtime) -> Result<(), Refusal> {
    let began = Instant::now();
    loop {
        let failed = match timeout(END_TRY, runtime.shutdown()).await {
            Ok(Ok(())) => return Ok(()),
            Ok(Err(error)) => Refusal::from(error),
            Err(_) => late("a runtime did not stop in time"),
        };
        if began.elapsed() >= END_PATIENCE {
            return Err(failed);
        }
        sleep(END_PAUSE).await;
    }
}

fn late(cause: &'static str) -> Refusal {
    Refusal::new(ErrorCode::DeadlineExceeded, cause)
}

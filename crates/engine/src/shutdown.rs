//! Stops the node in order: the kernel stops the refill and the idle sweep, lets running work
//! finish, saves and ends everything; then the runtimes and the store are closed. No process is
//! left.

use std::sync::Arc;
use std::time::Duration;

use kernel::Event;
use model::{ErrorCode, Refusal};
use runtime::Runtime;
use tokio::time::{Instant, sleep, timeout};

use crate::core::unavailable;
use crate::{Engine, boxed, metering};

/// How long the removal may take when no work runs any more.
const END_PATIENCE: Duration = Duration::from_secs(30);

/// How long one try to end a runtime may take, and the pause before the next.
const END_TRY: Duration = Duration::from_secs(10);
const END_PAUSE: Duration = Duration::from_millis(100);

/// How long the files of ended sandboxes may take to go; the next start removes the rest.
const TRASH_PATIENCE: Duration = Duration::from_secs(5);

/// How long the ends of processes may take to be stored.
const STORED_PATIENCE: Duration = Duration::from_secs(10);
const STORED_PAUSE: Duration = Duration::from_millis(5);

/// How long the store may fail before what cannot be journalled is given up: half of the grace,
/// within these bounds.
const WRITE_PATIENCE_MIN: Duration = Duration::from_secs(2);
const WRITE_PATIENCE_MAX: Duration = Duration::from_secs(10);
/// How often to look whether work still runs.
const RUNNING_PAUSE: Duration = Duration::from_millis(50);

const LATE: &str = "some sandboxes did not end in time and were killed";

impl Engine {
    /// Stops the node; done when nothing is left. Running work may finish within its grace.
    #[boxed]
    pub async fn shutdown(&self) -> Result<(), Refusal> {
        self.shutdown_within(self.core.shutdown_grace_ms).await
    }

    /// Stops the node without waiting for running work.
    #[boxed]
    pub async fn shutdown_now(&self) -> Result<(), Refusal> {
        self.shutdown_within(0).await
    }

    async fn shutdown_within(&self, grace_ms: u64) -> Result<(), Refusal> {
        let core = &self.core;
        core.notify(Event::ShutdownBegan { grace_ms });
        let mut stopped = core.stopped.subscribe();
        let patience = Duration::from_millis(grace_ms) + END_PATIENCE;
        let drained = tokio::select! {
            biased;
            drained = timeout(patience, stopped.wait_for(|stopped| *stopped)) => {
                drained.is_ok().then_some(()).ok_or_else(|| late(LATE))
            }
            cause = self.cannot_be_written(grace_ms) => Err(unavailable(&cause)),
        };
        let stored_patience = if self.core.journal_health.failure().is_none() {
            STORED_PATIENCE
        } else {
            // Nothing can be stored.
            Duration::ZERO
        };
        // What could not be drained is ended by force: a runtime owns its instances.
        let mut failed = None;
        for runtime in core.runtimes.iter() {
            failed = end(&**runtime).await.err().or(failed);
        }
        core.disk.wait_until_removed(TRASH_PATIENCE).await;
        // The ends of processes are stored behind what happens.
        let stored = async {
            while !core.processes.are_idle() {
                sleep(STORED_PAUSE).await;
            }
        };
        if timeout(stored_patience, stored).await.is_err() {
            tracing::warn!("the last changes of some processes were not stored in time");
        }
        // All sandboxes have ended; a store that cannot be written gets no second chance.
        if timeout(stored_patience, metering::measure(core, Duration::ZERO)).await.is_err() {
            tracing::warn!("the last usage of keys was not stored in time");
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

    /// Nothing can be ended in order while the journal cannot be written, for want of space for
    /// example. Running work may finish within its grace; then there is nothing to wait for.
    async fn cannot_be_written(&self, grace_ms: u64) -> Arc<str> {
        let core = &self.core;
        let (began, grace) = (Instant::now(), Duration::from_millis(grace_ms));
        let patience = (grace / 2).clamp(WRITE_PATIENCE_MIN, WRITE_PATIENCE_MAX);
        loop {
            let cause = core.journal_health.failed_for(patience).await;
            while core.journal_health.failure().is_some() {
                if began.elapsed() >= grace || self.stats().running == 0 {
                    return cause;
                }
                sleep(RUNNING_PAUSE).await;
            }
        }
    }
}

/// Ends a runtime, with several tries: it may meet instances that could not be ended before.
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

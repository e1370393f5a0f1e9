//! Stopping in order: the kernel stops refill and sweep, lets what runs finish, saves and ends
//! everything; then the runtimes and the store are closed. Nothing is left.

use std::time::Duration;

use kernel::Event;
use model::{ErrorCode, Refusal};
use tokio::time::{sleep, timeout};

use crate::Engine;
use crate::core::unavailable;

/// How long removing everything may take when nothing runs any more.
const END_PATIENCE: Duration = Duration::from_secs(30);

/// How long files of what ended may take to be gone; what is left is removed at the next start.
const TRASH_PATIENCE: Duration = Duration::from_secs(5);

/// How long the ends of processes may take to be stored.
const STORED_PATIENCE: Duration = Duration::from_secs(10);
const STORED_PAUSE: Duration = Duration::from_millis(5);

impl Engine {
    /// Stops the node. Done when nothing is left. What runs may finish within its grace.
    pub async fn shutdown(&self) -> Result<(), Refusal> {
        self.shutdown_within(self.core.shutdown_grace_ms).await
    }

    /// Stops the node without waiting for what runs.
    pub async fn shutdown_now(&self) -> Result<(), Refusal> {
        self.shutdown_within(0).await
    }

    async fn shutdown_within(&self, grace_ms: u64) -> Result<(), Refusal> {
        let core = &self.core;
        core.tell(Event::ShutdownBegan { grace_ms });
        let mut stopped = core.stopped.subscribe();
        let patience = Duration::from_millis(grace_ms) + END_PATIENCE;
        let drained = timeout(patience, stopped.wait_for(|stopped| *stopped)).await;
        // What could not be drained is ended by force: a runtime owns what it launched.
        let mut failed = None;
        for runtime in core.runtimes.iter() {
            match timeout(END_PATIENCE, runtime.shutdown()).await {
                Ok(Ok(())) => {}
                Ok(Err(error)) => failed = Some(Refusal::from(error)),
                Err(_) => failed = Some(late("a runtime did not stop in time")),
            }
        }
        core.disk.wait_until_removed(TRASH_PATIENCE).await;
        // The ends of processes are told first and stored behind.
        let stored = async {
            while !core.processes.are_at_rest() {
                sleep(STORED_PAUSE).await;
            }
        };
        if timeout(STORED_PATIENCE, stored).await.is_err() {
            tracing::warn!("not everything that is known of processes was stored");
        }
        core.halt();
        match timeout(END_PATIENCE, core.store.close()).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => failed = Some(unavailable(&error.to_string())),
            Err(_) => failed = Some(late("the store was not closed in time")),
        }
        if drained.is_err() {
            return Err(late("not everything ended in time; what was left was killed"));
        }
        failed.map_or(Ok(()), Err)
    }
}

fn late(cause: &'static str) -> Refusal {
    Refusal::new(ErrorCode::DeadlineExceeded, cause)
}

//! Work on threads that may block: a few at a time, in order, each to its end.

use std::sync::Arc;

use tokio::runtime::Handle;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::error::{StoreError, StoreErrorCode};

/// Waits for a turn, in the order in which turns were asked for.
pub(super) async fn turn(turns: &Arc<Semaphore>) -> Result<OwnedSemaphorePermit, StoreError> {
    Arc::clone(turns).acquire_owned().await.map_err(|_| StoreError::closed())
}

/// Runs on a thread that may block, to its end, even if the caller is gone.
pub(super) async fn on_blocking_thread<T: Send + 'static>(
    run: impl FnOnce() -> Result<T, StoreError> + Send + 'static,
) -> Result<T, StoreError> {
    let Ok(runtime) = Handle::try_current() else { return run() };
    match runtime.spawn_blocking(run).await {
        Ok(done) => done,
        Err(error) => {
            Err(StoreError::new(StoreErrorCode::Io, format!("on another thread: {error}")))
        }
    }
}

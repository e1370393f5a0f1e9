//! Where the memory for collected output is counted. The one who asks for a program to be run says
//! who counts; this never decides how much is enough.

use std::sync::Arc;

/// Counts the memory of output.
pub trait OutputRoom: Send + Sync + 'static {
    /// Whether there is room to keep these bytes too. What was taken stays taken.
    fn take(&self, output: &[u8]) -> bool;
}

tokio::task_local! {
    static ROOM: Arc<dyn OutputRoom>;
}

/// Does something whose collected output is counted here.
pub async fn scope<T>(room: Arc<dyn OutputRoom>, doing: impl Future<Output = T>) -> T {
    ROOM.scope(room, doing).await
}

/// Whether the output may be kept. Without anyone who counts it may.
pub(crate) fn take(output: &[u8]) -> bool {
    ROOM.try_with(|room| room.take(output)).unwrap_or(true)
}

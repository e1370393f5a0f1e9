//! Starts tasks. `tokio::spawn` compiles its code anew for every type of future, and for each of
//! its two schedulers: 5 KB each. Here a future is boxed first, so that code exists once per result
//! type. A box is an allocation, so the paths of every acquire and every exec call tokio itself.

use std::pin::Pin;

use tokio::task::JoinHandle;

/// Like `tokio::spawn`.
#[track_caller]
pub fn spawn<T: Send + 'static>(future: impl Future<Output = T> + Send + 'static) -> JoinHandle<T> {
    let boxed: Pin<Box<dyn Future<Output = T> + Send>> = Box::pin(future);
    tokio::spawn(boxed)
}

/// Like `tokio::task::spawn_blocking`.
#[track_caller]
pub fn spawn_blocking<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> JoinHandle<T> {
    let boxed: Box<dyn FnOnce() -> T + Send> = Box::new(work);
    tokio::task::spawn_blocking(boxed)
}

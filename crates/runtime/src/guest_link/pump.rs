//! The task that reads a connection until it ends, and then finds out why it did.

use std::cell::RefCell;
use std::future::poll_fn;
use std::sync::Arc;
use std::task::Poll;

use tokio::time::timeout;

use super::connection::{Connection, Pumped};
use crate::error::{RuntimeError, RuntimeErrorCode};

const READ_BYTES: usize = 64 * 1024;

thread_local! {
    /// One buffer per thread instead of one per connection: thousands of those are idle.
    static SCRATCH: RefCell<Vec<u8>> = RefCell::new(vec![0; READ_BYTES]);
}

/// Serves a connection until it ends. Then all waiting callers fail with the reason.
pub(super) async fn run(connection: Arc<Connection>) {
    let broken = poll_fn(|cx| {
        let pumped = SCRATCH.with_borrow_mut(|scratch| connection.poll_pump(cx, scratch));
        match pumped {
            Pumped::Idle => Poll::Pending,
            Pumped::Busy => {
                cx.waker().wake_by_ref();
                Poll::Pending
            }
            Pumped::Ended => Poll::Ready(None),
            Pumped::Broken(error) => {
                let cause = format!("the guest broke the protocol: {error}");
                Poll::Ready(Some(RuntimeError::new(RuntimeErrorCode::Protocol, "", cause)))
            }
            Pumped::Refused(error) => {
                let cause = format!("sending to the guest failed: {error}");
                let error =
                    RuntimeError { cause: cause.into(), ..RuntimeError::system("", &error) };
                Poll::Ready(Some(error))
            }
        }
    })
    .await;
    connection.surroundings.broken();
    if let Some(error) = broken {
        connection.fail(error);
        return;
    }
    let death = connection.surroundings.death();
    let reason = match timeout(connection.settings.reason_timeout, death).await {
        Ok(died) => died.error(""),
        Err(_) => {
            RuntimeError::new(RuntimeErrorCode::SandboxGone, "", "the guest closed the connection")
        }
    };
    connection.fail(reason);
}

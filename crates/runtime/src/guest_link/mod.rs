//! The host's side of the connection to a guest: one socket, many calls at once.
//!
//! Whoever calls writes to the socket itself; one task per connection reads it and wakes whom it
//! concerns, so that a call costs no hop between tasks on its way out and one on its way back. A
//! call that is dropped in the middle is taken back on the other side too. Buffers are bounded by
//! the windows of the protocol: a stream that nobody reads holds up no other. When the connection
//! breaks, everything that waits is told why.

mod call;
mod calls;
mod channel;
mod connection;
mod files;
mod inspection;
mod lanes;
mod pipes;
mod programs;
mod pump;
#[cfg(test)]
mod tests;
mod wire;

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;

use self::connection::Connection;
use crate::deaths::Died;
use crate::error::{RuntimeError, RuntimeErrorCode};
use crate::inside::ScaleNote;

/// How a connection is used.
#[derive(Debug, Clone, Copy)]
pub struct LinkSettings {
    /// How long the guest may take to answer a call, or to take or give bytes of a file.
    pub call_timeout: Duration,
    /// How long to wait for the reason when the connection breaks.
    pub reason_timeout: Duration,
    /// Whether descriptors can be passed: then the streams of programs bypass the connection.
    pub pass_descriptors: bool,
}

impl Default for LinkSettings {
    fn default() -> Self {
        Self {
            call_timeout: Duration::from_secs(10),
            reason_timeout: Duration::from_millis(200),
            pass_descriptors: true,
        }
    }
}

/// What else is known about the sandbox at the other end.
#[async_trait]
pub trait Surroundings: Send + Sync {
    /// Whether the kernel killed something in it for want of memory since this was last asked.
    fn memory_ran_out(&self) -> bool;

    /// Programs wrote to the scale file.
    fn scale_written(&self, note: ScaleNote) {
        let _ = note;
    }

    /// The connection is at its end: nothing works any more.
    fn broken(&self) {}

    /// How it ended. The connection is broken already, so this should be known soon.
    async fn death(&self) -> Died;
}

/// The connection to one guest. Dropped, it is closed, which ends the guest.
pub struct GuestLink {
    connection: Arc<Connection>,
}

impl GuestLink {
    /// Takes over the host's end of a connection. Must be called inside a tokio runtime.
    pub fn new(
        socket: OwnedFd,
        settings: LinkSettings,
        surroundings: Arc<dyn Surroundings>,
    ) -> Result<Self, RuntimeError> {
        let connection = Connection::new(socket, settings, surroundings)
            .map_err(|error| RuntimeError::system("watch the connection to the guest", &error))?;
        let connection = Arc::new(connection);
        tokio::spawn(pump::run(Arc::clone(&connection)));
        Ok(Self { connection })
    }

    /// The guest says that it is ready, or why it is not.
    pub async fn ready(&self) -> Result<(), RuntimeError> {
        std::future::poll_fn(|cx| self.connection.poll_ready(cx)).await
    }

    /// Its use is over, and the sandbox somebody else's: whatever waits is told so, and the connection
    /// is closed.
    pub fn retire(&self) {
        let cause = "its use is over";
        self.connection.fail(RuntimeError::new(RuntimeErrorCode::SandboxGone, "", cause));
    }

    /// The sandbox is over: whatever waits is told so, and the connection is closed.
    pub fn fail(&self, died: &Died) {
        self.connection.fail(died.error(""));
    }
}

impl Drop for GuestLink {
    fn drop(&mut self) {
        self.connection.fail(RuntimeError::new(
            RuntimeErrorCode::SandboxGone,
            "",
            "the connection was closed",
        ));
    }
}

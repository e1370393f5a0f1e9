//! The host's side of the connection to a guest: one socket, many calls at once.
//!
//! A caller writes to the socket itself; one task per connection reads it and wakes the callers. So
//! a call costs no hop between tasks on its way out and one on its way back. A call that is dropped
//! in the middle is cancelled on the other side, too. The windows of the protocol bound the
//! buffers: a stream that is not read must not hold up another. When the connection breaks, all
//! waiting callers fail with the reason.

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

/// Settings of a connection.
#[derive(Debug, Clone, Copy)]
pub struct LinkSettings {
    /// How long the guest may take to answer a call, or to take or give bytes of a file.
    pub call_timeout: Duration,
    /// How long to wait for the sandbox's exit status when the connection breaks.
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

/// What the runtime knows about the sandbox at the other end.
#[async_trait]
pub trait Surroundings: Send + Sync {
    /// Whether the Linux kernel killed something in it for want of memory since the last call.
    fn memory_ran_out(&self) -> bool;

    /// Programs wrote to the scale file.
    fn scale_written(&self, note: ScaleNote) {
        let _ = note;
    }

    /// The connection has ended: no call works from now on.
    fn broken(&self) {}

    /// How the sandbox exited. The connection is broken already, so this should be known soon.
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

    /// Waits until the guest reports that it is ready, or why it is not.
    pub async fn ready(&self) -> Result<(), RuntimeError> {
        std::future::poll_fn(|cx| self.connection.poll_ready(cx)).await
    }

    /// The use has ended, and the sandbox may have another user: waiting callers fail, and the
    /// connection is closed.
    pub fn retire(&self) {
        let cause = "the use of the sandbox has ended";
        self.connection.fail(RuntimeError::new(RuntimeErrorCode::SandboxGone, "", cause));
    }

    /// The sandbox has exited: waiting callers fail, and the connection is closed.
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

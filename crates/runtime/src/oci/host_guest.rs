//! The binary of the guest on the host: it does in a process of its own what a server with threads
//! cannot do in itself.

use std::io;
use std::os::fd::{AsRawFd as _, OwnedFd};

use tokio::process::Command;

/// The binary, as a file in memory that nobody can change.
#[derive(Debug)]
pub(super) struct HostGuest {
    image: OwnedFd,
}

impl HostGuest {
    pub(super) fn new() -> io::Result<Self> {
        Ok(Self { image: guest_image::memfd()? })
    }

    /// Starts it, in an environment in which programs are found and nothing else.
    pub(super) fn command(&self) -> Command {
        // Of whoever is about to become it: it has our descriptors until then.
        let mut command = Command::new(format!("/proc/self/fd/{}", self.image.as_raw_fd()));
        command
            .env_clear()
            .env("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin");
        command
    }
}

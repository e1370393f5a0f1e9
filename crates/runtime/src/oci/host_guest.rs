//! The guest's binary, run on the host: it does in a process of its own what a server with threads
//! cannot do in itself (namespaces and mounts).

use std::io;
use std::os::fd::{AsRawFd as _, OwnedFd};

use tokio::process::Command;

/// The binary, as a sealed file in memory.
#[derive(Debug)]
pub(super) struct HostGuest {
    image: OwnedFd,
}

impl HostGuest {
    pub(super) fn new() -> io::Result<Self> {
        Ok(Self { image: guest_image::memfd()? })
    }

    /// A command that runs it, with an environment of only `PATH`.
    pub(super) fn command(&self) -> Command {
        // `self` is the forked child, which has our descriptors until it executes the binary.
        let mut command = Command::new(format!("/proc/self/fd/{}", self.image.as_raw_fd()));
        command
            .env_clear()
            .env("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin");
        command
    }
}

//! The guest: it serves one connection, in one thread, and waits only for its descriptors. It must
//! never block on anything that a program inside can influence, and must hold little memory while
//! idle: there is one in every sandbox.

mod activity;
mod connection;
mod dial;
mod end_all;
mod environment;
mod family;
mod fault;
mod files;
mod guest;
mod io;
mod look;
mod ports;
mod program;
mod ready;
mod requests;
mod scale;
mod start;
mod stream;

use std::fmt;
use std::os::fd::OwnedFd;
use std::process::ExitCode;

use guest_protocol::message::{GUEST_CHANNEL, Reply};
use guest_protocol::{Endpoint, ProtocolError};
use jail::seccomp::Program;
pub(crate) use jail::sys::spawn::Identity;
use rustix::io::Errno;

/// The surroundings in which this guest serves.
#[derive(Debug)]
pub(crate) struct Settings {
    /// The user of programs and of file access; `None` means this process' own.
    pub(crate) workload: Option<Identity>,
    /// Where programs start and relative paths begin. An absolute path that is resolved each time,
    /// because a mount may appear there later.
    pub(crate) workspace: String,
    /// The scale file, if there is one.
    pub(crate) scale: Option<ScaleSettings>,
    /// In a container that an external runtime made: the filter that programs load last, because
    /// they run as the same user as the guest.
    pub(crate) contained: Option<Program>,
}

/// Where the scale file is, and what it needs.
#[derive(Debug)]
pub(crate) struct ScaleSettings {
    /// Its directory.
    pub(crate) directory: String,
    /// The kernel's table of locks. It also shows locks of other sandboxes, so it is hidden from
    /// programs, and where nothing opened it before that, the guest has none either.
    pub(crate) locks: Option<OwnedFd>,
}

/// The connection of the guest to its host.
#[derive(Debug)]
pub(crate) enum Link {
    /// A stream socket, which can pass descriptors.
    Socket(OwnedFd),
    /// Two non-blocking pipes, which pass bytes only.
    Pipes {
        /// From the host.
        reader: OwnedFd,
        /// To the host.
        writer: OwnedFd,
    },
}

/// Why the guest stops serving.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ExitReason {
    /// The host has closed the connection, which ends the sandbox.
    Closed,
    /// The host broke the protocol.
    Protocol(ProtocolError),
    /// The kernel refused a call without which the guest cannot serve.
    System {
        /// The step that failed.
        step: &'static str,
        /// The kernel's error.
        errno: Errno,
    },
}

impl ExitReason {
    /// The exit code of the process.
    pub(crate) fn exit_code(&self) -> ExitCode {
        match self {
            Self::Closed => ExitCode::SUCCESS,
            Self::Protocol(_) => ExitCode::from(3),
            Self::System { .. } => ExitCode::from(4),
        }
    }
}

impl fmt::Display for ExitReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Closed => f.write_str("the connection was closed"),
            Self::Protocol(error) => write!(f, "the protocol was broken: {error}"),
            Self::System { step, errno } => write!(f, "{step}: {errno}"),
        }
    }
}

impl From<ProtocolError> for ExitReason {
    fn from(error: ProtocolError) -> Self {
        Self::Protocol(error)
    }
}

/// Names the step at which the kernel refused.
trait Named<T> {
    fn named(self, step: &'static str) -> Result<T, ExitReason>;
}

impl<T> Named<T> for Result<T, Errno> {
    fn named(self, step: &'static str) -> Result<T, ExitReason> {
        self.map_err(|errno| ExitReason::System { step, errno })
    }
}

/// Says `Ready` on the connection and serves it until it is closed or broken.
pub(crate) fn serve(link: Link, settings: Settings) -> ExitReason {
    match guest::Guest::start(link, settings).and_then(guest::Guest::run) {
        Ok(never) => match never {},
        Err(reason) => reason,
    }
}

/// Reports on the connection why the guest cannot serve.
pub(crate) fn refuse(link: &Link, step: String, errno: i32) {
    let mut endpoint = Endpoint::accepting();
    if endpoint.send(GUEST_CHANNEL, &Reply::SetupFailed { step, errno }).is_ok() {
        // If the host does not receive it, it sees that the connection is closed.
        let _ = connection::put(link, endpoint.outgoing());
    }
}

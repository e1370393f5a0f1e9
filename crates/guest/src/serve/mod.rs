//! The guest at work: it serves one connection, in one thread, without ever waiting for anything
//! but its descriptors. It must never block on what a program inside can influence, and hold little
//! memory while nothing happens: there is one in every sandbox.

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

/// What the place is like in which this guest serves.
#[derive(Debug, Clone)]
pub(crate) struct Settings {
    /// Whom programs run as, and files are accessed as; none: as this process.
    pub(crate) workload: Option<Identity>,
    /// Where programs start and relative paths begin. An absolute path, looked up each time,
    /// because something may be mounted there later.
    pub(crate) workspace: String,
    /// The directory for the scale file, if there is to be one.
    pub(crate) scale: Option<String>,
    /// In a container of somebody else's making: what programs load last, because they are the same
    /// user as the guest there.
    pub(crate) contained: Option<Program>,
}

/// What connects the guest to its host.
#[derive(Debug)]
pub(crate) enum Link {
    /// A stream socket. Descriptors may come along.
    Socket(OwnedFd),
    /// Two pipes that do not block, which pass bytes alone.
    Pipes {
        /// From the host.
        reader: OwnedFd,
        /// To the host.
        writer: OwnedFd,
    },
}

/// Why serving is over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ExitReason {
    /// The host has closed the connection: the sandbox is over.
    Closed,
    /// The host broke the protocol.
    Protocol(ProtocolError),
    /// The kernel refused something without which there is no serving.
    System {
        /// What was being done.
        step: &'static str,
        /// What the kernel said.
        errno: Errno,
    },
}

impl ExitReason {
    /// What the process ends with.
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

/// Says on the connection why there is nobody to serve it.
pub(crate) fn refuse(link: &Link, step: String, errno: i32) {
    let mut endpoint = Endpoint::accepting();
    if endpoint.send(GUEST_CHANNEL, &Reply::SetupFailed { step, errno }).is_ok() {
        // Whoever does not hear it sees that nobody is there.
        let _ = connection::put(link, endpoint.outgoing());
    }
}

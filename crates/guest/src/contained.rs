//! The guest as the first process of a container that an external runtime made. It does to itself
//! what the launcher does to native sandboxes: no process may look into it, nothing it starts can
//! gain privileges, and the same filter holds for it and for all programs. Programs run as the same
//! user as the guest, so they load a second filter that protects the guest. It must never serve if
//! one of these steps fails.

use std::ffi::CString;
use std::io;
use std::os::fd::{AsFd as _, AsRawFd as _, OwnedFd};
use std::process::ExitCode;

use jail::plan::{SCALE, WORKSPACE};
use jail::seccomp::{Policy, Program, compile};
use jail::sys;
use rustix::fs::{Mode, OFlags, open};
use rustix::io::{fcntl_dupfd_cloexec, ioctl_fionbio};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};
use rustix::process::{DumpableBehavior, chdir, set_dumpable_behavior};
use rustix::stdio::{dup2_stderr, dup2_stdin, dup2_stdout, stderr, stdin, stdout};
use rustix::thread::{SecureComputingMode, secure_computing_mode, set_no_new_privs};

use crate::serve::{Link, ScaleSettings, Settings, refuse, serve};

/// Descriptors that stay open are never 0, 1 or 2: those three are `/dev/null`.
const FIRST_FREE: i32 = 3;

/// A step that could not be done.
struct Failed {
    step: &'static str,
    source: io::Error,
}

fn named<T>(step: &'static str, result: Result<T, impl Into<io::Error>>) -> Result<T, Failed> {
    result.map_err(|source| Failed { step, source: source.into() })
}

/// Whether the guest starts for the first time in this process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum StartKind {
    /// The first start.
    First,
    /// A restart in the same process: the filter is loaded already.
    Restart,
}

/// The role from start to end. `link` is `stdin` (a socket), `stdio` (two pipes), `unix:PATH` or
/// `fd:NUMBER`.
pub(crate) fn main(link: &str, kind: StartKind) -> ExitCode {
    let _ = rustix::thread::set_name(c"shoal-guest");
    // Without a connection there is no host to report to.
    let Ok(link) = open_link(link) else { return ExitCode::from(2) };
    match settle(&link, kind) {
        Ok(filter) => {
            let settings = Settings {
                workload: None,
                workspace: WORKSPACE.to_owned(),
                scale: Some(ScaleSettings { directory: SCALE.to_owned(), locks: None }),
                contained: Some(filter),
            };
            serve(link, settings).exit_code()
        }
        Err(Failed { step, source }) => {
            refuse(&link, step.to_owned(), source.raw_os_error().unwrap_or(0));
            ExitCode::from(5)
        }
    }
}

/// Does to this process what must be done before anything else runs. Returns the filter for
/// programs.
fn settle(link: &Link, kind: StartKind) -> Result<Program, Failed> {
    named("become undumpable", set_dumpable_behavior(DumpableBehavior::NotDumpable))?;
    named("no new privileges", set_no_new_privs(true))?;
    // Leave the working directory of the container, so that it is not kept busy.
    named("go to the root", chdir("/"))?;
    named("/dev/null", hold_null())?;
    named("close what was inherited", keep_only(link))?;
    named("load system call filter", confine(kind))?;
    named("compile the filter", compile(&Policy::same_user_as_guest()).map_err(io::Error::other))
}

/// A filter can never be removed, and each loaded filter makes every system call slower.
fn confine(kind: StartKind) -> io::Result<()> {
    match kind {
        StartKind::First => {
            let filter = compile(&Policy::sandbox()).map_err(io::Error::other)?;
            sys::filter::load(filter.instructions())
        }
        StartKind::Restart => match secure_computing_mode()? {
            SecureComputingMode::Filter => Ok(()),
            SecureComputingMode::Disabled | SecureComputingMode::Strict => {
                Err(io::ErrorKind::PermissionDenied.into())
            }
        },
    }
}

/// Starts the guest again with this connection. Returns only on failure.
pub(crate) fn restart(connection: &OwnedFd) -> io::Error {
    if let Err(error) = sys::descriptors::inherit_only(connection.as_fd()) {
        return error;
    }
    let Ok(link) = CString::new(format!("fd:{}", connection.as_raw_fd())) else {
        return io::ErrorKind::InvalidInput.into();
    };
    sys::exec::exec_self(&[c"shoal-guest", c"contained", &link, c"again"])
}

/// The standard streams from the runtime are the connection, or must not be used.
fn hold_null() -> io::Result<()> {
    let null = open("/dev/null", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?;
    dup2_stdin(&null)?;
    dup2_stdout(&null)?;
    Ok(dup2_stderr(&null)?)
}

/// The process that started us may have left more descriptors open than it meant to.
fn keep_only(link: &Link) -> io::Result<()> {
    let mut kept = vec![stdin(), stdout(), stderr()];
    match link {
        Link::Socket(socket) => kept.push(socket.as_fd()),
        Link::Pipes { reader, writer } => kept.extend([reader.as_fd(), writer.as_fd()]),
    }
    sys::descriptors::keep_only(&kept)
}

fn open_link(link: &str) -> io::Result<Link> {
    match link {
        "stdin" => Ok(Link::Socket(fcntl_dupfd_cloexec(stdin(), FIRST_FREE)?)),
        "stdio" => {
            let reader = fcntl_dupfd_cloexec(stdin(), FIRST_FREE)?;
            let writer = fcntl_dupfd_cloexec(stdout(), FIRST_FREE)?;
            ioctl_fionbio(&reader, true)?;
            ioctl_fionbio(&writer, true)?;
            Ok(Link::Pipes { reader, writer })
        }
        other => match other.split_once(':') {
            Some(("unix", path)) => dial(path).map(Link::Socket),
            Some(("fd", number)) => inherited(number).map(Link::Socket),
            Some(_) | None => Err(io::ErrorKind::InvalidInput.into()),
        },
    }
}

fn dial(path: &str) -> io::Result<OwnedFd> {
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    connect(&socket, &SocketAddrUnix::new(path)?)?;
    Ok(fcntl_dupfd_cloexec(socket, FIRST_FREE)?)
}

fn inherited(number: &str) -> io::Result<OwnedFd> {
    let number = number.parse().map_err(|_| io::ErrorKind::InvalidInput)?;
    let socket = sys::descriptors::take(number)?;
    Ok(fcntl_dupfd_cloexec(socket, FIRST_FREE)?)
}

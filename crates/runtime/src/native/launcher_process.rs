//! The launcher as a child process: started before the server has threads, reaped when it ends.

use std::ffi::CStr;
use std::fs::Permissions;
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open};

use super::config::NativeConfig;
use crate::child_exit::ChildExit;
use crate::error::{RuntimeError, RuntimeErrorCode};

/// The launcher's arguments.
const ARGUMENTS: [&CStr; 2] = [c"shoal-launcher", c"launcher"];

/// How long the launcher may take to remove what it made after its socket is closed.
const END_PATIENCE: Duration = Duration::from_secs(20);

/// A launcher that was started. It needs neither threads nor tokio, so that the server can start it
/// before it has any.
#[derive(Debug)]
pub struct LauncherProcess {
    pub(super) config: NativeConfig,
    pub(super) socket: OwnedFd,
    pub(super) pid: Pid,
}

impl LauncherProcess {
    /// Starts a launcher from the embedded binary.
    pub fn start(config: NativeConfig) -> Result<Self, RuntimeError> {
        let failed = |step: &'static str| {
            move |error: std::io::Error| RuntimeError {
                code: RuntimeErrorCode::LaunchFailed,
                ..RuntimeError::system(step, &error)
            }
        };
        std::fs::create_dir_all(&config.run_directory).map_err(failed("make the run directory"))?;
        if let Some(workspaces) = &config.workspaces {
            make_closed(workspaces).map_err(failed("make the workspace directory"))?;
        }
        let bytes = postcard::to_allocvec(&config.for_launcher()).map_err(|error| {
            RuntimeError::new(
                RuntimeErrorCode::Invalid,
                "write the launcher's configuration",
                error.to_string(),
            )
        })?;
        let settings = guest_image::sealed("shoal-launcher-config", &bytes)
            .map_err(failed("hand the launcher its configuration"))?;
        let image = guest_image::memfd().map_err(failed("unpack the launcher"))?;
        let (socket, theirs) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
                .map_err(|error| failed("make the launcher's socket")(error.into()))?;
        let passed = [theirs.as_fd(), settings.as_fd()];
        let pid = jail::sys::exec::start(image.as_fd(), &ARGUMENTS, &passed)
            .map_err(failed("start the launcher"))?;
        Ok(Self { config, socket, pid })
    }
}

/// Reaps a launcher whose socket is closed. Kills it if it does not end in time. Blocks.
pub(super) fn reap(pid: Pid) -> ChildExit {
    if let Ok(handle) = pidfd_open(pid, PidfdFlags::empty()) {
        let timeout = Timespec {
            tv_sec: END_PATIENCE.as_secs().cast_signed(),
            tv_nsec: END_PATIENCE.subsec_nanos().into(),
        };
        let ended = loop {
            match poll(&mut [PollFd::new(&handle, PollFlags::IN)], Some(&timeout)) {
                Err(Errno::INTR) => {}
                ended => break ended,
            }
        };
        if ended != Ok(1) {
            // Its sandboxes die with it; the rest of what it made is found by its label.
            let _ = kill_process(pid, Signal::KILL);
        }
    }
    ChildExit::reap(pid)
}

/// Makes a directory that only its owner can enter: files in workspaces belong to an ordinary user,
/// and have whatever permissions programs choose.
fn make_closed(directory: &Path) -> std::io::Result<()> {
    std::fs::create_dir_all(directory)?;
    std::fs::set_permissions(directory, Permissions::from_mode(0o700))
}

//! The keeper as a child process: started from the embedded binary, killed when its handle is dropped.

use std::ffi::CStr;
use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::time::Duration;

use guest_protocol::keeper::{FromKeeper, MAX_PACKET_BYTES};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair, sockopt};
use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};

use super::refused;
use crate::error::{RuntimeError, RuntimeErrorCode};

const ARGUMENTS: [&CStr; 2] = [c"shoal-keeper", c"keeper"];

/// How long the keeper may take to report that it is up.
const START_PATIENCE: Duration = Duration::from_secs(10);

const STEP: &str = "start the keeper";

/// A keeper that is up.
#[derive(Debug)]
pub(super) struct KeeperProcess {
    pub(super) socket: OwnedFd,
    pub(super) child: KeeperChild,
}

impl KeeperProcess {
    /// Starts a keeper, and waits until it is up.
    pub(super) fn start() -> Result<Self, RuntimeError> {
        let failed = |error: io::Error| RuntimeError::system(STEP, &error);
        let image = guest_image::memfd().map_err(failed)?;
        let (socket, theirs) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
                .map_err(|errno| failed(errno.into()))?;
        let pid =
            jail::sys::exec::start(image.as_fd(), &ARGUMENTS, &[theirs.as_fd()]).map_err(failed)?;
        let process = Self { socket, child: KeeperChild(pid) };
        drop(theirs);
        process.wait_until_up()?;
        Ok(process)
    }

    fn wait_until_up(&self) -> Result<(), RuntimeError> {
        let failed = |error: io::Error| RuntimeError::system(STEP, &error);
        let patience = sockopt::Timeout::Recv;
        sockopt::set_socket_timeout(&self.socket, patience, Some(START_PATIENCE))
            .map_err(|errno| failed(errno.into()))?;
        let mut buffer = vec![0; MAX_PACKET_BYTES];
        let packet = jail::packet::receive(&self.socket, &mut buffer).map_err(failed)?;
        match postcard::from_bytes(&buffer[..packet.bytes]) {
            Ok(FromKeeper::Up) => Ok(()),
            Ok(FromKeeper::Refused { refusal, .. }) => {
                Err(RuntimeError { step: STEP.into(), ..refused(refusal) })
            }
            Ok(FromKeeper::Seen { .. } | FromKeeper::Renewed { .. }) | Err(_) => {
                let cause = "the keeper ended before it was up";
                Err(RuntimeError::new(RuntimeErrorCode::System, STEP, cause))
            }
        }
    }
}

/// The keeper's process. Dropped, it is killed and reaped: an answer that comes later would not be
/// trusted, so there is nothing to wait for.
#[derive(Debug)]
pub(super) struct KeeperChild(Pid);

impl Drop for KeeperChild {
    fn drop(&mut self) {
        let Self(pid) = *self;
        // It is our child and not reaped yet, so the pid is still its own.
        let _ = kill_process(pid, Signal::KILL);
        // The Linux kernel may need a while to end it, and no caller must wait for that. If no thread can
        // be started, the zombie stays until the server ends.
        let _ = std::thread::Builder::new().spawn(move || {
            while matches!(waitpid(Some(pid), WaitOptions::empty()), Err(Errno::INTR)) {}
        });
    }
}

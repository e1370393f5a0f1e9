//! The keeper as a process: started from the binary that is built in, and ended with its socket.

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

/// How long it may take to say that it listens.
const START_PATIENCE: Duration = Duration::from_secs(10);

const STEP: &str = "start the keeper";

/// A keeper that listens.
#[derive(Debug)]
pub(super) struct KeeperProcess {
    pub(super) socket: OwnedFd,
    pub(super) end: End,
}

impl KeeperProcess {
    /// Starts one, and waits until it listens.
    pub(super) fn start() -> Result<Self, RuntimeError> {
        let failed = |error: io::Error| RuntimeError::system(STEP, &error);
        let image = guest_image::memfd().map_err(failed)?;
        let (socket, theirs) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
                .map_err(|errno| failed(errno.into()))?;
        let pid =
            jail::sys::exec::start(image.as_fd(), &ARGUMENTS, &[theirs.as_fd()]).map_err(failed)?;
        let process = Self { socket, end: End(pid) };
        drop(theirs);
        process.listens()?;
        Ok(process)
    }

    fn listens(&self) -> Result<(), RuntimeError> {
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
                let cause = "it ended before it listened";
                Err(RuntimeError::new(RuntimeErrorCode::System, STEP, cause))
            }
        }
    }
}

/// The end of a keeper, which comes when this is dropped: nothing it does is worth finishing, because
/// nobody would believe in it.
#[derive(Debug)]
pub(super) struct End(Pid);

impl Drop for End {
    fn drop(&mut self) {
        let Self(pid) = *self;
        // It is our child and not collected yet, so the number is its own.
        let _ = kill_process(pid, Signal::KILL);
        // The kernel may be busy with it for a while, and nobody is to wait for that. Without a thread
        // it is left until we end.
        let _ = std::thread::Builder::new().spawn(move || {
            while matches!(waitpid(Some(pid), WaitOptions::empty()), Err(Errno::INTR)) {}
        });
    }
}

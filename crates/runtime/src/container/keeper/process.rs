//! The keeper as a child process: started from the embedded binary, killed when its handle is
//! dropped.

use std::ffi::CStr;
use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::time::Duration;

use guest_protocol::keeper::{FromKeeper, MAX_PACKET_BYTES};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair, sockopt};
use rustix::process::{Pid, Signal, kill_process};

use super::refused;
use crate::child_exit::ChildExit;
use crate::error::{RuntimeError, RuntimeErrorCode};
use crate::spec::NetworkAbility;

const ARGUMENTS: [&CStr; 2] = [c"shoal-keeper", c"keeper"];
/// For a keeper that does without the kernel's tables.
const WITHOUT_TABLES: &CStr = c"without-tables";

/// How long the keeper may take to report that it is up.
const START_PATIENCE: Duration = Duration::from_secs(10);

const STEP: &str = "start the keeper";

/// A keeper that is up.
#[derive(Debug)]
pub(super) struct KeeperProcess {
    pub(super) socket: OwnedFd,
    pub(super) child: KeeperChild,
    /// How containers with a policy reach the network, as the keeper tried it.
    pub(super) network: NetworkAbility,
}

impl KeeperProcess {
    /// Starts a keeper, and waits until it is up.
    pub(super) fn start(tables: bool) -> Result<Self, RuntimeError> {
        let failed = |error: io::Error| RuntimeError::system(STEP, &error);
        let image = guest_image::memfd().map_err(failed)?;
        let (socket, theirs) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
                .map_err(|errno| failed(errno.into()))?;
        let mut arguments = ARGUMENTS.to_vec();
        if !tables {
            arguments.push(WITHOUT_TABLES);
        }
        let pid =
            jail::sys::exec::start(image.as_fd(), &arguments, &[theirs.as_fd()]).map_err(failed)?;
        let child = KeeperChild { pid, death: None };
        drop(theirs);
        let network = wait_until_up(&socket)?;
        Ok(Self { socket, child, network })
    }
}

/// Waits for the first message of a keeper; gives what it says of the network.
fn wait_until_up(socket: &OwnedFd) -> Result<NetworkAbility, RuntimeError> {
    let failed = |error: io::Error| RuntimeError::system(STEP, &error);
    let patience = sockopt::Timeout::Recv;
    sockopt::set_socket_timeout(socket, patience, Some(START_PATIENCE))
        .map_err(|errno| failed(errno.into()))?;
    let mut buffer = vec![0; MAX_PACKET_BYTES];
    let packet = jail::packet::receive(socket, &mut buffer).map_err(failed)?;
    match postcard::from_bytes(&buffer[..packet.bytes]) {
        Ok(FromKeeper::Up { network }) => Ok(network.into()),
        Ok(FromKeeper::Refused { refusal, .. }) => {
            Err(RuntimeError { step: STEP.into(), ..refused(refusal) })
        }
        Ok(FromKeeper::Seen { .. } | FromKeeper::Renewed { .. } | FromKeeper::Networked { .. })
        | Err(_) => {
            let cause = "the keeper ended before it was up";
            Err(RuntimeError::new(RuntimeErrorCode::System, STEP, cause))
        }
    }
}

/// The keeper's process. Dropped, it is killed and reaped: an answer that comes later would not be
/// trusted, so there is nothing to wait for.
#[derive(Debug)]
pub(super) struct KeeperChild {
    pid: Pid,
    /// What to log when it is reaped; none if the runtime ends it.
    death: Option<Death>,
}

/// Why a keeper no longer serves.
#[derive(Debug)]
struct Death {
    cause: String,
    failed_requests: u32,
}

impl KeeperChild {
    /// The process id.
    pub(super) fn pid(&self) -> i32 {
        self.pid.as_raw_nonzero().get()
    }

    /// Ends and reaps a keeper that died or no longer answers, and logs how it exited.
    pub(super) fn give_up(mut self, cause: &RuntimeError, failed_requests: u32) {
        self.death = Some(Death { cause: cause.to_string(), failed_requests });
    }
}

impl Drop for KeeperChild {
    fn drop(&mut self) {
        let (pid, death) = (self.pid, self.death.take());
        // It is our child and not reaped yet, so the pid is still its own.
        let _ = kill_process(pid, Signal::KILL);
        // The Linux kernel may need a while to end it, and no caller must wait for that. If no
        // thread can be started, the zombie stays until the server ends.
        let _ = std::thread::Builder::new().spawn(move || {
            let exit = ChildExit::reap(pid);
            if let Some(Death { cause, failed_requests }) = death {
                tracing::error!(
                    pid = pid.as_raw_nonzero().get(),
                    signal = exit.signal(),
                    exit_code = exit.code(),
                    cause,
                    failed_requests,
                    sandboxes_died = 0,
                    "the keeper died; the next wipe or proof starts a new one"
                );
            }
        });
    }
}

//! Seeds: where control groups are v1, a process cannot be born in a group but by a parent that is
//! in it, and moving one holds up everyone who starts or ends a process, for up to 20 ms. So each
//! slot has one small process that was moved into its groups once and does nothing but give birth
//! to stems, as its siblings: the launcher is their parent. It lives as long as the launcher.

use std::io;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::time::Duration;

use jail::groups::Limits;
use jail::packet;
use jail::plan;
use jail::sys::clone::{self, Side};
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use rustix::process::{Pid, Signal, kill_process};

use super::start::Shared;
use super::stem::{self, Origin};

/// A seed's word that it is in its groups.
pub(super) const SETTLED: u8 = b'J';

/// How long a birth may take before the seed counts as broken.
const BIRTH_TIMEOUT: Duration = Duration::from_secs(2);

pub(super) struct Seed {
    pub pid: Pid,
    pub socket: OwnedFd,
    pub settled: bool,
    /// The limits that it writes.
    pub limits: Limits,
}

impl Seed {
    /// Makes the seed of a slot. It says when it is settled.
    pub(super) fn plant(shared: &Shared, slot: u32) -> io::Result<Self> {
        let (ours, theirs) = pair()?;
        match clone::copy()? {
            Side::Child => {
                live(&shared.origin(slot), &theirs);
                clone::exit_now(0);
            }
            Side::Parent(pid) => {
                set_socket_timeout(&ours, Timeout::Recv, Some(BIRTH_TIMEOUT))?;
                Ok(Self { pid, socket: ours, settled: false, limits: shared.usual_limits })
            }
        }
    }

    /// Has it give birth to a stem with this socket.
    pub(super) fn bear(&self, socket: BorrowedFd<'_>) -> io::Result<Pid> {
        packet::send(&self.socket, b"S", &[socket])?;
        let mut answer = [0; 4];
        let answered = packet::receive(&self.socket, &mut answer)?;
        let pid = i32::from_le_bytes(answer);
        match Pid::from_raw(pid) {
            Some(child) if answered.bytes == 4 && pid > 0 => Ok(child),
            Some(_) if answered.bytes == 4 => Err(io::Error::from_raw_os_error(-pid)),
            Some(_) | None => Err(io::ErrorKind::BrokenPipe.into()),
        }
    }

    pub(super) fn kill(&self) {
        let _ = kill_process(self.pid, Signal::KILL);
    }
}

pub(super) fn pair() -> io::Result<(OwnedFd, OwnedFd)> {
    Ok(socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?)
}

/// The seed itself. Returns when the launcher is gone.
fn live(origin: &Origin<'_>, socket: &OwnedFd) {
    if stem::forget_launcher(origin, socket).is_err() {
        return;
    }
    let _ = rustix::thread::set_name(c"shoal-seed");
    let settled = stem::with_body(origin, socket, |body| body.carry_out(&plan::settle()));
    if let Err(failed) = settled {
        stem::report(socket, &failed);
        return;
    }
    if packet::send(socket, &[SETTLED], &[]).is_err() {
        return;
    }
    // Not in there itself: what is frozen has to be woken for it, and it would be one more.
    let Ok(birthplace) = origin.groups.birthplace(origin.slot) else { return };
    let birthplace = birthplace.as_ref().map(OwnedFd::as_fd);
    let mut word = [0];
    while let Ok(mut asked) = packet::receive(socket, &mut word) {
        let Some(stem_socket) = asked.descriptors.pop() else { return };
        let answer = match clone::sibling_first_of_new_process_namespace(birthplace) {
            Ok(Side::Child) => {
                stem::live(origin, &stem_socket);
                clone::exit_now(0);
            }
            Ok(Side::Parent(pid)) => pid.as_raw_nonzero().get(),
            Err(error) => -error.raw_os_error().unwrap_or(1),
        };
        drop(stem_socket);
        if packet::send(socket, &answer.to_le_bytes(), &[]).is_err() {
            return;
        }
    }
}

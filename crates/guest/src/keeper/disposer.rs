//! Takes apart what was in the places of a use that is over: a copy of the keeper to which the last
//! descriptors of old file systems are given, so that nobody waits while a hundred thousand files go.

use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::time::Duration;

use jail::packet;
use jail::sys::fork::fork_as;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

/// What it is told: to hold what comes with it; to close all that it holds.
const HOLD: u8 = 0;
const CLOSE: u8 = 1;

/// How long it waits before it begins: whoever asked has gone on by then, and is not disturbed.
const PAUSE: Duration = Duration::from_millis(10);

/// Holds what comes until that is told to be closed, waits, and closes it with what came meanwhile. An
/// error is the end.
fn dispose(socket: &OwnedFd) -> io::Result<()> {
    let mut held = Vec::new();
    let mut waited = false;
    loop {
        let mut byte = [HOLD];
        match packet::receive(socket, &mut byte) {
            Ok(packet) if packet.bytes == 0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(packet) if byte == [HOLD] => held.extend(packet.descriptors),
            Ok(_) => {
                if !waited {
                    std::thread::sleep(PAUSE);
                    waited = true;
                }
                let mut more = [PollFd::new(socket, PollFlags::IN)];
                if poll(&mut more, Some(&Timespec::default()))? == 0 {
                    return Ok(());
                }
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

/// The way to it.
pub(super) struct Disposer {
    socket: OwnedFd,
}

impl Disposer {
    /// Starts it. It ends when the keeper does.
    pub(super) fn start() -> io::Result<Self> {
        let (socket, theirs) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
        fork_as(None, theirs.as_fd(), |socket| {
            let _ = rustix::thread::set_name(c"shoal-disposer");
            while dispose(&socket).is_ok() {}
        })?;
        Ok(Self { socket })
    }

    /// Closes descriptors, elsewhere. If no more are taken there, whoever asked waits while they are
    /// closed here, and nothing piles up.
    pub(super) fn take(&self, descriptors: Vec<OwnedFd>) {
        for some in descriptors.chunks(packet::MAX_DESCRIPTORS) {
            let some: Vec<_> = some.iter().map(|one| one.as_fd()).collect();
            let _ = packet::send(&self.socket, &[HOLD], &some);
        }
        // Whoever closes last does the work: that is the other one, once it is told that ours are.
        drop(descriptors);
        let _ = packet::send(&self.socket, &[CLOSE], &[]);
    }
}

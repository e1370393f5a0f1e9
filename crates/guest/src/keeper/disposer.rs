//! Closes the file systems of a use that has ended: a copy of the keeper that gets the last
//! descriptors of old file systems, so that no request waits while a hundred thousand files are
//! freed.

use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::time::Duration;

use jail::packet;
use jail::sys::fork::fork_as;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

/// Commands to it: hold the descriptors of this packet; close all that it holds.
const HOLD: u8 = 0;
const CLOSE: u8 = 1;

/// How long it waits before it begins, so that it does not slow down the request that just ended.
const PAUSE: Duration = Duration::from_millis(10);

/// Holds descriptors until the command to close them comes, waits, and closes them with those that
/// came meanwhile. Returns an error when it must end.
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

/// The keeper's connection to the disposer.
pub(super) struct Disposer {
    socket: OwnedFd,
}

impl Disposer {
    /// Starts the disposer. It ends with the keeper.
    pub(super) fn start() -> io::Result<Self> {
        let (socket, theirs) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
        fork_as(None, theirs.as_fd(), |socket| {
            let _ = rustix::thread::set_name(c"shoal-disposer");
            while dispose(&socket).is_ok() {}
        })?;
        Ok(Self { socket })
    }

    /// Closes descriptors in the other process. If that process does not take them, they are
    /// closed here while the request waits, so that nothing piles up.
    pub(super) fn take(&self, descriptors: Vec<OwnedFd>) {
        for some in descriptors.chunks(packet::MAX_DESCRIPTORS) {
            let some: Vec<_> = some.iter().map(|one| one.as_fd()).collect();
            let _ = packet::send(&self.socket, &[HOLD], &some);
        }
        // The process that closes last does the work: the disposer, which closes after ours are
        // closed.
        drop(descriptors);
        let _ = packet::send(&self.socket, &[CLOSE], &[]);
    }
}

//! What goes out on a connection: queued bytes, and descriptors that belong to a place among them.
//! Writing never waits.

use std::collections::VecDeque;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};

use guest_protocol::message::Request;
use guest_protocol::{Endpoint, ProtocolError};
use rustix::io::Errno;
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags};

/// How many descriptors travel with one request at most.
const MAX_PASSED: usize = 3;

/// Descriptors that go out with the byte at this place of the stream.
struct Passing {
    at: u64,
    descriptors: Vec<OwnedFd>,
}

/// What goes out.
#[derive(Default)]
pub(super) struct Wire {
    pub endpoint: Endpoint,
    passing: VecDeque<Passing>,
    sent_bytes: u64,
}

impl Wire {
    /// Queues a request, and descriptors to go with its first byte.
    pub(super) fn queue(
        &mut self,
        channel: u32,
        request: &Request,
        descriptors: Vec<OwnedFd>,
    ) -> Result<(), ProtocolError> {
        let at = self.sent_bytes + self.endpoint.outgoing().len() as u64;
        self.endpoint.send(channel, request)?;
        if !descriptors.is_empty() {
            self.passing.push_back(Passing { at, descriptors });
        }
        Ok(())
    }

    /// Writes what is queued. `WouldBlock` if the socket is full; any other error breaks the
    /// connection. A closed other end is not an error: its last messages are read first, and then
    /// its end is found.
    pub(super) fn write_out(&mut self, socket: BorrowedFd<'_>) -> io::Result<()> {
        while !self.endpoint.outgoing().is_empty() {
            let out = self.endpoint.outgoing();
            let ahead = |passing: &Passing| passing.at.saturating_sub(self.sent_bytes);
            // Descriptors go with the first byte of their request, and no two with one write.
            let mut marks = self.passing.iter().map(ahead);
            let (descriptors, until) = match (marks.next(), marks.next()) {
                (Some(0), next) => (self.passing.front(), next),
                (ahead, _) => (None, ahead),
            };
            let descriptors = descriptors.map_or(&[][..], |passing| &passing.descriptors);
            let until = until.map_or(usize::MAX, |until| until.try_into().unwrap_or(usize::MAX));
            match send(socket, &out[..out.len().min(until)], descriptors) {
                Ok(written) => {
                    if !descriptors.is_empty() {
                        self.passing.pop_front();
                    }
                    self.endpoint.sent(written);
                    self.sent_bytes += written as u64;
                }
                Err(Errno::AGAIN) => return Err(io::ErrorKind::WouldBlock.into()),
                Err(Errno::INTR) => {}
                Err(Errno::PIPE | Errno::CONNRESET) => {
                    let dropped = self.endpoint.outgoing().len();
                    self.endpoint.sent(dropped);
                    self.passing.clear();
                }
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }
}

fn send(socket: BorrowedFd<'_>, bytes: &[u8], descriptors: &[OwnedFd]) -> Result<usize, Errno> {
    let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
    if descriptors.is_empty() {
        return rustix::net::send(socket, bytes, flags);
    }
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_PASSED))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let borrowed: Vec<BorrowedFd<'_>> = descriptors.iter().map(|fd| fd.as_fd()).collect();
    if !control.push(SendAncillaryMessage::ScmRights(&borrowed)) {
        return Err(Errno::INVAL);
    }
    rustix::net::sendmsg(socket, &[io::IoSlice::new(bytes)], &mut control, flags)
}

//! The connection to the host: bytes in and out of the endpoint, and the descriptors that came with
//! them. It must never read while too much waits to be written: the host would only add to it.

use std::collections::VecDeque;
use std::io::IoSliceMut;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};

use guest_protocol::Endpoint;
use rustix::cmsg_space;
use rustix::event::epoll::EventFlags;
use rustix::io::{Errno, read, write};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendFlags, recvmsg, send,
};

use super::io::Scratch;
use super::{ExitReason, Link, Named as _};

/// The most descriptors that the kernel passes at once.
const DESCRIPTORS_AT_ONCE: usize = 253;

/// The most descriptors that no request has taken yet.
const MAX_DESCRIPTORS: usize = 256;

/// Enough for a request. Larger data is read in larger pieces.
const SMALL_BYTES: usize = 4096;

/// While this much waits to be written, nothing is read from programs and files.
const BUSY_BYTES: usize = 256 * 1024;

/// While this much waits to be written, no request is read.
const FULL_BYTES: usize = 2 * 1024 * 1024;

/// The connection to the host.
#[derive(Debug)]
pub(super) struct Connection {
    link: Link,
    /// The protocol on it.
    pub(super) endpoint: Endpoint,
    descriptors: VecDeque<OwnedFd>,
    /// The last read filled its buffer: more will come.
    is_bulky: bool,
    /// The link accepts no further bytes now.
    is_blocked: bool,
}

/// The result of one read.
struct Received {
    bytes: usize,
    /// Some descriptors that came with it did not arrive.
    lost_descriptors: bool,
}

impl Connection {
    pub(super) fn new(link: Link) -> Self {
        let endpoint = Endpoint::accepting();
        Self { link, endpoint, descriptors: VecDeque::new(), is_bulky: false, is_blocked: false }
    }

    /// The descriptor from which bytes come.
    pub(super) fn inlet(&self) -> BorrowedFd<'_> {
        match &self.link {
            Link::Socket(socket) => socket.as_fd(),
            Link::Pipes { reader, writer: _ } => reader.as_fd(),
        }
    }

    /// The descriptor to which bytes go, if that is another one.
    pub(super) fn outlet(&self) -> Option<BorrowedFd<'_>> {
        match &self.link {
            Link::Socket(_) => None,
            Link::Pipes { reader: _, writer } => Some(writer.as_fd()),
        }
    }

    /// Whether there is room for more output.
    pub(super) fn has_room(&self) -> bool {
        self.endpoint.outgoing().len() < BUSY_BYTES
    }

    /// The events to watch the inlet for, and the outlet if there is one.
    pub(super) fn interest(&self) -> (EventFlags, EventFlags) {
        let inward = if self.endpoint.outgoing().len() < FULL_BYTES {
            EventFlags::IN
        } else {
            EventFlags::empty()
        };
        let outward = if self.is_blocked { EventFlags::OUT } else { EventFlags::empty() };
        match &self.link {
            Link::Socket(_) => (inward | outward, EventFlags::empty()),
            Link::Pipes { .. } => (inward, outward),
        }
    }

    /// Reads once.
    pub(super) fn read(&mut self, scratch: &mut Scratch) -> Result<(), ExitReason> {
        let mut small = [0; SMALL_BYTES];
        let buffer = if self.is_bulky { scratch.buffer() } else { &mut small[..] };
        let received = match receive(&self.link, buffer, &mut self.descriptors) {
            Ok(received) => received,
            Err(Errno::AGAIN | Errno::INTR) => return Ok(()),
            Err(Errno::CONNRESET) => return Err(ExitReason::Closed),
            Err(errno) => return Err(ExitReason::System { step: "receive", errno }),
        };
        // A lost descriptor would shift all that follow to the wrong programs.
        if received.lost_descriptors || self.descriptors.len() > MAX_DESCRIPTORS {
            return Err(Errno::MFILE).named("receive descriptors");
        }
        if received.bytes == 0 {
            return Err(ExitReason::Closed);
        }
        self.is_bulky = received.bytes == buffer.len();
        self.endpoint.feed(&buffer[..received.bytes])?;
        Ok(())
    }

    /// The oldest descriptor that no request has taken.
    pub(super) fn take_descriptor(&mut self) -> Option<OwnedFd> {
        let first = self.descriptors.pop_front();
        if self.descriptors.is_empty() {
            self.descriptors = VecDeque::new();
        }
        first
    }

    /// The link accepts bytes again.
    pub(super) fn unblocked(&mut self) {
        self.is_blocked = false;
    }

    /// Writes as much of the waiting bytes as the link accepts.
    pub(super) fn flush(&mut self) -> Result<(), ExitReason> {
        while !self.is_blocked && !self.endpoint.outgoing().is_empty() {
            match put(&self.link, self.endpoint.outgoing()) {
                Ok(written) => self.endpoint.sent(written),
                Err(Errno::AGAIN) => self.is_blocked = true,
                Err(Errno::INTR) => {}
                Err(Errno::PIPE | Errno::CONNRESET) => return Err(ExitReason::Closed),
                Err(errno) => return Err(ExitReason::System { step: "send", errno }),
            }
        }
        Ok(())
    }
}

fn receive(
    link: &Link,
    buffer: &mut [u8],
    descriptors: &mut VecDeque<OwnedFd>,
) -> Result<Received, Errno> {
    let socket = match link {
        Link::Socket(socket) => socket,
        Link::Pipes { reader, writer: _ } => {
            return Ok(Received { bytes: read(reader, buffer)?, lost_descriptors: false });
        }
    };
    let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(DESCRIPTORS_AT_ONCE))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT;
    let received = recvmsg(socket, &mut [IoSliceMut::new(buffer)], &mut control, flags)?;
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(came) = message {
            descriptors.extend(came);
        }
    }
    let lost_descriptors = received.flags.contains(ReturnFlags::CTRUNC);
    Ok(Received { bytes: received.bytes, lost_descriptors })
}

/// Writes as much of this as the link accepts at once.
pub(super) fn put(link: &Link, bytes: &[u8]) -> Result<usize, Errno> {
    match link {
        Link::Socket(socket) => send(socket, bytes, SendFlags::NOSIGNAL | SendFlags::DONTWAIT),
        Link::Pipes { reader: _, writer } => write(writer, bytes),
    }
}

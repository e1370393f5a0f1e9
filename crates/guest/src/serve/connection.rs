//! The connection to the host: bytes in and out of the endpoint, and the descriptors that came
//! along. It must never read while too much waits to be written: the host would only add to it.

use std::collections::VecDeque;
use std::io::IoSliceMut;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};

use guest_protocol::Endpoint;
use rustix::cmsg_space;
use rustix::event::epoll::EventFlags;
use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendFlags, recvmsg, send,
};

use super::io::Scratch;
use super::{ExitReason, Named as _};

/// As much as the kernel lets through at once.
const DESCRIPTORS_AT_ONCE: usize = 253;

/// Descriptors that came and were not taken by any request.
const MAX_DESCRIPTORS: usize = 256;

/// Enough for a request; what is bigger comes in bigger pieces.
const SMALL_BYTES: usize = 4096;

/// Nothing is read from programs and files while this much waits to be written.
const BUSY_BYTES: usize = 256 * 1024;

/// No request is read while this much waits to be written.
const FULL_BYTES: usize = 2 * 1024 * 1024;

/// The connection to the host.
#[derive(Debug)]
pub(super) struct Connection {
    socket: OwnedFd,
    /// What is said on it.
    pub(super) endpoint: Endpoint,
    descriptors: VecDeque<OwnedFd>,
    /// The last read filled its buffer: more will come.
    is_bulky: bool,
    /// The socket took no more.
    is_blocked: bool,
}

impl Connection {
    pub(super) fn new(socket: OwnedFd) -> Self {
        let endpoint = Endpoint::accepting();
        Self { socket, endpoint, descriptors: VecDeque::new(), is_bulky: false, is_blocked: false }
    }

    pub(super) fn socket(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// Whether there is room for more output.
    pub(super) fn has_room(&self) -> bool {
        self.endpoint.outgoing().len() < BUSY_BYTES
    }

    /// What the connection is to be watched for.
    pub(super) fn interest(&self) -> EventFlags {
        let mut interest = EventFlags::empty();
        if self.endpoint.outgoing().len() < FULL_BYTES {
            interest |= EventFlags::IN;
        }
        if self.is_blocked {
            interest |= EventFlags::OUT;
        }
        interest
    }

    /// Reads once what has come.
    pub(super) fn read(&mut self, scratch: &mut Scratch) -> Result<(), ExitReason> {
        let mut small = [0; SMALL_BYTES];
        let buffer = if self.is_bulky { scratch.buffer() } else { &mut small[..] };
        let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(DESCRIPTORS_AT_ONCE))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT;
        let received = recvmsg(&self.socket, &mut [IoSliceMut::new(buffer)], &mut control, flags);
        let received = match received {
            Ok(received) => received,
            Err(Errno::AGAIN | Errno::INTR) => return Ok(()),
            Err(Errno::CONNRESET) => return Err(ExitReason::Closed),
            Err(errno) => return Err(ExitReason::System { step: "receive", errno }),
        };
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(descriptors) = message {
                self.descriptors.extend(descriptors);
            }
        }
        // A descriptor that got lost would shift all that follow to the wrong programs.
        if received.flags.contains(ReturnFlags::CTRUNC) || self.descriptors.len() > MAX_DESCRIPTORS
        {
            return Err(Errno::MFILE).named("receive descriptors");
        }
        if received.bytes == 0 {
            return Err(ExitReason::Closed);
        }
        self.is_bulky = received.bytes == buffer.len();
        self.endpoint.feed(&buffer[..received.bytes])?;
        Ok(())
    }

    /// The descriptor that came first and was not taken yet.
    pub(super) fn take_descriptor(&mut self) -> Option<OwnedFd> {
        let first = self.descriptors.pop_front();
        if self.descriptors.is_empty() {
            self.descriptors = VecDeque::new();
        }
        first
    }

    /// The socket takes more again.
    pub(super) fn unblocked(&mut self) {
        self.is_blocked = false;
    }

    /// Writes what waits, as much as the socket takes.
    pub(super) fn flush(&mut self) -> Result<(), ExitReason> {
        while !self.is_blocked && !self.endpoint.outgoing().is_empty() {
            let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
            match send(&self.socket, self.endpoint.outgoing(), flags) {
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

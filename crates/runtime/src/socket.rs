//! One end of a socket in tokio. Readiness to write is watched only while a write waits: otherwise
//! each read at the other end would wake this process for nothing.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::task::{Context, Poll, ready};

use jail::packet::{self, Packet};
use rustix::net::RecvFlags;
use tokio::net::unix::pipe::{Receiver, Sender};

/// What the socket carries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Carries {
    /// Bytes: a read that does not fill its buffer took all there was.
    Bytes,
    /// Packets, of which each read takes one.
    Packets,
}

/// One end of a socket.
#[derive(Debug)]
pub(crate) struct Socket {
    carries: Carries,
    /// The types of pipes are used for their registration: one direction each, of any descriptor.
    reader: Receiver,
    writer: Option<Sender>,
}

impl Socket {
    /// Watches a socket. Must be called inside a tokio runtime.
    pub(crate) fn new(socket: OwnedFd, carries: Carries) -> io::Result<Self> {
        rustix::io::ioctl_fionbio(&socket, true)?;
        Ok(Self { carries, reader: Receiver::from_owned_fd_unchecked(socket)?, writer: None })
    }

    /// Reads what has arrived: 0 bytes at the end.
    pub(crate) fn poll_read(
        &self,
        cx: &mut Context<'_>,
        into: &mut [u8],
    ) -> Poll<io::Result<usize>> {
        loop {
            ready!(self.reader.poll_read_ready(cx))?;
            let mut read = None;
            let tried = self.reader.try_io(|| {
                let (n, _) = rustix::net::recv(&self.reader, &mut *into, RecvFlags::DONTWAIT)?;
                read = Some(n);
                // A short read means that nothing is left; saying so here saves a system call.
                let drained = self.carries == Carries::Bytes && n > 0 && n < into.len();
                if drained { Err(io::ErrorKind::WouldBlock.into()) } else { Ok(()) }
            });
            match (read, tried) {
                (Some(n), _) => return Poll::Ready(Ok(n)),
                (None, Err(error)) if is_passing(&error) => {}
                (None, tried) => return Poll::Ready(tried.map(|()| 0)),
            }
        }
    }

    /// Receives one packet, with the descriptors that came along: 0 bytes at the end.
    pub(crate) fn poll_packet(
        &self,
        cx: &mut Context<'_>,
        into: &mut [u8],
    ) -> Poll<io::Result<Packet>> {
        loop {
            ready!(self.reader.poll_read_ready(cx))?;
            match self.reader.try_io(|| packet::receive(&self.reader, into)) {
                Err(error) if is_passing(&error) => {}
                received => return Poll::Ready(received),
            }
        }
    }

    /// Waits until the socket has room, then calls `write`. Ready when `write` does not report a
    /// full socket.
    pub(crate) fn poll_write(
        &mut self,
        cx: &mut Context<'_>,
        mut write: impl FnMut(BorrowedFd<'_>) -> io::Result<()>,
    ) -> Poll<io::Result<()>> {
        if self.writer.is_none() {
            let own = self.reader.as_fd().try_clone_to_owned()?;
            self.writer = Some(Sender::from_owned_fd_unchecked(own)?);
        }
        while let Some(writer) = &self.writer {
            ready!(writer.poll_write_ready(cx))?;
            match writer.try_io(|| write(self.reader.as_fd())) {
                Err(error) if is_passing(&error) => {}
                written => {
                    self.writer = None;
                    return Poll::Ready(written);
                }
            }
        }
        Poll::Pending
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.reader.as_fd()
    }
}

/// An error that only means: try again.
fn is_passing(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted)
}

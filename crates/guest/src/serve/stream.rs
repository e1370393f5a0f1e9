//! Bytes between a descriptor inside and a lane of a channel, one type per direction. Neither ever
//! holds more than the lane's window.

use std::os::fd::OwnedFd;

use guest_protocol::Endpoint;
use rustix::io::{Errno, ioctl_fionread, read, write};
use rustix::net::{Shutdown, shutdown};

use super::io::{Io, PIECE_BYTES};

/// The result of one piece of work.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Progress {
    /// There is more to do at once.
    More,
    /// It goes on when an event comes.
    Wait,
    /// It has ended.
    Over,
}

/// From a descriptor outwards.
#[derive(Debug)]
pub(super) struct Outward {
    /// Read without blocking.
    pub(super) descriptor: OwnedFd,
    /// The most bytes to read.
    left: Option<u64>,
}

impl Outward {
    pub(super) fn new(descriptor: OwnedFd) -> Self {
        Self { descriptor, left: None }
    }

    /// The writing program is gone: only what is already there is read, even if other processes
    /// hold the other end.
    pub(super) fn finish(&mut self) {
        self.left = Some(ioctl_fionread(&self.descriptor).unwrap_or(0));
    }

    /// The writing program and all other writers are gone: everything is read to the end.
    pub(super) fn finish_at_end(&mut self) {
        self.left = Some(u64::MAX);
    }

    /// Moves one piece. `Over` after the last one.
    pub(super) fn pump(&mut self, channel: u32, lane: u8, io: &mut Io) -> Progress {
        let endpoint = &mut io.connection.endpoint;
        let left = self.left.map_or(PIECE_BYTES, |left| left.min(PIECE_BYTES as u64) as usize);
        if left == 0 {
            return Progress::Over;
        }
        let most = left.min(endpoint.window(channel, lane));
        if most == 0 {
            return Progress::Wait;
        }
        let buffer = &mut io.scratch.buffer()[..most];
        match read(&self.descriptor, &mut *buffer) {
            Ok(0) => Progress::Over,
            Ok(count) => {
                endpoint.send_data(channel, lane, &buffer[..count]);
                if let Some(left) = &mut self.left {
                    *left -= count as u64;
                }
                Progress::More
            }
            Err(Errno::INTR) => Progress::More,
            Err(Errno::AGAIN) if self.left.is_none() => Progress::Wait,
            // A terminal that no process has open any more reports EIO.
            Err(_) => Progress::Over,
        }
    }
}

/// The kind of the other end of an inward stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Inlet {
    /// Closed at the end.
    Pipe,
    /// Shut down at the end, because the other direction lives on.
    Socket,
    /// Gets the end-of-transmission character, as if a user typed it.
    Terminal,
}

/// The character that ends the input of a terminal.
const END_OF_TRANSMISSION: u8 = 4;

/// From a lane inwards.
#[derive(Debug)]
pub(super) struct Inward {
    /// Written without blocking.
    pub(super) descriptor: OwnedFd,
    inlet: Inlet,
    waiting: Vec<u8>,
    written_bytes: usize,
    ended: bool,
}

impl Inward {
    pub(super) fn new(descriptor: OwnedFd, inlet: Inlet) -> Self {
        Self { descriptor, inlet, waiting: Vec::new(), written_bytes: 0, ended: false }
    }

    /// Continues with another descriptor.
    pub(super) fn redirect(&mut self, descriptor: OwnedFd) {
        self.descriptor = descriptor;
    }

    /// Takes bytes that arrived. They are written at once if none wait.
    pub(super) fn take(&mut self, bytes: Vec<u8>) {
        if self.waiting.is_empty() {
            self.waiting = bytes;
        } else {
            self.waiting.extend_from_slice(&bytes);
        }
    }

    /// The lane has ended.
    pub(super) fn end(&mut self) {
        self.ended = true;
        if self.inlet == Inlet::Terminal {
            self.waiting.push(END_OF_TRANSMISSION);
        }
    }

    /// Writes the waiting bytes. `Over` at the end, and when the reader is gone.
    pub(super) fn pump(&mut self, channel: u32, lane: u8, endpoint: &mut Endpoint) -> Progress {
        while self.written_bytes < self.waiting.len() {
            match write(&self.descriptor, &self.waiting[self.written_bytes..]) {
                Ok(count) => {
                    self.written_bytes += count;
                    endpoint.consumed(channel, lane, count);
                }
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return Progress::Wait,
                Err(_) => {
                    // The other two kinds have an outward direction on the same lane, which goes
                    // on.
                    if self.inlet == Inlet::Pipe {
                        endpoint.reset(channel, lane);
                    }
                    return Progress::Over;
                }
            }
        }
        self.waiting = Vec::new();
        self.written_bytes = 0;
        match (self.ended, self.inlet) {
            (false, _) => Progress::Wait,
            (true, Inlet::Socket) => {
                // An error here means that the other side is gone already, which is fine.
                let _ = shutdown(&self.descriptor, Shutdown::Write);
                Progress::Over
            }
            (true, Inlet::Pipe | Inlet::Terminal) => Progress::Over,
        }
    }
}

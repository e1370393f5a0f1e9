//! Bytes between a descriptor inside and a lane of a channel, one type for each direction. Neither
//! ever holds more than the lane's window.

use std::os::fd::OwnedFd;

use guest_protocol::Endpoint;
use rustix::io::{Errno, ioctl_fionread, read, write};
use rustix::net::{Shutdown, shutdown};

use super::io::{Io, PIECE_BYTES};

/// What became of one piece of work.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Progress {
    /// There is more to do at once.
    More,
    /// It goes on when something happens.
    Wait,
    /// There is nothing more to do, ever.
    Over,
}

/// From a descriptor outwards.
#[derive(Debug)]
pub(super) struct Outward {
    /// Where it is read, without blocking.
    pub(super) descriptor: OwnedFd,
    /// No more than this is to be read.
    left: Option<u64>,
}

impl Outward {
    pub(super) fn new(descriptor: OwnedFd) -> Self {
        Self { descriptor, left: None }
    }

    /// Whoever wrote is gone: only what is there already is still to be read, however many others
    /// hold the other end.
    pub(super) fn finish(&mut self) {
        self.left = Some(ioctl_fionread(&self.descriptor).unwrap_or(0));
    }

    /// Whoever wrote is gone, and so is everybody else: what is there is read to its end.
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
            // A terminal nobody has open any more says EIO.
            Err(_) => Progress::Over,
        }
    }
}

/// What the other end of an inward stream is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Inlet {
    /// Closed at the end.
    Pipe,
    /// Shut down at the end, because the other direction lives on.
    Socket,
    /// KernelEvent of the end by a character, as a user would.
    Terminal,
}

/// What a terminal takes for the end of input.
const END_OF_TRANSMISSION: u8 = 4;

/// From a lane inwards.
#[derive(Debug)]
pub(super) struct Inward {
    /// Where it is written, without blocking.
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

    /// Goes on with another descriptor.
    pub(super) fn redirect(&mut self, descriptor: OwnedFd) {
        self.descriptor = descriptor;
    }

    /// Takes what arrived. It is written at once if nothing waits.
    pub(super) fn take(&mut self, bytes: Vec<u8>) {
        if self.waiting.is_empty() {
            self.waiting = bytes;
        } else {
            self.waiting.extend_from_slice(&bytes);
        }
    }

    /// The lane is at its end.
    pub(super) fn end(&mut self) {
        self.ended = true;
        if self.inlet == Inlet::Terminal {
            self.waiting.push(END_OF_TRANSMISSION);
        }
    }

    /// Writes what waits. `Over` at the end, and when nobody reads any more.
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
                    // The other two have a direction outwards on the same lane, which lives on.
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
                // That the other side is gone already is no reason to complain.
                let _ = shutdown(&self.descriptor, Shutdown::Write);
                Progress::Over
            }
            (true, Inlet::Pipe | Inlet::Terminal) => Progress::Over,
        }
    }
}

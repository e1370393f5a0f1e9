//! Sends a file to the host, a piece at a time.

use std::os::fd::OwnedFd;

use guest_protocol::message::{EntryKind, Fault, FaultCode, Reply, lane};
use rustix::fs::{OFlags, fstat};
use rustix::io::{Errno, pread};

use super::super::fault::{fault, refused};
use super::super::io::{Io, PIECE_BYTES};
use super::super::stream::Progress;
use super::{entry, kind_of, last_name, open, refuse_proc};

/// A file that is being sent.
#[derive(Debug)]
pub(in super::super) struct FileReader {
    channel: u32,
    file: OwnedFd,
    offset: u64,
    left: u64,
}

impl FileReader {
    /// Opens it and sends its description.
    pub(in super::super) fn start(
        channel: u32,
        path: &str,
        offset: u64,
        length: Option<u64>,
        io: &mut Io,
    ) -> Result<Self, Fault> {
        if i64::try_from(offset).is_err() {
            return Err(fault(FaultCode::Invalid, "the offset is beyond the end of any file"));
        }
        // Non-blocking: opening a pipe would wait for a writer.
        let file = open(path, OFlags::RDONLY | OFlags::NONBLOCK).map_err(|errno| match errno {
            // Such as the scale file: a program gives it away when another program opens it.
            Errno::AGAIN => fault(FaultCode::Denied, format!("{path} is leased by a program")),
            errno => refused(errno, path),
        })?;
        refuse_proc(&file, path)?;
        let found = fstat(&file).map_err(|errno| refused(errno, path))?;
        match kind_of(&found) {
            EntryKind::File => {}
            EntryKind::Directory => return Err(refused(Errno::ISDIR, path)),
            EntryKind::Link | EntryKind::Other => {
                return Err(fault(FaultCode::WrongKind, format!("{path} is not a file")));
            }
        }
        io.reply(channel, &Reply::Entry(entry(last_name(path), &found, None)));
        Ok(Self { channel, file, offset, left: length.unwrap_or(u64::MAX) })
    }

    /// Sends a piece.
    pub(in super::super) fn step(&mut self, io: &mut Io) -> Progress {
        let endpoint = &mut io.connection.endpoint;
        let window = endpoint.window(self.channel, lane::MAIN);
        let most = (PIECE_BYTES as u64).min(self.left) as usize;
        if most > 0 && window == 0 {
            return Progress::Wait;
        }
        let buffer = &mut io.scratch.buffer()[..most.min(window)];
        match pread(&self.file, &mut *buffer, self.offset) {
            Ok(0) => {
                endpoint.end(self.channel, lane::MAIN);
                io.reply(self.channel, &Reply::Done);
                Progress::Over
            }
            Ok(count) => {
                endpoint.send_data(self.channel, lane::MAIN, &buffer[..count]);
                self.offset = self.offset.saturating_add(count as u64);
                self.left -= count as u64;
                Progress::More
            }
            Err(Errno::INTR) => Progress::More,
            Err(errno) => {
                endpoint.reset(self.channel, lane::MAIN);
                io.fail(self.channel, refused(errno, "cannot read the rest of the file"));
                Progress::Over
            }
        }
    }

    /// The host wants nothing further of it.
    pub(in super::super) fn reset(&mut self, io: &mut Io) -> Progress {
        io.reply(self.channel, &Reply::Done);
        Progress::Over
    }
}

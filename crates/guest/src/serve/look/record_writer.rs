//! Sends the records of a look to the host. A host that is gone is a reason to stop, not to fail.

use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};

use guest_protocol::look::Sighting;
use rustix::io::{Errno, write};

/// Records are sent when they have this many bytes.
const BATCH_BYTES: usize = 32 * 1024;

/// Collects records and sends them.
pub(super) struct RecordWriter {
    output: OwnedFd,
    bytes: Vec<u8>,
    is_closed: bool,
}

impl RecordWriter {
    pub(super) fn new(output: OwnedFd) -> Self {
        Self { output, bytes: Vec::new(), is_closed: false }
    }

    /// The descriptor that records are sent to.
    pub(super) fn output(&self) -> BorrowedFd<'_> {
        self.output.as_fd()
    }

    /// Whether the host is gone.
    pub(super) fn is_closed(&self) -> bool {
        self.is_closed
    }

    /// Adds one record. It may be sent later.
    pub(super) fn write(&mut self, sighting: &Sighting) {
        sighting.write_to(&mut self.bytes);
        if self.bytes.len() >= BATCH_BYTES {
            self.flush();
        }
    }

    /// Sends all records.
    pub(super) fn flush(&mut self) {
        let mut rest = &self.bytes[..];
        while !rest.is_empty() && !self.is_closed {
            match write(&self.output, rest) {
                Ok(count) => rest = &rest[count..],
                Err(Errno::INTR) => {}
                Err(_) => self.is_closed = true,
            }
        }
        self.bytes.clear();
    }
}

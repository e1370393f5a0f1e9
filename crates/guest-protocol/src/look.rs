//! A look is a query about a sandbox: find, search, watch, sockets. It runs in a process of its
//! own, and its results are records on a pipe or lane, each behind its length, so that there may be
//! many and the host may stop at any byte. A reader must trust no length before checking it.

use serde::{Deserialize, Serialize};

use crate::decode;
use crate::error::ProtocolError;
use crate::message::{EntryKind, Fault};

/// The most bytes of a record: two paths and a line.
pub const MAX_RECORD_BYTES: usize = 16 * 1024;

/// The most bytes of a line in a record.
pub const MAX_LINE_BYTES: usize = 1024;

/// The length before a record.
const LENGTH_BYTES: usize = 4;

/// The query.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Look {
    /// Files. Sends `File`s, then `Over`.
    Find {
        /// The directory to search.
        path: String,
        /// Which files.
        which: Which,
        /// Only these kinds; all if empty.
        kinds: Vec<EntryKind>,
        /// How far down; 1 is the directory itself.
        max_depth: Option<u32>,
        /// When to stop.
        until: Until,
    },
    /// A text. Sends `Match`es, then `Over`.
    Search {
        /// The directory or file to search.
        path: String,
        /// The text.
        text: String,
        /// Whether `A` and `a` differ.
        case_sensitive: bool,
        /// In which files.
        which: Which,
        /// When to stop.
        until: Until,
    },
    /// Changes. Sends `Armed`, then `Change`s, then `Over` when nothing can change any further.
    Watch {
        /// The directory.
        path: String,
        /// Whether to include the directories beneath it.
        recursive: bool,
    },
    /// Sockets of a program and its descendants. Sends `Socket`s, then `Over`.
    Sockets {
        /// Its process id.
        pid: u32,
    },
}

/// Which files are included.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Which {
    /// Only those whose last name matches one of these patterns; all if empty.
    pub names: Vec<String>,
    /// Directories of these names are skipped.
    pub exclude_directories: Vec<String>,
    /// Names that begin with a dot are skipped.
    pub exclude_hidden: bool,
}

/// When a look stops although there may be more.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Until {
    /// After this many results.
    pub results: u32,
    /// After this time.
    pub time_ms: u32,
}

/// A record of a look.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Sighting {
    /// A watch misses nothing from here on.
    Armed,
    /// A file.
    File {
        /// Relative to the searched directory.
        path: Vec<u8>,
        /// What it is.
        kind: EntryKind,
        /// Its size.
        size: u64,
        /// Its permissions.
        mode: u32,
        /// When it was last written, in milliseconds since 1970.
        modified_ms: i64,
    },
    /// A line with the text in it.
    Match {
        /// The file, relative to the searched directory; empty if that is the file.
        path: Vec<u8>,
        /// From 1.
        line: u64,
        /// In bytes, from 1.
        column: u64,
        /// The line, or a part of it with the text.
        text: Vec<u8>,
    },
    /// A socket.
    Socket {
        /// The process that holds it.
        pid: u32,
        /// The name of its program.
        program: String,
        /// Its table: `tcp`, `tcp6`, `udp` or `udp6`.
        protocol: String,
        /// Its local address.
        local_address: String,
        /// Its local port.
        local_port: u16,
        /// The remote address.
        remote_address: String,
        /// The remote port.
        remote_port: u16,
        /// `LISTEN`, `ESTABLISHED` and so on.
        state: String,
    },
    /// Something changed.
    Change {
        /// The kind of change.
        kind: Change,
        /// The whole path.
        path: Vec<u8>,
        /// Whether it is a directory.
        is_directory: bool,
    },
    /// The last record.
    Over {
        /// Whether there is more, or may be.
        truncated: bool,
        /// For files: directories that could not be read. For a text: files that were searched.
        count: u64,
    },
    /// The look failed.
    Failed(Fault),
}

/// The kind of a change.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Change {
    /// It was created.
    Created,
    /// Its contents changed.
    Written,
    /// It was removed.
    Removed,
    /// It was renamed. If the new name is watched too, it is also reported as created.
    Renamed,
    /// Its permissions or its modification time changed.
    About,
    /// Some changes are lost.
    Lost,
}

impl Sighting {
    /// Appends it to bytes to send, behind its length. A record that is too long is left out: no
    /// existing path or line makes one.
    pub fn write_to(&self, bytes: &mut Vec<u8>) {
        let Ok(record) = postcard::to_allocvec(self) else { return };
        if record.len() <= MAX_RECORD_BYTES {
            bytes.extend_from_slice(&(record.len() as u32).to_le_bytes());
            bytes.extend_from_slice(&record);
        }
    }
}

/// Takes records out of bytes as they come. Holds at most one record and what was read with it.
#[derive(Debug, Default)]
pub struct Sightings {
    bytes: Vec<u8>,
    taken: usize,
}

impl Sightings {
    /// Takes received bytes.
    pub fn feed(&mut self, bytes: &[u8]) {
        self.bytes.drain(..self.taken);
        self.taken = 0;
        self.bytes.extend_from_slice(bytes);
    }

    /// The next complete record.
    pub fn take(&mut self) -> Result<Option<Sighting>, ProtocolError> {
        let rest = &self.bytes[self.taken..];
        let Some((length, rest)) = rest.split_first_chunk::<LENGTH_BYTES>() else {
            return Ok(None);
        };
        let length = u32::from_le_bytes(*length) as usize;
        if length > MAX_RECORD_BYTES {
            return Err(ProtocolError::MessageTooLong { message_bytes: length });
        }
        let Some(record) = rest.get(..length) else { return Ok(None) };
        let sighting = decode(record)?;
        self.taken += LENGTH_BYTES + length;
        Ok(Some(sighting))
    }

    /// Whether the bytes end in the middle of a record.
    pub fn is_cut(&self) -> bool {
        self.taken < self.bytes.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sightings() -> Vec<Sighting> {
        let long = vec![b'x'; 4096];
        let text = vec![b'y'; MAX_LINE_BYTES];
        vec![
            Sighting::Armed,
            Sighting::Match { path: long, line: u64::MAX, column: 1, text },
            Sighting::Over { truncated: true, count: 7 },
        ]
    }

    #[test]
    fn look_records_are_read_however_they_are_cut() {
        let mut bytes = Vec::new();
        for one in sightings() {
            one.write_to(&mut bytes);
        }
        for piece in [1, 3, 4, 5, 1000, bytes.len()] {
            let (mut read, mut found) = (Sightings::default(), Vec::new());
            for part in bytes.chunks(piece) {
                read.feed(part);
                while let Some(one) = read.take().unwrap() {
                    found.push(one);
                }
            }
            assert_eq!(found, sightings());
            assert!(!read.is_cut());
        }
    }

    #[test]
    fn an_oversized_look_record_is_refused_before_it_is_held() {
        let mut read = Sightings::default();
        read.feed(&u32::MAX.to_le_bytes());
        assert_eq!(
            read.take(),
            Err(ProtocolError::MessageTooLong { message_bytes: u32::MAX as usize })
        );
        let mut read = Sightings::default();
        read.feed(&[1, 0, 0, 0, 99]);
        assert_eq!(read.take(), Err(ProtocolError::BadMessage));
        let mut read = Sightings::default();
        read.feed(&[2, 0, 0]);
        assert_eq!(read.take(), Ok(None));
        assert!(read.is_cut());
    }
}

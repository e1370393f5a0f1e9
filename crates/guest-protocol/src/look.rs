//! What a look around inside a sandbox asks for, and what it tells. A look is a process of its own:
//! what it sees travels on a pipe or lane as records, each behind its length, so that it may be long
//! and be given up at any byte. Whoever reads them must believe no length before it was checked.

use serde::{Deserialize, Serialize};

use crate::decode;
use crate::error::ProtocolError;
use crate::message::{EntryKind, Fault};

/// The most bytes a record may have: two paths and a line.
pub const MAX_RECORD_BYTES: usize = 16 * 1024;

/// The most of a line that is told.
pub const MAX_LINE_BYTES: usize = 1024;

/// What is before a record.
const LENGTH_BYTES: usize = 4;

/// What to look for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Look {
    /// Files. Tells of `File`s, then `Over`.
    Find {
        /// Beneath which directory.
        path: String,
        /// Which of them.
        which: Which,
        /// Only these kinds; all if empty.
        kinds: Vec<EntryKind>,
        /// How far down; 1 is the directory itself.
        max_depth: Option<u32>,
        /// When to be done.
        until: Until,
    },
    /// A text. Tells of `Match`es, then `Over`.
    Search {
        /// Beneath which directory, or in which file.
        path: String,
        /// The text.
        text: String,
        /// Whether `A` and `a` differ.
        case_sensitive: bool,
        /// In which files.
        which: Which,
        /// When to be done.
        until: Until,
    },
    /// Changes. Tells that it is `Armed`, then of `Change`s, then `Over` if there can be no more.
    Watch {
        /// Of which directory.
        path: String,
        /// And of those beneath it.
        recursive: bool,
    },
    /// Sockets of a program and of what descends from it. Tells of `Socket`s, then `Over`.
    Sockets {
        /// Its process id.
        pid: u32,
    },
}

/// Which files are looked at.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Which {
    /// Only those whose last name is like one of these; all if empty.
    pub names: Vec<String>,
    /// Directories of these names are passed over.
    pub exclude_directories: Vec<String>,
    /// What begins with a dot is passed over.
    pub exclude_hidden: bool,
}

/// When a look is done though there may be more.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Until {
    /// After so many.
    pub results: u32,
    /// After so long.
    pub time_ms: u32,
}

/// What a look tells.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Sighting {
    /// A watch misses nothing from here on.
    Armed,
    /// A file.
    File {
        /// From the directory that is looked in.
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
        /// The file, from the directory that is looked in; empty if that is the file.
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
        /// Whose.
        pid: u32,
        /// The name of that program.
        program: String,
        /// The table it is in: `tcp`, `tcp6`, `udp` or `udp6`.
        protocol: String,
        /// Its own address.
        local_address: String,
        /// Its own port.
        local_port: u16,
        /// The other end's address.
        remote_address: String,
        /// The other end's port.
        remote_port: u16,
        /// `LISTEN`, `ESTABLISHED` and so on.
        state: String,
    },
    /// Something changed.
    Change {
        /// What.
        kind: Change,
        /// The whole path.
        path: Vec<u8>,
        /// Whether it is a directory.
        is_directory: bool,
    },
    /// That was all.
    Over {
        /// Whether there is more, or may be.
        truncated: bool,
        /// Of files: directories that could not be read. Of a text: files that were looked into.
        count: u64,
    },
    /// It could not be done.
    Failed(Fault),
}

/// What changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Change {
    /// It is there now.
    Created,
    /// Its contents.
    Written,
    /// It is gone.
    Removed,
    /// It has another name now. Where that is watched too, it is told of as created.
    Renamed,
    /// Its permissions, or when it was written.
    About,
    /// Some changes are not told of.
    Lost,
}

impl Sighting {
    /// Adds it to bytes on their way out, behind its length. One that is too long is left out: no
    /// path or line that exists makes one.
    pub fn write_to(&self, bytes: &mut Vec<u8>) {
        let Ok(record) = postcard::to_allocvec(self) else { return };
        if record.len() <= MAX_RECORD_BYTES {
            bytes.extend_from_slice(&(record.len() as u32).to_le_bytes());
            bytes.extend_from_slice(&record);
        }
    }
}

/// Takes records out of bytes as they come. Holds one record at most, and what was read with it.
#[derive(Debug, Default)]
pub struct Sightings {
    bytes: Vec<u8>,
    taken: usize,
}

impl Sightings {
    /// Bytes that came.
    pub fn feed(&mut self, bytes: &[u8]) {
        self.bytes.drain(..self.taken);
        self.taken = 0;
        self.bytes.extend_from_slice(bytes);
    }

    /// The next record that is whole.
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

    /// Whether it ended in the middle of a record.
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
    fn records_are_read_however_they_are_cut() {
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
    fn what_is_no_record_is_refused_before_it_is_held() {
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

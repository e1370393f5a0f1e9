//! The mark: a small file beside the database with the sequence of the last commit. A database with
//! a lower sequence lacks commits, and so does one whose log is gone; SQLite alone does not notice.
//!
//! A commit overwrites the mark in place, without waiting for the disk: it survives `kill -9`.
//! After a power cut it may be older than the database, never newer than what was committed, so
//! both of its numbers are lower bounds. It has two slots, written alternately: a torn write leaves
//! the other.

use std::fmt::Write as _;
use std::fs::{self, File};
use std::io::{self, ErrorKind, Write as _};
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::path::Path;

use crate::error::{StoreError, StoreErrorCode};

/// The name of the file in the directory of the database.
pub const MARK_FILE: &str = "shoal.db-mark";

/// Bytes of a slot: one sector or less, so that a disk writes all of it or nothing.
const SLOT_BYTES: usize = 256;
const SLOTS: usize = 2;
const FORMAT: &str = "shoal-mark-1";

/// Where Linux has the id of this boot.
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

/// How the last server that had the database ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stop {
    /// It runs, or was killed. Then there is a log.
    None,
    /// In order: the log was checkpointed into the database.
    Orderly,
    /// In order, but another program that read kept the log from being truncated. That program may
    /// checkpoint and remove it when it is done.
    Held,
}

/// The contents of the file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Mark {
    /// The identity of the database.
    pub(super) store: u64,
    /// The boot of the machine in which it was written.
    pub(super) boot: String,
    /// The last commit.
    pub(super) sequence: u64,
    /// The last commit that the disk has for certain, also after a power cut.
    pub(super) durable: u64,
    pub(super) stop: Stop,
}

/// The file, open to be overwritten.
#[derive(Debug)]
pub(super) struct MarkFile {
    file: File,
    mark: Mark,
    writes: u64,
}

/// The id of this boot; empty where the machine has none.
pub(super) fn this_boot() -> String {
    fs::read_to_string(BOOT_ID).map(|id| id.trim().to_owned()).unwrap_or_default()
}

/// The mark in a directory; none if there is none.
pub(super) fn read(directory: &Path) -> Result<Option<Mark>, StoreError> {
    Ok(slots(directory)?.map(|(_, mark)| mark))
}

impl MarkFile {
    /// Opens the mark of a directory, or makes it.
    pub(super) fn take(directory: &Path, mark: Mark) -> Result<Self, StoreError> {
        let path = directory.join(MARK_FILE);
        // The operator accepted the loss of an unreadable mark before this is called.
        let writes = slots(directory).ok().flatten().map(|(writes, _)| writes);
        let file = match writes {
            Some(_) => File::options().write(true).open(&path),
            None => make(directory, &mark),
        };
        let file = file.map_err(|error| refused("write", &error))?;
        let mut taken = Self { file, mark, writes: writes.unwrap_or(0) };
        taken.write().map_err(|error| refused("write", &error))?;
        Ok(taken)
    }

    /// The last commit.
    pub(super) const fn sequence(&self) -> u64 {
        self.mark.sequence
    }

    /// A commit was made. If the write fails, the lower number is still true.
    pub(super) fn committed(&mut self, sequence: u64) {
        self.mark.sequence = sequence;
        let _ = self.write();
    }

    /// Every commit so far is in the database itself, and the disk has it.
    pub(super) fn checkpointed(&mut self) {
        self.mark.durable = self.mark.sequence;
        let _ = self.write();
    }

    /// The server stops in order: nothing is in the log alone.
    pub(super) fn stopped(&mut self) {
        self.mark.stop = Stop::Orderly;
        self.checkpointed();
    }

    /// The server stops in order, and the log is left.
    pub(super) fn stopped_with_log(&mut self) {
        self.mark.stop = Stop::Held;
        // If the write fails, the next start treats this stop as a kill.
        let _ = self.write();
    }

    fn write(&mut self) -> io::Result<()> {
        let writes = self.writes + 1;
        let offset = (writes as usize % SLOTS) * SLOT_BYTES;
        self.file.write_all_at(&encode(writes, &self.mark), offset as u64)?;
        self.writes = writes;
        Ok(())
    }
}

/// Makes the file with both slots, complete or not at all.
fn make(directory: &Path, mark: &Mark) -> io::Result<File> {
    let unfinished = directory.join(format!("{MARK_FILE}.new"));
    match fs::remove_file(&unfinished) {
        Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
        Ok(()) | Err(_) => {}
    }
    let mut file = File::options().write(true).create_new(true).mode(0o600).open(&unfinished)?;
    for _ in 0..SLOTS {
        file.write_all(&encode(0, mark))?;
    }
    file.sync_all()?;
    fs::rename(&unfinished, directory.join(MARK_FILE))?;
    File::open(directory)?.sync_all()?;
    Ok(file)
}

/// The later of the readable slots.
fn slots(directory: &Path) -> Result<Option<(u64, Mark)>, StoreError> {
    let bytes = match fs::read(directory.join(MARK_FILE)) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(refused("read", &error)),
    };
    let found = bytes.chunks(SLOT_BYTES).take(SLOTS).filter_map(decode);
    found.max_by_key(|(writes, _)| *writes).map(Some).ok_or_else(|| {
        let cause = format!("{MARK_FILE} is not what this program writes");
        StoreError::new(StoreErrorCode::Incomplete, cause)
    })
}

fn encode(writes: u64, mark: &Mark) -> Vec<u8> {
    let stop = match mark.stop {
        Stop::None => "none",
        Stop::Orderly => "orderly",
        Stop::Held => "held",
    };
    let boot = if mark.boot.is_empty() { "unknown" } else { &mark.boot };
    let mut line = format!(
        "{FORMAT} write={writes} store={:016x} boot={boot} sequence={} durable={} stop={stop}",
        mark.store, mark.sequence, mark.durable
    );
    let sum = checksum(line.as_bytes());
    // Writing to a string cannot fail.
    let _ = write!(line, " sum={sum:016x}");
    let mut slot = line.into_bytes();
    slot.resize(SLOT_BYTES - 1, b' ');
    slot.push(b'\n');
    slot
}

fn decode(slot: &[u8]) -> Option<(u64, Mark)> {
    let line = std::str::from_utf8(slot).ok()?.trim_end();
    let (said, sum) = line.rsplit_once(" sum=")?;
    if u64::from_str_radix(sum, 16).ok()? != checksum(said.as_bytes()) {
        return None;
    }
    let mut fields = said.strip_prefix(FORMAT)?.split_whitespace();
    let mut field = |name: &str| fields.next()?.strip_prefix(name)?.strip_prefix('=');
    let writes = field("write")?.parse().ok()?;
    let store = u64::from_str_radix(field("store")?, 16).ok()?;
    let boot = match field("boot")? {
        "unknown" => String::new(),
        boot => boot.to_owned(),
    };
    let sequence = field("sequence")?.parse().ok()?;
    let durable = field("durable")?.parse().ok()?;
    let stop = match field("stop")? {
        "none" => Stop::None,
        "orderly" => Stop::Orderly,
        "held" => Stop::Held,
        _ => return None,
    };
    Some((writes, Mark { store, boot, sequence, durable, stop }))
}

/// FNV-1a: tells a torn or garbled line from a whole one.
fn checksum(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |sum, byte| {
        (sum ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}

fn refused(act: &str, error: &io::Error) -> StoreError {
    let full = [ErrorKind::StorageFull, ErrorKind::QuotaExceeded].contains(&error.kind());
    let code = if full { StoreErrorCode::DiskFull } else { StoreErrorCode::Io };
    StoreError::new(code, format!("{act} {MARK_FILE}: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sqlite::tests::Directory;

    fn mark(sequence: u64) -> Mark {
        Mark { store: 7, boot: "b-1".to_owned(), sequence, durable: 2, stop: Stop::None }
    }

    #[test]
    fn mark_reads_back_the_last_write() {
        let directory = Directory::new();
        assert_eq!(read(&directory.0), Ok(None));
        let mut file = MarkFile::take(&directory.0, mark(3)).expect("made");
        assert_eq!(read(&directory.0), Ok(Some(mark(3))));
        for sequence in 4..9 {
            file.committed(sequence);
            assert_eq!(read(&directory.0), Ok(Some(mark(sequence))));
        }
        file.stopped();
        let stopped = Mark { durable: 8, stop: Stop::Orderly, ..mark(8) };
        assert_eq!(read(&directory.0), Ok(Some(stopped)));
        let nowhere = Mark { boot: String::new(), ..mark(9) };
        drop(MarkFile::take(&directory.0, nowhere.clone()).expect("opened"));
        assert_eq!(read(&directory.0), Ok(Some(nowhere)));
    }

    #[test]
    fn mark_with_a_torn_slot_uses_the_other_and_with_two_is_refused() {
        let directory = Directory::new();
        let mut file = MarkFile::take(&directory.0, mark(3)).expect("made");
        file.committed(4);
        let path = directory.0.join(MARK_FILE);
        let whole = fs::read(&path).expect("read");
        for slot in 0..SLOTS {
            for at in [0, 30, 100] {
                let mut torn = whole.clone();
                torn[slot * SLOT_BYTES + at] ^= 1;
                fs::write(&path, &torn).expect("written");
                let found = read(&directory.0).expect("the other slot").expect("a mark");
                assert!([3, 4].contains(&found.sequence), "{slot} {at}: {found:?}");
            }
        }
        for garbled in [Vec::new(), vec![0; SLOT_BYTES * SLOTS], b"x".repeat(900)] {
            fs::write(&path, garbled).expect("written");
            let error = read(&directory.0).expect_err("garbled");
            assert_eq!(error.code, StoreErrorCode::Incomplete, "{error}");
        }
    }
}

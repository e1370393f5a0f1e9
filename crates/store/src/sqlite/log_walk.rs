//! Reads the write-ahead log as a file, to distinguish a log that ends from one that is damaged.
//! SQLite stops at the first frame that it cannot use and reports nothing about later ones.
//!
//! Changes nothing, and takes no lock.

use std::fs::File;
use std::io::{self, BufReader, ErrorKind, Read};
use std::path::Path;

const HEADER_BYTES: usize = 32;
const FRAME_HEADER_BYTES: usize = 24;
/// The last bit is the byte order of the checksums.
const MAGIC: u32 = 0x377f_0682;
const PAGE_BYTES_MAX: u32 = 65_536;

/// What a log contains.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Walk {
    /// Frames that SQLite uses.
    pub(super) usable: u64,
    /// Whether there is a later frame that SQLite does not use.
    pub(super) ends_early: bool,
    /// Whole commits behind the first unusable frame.
    pub(super) commits_behind: u64,
    /// Its header cannot be read, though there are frames.
    pub(super) headless: bool,
}

impl Walk {
    /// Whether it has commits that SQLite would ignore.
    pub(super) const fn is_damaged(self) -> bool {
        self.headless || self.commits_behind > 0
    }
}

/// Walks through a log. None if there is no file.
pub(super) fn walk(log: &Path) -> io::Result<Option<Walk>> {
    match File::open(log) {
        Ok(file) => {
            let length = file.metadata()?.len();
            walk_through(&mut BufReader::with_capacity(1 << 20, file), length).map(Some)
        }
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// Two sums, each of the words and of the other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Sums(u32, u32);

impl Sums {
    fn over(mut self, bytes: &[u8], big_endian: bool) -> Self {
        let (words, _) = bytes.as_chunks::<4>();
        let (pairs, _) = words.as_chunks::<2>();
        for [first, second] in pairs {
            let word = |bytes: &[u8; 4]| {
                if big_endian { u32::from_be_bytes(*bytes) } else { u32::from_le_bytes(*bytes) }
            };
            self.0 = self.0.wrapping_add(word(first)).wrapping_add(self.1);
            self.1 = self.1.wrapping_add(word(second)).wrapping_add(self.0);
        }
        self
    }
}

fn number(bytes: &[u8], at: usize) -> u32 {
    bytes.get(at..at + 4).and_then(|four| four.try_into().ok()).map_or(0, u32::from_be_bytes)
}

fn walk_through(log: &mut impl Read, length: u64) -> io::Result<Walk> {
    let mut found = Walk::default();
    if length <= HEADER_BYTES as u64 {
        return Ok(found);
    }
    let mut header = [0; HEADER_BYTES];
    log.read_exact(&mut header)?;
    let (magic, page_bytes) = (number(&header, 0), number(&header, 8));
    let big_endian = magic & 1 == 1;
    let mut sums = Sums(0, 0).over(&header[..24], big_endian);
    let known = magic & !1 == MAGIC
        && page_bytes.is_power_of_two()
        && (512..=PAGE_BYTES_MAX).contains(&page_bytes)
        && sums == Sums(number(&header, 24), number(&header, 28));
    if !known {
        found.headless = true;
        return Ok(found);
    }
    let salts = &header[16..24];
    let mut frame = vec![0; FRAME_HEADER_BYTES + page_bytes as usize];
    let frames = (length - HEADER_BYTES as u64) / frame.len() as u64;
    for _ in 0..frames {
        log.read_exact(&mut frame)?;
        let (head, page) = frame.split_at(FRAME_HEADER_BYTES);
        let said = Sums(number(head, 16), number(head, 20));
        let is = sums.over(&head[..8], big_endian).over(page, big_endian);
        let ours = number(head, 0) != 0 && &head[8..16] == salts;
        if ours && is == said && !found.ends_early {
            found.usable += 1;
        } else if !found.ends_early {
            found.ends_early = true;
        } else if ours && is == said && number(head, 4) > 0 {
            // The frame before it has the start of its checksum, also if it is damaged itself.
            found.commits_behind += 1;
        }
        sums = said;
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use rusqlite::Connection;

    use super::*;
    use crate::sqlite::open;
    use crate::sqlite::tests::Directory;

    /// A log with commits, as a kill leaves it, and where its frames begin.
    fn log(directory: &Directory) -> Vec<u8> {
        let path = directory.0.join("x.db");
        open::make_file(&path).expect("made");
        let conn: Connection = open::to_write(&path).expect("opened");
        conn.execute_batch("CREATE TABLE t (x TEXT)").expect("made");
        for _ in 0..20 {
            conn.execute("INSERT INTO t VALUES (?1)", ["x".repeat(3_000)]).expect("written");
        }
        fs::read(directory.0.join("x.db-wal")).expect("a log")
    }

    fn walked(bytes: &[u8]) -> Walk {
        walk_through(&mut &*bytes, bytes.len() as u64).expect("read")
    }

    #[test]
    fn log_walk_tells_a_log_that_ends_from_a_damaged_one() {
        let directory = Directory::new();
        let whole = log(&directory);
        let frame = FRAME_HEADER_BYTES + 4_096;
        let frames = (whole.len() - HEADER_BYTES) / frame;
        assert!(frames > 20, "{frames}");
        let all = Walk { usable: frames as u64, ..Walk::default() };
        assert_eq!(walked(&whole), all);
        assert_eq!(walked(&[]), Walk::default());
        assert_eq!(walked(&whole[..HEADER_BYTES]), Walk::default());

        let cut = walked(&whole[..whole.len() - 100]);
        assert_eq!((cut.usable, cut.is_damaged()), (frames as u64 - 1, false), "cut short");
        let mut torn = whole.clone();
        let last = torn.len() - 100;
        torn[last..].fill(0);
        let torn = walked(&torn);
        assert_eq!((torn.usable, torn.ends_early), (frames as u64 - 1, true));
        assert!(!torn.is_damaged(), "nothing is behind it");

        for (what, at) in [("a page", 2_000), ("its sums", 18), ("its salts", 9)] {
            let mut damaged = whole.clone();
            damaged[HEADER_BYTES + 5 * frame + at] ^= 0x40;
            let found = walked(&damaged);
            assert_eq!(found.usable, 5, "{what}");
            assert!(found.is_damaged() && found.commits_behind >= 10, "{what}: {found:?}");
        }
        let mut headless = whole.clone();
        headless[20] ^= 1;
        assert!(walked(&headless).is_damaged());
    }

    #[test]
    fn log_walk_ignores_what_an_earlier_log_left() {
        let directory = Directory::new();
        let path = directory.0.join("x.db");
        drop(log(&directory));
        let conn = open::to_write(&path).expect("opened");
        // Overwritten from its beginning: what follows has other salts.
        let restart = "PRAGMA wal_checkpoint(RESTART)";
        conn.query_row(restart, [], |_| Ok(())).expect("brought over");
        conn.execute("INSERT INTO t VALUES ('y')", []).expect("written");
        let found = walk(&directory.0.join("x.db-wal")).expect("read").expect("a log");
        assert!(found.ends_early && !found.is_damaged(), "{found:?}");
        assert_eq!(walk(&directory.0.join("none")).expect("looked"), None);
    }
}

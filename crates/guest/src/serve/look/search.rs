//! Finds lines with a text. A file is read in pieces, however long its lines are, and the search
//! ends as soon as enough was found.

use std::os::fd::{AsFd, OwnedFd};

use guest_protocol::look::{MAX_LINE_BYTES, Sighting, Until, Which};
use guest_protocol::message::{EntryKind, Fault, FaultCode};
use rustix::fs::fstat;
use rustix::io::{Errno, read};

use super::super::fault::fault;
use super::super::files::kind_of;
use super::record_writer::RecordWriter;
use super::walk::{Deadline, Walk};

/// Bytes read of a file at once.
const PIECE_BYTES: usize = 64 * 1024;

/// A file with a zero byte in this much of its beginning is not text.
const LOOKED_AT_BYTES: usize = 8 * 1024;

/// How much of a long line is reported before the text.
const BEFORE_BYTES: usize = 128;

/// The longest text to search for.
const MAX_TEXT_BYTES: usize = 4096;

/// A text to search for.
struct Needle {
    text: Vec<u8>,
    folded: bool,
    /// How far to move on when this byte is at the end of the compared window.
    skips: [usize; 256],
}

impl Needle {
    fn new(text: &[u8], case_sensitive: bool) -> Self {
        let folded = !case_sensitive;
        let text = if folded { text.to_ascii_lowercase() } else { text.to_vec() };
        let mut skips = [text.len(); 256];
        for (at, &byte) in text.iter().enumerate().take(text.len() - 1) {
            skips[usize::from(byte)] = text.len() - 1 - at;
        }
        Self { text, folded, skips }
    }

    fn fold(&self, byte: u8) -> u8 {
        if self.folded { byte.to_ascii_lowercase() } else { byte }
    }

    /// The first position of the text.
    fn find(&self, bytes: &[u8]) -> Option<usize> {
        let last = self.text.len() - 1;
        let mut at = 0;
        while let Some(window) = bytes.get(at..=at + last) {
            let end = self.fold(window[last]);
            if end == self.text[last]
                && window.iter().zip(&self.text).all(|(&byte, &text)| self.fold(byte) == text)
            {
                return Some(at);
            }
            at += self.skips[usize::from(end)];
        }
        None
    }
}

/// A line that contains the text.
#[derive(Debug, PartialEq, Eq)]
struct Line {
    number: u64,
    column: u64,
    text: Vec<u8>,
}

/// The lines of a file, as they are read.
struct Lines<'a> {
    needle: &'a Needle,
    number: u64,
    /// The part of the line that is held.
    held: Vec<u8>,
    /// How many bytes of the line came before it.
    passed: u64,
    /// The text was found in this line.
    is_found: bool,
}

impl<'a> Lines<'a> {
    fn new(needle: &'a Needle) -> Self {
        Self { needle, number: 1, held: Vec::new(), passed: 0, is_found: false }
    }

    /// Takes more of the file. `found` returns whether to go on.
    fn take(&mut self, mut bytes: &[u8], found: &mut impl FnMut(Line) -> bool) -> bool {
        while let Some(end) = bytes.iter().position(|&byte| byte == b'\n') {
            self.hold(&bytes[..end]);
            if !self.look(found) {
                return false;
            }
            self.held.clear();
            (self.passed, self.is_found) = (0, false);
            self.number += 1;
            bytes = &bytes[end + 1..];
        }
        self.hold(bytes);
        if self.held.len() < PIECE_BYTES {
            return true;
        }
        let go_on = self.look(found);
        // What is kept may be the beginning of the text, or be shown before it.
        let kept = (self.needle.text.len() + BEFORE_BYTES).min(self.held.len());
        let passed = self.held.len() - kept;
        self.held.drain(..passed);
        self.passed += passed as u64;
        go_on
    }

    /// The file is at its end.
    fn end(&mut self, found: &mut impl FnMut(Line) -> bool) -> bool {
        self.held.is_empty() || self.look(found)
    }

    fn hold(&mut self, bytes: &[u8]) {
        // After a find, the rest of the line does not matter.
        if !self.is_found {
            self.held.extend_from_slice(bytes);
        }
    }

    fn look(&mut self, found: &mut impl FnMut(Line) -> bool) -> bool {
        if self.is_found {
            return true;
        }
        let Some(at) = self.needle.find(&self.held) else { return true };
        let end = at + self.needle.text.len();
        let shown = at.saturating_sub(BEFORE_BYTES);
        self.is_found = true;
        let from = if self.passed == 0 && end <= MAX_LINE_BYTES { 0 } else { shown };
        let to = self.held.len().min(from + MAX_LINE_BYTES);
        found(Line {
            number: self.number,
            column: self.passed + at as u64 + 1,
            text: self.held[from..to].to_vec(),
        })
    }
}

/// Reports the lines with a text, in a file or beneath a directory.
pub(super) fn search(
    path: &str,
    text: &[u8],
    case_sensitive: bool,
    which: &Which,
    until: Until,
    records: &mut RecordWriter,
) -> Result<(), Fault> {
    if text.is_empty() || text.len() > MAX_TEXT_BYTES {
        let message = format!("a text to search for must have 1 to {MAX_TEXT_BYTES} bytes");
        return Err(fault(FaultCode::Invalid, message));
    }
    let needle = Needle::new(text, case_sensitive);
    let deadline = Deadline::after(until.time_ms);
    let mut search = Search { needle, deadline, left: until.results, files: 0, records };
    let mut truncated = false;
    match Walk::start(path, which, None)? {
        Err(file) => truncated = !search.look_into(&file, b""),
        Ok(mut walk) => {
            while let Some(visit) = walk.next() {
                if deadline.has_passed() || search.records.is_closed() {
                    truncated = true;
                    break;
                }
                if !visit.is_wanted || kind_of(&visit.stat) != EntryKind::File {
                    continue;
                }
                // An unreadable file counts as empty.
                if let Ok(file) = walk.open(&visit.path)
                    && !search.look_into(&file, &visit.path)
                {
                    truncated = true;
                    break;
                }
            }
            truncated |= walk.is_cut;
        }
    }
    let count = search.files;
    records.write(&Sighting::Over { truncated, count });
    Ok(())
}

struct Search<'a> {
    needle: Needle,
    deadline: Deadline,
    left: u32,
    files: u64,
    records: &'a mut RecordWriter,
}

impl Search<'_> {
    /// Whether to go on after this file.
    fn look_into(&mut self, file: &OwnedFd, path: &[u8]) -> bool {
        // The file may have been replaced, for example by a device that never ends.
        if !is_file(file) {
            return true;
        }
        let Self { needle, deadline, left, files, records } = self;
        let mut lines = Lines::new(needle);
        let mut tell = |Line { number, column, text }: Line| {
            records.write(&Sighting::Match { path: path.to_vec(), line: number, column, text });
            *left = left.saturating_sub(1);
            *left > 0 && !records.is_closed()
        };
        let mut buffer = vec![0; PIECE_BYTES];
        let mut is_first = true;
        loop {
            let count = match read(file, &mut buffer) {
                Ok(0) | Err(Errno::AGAIN) => return lines.end(&mut tell),
                Ok(count) => count,
                Err(Errno::INTR) => continue,
                Err(_) => return true,
            };
            let piece = &buffer[..count];
            if is_first {
                if piece[..count.min(LOOKED_AT_BYTES)].contains(&0) {
                    return true;
                }
                *files += 1;
                is_first = false;
            }
            if !lines.take(piece, &mut tell) || deadline.has_passed() {
                return false;
            }
        }
    }
}

fn is_file(file: impl AsFd) -> bool {
    fstat(file).is_ok_and(|found| kind_of(&found) == EntryKind::File)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The lines found in a file that is read in pieces of a size.
    fn lines(text: &str, case_sensitive: bool, file: &[u8], piece: usize) -> Vec<Line> {
        let needle = Needle::new(text.as_bytes(), case_sensitive);
        let (mut lines, mut found) = (Lines::new(&needle), Vec::new());
        let mut keep = |line| {
            found.push(line);
            true
        };
        for part in file.chunks(piece) {
            assert!(lines.take(part, &mut keep));
        }
        assert!(lines.end(&mut keep));
        found
    }

    fn line(number: u64, column: u64, text: &[u8]) -> Line {
        Line { number, column, text: text.to_vec() }
    }

    #[test]
    fn search_finds_a_text_once_per_line() {
        let file = b"one\ntwo abc abc\n\nABC\nab\nc\nabc";
        for piece in [1, 2, 5, 100] {
            let exact = [line(2, 5, b"two abc abc"), line(7, 1, b"abc")];
            assert_eq!(lines("abc", true, file, piece), exact);
            let any = [line(2, 5, b"two abc abc"), line(4, 1, b"ABC"), line(7, 1, b"abc")];
            assert_eq!(lines("AbC", false, file, piece), any);
            assert_eq!(lines("d", true, file, piece), []);
        }
    }

    #[test]
    fn search_cuts_long_lines() {
        for at in [0, 500, 1021, 1022, 65_534, 65_536, 200_000] {
            let mut file = vec![b'x'; 300_000];
            file[at..at + 3].copy_from_slice(b"abc");
            file.extend_from_slice(b"\nabc");
            for piece in [777, PIECE_BYTES] {
                let found = lines("abc", true, &file, piece);
                assert_eq!(found.len(), 2, "{at} {piece}");
                assert_eq!((found[0].number, found[0].column), (1, at as u64 + 1));
                assert!(found[0].text.len() <= MAX_LINE_BYTES);
                assert!(found[0].text.windows(3).any(|window| window == b"abc"), "{at} {piece}");
                assert_eq!(found[1], line(2, 1, b"abc"));
            }
        }
    }

    #[test]
    fn search_ends_when_enough_is_found() {
        let needle = Needle::new(b"a", true);
        let mut lines = Lines::new(&needle);
        let mut count = 0;
        let mut two = |_| {
            count += 1;
            count < 2
        };
        assert!(!lines.take(&b"a\n".repeat(1000), &mut two));
        assert_eq!(count, 2);
    }
}

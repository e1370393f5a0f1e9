//! Splits bytes into lines as they come, in any pieces. It must never hold more than one line and
//! one chunk, whatever the other side sends.

/// The capacity that an empty buffer keeps.
const KEPT_BYTES: usize = 64 * 1024;

/// A line that is longer than allowed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct TooLong;

/// Assembles lines.
#[derive(Debug)]
pub(crate) struct Lines {
    buffer: Vec<u8>,
    /// Where the next line begins.
    start: usize,
    /// No line ends before this.
    searched: usize,
    line_bytes_max: usize,
}

impl Lines {
    /// For lines of at most this many bytes, without their end.
    pub(crate) fn new(line_bytes_max: usize) -> Self {
        Self { buffer: Vec::new(), start: 0, searched: 0, line_bytes_max }
    }

    /// The same with shorter lines.
    pub(crate) fn at_most(mut self, line_bytes_max: usize) -> Self {
        self.line_bytes_max = self.line_bytes_max.min(line_bytes_max);
        self
    }

    /// Takes received bytes.
    pub(crate) fn push(&mut self, bytes: &[u8]) {
        self.buffer.drain(..self.start);
        self.searched -= self.start;
        self.start = 0;
        self.buffer.extend_from_slice(bytes);
    }

    /// The next complete line that is not empty. After a line that is too long there is none.
    pub(crate) fn next(&mut self) -> Result<Option<Vec<u8>>, TooLong> {
        while let Some(found) = memchr::memchr(b'\n', &self.buffer[self.searched..]) {
            let end = self.searched + found;
            let line = &self.buffer[self.start..end];
            if line.len() > self.line_bytes_max {
                return Err(TooLong);
            }
            let line = line.strip_suffix(b"\r").unwrap_or(line).to_vec();
            (self.start, self.searched) = (end + 1, end + 1);
            if !line.is_empty() {
                return Ok(Some(line));
            }
        }
        self.searched = self.buffer.len();
        if self.searched - self.start > self.line_bytes_max {
            return Err(TooLong);
        }
        if self.start == self.searched {
            self.buffer.clear();
            self.buffer.shrink_to(KEPT_BYTES);
            (self.start, self.searched) = (0, 0);
        }
        Ok(None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// All lines of these chunks, and whether one was too long.
    fn read(chunks: &[&[u8]], max: usize) -> (Vec<Vec<u8>>, bool) {
        let (mut lines, mut found) = (Lines::new(max), Vec::new());
        for chunk in chunks {
            lines.push(chunk);
            loop {
                match lines.next() {
                    Ok(Some(line)) => found.push(line),
                    Ok(None) => break,
                    Err(TooLong) => return (found, true),
                }
            }
        }
        (found, false)
    }

    #[test]
    fn lines_survive_every_cut() {
        let bytes = b"one\r\n\n{\"two\":2}\nthree\nrest";
        let (whole, _) = read(&[bytes], 100);
        assert_eq!(whole, [b"one".to_vec(), b"{\"two\":2}".to_vec(), b"three".to_vec()]);
        for at in 0..=bytes.len() {
            assert_eq!(read(&[&bytes[..at], &bytes[at..]], 100), (whole.clone(), false));
        }
        let one_by_one: Vec<&[u8]> = bytes.chunks(1).collect();
        assert_eq!(read(&one_by_one, 100), (whole, false));
    }

    #[test]
    fn a_long_line_is_refused_whether_it_ends_or_not() {
        for (bytes, expected) in
            [(&b"12345\n"[..], false), (b"123456\n", true), (b"12345", false), (b"123456", true)]
        {
            assert_eq!(read(&[bytes], 5).1, expected, "{bytes:?}");
        }
        let (before, too_long) = read(&[b"ab\n123456"], 5);
        assert_eq!((before, too_long), (vec![b"ab".to_vec()], true));
    }

    #[test]
    fn a_huge_line_is_held_once_and_given_back() {
        let mut lines = Lines::new(5 << 20);
        for _ in 0..64 {
            lines.push(&vec![b'x'; 64 * 1024]);
            assert_eq!(lines.next(), Ok(None));
        }
        lines.push(b"\n");
        assert_eq!(lines.next().unwrap().unwrap().len(), 4 << 20);
        assert_eq!(lines.next(), Ok(None));
        assert!(lines.buffer.capacity() <= KEPT_BYTES);
    }

    proptest! {
        #[test]
        fn line_chunks_make_no_difference(
            bytes in proptest::collection::vec(prop_oneof![Just(b'\n'), Just(b'\r'), any::<u8>()], 0..300),
            sizes in proptest::collection::vec(1_usize..40, 1..20),
            max in 1_usize..64,
        ) {
            let mut chunks = Vec::new();
            let mut rest = &bytes[..];
            for size in sizes.iter().cycle() {
                if rest.is_empty() { break; }
                let (chunk, after) = rest.split_at((*size).min(rest.len()));
                chunks.push(chunk);
                rest = after;
            }
            prop_assert_eq!(read(&chunks, max), read(&[&bytes], max));
        }
    }
}

//! The lines of a block: one JSON text each, in order. A search for an id in a long history looks
//! at the text first and decodes only lines that may match. This module finds those lines; it never
//! says that a line is about the id, only that no other line can be.

use std::ops::Range;

use memchr::memmem::{Finder, FinderRev};
use memchr::{memchr, memrchr};

/// Each line that contains the needle, from the first.
pub(super) fn with<'t>(
    text: &'t [u8],
    needle: &'t Finder<'_>,
) -> impl Iterator<Item = &'t [u8]> + use<'t> {
    let mut from = 0;
    std::iter::from_fn(move || {
        let line = around(text, from + needle.find(text.get(from..)?)?);
        from = line.end + 1;
        Some(&text[line])
    })
}

/// Each line that contains the needle, from the last.
pub(super) fn with_from_last<'t>(
    text: &'t [u8],
    needle: &'t FinderRev<'_>,
) -> impl Iterator<Item = &'t [u8]> + use<'t> {
    let mut to = text.len();
    std::iter::from_fn(move || {
        let line = around(text, needle.rfind(&text[..to])?);
        to = line.start;
        Some(&text[line])
    })
}

/// All lines, from the first; reversed, from the last.
pub(super) fn all(text: &[u8]) -> impl DoubleEndedIterator<Item = &[u8]> {
    text.split(|byte| *byte == b'\n').filter(|line| !line.is_empty())
}

/// The line around this position.
fn around(text: &[u8], at: usize) -> Range<usize> {
    let start = memrchr(b'\n', &text[..at]).map_or(0, |before| before + 1);
    let end = memchr(b'\n', &text[at..]).map_or(text.len(), |after| at + after);
    start..end
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn json_lines_are_found_by_the_needle(lines in prop::collection::vec("[ab]{1,6}", 0..8)) {
            let text = lines.join("\n");
            let expected: Vec<_> = lines.iter().filter(|line| line.contains("ab")).collect();
            let words = |found: Vec<&[u8]>| {
                found.into_iter().map(|line| String::from_utf8(line.to_vec()).unwrap()).collect()
            };
            let forward: Vec<String> = words(with(text.as_bytes(), &Finder::new("ab")).collect());
            prop_assert!(forward.iter().eq(expected.iter().copied()));
            let backward: Vec<String> =
                words(with_from_last(text.as_bytes(), &FinderRev::new("ab")).collect());
            prop_assert!(backward.iter().eq(expected.iter().rev().copied()));
            let all: Vec<String> = words(all(text.as_bytes()).collect());
            prop_assert_eq!(all, lines);
        }
    }
}

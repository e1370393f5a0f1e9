//! Pieces of a log as text. A character that is cut in two waits for its other half, as long as
//! that can still come next; bytes that are not text are base64. The next offset never skips bytes
//! that were not sent.

use engine::LogPiece;
use wire::{LogStream, Output};

/// The part of a log that was read and not sent yet.
#[derive(Debug)]
pub(crate) struct LogText {
    /// Whether all of it is of one output, so that nothing can come between.
    is_one: bool,
    held: Option<LogPiece>,
}

impl LogText {
    pub(crate) fn new(is_one: bool) -> Self {
        Self { is_one, held: None }
    }

    /// What can be passed on once this was read: what was held is given up before anything else is
    /// said.
    pub(crate) fn push(&mut self, piece: LogPiece) -> impl Iterator<Item = wire::LogPiece> + use<> {
        let mut before = None;
        let end = piece.offset + piece.bytes.len() as u64;
        if let Some(held) = self.held.take() {
            let follows = held.offset + held.bytes.len() as u64 == piece.offset || self.is_one;
            if follows && held.stderr == piece.stderr {
                let mut bytes = Vec::with_capacity(held.bytes.len() + piece.bytes.len());
                bytes.extend_from_slice(&held.bytes);
                bytes.extend_from_slice(&piece.bytes);
                let now = self.split(LogPiece { bytes: bytes.into(), at: piece.at, ..held }, end);
                return before.into_iter().chain(now);
            }
            before = Some(to_wire(held, None));
        }
        let now = self.split(piece, end);
        before.into_iter().chain(now)
    }

    /// Keeps back the start of a character that is not whole yet.
    fn split(&mut self, mut piece: LogPiece, end: u64) -> Option<wire::LogPiece> {
        if let Err(error) = std::str::from_utf8(&piece.bytes)
            && error.error_len().is_none()
        {
            let tail = piece.bytes.split_off(error.valid_up_to());
            let offset = end - tail.len() as u64;
            self.held = Some(LogPiece { offset, bytes: tail, ..piece });
            let next = self.held.as_ref().map(|held| held.offset);
            return (!piece.bytes.is_empty()).then(|| to_wire(piece, next));
        }
        (!piece.bytes.is_empty()).then(|| to_wire(piece, Some(end)))
    }

    /// Where what is held begins.
    pub(crate) fn held_from(&self) -> Option<u64> {
        self.held.as_ref().map(|held| held.offset)
    }

    /// The rest at the end: the start of a character that never arrived.
    pub(crate) fn finish(&mut self) -> Option<wire::LogPiece> {
        self.held.take().map(|held| to_wire(held, None))
    }
}

fn to_wire(piece: LogPiece, next: Option<u64>) -> wire::LogPiece {
    let next_offset = next.unwrap_or(piece.offset + piece.bytes.len() as u64);
    wire::LogPiece {
        offset: piece.offset,
        next_offset,
        stream: if piece.stderr { LogStream::Stderr } else { LogStream::Stdout },
        at: piece.at.into(),
        output: Output::new(piece.bytes.into()),
    }
}

#[cfg(test)]
mod tests {
    use model::Wall;
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    fn piece(offset: u64, stderr: bool, bytes: &[u8]) -> LogPiece {
        LogPiece { offset, stderr, at: Wall(1), bytes: bytes.to_vec().into() }
    }

    fn shown(pieces: impl IntoIterator<Item = wire::LogPiece>) -> Vec<(u64, u64, Option<String>)> {
        pieces.into_iter().map(|one| (one.offset, one.next_offset, one.output.data)).collect()
    }

    #[test]
    fn log_text_waits_for_the_other_half_of_a_character() {
        let mut text = LogText::new(false);
        assert_eq!(shown(text.push(piece(0, false, b"a\xc3"))), [(0, 1, Some("a".into()))]);
        assert_eq!(text.held_from(), Some(1));
        assert_eq!(shown(text.push(piece(2, false, b"\xbcb"))), [(1, 4, Some("üb".into()))]);
        assert_eq!(text.finish(), None);
    }

    #[test]
    fn log_text_of_the_other_output_ends_the_wait() {
        let mut text = LogText::new(false);
        assert_eq!(shown(text.push(piece(0, false, b"\xe2\x82"))), []);
        let to_wire = shown(text.push(piece(2, true, b"err")));
        assert_eq!(to_wire, [(0, 2, None), (2, 5, Some("err".into()))]);
        assert_eq!(shown(text.push(piece(5, false, b"\xac"))), [(5, 6, None)]);
    }

    #[test]
    fn log_text_of_one_output_is_never_interrupted() {
        let mut text = LogText::new(true);
        assert_eq!(shown(text.push(piece(0, false, b"\xc3"))), []);
        assert_eq!(shown(text.push(piece(9, false, b"\xbc"))), [(0, 10, Some("ü".into()))]);
        assert_eq!(shown(text.push(piece(10, false, b"\xc3"))), []);
        assert_eq!(shown(text.finish()), [(10, 11, None)]);
    }

    proptest! {
        #[test]
        fn log_text_loses_no_byte_and_repeats_none(
            cuts in vec((any::<bool>(), vec(any::<u8>(), 0..6)), 0..20),
        ) {
            let mut text = LogText::new(false);
            let (mut offset, mut to_wire) = (0, Vec::new());
            for (stderr, bytes) in &cuts {
                to_wire.extend(text.push(piece(offset, *stderr, bytes)));
                offset += bytes.len() as u64;
                if let Some(held) = text.held_from() {
                    prop_assert!(to_wire.last().is_none_or(|one| one.next_offset == held));
                }
            }
            to_wire.extend(text.finish());
            let all: Vec<u8> = cuts.iter().flat_map(|(_, bytes)| bytes.clone()).collect();
            let mut seen = Vec::new();
            for one in to_wire {
                prop_assert_eq!(one.offset, seen.len() as u64);
                seen.extend(one.output.bytes().unwrap());
                prop_assert_eq!(one.next_offset, seen.len() as u64);
            }
            prop_assert_eq!(seen, all);
        }
    }
}

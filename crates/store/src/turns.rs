//! What all stores share about turns: the size of one, what a fork copies and the ids of the
//! copies, and where a page ends.

use std::io;

use model::turn::{PIECES_BEHIND_MAX, TurnChange, TurnEnd, TurnPiece, TurnRecord};
use model::{SessionId, TurnId, Wall};
use serde::Serialize;

/// The most turns that a fork copies: the latest ended ones.
pub const FORKED_TURNS_MAX: u32 = 1_000;

/// The most bytes that a fork copies: of turns without their pieces, which are shared.
pub const FORKED_BYTES_MAX: u64 = 16 << 20;

/// A page of this size ends there, whatever the limit.
pub(crate) const PAGE_BYTES: usize = 4 << 20;

/// The size of a piece: its line.
pub(crate) fn piece_bytes(piece: &TurnPiece) -> u64 {
    text_bytes(piece) + 1
}

/// The size of a turn without its pieces: its message, as it is stored.
pub(crate) fn put_bytes(record: &TurnRecord) -> u64 {
    // Its outcome is stored beside it, and its number is its row.
    text_bytes(&TurnRecord { number: 0, started: None, end: None, ..record.clone() })
}

/// The size of the end of a turn.
pub(crate) fn end_bytes(end: &TurnEnd) -> u64 {
    text_bytes(end)
}

/// The size of a record in a page.
pub(crate) fn shown_bytes(record: &TurnRecord) -> u64 {
    let text = |text: &Option<_>| text.as_deref().map_or(0, str::len);
    let end = record.end.as_ref().map_or(0, |end| text(&end.result) + text(&end.error));
    (record.input.len() + end) as u64
}

/// The length of a value as text.
pub(crate) fn text_bytes(value: &impl Serialize) -> u64 {
    struct Count(u64);
    impl io::Write for Count {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0 += bytes.len() as u64;
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }
    let mut count = Count(0);
    // Counting cannot fail, and a value that cannot be encoded has no size.
    let _ = serde_json::to_writer(&mut count, value);
    count.0
}

/// How many ended turns, latest first, a fork copies, by the size of each without its pieces.
pub(crate) fn forked(latest_first: impl Iterator<Item = u64>) -> usize {
    let mut bytes = 0_u64;
    let fits = latest_first.take(FORKED_TURNS_MAX as usize).take_while(|more| {
        bytes = bytes.saturating_add(*more);
        bytes <= FORKED_BYTES_MAX
    });
    fits.count()
}

/// The end, with its number in a turn whose last piece has this one.
pub(crate) fn numbered(end: &TurnEnd, last_piece: u64) -> TurnEnd {
    let past = last_piece.saturating_add(PIECES_BEHIND_MAX).saturating_add(1);
    TurnEnd { seq: if end.seq > 0 { end.seq } else { past }, ..end.clone() }
}

/// The id of a turn in a forked session. It follows from the two known ids, with the time of the
/// new session in front, so that no caller has to choose it.
pub(crate) fn forked_id(turn: TurnId, to: SessionId) -> TurnId {
    const TIME: u128 = !0 << 80;
    const MARKS: u128 = (0xf << 76) | (0x3 << 62);
    const VERSION_7: u128 = (0x7 << 76) | (0x2 << 62);
    let (turn, to) = (turn.as_u128(), to.as_u128());
    let half = |salt: u64| {
        [turn, turn >> 64, to, to >> 64]
            .into_iter()
            .fold(salt, |mixed, word| mix(mixed ^ (word & u128::from(u64::MAX)) as u64))
    };
    let mixed = (u128::from(half(1)) << 64) | u128::from(half(2));
    TurnId::from_u128((to & TIME) | (mixed & !TIME & !MARKS) | VERSION_7)
}

/// Spreads every bit over all others.
const fn mix(value: u64) -> u64 {
    let value = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}

/// The latest moment in the changes, against which the age of a turn counts.
pub(crate) fn latest(changes: &[TurnChange]) -> Wall {
    let at = |change: &TurnChange| match change {
        TurnChange::Put(record) => Some(record.created_at),
        TurnChange::Pieces { pieces, .. } => pieces.last().map(|piece| piece.at),
        TurnChange::Started { start, .. } => Some(start.at),
        TurnChange::Ended { end, .. } => Some(end.at),
        TurnChange::Forked { .. } => None,
    };
    changes.iter().filter_map(at).max().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn forked_turns_have_new_and_distinct_ids() {
        let session = |n: u128| SessionId::from_u128((0x0198_0000_0000 << 80) | (7 << 76) | n);
        let mut seen = BTreeSet::new();
        for to in 0..50 {
            for turn in 0..50 {
                let id = forked_id(TurnId::from_u128(turn), session(to));
                assert_eq!(id, forked_id(TurnId::from_u128(turn), session(to)));
                assert_eq!(id.as_u128() >> 80, session(to).as_u128() >> 80);
                assert_eq!((id.as_u128() >> 76) & 0xf, 7);
                assert_eq!((id.as_u128() >> 62) & 0x3, 2);
                assert!(seen.insert(id));
            }
        }
    }

    #[test]
    fn fork_copies_the_latest_turns_that_fit() {
        let half = FORKED_BYTES_MAX / 2;
        for (what, turns, expected) in [
            ("none", vec![], 0),
            ("exactly the limit", vec![half, half], 2),
            ("one byte above the limit", vec![half, half + 1], 1),
            ("nothing after a gap", vec![1, FORKED_BYTES_MAX, 1], 1),
            ("too many", vec![1; 2_000], 1_000),
            ("too much to count", vec![1, u64::MAX, 1], 1),
        ] {
            assert_eq!(forked(turns.into_iter()), expected, "{what}");
        }
    }

    #[test]
    fn turn_size_is_the_size_of_what_is_stored() {
        let piece =
            TurnPiece { seq: 12, at: Wall(5), name: "message".into(), data: "{\"a\":1}\n".into() };
        let line = format!("{}\n", serde_json::to_string(&piece).unwrap());
        assert_eq!(piece_bytes(&piece), line.len() as u64);
        assert!(piece_bytes(&piece) > piece.data.len() as u64 + 40);
    }
}

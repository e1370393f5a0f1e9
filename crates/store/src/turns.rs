//! What all stores agree on about turns: how much one says, how one is called after a fork, which
//! of them are forgotten, and where a page ends.

use model::turn::{PIECES_BEHIND_MAX, TurnChange, TurnEnd, TurnPiece, TurnRecord};
use model::{SessionId, TurnId, Wall};

use crate::retention::Retention;

/// The most turns that a fork copies: the latest that are over.
pub const FORKED_TURNS_MAX: u32 = 1_000;

/// A page that says this much ends there, however many were asked for.
pub(crate) const PAGE_BYTES: usize = 4 << 20;

/// How many turns may be forgotten in one commit, besides twice as many as ended in it.
const FORGOTTEN_AT_ONCE: u64 = 16;

/// How much a piece says.
pub(crate) fn piece_bytes(piece: &TurnPiece) -> u64 {
    (piece.name.len() + piece.data.len()) as u64
}

/// How much a turn says without its pieces: what came in, and what came out in the end.
pub(crate) fn record_bytes(input: &str, end: &TurnEnd) -> u64 {
    let text = |text: &Option<_>| text.as_deref().map_or(0, str::len);
    (input.len() + text(&end.result) + text(&end.error)) as u64
}

/// The same, of a record from which a page is made.
pub(crate) fn shown_bytes(record: &TurnRecord) -> u64 {
    record.end.as_ref().map_or(record.input.len() as u64, |end| record_bytes(&record.input, end))
}

/// The end with the number that it has in a turn whose last piece has this one.
pub(crate) fn numbered(end: &TurnEnd, last_piece: u64) -> TurnEnd {
    let past = last_piece.saturating_add(PIECES_BEHIND_MAX).saturating_add(1);
    TurnEnd { seq: if end.seq > 0 { end.seq } else { past }, ..end.clone() }
}

/// What a turn is called in a session that was forked. Nobody gives ids here: it follows from the
/// two that are known, with the time of the new session in front.
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

/// The latest moment that changes speak of: what the age of a turn is counted to.
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

/// All turns that are kept.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Tally {
    /// How many.
    pub(crate) turns: u64,
    /// How much those that are over say.
    pub(crate) bytes: u64,
}

/// Says which turns are forgotten at the end of a commit.
#[derive(Debug)]
pub(crate) struct Forgetting {
    retention: Retention,
    now: Wall,
    left: u64,
}

impl Forgetting {
    /// After a commit in which so many turns came to their end.
    pub(crate) const fn new(retention: Retention, now: Wall, ended: u64) -> Self {
        Self { retention, now, left: FORGOTTEN_AT_ONCE + 2 * ended }
    }

    /// Whether the turn that ended first, at this moment, is forgotten.
    pub(crate) fn takes(&mut self, kept: Tally, ended_at: Wall) -> bool {
        let age = u128::from(self.now.since(ended_at));
        let goes = self.left > 0
            && (kept.turns > u64::from(self.retention.turns)
                || kept.bytes > self.retention.turn_bytes
                || age > self.retention.turns_age.as_millis());
        self.left -= u64::from(goes);
        goes
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::time::Duration;

    use super::*;

    #[test]
    fn ids_of_forked_turns_are_new_and_their_own() {
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
    fn what_is_too_many_too_much_or_too_old_goes() {
        let retention = Retention {
            turns: 10,
            turns_age: Duration::from_millis(100),
            turn_bytes: 1_000,
            ..Retention::default()
        };
        for (turns, bytes, ended_at, goes) in [
            (10, 1_000, 900, false),
            (11, 0, 1_000, true),
            (1, 1_001, 1_000, true),
            (1, 0, 899, true),
            (1, 0, 2_000, false),
        ] {
            let mut forgetting = Forgetting::new(retention, Wall(1_000), 0);
            let kept = Tally { turns, bytes };
            assert_eq!(forgetting.takes(kept, Wall(ended_at)), goes, "{kept:?} {ended_at}");
        }
    }

    #[test]
    fn so_many_go_at_once_and_no_more() {
        let retention = Retention { turns: 0, ..Retention::default() };
        let mut forgetting = Forgetting::new(retention, Wall(0), 3);
        let kept = Tally { turns: 1_000, bytes: 0 };
        let gone = (0..100).filter(|_| forgetting.takes(kept, Wall(0))).count();
        assert_eq!(gone, 22);
    }
}

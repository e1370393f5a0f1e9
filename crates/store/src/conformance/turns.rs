//! Turns: their messages and pieces, their one end, what a fork begins with, and what retention
//! deletes.

use std::sync::Arc;
use std::time::Duration;

use model::turn::{PIECES_BEHIND_MAX, TurnChange, TurnEnd, TurnPiece, TurnRecord};
use model::{SessionId, TurnId, Wall};

use super::fixtures::{pieces, session_id, talk, turn, turn_end, turn_id, turn_start};
use super::{RETENTION, Subject, reopened};
use crate::contract::{Batch, Store, TurnQuery};
use crate::retention::Retention;
use crate::turns::{FORKED_BYTES_MAX, FORKED_TURNS_MAX, end_bytes, piece_bytes, put_bytes};

async fn all(store: &dyn Store, session: SessionId) -> Vec<TurnRecord> {
    let query = TurnQuery { session, after: 0, limit: u32::MAX };
    store.turns(&query).await.expect("turns")
}

async fn ids(store: &dyn Store, of: u8) -> Vec<TurnId> {
    all(store, session_id(of)).await.into_iter().map(|turn| turn.id).collect()
}

async fn given(store: &dyn Store, turn: TurnId) -> Vec<TurnPiece> {
    store.pieces(turn, 0, u32::MAX).await.expect("pieces")
}

async fn write(store: &dyn Store, changes: impl Into<Vec<TurnChange>>) {
    store.commit(&talk(changes)).await.expect("written");
}

fn put(id: u64, of: u8) -> TurnChange {
    TurnChange::Put(turn(id, of))
}

fn gave(id: u64, numbers: std::ops::RangeInclusive<u64>) -> TurnChange {
    TurnChange::Pieces { turn: turn_id(id), pieces: pieces(numbers) }
}

fn end(id: u64, at: u64, seq: u64) -> TurnChange {
    TurnChange::Ended { turn: turn_id(id), end: turn_end(at, seq) }
}

pub(super) async fn turns_are_stored_in_the_order_they_came(on: &dyn Subject) {
    let store = on.open(RETENTION);
    assert_eq!(store.turn(turn_id(1)).await, Ok(None));
    assert_eq!(all(&*store, session_id(1)).await, []);
    // Ids say nothing about the order.
    write(&*store, [put(9, 1), put(4, 2)]).await;
    write(&*store, [put(5, 1), put(1, 1)]).await;
    let start = TurnChange::Started { turn: turn_id(5), start: turn_start(7) };
    write(&*store, [start]).await;
    let store = reopened(on, store).await;
    write(&*store, [put(2, 1)]).await;
    let numbered = |id, of, number| TurnRecord { number, ..turn(id, of) };
    let started = TurnRecord { started: Some(turn_start(7)), ..numbered(5, 1, 3) };
    let of_one = [numbered(9, 1, 1), started, numbered(1, 1, 4), numbered(2, 1, 5)];
    assert_eq!(all(&*store, session_id(1)).await, of_one);
    assert_eq!(all(&*store, session_id(2)).await, [numbered(4, 2, 2)]);
    assert_eq!(store.turn(turn_id(1)).await, Ok(Some(numbered(1, 1, 4))));
    for (after, limit, expected) in [
        (0, 2, &of_one[..2]),
        (1, 2, &of_one[1..3]),
        (3, 9, &of_one[2..]),
        (5, 9, &[]),
        (u64::MAX, 9, &[]),
        (0, 0, &[]),
    ] {
        let query = TurnQuery { session: session_id(1), after, limit };
        assert_eq!(store.turns(&query).await.expect("turns"), expected, "{query:?}");
    }
}

pub(super) async fn turn_pieces_are_read_in_pages(on: &dyn Subject) {
    let store = on.open(RETENTION);
    write(&*store, [put(1, 1), gave(1, 1..=4), put(2, 1)]).await;
    write(&*store, [gave(2, 1..=1), gave(1, 5..=5), gave(1, 6..=9)]).await;
    write(&*store, [gave(1, 10..=20)]).await;
    let store = reopened(on, store).await;
    for (after, limit, expected) in
        [(0, 100, 1..=20), (0, 3, 1..=3), (2, 4, 3..=6), (9, 100, 10..=20), (15, 2, 16..=17)]
    {
        let page = store.pieces(turn_id(1), after, limit).await.expect("pieces");
        assert_eq!(page, pieces(expected), "{limit} after {after}");
    }
    for (after, limit) in [(20, 9), (u64::MAX, 9), (0, 0)] {
        assert_eq!(store.pieces(turn_id(1), after, limit).await, Ok(Vec::new()));
    }
    assert_eq!(given(&*store, turn_id(2)).await, pieces(1..=1));
}

pub(super) async fn turn_ends_once(on: &dyn Subject) {
    let store = on.open(RETENTION);
    write(&*store, [put(1, 1), gave(1, 1..=2), end(1, 5, 3)]).await;
    let over = TurnRecord { number: 1, end: Some(turn_end(5, 3)), ..turn(1, 1) };
    assert_eq!(store.turn(turn_id(1)).await, Ok(Some(over.clone())));
    let start = TurnChange::Started { turn: turn_id(1), start: turn_start(9) };
    write(&*store, [end(1, 8, 9), start, gave(1, 3..=4), end(1, 9, 0)]).await;
    let store = reopened(on, store).await;
    write(&*store, [end(1, 8, 9), put(1, 1)]).await;
    assert_eq!(all(&*store, session_id(1)).await, [over]);
    assert_eq!(given(&*store, turn_id(1)).await, pieces(1..=2));
    // A turn that comes with its end has ended from the beginning.
    let whole = TurnRecord { end: Some(turn_end(7, 1)), ..turn(2, 1) };
    write(&*store, [TurnChange::Put(whole.clone()), gave(2, 1..=1), end(2, 8, 4)]).await;
    let expected = TurnRecord { number: 2, ..whole };
    assert_eq!(store.turn(turn_id(2)).await, Ok(Some(expected)));
    assert_eq!(given(&*store, turn_id(2)).await, []);
}

pub(super) async fn turn_end_is_numbered_past_all_pieces(on: &dyn Subject) {
    let store = on.open(RETENTION);
    write(&*store, [put(1, 1), put(2, 1), put(3, 1), gave(2, 1..=7)]).await;
    write(&*store, [end(1, 1, 0), end(2, 1, 0), end(3, 1, 1)]).await;
    let store = reopened(on, store).await;
    let turns = all(&*store, session_id(1)).await;
    let seqs: Vec<_> = turns.into_iter().filter_map(|turn| Some(turn.end?.seq)).collect();
    assert_eq!(seqs, [PIECES_BEHIND_MAX + 1, 7 + PIECES_BEHIND_MAX + 1, 1]);
}

pub(super) async fn turn_changes_of_unknown_turns_are_skipped(on: &dyn Subject) {
    let store = on.open(RETENTION);
    let start = TurnChange::Started { turn: turn_id(1), start: turn_start(1) };
    let fork = TurnChange::Forked { from: session_id(1), to: session_id(2) };
    write(&*store, [gave(1, 1..=3), start, end(1, 1, 4), fork, put(2, 3)]).await;
    let store = reopened(on, store).await;
    assert_eq!(store.turn(turn_id(1)).await, Ok(None));
    assert_eq!(given(&*store, turn_id(1)).await, []);
    assert_eq!(all(&*store, session_id(2)).await, []);
    assert_eq!(ids(&*store, 3).await, [turn_id(2)], "the rest was stored");
    write(&*store, [put(1, 1)]).await;
    assert_eq!(given(&*store, turn_id(1)).await, [], "nothing was waiting for it");
}

pub(super) async fn turns_may_be_committed_again(on: &dyn Subject) {
    let store = on.open(RETENTION);
    let fork = TurnChange::Forked { from: session_id(1), to: session_id(2) };
    let batches: [Batch; 3] = [
        talk([put(1, 1), gave(1, 1..=3), put(2, 1)]),
        talk([gave(1, 4..=5), end(1, 3, 0), gave(2, 1..=1)]),
        talk([fork, put(3, 2), gave(3, 1..=2), end(3, 4, 3)]),
    ];
    for batch in &batches {
        store.commit(batch).await.expect("written");
        let copy = ids(&*store, 2).await;
        let before = (all(&*store, session_id(1)).await, all(&*store, session_id(2)).await);
        for _ in 0..2 {
            store.commit(batch).await.expect("written again");
            assert_eq!(all(&*store, session_id(1)).await, before.0);
            assert_eq!(all(&*store, session_id(2)).await, before.1);
        }
        for id in copy {
            assert!(!given(&*store, id).await.is_empty());
        }
    }
    assert_eq!(given(&*store, turn_id(1)).await, pieces(1..=5));
    // A part of what is stored already, and more.
    write(&*store, [gave(2, 1..=4)]).await;
    assert_eq!(given(&*store, turn_id(2)).await, pieces(1..=4));
}

pub(super) async fn fork_begins_with_ended_turns(on: &dyn Subject) {
    let store = on.open(RETENTION);
    let start = TurnChange::Started { turn: turn_id(1), start: turn_start(2) };
    write(&*store, [put(1, 1), put(2, 1), put(3, 1), start, gave(1, 1..=2)]).await;
    write(&*store, [gave(3, 1..=3), end(3, 3, 4), gave(2, 1..=1), end(1, 4, 3)]).await;
    let fork = |from, to| TurnChange::Forked { from: session_id(from), to: session_id(to) };
    write(&*store, [fork(1, 2)]).await;
    let (parents, copies) = (all(&*store, session_id(1)).await, all(&*store, session_id(2)).await);
    let expected: Vec<_> = [(0, 4), (2, 5)]
        .into_iter()
        .zip(&copies)
        .map(|((at, number), copy)| {
            let parent: &TurnRecord = &parents[at];
            assert_ne!(parent.id, copy.id);
            TurnRecord { id: copy.id, number, session: session_id(2), ..parent.clone() }
        })
        .collect();
    assert_eq!(copies, expected);
    let of_copy = |at: usize| copies[at].id;
    assert_eq!(given(&*store, of_copy(0)).await, pieces(1..=2));
    assert_eq!(given(&*store, of_copy(1)).await, pieces(1..=3));
    // A fork of a fork; and one of a session that has turns of its own, which copies nothing.
    write(&*store, [fork(2, 3), put(9, 4), fork(2, 4)]).await;
    let store = reopened(on, store).await;
    let again = all(&*store, session_id(3)).await;
    assert_eq!(again.len(), 2);
    assert!(again.iter().all(|turn| !copies.iter().any(|copy| copy.id == turn.id)));
    assert_eq!(given(&*store, again[1].id).await, pieces(1..=3));
    assert_eq!(ids(&*store, 4).await, [turn_id(9)]);
    // Later changes concern one of them only.
    write(&*store, [end(2, 9, 2)]).await;
    assert_eq!(ids(&*store, 2).await.len(), 2);
}

pub(super) async fn fork_copies_a_bounded_number_of_turns(on: &dyn Subject) {
    let store = on.open(Retention { turns: 100_000, ..RETENTION });
    let many = u64::from(FORKED_TURNS_MAX) + 5;
    let changes: Vec<_> = (1..=many).flat_map(|id| [put(id, 1), end(id, id, 1)]).collect();
    write(&*store, changes).await;
    write(&*store, [TurnChange::Forked { from: session_id(1), to: session_id(2) }]).await;
    let copies = all(&*store, session_id(2)).await;
    assert_eq!(copies.len(), FORKED_TURNS_MAX as usize);
    assert!(copies.iter().map(|copy| copy.created_at.0).eq(6..=many), "the latest, in order");
}

pub(super) async fn fork_copies_a_bounded_size_of_turns(on: &dyn Subject) {
    let store = on.open(Retention { turn_bytes: u64::MAX, ..RETENTION });
    let (mebi, most) = (1 << 20, FORKED_BYTES_MAX as usize);
    let long = |id, bytes| {
        let input: Arc<str> = "x".repeat(bytes).into();
        TurnChange::Put(TurnRecord { input, ..turn(id, 1) })
    };
    // Its pieces are shared, however large they are.
    let text: Arc<str> = "x".repeat(2 * mebi).into();
    let piece = TurnPiece { seq: 1, at: Wall(1), name: "".into(), data: text };
    let gave = TurnChange::Pieces { turn: turn_id(4), pieces: vec![piece] };
    write(&*store, [put(1, 1), end(1, 1, 1), long(2, 7 * mebi), end(2, 2, 1)]).await;
    write(&*store, [long(3, most - 8 * mebi), end(3, 3, 1), put(4, 1), gave, end(4, 4, 2)]).await;
    let fork = |to| TurnChange::Forked { from: session_id(1), to: session_id(to) };
    let copied = async |to| {
        let (mut made, mut after) = (Vec::new(), 0);
        loop {
            let query = TurnQuery { session: session_id(to), after, limit: 9 };
            let page = store.turns(&query).await.expect("turns");
            let Some(last) = page.last() else { return made };
            after = last.number;
            made.extend(page.into_iter().map(|turn| turn.created_at.0));
        }
    };
    write(&*store, [fork(2)]).await;
    assert_eq!(copied(2).await, [1, 2, 3, 4]);
    write(&*store, [long(5, 2 * mebi), end(5, 5, 1), fork(3)]).await;
    assert_eq!(copied(3).await, [3, 4, 5], "the latest, and none after one that is too large");
}

pub(super) async fn turns_that_ended_first_are_deleted_first(on: &dyn Subject) {
    let mut store = on.open(RETENTION);
    write(&*store, [put(1_000, 1), gave(1_000, 1..=3)]).await;
    for id in 1..=100 {
        write(&*store, [put(id, 1), gave(id, 1..=id % 5 + 1), end(id, id, 9)]).await;
        let first = (id + 1).saturating_sub(RETENTION.turns.into()).max(1);
        let kept = std::iter::once(1_000).chain(first..=id).map(turn_id);
        assert!(ids(&*store, 1).await.into_iter().eq(kept), "after {id}");
        if id % 40 == 0 {
            store = reopened(on, store).await;
        }
    }
    assert_eq!(store.turn(turn_id(1)).await, Ok(None));
    assert_eq!(given(&*store, turn_id(1)).await, []);
    assert_eq!(given(&*store, turn_id(1_000)).await, pieces(1..=3), "it has not ended");
    write(&*store, [end(1_000, 1_000, 4)]).await;
    let last = all(&*store, session_id(1)).await.last().map(|turn| turn.number);
    // Numbers continue, whatever was deleted.
    let store = reopened(on, store).await;
    write(&*store, [put(1_001, 1)]).await;
    let turn = store.turn(turn_id(1_001)).await.expect("read").expect("a turn");
    assert_eq!(Some(turn.number), last.map(|last| last + 1));
}

pub(super) async fn old_turns_are_deleted(on: &dyn Subject) {
    let age = RETENTION.turns_age.as_millis() as u64;
    let store = on.open(RETENTION);
    write(&*store, [put(1, 1), end(1, 1_000, 1), put(2, 1), end(2, 1_001, 1), put(3, 1)]).await;
    let late = |id, at| TurnChange::Put(TurnRecord { created_at: Wall(at), ..turn(id, 1) });
    write(&*store, [late(4, 1_000 + age)]).await;
    assert_eq!(ids(&*store, 1).await, [1, 2, 3, 4].map(turn_id));
    write(&*store, [late(5, 1_001 + age)]).await;
    assert_eq!(ids(&*store, 1).await, [2, 3, 4, 5].map(turn_id));
    let store = reopened(on, store).await;
    write(&*store, [late(6, 9_000 + age)]).await;
    assert_eq!(ids(&*store, 1).await, [3, 4, 5, 6].map(turn_id), "a turn that has not ended stays");
}

/// A turn with pieces of so many bytes, and its end.
fn says(id: u64, of: u8, bytes: usize) -> [TurnChange; 3] {
    let text: Arc<str> = "x".repeat(bytes).into();
    let piece = TurnPiece { seq: 1, at: Wall(id), name: "".into(), data: text };
    let end = TurnEnd { result: Some("[1]".into()), error: None, ..turn_end(id, 2) };
    [
        TurnChange::Put(TurnRecord { input: "12345".into(), ..turn(id, of) }),
        TurnChange::Pieces { turn: turn_id(id), pieces: vec![piece] },
        TurnChange::Ended { turn: turn_id(id), end },
    ]
}

/// How much a change adds to the stored size.
fn bytes_of(change: &TurnChange) -> u64 {
    match change {
        TurnChange::Put(record) => put_bytes(record),
        TurnChange::Pieces { pieces, .. } => pieces.iter().map(piece_bytes).sum(),
        TurnChange::Ended { end, .. } => end_bytes(end),
        TurnChange::Started { .. } | TurnChange::Forked { .. } => 0,
    }
}

pub(super) async fn turns_above_the_byte_limit_are_taken_from_the_largest_key(on: &dyn Subject) {
    let limit = Retention { turn_bytes: 100_000, turns: u32::MAX, ..RETENTION };
    taken_from_the_largest_key(on, limit, 9_000).await;
}

pub(super) async fn turns_above_the_count_limit_are_taken_from_the_largest_key(on: &dyn Subject) {
    taken_from_the_largest_key(on, Retention { turn_bytes: u64::MAX, ..RETENTION }, 0).await;
}

async fn taken_from_the_largest_key(on: &dyn Subject, limit: Retention, bytes: usize) {
    let (quiet, loud, third) = (2, 1, 3);
    let mut store = on.open(limit);
    let said = 1..=5;
    for id in said.clone() {
        write(&*store, says(id, quiet, 100)).await;
    }
    for id in 100..160 {
        write(&*store, says(id, loud, bytes)).await;
        assert!(ids(&*store, quiet).await.into_iter().eq(said.clone().map(turn_id)), "{id}");
        if id % 25 == 0 {
            store.close().await.expect("closed");
            store = on.open(limit);
        }
    }
    let left = ids(&*store, loud).await;
    assert!(left.len() < 60 && left.last() == Some(&turn_id(159)), "{left:?}");
    for id in 200..300 {
        write(&*store, says(id, third, bytes / 2)).await;
    }
    assert!(ids(&*store, third).await.len() < 100);
    assert!(ids(&*store, loud).await.len() < left.len(), "its key had most when others came");
    assert!(ids(&*store, quiet).await.into_iter().eq(said.map(turn_id)));
}

pub(super) async fn turns_that_are_too_large_are_deleted(on: &dyn Subject) {
    let says = |id: u64, bytes: usize| says(id, 1, bytes);
    let all_of: u64 = says(1, 5_000).iter().map(bytes_of).sum();
    // Two fit to the byte: everything that is stored counts, and nothing counts twice.
    let limit = Retention { turn_bytes: 2 * all_of, turns_age: Duration::MAX, ..RETENTION };
    let store = on.open(limit);
    write(&*store, says(1, 5_000)).await;
    write(&*store, says(2, 5_000)).await;
    assert_eq!(ids(&*store, 1).await, [1, 2].map(turn_id));
    store.close().await.expect("closed");
    let store = on.open(limit);
    write(&*store, says(3, 0)).await;
    assert_eq!(ids(&*store, 1).await, [2, 3].map(turn_id));
    // A turn that has not ended does not count yet.
    write(&*store, &says(4, 9_000)[..2]).await;
    assert_eq!(ids(&*store, 1).await, [2, 3, 4].map(turn_id));
    write(&*store, &says(4, 9_000)[2..]).await;
    assert_eq!(ids(&*store, 1).await, [3, 4].map(turn_id));
}

pub(super) async fn forked_pieces_outlive_their_original_turn(on: &dyn Subject) {
    let store = on.open(RETENTION);
    write(&*store, [put(1, 1), gave(1, 1..=3), end(1, 1, 4)]).await;
    write(&*store, [TurnChange::Forked { from: session_id(1), to: session_id(2) }]).await;
    let copy = ids(&*store, 2).await[0];
    // The copy ended when its parent did and has a higher number: it goes right after it. All
    // belong to one key.
    for id in 2..=29 {
        write(&*store, [put(id, 4), end(id, id, 1)]).await;
        assert_eq!(given(&*store, copy).await, pieces(1..=3));
    }
    assert_eq!(ids(&*store, 1).await, [turn_id(1)]);
    write(&*store, [put(30, 4), end(30, 30, 1)]).await;
    assert_eq!((ids(&*store, 1).await, ids(&*store, 2).await), (vec![], vec![copy]));
    let store = reopened(on, store).await;
    assert_eq!(given(&*store, copy).await, pieces(1..=3));
    write(&*store, [put(31, 4), end(31, 31, 1)]).await;
    assert_eq!(ids(&*store, 2).await, []);
    assert_eq!(given(&*store, copy).await, []);
}

pub(super) async fn turn_pages_that_are_large_end_early(on: &dyn Subject) {
    let store = on.open(Retention { turn_bytes: u64::MAX, ..RETENTION });
    let text: Arc<str> = "x".repeat(3 << 20).into();
    let piece = |seq| TurnPiece { seq, at: Wall(1), name: "x".into(), data: Arc::clone(&text) };
    for id in 1..=3 {
        let large = TurnRecord { input: Arc::clone(&text), ..turn(id, 1) };
        let gave = TurnChange::Pieces { turn: turn_id(id), pieces: vec![piece(1), piece(2)] };
        write(&*store, [TurnChange::Put(large), gave]).await;
        let more = TurnChange::Pieces { turn: turn_id(id), pieces: vec![piece(3)] };
        write(&*store, [more]).await;
    }
    let first = all(&*store, session_id(1)).await;
    assert_eq!(first.len(), 2, "two are above the limit already");
    let query = TurnQuery { session: session_id(1), after: first[1].number, limit: 9 };
    assert_eq!(store.turns(&query).await.map(|turns| turns.len()), Ok(1));
    assert_eq!(given(&*store, turn_id(1)).await.len(), 2);
    assert_eq!(store.pieces(turn_id(1), 2, 9).await.map(|pieces| pieces.len()), Ok(1));
}

//! A database with a small size limit stays below it while the history grows to many times that,
//! and what is not history stays complete.

use std::fs;
use std::sync::Arc;

use model::process::ProcessChange;
use model::turn::{TurnChange, TurnPiece};
use store::conformance::fixtures::{
    event, process, sandbox_id, session_id, turn, turn_end, turn_id, whole,
};
use store::sqlite::{FILE, SqliteStore};
use store::{Batch, EventQuery, ProcessesQuery, Retention, Store as _, TurnQuery};

use crate::temp_dir::TempDir;

const BOUND_BYTES: u64 = 8 << 20;

fn retention() -> Retention {
    Retention { database_bytes: BOUND_BYTES, ..Retention::default() }
}

/// A turn with pieces of a length for which SQLite needs several times as much.
fn talk(number: u64) -> Vec<TurnChange> {
    let mut changes = vec![TurnChange::Put(turn(number, 1))];
    changes.extend((1..=8).map(|seq| TurnChange::Pieces {
        turn: turn_id(number),
        pieces: vec![TurnPiece {
            seq,
            at: model::Wall(number),
            name: "message".into(),
            data: "x".repeat(1_100).into(),
        }],
    }));
    changes.push(TurnChange::Ended { turn: turn_id(number), end: turn_end(number, 9) });
    changes
}

fn log(number: u64) -> ProcessChange {
    let log = Some(vec![b'x'; 1_300].into());
    ProcessChange::Put { record: Arc::new(process(1, number, Some(number))), log }
}

/// Bytes of the file, which must not exceed the limit.
fn bytes(place: &TempDir) -> u64 {
    fs::metadata(place.file(FILE)).expect("a database").len()
}

/// Commits batches of about so many bytes each.
async fn goes_on(name: &str, commits: u64, bytes_each: u64, of: impl Fn(u64) -> Batch) {
    assert!(commits * bytes_each > 3 * BOUND_BYTES / 2, "{name}: the history exceeds the limit");
    let place = TempDir::new();
    let mut store = SqliteStore::open(place.path(), retention()).expect("opened");
    store.commit(&whole(1)).await.expect("written");
    for number in 2..commits {
        store.commit(&of(number)).await.expect("written");
        let condition = store.condition();
        assert!(condition.database_bytes <= BOUND_BYTES, "{name} {number}: {condition:?}");
        assert!(condition.used_bytes <= condition.database_bytes);
        if number % 400 == 0 {
            store.close().await.expect("closed");
            assert!(bytes(&place) <= BOUND_BYTES, "{name}: {}", bytes(&place));
            store = SqliteStore::open(place.path(), retention()).expect("opened");
        }
    }
    assert!(store.condition().used_bytes > BOUND_BYTES / 2, "{name}: only what must go is deleted");
    let loaded = store.load().await.expect("loaded");
    assert_eq!((loaded.journal.sandboxes.len(), loaded.journal.sessions.len()), (1, 1), "{name}");
}

#[tokio::test]
async fn turns_stay_within_the_size_limit() {
    goes_on("turns", 2_000, 8 * 1_100, |number| Batch { turns: talk(number), ..Batch::default() })
        .await;
}

#[tokio::test]
async fn output_of_processes_stays_within_the_size_limit() {
    let of = |number: u64| Batch {
        processes: (0..4).map(|n| log(number * 4 + n)).collect(),
        ..Batch::default()
    };
    goes_on("processes", 2_500, 4 * 1_300, of).await;
}

#[tokio::test]
async fn events_and_tombstones_stay_within_the_size_limit() {
    let of = |number: u64| Batch {
        events: (0..40).map(|n| event(number * 40 + n, 1)).collect(),
        ..whole(number * 40)
    };
    goes_on("events", 1_700, 40 * 200, of).await;
}

#[tokio::test]
async fn latest_history_survives_the_size_limit_and_numbering_goes_on() {
    let place = TempDir::new();
    let store = SqliteStore::open(place.path(), retention()).expect("opened");
    let last = 1_500;
    for number in 1..=last {
        let batch = Batch { turns: talk(number), processes: vec![log(number)], ..whole(number) };
        store.commit(&batch).await.expect("written");
    }
    let turns = TurnQuery { session: session_id(1), after: 0, limit: u32::MAX };
    let turns = store.turns(&turns).await.expect("turns");
    assert!(!turns.is_empty() && turns.len() < last as usize);
    let latest = store.turn(turn_id(last)).await.expect("read").expect("the latest turn");
    assert_eq!(store.pieces(latest.id, 0, 100).await.expect("pieces").len(), 8);
    let processes = ProcessesQuery { sandbox: sandbox_id(1), before: None, limit: 1 };
    assert_eq!(store.processes(&processes).await.expect("processes")[0].number, last);
    let page = store.events(&EventQuery::after(last - 1, 10)).await.expect("events");
    assert_eq!(page.last, last);
    assert_eq!(store.load().await.expect("loaded").last_event, last);
}

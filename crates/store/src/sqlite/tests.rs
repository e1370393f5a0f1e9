//! Internals: commits on another thread, a limit on pages, the log.

mod other_thread_only;
mod threads;

use std::fs;
use std::path::PathBuf;
use std::pin::pin;
use std::task::{Context, Waker};
use std::time::Duration;

use model::turn::TurnChange;

use super::schema::MIGRATIONS;
use super::*;
use crate::conformance::Subject;
use crate::conformance::fixtures::{
    ended, key, pieces, sandbox, session, session_id, talk, turn, turn_end, turn_id, turn_start,
    whole,
};

pub(super) struct Directory(pub(super) PathBuf);

impl Directory {
    pub(super) fn new() -> Self {
        static NEXT: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
        let n = NEXT.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("store-sqlite-{}-{n}", std::process::id()));
        fs::create_dir_all(&path).expect("a directory");
        Self(path)
    }

    pub(super) fn open(&self) -> SqliteStore {
        SqliteStore::open(&self.0, Retention::default()).expect("opened")
    }

    fn log_bytes(&self) -> u64 {
        fs::metadata(self.0.join("shoal.db-wal")).map_or(0, |log| log.len())
    }

    /// How often the log was restarted, by its header.
    fn log_restarts(&self) -> u32 {
        let log = fs::read(self.0.join("shoal.db-wal")).expect("a log");
        u32::from_be_bytes(log[12..16].try_into().expect("four bytes"))
    }

    /// Waits until the log is as small as that.
    fn until_log_below(&self, bytes: u64) {
        for _ in 0..1_000 {
            if self.log_bytes() < bytes {
                return;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        panic!("the log still has {} bytes", self.log_bytes());
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

impl WriteState {
    fn writer(&self) -> &Writer {
        match self {
            Self::Ready(writer) => writer,
            Self::Waiting(_) | Self::Closed => panic!("the store cannot be written"),
        }
    }
}

async fn last(store: &SqliteStore) -> u64 {
    store.load().await.expect("loaded").last_event
}

#[tokio::test]
async fn commit_that_was_dropped_while_it_waited_is_not_written() {
    let directory = Directory::new();
    let store = directory.open();
    let (first, second) = (whole(1), whole(2));
    {
        let writer = locked(&store.shared.writer);
        let mut commit = pin!(store.commit(&first));
        assert!(commit.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
        drop(writer);
        // It may have begun by now, or not.
    }
    let there = last(&store).await;
    store.commit(&second).await.expect("written");
    let loaded = store.load().await.expect("loaded");
    assert_eq!(loaded.journal.sandboxes, [sandbox(1, 2)], "after {there}");

    let writer = locked(&store.shared.writer);
    {
        let mut commit = store.commit(&first);
        assert!(commit.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
    }
    drop(writer);
    store.commit(&whole(3)).await.expect("written");
    store.close().await.expect("closed");
    let loaded = directory.open().load().await.expect("loaded");
    assert_eq!(loaded.journal.sandboxes, [sandbox(1, 3)], "a dropped commit does not come later");
}

#[test]
fn a_commit_needs_no_runtime() {
    let directory = Directory::new();
    let store = directory.open();
    let first = whole(1);
    let mut context = Context::from_waker(Waker::noop());
    assert!(pin!(store.commit(&first)).poll(&mut context).is_ready());
    assert!(pin!(store.close()).poll(&mut context).is_ready());
}

#[tokio::test]
async fn full_file_refuses_commits_and_accepts_them_later() {
    let directory = Directory::new();
    let store = directory.open();
    let limit = |pages: u32| {
        let writer = locked(&store.shared.writer);
        let conn = writer.writer().conn();
        let set = conn.pragma_update_and_check(None, "max_page_count", pages, |row| row.get(0));
        set.expect("limited")
    };
    let full: u32 = limit(40);
    assert_eq!(full, 40);
    let mut number = 0;
    let refused = loop {
        assert!(number < 1_000, "the file is full at some time");
        number += 1;
        let mut batch = whole(number);
        batch.entries.push(model::record::JournalEntry::SessionPut(session(number as u8, 399)));
        match store.commit(&batch).await {
            Ok(()) => {}
            Err(error) => {
                assert_eq!(error.code, StoreErrorCode::DiskFull, "{error}");
                assert!(error.retryable() && error.remedy().contains("free space"));
                break batch;
            }
        }
    };
    assert!(number > 3, "something did fit");
    for _ in 0..3 {
        let error = store.commit(&refused).await.expect_err("still full");
        assert_eq!(error.code, StoreErrorCode::DiskFull);
        let loaded = store.load().await.expect("loaded");
        assert_eq!(loaded.last_event, number - 1);
        assert!(loaded.journal.sandboxes.contains(&sandbox(1, number as u32 - 1)));
    }
    limit(4_000);
    store.commit(&refused).await.expect("the same batch, later");
    store.commit(&whole(number + 1)).await.expect("and it goes on");
    store.close().await.expect("closed");
    assert_eq!(last(&directory.open()).await, number + 1);
}

#[tokio::test]
async fn batch_that_fails_half_way_leaves_nothing() {
    let directory = Directory::new();
    let store = directory.open();
    store.commit(&whole(1)).await.expect("written");
    let before = store.load().await.expect("loaded");
    let run = |sql| {
        let writer = locked(&store.shared.writer);
        writer.writer().conn().execute_batch(sql).expect("run");
    };
    // Events are written last.
    run("CREATE TEMP TRIGGER no BEFORE INSERT ON events BEGIN SELECT RAISE(ABORT, 'no'); END");
    for _ in 0..2 {
        store.commit(&whole(2)).await.expect_err("refused");
        assert_eq!(store.load().await.as_ref(), Ok(&before));
    }
    run("DROP TRIGGER no");
    store.commit(&whole(2)).await.expect("the same batch, later");
    assert_eq!(last(&store).await, 2);
}

#[tokio::test]
async fn large_log_is_overwritten_while_commits_go_on() {
    let directory = Directory::new();
    let store = SqliteStore::open_as(
        &directory.0,
        Retention::default(),
        Due { large_bytes: 1 << 20, ..DUE },
    )
    .expect("opened");
    let first = whole(1);
    store.commit(&first).await.expect("written");
    let (begun, mut number) = (directory.log_restarts(), 1);
    while directory.log_restarts() < begun + 2 {
        assert!(number < 100_000, "the log is overwritten at some time");
        number += 1;
        store.commit(&whole(number)).await.expect("written");
        std::thread::sleep(Duration::from_micros(200));
    }
    assert!(directory.log_bytes() >= 1 << 20, "the log keeps its space while it is needed");
    assert_eq!(last(&store).await, number);
    drop(store);
    let store = directory.open();
    assert_eq!(last(&store).await, number);
    store.close().await.expect("closed");
    assert_eq!(directory.log_bytes(), 0, "nothing is left in the log");
    assert_eq!(last(&directory.open()).await, number);
}

#[tokio::test]
async fn log_is_checkpointed_when_commits_pause() {
    let directory = Directory::new();
    let store = directory.open();
    for number in 1..=20 {
        store.commit(&whole(number)).await.expect("written");
    }
    let before = directory.log_bytes();
    directory.until_log_below(before.min(32 << 10));
    // The file alone, as a power cut might leave it.
    let copy = Directory::new();
    for name in [FILE, crate::NODE_KEY_FILE] {
        fs::copy(directory.0.join(name), copy.0.join(name)).expect("copied");
    }
    assert_eq!(last(&copy.open()).await, 20);
    store.commit(&whole(21)).await.expect("it goes on");
    assert_eq!(last(&store).await, 21);
}

#[tokio::test]
async fn log_is_checkpointed_while_commits_go_on() {
    let directory = Directory::new();
    let due = Due { old_looks: 2, ..DUE };
    let store = SqliteStore::open_as(&directory.0, Retention::default(), due).expect("opened");
    let copy = Directory::new();
    let mut number = 0;
    loop {
        number += 1;
        assert!(number < 2_000, "the file follows at some time");
        store.commit(&whole(number)).await.expect("written");
        // Commits never pause long enough for the other reason to checkpoint.
        std::thread::sleep(Duration::from_millis(20));
        if number.is_multiple_of(20) {
            fs::copy(directory.0.join(FILE), copy.0.join(FILE)).expect("copied");
            let alone = open::to_read_alone(&copy.0.join(FILE)).expect("opened");
            if open::sequence(&alone).is_ok_and(|sequence| sequence > 20) {
                break;
            }
        }
    }
    let mark = mark::read(&directory.0).expect("read").expect("a mark");
    assert_eq!(mark.sequence, number);
    assert!(mark.durable > 20 && mark.durable <= number, "{mark:?}");
}

#[tokio::test]
async fn new_database_is_complete_without_its_log() {
    let directory = Directory::new();
    let store = directory.open();
    let error = open::to_read_alone(&directory.0.join(FILE)).expect_err("the database is in use");
    assert_eq!(error.code, StoreErrorCode::Locked, "{error}");
    let copy = Directory::new();
    fs::copy(directory.0.join(FILE), copy.0.join(FILE)).expect("copied");
    let alone = open::to_read_alone(&copy.0.join(FILE)).expect("opened");
    assert_eq!(open::identity(&alone), Ok(store.id()));
}

/// What the first version stored is there after the migration, and turns can be stored.
#[tokio::test]
async fn store_of_the_first_version_is_migrated() {
    let directory = Directory::new();
    let path = directory.0.join(FILE);
    open::make_file(&path).expect("made");
    let mut conn = open::to_write(&path).expect("opened");
    migrate::migrate(&mut conn, &path, &MIGRATIONS[..1], &NodeKey::from_secret(&[7; 32]))
        .expect("the first version");
    let batch = whole(1);
    for (sql, record) in [
        (
            "INSERT INTO sandboxes VALUES (1, ?1)",
            serde_json::to_string(&sandbox(1, 1)).expect("text"),
        ),
        (
            "INSERT INTO sessions VALUES (1, ?1)",
            serde_json::to_string(&session(1, 1)).expect("text"),
        ),
        ("INSERT INTO ends VALUES (1, 1, ?1)", serde_json::to_string(&ended(2, 1)).expect("text")),
        (
            "INSERT INTO events VALUES (1, 1, 1, ?1)",
            serde_json::to_string(&batch.events[0]).expect("text"),
        ),
        ("INSERT INTO keys VALUES (x'01', ?1)", serde_json::to_string(&key(1, 1)).expect("text")),
    ] {
        conn.execute(sql, [record]).expect("written");
    }
    drop(conn);

    let store = directory.open();
    let loaded = store.load().await.expect("loaded");
    assert_eq!((loaded.last_event, &*loaded.journal.sandboxes), (1, &[sandbox(1, 1)][..]));
    assert_eq!(
        (&*loaded.journal.sessions, &*loaded.journal.ended),
        (&[session(1, 1)][..], &[ended(2, 1)][..])
    );
    assert_eq!(store.keys().await, Ok(vec![key(1, 1)]));
    assert_eq!(store.turn(turn_id(2)).await, Ok(None));
    store.commit(&whole(2)).await.expect("written");
    assert!(store.turn(turn_id(2)).await.expect("read").is_some());
    for version in 1..=6 {
        assert!(!migrate::backup_path(&path, version).exists(), "the backup has clear text in it");
    }
}

#[tokio::test]
async fn queries_of_turns_and_processes_scan_no_table() {
    let directory = Directory::new();
    let store = directory.open();
    store.commit(&whole(1)).await.expect("written");
    let writer = locked(&store.shared.writer);
    let conn = writer.writer().conn();
    for sql in [
        "SELECT number FROM turns WHERE session = ?1 AND number > ?2 ORDER BY number LIMIT ?3",
        "SELECT number FROM turns WHERE id = ?1 AND ended_at IS NULL",
        "SELECT number FROM turns WHERE session = ?1 AND ended_at IS NOT NULL \
         ORDER BY number DESC LIMIT ?2",
        turns::FIRST_OF_KEY,
        turns::FIRST_BEFORE,
        "SELECT 1 FROM turns WHERE shows = ?1",
        "SELECT last, lines FROM pieces WHERE turn = ?1 AND last > ?2 ORDER BY last",
        "SELECT number FROM processes WHERE sandbox = ?1 AND name = ?2 \
         ORDER BY number DESC LIMIT 1",
        processes::FIRST_OF_KEY,
        processes::FIRST_BEFORE,
    ] {
        let mut plan = conn.prepare(&format!("EXPLAIN QUERY PLAN {sql}")).expect("a plan");
        let bound = vec![rusqlite::types::Null; plan.parameter_count()];
        let mut rows = plan.query(rusqlite::params_from_iter(bound)).expect("a plan");
        while let Some(row) = rows.next().expect("a row") {
            let step: String = row.get(3).expect("a step");
            assert!(!step.contains("SCAN") && !step.contains("TEMP B-TREE"), "{sql}: {step}");
        }
    }
}

/// What is counted is the length of what is in the file, without what its envelope adds.
#[tokio::test]
async fn turn_sizes_are_counted_as_they_are_written() {
    let directory = Directory::new();
    let store = directory.open();
    let gave = |numbers| TurnChange::Pieces { turn: turn_id(1), pieces: pieces(numbers) };
    let batches = [
        talk([TurnChange::Put(turn(1, 1)), gave(1..=3)]),
        talk([gave(2..=9), TurnChange::Ended { turn: turn_id(1), end: turn_end(3, 0) }]),
        talk([TurnChange::Forked { from: session_id(1), to: session_id(2) }]),
    ];
    for batch in &batches {
        store.commit(batch).await.expect("written");
    }
    let writer = locked(&store.shared.writer);
    let conn = writer.writer().conn();
    // The record has an empty input, and the envelope has the real one.
    let sql = "SELECT bytes, octet_length(record) - 2 + octet_length(sealed) - 49 + \
               octet_length(over) + \
               (SELECT sum(octet_length(lines)) FROM pieces WHERE turn = 1) FROM turns";
    let mut select = conn.prepare(sql).expect("a question");
    let rows = select.query_map([], |row| Ok((row.get(0)?, row.get(1)?))).expect("rows");
    let rows: Vec<(i64, i64)> = rows.map(|row| row.expect("a row")).collect();
    assert_eq!(rows.len(), 2);
    assert!(rows.iter().all(|(counted, there)| counted == there && *there > 0), "{rows:?}");
}

/// A failed commit counts nothing: what it would have ended displaces nothing.
#[tokio::test]
async fn failed_commit_is_not_counted_by_retention() {
    let directory = Directory::new();
    let retention = Retention { turns: 2, ..Retention::default() };
    let store = SqliteStore::open(&directory.0, retention).expect("opened");
    store.commit(&whole(1)).await.expect("written");
    let run = |sql| {
        let writer = locked(&store.shared.writer);
        writer.writer().conn().execute_batch(sql).expect("run");
    };
    run("CREATE TEMP TRIGGER no BEFORE INSERT ON events BEGIN SELECT RAISE(ABORT, 'no'); END");
    for _ in 0..5 {
        store.commit(&whole(2)).await.expect_err("refused");
    }
    run("DROP TRIGGER no");
    store.commit(&whole(2)).await.expect("the same batch, later");
    assert!(store.turn(turn_id(1)).await.expect("read").is_some());
    store.commit(&whole(3)).await.expect("one more");
    assert_eq!(store.turn(turn_id(1)).await, Ok(None));
}

/// Turns that were stored before their key was known count for their key.
#[tokio::test]
async fn turns_of_the_third_version_get_their_keys() {
    let directory = Directory::new();
    let path = directory.0.join(FILE);
    open::make_file(&path).expect("made");
    let mut conn = open::to_write(&path).expect("opened");
    migrate::migrate(&mut conn, &path, &MIGRATIONS[..3], &NodeKey::from_secret(&[7; 32]))
        .expect("the third version");
    for id in 1..=3_u64 {
        let record = serde_json::to_string(&turn(id, id as u8)).expect("text");
        let over = serde_json::to_string(&turn_end(id, 1)).expect("text");
        let sql = "INSERT INTO turns (id, session, ended_at, bytes, over, record) \
                   VALUES (?1, x'00', ?2, 1, ?3, ?4)";
        let row = rusqlite::params![turns::key(turn_id(id)), id.cast_signed(), over, record];
        conn.execute(sql, row).expect("written");
    }
    let sql = "INSERT INTO pieces VALUES (1, 1, 1, '{}')";
    conn.execute(sql, []).expect("written");
    drop(conn);
    let store = directory.open();
    let writer = locked(&store.shared.writer);
    let conn = writer.writer().conn();
    let mut select = conn.prepare("SELECT tenant, bytes FROM turns").expect("a question");
    let rows = select.query_map([], |row| Ok((row.get(0)?, row.get(1)?))).expect("rows");
    let rows: Vec<([u8; 16], i64)> = rows.map(|row| row.expect("a row")).collect();
    assert_eq!(rows.len(), 3);
    for ((tenant, bytes), id) in rows.into_iter().zip(1..) {
        let record = turn(id, id as u8);
        assert_eq!(tenant, record.tenant.as_u128().to_be_bytes());
        assert!(bytes > 100, "{bytes}");
    }
}

/// Blocks of deleted turns go some at a time, and all of them in the end.
#[tokio::test]
async fn blocks_of_deleted_turns_are_removed_in_time() {
    let directory = Directory::new();
    let retention = Retention { turns: 0, ..Retention::default() };
    let store = SqliteStore::open(&directory.0, retention).expect("opened");
    let count = |sql: &str| -> u64 {
        let writer = locked(&store.shared.writer);
        let conn = writer.writer().conn();
        conn.query_row(sql, [], |row| row.get::<_, i64>(0)).expect("counted").cast_unsigned()
    };
    store.commit(&talk([TurnChange::Put(turn(1, 1))])).await.expect("written");
    for seq in 1..=100 {
        let gave = TurnChange::Pieces { turn: turn_id(1), pieces: pieces(seq..=seq) };
        store.commit(&talk([gave])).await.expect("written");
    }
    store
        .commit(&talk([
            TurnChange::Ended { turn: turn_id(1), end: turn_end(1, 101) },
            TurnChange::Put(turn(2, 1)),
        ]))
        .await
        .expect("written");
    assert_eq!(store.turn(turn_id(1)).await, Ok(None), "the turn is gone at once");
    let left = count("SELECT count(*) FROM pieces");
    assert!(left > 0 && left < 100, "{left}: some at a time");
    for _ in 0..10 {
        let more = TurnChange::Started { turn: turn_id(2), start: turn_start(3) };
        store.commit(&talk([more])).await.expect("written");
    }
    assert_eq!(count("SELECT count(*) FROM pieces"), 0);
    assert_eq!(count("SELECT count(*) FROM forgotten_pieces"), 0);
}

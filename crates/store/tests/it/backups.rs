//! A copy of a store in use: of one moment, readable with the same key, and without what was
//! deleted since.

use std::collections::BTreeSet;
use std::fs;

use model::Wall;
use model::record::JournalEntry;
use store::conformance::fixtures::{changes, session, session_id, turn_id, whole};
use store::sqlite::{FILE, SqliteStore, restart_idle_time};
use store::{NODE_KEY_FILE, Retention, Store as _};

use crate::temp_dir::TempDir;

fn open(place: &TempDir) -> SqliteStore {
    SqliteStore::open(place.path(), Retention::default()).expect("opened")
}

/// A directory with a copy in it, and the key that belongs to it.
fn copied(from: &TempDir) -> TempDir {
    let to = TempDir::new();
    fs::rename(from.file("copy"), to.file(FILE)).expect("moved");
    fs::copy(from.file(NODE_KEY_FILE), to.file(NODE_KEY_FILE)).expect("copied");
    to
}

#[tokio::test]
async fn backup_has_everything_of_one_moment() {
    let place = TempDir::new();
    let store = open(&place);
    for number in 1..=50 {
        store.commit(&whole(number)).await.expect("written");
    }
    let before = store.load().await.expect("loaded");
    let journal = store.backup(&place.file("copy")).await.expect("copied while it is open");
    assert_eq!(journal, before.journal);
    store.commit(&whole(51)).await.expect("the store goes on");
    let again =
        store.backup(&place.file("copy")).await.expect_err("an existing file is not overwritten");
    assert!(again.cause.contains("copy"), "{again}");

    let elsewhere = copied(&place);
    let copy = open(&elsewhere);
    assert_eq!(copy.load().await.expect("loaded"), before);
    assert_eq!(copy.id(), store.id(), "files beside it belong to it");
    assert_eq!(copy.turn(turn_id(3)).await, store.turn(turn_id(3)).await);
}

#[tokio::test]
async fn backup_can_drop_sessions_that_were_deleted_since() {
    let place = TempDir::new();
    let store = open(&place);
    store.commit(&whole(1)).await.expect("written");
    let more = [4, 5].map(|id| JournalEntry::SessionPut(session(id, 13)));
    store.commit(&changes(more)).await.expect("written");
    let journal = store.backup(&place.file("copy")).await.expect("copied");
    let all: BTreeSet<_> = journal.sessions.iter().map(|session| session.id).collect();
    let deleted = BTreeSet::from([session_id(4)]);
    store.remove_from_backup(&place.file("copy"), &deleted).await.expect("forgotten");

    let elsewhere = copied(&place);
    let left = open(&elsewhere).load().await.expect("loaded").journal;
    let left: BTreeSet<_> = left.sessions.iter().map(|session| session.id).collect();
    assert_eq!(left, all.difference(&deleted).copied().collect());
    let there = store.load().await.expect("loaded").journal;
    assert_eq!(there.sessions.len(), all.len(), "the store itself still has it");
}

#[tokio::test]
async fn restored_sessions_are_idle_from_now_and_otherwise_unchanged() {
    let place = TempDir::new();
    let store = open(&place);
    store.commit(&whole(1)).await.expect("written");
    let mut wanted = store.backup(&place.file("copy")).await.expect("copied");
    let now = Wall(1_900_000_000_123);
    restart_idle_time(&place.file("copy"), now).expect("changed without a key");
    assert!(!wanted.sessions.is_empty());
    for session in &mut wanted.sessions {
        session.idle_from = now;
    }
    let elsewhere = copied(&place);
    assert_eq!(open(&elsewhere).load().await.expect("loaded").journal, wanted);
}

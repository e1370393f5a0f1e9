//! Opening: who can read the file, why a database cannot be used, and other programs that have it.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use rusqlite::Connection;
use store::conformance::fixtures::{key, whole};
use store::sqlite::{FILE, SqliteStore};
use store::{Retention, Store as _, StoreError, StoreErrorCode};

use crate::temp_dir::TempDir;

fn open(place: &TempDir) -> Result<SqliteStore, StoreError> {
    SqliteStore::open(place.path(), Retention::default())
}

/// A store with something in it, closed in order.
async fn filled() -> TempDir {
    let place = TempDir::new();
    let store = open(&place).expect("opened");
    for number in 1..=200 {
        store.commit(&whole(number)).await.expect("written");
    }
    store.put_key(&key(1, 1)).await.expect("written");
    store.close().await.expect("closed");
    place
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).expect("there").permissions().mode() & 0o777
}

#[tokio::test]
async fn database_files_are_private_to_their_owner() {
    let place = TempDir::new();
    let store = open(&place).expect("opened");
    store.commit(&whole(1)).await.expect("written");
    for name in [FILE, "shoal.db-wal", "shoal.db-shm"] {
        assert_eq!(mode(&place.file(name)), 0o600, "{name}");
    }
    store.close().await.expect("closed");
    fs::set_permissions(place.file(FILE), fs::Permissions::from_mode(0o644)).expect("opened up");
    let store = open(&place).expect("opened");
    assert_eq!(mode(&place.file(FILE)), 0o600);
    store.close().await.expect("closed");
}

#[tokio::test]
async fn unreadable_database_is_corrupt() {
    type Damage = fn(&Path);
    let cases: [(&str, Damage); 5] = [
        ("not a database", |file| fs::write(file, "x".repeat(10_000)).expect("written")),
        ("cut short", |file| {
            let bytes = fs::read(file).expect("read");
            fs::write(file, &bytes[..bytes.len() / 2]).expect("written");
        }),
        ("overwritten", |file| {
            let mut bytes = fs::read(file).expect("read");
            bytes[4_096..].fill(0xff);
            fs::write(file, bytes).expect("written");
        }),
        ("a record that is not one", |file| {
            let conn = Connection::open(file).expect("opened");
            conn.execute("UPDATE sandboxes SET record = '{}'", []).expect("changed");
        }),
        ("a record that is there twice", |file| {
            let conn = Connection::open(file).expect("opened");
            conn.execute("INSERT INTO sandboxes SELECT slot + 1, record FROM sandboxes", [])
                .expect("changed");
        }),
    ];
    for (what, damage) in cases {
        let place = filled().await;
        damage(&place.file(FILE));
        let error = open(&place).expect_err(what);
        assert_eq!(error.code, StoreErrorCode::Corrupt, "{what}: {error}");
        assert!(!error.retryable() && error.remedy().contains("move shoal.db"), "{what}");
        assert!(!error.cause.contains("x-x"), "{what}: {error}");
    }
}

#[tokio::test]
async fn newer_database_version_is_refused() {
    let place = filled().await;
    let conn = Connection::open(place.file(FILE)).expect("opened");
    conn.pragma_update(None, "user_version", 77).expect("changed");
    drop(conn);
    let error = open(&place).expect_err("newer");
    assert_eq!(error.code, StoreErrorCode::NewerVersion);
    assert!(error.cause.contains("77") && error.cause.contains("up to 10"), "{error}");
    let conn = Connection::open(place.file(FILE)).expect("opened");
    conn.pragma_update(None, "user_version", 10).expect("changed");
    drop(conn);
    let store = open(&place).expect("the database was not touched");
    assert_eq!(store.load().await.expect("loaded").last_event, 200);
}

#[test]
fn missing_directory_is_reported() {
    let place = TempDir::new();
    let error = SqliteStore::open(&place.file("nowhere"), Retention::default()).expect_err("none");
    assert_eq!(error.code, StoreErrorCode::Io);
    assert!(error.cause.contains("nowhere"), "{error}");
}

#[tokio::test]
async fn database_locked_by_another_program_is_waited_for_and_reported() {
    let place = filled().await;
    let store = open(&place).expect("opened");
    let other = Connection::open(place.file(FILE)).expect("opened");
    other.execute_batch("BEGIN IMMEDIATE").expect("locked");
    let error = store.commit(&whole(201)).await.expect_err("locked");
    assert_eq!(error.code, StoreErrorCode::Locked, "{error}");
    assert!(error.retryable());
    assert_eq!(store.load().await.expect("reading goes on").last_event, 200);
    other.execute_batch("ROLLBACK").expect("unlocked");
    store.commit(&whole(201)).await.expect("the same batch, later");

    other.execute_batch("BEGIN IMMEDIATE").expect("locked");
    let lets_go = std::thread::spawn(move || {
        std::thread::sleep(std::time::Duration::from_millis(100));
        other.execute_batch("ROLLBACK").expect("unlocked");
    });
    store.commit(&whole(202)).await.expect("the commit waited");
    lets_go.join().expect("no panic");
    assert_eq!(store.load().await.expect("loaded").last_event, 202);
}

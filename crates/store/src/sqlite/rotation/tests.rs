//! A rotation that is killed between any two of its steps, and what is left afterwards of the old key.

use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;
use std::sync::Arc;

use model::claim::ClaimSettings;
use model::process::{ProcessChange, ProcessRecord};
use model::record::{JournalEntry, SessionRecord};
use model::turn::{TurnChange, TurnRecord};
use model::{Document, SecretInfo, SecretName, SecretOwner, SecretRecord, SecretValue, Wall};

use super::*;
use crate::conformance::fixtures::{
    process, sandbox_id, session, session_id, turn, turn_end, turn_id,
};
use crate::node_key::{NEXT_KEY_FILE, NODE_KEY_FILE, read_node_key};
use crate::sqlite::tests::Directory;
use crate::sqlite::{DatabaseLocation, SqliteStore};
use crate::{Batch, DocumentQuery, ProcessesQuery, Store as _};

/// How far a rotation gets before it is killed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Killed {
    KeyMade,
    Sealed,
    InPlace,
    Scrubbed,
    Never,
}

const ALL: [Killed; 5] =
    [Killed::KeyMade, Killed::Sealed, Killed::InPlace, Killed::Scrubbed, Killed::Never];

/// Values in envelopes: a session, two turns and a copy of one, a process, a document, two secrets.
const VALUES: u64 = 8;

fn secret(owner: SecretOwner) -> SecretRecord {
    let value = SecretValue::new("hunter2".to_owned()).expect("a value");
    let name = SecretName::new("token").expect("a name");
    let info = SecretInfo { owner, name, bytes: 7, created_at: Wall(1), updated_at: Wall(2) };
    SecretRecord { info, value }
}

fn secrets() -> [SecretRecord; 2] {
    [secret(SecretOwner::Node), secret(SecretOwner::Key(KeyId::from_u128(7)))]
}

fn sealed_session() -> SessionRecord {
    let env = [("TOKEN".to_owned(), "hunter2".to_owned())].into();
    let claim = Some(Arc::new(ClaimSettings { env, ..ClaimSettings::default() }));
    SessionRecord { claim, ..session(1, 1) }
}

fn sealed_turn() -> TurnRecord {
    TurnRecord { input: "\"hunter2\"".into(), ..turn(1, 1) }
}

fn sealed_process() -> ProcessRecord {
    ProcessRecord { command: "run hunter2".into(), ..process(1, 1, None) }
}

fn document() -> Document {
    Document {
        kind: "agent".to_owned(),
        tenant: KeyId::NIL,
        name: "a".to_owned(),
        seed: None,
        body: "\"hunter2\"".into(),
    }
}

async fn fill(directory: &Directory) {
    let store = directory.open();
    let batch = Batch {
        entries: vec![
            JournalEntry::SessionPut(sealed_session()),
            JournalEntry::SessionPut(session(2, 1)),
        ],
        turns: vec![
            TurnChange::Put(sealed_turn()),
            TurnChange::Ended { turn: turn_id(1), end: turn_end(3, 1) },
            TurnChange::Forked { from: session_id(1), to: session_id(2) },
            TurnChange::Put(TurnRecord { id: turn_id(2), ..sealed_turn() }),
        ],
        processes: vec![ProcessChange::Put { record: Arc::new(sealed_process()), log: None }],
        ..Batch::default()
    };
    store.commit(&batch).await.expect("written");
    store.put_document(&document()).await.expect("written");
    for secret in secrets() {
        store.put_secret(&secret).await.expect("written");
    }
    // Free pages keep what was in them.
    for gone in 0..50 {
        let name = format!("gone-{gone}");
        let body = "x".repeat(3_000).into();
        store.put_document(&Document { name, body, ..document() }).await.expect("written");
    }
    let gone = DocumentQuery { kind: Some("agent".to_owned()), ..DocumentQuery::default() };
    store.remove_documents(&gone).await.expect("removed");
    store.put_document(&document()).await.expect("written");
    store.close().await.expect("closed");
}

async fn assert_all_there(store: &SqliteStore, when: Killed) {
    let loaded = store.load().await.expect("loaded");
    assert_eq!(loaded.journal.sessions, [sealed_session(), session(2, 1)], "{when:?}");
    for id in [1, 2] {
        let read = store.turn(turn_id(id)).await.expect("read").expect("a turn");
        assert_eq!(read.input, sealed_turn().input, "{when:?}");
    }
    let asked = ProcessesQuery { sandbox: sandbox_id(1), before: None, limit: 9 };
    assert_eq!(store.processes(&asked).await, Ok(vec![sealed_process()]), "{when:?}");
    assert_eq!(store.documents(&DocumentQuery::default()).await, Ok(vec![document()]), "{when:?}");
    for secret in secrets() {
        let SecretInfo { owner, name, .. } = &secret.info;
        assert_eq!(store.secret(*owner, name).await, Ok(Some(secret.clone())), "{when:?}");
    }
}

fn inspected(directory: &Directory) -> Inspected {
    let directory = directory.0.clone();
    let place = DatabaseLocation { directory, ..DatabaseLocation::default() };
    SqliteStore::inspect(&place, Retention::default()).expect("inspected")
}

/// Rotates so far, and stops without closing anything in order.
fn rotate_until(directory: &Directory, killed: Killed) {
    let mut rotation =
        Rotation::begin(inspected(directory), Retention::default()).expect("the next key");
    if killed >= Killed::Sealed {
        assert_eq!(rotation.seal_all(), Ok(VALUES));
    }
    if killed >= Killed::InPlace {
        rotation.use_next_key().expect("in place");
    }
    if killed >= Killed::Scrubbed {
        rotation.scrub().expect("scrubbed");
    }
    if killed == Killed::Never {
        rotation.close().expect("closed");
    }
}

fn key_id(directory: &Directory) -> [u8; 8] {
    read_node_key(&directory.0).expect("read").expect("a key").id()
}

/// The files that have an envelope of a key in them, or what only an earlier key opens.
fn sealed_with(directory: &Directory, key: [u8; 8]) -> BTreeSet<PathBuf> {
    let files =
        fs::read_dir(&directory.0).expect("a directory").map(|file| file.expect("a file").path());
    files.filter(|path| fs::read(path).expect("read").windows(8).any(|part| part == key)).collect()
}

#[tokio::test]
async fn rotation_killed_between_any_two_steps_loses_nothing_and_is_settled() {
    for killed in ALL {
        let directory = Directory::new();
        fill(&directory).await;
        let old = key_id(&directory);
        assert!(!sealed_with(&directory, old).is_empty(), "envelopes name their key");
        for copy in ["shoal.db.backup-v9", "shoal.db-wal.damaged"] {
            fs::write(directory.0.join(copy), old).expect("written");
        }
        rotate_until(&directory, killed);

        // A look changes nothing, and finds the right key.
        let files = || {
            let names = fs::read_dir(&directory.0).expect("a directory");
            names.map(|name| name.expect("a name").file_name()).collect::<BTreeSet<_>>()
        };
        let before = files();
        assert!(inspected(&directory).present, "{killed:?}");
        assert_eq!(files(), before, "{killed:?}");

        let store = directory.open();
        assert_all_there(&store, killed).await;
        assert_eq!(store.clear_text_left(), None);
        assert!(!directory.0.join(NEXT_KEY_FILE).exists(), "{killed:?}");
        store.close().await.expect("closed");
        let is_new = key_id(&directory) != old;
        assert_eq!(is_new, killed > Killed::KeyMade, "{killed:?}");
        if is_new {
            assert_eq!(sealed_with(&directory, old), BTreeSet::new(), "{killed:?}: of the old key");
        }

        // Another one works, whatever became of the first.
        let rotated = rotate_node_key(inspected(&directory), Retention::default());
        assert_eq!(rotated, Ok(Rotated { values: VALUES, left: None }), "{killed:?}");
        assert_eq!(sealed_with(&directory, old), BTreeSet::new(), "{killed:?}: of the first key");
        let store = directory.open();
        assert_all_there(&store, Killed::Never).await;
    }
}

#[tokio::test]
async fn rotation_makes_the_keys_of_before_and_after_wrong_for_each_other() {
    let directory = Directory::new();
    fill(&directory).await;
    let (file, database) = (directory.0.join(NODE_KEY_FILE), directory.0.join(FILE));
    let (old_key, old_database) = (fs::read(&file), fs::read(&database));
    rotate_until(&directory, Killed::Never);
    let (new_key, new_database) = (fs::read(&file), fs::read(&database));
    let open = |key: &[u8], bytes: &[u8]| {
        let place = Directory::new();
        fs::write(place.0.join(NODE_KEY_FILE), key).expect("written");
        fs::write(place.0.join(FILE), bytes).expect("written");
        SqliteStore::open(&place.0, Retention::default()).map(drop)
    };
    let (old_key, new_key) = (old_key.expect("read"), new_key.expect("read"));
    let (old_database, new_database) = (old_database.expect("read"), new_database.expect("read"));
    for (key, database) in [(&old_key, &new_database), (&new_key, &old_database)] {
        let wrong = open(key, database).expect_err("sealed with the other one");
        assert_eq!(wrong.code, StoreErrorCode::NodeKeyWrong, "{wrong}");
    }
    assert_eq!(open(&old_key, &old_database), Ok(()));
    assert_eq!(open(&new_key, &new_database), Ok(()));
}

#[tokio::test]
async fn rotation_of_a_row_that_does_not_open_changes_nothing() {
    let directory = Directory::new();
    fill(&directory).await;
    let old = key_id(&directory);
    let conn = Connection::open(directory.0.join(FILE)).expect("opened");
    conn.execute("UPDATE secrets SET name = 'another'", []).expect("changed");
    drop(conn);
    let refused =
        rotate_node_key(inspected(&directory), Retention::default()).expect_err("refused");
    assert_eq!(refused.code, StoreErrorCode::Corrupt, "{refused}");
    assert!(refused.cause.contains("secrets"), "{refused}");
    assert!(!directory.0.join(NEXT_KEY_FILE).exists() || key_id(&directory) == old);
    let store = directory.open();
    assert_eq!(key_id(&directory), old);
    let loaded = store.load().await.expect("the rest is as it was");
    assert_eq!(loaded.journal.sessions[0], sealed_session());
}

/// A damaged next key never hides what is wrong with the present one, and never replaces it.
#[tokio::test]
async fn next_key_counts_only_if_everything_is_sealed_with_it() {
    let directory = Directory::new();
    fill(&directory).await;
    let (file, next) = (directory.0.join(NODE_KEY_FILE), directory.0.join(NEXT_KEY_FILE));
    let good = fs::read(&file).expect("read");
    let open = || SqliteStore::open(&directory.0, Retention::default()).map(drop);
    fs::write(&next, "nonsense").expect("written");
    assert_eq!(open(), Ok(()));
    assert!(!next.exists(), "it is removed");
    fs::write(&next, "nonsense").expect("written");
    fs::remove_file(&file).expect("removed");
    assert_eq!(open().expect_err("no key").code, StoreErrorCode::NodeKeyMissing);
    assert!(!file.exists());
    fs::write(&file, good).expect("written");
    assert_eq!(open(), Ok(()));
}

/// A table that gets envelopes later must be rotated, too.
#[tokio::test]
async fn rotation_has_every_table_with_envelopes() {
    let directory = Directory::new();
    fill(&directory).await;
    let conn = Connection::open(directory.0.join(FILE)).expect("opened");
    let sql = "SELECT DISTINCT tables.name FROM sqlite_schema AS tables, \
               pragma_table_info(tables.name) AS columns \
               WHERE tables.type = 'table' AND columns.name = 'sealed'";
    let mut select = conn.prepare(sql).expect("prepared");
    let names = select.query_map([], |row| row.get::<_, String>(0)).expect("read");
    let names = names.collect::<Result<BTreeSet<_>, _>>().expect("names");
    assert_eq!(names, TABLES.iter().map(|table| table.name.to_owned()).collect());
}

//! Data that may be secret is on no disk in clear text, and is readable with the key of the node
//! only.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::sync::Arc;

use model::claim::ClaimSettings;
use model::process::{ProcessChange, ProcessRecord};
use model::record::{JournalEntry, SessionRecord};
use model::turn::{TurnChange, TurnRecord};
use model::{
    Document, KeyId, SecretInfo, SecretName, SecretOwner, SecretRecord, SecretValue, Wall,
};
use rusqlite::Connection;
use store::conformance::fixtures::{
    pool, process, sandbox_id, session, session_id, turn, turn_end, turn_id,
};
use store::sqlite::{FILE, SqliteStore};
use store::{
    Batch, DocumentQuery, NODE_KEY_FILE, ProcessesQuery, Retention, Store as _, StoreError,
    StoreErrorCode, TurnQuery,
};

use crate::temp_dir::TempDir;

/// In everything that may be secret.
const MARK: &str = "correct-horse-battery";

fn open(place: &TempDir) -> Result<SqliteStore, StoreError> {
    SqliteStore::open(place.path(), Retention::default())
}

fn secret_session() -> SessionRecord {
    let env = BTreeMap::from([("TOKEN".to_owned(), format!("{MARK}-env"))]);
    let config = Some(Arc::from(format!("{{\"key\":\"{MARK}-config\"}}")));
    let claim = ClaimSettings { env, config, ..ClaimSettings::default() };
    SessionRecord { claim: Some(Arc::new(claim)), ..session(1, 1) }
}

fn secret_process() -> ProcessRecord {
    let mut record = process(1, 1, Some(9));
    record.command = format!("run --password {MARK}-argv").into();
    if let Some(end) = &mut record.end {
        end.detail = Some(format!("there is no {MARK}-detail").into());
    }
    record
}

fn secret_turn() -> TurnRecord {
    TurnRecord { input: format!("\"echo {MARK}-input\"").into(), ..turn(1, 1) }
}

fn secret_document() -> Document {
    Document {
        kind: "agent".to_owned(),
        tenant: KeyId::NIL,
        name: "a".to_owned(),
        seed: None,
        body: format!("{{\"env\":\"{MARK}-body\"}}").into(),
    }
}

fn stored_secret(owner: SecretOwner, name: &str) -> SecretRecord {
    let value = SecretValue::new(format!("{MARK}-value-of-{name}")).expect("a value");
    let name = SecretName::new(name).expect("a name");
    let (bytes, created_at, updated_at) = (value.len() as u64, Wall(1), Wall(2));
    SecretRecord { info: SecretInfo { owner, name, bytes, created_at, updated_at }, value }
}

fn stored_secrets() -> [SecretRecord; 3] {
    let key = SecretOwner::Key(KeyId::from_u128(7));
    [(SecretOwner::Node, "a"), (key, "a"), (key, "b")]
        .map(|(owner, name)| stored_secret(owner, name))
}

async fn fill(store: &SqliteStore) {
    let batch = Batch {
        entries: vec![
            JournalEntry::PoolPut(pool(1, 1)),
            JournalEntry::SessionPut(secret_session()),
            JournalEntry::SessionPut(session(2, 1)),
        ],
        turns: vec![
            TurnChange::Put(secret_turn()),
            TurnChange::Ended { turn: turn_id(1), end: turn_end(3, 1) },
            TurnChange::Forked { from: session_id(1), to: session_id(2) },
        ],
        processes: vec![ProcessChange::Put { record: Arc::new(secret_process()), log: None }],
        ..Batch::default()
    };
    store.commit(&batch).await.expect("written");
    store.put_document(&secret_document()).await.expect("written");
    for secret in stored_secrets() {
        store.put_secret(&secret).await.expect("written");
    }
}

async fn assert_all_there(store: &SqliteStore) {
    let loaded = store.load().await.expect("loaded");
    assert_eq!(loaded.journal.sessions, [secret_session(), session(2, 1)]);
    let read = store.turn(turn_id(1)).await.expect("read").expect("a turn");
    assert_eq!(read.input, secret_turn().input);
    let forked = TurnQuery { session: session_id(2), after: 0, limit: 9 };
    let forked = store.turns(&forked).await.expect("read");
    assert_eq!(forked.len(), 1, "the fork has the turn of its parent");
    assert_eq!(forked[0].input, secret_turn().input);
    let asked = ProcessesQuery { sandbox: sandbox_id(1), before: None, limit: 9 };
    assert_eq!(store.processes(&asked).await, Ok(vec![secret_process()]));
    let documents = store.documents(&DocumentQuery::default()).await;
    assert_eq!(documents, Ok(vec![secret_document()]));
    let size = store.documents_size(&DocumentQuery::default()).await.expect("counted");
    assert_eq!(size.bytes, secret_document().body.len() as u64);
    for secret in stored_secrets() {
        let SecretInfo { owner, name, .. } = &secret.info;
        assert_eq!(store.secret(*owner, name).await, Ok(Some(secret.clone())));
    }
}

/// The files of a directory that contain the mark.
fn marked(directory: &Path) -> Vec<String> {
    let mut found = Vec::new();
    for entry in fs::read_dir(directory).expect("a directory") {
        let path = entry.expect("an entry").path();
        let bytes = fs::read(&path).expect("read");
        if bytes.windows(MARK.len()).any(|part| part == MARK.as_bytes()) {
            found.push(path.display().to_string());
        }
    }
    found
}

#[tokio::test]
async fn sealing_leaves_no_secret_in_clear_text_in_any_file() {
    let place = TempDir::new();
    let store = open(&place).expect("opened");
    fill(&store).await;
    assert_eq!(marked(place.path()), Vec::<String>::new(), "while it is open");
    assert_all_there(&store).await;
    store.close().await.expect("closed");
    assert_eq!(marked(place.path()), Vec::<String>::new(), "when it is closed");
    let store = open(&place).expect("opened again");
    assert_all_there(&store).await;
    store.close().await.expect("closed");
}

#[tokio::test]
async fn store_without_its_node_key_does_not_open_and_makes_no_other() {
    let (place, other) = (TempDir::new(), TempDir::new());
    let store = open(&place).expect("opened");
    fill(&store).await;
    store.close().await.expect("closed");
    open(&other).expect("another").close().await.expect("closed");
    let (file, aside) = (place.file(NODE_KEY_FILE), place.file("aside"));
    fs::rename(&file, &aside).expect("moved away");
    let before = fs::read(place.file(FILE)).expect("read");

    let missing = open(&place).expect_err("no key");
    assert_eq!(missing.code, StoreErrorCode::NodeKeyMissing, "{missing}");
    assert!(missing.remedy().contains("put node.key back") && !missing.retryable());
    assert!(!file.exists(), "none is made in its place");

    fs::copy(other.file(NODE_KEY_FILE), &file).expect("copied");
    let wrong = open(&place).expect_err("another's key");
    assert_eq!(wrong.code, StoreErrorCode::NodeKeyWrong, "{wrong}");
    assert!(wrong.cause.contains("another database"), "{wrong}");

    fs::write(&file, "nonsense").expect("written");
    let garbled = open(&place).expect_err("no key in it");
    assert_eq!(garbled.code, StoreErrorCode::NodeKeyWrong, "{garbled}");
    assert_eq!(fs::read(&file).expect("read"), b"nonsense", "the file is left as it was");
    assert!(fs::read(place.file(FILE)).expect("read") == before, "so is the database");

    fs::rename(&aside, &file).expect("moved back");
    let store = open(&place).expect("opened with its key");
    assert_all_there(&store).await;
}

#[tokio::test]
async fn node_key_left_by_a_killed_first_start_is_used() {
    let (place, first) = (TempDir::new(), TempDir::new());
    open(&first).expect("opened").close().await.expect("closed");
    fs::copy(first.file(NODE_KEY_FILE), place.file(NODE_KEY_FILE)).expect("copied");
    let store = open(&place).expect("opened");
    fill(&store).await;
    store.close().await.expect("closed");
    let same = |place: &TempDir| fs::read(place.file(NODE_KEY_FILE)).expect("read");
    assert_eq!(same(&place), same(&first));

    let garbled = TempDir::new();
    fs::write(garbled.file(NODE_KEY_FILE), "nonsense").expect("written");
    let error = open(&garbled).expect_err("the file may be the key of other data");
    assert_eq!(error.code, StoreErrorCode::NodeKeyWrong);
}

/// Without the key, a writer of the file cannot give a session the environment of another.
#[tokio::test]
async fn sealed_envelope_opens_in_its_own_row_only() {
    let place = TempDir::new();
    let store = open(&place).expect("opened");
    fill(&store).await;
    store.close().await.expect("closed");
    let conn = Connection::open(place.file(FILE)).expect("opened");
    let sql = "UPDATE sessions SET sealed = (SELECT sealed FROM sessions WHERE sealed NOT NULL)";
    conn.execute(sql, []).expect("changed");
    drop(conn);
    let error = open(&place).expect_err("an envelope of another row");
    assert_eq!(error.code, StoreErrorCode::Corrupt);
    assert!(error.cause.contains("of sessions") && !error.cause.contains(MARK), "{error}");
}

/// Without the key, a writer of the file cannot give one key the secret of another, nor give a
/// secret another name.
#[tokio::test]
async fn sealed_secret_opens_for_its_own_key_and_name_only() {
    let key = "unhex('00000000000000000000000000000007')";
    for sql in [
        format!("UPDATE secrets SET owner = x'' WHERE owner = {key} AND name = 'b'"),
        format!(
            "UPDATE secrets SET owner = unhex('00000000000000000000000000000008') WHERE owner = {key}"
        ),
        "UPDATE secrets SET name = name || 'x'".to_owned(),
        "UPDATE secrets SET sealed = (SELECT max(sealed) FROM secrets WHERE name = 'b')".to_owned(),
    ] {
        let place = TempDir::new();
        let store = open(&place).expect("opened");
        fill(&store).await;
        store.close().await.expect("closed");
        let conn = Connection::open(place.file(FILE)).expect("opened");
        assert!(conn.execute(&sql, []).expect("changed") > 0, "{sql}");
        drop(conn);
        let store = open(&place).expect("opened: secrets are read when they are needed");
        let mut refused = 0;
        for owner in [
            SecretOwner::Node,
            SecretOwner::Key(KeyId::from_u128(7)),
            SecretOwner::Key(KeyId::from_u128(8)),
        ] {
            for info in store.secrets(owner).await.expect("names are not sealed") {
                match store.secret(owner, &info.name).await {
                    Ok(found) => {
                        let found = found.expect("listed");
                        assert_eq!(found.value, stored_secret(owner, info.name.as_str()).value);
                    }
                    Err(error) => {
                        assert_eq!(error.code, StoreErrorCode::Corrupt);
                        assert!(!error.cause.contains(MARK), "{error}");
                        refused += 1;
                    }
                }
            }
        }
        assert!(refused > 0, "{sql}");
    }
}

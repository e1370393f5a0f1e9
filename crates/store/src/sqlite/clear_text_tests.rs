//! Clear text of older versions: sealed when the database is opened, and no trace of it stays.

use std::fs;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};

use super::schema::MIGRATIONS;
use super::*;
use crate::conformance::fixtures::{process, session, turn, turn_id};

struct Directory(PathBuf);

impl Directory {
    fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let n = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("store-clear-text-{}-{n}", std::process::id());
        let path = std::env::temp_dir().join(name);
        fs::create_dir_all(&path).expect("a directory");
        Self(path)
    }

    fn open(&self) -> SqliteStore {
        SqliteStore::open(&self.0, Retention::default()).expect("opened")
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// What the sixth version wrote in clear text: in a record, in a free page, in the log.
fn with_clear_text(directory: &Directory) {
    let path = directory.0.join(FILE);
    open::make_file(&path).expect("made");
    let mut conn = open::to_write(&path).expect("opened");
    let none = NodeKey::from_secret(&[7; 32]);
    migrate::migrate(&mut conn, &path, &MIGRATIONS[..6], &none).expect("the sixth version");
    let claim = model::ClaimSettings {
        env: [("TOKEN".to_owned(), "hunter2-env".to_owned())].into(),
        ..model::ClaimSettings::default()
    };
    let one = model::record::SessionRecord { claim: Some(Arc::new(claim)), ..session(1, 1) };
    let sent = TurnRecord { input: "\"hunter2-input\"".into(), ..turn(1, 1) };
    let ran = ProcessRecord { command: "hunter2-argv".into(), ..process(1, 1, None) };
    let text = |value: &dyn erased::Text| value.text();
    let sandbox = ran.sandbox.as_u128().to_be_bytes();
    conn.execute("INSERT INTO sessions VALUES (1, ?1)", [text(&one)]).expect("written");
    conn.execute(
        "INSERT INTO turns (id, session, bytes, record) VALUES (?1, ?2, 0, ?3)",
        rusqlite::params![turns::key(sent.id), sent.session.as_u128().to_be_bytes(), text(&sent)],
    )
    .expect("written");
    conn.execute(
        "INSERT INTO processes (sandbox, number, id, pid, name, tenant, bytes, record) \
         VALUES (?1, 1, x'01', 1, 'a', ?2, 1, ?3)",
        rusqlite::params![sandbox, ran.tenant.as_u128().to_be_bytes(), text(&ran)],
    )
    .expect("written");
    let sql = "INSERT INTO documents (kind, tenant, name, body) VALUES ('agent', ?1, 'a', ?2)";
    conn.execute(sql, rusqlite::params![[0_u8; 16], "\"hunter2-body\""]).expect("written");
    for gone in 0..200 {
        let body = format!("hunter2-{gone}-{}", "x".repeat(2_000));
        let row = rusqlite::params![[0_u8; 16], gone.to_string(), body];
        let sql = "INSERT INTO documents (kind, tenant, name, body) VALUES ('gone', ?1, ?2, ?3)";
        conn.execute(sql, row).expect("written");
    }
    conn.execute("DELETE FROM documents WHERE kind = 'gone'", []).expect("deleted");
}

/// Records as text, whatever they are.
mod erased {
    pub(super) trait Text {
        fn text(&self) -> String;
    }

    impl<T: serde::Serialize> Text for T {
        fn text(&self) -> String {
            serde_json::to_string(self).expect("text")
        }
    }
}

fn clear_text_in(directory: &Directory) -> Vec<String> {
    let files = fs::read_dir(&directory.0).expect("a directory");
    let paths = files.map(|file| file.expect("a file").path());
    let marked = paths.filter(|path| {
        let bytes = fs::read(path).expect("read");
        bytes.windows(7).any(|part| part == b"hunter2")
    });
    marked.map(|path| path.display().to_string()).collect()
}

async fn assert_secrets_there(store: &SqliteStore) {
    let loaded = store.load().await.expect("loaded");
    let claim = loaded.journal.sessions[0].claim.as_ref().expect("a claim");
    assert_eq!(claim.env["TOKEN"], "hunter2-env");
    let sent = store.turn(turn_id(1)).await.expect("read").expect("a turn");
    assert_eq!(&*sent.input, "\"hunter2-input\"");
    let running = store.unfinished_processes(9).await.expect("read");
    assert_eq!(&*running[0].command, "hunter2-argv");
    let documents = store.documents(&DocumentQuery::default()).await.expect("read");
    assert_eq!((documents.len(), &*documents[0].body), (1, "\"hunter2-body\""));
}

#[tokio::test]
async fn clear_text_of_the_sixth_version_is_sealed_without_a_trace() {
    let directory = Directory::new();
    with_clear_text(&directory);
    assert!(!clear_text_in(&directory).is_empty(), "there is something to seal");
    let store = directory.open();
    assert_eq!(store.clear_text_left(), None);
    assert_eq!(clear_text_in(&directory), Vec::<String>::new(), "while it is open");
    assert_secrets_there(&store).await;
    store.close().await.expect("closed");
    assert_eq!(clear_text_in(&directory), Vec::<String>::new(), "when it is closed");
}

#[tokio::test]
async fn clear_text_left_by_a_killed_start_is_removed_at_the_next() {
    let directory = Directory::new();
    with_clear_text(&directory);
    let path = directory.0.join(FILE);
    let mut conn = open::to_write(&path).expect("opened");
    let key = sealed_rows::key_of(&conn, &directory.0).expect("a key");
    migrate::migrate(&mut conn, &path, MIGRATIONS, &key).expect("sealed");
    drop(conn);
    let left = clear_text_in(&directory);
    assert!(left.iter().any(|file| file.contains("backup-v6")), "{left:?}");

    // Another program that reads keeps the log from being truncated: that is reported, and nothing
    // else fails. A program that reads before the inspection is waited for, then refused.
    let place = DatabaseLocation { directory: directory.0.clone(), ..DatabaseLocation::default() };
    let retention = Retention::default();
    let inspected = SqliteStore::inspect(&place, retention).expect("inspected");
    let reader = rusqlite::Connection::open(&path).expect("opened");
    reader.execute_batch("BEGIN; SELECT * FROM sessions").expect("read");
    let store = SqliteStore::open_inspected(inspected, retention).expect("opened");
    assert!(store.clear_text_left().is_some());
    assert_secrets_there(&store).await;
    store.close().await.expect("closed");
    drop(reader);

    let store = directory.open();
    assert_eq!(store.clear_text_left(), None);
    assert_eq!(clear_text_in(&directory), Vec::<String>::new());
    assert_secrets_there(&store).await;
}

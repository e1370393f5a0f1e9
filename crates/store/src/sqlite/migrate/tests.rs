//! A database is migrated from version to version with all that is in it, or stays as it is.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;

use super::*;
use crate::sqlite::open;

const ONE: Migration =
    Migration { version: 1, sql: "CREATE TABLE things (record TEXT)", then: Then::Nothing };
/// A field gets another name, and a table an index.
const TWO: Migration = Migration {
    version: 2,
    sql: "UPDATE things SET record =
              json_remove(json_set(record, '$.new', record ->> '$.old'), '$.old');
          CREATE INDEX things_by_new ON things (record ->> '$.new');",
    then: Then::Nothing,
};
const BROKEN: Migration = Migration {
    version: 3,
    sql: "DELETE FROM things; INSERT INTO nowhere VALUES (1);",
    then: Then::Nothing,
};
const THREE: Migration =
    Migration { version: 3, sql: "CREATE TABLE more (record TEXT)", then: Then::Nothing };

struct Directory(PathBuf);

impl Directory {
    fn new(name: &str) -> Self {
        let name = format!("store-migrate-{name}-{}", std::process::id());
        let path = std::env::temp_dir().join(name);
        fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    fn path(&self) -> PathBuf {
        self.0.join("shoal.db")
    }

    fn files(&self) -> Vec<String> {
        let entries = fs::read_dir(&self.0).unwrap().map(|entry| entry.unwrap().file_name());
        let mut names: Vec<_> = entries.map(|name| name.into_string().unwrap()).collect();
        names.retain(|name| !name.ends_with("-wal") && !name.ends_with("-shm"));
        names.sort();
        names
    }

    fn migrated(&self, migrations: &[Migration]) -> Result<Connection, StoreError> {
        open::make_file(&self.path())?;
        let mut conn = open::to_write(&self.path())?;
        migrate(&mut conn, &self.path(), migrations, &NodeKey::from_secret(&[7; 32]))?;
        Ok(conn)
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn records(conn: &Connection) -> Vec<String> {
    let mut select = conn.prepare("SELECT record FROM things ORDER BY record").unwrap();
    select.query_map([], |row| row.get(0)).unwrap().map(Result::unwrap).collect()
}

fn put(conn: &Connection, record: &str) {
    conn.execute("INSERT INTO things VALUES (?1)", [record]).unwrap();
}

#[test]
fn migration_keeps_records_after_a_backup() {
    let directory = Directory::new("carry");
    let conn = directory.migrated(&[ONE]).unwrap();
    assert_eq!((version(&conn).unwrap(), directory.files()), (1, vec!["shoal.db".to_owned()]));
    put(&conn, r#"{"old":"a"}"#);
    drop(conn);

    let conn = directory.migrated(&[ONE, TWO]).unwrap();
    assert_eq!((version(&conn).unwrap(), records(&conn)), (2, vec![r#"{"new":"a"}"#.to_owned()]));
    assert_eq!(directory.files(), ["shoal.db", "shoal.db.backup-v1"]);
    let saved = backup_path(&directory.path(), 1);
    assert_eq!(fs::metadata(&saved).unwrap().permissions().mode() & 0o777, 0o600);
    let backup = Connection::open(saved).unwrap();
    assert_eq!((version(&backup).unwrap(), records(&backup)), (1, vec![r#"{"old":"a"}"#.into()]));
    drop(conn);

    let conn = directory.migrated(&[ONE, TWO]).unwrap();
    assert_eq!(version(&conn).unwrap(), 2, "nothing is left to do");
}

#[test]
fn migration_over_several_versions_leaves_a_backup_of_each() {
    let directory = Directory::new("several");
    let conn = directory.migrated(&[ONE]).unwrap();
    put(&conn, r#"{"old":"a"}"#);
    drop(conn);
    let conn = directory.migrated(&[ONE, TWO, THREE]).unwrap();
    assert_eq!(version(&conn).unwrap(), 3);
    assert_eq!(directory.files(), ["shoal.db", "shoal.db.backup-v1", "shoal.db.backup-v2"]);
}

#[test]
fn migration_that_fails_changes_nothing_and_can_be_repeated() {
    let directory = Directory::new("fail");
    let conn = directory.migrated(&[ONE, TWO]).unwrap();
    put(&conn, r#"{"new":"a"}"#);
    drop(conn);
    let error = directory.migrated(&[ONE, TWO, BROKEN]).unwrap_err();
    assert!(error.cause.contains("migrate to version 3"), "{error}");
    // Left by a run that was killed in the middle of a backup.
    fs::write(unfinished(&backup_path(&directory.path(), 2)), "half").unwrap();
    let conn = directory.migrated(&[ONE, TWO]).unwrap();
    assert_eq!((version(&conn).unwrap(), records(&conn).len()), (2, 1));
    put(&conn, r#"{"new":"b"}"#);
    drop(conn);
    let conn = directory.migrated(&[ONE, TWO, THREE]).unwrap();
    assert_eq!((version(&conn).unwrap(), records(&conn).len()), (3, 2));
    assert_eq!(directory.files(), ["shoal.db", "shoal.db.backup-v2"]);
    let backup = Connection::open(backup_path(&directory.path(), 2)).unwrap();
    assert_eq!(records(&backup).len(), 2, "it is of the last time");
}

#[test]
fn migration_refuses_a_newer_version_and_does_not_touch_it() {
    let directory = Directory::new("newer");
    drop(directory.migrated(&[ONE, TWO, THREE]).unwrap());
    let error = directory.migrated(&[ONE]).unwrap_err();
    assert_eq!(error.code, StoreErrorCode::NewerVersion);
    assert!(error.cause.contains("version 3") && error.cause.contains("up to 1"), "{error}");
    assert!(error.remedy().contains("shoal restore"), "{}", error.remedy());
    assert_eq!(version(&directory.migrated(&[ONE, TWO, THREE]).unwrap()).unwrap(), 3);
}

#[test]
fn migration_refuses_a_database_of_another_program() {
    let directory = Directory::new("foreign");
    for version in [0, 1] {
        let conn = Connection::open(directory.path()).unwrap();
        conn.execute_batch("CREATE TABLE IF NOT EXISTS theirs (x)").unwrap();
        conn.pragma_update(None, "user_version", version).unwrap();
        drop(conn);
        let error = directory.migrated(&[ONE]).unwrap_err();
        assert_eq!(error.code, StoreErrorCode::Corrupt);
        assert!(error.cause.contains("some other program"), "{error}");
    }
}

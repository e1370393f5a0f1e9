//! Migrates a database to the present version: one version at a time, each in a transaction of its
//! own, after a backup. A database of a newer version, or of another program, is not touched.

use std::fs;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use rusqlite::Connection;

use super::error::at;
use super::sealed_rows;
use crate::error::{StoreError, StoreErrorCode};
use sealing::NodeKey;

/// Marks the file as ours: `SHOL`.
const APPLICATION_ID: i64 = 0x5348_4f4c;

/// One step from a version to the next.
pub(super) struct Migration {
    /// The version that it leads to.
    pub(super) version: u32,
    /// What changes. Records are changed by SQLite's JSON functions.
    pub(super) sql: &'static str,
    /// What SQL cannot do, in the same transaction.
    pub(super) then: Then,
}

/// What a migration does besides SQL.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Then {
    /// Nothing.
    Nothing,
    /// Seals what older versions wrote in clear text.
    SealAll,
}

/// Runs the missing migrations. Versions are numbered from 1 without gaps.
pub(super) fn migrate(
    conn: &mut Connection,
    path: &Path,
    migrations: &[Migration],
    key: &NodeKey,
) -> Result<(), StoreError> {
    let found = check(conn, path, migrations)?;
    for migration in migrations.iter().filter(|migration| migration.version > found) {
        // A new file has nothing that a backup could save.
        if found > 0 {
            backup(conn, &backup_path(path, migration.version - 1))?;
        }
        apply(conn, migration, key)?;
    }
    Ok(())
}

/// The version of a database, if it is ours and not newer than this program. Changes nothing.
pub(super) fn check(
    conn: &Connection,
    path: &Path,
    migrations: &[Migration],
) -> Result<u32, StoreError> {
    let latest = latest(migrations);
    let found = version(conn)?;
    if found > latest {
        return Err(StoreError::new(
            StoreErrorCode::NewerVersion,
            format!(
                "{} has version {found} of the schema, and this program knows versions up to {latest}",
                path.display()
            ),
        ));
    }
    recognise(conn, path, found)?;
    Ok(found)
}

/// The present version.
pub(super) fn latest(migrations: &[Migration]) -> u32 {
    migrations.last().map_or(0, |migration| migration.version)
}

/// The name of the backup that is made of a version before its migration.
pub(super) fn backup_path(path: &Path, version: u32) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(format!(".backup-v{version}"));
    name.into()
}

fn version(conn: &Connection) -> Result<u32, StoreError> {
    conn.pragma_query_value(None, "user_version", |row| row.get(0))
        .map_err(at("read the version of the schema"))
}

/// Refuses a database that is not ours, rather than adding tables to it.
fn recognise(conn: &Connection, path: &Path, version: u32) -> Result<(), StoreError> {
    let step = at("read the schema");
    let mark: i64 =
        conn.pragma_query_value(None, "application_id", |row| row.get(0)).map_err(&step)?;
    let tables: i64 = conn
        .query_row("SELECT count(*) FROM sqlite_schema", [], |row| row.get(0))
        .map_err(&step)?;
    let fresh = version == 0 && tables == 0;
    if fresh || (version > 0 && mark == APPLICATION_ID) {
        return Ok(());
    }
    let cause = format!("{} is a database of some other program", path.display());
    Err(StoreError::new(StoreErrorCode::Corrupt, cause))
}

fn apply(conn: &mut Connection, migration: &Migration, key: &NodeKey) -> Result<(), StoreError> {
    let step = format!("migrate to version {}", migration.version);
    let step = at(&step);
    // If it is dropped without a commit, everything is rolled back.
    let transaction = conn.transaction().map_err(&step)?;
    transaction.execute_batch(migration.sql).map_err(&step)?;
    match migration.then {
        Then::Nothing => {}
        Then::SealAll => sealed_rows::seal_all(&transaction, key)?,
    }
    transaction.pragma_update(None, "application_id", APPLICATION_ID).map_err(&step)?;
    transaction.pragma_update(None, "user_version", migration.version).map_err(&step)?;
    transaction.commit().map_err(&step)
}

/// A copy of everything, complete under its name or absent.
fn backup(conn: &Connection, to: &Path) -> Result<(), StoreError> {
    let made = begin_backup(conn, to);
    if made.is_err() {
        let _ = fs::remove_file(unfinished(to));
    }
    made
}

fn begin_backup(conn: &Connection, to: &Path) -> Result<(), StoreError> {
    let step = |what: &str| format!("{what} {}", to.display());
    let partial = unfinished(to);
    let refused = |error: std::io::Error| {
        StoreError::new(StoreErrorCode::Io, format!("{}: {error}", step("make the backup")))
    };
    match fs::remove_file(&partial) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(refused(error)),
        Ok(()) | Err(_) => {}
    }
    // Created here and not by SQLite, which would let every user read it.
    let options = fs::OpenOptions::new().write(true).create_new(true).mode(0o600).clone();
    drop(options.open(&partial).map_err(refused)?);
    conn.execute("VACUUM INTO ?1", [partial.to_string_lossy()])
        .map_err(at(&step("make the backup")))?;
    let file = fs::File::open(&partial).map_err(refused)?;
    file.sync_all().map_err(refused)?;
    fs::rename(&partial, to).map_err(refused)
}

/// The name of such a backup while it is made.
pub(super) fn unfinished(to: &Path) -> PathBuf {
    let mut name = to.as_os_str().to_owned();
    name.push(".unfinished");
    name.into()
}

#[cfg(test)]
mod tests;

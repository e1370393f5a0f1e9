//! How connections to the file are made. Only the owner can read the file, and durability and speed
//! depend on the SQLite settings here.

use std::fmt::Write as _;
use std::fs;
use std::io::ErrorKind;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rusqlite::config::DbConfig;
use rusqlite::{Connection, OpenFlags};

use super::error::{at, step_error};
use crate::error::{StoreError, StoreErrorCode};

/// How long another program may keep the file locked before we give up.
pub(super) const PATIENCE: Duration = Duration::from_secs(2);

/// The size of the statement cache; there are fewer statements.
const STATEMENTS: usize = 64;

/// Makes the file if there is none, for its owner only. SQLite gives the files beside it the same
/// mode.
pub(super) fn make_file(path: &Path) -> Result<(), StoreError> {
    let refused = |error: std::io::Error| {
        StoreError::new(StoreErrorCode::Io, format!("make {}: {error}", path.display()))
    };
    // Never opened if it exists: closing a file releases the locks that SQLite has on it.
    match fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(path) {
        Ok(_) => Ok(()),
        Err(error) if error.kind() == ErrorKind::AlreadyExists => {
            fs::set_permissions(path, fs::Permissions::from_mode(0o600)).map_err(refused)
        }
        Err(error) => Err(refused(error)),
    }
}

/// The connection that writes. What was committed is in the log, in the kernel's page cache: it
/// survives this process. After a power cut the file is consistent but may lack what was not
/// checkpointed.
pub(super) fn to_write(path: &Path) -> Result<Connection, StoreError> {
    let conn = connect(path)?;
    let step = at("prepare the database");
    let mode: String = conn
        .pragma_update_and_check(None, "journal_mode", "WAL", |row| row.get(0))
        .map_err(&step)?;
    if mode != "wal" {
        let cause = format!("the log of {} is `{mode}` and cannot be `wal`", path.display());
        return Err(StoreError::new(StoreErrorCode::Io, cause));
    }
    // Another thread makes checkpoints.
    conn.pragma_update(None, "wal_autocheckpoint", 0).map_err(&step)?;
    Ok(conn)
}

/// The sequence of the last commit.
pub(super) fn sequence(conn: &Connection) -> Result<u64, StoreError> {
    let sequence = conn.query_row("SELECT sequence FROM progress", [], |row| row.get(0));
    sequence.map(i64::cast_unsigned).map_err(at("read the sequence of the last commit"))
}

/// The identity that the store got when it was made.
pub(super) fn identity(conn: &Connection) -> Result<u64, StoreError> {
    let id = conn.query_row("SELECT id FROM identity", [], |row| row.get(0));
    id.map(i64::cast_unsigned).map_err(at("read the identity of the store"))
}

/// A connection that reads.
pub(super) fn to_read(path: &Path) -> Result<Connection, StoreError> {
    let conn = connect(path)?;
    conn.pragma_update(None, "query_only", true).map_err(at("prepare the database"))?;
    Ok(conn)
}

/// A connection that reads alone and needs no space on the disk: it keeps the index of the log in
/// its own memory. Nothing on the disk changes, also when it is closed.
pub(super) fn to_read_alone(path: &Path) -> Result<Connection, StoreError> {
    let log = fs::metadata(log_of(path)).map_or(0, |log| log.len());
    if log == 0 {
        // SQLite would make a log, even an empty one. Nothing writes as long as we have this.
        let flags = OpenFlags::SQLITE_OPEN_READ_ONLY
            | OpenFlags::SQLITE_OPEN_NO_MUTEX
            | OpenFlags::SQLITE_OPEN_URI;
        let uri = format!("file:{}?immutable=1", escaped(path));
        let conn = Connection::open_with_flags(uri, flags).map_err(opening(path))?;
        return prepared(conn, path);
    }
    let conn = Connection::open_with_flags(path, READ_WRITE).map_err(opening(path))?;
    // Before anything is read: then the shared memory of connections is not used.
    let mode: String = conn
        .pragma_update_and_check(None, "locking_mode", "EXCLUSIVE", |row| row.get(0))
        .map_err(opening(path))?;
    if mode != "exclusive" {
        let cause = format!("{} cannot be locked as a whole", path.display());
        return Err(StoreError::new(StoreErrorCode::Io, cause));
    }
    let conn = prepared(conn, path)?;
    conn.pragma_update(None, "query_only", true).map_err(at("prepare the database"))?;
    Ok(conn)
}

/// The log of a database.
pub(super) fn log_of(path: &Path) -> PathBuf {
    let mut log = path.as_os_str().to_owned();
    log.push("-wal");
    log.into()
}

/// A path as part of a URI.
fn escaped(path: &Path) -> String {
    path.as_os_str().as_bytes().iter().fold(String::new(), |mut uri, byte| {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'/' | b'.' | b'-' | b'_' => {
                uri.push(char::from(*byte));
            }
            // Writing to a string cannot fail.
            byte => drop(write!(uri, "%{byte:02x}")),
        }
        uri
    })
}

/// A connection that checkpoints the log into the file.
pub(super) fn to_checkpoint(path: &Path) -> Result<Connection, StoreError> {
    connect(path)
}

/// A connection that copies the file. SQLite counts writing to the copy as writing, so this one may
/// not be read-only.
pub(super) fn to_copy(path: &Path) -> Result<Connection, StoreError> {
    connect(path)
}
/// Each connection is behind a lock of ours.
const READ_WRITE: OpenFlags =
    OpenFlags::SQLITE_OPEN_READ_WRITE.union(OpenFlags::SQLITE_OPEN_NO_MUTEX);

fn connect(path: &Path) -> Result<Connection, StoreError> {
    let conn = Connection::open_with_flags(path, READ_WRITE).map_err(opening(path))?;
    prepared(conn, path)
}

fn opening(path: &Path) -> impl Fn(rusqlite::Error) -> StoreError {
    let step = format!("open {}", path.display());
    move |error| step_error(&step, &error)
}

/// Settings of every connection.
fn prepared(conn: Connection, path: &Path) -> Result<Connection, StoreError> {
    let step = opening(path);
    // The last connection to close would checkpoint the log and remove it, which looks like a lost
    // log. Only an orderly stop does that, and records it in the mark.
    conn.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true).map_err(&step)?;
    conn.set_prepared_statement_cache_capacity(STATEMENTS);
    conn.busy_timeout(PATIENCE).map_err(&step)?;
    conn.pragma_update(None, "synchronous", "NORMAL").map_err(&step)?;
    conn.pragma_update(None, "temp_store", "MEMORY").map_err(&step)?;
    conn.pragma_update(None, "trusted_schema", false).map_err(&step)?;
    // In KiB when below 0.
    conn.pragma_update(None, "cache_size", -16_384).map_err(&step)?;
    Ok(conn)
}

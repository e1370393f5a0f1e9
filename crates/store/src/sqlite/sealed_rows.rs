//! The key of the node and the database: which key belongs to it, how rows of older versions are
//! sealed with it, and how their clear text is removed from the file.
//!
//! A key is made only where nothing can be sealed yet. If a database names its key and that key is
//! missing, nothing starts. How a key is replaced is in `rotation`.

use std::path::Path;

use model::KeyId;
use model::process::ProcessRecord;
use model::record::SessionRecord;
use model::turn::TurnRecord;
use rusqlite::{Connection, OptionalExtension as _, params};
use serde::Serialize;

use super::error::at;
use super::migrate::backup_path;
use super::sealed_fields;
use super::tables::read;
use crate::error::{StoreError, StoreErrorCode};
use crate::node_key::{NODE_KEY_FILE, make_node_key, read_next_key, read_node_key, remove};
use sealing::{NodeKey, Place, SealError};

/// The version of the schema from which on rows are sealed.
pub(super) const SEALED_SINCE: u32 = 7;

/// What is sealed to recognise the key.
const CHECKED: &[u8] = b"shoal node key";

fn check_place() -> Place {
    Place::new("node_key")
}

/// The file that has the key of a database.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum KeyFile {
    Present,
    /// A rotation was interrupted after everything was sealed with the next key.
    Next,
}

/// The key that belongs to a database, from a file beside it. It is made if neither has one.
pub(super) fn key_of(conn: &Connection, directory: &Path) -> Result<NodeKey, StoreError> {
    found_key(conn, directory).map(|(key, _)| key)
}

/// The key that belongs to a database, and the file that has it.
pub(super) fn found_key(
    conn: &Connection,
    directory: &Path,
) -> Result<(NodeKey, KeyFile), StoreError> {
    let Some(check) = key_check(conn)? else {
        // Nothing is sealed yet. An existing key was made by a start that was killed, or belongs to
        // data beside the database.
        let key = read_node_key(directory)?.map_or_else(|| make_node_key(directory), Ok)?;
        return Ok((key, KeyFile::Present));
    };
    let present = read_node_key(directory).and_then(|found| recognised(found, &check, directory));
    present.map(|key| (key, KeyFile::Present)).or_else(|error| {
        // A garbled next key is as good as none: the error about the present one says more.
        let next = read_next_key(directory).unwrap_or_default();
        let next = next.filter(|key| key.open(&check_place(), &check).is_ok());
        next.map(|key| (key, KeyFile::Next)).ok_or(error)
    })
}

/// The key in the file, if the database was sealed with it.
fn recognised(
    found: Option<NodeKey>,
    check: &[u8],
    directory: &Path,
) -> Result<NodeKey, StoreError> {
    let file = directory.join(NODE_KEY_FILE);
    let Some(key) = found else {
        let cause = format!("{} is missing, and stored data was sealed with it", file.display());
        return Err(StoreError::new(StoreErrorCode::NodeKeyMissing, cause));
    };
    match key.open(&check_place(), check) {
        Ok(_) => Ok(key),
        Err(SealError::AnotherKey) => {
            let cause = format!("{} is the key of another database", file.display());
            Err(StoreError::new(StoreErrorCode::NodeKeyWrong, cause))
        }
        Err(error) => {
            let cause = format!("the check of the node key cannot be read: {error}");
            Err(StoreError::new(StoreErrorCode::Corrupt, cause))
        }
    }
}

/// What is stored to recognise a key.
fn new_check(key: &NodeKey) -> Result<Vec<u8>, StoreError> {
    key.seal(&check_place(), CHECKED).map_err(sealed_fields::unsealed)
}

/// The database belongs to another key from now on. What was sealed with the earlier one may be
/// left in free pages, until the file is scrubbed.
pub(super) fn change_key(conn: &Connection, key: &NodeKey) -> Result<(), StoreError> {
    let changed =
        conn.execute("UPDATE node_key SET key_check = ?1, scrubbed = 0", [new_check(key)?]);
    changed.map(drop).map_err(at("write the check of the node key"))
}

fn key_check(conn: &Connection) -> Result<Option<Vec<u8>>, StoreError> {
    let step = at("read the check of the node key");
    let sql = "SELECT count(*) FROM sqlite_schema WHERE type = 'table' AND name = 'node_key'";
    let tables: i64 = conn.query_row(sql, [], |row| row.get(0)).map_err(&step)?;
    if tables == 0 {
        return Ok(None);
    }
    let check = conn.query_row("SELECT key_check FROM node_key", [], |row| row.get(0));
    check.optional().map_err(&step)
}

/// Seals what older versions wrote in clear text, in the transaction of the migration.
pub(super) fn seal_all(conn: &Connection, key: &NodeKey) -> Result<(), StoreError> {
    let check = new_check(key)?;
    conn.execute("INSERT INTO node_key (key_check, scrubbed) VALUES (?1, 0)", [check])
        .map_err(at("write the check of the node key"))?;
    seal_sessions(conn, key)?;
    seal_turns(conn, key)?;
    seal_processes(conn, key)?;
    seal_documents(conn, key)
}

fn seal_sessions(conn: &Connection, key: &NodeKey) -> Result<(), StoreError> {
    let step = at("seal sessions");
    let put = "UPDATE sessions SET record = ?2, sealed = ?3 WHERE slot = ?1";
    let mut put = conn.prepare(put).map_err(&step)?;
    for (slot, text) in texts(conn, "SELECT slot, record FROM sessions")? {
        let record: SessionRecord = read("sessions", slot, text)?;
        let Some(claim) = &record.claim else { continue };
        let sealed = sealed(key, &sealed_fields::of_session(record.id), claim)?;
        let bare = encoded(&sealed_fields::bare_session(&record))?;
        put.execute(params![slot, bare, sealed]).map_err(&step)?;
    }
    Ok(())
}

fn seal_turns(conn: &Connection, key: &NodeKey) -> Result<(), StoreError> {
    let step = at("seal turns");
    let put = "UPDATE turns SET record = ?2, sealed = ?3 WHERE number = ?1";
    let mut put = conn.prepare(put).map_err(&step)?;
    let sql = "SELECT number, record FROM turns WHERE number > ?1 ORDER BY number LIMIT 1";
    let mut next = conn.prepare(sql).map_err(&step)?;
    let mut last = 0_i64;
    // One at a time: all of them may not fit into memory.
    while let Some((number, text)) = next
        .query_row([last], |row| Ok((row.get::<_, i64>(0)?, row.get::<_, String>(1)?)))
        .optional()
        .map_err(&step)?
    {
        let record: TurnRecord = read("turns", number, text)?;
        let sealed = sealed(key, &sealed_fields::of_turn(record.id), &record.input)?;
        let bare = encoded(&sealed_fields::bare_turn(&record))?;
        put.execute(params![number, bare, sealed]).map_err(&step)?;
        last = number;
    }
    Ok(())
}

fn seal_processes(conn: &Connection, key: &NodeKey) -> Result<(), StoreError> {
    let step = at("seal processes");
    let put = "UPDATE processes SET record = ?3, sealed = ?4 WHERE sandbox = ?1 AND number = ?2";
    let mut put = conn.prepare(put).map_err(&step)?;
    for (number, text) in texts(conn, "SELECT number, record FROM processes")? {
        let record: ProcessRecord = read("processes", number, text)?;
        let (bare, hidden) = sealed_fields::split_process(&record);
        let sealed = sealed(key, &sealed_fields::of_process(record.sandbox, number), &hidden)?;
        let sandbox = record.sandbox.as_u128().to_be_bytes();
        put.execute(params![sandbox, number, encoded(&bare)?, sealed]).map_err(&step)?;
    }
    Ok(())
}

fn seal_documents(conn: &Connection, key: &NodeKey) -> Result<(), StoreError> {
    let step = at("seal documents");
    let put = "UPDATE documents SET body = '', sealed = ?4 \
               WHERE kind = ?1 AND tenant = ?2 AND name = ?3";
    let mut put = conn.prepare(put).map_err(&step)?;
    let mut all = conn.prepare("SELECT kind, tenant, name FROM documents").map_err(&step)?;
    let names = all.query_map([], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)));
    let names: Vec<(String, [u8; 16], String)> =
        names.and_then(Iterator::collect).map_err(&step)?;
    let sql = "SELECT body FROM documents WHERE kind = ?1 AND tenant = ?2 AND name = ?3";
    let mut body = conn.prepare(sql).map_err(&step)?;
    for (kind, tenant, name) in names {
        let text: String =
            body.query_row(params![kind, tenant, name], |row| row.get(0)).map_err(&step)?;
        let place =
            sealed_fields::of_document(&kind, KeyId::from_u128(u128::from_be_bytes(tenant)), &name);
        let sealed = key.seal(&place, text.as_bytes()).map_err(sealed_fields::unsealed)?;
        put.execute(params![kind, tenant, name, sealed]).map_err(&step)?;
    }
    Ok(())
}

fn texts(conn: &Connection, sql: &str) -> Result<Vec<(i64, String)>, StoreError> {
    let step = at("seal records");
    let mut select = conn.prepare(sql).map_err(&step)?;
    let rows = select.query_map([], |row| Ok((row.get(0)?, row.get(1)?)));
    rows.and_then(Iterator::collect).map_err(&step)
}

fn sealed(key: &NodeKey, place: &Place, value: &impl Serialize) -> Result<Vec<u8>, StoreError> {
    key.seal(place, encoded(value)?.as_bytes()).map_err(sealed_fields::unsealed)
}

fn encoded(value: &impl Serialize) -> Result<String, StoreError> {
    serde_json::to_string(value).map_err(|error| {
        StoreError::new(StoreErrorCode::Io, format!("write a record as text: {error}"))
    })
}

/// Nothing was ever written to it in clear text.
pub(super) fn never_had_clear_text(conn: &Connection) -> Result<(), StoreError> {
    let done = conn.execute("UPDATE node_key SET scrubbed = 1", []);
    done.map(drop).map_err(at("write the check of the node key"))
}

/// Removes what is left of clear text, and of envelopes of an earlier key: in free pages of the file,
/// in its log, and in earlier backups. Done once; if it fails, the next start tries again.
pub(super) fn scrub(conn: &Connection, path: &Path) -> Result<(), StoreError> {
    let step = at("remove what is left of earlier versions or keys in the database");
    let scrubbed: bool =
        conn.query_row("SELECT scrubbed FROM node_key", [], |row| row.get(0)).map_err(&step)?;
    if scrubbed {
        return Ok(());
    }
    conn.execute_batch("VACUUM").map_err(&step)?;
    let held_up: bool =
        conn.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |row| row.get(0)).map_err(&step)?;
    if held_up {
        let cause = "another program reads the database, so its log cannot be truncated";
        return Err(StoreError::new(StoreErrorCode::Locked, cause));
    }
    for version in 1..SEALED_SINCE {
        let backup = backup_path(path, version);
        remove(&backup).map_err(|error| {
            let cause = format!("remove {}: {error}", backup.display());
            StoreError::new(StoreErrorCode::Io, cause)
        })?;
    }
    never_had_clear_text(conn)
}

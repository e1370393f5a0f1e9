//! Replaces the key of the node: seals everything anew with another key, while no server runs.
//!
//! The steps are in an order in which a kill or a power cut between any two leaves a database that
//! opens. First the next key is on the disk, in a file of its own. Then one transaction seals every
//! row anew and changes the check by which the database recognises its key: before it the present
//! key opens everything, after it the next one. Only once the disk has that transaction, the next
//! key takes the place of the present one. Whatever was interrupted, the next open settles it.

use std::fs::File;
use std::io;
use std::path::Path;

use model::{KeyId, SandboxId, SessionId, TurnId};
use rusqlite::types::Value;
use rusqlite::{Connection, Row, params_from_iter};
use sealing::{NodeKey, Place};

use super::checkpoints::DUE;
use super::deferred_open::{DeferredOpen, Opened};
use super::error::at;
use super::inspect::{Inspected, aside};
use super::migrate::{backup_path, latest, unfinished};
use super::open::{PATIENCE, log_of};
use super::schema::MIGRATIONS;
use super::sealed_rows::{KeyFile, change_key, scrub};
use super::writer::Writer;
use super::{FILE, sealed_fields};
use crate::error::{StoreError, StoreErrorCode};
use crate::node_key::{make_next_key, remove, remove_next_key, use_next_key};
use crate::retention::Retention;

/// What a rotation did.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rotated {
    /// How many values were sealed with the new key.
    pub values: u64,
    /// Why values that were sealed with the old key are still in unused parts of the file, if they
    /// are: the next start tries again to remove them.
    pub left: Option<StoreError>,
}

/// Replaces the key of a database that was inspected and that nothing else uses. Blocks on the disk.
pub fn rotate_node_key(inspected: Inspected, retention: Retention) -> Result<Rotated, StoreError> {
    let mut rotation = Rotation::begin(inspected, retention)?;
    let values = rotation.seal_all()?;
    rotation.use_next_key()?;
    let left = rotation.scrub().err();
    rotation.close()?;
    Ok(Rotated { values, left })
}

/// A rotation in progress. If it is dropped, it is as if the process had been killed there.
struct Rotation {
    open: DeferredOpen,
    writer: Writer,
    present: NodeKey,
    next: NodeKey,
}

impl Rotation {
    /// Opens the database, which settles what an earlier rotation left, and makes the next key.
    fn begin(inspected: Inspected, retention: Retention) -> Result<Self, StoreError> {
        let Inspected { directory, .. } = inspected;
        let open = DeferredOpen { directory, retention, due: DUE };
        let path = open.path();
        if !path.is_file() {
            let cause = format!("{} is not there", path.display());
            return Err(StoreError::new(StoreErrorCode::Missing, cause));
        }
        let Opened { writer, key: present, .. } = open.open()?;
        let next = make_next_key(&open.directory)?;
        Ok(Self { open, writer, present, next })
    }

    /// Seals everything with the next key, or nothing. Gives the number of values.
    fn seal_all(&mut self) -> Result<u64, StoreError> {
        let (present, next) = (&self.present, &self.next);
        let mut failed = None;
        let sealed = self.writer.transact(PATIENCE, |writer| {
            reseal_all(writer.conn(), present, next).map_err(|error| {
                failed = Some(error);
                // Only so that the transaction is rolled back.
                rusqlite::Error::InvalidQuery
            })
        });
        match failed {
            Some(error) => Err(error),
            None => sealed,
        }
    }

    fn use_next_key(&self) -> Result<(), StoreError> {
        settle(&self.open.directory, KeyFile::Next)
    }

    /// Removes values of the old key from unused parts of the file, and from its log.
    fn scrub(&self) -> Result<(), StoreError> {
        let path = self.open.path();
        self.writer.patiently(PATIENCE, |writer| Ok(scrub(writer.conn(), &path))).flatten()
    }

    fn close(self) -> Result<(), StoreError> {
        self.writer.close()
    }
}

/// Ends a rotation that was interrupted, or is about to end. Without one it changes nothing.
pub(super) fn settle(directory: &Path, key_file: KeyFile) -> Result<(), StoreError> {
    let settled = match key_file {
        // Nothing was sealed with the next key.
        KeyFile::Present => remove_next_key(directory),
        KeyFile::Next => put_next_in_place(directory),
    };
    settled.map_err(|error| {
        let cause = format!("replace the key of the node in {}: {error}", directory.display());
        StoreError::new(StoreErrorCode::Io, cause)
    })
}

/// The present key is gone afterwards. So the disk must have everything that the next one opens,
/// and what only the present one opens goes, too.
fn put_next_in_place(directory: &Path) -> io::Result<()> {
    let path = directory.join(FILE);
    let log = log_of(&path);
    match File::open(&log) {
        Ok(file) => file.sync_all()?,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(error),
    }
    File::open(directory)?.sync_all()?;
    for version in 1..latest(MIGRATIONS) {
        let backup = backup_path(&path, version);
        remove(&unfinished(&backup))?;
        remove(&backup)?;
    }
    remove(&aside(&log))?;
    use_next_key(directory)
}

/// A table whose rows have envelopes, in the column `sealed`.
struct SealedTable {
    name: &'static str,
    /// The columns that name a row.
    key: &'static [&'static str],
    /// What the place of a row is made of.
    parts: &'static str,
    /// The place for which the envelope of a row was sealed, from these parts; none if they are not
    /// what this program writes.
    place: fn(&Row<'_>) -> rusqlite::Result<Option<Place>>,
}

const TABLES: [SealedTable; 5] = [
    SealedTable {
        name: "sessions",
        key: &["slot"],
        parts: "record ->> '$.id'",
        place: |row| {
            let id = row.get::<_, String>(0)?.parse::<SessionId>();
            Ok(id.ok().map(sealed_fields::of_session))
        },
    },
    SealedTable {
        name: "turns",
        key: &["number"],
        parts: "record ->> '$.id'",
        place: |row| {
            let id = row.get::<_, String>(0)?.parse::<TurnId>();
            Ok(id.ok().map(sealed_fields::of_turn))
        },
    },
    SealedTable {
        name: "processes",
        key: &["sandbox", "number"],
        parts: "sandbox, number",
        place: |row| {
            let sandbox = SandboxId::from_u128(u128::from_be_bytes(row.get(0)?));
            Ok(Some(sealed_fields::of_process(sandbox, row.get(1)?)))
        },
    },
    SealedTable {
        name: "documents",
        key: &["kind", "tenant", "name"],
        parts: "kind, tenant, name",
        place: |row| {
            let (kind, name): (String, String) = (row.get(0)?, row.get(2)?);
            let tenant = KeyId::from_u128(u128::from_be_bytes(row.get(1)?));
            Ok(Some(sealed_fields::of_document(&kind, tenant, &name)))
        },
    },
    SealedTable {
        name: "secrets",
        key: &["owner", "name"],
        parts: "owner, name",
        place: |row| {
            let (owner, name): (Vec<u8>, String) = (row.get(0)?, row.get(1)?);
            Ok(Some(sealed_fields::of_secret_row(&owner, &name)))
        },
    },
];

/// Seals every envelope with another key, in one transaction.
fn reseal_all(conn: &Connection, from: &NodeKey, to: &NodeKey) -> Result<u64, StoreError> {
    let mut values = 0;
    for table in &TABLES {
        values += table.reseal(conn, from, to)?;
    }
    change_key(conn, to)?;
    Ok(values)
}

impl SealedTable {
    fn reseal(&self, conn: &Connection, from: &NodeKey, to: &NodeKey) -> Result<u64, StoreError> {
        let Self { name, parts, .. } = self;
        let step = format!("seal {name} with another key");
        let step = at(&step);
        let is_row = self.condition();
        let sql = format!("SELECT {parts}, sealed FROM {name} WHERE {is_row}");
        let mut read = conn.prepare(&sql).map_err(&step)?;
        // The columns of the row come first.
        let at_sealed = read.column_count() - 1;
        let sql = format!("UPDATE {name} SET sealed = ?{} WHERE {is_row}", self.key.len() + 1);
        let mut write = conn.prepare(&sql).map_err(&step)?;
        let mut values = 0;
        // One envelope at a time: all of them may not fit into memory.
        for mut row in self.rows(conn)? {
            let found = read.query_row(params_from_iter(&row), |found| {
                Ok(((self.place)(found)?, found.get::<_, Vec<u8>>(at_sealed)?))
            });
            let (place, sealed) = found.map_err(&step)?;
            let place = place.ok_or_else(|| self.corrupt("its id cannot be read"))?;
            let clear = from.open(&place, &sealed);
            let clear = clear.map_err(|error| self.corrupt(&error.to_string()))?;
            let sealed = to.seal(&place, &clear).map_err(sealed_fields::unsealed)?;
            row.push(Value::Blob(sealed));
            write.execute(params_from_iter(&row)).map_err(&step)?;
            values += 1;
        }
        Ok(values)
    }

    /// The keys of all rows with an envelope.
    fn rows(&self, conn: &Connection) -> Result<Vec<Vec<Value>>, StoreError> {
        let step = format!("read the keys of {}", self.name);
        let step = at(&step);
        let columns = self.key.join(", ");
        let sql = format!("SELECT {columns} FROM {} WHERE sealed IS NOT NULL", self.name);
        let mut select = conn.prepare(&sql).map_err(&step)?;
        let key = |row: &Row<'_>| (0..self.key.len()).map(|column| row.get(column)).collect();
        let rows = select.query_map([], key).map_err(&step)?;
        rows.collect::<Result<_, _>>().map_err(&step)
    }

    /// Whether a row is the one with this key, for SQL.
    fn condition(&self) -> String {
        let named = |(at, column): (usize, &&str)| format!("{column} = ?{}", at + 1);
        self.key.iter().enumerate().map(named).collect::<Vec<_>>().join(" AND ")
    }

    fn corrupt(&self, why: &str) -> StoreError {
        let cause = format!("a row of {} cannot be sealed with another key: {why}", self.name);
        StoreError::new(StoreErrorCode::Corrupt, cause)
    }
}

#[cfg(test)]
mod tests;

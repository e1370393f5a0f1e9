//! The tables of records, and how a record is decoded.

use model::record::SessionRecord;
use rusqlite::Connection;
use serde::de::DeserializeOwned;

use super::error::at;
use super::sealed_fields::join_session;
use crate::error::{StoreError, StoreErrorCode};
use sealing::NodeKey;

/// A table of records by slot.
pub(super) struct Table {
    pub(super) name: &'static str,
    pub(super) put: &'static str,
    pub(super) delete: &'static str,
    all: &'static str,
}

macro_rules! table {
    ($name:literal) => {
        Table {
            name: $name,
            put: concat!("INSERT OR REPLACE INTO ", $name, " (slot, record) VALUES (?1, ?2)"),
            delete: concat!("DELETE FROM ", $name, " WHERE slot = ?1"),
            all: concat!("SELECT slot, record FROM ", $name, " ORDER BY slot"),
        }
    };
}

pub(super) const POOLS: Table = table!("pools");
pub(super) const SANDBOXES: Table = table!("sandboxes");
pub(super) const SESSIONS: Table = Table {
    put: "INSERT OR REPLACE INTO sessions (slot, record, sealed) VALUES (?1, ?2, ?3)",
    ..table!("sessions")
};
pub(super) const DOOMED: Table = table!("doomed_workspaces");

/// All records of a table, with their slots.
pub(super) fn rows<R: DeserializeOwned>(
    conn: &Connection,
    table: &Table,
) -> Result<Vec<(i64, R)>, StoreError> {
    let step = at(table.name);
    let mut all = conn.prepare_cached(table.all).map_err(&step)?;
    let mut rows = all.query([]).map_err(&step)?;
    let mut found = Vec::new();
    while let Some(row) = rows.next().map_err(&step)? {
        let slot = row.get(0).map_err(&step)?;
        let text = row.get_ref(1).map_err(&step)?.as_str().map_err(|error| step(error.into()))?;
        found.push((slot, read(table.name, slot, text)?));
    }
    Ok(found)
}

/// All sessions, with their sealed fields.
pub(super) fn sessions(conn: &Connection, key: &NodeKey) -> Result<Vec<SessionRecord>, StoreError> {
    let step = at("sessions");
    let sql = "SELECT slot, record, sealed FROM sessions ORDER BY slot";
    let mut all = conn.prepare_cached(sql).map_err(&step)?;
    let mut rows = all.query([]).map_err(&step)?;
    let mut found = Vec::new();
    while let Some(row) = rows.next().map_err(&step)? {
        let slot = row.get(0).map_err(&step)?;
        let text = row.get_ref(1).map_err(&step)?.as_str().map_err(|error| step(error.into()))?;
        let sealed = row.get_ref(2).and_then(|sealed| Ok(sealed.as_blob_or_null()?));
        let mut record = read("sessions", slot, text)?;
        join_session(key, slot, &mut record, sealed.map_err(&step)?)?;
        found.push(record);
    }
    Ok(found)
}

/// A record from its text. The error never includes the text: it may be secret.
pub(super) fn read<R: DeserializeOwned>(
    table: &str,
    row: i64,
    text: impl AsRef<[u8]>,
) -> Result<R, StoreError> {
    serde_json::from_slice(text.as_ref()).map_err(|error| {
        let kind = match error.classify() {
            serde_json::error::Category::Data => "does not fit",
            serde_json::error::Category::Syntax
            | serde_json::error::Category::Eof
            | serde_json::error::Category::Io => "is not JSON",
        };
        let cause = format!("row {row} of {table} {kind} (at byte {})", error.column());
        StoreError::new(StoreErrorCode::Corrupt, cause)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unreadable_record_is_named_and_not_shown() {
        for (text, expected) in [
            ("[2", "row 7 of keys is not JSON (at byte 2)"),
            ("[\"hunter2\"]", "row 7 of keys does not fit (at byte 10)"),
        ] {
            let error = read::<Vec<u32>>("keys", 7, text).unwrap_err();
            assert_eq!((error.code, &*error.cause), (StoreErrorCode::Corrupt, expected));
        }
    }
}

//! What keys have used: one row each, written as a whole.

use model::UsageRecord;
use rusqlite::{Connection, Row, params};

use super::error::at;
use crate::error::{StoreError, StoreErrorCode};

pub(super) fn all(conn: &Connection) -> Result<Vec<UsageRecord>, StoreError> {
    let step = at("read what keys have used");
    let mut select = conn.prepare_cached("SELECT record FROM usage ORDER BY key").map_err(&step)?;
    let text = |row: &Row<'_>| row.get::<_, String>(0);
    let rows = select.query_map([], text).map_err(&step)?;
    let read = |text: rusqlite::Result<String>| {
        serde_json::from_str(&text.map_err(&step)?).map_err(|error| {
            StoreError::new(StoreErrorCode::Corrupt, format!("a row of usage: {error}"))
        })
    };
    rows.map(read).collect()
}

/// Totals as rows: the key, and the record as text.
pub(super) type Rows = Vec<([u8; 16], String)>;

pub(super) fn prepared(totals: &[UsageRecord]) -> Result<Rows, StoreError> {
    let row = |one: &UsageRecord| {
        let text = serde_json::to_string(one).map_err(|error| {
            StoreError::new(StoreErrorCode::Io, format!("write usage as text: {error}"))
        })?;
        Ok((one.key.as_u128().to_be_bytes(), text))
    };
    totals.iter().map(row).collect()
}

pub(super) fn put(conn: &Connection, rows: &Rows) -> rusqlite::Result<()> {
    let sql = "INSERT OR REPLACE INTO usage (key, record) VALUES (?1, ?2)";
    let mut insert = conn.prepare_cached(sql)?;
    for (key, record) in rows {
        insert.execute(params![key, record])?;
    }
    Ok(())
}

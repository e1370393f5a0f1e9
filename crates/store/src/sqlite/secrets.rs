//! Secrets: one row each, found by owner and name. Only the envelope has the value.

use model::{
    KeyId, SecretCounts, SecretInfo, SecretName, SecretOwner, SecretRecord, SecretValue, Wall,
};
use rusqlite::{Connection, OptionalExtension as _, Row, params};

use super::error::at;
use super::sealed_fields::{of_secret, unsealed};
use crate::error::{StoreError, StoreErrorCode};
use sealing::NodeKey;

const COLUMNS: &str = "name, created_at, updated_at, bytes";

/// The owner as it is stored: nothing for the node, which no id of a key is.
pub(super) fn owner_bytes(owner: SecretOwner) -> Vec<u8> {
    match owner {
        SecretOwner::Node => Vec::new(),
        SecretOwner::Key(key) => key.as_u128().to_be_bytes().to_vec(),
    }
}

pub(super) fn all(conn: &Connection, owner: SecretOwner) -> Result<Vec<SecretInfo>, StoreError> {
    let step = at("read the names of secrets");
    let sql = format!("SELECT {COLUMNS} FROM secrets WHERE owner = ?1 ORDER BY name");
    let mut select = conn.prepare_cached(&sql).map_err(&step)?;
    let mut rows = select.query([owner_bytes(owner)]).map_err(&step)?;
    let mut found = Vec::new();
    while let Some(row) = rows.next().map_err(&step)? {
        found.push(columns(row).map_err(&step)?.info(owner)?);
    }
    Ok(found)
}

pub(super) fn one(
    conn: &Connection,
    key: &NodeKey,
    owner: SecretOwner,
    name: &SecretName,
) -> Result<Option<SecretRecord>, StoreError> {
    let step = at("read a secret");
    let sql = format!("SELECT {COLUMNS}, sealed FROM secrets WHERE owner = ?1 AND name = ?2");
    let mut select = conn.prepare_cached(&sql).map_err(&step)?;
    let read = |row: &Row<'_>| Ok((columns(row)?, row.get::<_, Vec<u8>>(4)?));
    let row = select.query_row(params![owner_bytes(owner), name.as_str()], read).optional();
    let Some((columns, sealed)) = row.map_err(&step)? else { return Ok(None) };
    let clear = key.open(&of_secret(owner, name), &sealed);
    let clear = clear.map_err(|error| unreadable(&error.to_string()))?;
    // What is not UTF-8 was never stored, so nothing of it needs to be cleared.
    let text = String::from_utf8(clear).map_err(|_| unreadable("it is not valid UTF-8"))?;
    let value = SecretValue::new(text).map_err(unreadable)?;
    Ok(Some(SecretRecord { info: columns.info(owner)?, value }))
}

/// The columns that lists show.
struct Columns {
    name: String,
    created_at: i64,
    updated_at: i64,
    bytes: i64,
}

fn columns(row: &Row<'_>) -> rusqlite::Result<Columns> {
    let (name, bytes) = (row.get(0)?, row.get(3)?);
    Ok(Columns { name, created_at: row.get(1)?, updated_at: row.get(2)?, bytes })
}

impl Columns {
    fn info(self, owner: SecretOwner) -> Result<SecretInfo, StoreError> {
        Ok(SecretInfo {
            owner,
            name: SecretName::new(&self.name).map_err(unreadable)?,
            bytes: self.bytes.cast_unsigned(),
            created_at: Wall(self.created_at.cast_unsigned()),
            updated_at: Wall(self.updated_at.cast_unsigned()),
        })
    }
}

fn unreadable(why: &str) -> StoreError {
    StoreError::new(StoreErrorCode::Corrupt, format!("a secret cannot be read: {why}"))
}

/// The envelope of a value.
pub(super) fn sealed(key: &NodeKey, secret: &SecretRecord) -> Result<Vec<u8>, StoreError> {
    let place = of_secret(secret.info.owner, &secret.info.name);
    key.seal(&place, secret.value.expose().as_bytes()).map_err(unsealed)
}

/// Writes a secret, with the envelope of its value.
pub(super) fn put(conn: &Connection, info: &SecretInfo, sealed: &[u8]) -> rusqlite::Result<usize> {
    let SecretInfo { owner, name, bytes, created_at, updated_at } = info;
    let sql = "INSERT OR REPLACE INTO secrets (owner, name, created_at, updated_at, bytes, sealed) \
               VALUES (?1, ?2, ?3, ?4, ?5, ?6)";
    conn.prepare_cached(sql)?.execute(params![
        owner_bytes(*owner),
        name.as_str(),
        created_at.0.cast_signed(),
        updated_at.0.cast_signed(),
        bytes.cast_signed(),
        sealed
    ])
}

/// Removes a secret; whether there was one.
pub(super) fn remove(
    conn: &Connection,
    owner: SecretOwner,
    name: &SecretName,
) -> rusqlite::Result<bool> {
    let mut delete = conn.prepare_cached("DELETE FROM secrets WHERE owner = ?1 AND name = ?2")?;
    Ok(delete.execute(params![owner_bytes(owner), name.as_str()])? > 0)
}

/// Removes the secrets of a key, in the transaction that revokes it.
pub(super) fn remove_all_of(conn: &Connection, key: KeyId) -> rusqlite::Result<()> {
    let mut delete = conn.prepare_cached("DELETE FROM secrets WHERE owner = ?1")?;
    delete.execute([owner_bytes(SecretOwner::Key(key))]).map(drop)
}

pub(super) fn counts(conn: &Connection) -> Result<SecretCounts, StoreError> {
    let step = at("count secrets");
    let sql = "SELECT count(*) FILTER (WHERE owner = x''), count(*) FILTER (WHERE owner <> x'') \
               FROM secrets";
    let mut select = conn.prepare_cached(sql).map_err(&step)?;
    let number = |row: &Row<'_>, at| row.get(at).map(i64::cast_unsigned);
    let counts = |row: &Row<'_>| Ok(SecretCounts { node: number(row, 0)?, keys: number(row, 1)? });
    select.query_row([], counts).map_err(&step)
}

//! Documents: one row each, found by kind, key and name.

use std::collections::BTreeSet;

use model::{Document, KeyId, SeedId};
use rusqlite::types::ToSql;
use rusqlite::{Connection, Row, params};

use super::error::at;
use super::prepared_batch::{Prepared, PreparedDocument};
use super::sealed_fields::{DOCUMENT_BYTES, of_document, open_body};
use crate::contract::{DocumentQuery, DocumentsSize};
use crate::error::StoreError;
use sealing::NodeKey;

/// A query as a condition: fields that it does not name are not compared.
fn condition(query: &DocumentQuery) -> (String, Vec<Box<dyn ToSql>>) {
    let mut parts = vec!["1".to_owned()];
    let mut values: Vec<Box<dyn ToSql>> = Vec::new();
    let mut put = |column: &str, value: Option<Box<dyn ToSql>>| {
        if let Some(value) = value {
            values.push(value);
            parts.push(format!("{column} = ?{}", values.len()));
        }
    };
    put("kind", query.kind.clone().map(|kind| Box::new(kind) as _));
    put("tenant", query.tenant.map(|tenant| Box::new(key(tenant)) as _));
    put("name", query.name.clone().map(|name| Box::new(name) as _));
    (parts.join(" AND "), values)
}

const fn key(tenant: KeyId) -> [u8; 16] {
    tenant.as_u128().to_be_bytes()
}

pub(super) fn all(
    conn: &Connection,
    key: &NodeKey,
    query: &DocumentQuery,
) -> Result<Vec<Document>, StoreError> {
    let step = at("read documents");
    let (condition, values) = condition(query);
    let sql = format!(
        "SELECT kind, tenant, name, seed, sealed FROM documents WHERE {condition} \
         ORDER BY kind, tenant, name"
    );
    let mut select = conn.prepare_cached(&sql).map_err(&step)?;
    let values = rusqlite::params_from_iter(values);
    let mut rows = select.query(values).map_err(&step)?;
    let mut found = Vec::new();
    while let Some(row) = rows.next().map_err(&step)? {
        let (mut document, sealed) = document(row).map_err(&step)?;
        let place = of_document(&document.kind, document.tenant, &document.name);
        document.body = open_body(key, &place, &sealed)?;
        found.push(document);
    }
    Ok(found)
}

pub(super) fn size(conn: &Connection, query: &DocumentQuery) -> Result<DocumentsSize, StoreError> {
    let step = at("count documents");
    let (condition, values) = condition(query);
    let sql = format!(
        "SELECT COUNT(*), COALESCE(SUM({DOCUMENT_BYTES}), 0) FROM documents WHERE {condition}"
    );
    let mut select = conn.prepare_cached(&sql).map_err(&step)?;
    let number = |row: &Row<'_>, at| row.get(at).map(i64::cast_unsigned);
    let size = |row: &Row<'_>| Ok(DocumentsSize { count: number(row, 0)?, bytes: number(row, 1)? });
    select.query_row(rusqlite::params_from_iter(values), size).map_err(&step)
}

pub(super) fn seeds(conn: &Connection) -> Result<BTreeSet<SeedId>, StoreError> {
    let step = at("read what documents name");
    let sql = "SELECT DISTINCT seed FROM documents WHERE seed IS NOT NULL";
    let mut select = conn.prepare_cached(sql).map_err(&step)?;
    let seed = |row: &Row<'_>| row.get(0).map(SeedId::from_bytes);
    let rows = select.query_map([], seed).map_err(&step)?;
    rows.collect::<Result<_, _>>().map_err(&step)
}

/// A document without its body, and the envelope with the body.
fn document(row: &Row<'_>) -> rusqlite::Result<(Document, Vec<u8>)> {
    let document = Document {
        kind: row.get(0)?,
        tenant: KeyId::from_u128(u128::from_be_bytes(row.get(1)?)),
        name: row.get(2)?,
        seed: row.get::<_, Option<[u8; 32]>>(3)?.map(SeedId::from_bytes),
        body: "".into(),
    };
    Ok((document, row.get(4)?))
}

/// Writes a document, with the envelope of its body.
pub(super) fn put(
    conn: &Connection,
    document: &Document,
    sealed: &[u8],
) -> rusqlite::Result<usize> {
    let Document { kind, tenant, name, seed, body: _ } = document;
    let sql = "INSERT OR REPLACE INTO documents (kind, tenant, name, seed, body, sealed) \
               VALUES (?1, ?2, ?3, ?4, '', ?5)";
    let seed = seed.as_ref().map(SeedId::as_bytes);
    conn.prepare_cached(sql)?.execute(params![kind, key(*tenant), name, seed, sealed])
}

/// Writes the changes of a batch.
pub(super) fn write(conn: &Connection, batch: &Prepared) -> rusqlite::Result<()> {
    for change in &batch.documents {
        match change {
            PreparedDocument::Put { document, sealed } => {
                put(conn, document, batch.sealed(*sealed))?;
            }
            PreparedDocument::Removed(query) => drop(remove(conn, query)?),
        }
    }
    Ok(())
}

pub(super) fn remove(conn: &Connection, query: &DocumentQuery) -> rusqlite::Result<usize> {
    let (condition, values) = condition(query);
    let sql = format!("DELETE FROM documents WHERE {condition}");
    conn.prepare_cached(&sql)?.execute(rusqlite::params_from_iter(values))
}

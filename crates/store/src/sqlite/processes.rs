//! How processes are written and read: rows by sandbox and number, and what retention deletes.
//! Writing happens inside the transaction of a commit and can be repeated.

use model::process::ProcessRecord;
use model::{KeyId, SandboxId};
use rusqlite::{Connection, OptionalExtension as _, Row, ToSql, params};

use super::error::at;
use super::prepared_batch::Prepared;
use super::sealed_fields::join_process;
use super::tables::read;
use crate::contract::{ProcessBy, ProcessKey, ProcessesQuery};
use crate::error::StoreError;
use crate::retention::Retention;
use crate::retention_selection::{Next, RetentionSelection, Shares, Tally};
use crate::turns::PAGE_BYTES;
use sealing::NodeKey;

/// The process of a key that ended first.
pub(super) const FIRST_OF_KEY: &str = "SELECT sandbox, number, bytes, tenant FROM processes \
    INDEXED BY processes_by_key WHERE tenant = ?1 AND ended_at IS NOT NULL \
    ORDER BY ended_at, sandbox, number LIMIT 1";

/// The process that ended first, if that was before a moment.
pub(super) const FIRST_BEFORE: &str = "SELECT sandbox, number, bytes, tenant FROM processes \
    INDEXED BY processes_by_end WHERE ended_at < ?1 ORDER BY ended_at, sandbox, number LIMIT 1";

pub(super) const UNFINISHED: &str = "SELECT number, record, sealed FROM processes \
    INDEXED BY processes_unfinished WHERE ended_at IS NULL LIMIT ?1";

/// Reads the share of each key.
pub(super) fn found(conn: &Connection) -> rusqlite::Result<Shares> {
    let sql = "SELECT tenant, count(*), sum(bytes) FROM processes INDEXED BY processes_by_key \
               WHERE ended_at IS NOT NULL GROUP BY tenant";
    let (mut select, mut shares) = (conn.prepare(sql)?, Shares::default());
    let mut rows = select.query([])?;
    while let Some(row) = rows.next()? {
        let (count, bytes): (i64, i64) = (row.get(1)?, row.get(2)?);
        let has = Tally { count: count.cast_unsigned(), bytes: bytes.cast_unsigned() };
        shares.add(key_id(row.get(0)?), has);
    }
    shares.settle();
    Ok(shares)
}

/// Writes the process changes of the batch. The shares change at once, and must be rolled back if
/// the batch is not committed.
pub(super) fn write(
    conn: &Connection,
    retention: Retention,
    shares: &mut Shares,
    batch: &Prepared,
) -> rusqlite::Result<()> {
    if batch.processes.is_empty() {
        return Ok(());
    }
    let mut ended = 0;
    for change in &batch.processes {
        let (sandbox, number) = (key(change.sandbox), change.number);
        uncount(conn, shares, sandbox, number)?;
        let Some(put) = &change.put else {
            remove(conn, sandbox, number)?;
            continue;
        };
        let log_bytes = match &put.log {
            Some(log) => put_log(conn, sandbox, number, log)?,
            None => log_bytes(conn, sandbox, number)?,
        };
        let record = batch.text(put.record);
        let bytes = (put.bytes + log_bytes).cast_signed();
        let sql = "INSERT OR REPLACE INTO processes \
                   (sandbox, number, id, pid, name, tenant, ended_at, bytes, record, sealed) \
                   VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10)";
        let (id, tenant) = (put.id.as_u128().to_be_bytes(), put.tenant.as_u128().to_be_bytes());
        let row: &[&dyn ToSql] = &[
            &sandbox,
            &number,
            &id,
            &put.pid,
            &&*put.name,
            &tenant,
            &put.ended_at,
            &bytes,
            &record,
            &batch.sealed(put.sealed),
        ];
        conn.prepare_cached(sql)?.execute(row)?;
        if put.ended_at.is_some() {
            shares.add(put.tenant, Tally::one(bytes.cast_unsigned()));
            ended += 1;
        }
    }
    delete_surplus(
        conn,
        shares,
        RetentionSelection::new(retention.process_bounds(), batch.processes_at, ended),
    )
}

fn put_log(conn: &Connection, sandbox: [u8; 16], number: i64, log: &[u8]) -> rusqlite::Result<u64> {
    let sql = "INSERT OR REPLACE INTO process_logs (sandbox, number, log) VALUES (?1, ?2, ?3)";
    conn.prepare_cached(sql)?.execute(params![sandbox, number, log])?;
    Ok(log.len() as u64)
}

/// How much output of a process is stored already.
fn log_bytes(conn: &Connection, sandbox: [u8; 16], number: i64) -> rusqlite::Result<u64> {
    let sql = "SELECT octet_length(log) FROM process_logs WHERE sandbox = ?1 AND number = ?2";
    let mut select = conn.prepare_cached(sql)?;
    let kept = select.query_row(params![sandbox, number], |row| row.get::<_, i64>(0)).optional()?;
    Ok(kept.unwrap_or(0).cast_unsigned())
}

/// Subtracts a stored process from its key's share.
fn uncount(
    conn: &Connection,
    shares: &mut Shares,
    sandbox: [u8; 16],
    number: i64,
) -> rusqlite::Result<()> {
    let sql = "SELECT tenant, bytes FROM processes \
               WHERE sandbox = ?1 AND number = ?2 AND ended_at IS NOT NULL";
    let mut select = conn.prepare_cached(sql)?;
    let there: Option<([u8; 16], i64)> = select
        .query_row(params![sandbox, number], |row| Ok((row.get(0)?, row.get(1)?)))
        .optional()?;
    if let Some((tenant, bytes)) = there {
        shares.remove(key_id(tenant), Tally::one(bytes.cast_unsigned()));
    }
    Ok(())
}

fn remove(conn: &Connection, sandbox: [u8; 16], number: i64) -> rusqlite::Result<()> {
    for sql in [
        "DELETE FROM processes WHERE sandbox = ?1 AND number = ?2",
        "DELETE FROM process_logs WHERE sandbox = ?1 AND number = ?2",
    ] {
        conn.prepare_cached(sql)?.execute(params![sandbox, number])?;
    }
    Ok(())
}

/// Deletes the process that ended first, of the key with the largest share. Returns whether there
/// was one.
pub(super) fn delete_one(conn: &Connection, shares: &mut Shares) -> rusqlite::Result<bool> {
    let Some(tenant) = shares.largest() else { return Ok(false) };
    delete_first(conn, shares, Next::Of(tenant))
}

fn delete_surplus(
    conn: &Connection,
    shares: &mut Shares,
    mut selection: RetentionSelection,
) -> rusqlite::Result<()> {
    while let Some(next) = selection.next(shares) {
        if !delete_first(conn, shares, next)? {
            return Ok(());
        }
    }
    Ok(())
}

fn delete_first(conn: &Connection, shares: &mut Shares, next: Next) -> rusqlite::Result<bool> {
    let mut first = conn.prepare_cached(match next {
        Next::Of(_) => FIRST_OF_KEY,
        Next::EndedBefore(_) => FIRST_BEFORE,
    })?;
    let found = |row: &Row<'_>| Ok((row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?));
    let found: Option<([u8; 16], i64, i64, [u8; 16])> = match next {
        Next::Of(tenant) => first.query_row([tenant.as_u128().to_be_bytes()], found),
        Next::EndedBefore(moment) => first.query_row([moment.0.cast_signed()], found),
    }
    .optional()?;
    let Some((sandbox, number, bytes, tenant)) = found else { return Ok(false) };
    remove(conn, sandbox, number)?;
    shares.remove(key_id(tenant), Tally::one(bytes.cast_unsigned()));
    Ok(true)
}

/// A process.
pub(super) fn one(
    conn: &Connection,
    node_key: &NodeKey,
    asked: &ProcessKey,
) -> Result<Option<ProcessRecord>, StoreError> {
    let sandbox = key(asked.sandbox);
    let id;
    let (column, value): (&str, &dyn ToSql) = match &asked.by {
        ProcessBy::Id(wanted) => {
            id = wanted.as_u128().to_be_bytes();
            ("id", &id)
        }
        ProcessBy::Pid(pid) => ("pid", pid),
        ProcessBy::Name(name) => ("name", name),
    };
    let sql = format!(
        "SELECT number, record, sealed FROM processes WHERE sandbox = ?1 AND {column} = ?2 \
         ORDER BY number DESC LIMIT 1"
    );
    Ok(records(conn, node_key, &sql, &[&sandbox, value])?.pop())
}

/// Processes of a sandbox.
pub(super) fn page(
    conn: &Connection,
    node_key: &NodeKey,
    query: &ProcessesQuery,
) -> Result<Vec<ProcessRecord>, StoreError> {
    let before = query.before.map_or(i64::MAX, |number| i64::try_from(number).unwrap_or(i64::MAX));
    let sql = "SELECT number, record, sealed FROM processes WHERE sandbox = ?1 AND number < ?2 \
               ORDER BY number DESC LIMIT ?3";
    records(conn, node_key, sql, &[&key(query.sandbox), &before, &query.limit])
}

/// Processes that have not ended.
pub(super) fn unfinished(
    conn: &Connection,
    node_key: &NodeKey,
    limit: u32,
) -> Result<Vec<ProcessRecord>, StoreError> {
    records(conn, node_key, UNFINISHED, &[&limit])
}

/// The output of a process.
pub(super) fn log(
    conn: &Connection,
    sandbox: SandboxId,
    number: u64,
) -> Result<Option<Vec<u8>>, StoreError> {
    let step = at("read the output of a process");
    let sql = "SELECT log FROM process_logs WHERE sandbox = ?1 AND number = ?2";
    let mut select = conn.prepare_cached(sql).map_err(&step)?;
    let row = params![key(sandbox), number.cast_signed()];
    select.query_row(row, |row| row.get(0)).optional().map_err(&step)
}

fn records(
    conn: &Connection,
    node_key: &NodeKey,
    sql: &str,
    values: &[&dyn ToSql],
) -> Result<Vec<ProcessRecord>, StoreError> {
    let step = at("read processes");
    let mut select = conn.prepare_cached(sql).map_err(&step)?;
    let mut rows = select.query(values).map_err(&step)?;
    let (mut found, mut bytes) = (Vec::new(), 0);
    while bytes < PAGE_BYTES
        && let Some(row) = rows.next().map_err(&step)?
    {
        let number = row.get(0).map_err(&step)?;
        let text: String = row.get(1).map_err(&step)?;
        let sealed = row.get_ref(2).and_then(|sealed| Ok(sealed.as_blob_or_null()?));
        let sealed = sealed.map_err(&step)?;
        bytes += text.len() + sealed.map_or(0, <[u8]>::len);
        let mut record = read("processes", number, text)?;
        join_process(node_key, &mut record, sealed)?;
        found.push(record);
    }
    Ok(found)
}

/// An id as it is in the tables.
const fn key(sandbox: SandboxId) -> [u8; 16] {
    sandbox.as_u128().to_be_bytes()
}

fn key_id(bytes: [u8; 16]) -> KeyId {
    KeyId::from_u128(u128::from_be_bytes(bytes))
}

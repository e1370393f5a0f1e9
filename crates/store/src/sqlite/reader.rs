//! What is read: everything at start, and parts of the history whenever somebody asks. On a
//! connection of its own, so that no commit waits for it.

use model::record::JournalEntry;
use model::why::Ended;
use model::{KeyId, KeyRecord, Records, SandboxId, SessionId, StoredEvent, Wall};
use rusqlite::types::Value;
use rusqlite::{Connection, OptionalExtension as _, Row, params_from_iter};

use super::fault::at;
use super::tables::{self, read, rows};
use crate::contract::{EventPage, EventQuery, Loaded};
use crate::error::StoreError;
use crate::retention::Retention;

/// Reads.
pub(super) struct Reader {
    conn: Connection,
    retention: Retention,
}

impl Reader {
    pub(super) const fn new(conn: Connection, retention: Retention) -> Self {
        Self { conn, retention }
    }

    pub(super) fn load(&mut self) -> Result<Loaded, StoreError> {
        let step = at("read the journal");
        // All of it as of one moment.
        let moment = self.conn.transaction().map_err(&step)?;
        let ends = self.retention.remembered_ends.min(self.retention.ends);
        let mut records = Records::new(ends as usize);
        for (_, record) in rows(&moment, &tables::POOLS)? {
            records.write(JournalEntry::PoolPut(record));
        }
        for (_, record) in rows(&moment, &tables::SANDBOXES)? {
            records.write(JournalEntry::SandboxPut(record));
        }
        for (_, record) in rows(&moment, &tables::SESSIONS)? {
            records.write(JournalEntry::SessionPut(record));
        }
        for (_, id) in rows(&moment, &tables::DOOMED)? {
            records.write(JournalEntry::WorkspaceDoomed(id));
        }
        for ended in latest_ends(&moment, ends)? {
            records.write(JournalEntry::Ended(ended));
        }
        Ok(Loaded { journal: records.journal(), last_event: bounds(&moment).map_err(&step)?.1 })
    }

    pub(super) fn events(&mut self, query: &EventQuery) -> Result<EventPage, StoreError> {
        let step = at("read events");
        let moment = self.conn.transaction().map_err(&step)?;
        let (oldest, last) = bounds(&moment).map_err(&step)?;
        let mut events = Vec::new();
        let (sql, values) = question(query);
        let mut select = moment.prepare_cached(&sql).map_err(&step)?;
        let mut found = select.query(params_from_iter(values)).map_err(&step)?;
        while let Some(row) = found.next().map_err(&step)? {
            events.push(event(row)?);
        }
        Ok(EventPage { events, oldest, last })
    }

    pub(super) fn keys(&self) -> Result<Vec<KeyRecord>, StoreError> {
        let step = at("read the keys");
        let sql = "SELECT record FROM keys ORDER BY id";
        let mut select = self.conn.prepare_cached(sql).map_err(&step)?;
        let mut found = select.query([]).map_err(&step)?;
        let mut keys = Vec::new();
        for number in 1.. {
            let Some(row) = found.next().map_err(&step)? else { break };
            let text: String = row.get(0).map_err(&step)?;
            keys.push(read("keys", number, &text)?);
        }
        Ok(keys)
    }

    pub(super) fn ended(&self, sandbox: SandboxId) -> Result<Option<Ended>, StoreError> {
        let step = at("read an end");
        let sql = "SELECT number, record FROM ends WHERE sandbox = ?1 ORDER BY number DESC LIMIT 1";
        let mut select = self.conn.prepare_cached(sql).map_err(&step)?;
        let columns = |row: &Row<'_>| Ok((row.get(0)?, row.get(1)?));
        let found: Option<(i64, String)> = select
            .query_row([sandbox.as_u128().to_be_bytes()], columns)
            .optional()
            .map_err(&step)?;
        found.map(|(number, text)| read("ends", number, &text)).transpose()
    }
}

fn latest_ends(conn: &Connection, count: u32) -> Result<Vec<Ended>, StoreError> {
    let step = at("read the ends");
    let sql = "SELECT number, record FROM ends ORDER BY number DESC LIMIT ?1";
    let mut select = conn.prepare_cached(sql).map_err(&step)?;
    let mut found = select.query([count]).map_err(&step)?;
    let mut ends = Vec::new();
    while let Some(row) = found.next().map_err(&step)? {
        let text: String = row.get(1).map_err(&step)?;
        ends.push(read("ends", row.get(0).map_err(&step)?, &text)?);
    }
    ends.reverse();
    Ok(ends)
}

/// The numbers of the oldest event and of the last.
fn bounds(conn: &Connection) -> rusqlite::Result<(u64, u64)> {
    // Two questions: either is one look at an end of the table, both in one would be a scan.
    let sql = "SELECT (SELECT min(number) FROM events), (SELECT max(number) FROM events)";
    let mut select = conn.prepare_cached(sql)?;
    let (oldest, last): (Option<i64>, Option<i64>) =
        select.query_row([], |row| Ok((row.get(0)?, row.get(1)?)))?;
    let last = last.unwrap_or(0).cast_unsigned();
    Ok((oldest.map_or(last + 1, i64::cast_unsigned), last))
}

/// The narrowest index is used and the others are kept from it by a `+`: without statistics SQLite
/// would have to guess.
fn question(query: &EventQuery) -> (String, Vec<Value>) {
    let mut sql = "SELECT number, at_ms, tenant, event FROM events WHERE number > ?".to_owned();
    let mut values = vec![Value::Integer(i64::try_from(query.after).unwrap_or(i64::MAX))];
    for (is, id) in [
        ("sandbox = ?", query.sandbox.map(SandboxId::as_u128)),
        ("session = ?", query.session.map(SessionId::as_u128)),
        ("tenant IS ?", query.tenant.map(KeyId::as_u128)),
    ] {
        let Some(id) = id else { continue };
        sql += if values.len() == 1 { " AND " } else { " AND +" };
        sql += is;
        // The server's own events are those of nobody.
        values.push(if id == 0 { Value::Null } else { Value::Blob(id.to_be_bytes().into()) });
    }
    sql += " ORDER BY number LIMIT ?";
    values.push(query.limit.into());
    (sql, values)
}

fn event(row: &Row<'_>) -> Result<StoredEvent, StoreError> {
    let step = at("read events");
    let number: i64 = row.get(0).map_err(&step)?;
    let at_ms: i64 = row.get(1).map_err(&step)?;
    let tenant: Option<[u8; 16]> = row.get(2).map_err(&step)?;
    let text = row.get_ref(3).map_err(&step)?.as_str().map_err(|error| step(error.into()))?;
    Ok(StoredEvent {
        number: number.cast_unsigned(),
        at: Wall(at_ms.cast_unsigned()),
        tenant: tenant.map_or(KeyId::NIL, |bytes| KeyId::from_u128(u128::from_be_bytes(bytes))),
        event: read("events", number, text)?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// How SQLite would go about a query.
    fn way(query: &EventQuery) -> String {
        let conn = Connection::open_in_memory().unwrap();
        conn.execute_batch(super::super::schema::MIGRATIONS[0].sql).unwrap();
        let sql = format!("EXPLAIN QUERY PLAN {}", question(query).0);
        let mut explain = conn.prepare(&sql).unwrap();
        for parameter in 1..=explain.parameter_count() {
            explain.raw_bind_parameter(parameter, 1).unwrap();
        }
        let mut rows = explain.raw_query();
        let mut way = Vec::new();
        while let Some(row) = rows.next().unwrap() {
            way.push(row.get::<_, String>(3).unwrap());
        }
        way.join("; ")
    }

    #[test]
    fn every_question_has_an_index_and_needs_no_sorting() {
        let all = EventQuery::after(5, 10);
        let sandbox = Some(SandboxId::from_u128(1));
        let session = Some(SessionId::from_u128(1));
        let tenant = Some(KeyId::from_u128(1));
        for (query, index) in [
            (all, "INTEGER PRIMARY KEY"),
            (EventQuery { sandbox, ..all }, "events_by_sandbox"),
            (EventQuery { session, ..all }, "events_by_session"),
            (EventQuery { tenant, ..all }, "events_by_tenant"),
            (EventQuery { session, tenant, ..all }, "events_by_session"),
            (EventQuery { sandbox, session, tenant, ..all }, "events_by_sandbox"),
        ] {
            let way = way(&query);
            assert!(way.contains(index) && way.contains("SEARCH"), "{query:?}: {way}");
            assert!(!way.contains("B-TREE"), "{query:?}: {way}");
        }
    }
}

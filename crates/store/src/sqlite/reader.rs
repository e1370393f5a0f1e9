//! Reads: everything at the start, and parts of the history on request. On a connection of its own,
//! so that no commit waits for it.

use memchr::memmem::{Finder, FinderRev};
use model::record::JournalEntry;
use model::turn::{TurnPiece, TurnRecord};
use model::why::Ended;
use model::{KeyRecord, Records, SandboxId, StoredEvent, TurnId};
use rusqlite::{Connection, Row};

use super::error::at;
use super::json_lines;
use super::tables::{self, read, rows};
use super::turn_pages;
use crate::contract::{EventPage, EventQuery, Loaded, TurnQuery};
use crate::error::StoreError;
use crate::event_shares::{DeletedEvents, Where};
use crate::retention::Retention;
use sealing::NodeKey;

/// The reader.
pub(super) struct Reader {
    conn: Connection,
    retention: Retention,
    key: NodeKey,
    deleted: DeletedEvents,
}

impl Reader {
    /// Reads what a writer writes that knows which events are deleted.
    pub(super) const fn new(
        conn: Connection,
        retention: Retention,
        key: NodeKey,
        deleted: DeletedEvents,
    ) -> Self {
        Self { conn, retention, key, deleted }
    }

    pub(super) const fn key(&self) -> &NodeKey {
        &self.key
    }

    pub(super) const fn conn(&self) -> &Connection {
        &self.conn
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
        for record in tables::sessions(&moment, &self.key)? {
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
        let events = match query.tenant.map_or(Where::Anywhere, |key| self.deleted.place(key)) {
            Where::Anywhere => taken(&moment, query, 0)?,
            Where::From(place) => taken(&moment, query, place)?,
            Where::Nowhere => Vec::new(),
        };
        let deleted = self.deleted.last(query.tenant);
        // Of one key nothing is left before what was deleted.
        let oldest = query.tenant.map_or(oldest, |_| oldest.max(deleted + 1));
        Ok(EventPage { events, oldest, deleted, last })
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
        let step = at("read a tombstone");
        let id = sandbox.to_string();
        let needle = FinderRev::new(&id);
        let mut select = self.conn.prepare_cached(LATEST_ENDS).map_err(&step)?;
        let mut blocks = select.query([]).map_err(&step)?;
        while let Some(block) = blocks.next().map_err(&step)? {
            let number = block.get(0).map_err(&step)?;
            for line in json_lines::with_from_last(text(block).map_err(&step)?, &needle) {
                let ended: Ended = read("ends", number, line)?;
                // The id may also be that of a candidate in the tombstone of another sandbox.
                if ended.sandbox == sandbox {
                    return Ok(Some(ended));
                }
            }
        }
        Ok(None)
    }

    pub(super) fn turn(&self, turn: TurnId) -> Result<Option<TurnRecord>, StoreError> {
        turn_pages::turn(&self.conn, &self.key, turn)
    }

    pub(super) fn turns(&self, query: &TurnQuery) -> Result<Vec<TurnRecord>, StoreError> {
        turn_pages::turns(&self.conn, &self.key, query)
    }

    pub(super) fn pieces(
        &self,
        turn: TurnId,
        after: u64,
        limit: u32,
    ) -> Result<Vec<TurnPiece>, StoreError> {
        turn_pages::pieces(&self.conn, turn, after, limit)
    }
}

const LATEST_ENDS: &str = "SELECT block, lines FROM ends ORDER BY block DESC";

fn latest_ends(conn: &Connection, count: u32) -> Result<Vec<Ended>, StoreError> {
    let step = at("read the tombstones");
    let mut select = conn.prepare_cached(LATEST_ENDS).map_err(&step)?;
    let mut blocks = select.query([]).map_err(&step)?;
    let mut ends = Vec::new();
    while ends.len() < count as usize
        && let Some(block) = blocks.next().map_err(&step)?
    {
        let number = block.get(0).map_err(&step)?;
        let wanted = count as usize - ends.len();
        for line in json_lines::all(text(block).map_err(&step)?).rev().take(wanted) {
            ends.push(read("ends", number, line)?);
        }
    }
    ends.reverse();
    Ok(ends)
}

/// The numbers of the oldest event and of the last.
fn bounds(conn: &Connection) -> rusqlite::Result<(u64, u64)> {
    // Two queries: each is one look at an end of the table, both in one would be a scan.
    let sql = "SELECT (SELECT first FROM events ORDER BY last LIMIT 1), \
               (SELECT max(last) FROM events)";
    let mut select = conn.prepare_cached(sql)?;
    let (oldest, last): (Option<i64>, Option<i64>) =
        select.query_row([], |row| Ok((row.get(0)?, row.get(1)?)))?;
    let last = last.unwrap_or(0).cast_unsigned();
    Ok((oldest.map_or(last + 1, i64::cast_unsigned), last))
}

/// The events that a query selects. If it asks for an id, only lines with that id in them are
/// decoded; retention bounds how much text there is to search. No block before `place` has any.
fn taken(
    conn: &Connection,
    query: &EventQuery,
    place: i64,
) -> Result<Vec<StoredEvent>, StoreError> {
    let step = at("read events");
    let sql = "SELECT last, lines FROM events WHERE last > ?1 ORDER BY last";
    let mut select = conn.prepare_cached(sql).map_err(&step)?;
    let after = i64::try_from(query.after).unwrap_or(i64::MAX).max(place - 1);
    let mut blocks = select.query([after]).map_err(&step)?;
    let id = rarest_id(query);
    let needle = id.as_ref().map(Finder::new);
    let mut events = Vec::new();
    while events.len() < query.limit as usize
        && let Some(block) = blocks.next().map_err(&step)?
    {
        let number = block.get(0).map_err(&step)?;
        let text = text(block).map_err(&step)?;
        match &needle {
            Some(needle) => take(query, number, json_lines::with(text, needle), &mut events)?,
            None => take(query, number, json_lines::all(text), &mut events)?,
        }
    }
    Ok(events)
}

fn take<'t>(
    query: &EventQuery,
    block: i64,
    lines: impl Iterator<Item = &'t [u8]>,
    events: &mut Vec<StoredEvent>,
) -> Result<(), StoreError> {
    for line in lines {
        if events.len() == query.limit as usize {
            break;
        }
        let stored = read("events", block, line)?;
        if query.takes(&stored) {
            events.push(stored);
        }
    }
    Ok(())
}

/// Of the ids in a query, the one that the fewest lines have.
fn rarest_id(query: &EventQuery) -> Option<String> {
    let sandbox = query.sandbox.map(|id| id.to_string());
    let session = || query.session.map(|id| id.to_string());
    let tenant = || query.tenant.map(|id| id.to_string());
    sandbox.or_else(session).or_else(tenant)
}

/// The lines of a block, as bytes: only decoded ones need to be valid text.
fn text<'r>(block: &'r Row<'_>) -> rusqlite::Result<&'r [u8]> {
    Ok(block.get_ref(1)?.as_bytes()?)
}

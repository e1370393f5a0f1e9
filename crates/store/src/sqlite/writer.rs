//! The one writer. It knows which rows are in the file, so that it writes only what changes, and
//! it changes what it knows only after the commit: a failed one leaves both as they were.

use std::time::Duration;

use model::record::{PoolRecord, SandboxRecord, SessionRecord};
use model::{KeyRecord, SandboxId, SessionId, TemplateName, WorkspaceId};
use rusqlite::{Connection, params};
use serde::de::DeserializeOwned;

use super::checkpoints::Cut;
use super::fault::at;
use super::prepared::{EventRow, Prepared, Span};
use super::slots::{Moves, Slots};
use super::tables::{self, Table};
use super::trim::Trim;
use crate::error::{StoreError, StoreErrorCode};
use crate::retention::Retention;

/// How long readers may keep the log from being cut.
const READERS: Duration = Duration::from_millis(100);

macro_rules! event_sql {
    ($how:literal) => {
        concat!(
            $how,
            " INTO events (number, at_ms, tenant, sandbox, session, event) ",
            "VALUES (?1, ?2, ?3, ?4, ?5, ?6)"
        )
    };
}

const INSERT_EVENT: &str = event_sql!("INSERT");
const REPLACE_EVENT: &str = event_sql!("INSERT OR REPLACE");

/// Writes batches.
pub(super) struct Writer {
    conn: Connection,
    pools: Slots<TemplateName>,
    sandboxes: Slots<SandboxId>,
    sessions: Slots<SessionId>,
    doomed: Slots<WorkspaceId>,
    past: Past,
}

/// What is known of the tables that only grow at their ends.
#[derive(Clone, Copy)]
struct Past {
    ends: Trim,
    last_end: i64,
    events: Trim,
    last_event: i64,
}

/// What is to be written in the tables of records.
struct Plan {
    pools: Moves<TemplateName, Span>,
    sandboxes: Moves<SandboxId, Span>,
    sessions: Moves<SessionId, Span>,
    doomed: Moves<WorkspaceId, Span>,
}

impl Writer {
    /// Looks what is there.
    pub(super) fn new(conn: Connection, retention: Retention) -> Result<Self, StoreError> {
        let by_name = |pool: PoolRecord| pool.template.name.clone();
        let pools = slots(&conn, &tables::POOLS, by_name)?;
        let sandboxes = slots(&conn, &tables::SANDBOXES, |one: SandboxRecord| one.id)?;
        let sessions = slots(&conn, &tables::SESSIONS, |one: SessionRecord| one.id)?;
        let doomed = slots(&conn, &tables::DOOMED, |id: WorkspaceId| id)?;
        let step = at("look at the history");
        let ends = "SELECT count(*), coalesce(max(number), 0) FROM ends";
        let events = "SELECT count(*), coalesce(max(number), 0) FROM events";
        let end = |sql| -> rusqlite::Result<(i64, i64)> {
            conn.query_row(sql, [], |row| Ok((row.get(0)?, row.get(1)?)))
        };
        let (ends, last_end) = end(ends).map_err(&step)?;
        let (events, last_event) = end(events).map_err(&step)?;
        let past = Past {
            ends: Trim::new(ends.cast_unsigned(), retention.ends.into()),
            last_end,
            events: Trim::new(events.cast_unsigned(), retention.events_kept() as u64),
            last_event,
        };
        conn.busy_timeout(Duration::ZERO).map_err(at("prepare the database"))?;
        Ok(Self { conn, pools, sandboxes, sessions, doomed, past })
    }

    /// Writes a batch, or nothing. Waits so long for another program that has the file locked.
    pub(super) fn commit(
        &mut self,
        batch: &Prepared,
        patience: Duration,
    ) -> Result<(), StoreError> {
        let plan = Plan {
            pools: self.pools.plan(&batch.pools),
            sandboxes: self.sandboxes.plan(&batch.sandboxes),
            sessions: self.sessions.plan(&batch.sessions),
            doomed: self.doomed.plan(&batch.doomed),
        };
        let appends = !batch.ends.is_empty() || !batch.events.is_empty();
        if appends || plan.writes() {
            self.past = self.patiently(patience, |writer| writer.transact(batch, &plan))?;
        }
        self.pools.accept(plan.pools);
        self.sandboxes.accept(plan.sandboxes);
        self.sessions.accept(plan.sessions);
        self.doomed.accept(plan.doomed);
        Ok(())
    }

    pub(super) fn put_key(&self, key: &KeyRecord, patience: Duration) -> Result<(), StoreError> {
        let text = serde_json::to_string(key).map_err(|error| {
            StoreError::new(StoreErrorCode::Io, format!("write a key as text: {error}"))
        })?;
        let sql = "INSERT OR REPLACE INTO keys (id, record) VALUES (?1, ?2)";
        let id = key.id.as_u128().to_be_bytes();
        self.patiently(patience, |writer| writer.conn.execute(sql, params![id, text]))?;
        Ok(())
    }

    /// Brings the whole log into the file and begins it anew, so that no commit has to: the first
    /// write to a new log waits for the disk, and that is made here too.
    pub(super) fn restart_log(&self, cut: Cut) -> Result<(), StoreError> {
        self.patiently(READERS, |writer| {
            let sql = match cut {
                Cut::WriteOver => "PRAGMA wal_checkpoint(RESTART)",
                Cut::GiveBack => "PRAGMA wal_checkpoint(TRUNCATE)",
            };
            let held_up: bool = writer.conn.query_row(sql, [], |row| row.get(0))?;
            if held_up {
                return Ok(());
            }
            let version: u32 =
                writer.conn.pragma_query_value(None, "user_version", |r| r.get(0))?;
            writer.conn.pragma_update(None, "user_version", version)
        })
    }

    /// Brings the whole log into the file and lets go of it.
    pub(super) fn close(self) -> Result<(), StoreError> {
        let step = at("close the database");
        let held_up: bool = self.patiently(READERS, |writer| {
            writer.conn.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |row| row.get(0))
        })?;
        // What could not be brought over stays in the log, and is found there by the next start.
        let _ = held_up;
        self.conn.close().map_err(|(_, error)| step(error))
    }

    #[cfg(test)]
    pub(super) const fn conn(&self) -> &Connection {
        &self.conn
    }

    fn patiently<T>(
        &self,
        patience: Duration,
        run: impl FnOnce(&Self) -> rusqlite::Result<T>,
    ) -> Result<T, StoreError> {
        let step = at("write the journal");
        if !patience.is_zero() {
            self.conn.busy_timeout(patience).map_err(&step)?;
        }
        let result = run(self).map_err(&step);
        if !patience.is_zero() {
            self.conn.busy_timeout(Duration::ZERO).map_err(&step)?;
        }
        result
    }

    fn transact(&self, batch: &Prepared, plan: &Plan) -> rusqlite::Result<Past> {
        // Only if an earlier one could not be taken back at the time.
        self.roll_back()?;
        self.run("BEGIN IMMEDIATE")?;
        let written = self.write(batch, plan).and_then(|past| {
            self.run("COMMIT")?;
            Ok(past)
        });
        if written.is_err() {
            // If that fails too, it is tried again before the next one; nothing can be committed in
            // between.
            let _ = self.roll_back();
        }
        written
    }

    fn write(&self, batch: &Prepared, plan: &Plan) -> rusqlite::Result<Past> {
        self.write_records(&tables::POOLS, &plan.pools, batch)?;
        self.write_records(&tables::SANDBOXES, &plan.sandboxes, batch)?;
        self.write_records(&tables::SESSIONS, &plan.sessions, batch)?;
        self.write_records(&tables::DOOMED, &plan.doomed, batch)?;
        let mut past = self.past;
        self.append_ends(batch, &mut past)?;
        self.append_events(batch, &mut past)?;
        Ok(past)
    }

    fn write_records<K>(
        &self,
        table: &Table,
        moves: &Moves<K, Span>,
        batch: &Prepared,
    ) -> rusqlite::Result<()> {
        if !moves.deletes.is_empty() {
            let mut delete = self.conn.prepare_cached(table.delete)?;
            for slot in &moves.deletes {
                delete.execute([slot])?;
            }
        }
        if !moves.puts.is_empty() {
            let mut put = self.conn.prepare_cached(table.put)?;
            for (slot, record) in &moves.puts {
                put.execute(params![slot, batch.text(*record)])?;
            }
        }
        Ok(())
    }

    fn append_ends(&self, batch: &Prepared, past: &mut Past) -> rusqlite::Result<()> {
        if batch.ends.is_empty() {
            return Ok(());
        }
        let sql = "INSERT INTO ends (number, sandbox, record) VALUES (?1, ?2, ?3)";
        let mut insert = self.conn.prepare_cached(sql)?;
        for (sandbox, record) in &batch.ends {
            past.last_end += 1;
            let sandbox = sandbox.as_u128().to_be_bytes();
            insert.execute(params![past.last_end, sandbox, batch.text(*record)])?;
        }
        let oldest =
            "DELETE FROM ends WHERE number IN (SELECT number FROM ends ORDER BY number LIMIT ?1)";
        past.ends = self.trim(past.ends, batch.ends.len() as u64, oldest)?;
        Ok(())
    }

    fn append_events(&self, batch: &Prepared, past: &mut Past) -> rusqlite::Result<()> {
        if batch.events.is_empty() {
            return Ok(());
        }
        let again = batch.events.iter().any(|row| row.number <= past.last_event);
        // Replacing costs more even where there is nothing to replace: SQLite then keeps the pages
        // from before each row, to be able to take the row back.
        let sql = if again { REPLACE_EVENT } else { INSERT_EVENT };
        let mut insert = self.conn.prepare_cached(sql)?;
        let mut added = 0;
        for row in &batch.events {
            let EventRow { number, at_ms, tenant, sandbox, session, event } = row;
            let event = batch.text(*event);
            insert.execute(params![number, at_ms, tenant, sandbox, session, event])?;
            // One that was there already is written over, not added.
            added += u64::from(*number > past.last_event);
            past.last_event = past.last_event.max(*number);
        }
        let oldest = "DELETE FROM events WHERE number IN \
                      (SELECT number FROM events ORDER BY number LIMIT ?1)";
        past.events = self.trim(past.events, added, oldest)?;
        Ok(())
    }

    fn trim(&self, trim: Trim, added: u64, oldest: &str) -> rusqlite::Result<Trim> {
        let due = trim.due(added);
        if due == 0 {
            return Ok(trim.after(added, 0));
        }
        let deleted = self.conn.prepare_cached(oldest)?.execute([due.cast_signed()])?;
        Ok(trim.after(added, deleted as u64))
    }

    fn run(&self, sql: &str) -> rusqlite::Result<()> {
        self.conn.prepare_cached(sql)?.execute([]).map(drop)
    }

    fn roll_back(&self) -> rusqlite::Result<()> {
        if self.conn.is_autocommit() { Ok(()) } else { self.run("ROLLBACK") }
    }
}

impl Plan {
    fn writes(&self) -> bool {
        self.pools.write() || self.sandboxes.write() || self.sessions.write() || self.doomed.write()
    }
}

fn slots<K: Ord + Clone, R: DeserializeOwned>(
    conn: &Connection,
    table: &Table,
    id: impl Fn(R) -> K,
) -> Result<Slots<K>, StoreError> {
    let mut slots = Slots::new();
    for (slot, record) in tables::rows(conn, table)? {
        if !slots.found(id(record), slot) {
            let cause = format!("row {slot} of {} has the id of another row", table.name);
            return Err(StoreError::new(StoreErrorCode::Corrupt, cause));
        }
    }
    slots.all_found();
    Ok(slots)
}

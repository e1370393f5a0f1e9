//! The one writer. It knows which rows are in the file, so that it writes only what changes, and
//! changes what it knows only after the commit: a failed commit leaves both as they were.

use std::time::Duration;

use model::record::{PoolRecord, SandboxRecord, SessionRecord};
use model::{KeyRecord, SandboxId, SessionId, TemplateName, WorkspaceId};
use rusqlite::config::DbConfig;
use rusqlite::{Connection, params};
use serde::de::DeserializeOwned;

use super::checkpoints::Cut;
use super::documents;
use super::error::at;
use super::event_blocks;
use super::history::History;
use super::mark::MarkFile;
use super::prepared_batch::{Prepared, PutSession, Span};
use super::processes;
use super::secrets;
use super::size_limit::{self, Database, Pages};
use super::slots::{Moves, Slots};
use super::tables::{self, Table};
use super::turns::TurnTables;
use crate::error::{StoreError, StoreErrorCode};
use crate::event_shares::{DeletedEvents, EventShares};
use crate::retention::Retention;
use crate::retention_selection::Shares;
use sealing::NodeKey;

/// How long readers may keep the log from being truncated.
const READERS: Duration = Duration::from_millis(100);

/// The writer of batches.
pub(super) struct Writer {
    conn: Connection,
    mark: MarkFile,
    known: Known,
    retention: Retention,
    key: NodeKey,
}

/// What is known of the tables.
struct Known {
    pools: Slots<TemplateName>,
    sandboxes: Slots<SandboxId>,
    sessions: Slots<SessionId>,
    doomed: Slots<WorkspaceId>,
    history: History,
    turns: TurnTables,
    shares: KeyShares,
    pages: Pages,
}

/// The shares of each key in events, and in ended turns and processes.
#[derive(Default)]
pub(super) struct KeyShares {
    pub(super) events: EventShares,
    pub(super) turns: Shares,
    pub(super) processes: Shares,
}

impl KeyShares {
    fn settle(&mut self) {
        self.events.settle();
        self.turns.settle();
        self.processes.settle();
    }

    fn take_back(&mut self) {
        self.events.take_back();
        self.turns.take_back();
        self.processes.take_back();
    }
}

/// What to write in the tables of records.
struct Plan {
    pools: Moves<TemplateName, Span>,
    sandboxes: Moves<SandboxId, Span>,
    sessions: Moves<SessionId, PutSession>,
    doomed: Moves<WorkspaceId, Span>,
}

impl Known {
    /// Reads what is there.
    fn found(conn: &Connection, retention: Retention) -> Result<Self, StoreError> {
        let by_name = |pool: PoolRecord| pool.template.name.clone();
        let pools = slots(conn, &tables::POOLS, by_name)?;
        let sandboxes = slots(conn, &tables::SANDBOXES, |one: SandboxRecord| one.id)?;
        let sessions = slots(conn, &tables::SESSIONS, |one: SessionRecord| one.id)?;
        let doomed = slots(conn, &tables::DOOMED, |id: WorkspaceId| id)?;
        let history = History::found(conn, retention).map_err(at("read the history"))?;
        let (turns, of_turns) = TurnTables::found(conn, retention).map_err(at("read the turns"))?;
        let of_processes = processes::found(conn).map_err(at("read the processes"))?;
        let events = event_blocks::found(conn).map_err(at("read the events"))?;
        let shares = KeyShares { events, turns: of_turns, processes: of_processes };
        let pages = Pages::found(conn).map_err(at("count the pages"))?;
        Ok(Self { pools, sandboxes, sessions, doomed, history, turns, shares, pages })
    }
}

/// Whether a writer could begin on this database.
pub(super) fn check(conn: &Connection, retention: Retention) -> Result<(), StoreError> {
    Known::found(conn, retention).map(drop)
}

impl Writer {
    /// Reads what is there.
    pub(super) fn new(
        conn: Connection,
        mark: MarkFile,
        retention: Retention,
        key: NodeKey,
    ) -> Result<Self, StoreError> {
        let known = Known::found(&conn, retention)?;
        conn.busy_timeout(Duration::ZERO).map_err(at("prepare the database"))?;
        Ok(Self { conn, mark, known, retention, key })
    }

    /// Writes a batch, or nothing. Waits so long for another program that has the file locked.
    pub(super) fn commit(
        &mut self,
        batch: &Prepared,
        patience: Duration,
    ) -> Result<(), StoreError> {
        let plan = Plan {
            pools: self.known.pools.plan(&batch.pools),
            sandboxes: self.known.sandboxes.plan(&batch.sandboxes),
            sessions: self.known.sessions.plan(&batch.sessions),
            doomed: self.known.doomed.plan(&batch.doomed),
        };
        let appends = batch.ends_count > 0
            || !batch.events.is_empty()
            || !batch.turns.is_empty()
            || !batch.processes.is_empty()
            || !batch.documents.is_empty();
        if appends || plan.writes() {
            let mut shares = std::mem::take(&mut self.known.shares);
            let written = self.transact(patience, |writer| writer.write(batch, &plan, &mut shares));
            match &written {
                Ok(_) => shares.settle(),
                Err(_) => shares.take_back(),
            }
            self.known.shares = shares;
            (self.known.turns, self.known.history, self.known.pages) = written?;
        }
        self.known.pools.accept(plan.pools);
        self.known.sandboxes.accept(plan.sandboxes);
        self.known.sessions.accept(plan.sessions);
        self.known.doomed.accept(plan.doomed);
        Ok(())
    }

    pub(super) fn put_key(
        &mut self,
        key: &KeyRecord,
        patience: Duration,
    ) -> Result<(), StoreError> {
        let text = serde_json::to_string(key).map_err(|error| {
            StoreError::new(StoreErrorCode::Io, format!("write a key as text: {error}"))
        })?;
        let sql = "INSERT OR REPLACE INTO keys (id, record) VALUES (?1, ?2)";
        let id = key.id.as_u128().to_be_bytes();
        self.transact(patience, |writer| {
            if key.revoked_at.is_some() {
                secrets::remove_all_of(&writer.conn, key.id)?;
            }
            writer.conn.execute(sql, params![id, text])
        })?;
        Ok(())
    }

    /// Checkpoints the whole log and restarts it, so that no commit has to: the first write to a
    /// new log waits for the disk, and that is made here too.
    pub(super) fn restart_log(&mut self, cut: Cut) -> Result<(), StoreError> {
        if self.patiently(READERS, |writer| checkpoint_and_restart(&writer.conn, cut))? {
            self.mark.checkpointed();
        }
        Ok(())
    }

    /// Checkpoints the whole log and closes.
    pub(super) fn close(mut self) -> Result<(), StoreError> {
        if self.stop()? {
            // The log is empty now, so it may go.
            let config = DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE;
            self.conn.set_db_config(config, false).map_err(at("close the database"))?;
        }
        Ok(())
    }

    /// Checkpoints the whole log, and records that in the mark. What could not be checkpointed
    /// stays in the log, and the next start finds it there.
    fn stop(&mut self) -> Result<bool, StoreError> {
        let sql = "PRAGMA wal_checkpoint(TRUNCATE)";
        let held_up: bool =
            self.patiently(READERS, |writer| writer.conn.query_row(sql, [], |row| row.get(0)))?;
        if held_up {
            self.mark.stopped_with_log();
        } else {
            self.mark.stopped();
        }
        Ok(!held_up)
    }

    /// What is known of deleted events.
    pub(super) fn deleted_events(&self) -> DeletedEvents {
        self.known.shares.events.deleted_events()
    }

    /// How many events each key may have, if it has a limit of its own; and how many it has.
    pub(super) const fn event_shares(&mut self) -> &mut EventShares {
        &mut self.known.shares.events
    }

    /// The size of the database, as of the last batch.
    pub(super) const fn pages(&self) -> Pages {
        self.known.pages
    }

    pub(super) const fn conn(&self) -> &Connection {
        &self.conn
    }

    /// Does something once no other program has the file locked, if that is soon enough.
    pub(super) fn patiently<T>(
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

    /// Commits what `write` writes, or nothing of it. Every commit raises the sequence.
    pub(super) fn transact<T>(
        &mut self,
        patience: Duration,
        write: impl FnOnce(&Self) -> rusqlite::Result<T>,
    ) -> Result<T, StoreError> {
        let sequence = self.mark.sequence() + 1;
        let written = self.patiently(patience, |writer| {
            // Only if an earlier one could not be rolled back at the time.
            writer.roll_back()?;
            writer.run("BEGIN IMMEDIATE")?;
            let written = write(writer).and_then(|written| {
                let sql = "UPDATE progress SET sequence = ?1";
                writer.conn.prepare_cached(sql)?.execute([sequence.cast_signed()])?;
                writer.run("COMMIT")?;
                Ok(written)
            });
            if written.is_err() {
                // If that fails too, it is tried again before the next one; nothing can be
                // committed in between.
                let _ = writer.roll_back();
            }
            written
        })?;
        self.mark.committed(sequence);
        Ok(written)
    }

    fn write(
        &self,
        batch: &Prepared,
        plan: &Plan,
        shares: &mut KeyShares,
    ) -> rusqlite::Result<(TurnTables, History, Pages)> {
        self.write_records(&tables::POOLS, &plan.pools, batch)?;
        self.write_records(&tables::SANDBOXES, &plan.sandboxes, batch)?;
        self.write_sessions(&plan.sessions, batch)?;
        self.write_records(&tables::DOOMED, &plan.doomed, batch)?;
        let turns = self.known.turns.write(&self.conn, &self.key, &mut shares.turns, batch)?;
        processes::write(&self.conn, self.retention, &mut shares.processes, batch)?;
        documents::write(&self.conn, batch)?;
        let history = self.known.history.append(&self.conn, batch, &mut shares.events)?;
        let bound_bytes = self.retention.database_bytes;
        let database = Database { conn: &self.conn, node_key: &self.key, bound_bytes };
        size_limit::enforce(database, self.known.pages, batch.is_small(), turns, history, shares)
    }

    fn write_records<K>(
        &self,
        table: &Table,
        moves: &Moves<K, Span>,
        batch: &Prepared,
    ) -> rusqlite::Result<()> {
        self.delete_records(table, &moves.deletes)?;
        if !moves.puts.is_empty() {
            let mut put = self.conn.prepare_cached(table.put)?;
            for (slot, record) in &moves.puts {
                put.execute(params![slot, batch.text(*record)])?;
            }
        }
        Ok(())
    }

    fn write_sessions(
        &self,
        moves: &Moves<SessionId, PutSession>,
        batch: &Prepared,
    ) -> rusqlite::Result<()> {
        self.delete_records(&tables::SESSIONS, &moves.deletes)?;
        if !moves.puts.is_empty() {
            let mut put = self.conn.prepare_cached(tables::SESSIONS.put)?;
            for (slot, PutSession { record, sealed }) in &moves.puts {
                let sealed = sealed.map(|sealed| batch.sealed(sealed));
                put.execute(params![slot, batch.text(*record), sealed])?;
            }
        }
        Ok(())
    }

    fn delete_records(&self, table: &Table, slots: &[i64]) -> rusqlite::Result<()> {
        if !slots.is_empty() {
            let mut delete = self.conn.prepare_cached(table.delete)?;
            for slot in slots {
                delete.execute([slot])?;
            }
        }
        Ok(())
    }

    fn run(&self, sql: &str) -> rusqlite::Result<()> {
        self.conn.prepare_cached(sql)?.execute([]).map(drop)
    }

    fn roll_back(&self) -> rusqlite::Result<()> {
        if self.conn.is_autocommit() { Ok(()) } else { self.run("ROLLBACK") }
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        // `close` reports a failure; here a failure leaves everything in the log.
        let _ = self.stop();
    }
}

/// Checkpoints the log and restarts it. False if readers were in the way.
pub(super) fn checkpoint_and_restart(conn: &Connection, cut: Cut) -> rusqlite::Result<bool> {
    let sql = match cut {
        Cut::WriteOver => "PRAGMA wal_checkpoint(RESTART)",
        Cut::GiveBack => "PRAGMA wal_checkpoint(TRUNCATE)",
    };
    let held_up: bool = conn.query_row(sql, [], |row| row.get(0))?;
    if held_up {
        return Ok(false);
    }
    let version: u32 = conn.pragma_query_value(None, "user_version", |row| row.get(0))?;
    conn.pragma_update(None, "user_version", version)?;
    Ok(true)
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

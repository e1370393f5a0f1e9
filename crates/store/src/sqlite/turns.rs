//! How turns are written: rows by number, blocks of their pieces, and what retention deletes.
//! Writing happens inside the transaction of a commit, and what is known changes only with it. A
//! repeated change has no effect, so that a batch may be committed again.

use model::turn::{TurnEnd, TurnRecord};
use model::{KeyId, SessionId, TurnId};
use rusqlite::types::Type;
use rusqlite::{Connection, OptionalExtension as _, Row, params};

use super::prepared_batch::{PieceLine, Prepared, PreparedTurn};
use super::sealed_fields::{TURN_BYTES, of_turn};
use crate::retention::Retention;
use crate::retention_selection::{Next, RetentionSelection, Shares, Tally};
use crate::turns::{FORKED_TURNS_MAX, forked, forked_id, numbered};
use sealing::{NodeKey, SealError};

/// So many blocks of deleted turns go in one commit, besides twice as many as came.
const BLOCKS_AT_ONCE: u64 = 16;

/// The turn of a key that ended first.
pub(super) const FIRST_OF_KEY: &str = "SELECT number, bytes, tenant FROM turns \
    INDEXED BY turns_by_key WHERE tenant = ?1 AND ended_at IS NOT NULL \
    ORDER BY ended_at, number LIMIT 1";

/// The turn that ended first, if that was before a moment.
pub(super) const FIRST_BEFORE: &str = "SELECT number, bytes, tenant FROM turns \
    INDEXED BY turns_by_end WHERE ended_at < ?1 ORDER BY ended_at, number LIMIT 1";

/// What is known of the tables.
#[derive(Debug, Clone, Copy)]
pub(super) struct TurnTables {
    retention: Retention,
    /// Deleted turns that have blocks left.
    forgotten: u64,
}

/// What a batch did so far.
struct Writing<'t> {
    conn: &'t Connection,
    node_key: &'t NodeKey,
    known: TurnTables,
    shares: &'t mut Shares,
    ended: u64,
    blocks: u64,
}

/// A turn that has not ended.
struct Unfinished {
    number: i64,
    last_piece: u64,
    tenant: KeyId,
}

impl TurnTables {
    /// Reads what is there, and the share of each key.
    pub(super) fn found(
        conn: &Connection,
        retention: Retention,
    ) -> rusqlite::Result<(Self, Shares)> {
        // The index has all of it: the records are not read.
        let sql = "SELECT tenant, count(*), sum(bytes) FROM turns INDEXED BY turns_by_key \
                   WHERE ended_at IS NOT NULL GROUP BY tenant";
        let (mut select, mut shares) = (conn.prepare(sql)?, Shares::default());
        let mut rows = select.query([])?;
        while let Some(row) = rows.next()? {
            let (turns, bytes): (i64, i64) = (row.get(1)?, row.get(2)?);
            let has = Tally { count: turns.cast_unsigned(), bytes: bytes.cast_unsigned() };
            shares.add(key_id(row.get(0)?), has);
        }
        shares.settle();
        let forgotten: i64 =
            conn.query_row("SELECT count(*) FROM forgotten_pieces", [], |row| row.get(0))?;
        Ok((Self { retention, forgotten: forgotten.cast_unsigned() }, shares))
    }

    /// Whether blocks of deleted turns are left.
    pub(super) const fn has_forgotten(self) -> bool {
        self.forgotten > 0
    }

    /// Removes some of the blocks of deleted turns.
    pub(super) fn sweep_some(
        self,
        conn: &Connection,
        node_key: &NodeKey,
        shares: &mut Shares,
    ) -> rusqlite::Result<Self> {
        let blocks = BLOCKS_AT_ONCE;
        let mut writing = Writing { conn, node_key, known: self, shares, ended: 0, blocks };
        writing.sweep()?;
        Ok(writing.known)
    }

    /// Deletes the turn that ended first, of the key with the largest share. Returns whether there
    /// was one.
    pub(super) fn delete_one(
        self,
        conn: &Connection,
        node_key: &NodeKey,
        shares: &mut Shares,
    ) -> rusqlite::Result<(Self, bool)> {
        let Some(tenant) = shares.largest() else { return Ok((self, false)) };
        let mut writing = Writing { conn, node_key, known: self, shares, ended: 0, blocks: 0 };
        let gone = writing.delete_first(Next::Of(tenant))?;
        Ok((writing.known, gone))
    }

    /// Writes the turn changes of the batch, in its transaction, and returns what is known after
    /// the commit. The shares change at once, and must be rolled back if there is none.
    pub(super) fn write(
        self,
        conn: &Connection,
        node_key: &NodeKey,
        shares: &mut Shares,
        batch: &Prepared,
    ) -> rusqlite::Result<Self> {
        if batch.turns.is_empty() {
            return Ok(self);
        }
        let mut writing = Writing { conn, node_key, known: self, shares, ended: 0, blocks: 0 };
        for change in &batch.turns {
            match change {
                PreparedTurn::Put { turn, session, tenant, record, sealed } => {
                    let put = (batch.text(*record), batch.sealed(*sealed));
                    writing.put(*turn, *session, *tenant, put)?;
                }
                PreparedTurn::Pieces { turn, lines, to } => {
                    writing.append(batch, *turn, lines, *to)?;
                }
                PreparedTurn::Started { turn, start } => {
                    let sql = "UPDATE turns SET started = ?2 WHERE id = ?1 AND ended_at IS NULL";
                    conn.prepare_cached(sql)?.execute(params![key(*turn), batch.text(*start)])?;
                }
                PreparedTurn::Ended { turn, end } => writing.end(*turn, end)?,
                PreparedTurn::Forked { from, to } => writing.fork(*from, *to)?,
            }
        }
        writing.delete_surplus(RetentionSelection::new(
            self.retention.turn_bounds(),
            batch.turns_at,
            writing.ended,
        ))?;
        writing.sweep()?;
        Ok(writing.known)
    }
}

impl Writing<'_> {
    fn put(
        &self,
        turn: TurnId,
        session: SessionId,
        tenant: KeyId,
        (record, sealed): (&str, &[u8]),
    ) -> rusqlite::Result<()> {
        let sql = "INSERT INTO turns (id, session, tenant, bytes, record, sealed) \
                   SELECT ?1, ?2, ?3, 0, ?4, ?5 \
                   WHERE NOT EXISTS (SELECT 1 FROM turns WHERE id = ?1)";
        let (session, tenant) = (session.as_u128().to_be_bytes(), tenant.as_u128().to_be_bytes());
        let row = params![key(turn), session, tenant, record, sealed];
        self.conn.prepare_cached(sql)?.execute(row)?;
        Ok(())
    }

    fn append(
        &mut self,
        batch: &Prepared,
        turn: TurnId,
        lines: &[PieceLine],
        to: usize,
    ) -> rusqlite::Result<()> {
        let Some(turn) = self.unfinished(turn)? else { return Ok(()) };
        let there = lines.partition_point(|line| line.seq.cast_unsigned() <= turn.last_piece);
        let new = &lines[there..];
        let (Some(first), Some(last)) = (new.first(), new.last()) else { return Ok(()) };
        let bytes: u64 = new.iter().map(|line| line.bytes).sum();
        let sql = "INSERT INTO pieces (turn, last, bytes, lines) VALUES (?1, ?2, ?3, ?4)";
        let text = batch.pieces_lines(first, to);
        let row = params![turn.number, last.seq, bytes.cast_signed(), text];
        self.conn.prepare_cached(sql)?.execute(row)?;
        self.blocks += 1;
        Ok(())
    }

    fn end(&mut self, turn: TurnId, end: &TurnEnd) -> rusqlite::Result<()> {
        let Some(turn) = self.unfinished(turn)? else { return Ok(()) };
        let end = numbered(end, turn.last_piece);
        let sql = format!(
            "SELECT {TURN_BYTES}, (SELECT coalesce(sum(bytes), 0) FROM pieces WHERE turn = number) \
             FROM turns WHERE number = ?1"
        );
        let (record, pieces): (i64, i64) = self
            .conn
            .prepare_cached(&sql)?
            .query_row([turn.number], |row| Ok((row.get(0)?, row.get(1)?)))?;
        let (at, over) = (end.at.0.cast_signed(), encoded(&end)?);
        let bytes = (record + pieces).cast_unsigned() + over.len() as u64;
        let sql = "UPDATE turns SET over = ?2, ended_at = ?3, bytes = ?4 WHERE number = ?1";
        let row = params![turn.number, over, at, bytes.cast_signed()];
        self.conn.prepare_cached(sql)?.execute(row)?;
        self.shares.add(turn.tenant, Tally::one(bytes));
        self.ended += 1;
        Ok(())
    }

    fn fork(&mut self, from: SessionId, to: SessionId) -> rusqlite::Result<()> {
        let (from_key, to_key) = (from.as_u128().to_be_bytes(), to.as_u128().to_be_bytes());
        let sql = "SELECT EXISTS (SELECT 1 FROM turns WHERE session = ?1)";
        if self.conn.prepare_cached(sql)?.query_row([to_key], |row| row.get(0))? {
            return Ok(());
        }
        let Some(first) = self.first_forked(from_key)? else { return Ok(()) };
        let sql = "SELECT coalesce(shows, number), ended_at, bytes, started, over, record, tenant, sealed \
                   FROM turns WHERE session = ?1 AND number >= ?2 AND ended_at IS NOT NULL \
                   ORDER BY number";
        let mut select = self.conn.prepare_cached(sql)?;
        let mut rows = select.query(params![from_key, first])?;
        let sql = "INSERT INTO turns \
                   (id, session, tenant, shows, ended_at, bytes, started, over, record, sealed) \
                   SELECT ?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10 \
                   WHERE NOT EXISTS (SELECT 1 FROM turns WHERE id = ?1)";
        let mut insert = self.conn.prepare_cached(sql)?;
        while let Some(row) = rows.next()? {
            let text: String = row.get(5)?;
            let record: TurnRecord = serde_json::from_str(&text).map_err(|_| unreadable(5))?;
            let sealed: Vec<u8> = row.get(7)?;
            let (was, record) = (record.id, TurnRecord { session: to, ..record });
            let record = TurnRecord { id: forked_id(was, to), ..record };
            // An envelope opens in its own row only.
            let input = self.node_key.open(&of_turn(was), &sealed).map_err(|_| unreadable(7))?;
            let sealed = self.node_key.seal(&of_turn(record.id), &input);
            let sealed = sealed.map_err(unsealed)?;
            let (shows, at): (i64, i64) = (row.get(0)?, row.get(1)?);
            let (bytes, tenant): (i64, [u8; 16]) = (row.get(2)?, row.get(6)?);
            let (started, over): (Option<String>, String) = (row.get(3)?, row.get(4)?);
            let (id, text) = (key(record.id), encoded(&record)?);
            let copy = params![id, to_key, tenant, shows, at, bytes, started, over, text, sealed];
            if insert.execute(copy)? > 0 {
                self.shares.add(key_id(tenant), Tally::one(bytes.cast_unsigned()));
                self.ended += 1;
            }
        }
        Ok(())
    }

    /// The first turn of a session that a fork of it copies.
    fn first_forked(&self, session: [u8; 16]) -> rusqlite::Result<Option<i64>> {
        let sql = format!(
            "SELECT number, {TURN_BYTES} + octet_length(over) FROM turns \
             WHERE session = ?1 AND ended_at IS NOT NULL ORDER BY number DESC LIMIT ?2"
        );
        let mut select = self.conn.prepare_cached(&sql)?;
        let rows = select.query_map(params![session, FORKED_TURNS_MAX], |row| {
            Ok((row.get::<_, i64>(0)?, row.get::<_, i64>(1)?.cast_unsigned()))
        })?;
        let latest_first = rows.collect::<rusqlite::Result<Vec<_>>>()?;
        let count = forked(latest_first.iter().map(|(_, bytes)| *bytes));
        Ok(latest_first[..count].last().map(|(number, _)| *number))
    }

    fn unfinished(&self, turn: TurnId) -> rusqlite::Result<Option<Unfinished>> {
        let sql = "SELECT number, (SELECT max(last) FROM pieces WHERE turn = number), tenant \
                   FROM turns WHERE id = ?1 AND ended_at IS NULL";
        let mut select = self.conn.prepare_cached(sql)?;
        let found = select.query_row([key(turn)], |row| {
            let last: Option<i64> = row.get(1)?;
            let last_piece = last.unwrap_or(0).cast_unsigned();
            Ok(Unfinished { number: row.get(0)?, last_piece, tenant: key_id(row.get(2)?) })
        });
        found.optional()
    }

    /// Deletes turns, those that ended first first.
    fn delete_surplus(&mut self, mut selection: RetentionSelection) -> rusqlite::Result<()> {
        while let Some(next) = selection.next(self.shares) {
            if !self.delete_first(next)? {
                return Ok(());
            }
        }
        Ok(())
    }

    /// Deletes one turn. Returns whether there was one.
    fn delete_first(&mut self, next: Next) -> rusqlite::Result<bool> {
        let mut first = self.conn.prepare_cached(match next {
            Next::Of(_) => FIRST_OF_KEY,
            Next::EndedBefore(_) => FIRST_BEFORE,
        })?;
        let found = |row: &Row<'_>| Ok((row.get(0)?, row.get(1)?, row.get(2)?));
        let found: Option<(i64, i64, [u8; 16])> = match next {
            Next::Of(tenant) => first.query_row([tenant.as_u128().to_be_bytes()], found),
            Next::EndedBefore(moment) => first.query_row([moment.0.cast_signed()], found),
        }
        .optional()?;
        let Some((number, bytes, tenant)) = found else { return Ok(false) };
        self.remove(number)?;
        self.shares.remove(key_id(tenant), Tally::one(bytes.cast_unsigned()));
        Ok(true)
    }

    /// Removes a turn. Its blocks go later, if no other turn shows them.
    fn remove(&mut self, number: i64) -> rusqlite::Result<()> {
        let sql = "DELETE FROM turns WHERE number = ?1 RETURNING coalesce(shows, number)";
        let shown: i64 = self.conn.prepare_cached(sql)?.query_row([number], |row| row.get(0))?;
        let sql = "INSERT INTO forgotten_pieces (turn) SELECT ?1 \
                   WHERE NOT EXISTS (SELECT 1 FROM turns WHERE number = ?1) \
                   AND NOT EXISTS (SELECT 1 FROM turns WHERE shows = ?1) \
                   AND EXISTS (SELECT 1 FROM pieces WHERE turn = ?1)";
        self.known.forgotten += self.conn.prepare_cached(sql)?.execute([shown])? as u64;
        Ok(())
    }

    /// Removes some of the blocks that no turn shows.
    fn sweep(&mut self) -> rusqlite::Result<()> {
        let mut left = BLOCKS_AT_ONCE + 2 * self.blocks;
        while self.known.forgotten > 0 && left > 0 {
            let sql = "SELECT turn FROM forgotten_pieces ORDER BY turn LIMIT 1";
            let turn: i64 = self.conn.prepare_cached(sql)?.query_row([], |row| row.get(0))?;
            let sql = "DELETE FROM pieces WHERE turn = ?1 AND last IN \
                       (SELECT last FROM pieces WHERE turn = ?1 ORDER BY last LIMIT ?2)";
            let mut delete = self.conn.prepare_cached(sql)?;
            let gone = delete.execute(params![turn, left.cast_signed()])? as u64;
            if gone < left {
                let sql = "DELETE FROM forgotten_pieces WHERE turn = ?1";
                self.conn.prepare_cached(sql)?.execute([turn])?;
                self.known.forgotten -= 1;
            }
            left -= gone.max(1);
        }
        Ok(())
    }
}

/// An id as it is in the tables.
pub(super) const fn key(turn: TurnId) -> [u8; 16] {
    turn.as_u128().to_be_bytes()
}

fn key_id(bytes: [u8; 16]) -> KeyId {
    KeyId::from_u128(u128::from_be_bytes(bytes))
}

fn encoded(value: &impl serde::Serialize) -> rusqlite::Result<String> {
    serde_json::to_string(value)
        .map_err(|error| rusqlite::Error::ToSqlConversionFailure(error.into()))
}

/// Other failures must look like one of SQLite inside a transaction.
fn unsealed(error: SealError) -> rusqlite::Error {
    let fault = rusqlite::ffi::Error::new(rusqlite::ffi::SQLITE_IOERR);
    rusqlite::Error::SqliteFailure(fault, Some(error.to_string()))
}

/// The data may be secret, so the error includes nothing of it.
fn unreadable(column: usize) -> rusqlite::Error {
    rusqlite::Error::InvalidColumnType(column, "record".to_owned(), Type::Text)
}

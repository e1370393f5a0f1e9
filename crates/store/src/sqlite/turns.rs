//! How turns are written: rows by number, blocks of what they gave, and what goes in time. It
//! works inside the transaction of a commit and changes what is known only with it. A change that
//! was made before finds that it was, so that a batch may be given again.

use model::turn::{TurnEnd, TurnRecord};
use model::{SessionId, TurnId};
use rusqlite::types::Type;
use rusqlite::{Connection, OptionalExtension as _, params};

use super::prepared::{PieceLine, Prepared, PreparedTurn};
use crate::retention::Retention;
use crate::turns::{FORKED_TURNS_MAX, Forgetting, Tally, forked_id, numbered, record_bytes};

/// So many blocks of forgotten turns go in one commit, besides twice as many as came.
const BLOCKS_AT_ONCE: u64 = 16;

/// What is known of the tables.
#[derive(Debug, Clone, Copy)]
pub(super) struct TurnTables {
    retention: Retention,
    kept: Tally,
    /// Turns that are forgotten and have blocks left.
    forgotten: u64,
}

/// What a batch did so far.
struct Writing<'t> {
    conn: &'t Connection,
    known: TurnTables,
    ended: u64,
    blocks: u64,
}

/// A turn that is not over.
struct Unfinished {
    number: i64,
    last_piece: u64,
}

impl TurnTables {
    /// Looks what is there.
    pub(super) fn found(conn: &Connection, retention: Retention) -> rusqlite::Result<Self> {
        // The index has all of it: what turns say is not read.
        let sql = "SELECT count(*), coalesce(sum(bytes), 0) FROM turns INDEXED BY turns_by_end";
        let (turns, bytes): (i64, i64) =
            conn.query_row(sql, [], |row| Ok((row.get(0)?, row.get(1)?)))?;
        let forgotten: i64 =
            conn.query_row("SELECT count(*) FROM forgotten_pieces", [], |row| row.get(0))?;
        let kept = Tally { turns: turns.cast_unsigned(), bytes: bytes.cast_unsigned() };
        Ok(Self { retention, kept, forgotten: forgotten.cast_unsigned() })
    }

    /// Writes what the batch says of turns, in its transaction, and says what is known if that is
    /// committed.
    pub(super) fn write(self, conn: &Connection, batch: &Prepared) -> rusqlite::Result<Self> {
        if batch.turns.is_empty() {
            return Ok(self);
        }
        let mut writing = Writing { conn, known: self, ended: 0, blocks: 0 };
        for change in &batch.turns {
            match change {
                PreparedTurn::Put { turn, session, record } => {
                    writing.put(*turn, *session, batch.text(*record))?;
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
        writing.forget(Forgetting::new(self.retention, batch.turns_at, writing.ended))?;
        writing.sweep()?;
        Ok(writing.known)
    }
}

impl Writing<'_> {
    fn put(&mut self, turn: TurnId, session: SessionId, record: &str) -> rusqlite::Result<()> {
        let sql = "INSERT INTO turns (id, session, bytes, record) SELECT ?1, ?2, 0, ?3 \
                   WHERE NOT EXISTS (SELECT 1 FROM turns WHERE id = ?1)";
        let row = params![key(turn), session.as_u128().to_be_bytes(), record];
        self.known.kept.turns += self.conn.prepare_cached(sql)?.execute(row)? as u64;
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
        let sql = "SELECT record ->> '$.input', \
                       (SELECT coalesce(sum(bytes), 0) FROM pieces WHERE turn = number) \
                   FROM turns WHERE number = ?1";
        let (input, pieces): (String, i64) = self
            .conn
            .prepare_cached(sql)?
            .query_row([turn.number], |row| Ok((row.get(0)?, row.get(1)?)))?;
        let bytes = record_bytes(&input, &end) + pieces.cast_unsigned();
        let sql = "UPDATE turns SET over = ?2, ended_at = ?3, bytes = ?4 WHERE number = ?1";
        let at = end.at.0.cast_signed();
        let row = params![turn.number, encoded(&end)?, at, bytes.cast_signed()];
        self.conn.prepare_cached(sql)?.execute(row)?;
        self.known.kept.bytes += bytes;
        self.ended += 1;
        Ok(())
    }

    fn fork(&mut self, from: SessionId, to: SessionId) -> rusqlite::Result<()> {
        let to_key = to.as_u128().to_be_bytes();
        let sql = "SELECT EXISTS (SELECT 1 FROM turns WHERE session = ?1)";
        if self.conn.prepare_cached(sql)?.query_row([to_key], |row| row.get(0))? {
            return Ok(());
        }
        let sql = "SELECT coalesce(shows, number), ended_at, bytes, started, over, record FROM ( \
                       SELECT * FROM turns WHERE session = ?1 AND ended_at IS NOT NULL \
                       ORDER BY number DESC LIMIT ?2 \
                   ) ORDER BY number";
        let mut select = self.conn.prepare_cached(sql)?;
        let mut rows = select.query(params![from.as_u128().to_be_bytes(), FORKED_TURNS_MAX])?;
        let sql = "INSERT INTO turns (id, session, shows, ended_at, bytes, started, over, record) \
                   SELECT ?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8 \
                   WHERE NOT EXISTS (SELECT 1 FROM turns WHERE id = ?1)";
        let mut insert = self.conn.prepare_cached(sql)?;
        while let Some(row) = rows.next()? {
            let text: String = row.get(5)?;
            let record: TurnRecord = serde_json::from_str(&text).map_err(|_| unreadable(5))?;
            let record = TurnRecord { id: forked_id(record.id, to), session: to, ..record };
            let (shows, at): (i64, i64) = (row.get(0)?, row.get(1)?);
            let bytes: i64 = row.get(2)?;
            let (started, over): (Option<String>, String) = (row.get(3)?, row.get(4)?);
            let text = encoded(&record)?;
            let copy = params![key(record.id), to_key, shows, at, bytes, started, over, text];
            let copied = insert.execute(copy)? as u64;
            self.known.kept.turns += copied;
            self.known.kept.bytes += copied * bytes.cast_unsigned();
            self.ended += copied;
        }
        Ok(())
    }

    fn unfinished(&self, turn: TurnId) -> rusqlite::Result<Option<Unfinished>> {
        let sql = "SELECT number, (SELECT max(last) FROM pieces WHERE turn = number) FROM turns \
                   WHERE id = ?1 AND ended_at IS NULL";
        let mut select = self.conn.prepare_cached(sql)?;
        let found = select.query_row([key(turn)], |row| {
            let last: Option<i64> = row.get(1)?;
            Ok(Unfinished { number: row.get(0)?, last_piece: last.unwrap_or(0).cast_unsigned() })
        });
        found.optional()
    }

    /// Forgets turns, those that ended first first.
    fn forget(&mut self, mut forgetting: Forgetting) -> rusqlite::Result<()> {
        let sql = "SELECT ended_at, number, bytes FROM turns INDEXED BY turns_by_end \
                   WHERE ended_at IS NOT NULL ORDER BY ended_at, number LIMIT 1";
        let mut oldest = self.conn.prepare_cached(sql)?;
        loop {
            let found = oldest
                .query_row([], |row| {
                    let (at, number, bytes) = (row.get(0)?, row.get(1)?, row.get(2)?);
                    Ok::<(i64, i64, i64), _>((at, number, bytes))
                })
                .optional()?;
            let Some((at, number, bytes)) = found else { return Ok(()) };
            if !forgetting.takes(self.known.kept, model::Wall(at.cast_unsigned())) {
                return Ok(());
            }
            self.remove(number)?;
            self.known.kept.turns -= 1;
            self.known.kept.bytes -= bytes.cast_unsigned();
        }
    }

    /// Removes a turn. Its blocks go later, if nobody else shows them.
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

    /// Removes some of the blocks that nobody shows.
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

fn encoded(value: &impl serde::Serialize) -> rusqlite::Result<String> {
    serde_json::to_string(value)
        .map_err(|error| rusqlite::Error::ToSqlConversionFailure(error.into()))
}

/// What is in there may be secret, so that nothing of it is told.
fn unreadable(column: usize) -> rusqlite::Error {
    rusqlite::Error::InvalidColumnType(column, "record".to_owned(), Type::Text)
}

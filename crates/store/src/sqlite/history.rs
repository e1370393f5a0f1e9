//! How the history grows and shrinks: by blocks, one per commit. It has no index besides the order
//! in which it was written. Retention deletes whole blocks of tombstones, oldest first, and events
//! of the key that has the most, never more at once than a commit can afford.

use rusqlite::{Connection, params};

use super::block_retention::BlockRetention;
use super::event_blocks::{self, Taken};
use super::prepared_batch::Prepared;
use crate::event_shares::EventShares;
use crate::retention::{Retention, slack};

/// What is known of the tables that only grow at their ends.
#[derive(Debug, Clone, Copy)]
pub(super) struct History {
    events: BlockRetention,
    event_bytes: u64,
    last_event: i64,
    ends: BlockRetention,
    end_bytes: u64,
    last_ends: i64,
}

/// How a table of blocks is cut.
struct Cut {
    oldest: &'static str,
    forget: &'static str,
}

/// How many events go at once when the database is too large.
const EVENTS_AT_ONCE: u64 = 64;

const ENDS: Cut = Cut {
    oldest: "SELECT block, count, octet_length(lines) FROM ends ORDER BY block",
    forget: "DELETE FROM ends WHERE block <= ?1",
};

impl History {
    /// Reads what is there.
    pub(super) fn found(conn: &Connection, retention: Retention) -> rusqlite::Result<Self> {
        let known = |sql| -> rusqlite::Result<(i64, i64, i64)> {
            conn.query_row(sql, [], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)))
        };
        // The length of a text is known without reading it.
        let (events, last_event, event_bytes) = known(
            "SELECT coalesce(sum(count), 0), coalesce(max(last), 0), \
             coalesce(sum(octet_length(lines)), 0) FROM events",
        )?;
        let (ends, last_ends, end_bytes) = known(
            "SELECT coalesce(sum(count), 0), coalesce(max(block), 0), \
             coalesce(sum(octet_length(lines)), 0) FROM ends",
        )?;
        Ok(Self {
            events: BlockRetention::new(events.cast_unsigned(), retention.events_kept() as u64),
            event_bytes: event_bytes.cast_unsigned(),
            last_event,
            ends: BlockRetention::new(ends.cast_unsigned(), retention.ends.into()),
            end_bytes: end_bytes.cast_unsigned(),
            last_ends,
        })
    }

    /// The bytes of events and tombstones.
    pub(super) const fn bytes(&self) -> (u64, u64) {
        (self.event_bytes, self.end_bytes)
    }

    /// Deletes the oldest events of the key that has the most, but not of the last block: it says
    /// where numbering continues. Returns whether there were some.
    pub(super) fn delete_oldest_events(
        &mut self,
        conn: &Connection,
        shares: &mut EventShares,
    ) -> rusqlite::Result<bool> {
        let Some((tenant, _)) = shares.largest() else { return Ok(false) };
        let taken = event_blocks::remove(conn, shares, tenant, EVENTS_AT_ONCE, self.last_event)?;
        if taken.count == 0 {
            // The rest cannot go, and must not count as what could.
            self.event_bytes = 0;
        }
        self.forget_events(0, taken);
        Ok(true)
    }

    fn forget_events(&mut self, added: u64, taken: Taken) {
        self.events = self.events.after(added, taken.count);
        self.event_bytes = self.event_bytes.saturating_sub(taken.bytes);
    }

    /// Deletes the oldest tombstones. Returns whether there were some.
    pub(super) fn delete_oldest_tombstones(&mut self, conn: &Connection) -> rusqlite::Result<bool> {
        let Some((block, count, bytes)) = ENDS.first(conn)? else { return Ok(false) };
        if block == self.last_ends {
            // A repeated batch is recognised by them.
            self.end_bytes = 0;
            return Ok(true);
        }
        conn.prepare_cached(ENDS.forget)?.execute([block])?;
        self.ends = self.ends.after(0, count);
        self.end_bytes = self.end_bytes.saturating_sub(bytes);
        Ok(true)
    }

    /// Writes what the batch adds, in its transaction, and returns what is known after its commit.
    /// What is stored already is skipped: a batch may be committed again.
    pub(super) fn append(
        self,
        conn: &Connection,
        batch: &Prepared,
        shares: &mut EventShares,
    ) -> rusqlite::Result<Self> {
        let mut next = self;
        if !self.has_ends_of(conn, batch)? {
            next.append_ends(conn, batch)?;
        }
        next.append_events(conn, batch, shares)?;
        Ok(next)
    }

    /// Whether the batch was written before, judged by its tombstones. Events have numbers.
    /// Tombstones without events have none, and are compared with the last ones that were written:
    /// so of several such batches in a row only the last is recognised, and no caller repeats
    /// another.
    fn has_ends_of(self, conn: &Connection, batch: &Prepared) -> rusqlite::Result<bool> {
        if batch.ends_count == 0 {
            return Ok(true);
        }
        if let Some(last) = batch.events.last() {
            return Ok(last.number <= self.last_event);
        }
        if self.last_ends == 0 {
            return Ok(false);
        }
        let sql = "SELECT count(*) FROM ends WHERE block = ?1 AND lines = ?2";
        let same = params![self.last_ends, batch.ends_lines()];
        conn.prepare_cached(sql)?.query_row(same, |row| row.get(0))
    }

    fn append_ends(&mut self, conn: &Connection, batch: &Prepared) -> rusqlite::Result<()> {
        self.last_ends += 1;
        let sql = "INSERT INTO ends (block, count, lines) VALUES (?1, ?2, ?3)";
        let count = batch.ends_count;
        let row = params![self.last_ends, count.cast_signed(), batch.ends_lines()];
        conn.prepare_cached(sql)?.execute(row)?;
        self.end_bytes += batch.ends_lines().len() as u64;
        self.ends = ENDS.cut(conn, self.ends, count, &mut self.end_bytes)?;
        Ok(())
    }

    fn append_events(
        &mut self,
        conn: &Connection,
        batch: &Prepared,
        shares: &mut EventShares,
    ) -> rusqlite::Result<()> {
        let there = batch.events.partition_point(|event| event.number <= self.last_event);
        let new = &batch.events[there..];
        let (Some(first), Some(last)) = (new.first(), new.last()) else { return Ok(()) };
        let sql = "INSERT INTO events (last, first, count, lines) VALUES (?1, ?2, ?3, ?4)";
        let count = new.len() as u64;
        let lines = batch.events_lines(first);
        let row = params![last.number, first.number, count.cast_signed(), lines];
        conn.prepare_cached(sql)?.execute(row)?;
        self.last_event = last.number;
        self.event_bytes += lines.len() as u64;
        for event in new {
            shares.add(event.tenant, self.last_event);
        }
        self.cut_events(conn, count, shares)?;
        for event in new {
            let above = shares.above_limit(event.tenant);
            if above > slack(above) {
                let taken =
                    event_blocks::remove(conn, shares, event.tenant, above, self.last_event)?;
                self.forget_events(0, taken);
            }
        }
        Ok(())
    }

    /// Deletes events of the keys that have the most, if it is time to.
    fn cut_events(
        &mut self,
        conn: &Connection,
        added: u64,
        shares: &mut EventShares,
    ) -> rusqlite::Result<()> {
        let mut left = self.events.due(added).enough();
        self.events = self.events.after(added, 0);
        while left > 0
            && let Some((tenant, count)) = shares.largest()
        {
            let taken =
                event_blocks::remove(conn, shares, tenant, count.min(left), self.last_event)?;
            if taken.count == 0 {
                break;
            }
            left -= taken.count;
            self.forget_events(0, taken);
        }
        Ok(())
    }
}

impl Cut {
    /// The oldest block: its number, how many are in it, and its size.
    fn first(&self, conn: &Connection) -> rusqlite::Result<Option<(i64, u64, u64)>> {
        let mut select = conn.prepare_cached(self.oldest)?;
        let mut blocks = select.query([])?;
        let Some(block) = blocks.next()? else { return Ok(None) };
        let number = |column| block.get::<_, i64>(column).map(i64::cast_unsigned);
        Ok(Some((block.get(0)?, number(1)?, number(2)?)))
    }

    /// Deletes the oldest blocks, if it is time to, and subtracts their bytes.
    fn cut(
        &self,
        conn: &Connection,
        trim: BlockRetention,
        added: u64,
        bytes: &mut u64,
    ) -> rusqlite::Result<BlockRetention> {
        let mut due = trim.due(added);
        if !due.more() {
            return Ok(trim.after(added, 0));
        }
        let mut select = conn.prepare_cached(self.oldest)?;
        let mut blocks = select.query([])?;
        let mut up_to: Option<i64> = None;
        while due.more()
            && let Some(block) = blocks.next()?
            && due.take(block.get::<_, i64>(1)?.cast_unsigned())
        {
            up_to = Some(block.get(0)?);
            *bytes = bytes.saturating_sub(block.get::<_, i64>(2)?.cast_unsigned());
        }
        drop(blocks);
        if let Some(up_to) = up_to {
            conn.prepare_cached(self.forget)?.execute([up_to])?;
        }
        Ok(trim.after(added, due.taken()))
    }
}

//! Keeps the database within its size limit. Other modules count text; this one counts pages, of
//! which a row may need several times as much as its text has. When little is left, the largest
//! part of the history is deleted in the transaction of a commit, more than the commit added, so
//! that the file does not exceed its limit. Records are never deleted.

use rusqlite::Connection;
use sealing::NodeKey;

use super::history::History;
use super::processes;
use super::turns::TurnTables;
use super::writer::KeyShares;

/// The part of the limit that stays free for one commit.
const RESERVE: u64 = 8;
/// The most that is deleted in one commit.
const STEPS_MAX: u32 = 2_048;
/// What is freed besides twice what the commit took.
const FREED_PAGES: u64 = 64;

/// So many small commits may follow each other without a count of the pages.
const UNCOUNTED_MAX: u64 = 64;
/// More than a small commit takes.
const SMALL_PAGES: u64 = 64;

/// Pages of the database.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Pages {
    pub(super) all: u64,
    pub(super) used: u64,
    pub(super) bytes_each: u64,
    /// How many commits followed since they were counted.
    uncounted: u64,
}

impl Pages {
    /// Counts the pages, as the transaction in progress sees them.
    pub(super) fn found(conn: &Connection) -> rusqlite::Result<Self> {
        let number = |sql: &str| -> rusqlite::Result<u64> {
            conn.prepare_cached(sql)?
                .query_row([], |row| row.get::<_, i64>(0))
                .map(i64::cast_unsigned)
        };
        let all = number("PRAGMA page_count")?;
        let free = number("PRAGMA freelist_count")?;
        let bytes_each = number("PRAGMA page_size")?;
        Ok(Self { all, used: all.saturating_sub(free), bytes_each, uncounted: 0 })
    }

    /// After one more small commit, if that cannot exceed so many bytes. Then the count is skipped:
    /// `SQLite` parses a pragma each time it runs, which takes longer than the commit of a lease.
    fn after_small_commit(self, most_bytes: u64) -> Option<Self> {
        let uncounted = self.uncounted + 1;
        let used_at_most = self.used + uncounted * SMALL_PAGES;
        let fits = self.bytes_each > 0 && used_at_most * self.bytes_each <= most_bytes;
        (fits && uncounted <= UNCOUNTED_MAX).then_some(Self { uncounted, ..self })
    }

    const fn used_bytes(self) -> u64 {
        self.used * self.bytes_each
    }
}

/// A database and its size limit.
#[derive(Clone, Copy)]
pub(super) struct Database<'d> {
    pub(super) conn: &'d Connection,
    pub(super) node_key: &'d NodeKey,
    pub(super) bound_bytes: u64,
}

/// The largest part of the history.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Largest {
    Turns,
    Processes,
    Events,
    Ends,
}

/// Deletes some of the history if the database is close to its limit. `before` are the pages before
/// this transaction, which is small if `is_small`.
pub(super) fn enforce(
    Database { conn, node_key, bound_bytes }: Database<'_>,
    before: Pages,
    is_small: bool,
    mut turns: TurnTables,
    mut history: History,
    shares: &mut KeyShares,
) -> rusqlite::Result<(TurnTables, History, Pages)> {
    let most = bound_bytes - bound_bytes / RESERVE;
    if is_small && let Some(now) = before.after_small_commit(most) {
        return Ok((turns, history, now));
    }
    let mut now = Pages::found(conn)?;
    let goal = now.used.saturating_sub(before.used) + FREED_PAGES;
    let enough = before.used.saturating_sub(goal);
    for _ in 0..STEPS_MAX {
        if now.used_bytes() <= most || now.used <= enough {
            break;
        }
        let went_on = if turns.has_forgotten() {
            turns = turns.sweep_some(conn, node_key, &mut shares.turns)?;
            true
        } else {
            match largest(shares, &history) {
                None => false,
                Some(Largest::Turns) => {
                    let (next, gone) = turns.delete_one(conn, node_key, &mut shares.turns)?;
                    turns = next;
                    gone
                }
                Some(Largest::Processes) => processes::delete_one(conn, &mut shares.processes)?,
                Some(Largest::Events) => history.delete_oldest_events(conn, &mut shares.events)?,
                Some(Largest::Ends) => history.delete_oldest_tombstones(conn)?,
            }
        };
        if !went_on {
            break;
        }
        now = Pages::found(conn)?;
    }
    Ok((turns, history, now))
}

fn largest(shares: &KeyShares, history: &History) -> Option<Largest> {
    let (events, ends) = history.bytes();
    let all = [
        (shares.turns.bytes(), Largest::Turns),
        (shares.processes.bytes(), Largest::Processes),
        (events, Largest::Events),
        (ends, Largest::Ends),
    ];
    all.into_iter()
        .filter(|(bytes, _)| *bytes > 0)
        .max_by_key(|(bytes, _)| *bytes)
        .map(|(_, of)| of)
}

//! How much of the past is stored. Retention never deletes the present.

use std::time::Duration;

/// How much of the past is stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Retention {
    /// Events. At least one always stays, since the last one says where numbering continues.
    pub events: u32,
    /// Tombstones of sandboxes.
    pub ends: u32,
    /// How many of those tombstones a kernel is given at the start.
    pub remembered_ends: u32,
    /// Ended turns of all sessions together. Above this, the key with the largest share loses those
    /// that ended first; a turn that has not ended is never deleted.
    pub turns: u32,
    /// How long after its end a turn stays, checked when others are stored.
    pub turns_age: Duration,
    /// The bytes of all ended turns together, as they are stored. Above this, the key with the
    /// largest share loses turns. What a fork copied counts again.
    pub turn_bytes: u64,
    /// Ended processes of all sandboxes together. As with turns, the key with the largest share
    /// loses some, and a process that has not ended is never deleted.
    pub processes: u32,
    /// How long after its end a process stays, checked when others are stored.
    pub processes_age: Duration,
    /// The bytes of all ended processes together, with the output beside their records.
    pub process_bytes: u64,
    /// The size in bytes to which the history may make a database on disk grow. Near that size, the
    /// largest part goes first: turns, processes, events or tombstones. Records never do.
    pub database_bytes: u64,
}

/// The limits of one kind of history.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Bounds {
    pub(crate) count: u64,
    pub(crate) bytes: u64,
    pub(crate) age: Duration,
}

impl Default for Retention {
    fn default() -> Self {
        Self {
            events: 100_000,
            ends: 10_000,
            remembered_ends: 1_000,
            turns: 100_000,
            turns_age: Duration::from_hours(30 * 24),
            turn_bytes: 1 << 30,
            processes: 100_000,
            processes_age: Duration::from_hours(30 * 24),
            process_bytes: 1 << 28,
            database_bytes: 1 << 30,
        }
    }
}

impl Retention {
    /// How many events above the limit may be stored, since it is cheaper to delete some at once.
    /// Besides, the events of one batch may stay until all of them can go.
    pub fn slack_events(self) -> u64 {
        slack(u64::from(self.events))
    }

    /// The limits of turns.
    pub(crate) fn turn_bounds(self) -> Bounds {
        Bounds { count: self.turns.into(), bytes: self.turn_bytes, age: self.turns_age }
    }

    /// The limits of processes.
    pub(crate) fn process_bounds(self) -> Bounds {
        Bounds { count: self.processes.into(), bytes: self.process_bytes, age: self.processes_age }
    }

    /// How many events may be stored before the oldest are deleted.
    pub(crate) fn events_kept(self) -> usize {
        self.events.max(1) as usize
    }
}

/// How many above a limit are tolerated.
pub(crate) fn slack(limit: u64) -> u64 {
    (limit / 64).clamp(1, MOST_AT_ONCE)
}

/// Deleting many at once is cheaper for each than deleting one, and this many take a fraction of a
/// millisecond.
pub(crate) const MOST_AT_ONCE: u64 = 128;

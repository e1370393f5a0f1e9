//! How much of the past is kept. The present is never forgotten.

use std::time::Duration;

/// How much of the past is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Retention {
    /// Events. At least one is always kept, since the last one says where numbering goes on.
    pub events: u32,
    /// Ends of sandboxes.
    pub ends: u32,
    /// How many of those ends a kernel is given at start.
    pub remembered_ends: u32,
    /// Turns that are over, of all sessions together. What is too many is taken from the key that
    /// has most, those that ended first first; one that is not over is never forgotten.
    pub turns: u32,
    /// How long after its end a turn is kept, counted when others come.
    pub turns_age: Duration,
    /// How much all turns that are over may take together, in bytes, as they are written down. What
    /// is too much is taken from the key that has most. What a fork copied counts again.
    pub turn_bytes: u64,
    /// Processes that are over, of all sandboxes together. As with turns, what is too many is taken
    /// from the key that has most, and one that is not over is never forgotten.
    pub processes: u32,
    /// How long after its end a process is kept, counted when others come.
    pub processes_age: Duration,
    /// How much all processes that are over may take together, with what is kept of their output
    /// beside their records.
    pub process_bytes: u64,
    /// What the history may make a database on disk grow to, in bytes. Before it is that large, what
    /// takes most is forgotten first: turns, processes, events or ends. Records never are.
    pub database_bytes: u64,
}

/// How much of one kind of thing is kept.
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
    /// How many more events than asked for may be there, since it is cheaper to forget some at once.
    /// Besides, what came in one batch may stay until all of it can go.
    pub fn slack_events(self) -> u64 {
        slack(u64::from(self.events))
    }

    /// How many turns are kept.
    pub(crate) fn turn_bounds(self) -> Bounds {
        Bounds { count: self.turns.into(), bytes: self.turn_bytes, age: self.turns_age }
    }

    /// How many processes are kept.
    pub(crate) fn process_bounds(self) -> Bounds {
        Bounds { count: self.processes.into(), bytes: self.process_bytes, age: self.processes_age }
    }

    /// How many events may be there before the oldest are forgotten.
    pub(crate) fn events_kept(self) -> usize {
        self.events.max(1) as usize
    }
}

/// How many above a limit are let be.
pub(crate) fn slack(limit: u64) -> u64 {
    (limit / 64).clamp(1, MOST_AT_ONCE)
}

/// Forgetting many at once is cheaper for each than forgetting one, and this many take a fraction
/// of a millisecond.
pub(crate) const MOST_AT_ONCE: u64 = 128;

//! Two clocks, never mixed by accident. Timers run on [`Mono`], which stands still while the
//! machine is suspended; what is stored and shown is [`Wall`]. Within a run it goes in step with a
//! clock that cannot be set ([`RunClock`]): setting the machine's time neither shortens nor
//! prolongs leases and timeouts. From one run to the next it may jump either way.

use serde::{Deserialize, Serialize};

/// Milliseconds on a clock that only moves forward, from an arbitrary start.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Mono(pub u64);

impl Mono {
    /// Later than any deadline.
    pub const NEVER: Self = Self(u64::MAX);

    /// This moment and `ms` milliseconds more.
    #[must_use]
    pub const fn plus(self, ms: u64) -> Self {
        Self(self.0.saturating_add(ms))
    }

    /// Milliseconds since `earlier`; 0 if that is in the future.
    pub const fn since(self, earlier: Self) -> u64 {
        self.0.saturating_sub(earlier.0)
    }
}

/// Milliseconds since the Unix epoch.
#[derive(
    Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct Wall(pub u64);

impl Wall {
    /// This moment and `ms` milliseconds more.
    #[must_use]
    pub const fn plus(self, ms: u64) -> Self {
        Self(self.0.saturating_add(ms))
    }

    /// Milliseconds since `earlier`; 0 if that is in the future.
    pub const fn since(self, earlier: Self) -> u64 {
        self.0.saturating_sub(earlier.0)
    }
}

/// The time at which an event happened, on both clocks. The only way time enters a decision.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Now {
    /// For timers.
    pub mono: Mono,
    /// For what is stored and shown.
    pub wall: Wall,
}

impl Now {
    /// When the monotonic clock will read the moment that the wall clock calls `wall`, if neither
    /// jumps.
    pub const fn mono_at(self, wall: Wall) -> Mono {
        self.mono.plus(wall.since(self.wall))
    }
}

/// What the clocks of a machine show at one moment.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct MachineClocks {
    /// Milliseconds since the machine was started, including suspended time. This clock cannot be
    /// set.
    pub boot_ms: u64,
    /// What its wall clock shows, which can be set.
    pub wall: Wall,
}

/// The wall clock of one run: what the machine's showed when the run began, and from then on in
/// step with the time since the machine was started.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RunClock {
    began: MachineClocks,
}

impl RunClock {
    /// The clock of a run that begins now.
    pub const fn begun(now: MachineClocks) -> Self {
        Self { began: now }
    }

    /// What it showed when the run began.
    pub const fn began(self) -> Wall {
        self.began.wall
    }

    /// What it shows.
    pub const fn wall(self, now: MachineClocks) -> Wall {
        self.began.wall.plus(now.boot_ms.saturating_sub(self.began.boot_ms))
    }

    /// By how many milliseconds the machine's wall clock is ahead of it: how far that was set
    /// since.
    pub const fn ahead_ms(self, now: MachineClocks) -> i64 {
        now.wall.0.cast_signed() - self.wall(now).0.cast_signed()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn run_clock_follows_the_time_since_boot() {
        let at = |boot_ms, wall| MachineClocks { boot_ms, wall: Wall(wall) };
        let run = RunClock::begun(at(500, 10_000));
        assert_eq!(run.wall(at(500, 10_000)), Wall(10_000));
        assert_eq!((run.wall(at(700, 10_200)), run.ahead_ms(at(700, 10_200))), (Wall(10_200), 0));
        let forward = at(700, 3_610_200);
        assert_eq!((run.wall(forward), run.ahead_ms(forward)), (Wall(10_200), 3_600_000));
        let back = at(700, 200);
        assert_eq!((run.wall(back), run.ahead_ms(back)), (Wall(10_200), -10_000));
        assert_eq!(run.wall(at(400, 0)), Wall(10_000), "it never goes back");
    }
}

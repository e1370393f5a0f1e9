//! Two clocks, never mixed by accident. Timers run on [`Mono`], which stands still while the
//! machine is suspended; what is stored and shown is [`Wall`], which may jump either way.

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

/// Milliseconds since the Unix epoch, as the machine's wall clock tells it.
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

//! The two clocks of a node: one that only goes forward, for waits, and the one on the wall, for
//! what is written down. Only here is a clock read.

use std::time::{Duration, SystemTime};

use model::{Mono, Now, Wall};
use tokio::time::Instant;

/// Where the time on the wall comes from.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum WallClock {
    /// The machine. It may be set, and it goes on while the machine sleeps.
    #[default]
    System,
    /// This moment at the start, and in step with the other clock from then on: for tests.
    Steady(Wall),
}

/// Both clocks.
#[derive(Debug, Clone)]
pub(crate) struct Clock {
    began: Instant,
    wall: WallClock,
}

impl Clock {
    pub(crate) fn new(wall: WallClock) -> Self {
        Self { began: Instant::now(), wall }
    }

    pub(crate) fn uptime(&self) -> Duration {
        self.began.elapsed()
    }

    #[allow(
        clippy::disallowed_methods,
        reason = "this is the one place where the wall clock is read"
    )]
    pub(crate) fn now(&self) -> Now {
        let mono = Mono(millis(self.uptime()));
        let wall = match self.wall {
            WallClock::System => {
                let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
                Wall(since.map_or(0, millis))
            }
            WallClock::Steady(start) => start.plus(mono.0),
        };
        Now { mono, wall }
    }

    /// When a moment of the kernel's comes. The far future is as good as never.
    pub(crate) fn instant(&self, at: Mono) -> Instant {
        const FAR: Duration = Duration::from_hours(30 * 365 * 24);
        self.began + Duration::from_millis(at.0).min(FAR)
    }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_steady_wall_goes_in_step_and_moments_come_when_they_should() {
        let clock = Clock::new(WallClock::Steady(Wall(1_000)));
        let at = clock.instant(Mono(250));
        tokio::time::sleep_until(at).await;
        assert_eq!(clock.now(), Now { mono: Mono(250), wall: Wall(1_250) });
        assert!(clock.instant(Mono::NEVER) > at, "never does not overflow");
    }
}

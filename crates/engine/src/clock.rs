//! The two clocks of a node: one that only goes forward, for waits, and the one on the wall, for
//! what is written down. Only here is a clock read. The first stands still while nothing can be
//! written down: what was decided has not begun then, and must not be found to take too long.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use model::{Mono, Now, Wall};
use tokio::sync::watch;
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
    rest: Arc<watch::Sender<Rest>>,
}

/// When the clock stood still.
#[derive(Debug, Clone, Copy, Default)]
struct Rest {
    /// In all, before.
    past_ms: u64,
    /// Since when it does, as time since the start.
    since_ms: Option<u64>,
}

impl Clock {
    pub(crate) fn new(wall: WallClock) -> Self {
        Self { began: Instant::now(), wall, rest: Arc::default() }
    }

    /// Stops the clock, if it goes.
    pub(crate) fn rest(&self) {
        let now_ms = millis(self.uptime());
        self.rest.send_if_modified(|rest| {
            let goes = rest.since_ms.is_none();
            rest.since_ms.get_or_insert(now_ms);
            goes
        });
    }

    /// Lets the clock go on, if it stands still.
    pub(crate) fn go_on(&self) {
        let now_ms = millis(self.uptime());
        self.rest.send_if_modified(|rest| match rest.since_ms.take() {
            Some(since_ms) => {
                rest.past_ms += now_ms.saturating_sub(since_ms);
                true
            }
            None => false,
        });
    }

    /// Whether the clock stands still.
    pub(crate) fn is_at_rest(&self) -> bool {
        self.rest.borrow().since_ms.is_some()
    }

    /// Waits until the clock goes.
    pub(crate) async fn goes(&self) {
        let mut rest = self.rest.subscribe();
        // The sender lives as long as this.
        let _ = rest.wait_for(|rest| rest.since_ms.is_none()).await;
    }

    pub(crate) fn uptime(&self) -> Duration {
        self.began.elapsed()
    }

    #[allow(
        clippy::disallowed_methods,
        reason = "this is the one place where the wall clock is read"
    )]
    pub(crate) fn now(&self) -> Now {
        let rest = *self.rest.borrow();
        let up_ms = millis(self.uptime());
        let mono = Mono(rest.since_ms.unwrap_or(up_ms).saturating_sub(rest.past_ms));
        let wall = match self.wall {
            WallClock::System => {
                let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
                Wall(since.map_or(0, millis))
            }
            WallClock::Steady(start) => start.plus(up_ms),
        };
        Now { mono, wall }
    }

    /// When a moment of the kernel's comes. The far future is as good as never.
    pub(crate) fn instant(&self, at: Mono) -> Instant {
        const FAR: Duration = Duration::from_hours(30 * 365 * 24);
        let past_ms = self.rest.borrow().past_ms;
        self.began + Duration::from_millis(at.0.saturating_add(past_ms)).min(FAR)
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

    #[tokio::test(start_paused = true)]
    async fn a_clock_at_rest_stands_still_and_moments_come_later_by_that() {
        let clock = Clock::new(WallClock::Steady(Wall(1_000)));
        let rested = Duration::from_millis(700);
        tokio::time::sleep(Duration::from_millis(100)).await;
        clock.rest();
        clock.rest();
        tokio::time::sleep(rested).await;
        assert_eq!(clock.now(), Now { mono: Mono(100), wall: Wall(1_800) });
        let before = clock.instant(Mono(250));
        clock.go_on();
        clock.go_on();
        clock.goes().await;
        assert_eq!(clock.now().mono, Mono(100));
        assert_eq!(clock.instant(Mono(250)), before + rested);
        tokio::time::sleep_until(clock.instant(Mono(250))).await;
        assert_eq!(clock.now().mono, Mono(250));
    }
}

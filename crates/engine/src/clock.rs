//! The two clocks of a node: one that only goes forward, for waits, and the one on the wall, for
//! what is written down and for how long something lasts. Only here is a clock read. The first stands
//! still while nothing can be written down: what was decided has not begun then, and must not be
//! found to take too long. The second is that of the run: somebody who sets the machine's time must
//! not end leases, nor let anything live longer.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use kernel::Event;
use model::{MachineClocks, Mono, Now, RunClock, Wall};
use tokio::sync::watch;
use tokio::time::Instant;

use crate::core::Core;

/// Where the time on the wall comes from.
#[derive(Clone, Default)]
pub enum WallClock {
    /// The machine: its wall clock at the start, and from then on the time since it was started, which
    /// goes on while it sleeps.
    #[default]
    System,
    /// This moment at the start, and in step with the other clock from then on: for tests.
    Steady(Wall),
    /// A machine that somebody made up: for tests.
    Machine(Arc<dyn Fn() -> MachineClocks + Send + Sync>),
}

impl std::fmt::Debug for WallClock {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::System => f.write_str("System"),
            Self::Steady(wall) => f.debug_tuple("Steady").field(wall).finish(),
            Self::Machine(_) => f.write_str("Machine"),
        }
    }
}

impl WallClock {
    /// What the clocks of the machine show; none where there is none.
    fn machine(&self) -> Option<MachineClocks> {
        match self {
            Self::System => Some(machine_clocks()),
            Self::Steady(_) => None,
            Self::Machine(clocks) => Some(clocks()),
        }
    }
}

#[allow(clippy::disallowed_methods, reason = "this is the one place where the wall clock is read")]
fn machine_clocks() -> MachineClocks {
    let boot = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    let boot = Duration::try_from(boot).unwrap_or_default();
    let wall = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    MachineClocks { boot_ms: millis(boot), wall: Wall(wall.map_or(0, millis)) }
}

/// Both clocks.
#[derive(Debug, Clone)]
pub(crate) struct Clock {
    began: Instant,
    wall: WallClock,
    run: RunClock,
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
        let run = RunClock::begun(wall.machine().unwrap_or_default());
        Self { began: Instant::now(), wall, run, rest: Arc::default() }
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

    pub(crate) fn now(&self) -> Now {
        let rest = *self.rest.borrow();
        let up_ms = millis(self.uptime());
        let mono = Mono(rest.since_ms.unwrap_or(up_ms).saturating_sub(rest.past_ms));
        let wall = match &self.wall {
            WallClock::System => self.run.wall(machine_clocks()),
            WallClock::Machine(clocks) => self.run.wall(clocks()),
            WallClock::Steady(start) => start.plus(up_ms),
        };
        Now { mono, wall }
    }

    /// By how much the machine's time was set since the start, and for how long the machine slept.
    fn gone_astray(&self) -> Option<Astray> {
        let now = self.wall.machine()?;
        let since_start_ms = self.run.wall(now).since(self.run.began());
        let slept_ms = since_start_ms.saturating_sub(millis(self.uptime()));
        Some(Astray { set_by_ms: self.run.ahead_ms(now), slept_ms })
    }

    /// When a moment of the kernel's comes. The far future is as good as never.
    pub(crate) fn instant(&self, at: Mono) -> Instant {
        const FAR: Duration = Duration::from_hours(30 * 365 * 24);
        let past_ms = self.rest.borrow().past_ms;
        self.began + Duration::from_millis(at.0.saturating_add(past_ms)).min(FAR)
    }
}

/// How the clocks of the machine differ from those of the run.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Astray {
    set_by_ms: i64,
    slept_ms: u64,
}

/// How often the clocks of the machine are looked at.
const LOOK: Duration = Duration::from_secs(10);
/// Less than this is drift.
const DRIFT_MS: u64 = 1_000;

/// Looks at the clocks of the machine for as long as the engine lives. A machine that slept is told to
/// the kernel, whose timers stood still meanwhile; one whose time was set is told to people, because
/// the times that are shown go by the old one until the next start.
pub(crate) async fn watch(core: Arc<Core>) {
    let Some(mut known) = core.clock.gone_astray() else { return };
    loop {
        tokio::time::sleep(LOOK).await;
        let Some(now) = core.clock.gone_astray() else { return };
        if now.slept_ms > known.slept_ms + DRIFT_MS {
            tracing::info!(slept_ms = now.slept_ms - known.slept_ms, "the machine slept");
            core.tell(Event::Ticked);
        }
        if now.set_by_ms.abs_diff(known.set_by_ms) > DRIFT_MS {
            tracing::warn!(
                ahead_ms = now.set_by_ms,
                "the time of the machine was set: leases and lifetimes are not shortened or \
                 lengthened by it, and times that are shown go by the old one until the next start"
            );
        }
        known = now;
    }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_machine_whose_time_is_set_changes_nothing_and_one_that_slept_does() {
        let machine = Arc::new(Mutex::new(MachineClocks { boot_ms: 77, wall: Wall(1_000_000) }));
        let read = Arc::clone(&machine);
        let clock = Clock::new(WallClock::Machine(Arc::new(move || *read.lock().unwrap())));
        let set = |change: &dyn Fn(&mut MachineClocks)| change(&mut machine.lock().unwrap());
        assert_eq!(clock.now().wall, Wall(1_000_000));
        set(&|clocks| clocks.wall = clocks.wall.plus(3_600_000));
        assert_eq!(clock.now(), Now { mono: Mono(0), wall: Wall(1_000_000) });
        let astray = |set_by_ms, slept_ms| Some(Astray { set_by_ms, slept_ms });
        assert_eq!(clock.gone_astray(), astray(3_600_000, 0));
        set(&|clocks| clocks.wall = Wall(5));
        assert_eq!(clock.now().wall, Wall(1_000_000));
        assert_eq!(clock.gone_astray(), astray(-999_995, 0));
        set(&|clocks| (clocks.boot_ms, clocks.wall) = (77 + 60_000, Wall(1_060_000)));
        assert_eq!(clock.now(), Now { mono: Mono(0), wall: Wall(1_060_000) }, "it slept");
        assert_eq!(clock.gone_astray(), astray(0, 60_000));
    }

    #[test]
    fn the_clocks_of_this_machine_can_be_read() {
        let first = machine_clocks();
        let second = machine_clocks();
        assert!(first.boot_ms > 0 && second.boot_ms >= first.boot_ms, "{first:?} {second:?}");
        assert!(first.wall > Wall(1_600_000_000_000), "{first:?}");
    }

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

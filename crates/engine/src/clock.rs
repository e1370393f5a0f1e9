//! The two clocks of a node: a monotonic one for waits, and the wall clock for records and
//! lifetimes. Only this module reads a clock. The monotonic clock stands still while the journal
//! cannot be written: effects that have not begun must not time out. The wall clock is that of the
//! run: setting the machine's time must neither end leases nor prolong them.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use kernel::Event;
use model::{MachineClocks, Mono, Now, RunClock, Wall};
use tokio::sync::watch;
use tokio::time::Instant;

use crate::core::Core;

/// The source of wall time.
#[derive(Clone, Default)]
pub enum WallClock {
    /// The machine: its wall clock at the start, plus the time since then, which includes the time
    /// in which the machine slept.
    #[default]
    System,
    /// This moment at the start, then in step with the monotonic clock: for tests.
    Steady(Wall),
    /// A made-up machine: for tests.
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
    /// The clocks of the machine; none where there is none.
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
    pauses: Arc<watch::Sender<Pauses>>,
}

/// When the monotonic clock stood still.
#[derive(Debug, Clone, Copy, Default)]
struct Pauses {
    /// The sum of earlier pauses.
    past_ms: u64,
    /// Since when it stands still, as time since the start.
    since_ms: Option<u64>,
}

impl Clock {
    pub(crate) fn new(wall: WallClock) -> Self {
        let run = RunClock::begun(wall.machine().unwrap_or_default());
        Self { began: Instant::now(), wall, run, pauses: Arc::default() }
    }

    /// Stops the monotonic clock, if it runs.
    pub(crate) fn pause(&self) {
        let now_ms = millis(self.uptime());
        self.pauses.send_if_modified(|pauses| {
            let goes = pauses.since_ms.is_none();
            pauses.since_ms.get_or_insert(now_ms);
            goes
        });
    }

    /// Lets the monotonic clock run again.
    pub(crate) fn resume(&self) {
        let now_ms = millis(self.uptime());
        self.pauses.send_if_modified(|pauses| match pauses.since_ms.take() {
            Some(since_ms) => {
                pauses.past_ms += now_ms.saturating_sub(since_ms);
                true
            }
            None => false,
        });
    }

    /// Whether the monotonic clock stands still.
    pub(crate) fn is_paused(&self) -> bool {
        self.pauses.borrow().since_ms.is_some()
    }

    /// Waits until the monotonic clock runs.
    pub(crate) async fn until_running(&self) {
        let mut pauses = self.pauses.subscribe();
        // The sender lives as long as this.
        let _ = pauses.wait_for(|pauses| pauses.since_ms.is_none()).await;
    }

    pub(crate) fn uptime(&self) -> Duration {
        self.began.elapsed()
    }

    pub(crate) fn now(&self) -> Now {
        let pauses = *self.pauses.borrow();
        let up_ms = millis(self.uptime());
        let mono = Mono(pauses.since_ms.unwrap_or(up_ms).saturating_sub(pauses.past_ms));
        let wall = match &self.wall {
            WallClock::System => self.run.wall(machine_clocks()),
            WallClock::Machine(clocks) => self.run.wall(clocks()),
            WallClock::Steady(start) => start.plus(up_ms),
        };
        Now { mono, wall }
    }

    /// By how much the machine's time was set since the start, and how long the machine slept.
    fn deviation(&self) -> Option<Deviation> {
        let now = self.wall.machine()?;
        let since_start_ms = self.run.wall(now).since(self.run.began());
        let slept_ms = since_start_ms.saturating_sub(millis(self.uptime()));
        Some(Deviation { set_by_ms: self.run.ahead_ms(now), slept_ms })
    }

    /// The instant of a moment of the kernel. The far future is as good as never.
    pub(crate) fn instant(&self, at: Mono) -> Instant {
        const FAR: Duration = Duration::from_hours(30 * 365 * 24);
        let past_ms = self.pauses.borrow().past_ms;
        self.began + Duration::from_millis(at.0.saturating_add(past_ms)).min(FAR)
    }
}

/// How the clocks of the machine differ from those of the run.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Deviation {
    set_by_ms: i64,
    slept_ms: u64,
}

/// How often the clocks of the machine are compared.
const LOOK: Duration = Duration::from_secs(10);
/// Less than this is drift.
const DRIFT_MS: u64 = 1_000;

/// Compares the clocks for as long as the engine lives. If the machine slept, the kernel is
/// notified, because its timers stood still meanwhile. If the machine's time was set, a warning is
/// logged, because shown times follow the old one until the next start.
pub(crate) async fn watch(core: Arc<Core>) {
    let Some(mut known) = core.clock.deviation() else { return };
    loop {
        tokio::time::sleep(LOOK).await;
        let Some(now) = core.clock.deviation() else { return };
        if now.slept_ms > known.slept_ms + DRIFT_MS {
            tracing::info!(
                slept_ms = now.slept_ms - known.slept_ms,
                "the machine was suspended; lifetimes are checked now"
            );
            core.notify(Event::Ticked);
        }
        if now.set_by_ms.abs_diff(known.set_by_ms) > DRIFT_MS {
            tracing::warn!(
                ahead_ms = now.set_by_ms,
                "the machine's time was set: leases and lifetimes are not affected, and shown \
                 times follow the old time until the next start"
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
    async fn wall_clock_ignores_a_set_time_and_counts_a_suspend() {
        let machine = Arc::new(Mutex::new(MachineClocks { boot_ms: 77, wall: Wall(1_000_000) }));
        let read = Arc::clone(&machine);
        let clock = Clock::new(WallClock::Machine(Arc::new(move || *read.lock().unwrap())));
        let set = |change: &dyn Fn(&mut MachineClocks)| change(&mut machine.lock().unwrap());
        assert_eq!(clock.now().wall, Wall(1_000_000));
        set(&|clocks| clocks.wall = clocks.wall.plus(3_600_000));
        assert_eq!(clock.now(), Now { mono: Mono(0), wall: Wall(1_000_000) });
        let astray = |set_by_ms, slept_ms| Some(Deviation { set_by_ms, slept_ms });
        assert_eq!(clock.deviation(), astray(3_600_000, 0));
        set(&|clocks| clocks.wall = Wall(5));
        assert_eq!(clock.now().wall, Wall(1_000_000));
        assert_eq!(clock.deviation(), astray(-999_995, 0));
        set(&|clocks| (clocks.boot_ms, clocks.wall) = (77 + 60_000, Wall(1_060_000)));
        assert_eq!(
            clock.now(),
            Now { mono: Mono(0), wall: Wall(1_060_000) },
            "the machine was suspended"
        );
        assert_eq!(clock.deviation(), astray(0, 60_000));
    }

    #[test]
    fn the_clocks_of_this_machine_can_be_read() {
        let first = machine_clocks();
        let second = machine_clocks();
        assert!(first.boot_ms > 0 && second.boot_ms >= first.boot_ms, "{first:?} {second:?}");
        assert!(first.wall > Wall(1_600_000_000_000), "{first:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn steady_wall_clock_keeps_step_and_moments_come_in_time() {
        let clock = Clock::new(WallClock::Steady(Wall(1_000)));
        let at = clock.instant(Mono(250));
        tokio::time::sleep_until(at).await;
        assert_eq!(clock.now(), Now { mono: Mono(250), wall: Wall(1_250) });
        assert!(clock.instant(Mono::NEVER) > at, "never does not overflow");
    }

    #[tokio::test(start_paused = true)]
    async fn paused_clock_stands_still_and_moments_come_later_by_that() {
        let clock = Clock::new(WallClock::Steady(Wall(1_000)));
        let rested = Duration::from_millis(700);
        tokio::time::sleep(Duration::from_millis(100)).await;
        clock.pause();
        clock.pause();
        tokio::time::sleep(rested).await;
        assert_eq!(clock.now(), Now { mono: Mono(100), wall: Wall(1_800) });
        let before = clock.instant(Mono(250));
        clock.resume();
        clock.resume();
        clock.until_running().await;
        assert_eq!(clock.now().mono, Mono(100));
        assert_eq!(clock.instant(Mono(250)), before + rested);
        tokio::time::sleep_until(clock.instant(Mono(250))).await;
        assert_eq!(clock.now().mono, Mono(250));
    }
}

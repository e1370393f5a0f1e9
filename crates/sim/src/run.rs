//! Runs worlds: one from its random seed or from a list of choices, or many at once. Threads only
//! share out whole worlds, and results are put in the order of their seeds, so the same arguments
//! always give the same report.

use std::cell::RefCell;
use std::panic::{self, AssertUnwindSafe};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, Once, PoisonError};
use std::thread;

use crate::Flaw;
use crate::checks::{Judged, Promise, Violation, broken};
use crate::choices::Choices;
use crate::coverage::Coverage;
use crate::trace::Trace;
use crate::world::World;

/// How a world went.
#[derive(Debug, Default)]
pub struct Run {
    /// Steps taken.
    pub steps: u64,
    /// A number that stands for everything that happened.
    pub digest: u64,
    /// What was seen.
    pub coverage: Coverage,
    /// The first promise that was broken, and the step.
    pub violation: Option<(u32, Violation)>,
    /// Every choice that was made, step by step.
    pub drawn: Vec<Vec<u32>>,
    /// The story, if it was wanted.
    pub lines: Vec<String>,
}

/// What to run.
#[derive(Debug, Clone, Copy)]
pub struct Plan {
    /// Steps of each world.
    pub steps: u32,
    /// How the kernel is broken on purpose.
    pub flaw: Option<Flaw>,
    /// Whether the world becomes idle at its end, for the final checks.
    pub rest: bool,
    /// Whether the story is wanted.
    pub trace: bool,
}

/// Runs one world.
pub fn run(choices: Choices, plan: Plan) -> Run {
    hush_panics();
    let trace = if plan.trace { Trace::on() } else { Trace::default() };
    let mut world = match World::new(choices, plan.flaw, trace) {
        Ok(world) => world,
        Err(violation) => {
            return Run { violation: Some((0, *violation)), ..Run::default() };
        }
    };
    let outcome = panic::catch_unwind(AssertUnwindSafe(|| -> Judged {
        for _ in 0..plan.steps {
            world.step()?;
        }
        if plan.rest { world.rest() } else { Ok(()) }
    }));
    let outcome = outcome.unwrap_or_else(|_| {
        let said = LAST_PANIC.with_borrow(Clone::clone);
        broken(Promise::NoPanic, || said)
    });
    Run {
        steps: u64::from(world.step),
        digest: world.digest,
        violation: outcome.err().map(|violation| (world.step, *violation)),
        drawn: world.choices.into_drawn(),
        lines: world.trace.into_lines(),
        coverage: world.coverage,
    }
}

/// Runs the worlds of many seeds. Stops soon after a violation, and returns the one with the lowest
/// seed.
pub fn run_many(start: u64, seeds: u64, jobs: usize, plan: Plan, done: &AtomicU64) -> Total {
    let next = AtomicU64::new(0);
    let stop_at = AtomicU64::new(u64::MAX);
    let runs: Mutex<Vec<(u64, Run)>> = Mutex::new(Vec::new());
    thread::scope(|scope| {
        for _ in 0..jobs.max(1) {
            scope.spawn(|| {
                loop {
                    let index = next.fetch_add(1, Ordering::Relaxed);
                    if index >= seeds || start + index > stop_at.load(Ordering::Relaxed) {
                        break;
                    }
                    let seed = start + index;
                    let mut run = run(Choices::seeded(seed), plan);
                    if run.violation.is_some() {
                        stop_at.fetch_min(seed, Ordering::Relaxed);
                    } else {
                        run.drawn.clear();
                    }
                    done.fetch_add(1, Ordering::Relaxed);
                    runs.lock().unwrap_or_else(PoisonError::into_inner).push((seed, run));
                }
            });
        }
    });
    let mut runs = runs.into_inner().unwrap_or_else(PoisonError::into_inner);
    runs.sort_by_key(|(seed, _)| *seed);
    let mut total = Total { digest: 0xcbf2_9ce4_8422_2325, ..Total::default() };
    for (seed, run) in runs {
        total.seeds += 1;
        total.steps += run.steps;
        total.digest = (total.digest ^ run.digest).wrapping_mul(0x0000_0100_0000_01b3);
        total.coverage.add(&run.coverage);
        if run.violation.is_some() {
            total.first = Some((seed, run));
            break;
        }
    }
    total
}

/// How many worlds went.
#[derive(Debug, Default)]
pub struct Total {
    /// Worlds run.
    pub seeds: u64,
    /// Steps taken.
    pub steps: u64,
    /// A number that stands for everything that happened.
    pub digest: u64,
    /// What was seen.
    pub coverage: Coverage,
    /// The first world in which a promise was broken.
    pub first: Option<(u64, Run)>,
}

thread_local! {
    static LAST_PANIC: RefCell<String> = const { RefCell::new(String::new()) };
}

/// A panic of the kernel is a finding and shown with its trace; it is not printed when it happens.
fn hush_panics() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let before = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            LAST_PANIC.with_borrow_mut(|last| *last = info.to_string());
            if !info.location().is_some_and(|at| at.file().contains("kernel")) {
                before(info);
            }
        }));
    });
}

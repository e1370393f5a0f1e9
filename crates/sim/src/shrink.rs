//! Shortens a failing run: drops steps in halving chunks, then lowers numbers, as long as the same
//! promise is broken. The number of runs is bounded, because a short run now is better than the
//! shortest one later.

use crate::checks::Promise;
use crate::choices::Choices;
use crate::run::{Plan, Run, run};

/// Most runs spent on one story.
pub const MOST_RUNS: u32 = 2_000;

/// The shortest list of choices found that still breaks the promise.
pub fn shrink(found: &Run, promise: Promise, plan: Plan, most_runs: u32) -> Vec<Vec<u32>> {
    let mut shrinker = Shrinker {
        best: found.drawn.clone(),
        promise,
        rest: found.violation.as_ref().is_some_and(|(step, _)| *step > plan.steps),
        plan,
        runs_left: most_runs,
    };
    shrinker.drop_steps();
    shrinker.lower_numbers();
    shrinker.drop_steps();
    shrinker.best
}

struct Shrinker {
    best: Vec<Vec<u32>>,
    promise: Promise,
    /// Whether the promise is broken only when the world comes to rest.
    rest: bool,
    plan: Plan,
    runs_left: u32,
}

impl Shrinker {
    /// Keeps the candidate if it breaks the same promise.
    fn keeps(&mut self, candidate: Vec<Vec<u32>>) -> bool {
        if self.runs_left == 0 {
            return false;
        }
        self.runs_left -= 1;
        let plan = replay_plan(&candidate, self.rest, self.plan);
        let outcome = run(Choices::listed(candidate), plan);
        let same = outcome.violation.is_some_and(|(_, other)| other.promise == self.promise);
        if same {
            self.best = outcome.drawn;
        }
        same
    }

    fn drop_steps(&mut self) {
        let mut chunk = self.best.len().div_ceil(2);
        while chunk > 0 && self.runs_left > 0 {
            // From the end, because what came last matters least to what came before.
            let mut end = self.best.len();
            while end > 1 && self.runs_left > 0 {
                let start = end.saturating_sub(chunk).max(1);
                let mut candidate = self.best.clone();
                candidate.drain(start..end.min(candidate.len()));
                self.keeps(candidate);
                end = start.min(self.best.len());
            }
            chunk /= 2;
        }
    }

    fn lower_numbers(&mut self) {
        for step in (1..self.best.len()).rev() {
            for number in (0..self.best.get(step).map_or(0, Vec::len)).rev() {
                let Some(value) = self.best.get(step).and_then(|step| step.get(number)).copied()
                else {
                    continue;
                };
                for lower in [0, value / 2] {
                    if lower >= value {
                        break;
                    }
                    let mut candidate = self.best.clone();
                    candidate[step][number] = lower;
                    if self.keeps(candidate) {
                        break;
                    }
                }
            }
        }
    }
}

/// How a list of choices is run again.
pub fn replay_plan(choices: &[Vec<u32>], rest: bool, plan: Plan) -> Plan {
    let steps = (choices.len().saturating_sub(1) as u32).min(plan.steps);
    Plan { steps, rest, ..plan }
}

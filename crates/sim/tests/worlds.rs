//! Worlds with a sound kernel: they pass, and they are the same every time.

use std::sync::atomic::AtomicU64;

use sim::choices::Choices;
use sim::run::{Plan, run, run_many};

const PLAN: Plan = Plan { steps: 600, flaw: None, rest: true, trace: false };

#[test]
fn a_handful_of_worlds_keeps_every_promise() {
    let total = run_many(0, 60, 2, PLAN, &AtomicU64::new(0));
    if let Some((seed, found)) = total.first {
        panic!("seed {seed}: {:?}", found.violation);
    }
    assert_eq!(total.seeds, 60);
    for path in ["fast", "overflow", "blocked"] {
        assert!(total.coverage.of("checkouts", path) > 0, "no checkout was {path}");
    }
    for what in ["too_much", "short", "archived"] {
        assert!(total.coverage.of("disk", what) > 0, "no disk was {what}");
    }
    for cause in ["disk_limit", "pruned", "files_gone"] {
        assert!(total.coverage.of("ends", cause) > 0, "nothing ended by {cause}");
    }
    for reason in ["exited", "stopped", "killed", "timeout", "sandbox_ended"] {
        assert!(total.coverage.of("process_ends", reason) > 0, "no process ended by {reason}");
    }
    assert!(
        total.coverage.of("effects", "restart_process") > 15,
        "few programs were started again"
    );
    for how in ["asked", "at_once"] {
        assert!(total.coverage.of("handouts", how) > 0, "no handout was {how}");
    }
}

#[test]
fn a_seed_always_gives_the_same_world() {
    for seed in [1, 7, 23] {
        let digest = |trace| {
            let run = run(Choices::seeded(seed), Plan { trace, ..PLAN });
            (run.digest, run.steps, run.drawn)
        };
        assert_eq!(digest(false), digest(true), "seed {seed}: tracing changed it");
    }
}

#[test]
fn number_of_threads_does_not_change_the_worlds() {
    let digest = |jobs| run_many(100, 8, jobs, PLAN, &AtomicU64::new(0)).digest;
    assert_eq!(digest(1), digest(3));
}

#[test]
fn recorded_choices_replay_the_same_world() {
    let first = run(Choices::seeded(5), PLAN);
    let again = run(Choices::listed(first.drawn.clone()), PLAN);
    assert_eq!((first.digest, first.drawn), (again.digest, again.drawn));
}

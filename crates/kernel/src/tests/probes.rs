//! Coming back to a sandbox that has not answered for a while: it is probed before use, and kept or
//! replaced by the result.

use model::lifecycle::ActiveCause;
use model::{EndCause, NodeConfig, SandboxId, SessionId, TerminatedReason};

use super::rig::{NATIVE, Rig, gone, launch, probe, start_turn, template, thaw, trouble};
use crate::{Outcome, UseKind, UseTarget};

/// A session that nothing was heard of for this long. Nothing freezes on this node.
fn quiet_for(ms: u64) -> (Rig, SessionId, SandboxId) {
    let config = NodeConfig { freeze_after_ms: 86_400_000, ..NodeConfig::default() };
    let mut rig = Rig::with(config, template(0, 1), NATIVE);
    let (session, sandbox) = rig.session();
    rig.session_work(session);
    rig.live(ms);
    (rig, session, sandbox)
}

#[test]
fn a_sandbox_heard_of_lately_is_not_probed() {
    let (mut rig, session, _) = quiet_for(5_000);
    rig.turn(session);
    assert_eq!((rig.count(probe), rig.count(start_turn)), (0, 1));
}

#[test]
fn a_sandbox_that_was_quiet_is_probed_before_the_turn() {
    let (mut rig, session, sandbox) = quiet_for(5_001);
    let (request, _) = rig.turn(session);
    assert_eq!((rig.count(probe), rig.count(start_turn)), (1, 0));
    assert_eq!(rig.actives(session).len(), 1, "nothing is promised yet");
    rig.finish(probe, Outcome::Done);
    assert_eq!(rig.last_active(session).cause, ActiveCause::Reconnected);
    rig.run();
    assert_eq!(rig.session_ready(request).sandbox, sandbox);
    let turn = rig.of(session).turn.unwrap();
    rig.end_turn(session, turn);
    rig.turn(session);
    assert_eq!(rig.count(probe), 0, "that it answered is fresh");
}

#[test]
fn a_sandbox_that_answers_the_second_time_is_kept() {
    for first in [Some(trouble()), Some(Outcome::TimedOut), None] {
        let (mut rig, session, sandbox) = quiet_for(6_000);
        let (request, _) = rig.turn(session);
        if let Some(outcome) = first {
            rig.finish(probe, outcome);
        } else {
            rig.effects.clear();
            rig.pass(2_000);
        }
        assert_eq!((rig.count(probe), rig.count(start_turn)), (1, 0));
        rig.run();
        assert_eq!(rig.session_ready(request).sandbox, sandbox);
        assert!(rig.terminations(sandbox).is_empty());
    }
}

#[test]
fn a_sandbox_that_does_not_answer_is_replaced_under_a_new_generation_with_its_files() {
    // One that is certainly gone is not asked again.
    for (outcome, probes) in [(trouble(), 2), (Outcome::TimedOut, 2), (gone(), 1)] {
        let (mut rig, session, sandbox) = quiet_for(6_000);
        let workspace = rig.store.sandboxes[&sandbox].workspace;
        let (request, turn) = rig.turn(session);
        for _ in 0..probes {
            rig.finish(probe, outcome.clone());
        }
        assert_eq!(rig.count(probe), 0);
        assert!(rig.pending(request), "the turn waits for the replacement");
        rig.killed();
        assert_eq!(rig.terminations(sandbox), [(1, EndCause::ProbeFailed)]);
        assert_eq!(EndCause::ProbeFailed.reason(), TerminatedReason::Replaced);
        assert_eq!((rig.launching().workspace, rig.launching().restore), (workspace, true));
        rig.run();
        let ready = rig.session_ready(request);
        assert_ne!(ready.sandbox, sandbox);
        let seen = rig.last_active(session);
        assert_eq!((seen.cause, seen.previous), (ActiveCause::Replaced, Some(sandbox)));
        assert_eq!((seen.generation.0, seen.state_lost), (2, false));
        assert_eq!(rig.of(session).turn, Some(turn));
        assert!(rig.turn_outcomes(turn).is_empty(), "it was not lost on the way");
    }
}

#[test]
fn a_frozen_sandbox_is_thawed_and_then_probed() {
    let mut rig = Rig::with_pool(template(0, 1), NATIVE);
    let (session, sandbox) = rig.session();
    rig.session_work(session);
    rig.live(20_000);
    assert!(rig.frozen(sandbox));
    rig.turn(session);
    assert_eq!((rig.count(thaw), rig.count(probe), rig.count(start_turn)), (1, 0, 0));
    rig.finish(thaw, Outcome::Done);
    // That its processes may run again does not say that the guest answers.
    assert_eq!((rig.count(probe), rig.count(start_turn)), (1, 0));
    rig.run();
    assert_eq!(rig.last_active(session).sandbox, sandbox);
}

#[test]
fn caller_that_comes_during_a_probe_waits_for_the_same_one() {
    let (mut rig, session, sandbox) = quiet_for(6_000);
    let (turn, _) = rig.turn(session);
    let (by_session, _) = rig.use_of(UseTarget::Session(session), UseKind::Exec);
    let (by_id, _) = rig.use_of(UseTarget::Sandbox(sandbox), UseKind::Files);
    let resumed = rig.resume(session);
    assert_eq!(rig.count(probe), 1);
    assert!([turn, by_session, by_id, resumed].iter().all(|request| rig.pending(*request)));
    rig.finish(probe, Outcome::Done);
    assert_eq!(rig.granted(by_session).sandbox, sandbox);
    assert_eq!(rig.granted(by_id).sandbox, sandbox);
    assert_eq!(rig.session_ready(resumed).sandbox, sandbox);
    rig.run();
    assert_eq!(rig.session_ready(turn).sandbox, sandbox);
}

#[test]
fn caller_that_waited_for_a_failed_probe_gets_the_replacement() {
    let (mut rig, session, sandbox) = quiet_for(6_000);
    let (turn, _) = rig.turn(session);
    let (exec, _) = rig.use_of(UseTarget::Session(session), UseKind::Exec);
    rig.finish(probe, gone());
    rig.killed();
    assert_eq!(rig.count(launch), 1, "one for all");
    rig.run();
    assert_eq!(rig.granted(exec).instance, rig.session_ready(turn).instance);
    assert_ne!(rig.granted(exec).sandbox, sandbox);
}

#[test]
fn a_death_during_a_probe_is_a_failed_probe() {
    let (mut rig, session, sandbox) = quiet_for(6_000);
    let (request, _) = rig.turn(session);
    rig.dies_of(sandbox, crate::DeathCause::Crash);
    assert_eq!(rig.terminations(sandbox), []);
    rig.effects.retain(|effect| !probe(&effect.action));
    rig.run();
    assert_eq!(rig.terminations(sandbox), [(1, EndCause::Crash)]);
    assert_ne!(rig.session_ready(request).sandbox, sandbox);
}

//! Exclusive access to a harness: a turn or one caller, in every order in which they may come.

use model::template::{Harness, HarnessProgram};
use model::{ErrorCode, RequestId, SandboxId, SandboxState, SessionId, Template};

use super::rig::{NATIVE, Rig, start_turn, template};
use crate::{DeathCause, Outcome, UseKind, UseTarget, WhenBusy};

fn spoken_with() -> Template {
    let program = HarnessProgram { command: vec!["harness".to_owned()], prewarm: false };
    Template { harness: Harness::Jsonl(program), ..template(0, 2) }
}

fn stage() -> Rig {
    Rig::with_pool(spoken_with(), NATIVE)
}

fn hold(rig: &mut Rig, target: UseTarget) -> (RequestId, model::UseId) {
    rig.use_of(target, UseKind::Harness)
}

/// A sandbox of a lease and one of a session, each by every way to name it.
fn targets(rig: &mut Rig) -> Vec<(Vec<UseTarget>, SandboxId)> {
    let lease = rig.lease();
    let (session, sandbox) = rig.session();
    vec![
        (vec![UseTarget::Sandbox(lease.sandbox)], lease.sandbox),
        (vec![UseTarget::Sandbox(sandbox), UseTarget::Session(session)], sandbox),
    ]
}

#[test]
fn a_harness_is_held_by_one_until_it_is_let_go() {
    let mut rig = stage();
    for (targets, sandbox) in targets(&mut rig) {
        for first in &targets {
            let (granted, use_id) = hold(&mut rig, *first);
            assert_eq!(rig.granted(granted).sandbox, sandbox);
            assert_eq!(rig.state(sandbox), SandboxState::Running);
            for second in &targets {
                let (refused, _) = hold(&mut rig, *second);
                assert_eq!(rig.refused(refused), ErrorCode::HarnessBusy);
                let (other, other_id) = rig.use_of(*second, UseKind::Exec);
                rig.granted(other);
                rig.use_ended(other_id);
            }
            rig.use_ended(use_id);
            assert_eq!(rig.state(sandbox), SandboxState::Waiting);
        }
    }
}

#[test]
fn caller_that_waits_for_the_sandbox_has_its_harness_already() {
    let mut rig = Rig::with_pool(spoken_with(), NATIVE);
    let (session, _) = rig.slept_session();
    let (first, _) = hold(&mut rig, UseTarget::Session(session));
    assert!(rig.pending(first));
    let (second, _) = hold(&mut rig, UseTarget::Session(session));
    assert_eq!(rig.refused(second), ErrorCode::HarnessBusy);
    for when_busy in [WhenBusy::Refuse, WhenBusy::Queue] {
        let (turn, _) = rig.turn_with(session, when_busy);
        assert_eq!(rig.refused(turn), ErrorCode::HarnessBusy);
    }
    rig.client_gone(first);
    let (turn, id) = rig.turn(session);
    rig.run();
    rig.answered(turn);
    rig.end_turn(session, id);
}

#[test]
fn frozen_sandbox_is_thawed_for_one_harness_caller_and_not_for_two() {
    let mut rig = stage();
    let lease = rig.lease();
    rig.use_once(lease.sandbox);
    rig.live(11_000);
    let target = UseTarget::Sandbox(lease.sandbox);
    let (first, use_id) = hold(&mut rig, target);
    assert!(rig.pending(first), "it is thawed first");
    let (second, _) = hold(&mut rig, target);
    assert_eq!(rig.refused(second), ErrorCode::HarnessBusy);
    rig.run();
    rig.granted(first);
    rig.use_ended(use_id);
    let (third, _) = hold(&mut rig, target);
    rig.granted(third);
}

fn held_and_turn(rig: &mut Rig, session: SessionId) -> ErrorCode {
    let (request, _) = hold(rig, UseTarget::Session(session));
    rig.refused(request)
}

#[test]
fn a_turn_keeps_others_from_the_harness_at_every_stage() {
    let mut rig = stage();
    let (session, sandbox) = rig.session();
    let (_, turn) = rig.turn(session);
    assert_eq!(held_and_turn(&mut rig, session), ErrorCode::HarnessBusy);
    rig.finish(start_turn, Outcome::Done);
    assert_eq!(held_and_turn(&mut rig, session), ErrorCode::HarnessBusy);
    let (queued, _) = rig.turn_with(session, WhenBusy::Queue);
    rig.answered(queued);
    rig.end_turn(session, turn);
    assert_eq!(held_and_turn(&mut rig, session), ErrorCode::HarnessBusy, "the next has it");
    rig.run();
    let next = rig.of(session).turn.expect("the next turn");
    rig.end_turn(session, next);
    let (granted, use_id) = hold(&mut rig, UseTarget::Sandbox(sandbox));
    rig.granted(granted);
    let (refused, _) = rig.turn(session);
    assert_eq!(rig.refused(refused), ErrorCode::HarnessBusy);
    rig.use_ended(use_id);
    rig.running_turn(session);
}

#[test]
fn harness_of_a_sandbox_that_is_gone_is_held_by_no_caller() {
    let mut rig = stage();
    let (session, sandbox) = rig.session();
    let (granted, _) = hold(&mut rig, UseTarget::Session(session));
    rig.granted(granted);
    rig.dies_of(sandbox, DeathCause::Crash);
    rig.run();
    let (_, turn) = rig.running_turn(session);
    rig.end_turn(session, turn);
    let (again, _) = hold(&mut rig, UseTarget::Session(session));
    rig.granted(again);
}

#[test]
fn shell_harness_cannot_be_held() {
    let mut rig = Rig::with_pool(template(0, 2), NATIVE);
    for (targets, _) in targets(&mut rig) {
        for target in targets {
            let (refused, _) = hold(&mut rig, target);
            assert_eq!(rig.refused(refused), ErrorCode::NoHarness);
        }
    }
}

//! Aborts: at any stage of the turn, the answer says that the turn has ended, and the files are
//! there for the next message.

use model::lifecycle::TurnOutcome;
use model::{
    EndCause, ErrorCode, LifecycleEvent, NodeConfig, RequestId, SandboxId, SandboxState, SessionId,
    TurnId,
};

use super::rig::{
    NATIVE, Rig, claim, gone, kill, launch, persist, probe, start_turn, stop_turn, template,
    trouble,
};
use crate::{DeathCause, Outcome, Reply, UseKind, UseTarget, WhenBusy};

/// A node on which a session's sandbox is the only one.
fn alone() -> Rig {
    Rig::with_pool(template(0, 1), NATIVE)
}

fn aborted(turn: TurnId, sandbox_kept: bool) -> Reply {
    Reply::Aborted { turn: Some(turn), sandbox_kept }
}

struct Scene {
    rig: Rig,
    session: SessionId,
    sandbox: SandboxId,
    request: RequestId,
    turn: TurnId,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum At {
    Launching,
    Probing,
    Starting,
    Running,
}

/// A turn that is as far as wanted, of a session with files to save.
fn turn_at(at: At) -> Scene {
    let config = NodeConfig { freeze_after_ms: 86_400_000, ..NodeConfig::default() };
    let mut rig = Rig::with(config, template(0, 1), NATIVE);
    let (session, sandbox) = rig.session();
    rig.session_work(session);
    match at {
        At::Launching => rig.live(3_600_000),
        At::Probing => rig.live(10_000),
        At::Starting | At::Running => {}
    }
    let (request, turn) = rig.turn(session);
    match at {
        At::Launching => assert_eq!(rig.count(launch), 1),
        At::Probing => assert_eq!(rig.count(probe), 1),
        At::Starting => assert_eq!(rig.count(start_turn), 1),
        At::Running => rig.run(),
    }
    Scene { rig, session, sandbox, request, turn }
}

#[test]
fn an_abort_ends_turn_and_sandbox_however_far_it_is_and_keeps_the_files() {
    for at in [At::Launching, At::Probing, At::Starting, At::Running] {
        let Scene { mut rig, session, sandbox, request, turn } = turn_at(at);
        let generation = rig.of(session).generation;
        let abort = rig.abort(session, false);
        for _ in 0..20 {
            let Some(effect) = rig.effects.pop_front() else { break };
            assert!(rig.pending(abort), "{at:?}: nothing is confirmed while something is left");
            rig.end_effect(&effect, Outcome::Done);
        }
        assert_eq!(rig.answered(abort), aborted(turn, false), "{at:?}");
        assert_eq!(rig.turn_outcomes(turn), [TurnOutcome::Aborted], "{at:?}");
        if at == At::Running {
            rig.answered(request);
        } else {
            assert_eq!(rig.refused(request), ErrorCode::Aborted, "{at:?}");
        }
        let (old, _) = rig.use_of(UseTarget::Sandbox(sandbox), UseKind::Exec);
        assert_eq!(rig.refused(old), ErrorCode::SandboxGone, "{at:?}: its id is not valid again");
        let cold = rig.only().id;
        assert_eq!((rig.state(cold), rig.existing.len()), (SandboxState::Cold, 0));
        let ends: Vec<u64> = rig.terminations(sandbox).into_iter().map(|(at, _)| at).collect();
        // One that had not been ready in its generation has no end to tell of.
        assert_eq!(ends, [1], "{at:?}");
        assert!(rig.loss_reasons(session).is_empty());
        let (again, _) = rig.turn(session);
        assert!(rig.launching().restore, "{at:?}");
        rig.run();
        let ready = rig.session_ready(again);
        assert_eq!((ready.sandbox, ready.generation), (cold, generation.next()));
    }
}

#[test]
fn a_turn_ends_after_its_sandbox_if_both_end() {
    let ends: [fn(&mut Scene); 4] = [
        |scene| {
            scene.rig.abort(scene.session, false);
        },
        |scene| {
            scene.rig.stop(scene.session);
        },
        |scene| {
            scene.rig.end(scene.session);
        },
        |scene| scene.rig.dies_of(scene.sandbox, DeathCause::Oom),
    ];
    for (index, end) in ends.into_iter().enumerate() {
        let mut scene = turn_at(At::Running);
        end(&mut scene);
        let Scene { mut rig, sandbox, turn, .. } = scene;
        assert!(rig.turn_outcomes(turn).is_empty(), "{index}: its sandbox is not gone yet");
        rig.run();
        assert_eq!(rig.terminations(sandbox).len(), 1, "{index}");
        assert_eq!(rig.turn_outcomes(turn).len(), 1, "{index}");
        let at = |wanted: fn(&LifecycleEvent) -> bool| rig.published.iter().position(wanted);
        let sandbox_ended = at(|one| matches!(one, LifecycleEvent::SandboxTerminated { .. }));
        let turn_ended = at(|one| matches!(one, LifecycleEvent::TurnEnded { .. }));
        assert!(sandbox_ended < turn_ended, "{index}: {:?}", rig.published);
    }
}

#[test]
fn a_turn_does_not_wait_for_a_sandbox_that_cannot_be_removed() {
    let Scene { mut rig, sandbox, turn, .. } = turn_at(At::Running);
    rig.dies_of(sandbox, DeathCause::Crash);
    assert!(rig.turn_outcomes(turn).is_empty());
    rig.finish(kill, trouble());
    assert_eq!(rig.turn_outcomes(turn), [TurnOutcome::SandboxCrashed]);
    assert!(rig.terminations(sandbox).is_empty());
}

#[test]
fn the_end_of_a_turn_that_waits_for_its_sandbox_survives_a_restart() {
    let Scene { mut rig, sandbox, session, turn, .. } = turn_at(At::Running);
    rig.dies_of(sandbox, DeathCause::Crash);
    let (_, next) = rig.turn(session);
    rig.restart(&[]);
    rig.run();
    assert_eq!(rig.turn_outcomes(turn), [TurnOutcome::Interrupted]);
    assert_eq!(rig.turn_outcomes(next), [TurnOutcome::Interrupted]);
}

#[test]
fn files_are_saved_before_an_abort_removes_the_sandbox() {
    let Scene { mut rig, session, sandbox, turn, .. } = turn_at(At::Running);
    let abort = rig.abort(session, false);
    assert_eq!((rig.count(stop_turn), rig.count(persist), rig.count(kill)), (1, 0, 0));
    rig.finish(stop_turn, Outcome::Done);
    assert_eq!((rig.count(persist), rig.count(kill)), (1, 0));
    rig.finish(persist, Outcome::Done);
    assert_eq!((rig.count(kill), rig.terminations(sandbox)), (1, vec![]));
    assert!(rig.pending(abort));
    rig.killed();
    assert_eq!(rig.terminations(sandbox), [(1, EndCause::UserAbort)]);
    assert_eq!(rig.turn_outcomes(turn), [TurnOutcome::Aborted]);
    assert_eq!(rig.answered(abort), aborted(turn, false));
}

#[test]
fn an_abort_that_keeps_the_sandbox_only_ends_the_turn() {
    for at in [At::Launching, At::Probing, At::Starting, At::Running] {
        let Scene { mut rig, session, sandbox, turn, .. } = turn_at(at);
        let generation = rig.of(session).generation;
        let abort = rig.abort(session, true);
        rig.run();
        assert_eq!(rig.answered(abort), aborted(turn, true), "{at:?}");
        assert_eq!(rig.turn_outcomes(turn), [TurnOutcome::Aborted]);
        assert!(rig.instance(sandbox) != model::InstanceId::NIL, "{at:?}");
        let ready = rig.whole_turn(session);
        assert_eq!((ready.sandbox, ready.generation), (sandbox, generation), "{at:?}");
    }
}

#[test]
fn a_sandbox_kept_by_an_abort_rests_like_any_other() {
    for at in [At::Launching, At::Probing, At::Starting, At::Running] {
        let Scene { mut rig, session, sandbox, .. } = turn_at(at);
        rig.abort(session, true);
        rig.live(3_600_000);
        assert_eq!(rig.state(sandbox), SandboxState::Cold, "{at:?}");
    }
}

#[test]
fn an_abort_without_a_turn_takes_nothing_away() {
    let mut rig = alone();
    let (session, sandbox) = rig.session();
    let abort = rig.abort(session, false);
    assert_eq!(rig.answered(abort), Reply::Aborted { turn: None, sandbox_kept: true });
    rig.live(3_600_000);
    let abort = rig.abort(session, false);
    assert_eq!(rig.answered(abort), Reply::Aborted { turn: None, sandbox_kept: false });
    assert_eq!(rig.state(sandbox), SandboxState::Cold);
}

#[test]
fn queued_turns_are_aborted_too_and_those_sent_later_are_not() {
    let Scene { mut rig, session, turn, .. } = turn_at(At::Running);
    let (_, queued) = rig.turn_with(session, WhenBusy::Queue);
    let abort = rig.abort(session, false);
    assert_eq!(rig.turn_outcomes(queued), [TurnOutcome::Aborted]);
    let (refused, _) = rig.turn(session);
    assert_eq!(rig.refused(refused), ErrorCode::TurnInProgress);
    let (_, later) = rig.turn_with(session, WhenBusy::Queue);
    rig.run();
    assert_eq!(rig.answered(abort), aborted(turn, false));
    assert_eq!(rig.of(session).turn, Some(later), "it is served after the abort");
    assert_eq!(rig.turn_outcomes(queued).len(), 1);
}

#[test]
fn files_that_cannot_be_saved_keep_the_sandbox_and_the_answer_says_so() {
    for outcome in [trouble(), Outcome::TimedOut] {
        let Scene { mut rig, session, sandbox, turn, .. } = turn_at(At::Running);
        let abort = rig.abort(session, false);
        rig.finish(stop_turn, Outcome::Done);
        rig.finish(persist, outcome);
        assert_eq!(rig.answered(abort), aborted(turn, true));
        assert_eq!(rig.turn_outcomes(turn), [TurnOutcome::Aborted], "with its sandbox kept");
        assert_eq!((rig.count(kill), rig.state(sandbox)), (0, SandboxState::Waiting));
        assert_eq!(rig.whole_turn(session).sandbox, sandbox);
        assert!(rig.terminations(sandbox).is_empty() && rig.loss_reasons(session).is_empty());
    }
}

#[test]
fn a_turn_that_cannot_be_killed_takes_its_sandbox_along_even_one_to_be_kept() {
    for keep in [false, true] {
        let table = [
            (trouble(), EndCause::UserAbort),
            (Outcome::TimedOut, EndCause::UserAbort),
            (gone(), EndCause::Crash),
        ];
        for (outcome, cause) in table {
            let Scene { mut rig, session, sandbox, turn, .. } = turn_at(At::Running);
            let abort = rig.abort(session, keep);
            rig.finish(stop_turn, outcome);
            rig.run();
            assert_eq!(rig.answered(abort), aborted(turn, false));
            assert_eq!(rig.turn_outcomes(turn), [TurnOutcome::Aborted]);
            assert_eq!(rig.terminations(sandbox), [(1, cause)]);
            assert_eq!(rig.whole_turn(session).generation.0, 2);
        }
    }
}

#[test]
fn a_second_abort_gets_the_same_answer() {
    let Scene { mut rig, session, sandbox, turn, .. } = turn_at(At::Running);
    let first = rig.abort(session, false);
    let second = rig.abort(session, false);
    assert_eq!(rig.count(stop_turn), 1);
    rig.finish(stop_turn, Outcome::Done);
    let third = rig.abort(session, true);
    rig.run();
    for abort in [first, second, third] {
        assert_eq!(rig.answered(abort), aborted(turn, false));
    }
    assert_eq!(rig.terminations(sandbox).len(), 1);
}

#[test]
fn a_client_that_does_not_wait_for_its_abort_gets_it_nonetheless() {
    let Scene { mut rig, session, sandbox, turn, .. } = turn_at(At::Running);
    let abort = rig.abort(session, false);
    rig.client_gone(abort);
    rig.run();
    assert!(rig.pending(abort));
    assert_eq!(rig.turn_outcomes(turn), [TurnOutcome::Aborted]);
    assert_eq!(rig.terminations(sandbox), [(1, EndCause::UserAbort)]);
}

#[test]
fn a_death_during_an_abort_is_its_end() {
    for keep in [false, true] {
        let Scene { mut rig, session, sandbox, turn, .. } = turn_at(At::Running);
        let abort = rig.abort(session, keep);
        rig.dies_of(sandbox, DeathCause::Crash);
        rig.run();
        assert_eq!(rig.turn_outcomes(turn), [TurnOutcome::Aborted]);
        assert_eq!(rig.answered(abort), aborted(turn, false));
        assert_eq!(rig.terminations(sandbox), [(1, EndCause::Crash)]);
        rig.whole_turn(session);
    }
}

#[test]
fn a_harness_that_ends_the_turn_itself_does_not_change_that_it_was_aborted() {
    let Scene { mut rig, session, sandbox, turn, .. } = turn_at(At::Running);
    let abort = rig.abort(session, false);
    rig.end_turn(session, turn);
    rig.run();
    assert_eq!(rig.turn_outcomes(turn), [TurnOutcome::Aborted]);
    assert_eq!(rig.answered(abort), aborted(turn, false));
    assert_eq!(rig.terminations(sandbox), [(1, EndCause::UserAbort)]);
}

#[test]
fn abort_during_another_operation_is_refused_or_finds_nothing() {
    let leaving: [fn(&mut Rig, SessionId) -> RequestId; 2] = [Rig::stop, Rig::end];
    for leave in leaving {
        let Scene { mut rig, session, sandbox, turn, .. } = turn_at(At::Running);
        let left = leave(&mut rig, session);
        let abort = rig.abort(session, false);
        assert_eq!(rig.refused(abort), ErrorCode::SessionBusy);
        rig.run();
        rig.answered(left);
        assert_eq!(rig.turn_outcomes(turn), [TurnOutcome::Aborted]);
        assert_eq!(rig.terminations(sandbox).len(), 1);
    }
    let mut rig = alone();
    let (session, _) = rig.session();
    let paused = rig.pause(session);
    let abort = rig.abort(session, false);
    assert_eq!(rig.answered(abort), Reply::Aborted { turn: None, sandbox_kept: true });
    rig.run();
    assert_eq!(rig.answered(paused), Reply::Paused);
}

/// A session that has lost its sandbox, with a pool that has an idle one.
fn without_sandbox() -> (Rig, SessionId) {
    let mut rig = Rig::with_pool(template(1, 1), NATIVE);
    let (session, sandbox) = rig.session();
    rig.delete(sandbox);
    rig.run();
    (rig, session)
}

#[test]
fn a_sandbox_that_was_being_bound_leaves_nothing_when_its_session_does_not_want_it() {
    let asks: [fn(&mut Rig, SessionId) -> RequestId; 3] =
        [|rig, session| rig.abort(session, false), Rig::stop, Rig::end];
    for ask in asks {
        let (mut rig, session) = without_sandbox();
        let (_, turn) = rig.turn(session);
        assert_eq!(rig.count(claim), 1);
        let request = ask(&mut rig, session);
        let confirmed = rig.answer(request).is_some();
        assert!(!confirmed || rig.count(kill) == 0, "nothing is confirmed while it exists");
        rig.run();
        rig.answered(request);
        assert_eq!(rig.turn_outcomes(turn), [TurnOutcome::Aborted]);
        let cold = |rig: &Rig| rig.kernel.stats().cold;
        assert_eq!(cold(&rig), 0, "a record without an owner is of no use");
        assert_eq!(rig.existing.len(), 1, "the pool has its idle one");
    }
}

#[test]
fn a_turn_aborted_while_it_waits_for_a_place_takes_none() {
    let config = NodeConfig { max_live: 1, ..NodeConfig::default() };
    let mut rig = Rig::with(config, template(0, 5), NATIVE);
    let (session, sandbox) = rig.session();
    rig.session_work(session);
    let (other, _) = rig.session();
    rig.session_work(other);
    let (_, turn) = rig.turn(session);
    assert_eq!(rig.count(persist), 1, "the other gives way");
    let abort = rig.abort(session, false);
    assert_eq!(rig.answered(abort), aborted(turn, false));
    rig.run();
    assert_eq!(rig.state(sandbox), SandboxState::Cold, "no caller wants it");
    let deleted = rig.delete(sandbox);
    assert_eq!(rig.answered(deleted), Reply::Gone);
}

#[test]
fn a_session_that_ends_while_its_turn_waits_for_a_place_is_gone() {
    let leaving: [fn(&mut Rig, SessionId) -> RequestId; 2] = [Rig::stop, Rig::end];
    for leave in leaving {
        let config = NodeConfig { max_live: 1, ..NodeConfig::default() };
        let mut rig = Rig::with(config, template(0, 5), NATIVE);
        let (session, sandbox) = rig.session();
        rig.delete(sandbox);
        rig.run();
        let (other, _) = rig.session();
        rig.session_work(other);
        let (request, turn) = rig.turn(session);
        let (exec, _) = rig.use_of(UseTarget::Session(session), UseKind::Exec);
        assert!(rig.pending(request), "the other gives way");
        let left = leave(&mut rig, session);
        rig.run();
        rig.answered(left);
        assert_eq!(
            (rig.refused(request), rig.refused(exec)),
            (ErrorCode::Aborted, ErrorCode::Aborted)
        );
        assert_eq!(rig.turn_outcomes(turn), [TurnOutcome::Aborted]);
        assert_eq!(rig.kernel.sandboxes().len(), 1);
    }
}

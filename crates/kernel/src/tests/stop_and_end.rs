//! Stop and end of a session. A stop saves files before anything is removed; an end deletes them,
//! also across a restart. Requests in progress are answered.

use model::lifecycle::TurnOutcome;
use model::{EndCause, ErrorCode, SandboxState, SessionStatus};

use super::rig::{
    DOCKER, NATIVE, ON_DISK, Rig, delete_workspace, kill, persist, stop_turn, template, trouble,
};
use crate::{Action, Outcome, Reply, UseKind, UseTarget, WhenBusy};

/// A session with files to save, on a node of its own.
fn scene() -> (Rig, model::SessionId, model::SandboxId) {
    let mut rig = Rig::with_pool(template(0, 1), NATIVE);
    let (session, sandbox) = rig.session();
    rig.session_work(session);
    (rig, session, sandbox)
}

type Ask = fn(&mut Rig, model::SessionId) -> model::RequestId;

const LEAVING: [(Ask, Reply, EndCause); 2] = [
    (Rig::stop, Reply::Stopped, EndCause::SessionStopped),
    (Rig::end, Reply::Ended, EndCause::SessionEnded),
];

#[test]
fn a_stop_saves_before_the_sandbox_is_removed_an_end_does_not_and_the_answer_comes_last() {
    for (leave, reply, cause) in LEAVING {
        let (mut rig, session, sandbox) = scene();
        let saves = reply == Reply::Stopped;
        let request = leave(&mut rig, session);
        let again = leave(&mut rig, session);
        let expected = if saves { (1, 0) } else { (0, 1) };
        assert_eq!((rig.count(persist), rig.count(kill)), expected);
        if saves {
            rig.finish(persist, Outcome::Done);
        }
        assert!(rig.pending(request) && rig.terminations(sandbox).is_empty());
        let removal = rig.finish(kill, Outcome::Done);
        let Action::Kill { workspace, .. } = removal.action else { unreachable!("it is a kill") };
        assert_eq!(workspace.is_none(), saves, "an end takes the files along");
        assert_eq!(rig.terminations(sandbox), [(1, cause)]);
        assert_eq!((rig.answered(request), rig.answered(again)), (reply.clone(), reply));
        let state = rig.kernel.sandbox(sandbox).map(|view| view.state);
        assert_eq!(state, saves.then_some(SandboxState::Cold));
        assert_eq!(rig.store.sessions.contains_key(&session), saves);
        assert_eq!(rig.loss_reasons(session), [], "what its owner ends is no loss");
    }
}

#[test]
fn a_stop_whose_files_cannot_be_saved_is_refused_and_takes_nothing_away() {
    let (mut rig, session, sandbox) = scene();
    let request = rig.stop(session);
    rig.finish(persist, trouble());
    assert_eq!(rig.refused(request), ErrorCode::PersistFailed);
    assert_eq!((rig.count(kill), rig.status(session)), (0, SessionStatus::Active));
    assert_eq!(rig.whole_turn(session).sandbox, sandbox);
}

#[test]
fn an_end_is_tried_until_the_sandbox_is_gone() {
    let (mut rig, session, sandbox) = scene();
    let request = rig.end(session);
    for pause_ms in [1_000, 2_000] {
        rig.finish(kill, trouble());
        assert!(rig.pending(request) && rig.count(kill) == 0);
        rig.pass(pause_ms);
    }
    rig.run();
    assert_eq!(rig.answered(request), Reply::Ended);
    assert_eq!((rig.kernel.session(session), rig.kernel.sandbox(sandbox)), (None, None));
}

#[test]
fn stop_and_end_notify_uses_and_turns_in_progress() {
    for (leave, reply, _) in LEAVING {
        let (mut rig, session, _) = scene();
        let exec = rig.session_exec(session);
        let (_, turn) = rig.running_turn(session);
        let (_, queued) = rig.turn_with(session, WhenBusy::Queue);
        let request = leave(&mut rig, session);
        assert_eq!((rig.count(stop_turn), rig.count(persist)), (1, 0));
        assert_eq!(rig.turn_outcomes(queued), [TurnOutcome::Aborted]);
        let refused = [
            rig.turn(session).0,
            rig.resume(session),
            rig.use_of(UseTarget::Session(session), UseKind::Exec).0,
        ];
        for request in refused {
            assert_eq!(rig.refused(request), ErrorCode::SessionBusy);
        }
        rig.run();
        assert_eq!(rig.answered(request), reply);
        assert_eq!(rig.turn_outcomes(turn), [TurnOutcome::Aborted]);
        let broken: Vec<_> = rig.broken.iter().map(|(use_id, _)| *use_id).collect();
        assert_eq!(broken, [exec]);
        assert_eq!(rig.turn_outcomes(queued).len(), 1);
    }
}

#[test]
fn session_runs_one_operation_at_a_time() {
    let (mut rig, session, _) = scene();
    let stop = rig.stop(session);
    for other in [rig.end(session), rig.pause(session)] {
        assert_eq!(rig.refused(other), ErrorCode::SessionBusy);
    }
    rig.run();
    assert_eq!(rig.answered(stop), Reply::Stopped);
    let end = rig.end(session);
    assert_eq!(rig.answered(end), Reply::Ended, "nothing is left to remove");
}

#[test]
fn sandbox_that_keeps_writing_is_saved_again_a_limited_number_of_times() {
    let (mut rig, session, sandbox) = scene();
    rig.session_exec(session);
    rig.stop(session);
    for _ in 0..3 {
        assert_eq!((rig.count(persist), rig.count(kill)), (1, 0));
        rig.finish(persist, Outcome::Done);
    }
    assert_eq!((rig.count(persist), rig.count(kill)), (0, 1));
    rig.run();
    assert_eq!(rig.state(sandbox), SandboxState::Cold);
}

#[test]
fn a_session_that_ends_before_it_had_files_leaves_no_record() {
    let mut rig = Rig::with_pool(template(0, 1), NATIVE);
    let (session, created) = rig.create_session();
    let ended = rig.end(session);
    rig.finish(kill, Outcome::Done);
    assert_eq!(rig.refused(created), ErrorCode::Aborted);
    assert_eq!(rig.answered(ended), Reply::Ended);
    assert!(rig.store.sandboxes.is_empty() && rig.store.sessions.is_empty());
}

#[test]
fn a_session_whose_pool_is_on_its_way_out_gets_no_sandbox() {
    let mut rig = Rig::with_pool(template(1, 1), NATIVE);
    let (session, _) = rig.cold_session();
    rig.lease();
    let template = super::rig::name();
    rig.ask(|request| crate::Event::PoolDestroyed { request, template, force: true });
    // What was leased is still being removed.
    let resumed = rig.resume(session);
    assert_eq!(rig.refused(resumed), ErrorCode::TemplateUnknown);
}

#[test]
fn the_end_of_an_unknown_session_is_refused() {
    let mut rig = Rig::with_pool(template(0, 1), NATIVE);
    let ended = rig.end(model::SessionId::from_u128(404));
    assert_eq!(rig.refused(ended), ErrorCode::SessionUnknown);
}

#[test]
fn files_of_an_ended_session_are_no_state_loss() {
    let (mut rig, session, sandbox) = scene();
    rig.end(session);
    rig.run();
    rig.delete(sandbox);
    assert_eq!(rig.loss_reasons(session), []);
}

#[test]
fn aborted_queued_turns_are_journalled() {
    let (mut rig, session, _) = scene();
    rig.running_turn(session);
    rig.turn_with(session, WhenBusy::Queue);
    assert_eq!(rig.store.sessions[&session].queued.len(), 1);
    rig.abort(session, true);
    assert!(rig.store.sessions[&session].queued.is_empty());
}

/// Restarts a node, with whatever it had launched still there.
fn crash(rig: &mut Rig) {
    let alive: Vec<_> = rig.existing.iter().copied().collect();
    rig.restart(&alive);
}

#[test]
fn an_end_goes_on_after_a_crash_and_takes_the_files_and_the_session_along() {
    for traits in [NATIVE, ON_DISK, DOCKER] {
        for cold in [false, true] {
            let mut rig = Rig::with_pool(template(0, 1), traits);
            let (session, _) = if cold { rig.cold_session() } else { rig.waiting_session() };
            let workspace = rig.of(session).workspace.unwrap();
            rig.end(session);
            crash(&mut rig);
            let (fork, refused) = rig.fork(session);
            assert_eq!(rig.refused(refused), ErrorCode::SessionEnded, "cold: {cold}");
            assert_eq!(rig.kernel.session(fork), None);
            if cold {
                let deleted = rig.finish(delete_workspace, Outcome::Done);
                assert!(
                    matches!(deleted.action, Action::DeleteWorkspace { workspace: it } if it == workspace)
                );
            } else {
                let killed = rig.finish(kill, Outcome::Done);
                assert!(
                    matches!(killed.action, Action::Kill { workspace: Some(it), .. } if it == workspace)
                );
            }
            assert_eq!((rig.kernel.session(session), rig.loss_reasons(session)), (None, vec![]));
            assert!(rig.store.sessions.is_empty() && rig.store.sandboxes.is_empty());
            assert!(rig.store.doomed.is_empty() && rig.effects.is_empty());
            let again = rig.end(session);
            assert_eq!(rig.answered(again), Reply::Ended);
            rig.restart(&[]);
            assert_eq!((rig.effects.len(), rig.kernel.sandboxes().len()), (0, 0));
        }
    }
}

/// An older version kept the files of ended sessions until they were evicted.
#[test]
fn files_that_an_older_version_kept_of_an_ended_session_go_at_the_next_start() {
    let mut rig = Rig::with_pool(template(0, 1), ON_DISK);
    let (session, sandbox) = rig.cold_session();
    let workspace = rig.store.sandboxes[&sandbox].workspace;
    rig.store.sessions.get_mut(&session).unwrap().status = SessionStatus::Ended;
    rig.restart(&[]);
    assert!(rig.store.doomed.contains(&workspace));
    rig.run();
    assert!(rig.store.doomed.is_empty() && rig.store.sessions.is_empty());
    assert_eq!((rig.kernel.sandboxes().len(), rig.loss_reasons(session)), (0, vec![]));
}

#[test]
fn end_of_a_session_is_not_acknowledged_before_its_turn_ended() {
    let (mut rig, session, sandbox) = scene();
    rig.running_turn(session);
    let ended = rig.end(session);
    assert_eq!((rig.count(stop_turn), rig.count(kill)), (1, 0));
    crash(&mut rig);
    rig.run();
    assert!(rig.pending(ended));
    assert_eq!(rig.resumed(session).sandbox, sandbox, "its owner asks again");
}

//! Shutdown: no new work, a grace period for what runs, files saved, nothing left, reported once.

use model::lifecycle::TurnOutcome;
use model::{EndCause, ErrorCode, SandboxState, SessionId, SessionStatus, TerminatedReason};

use super::rig::{
    DOCKER, NATIVE, Rig, freeze, kill, launch, name, persist, start_turn, stop_turn, template,
    trouble,
};
use crate::{Event, Outcome, Reply, UseKind, UseTarget, WhenBusy};

fn alone() -> Rig {
    Rig::with_pool(template(0, 2), NATIVE)
}

/// After a restart a session goes on in the same sandbox, with its files.
fn goes_on(rig: &mut Rig, session: SessionId) {
    let sandbox = rig.store.sessions[&session].sandbox.unwrap();
    let workspace = rig.store.sandboxes[&sandbox].workspace;
    let generation = rig.of(session).generation;
    assert_eq!(rig.status(session), SessionStatus::Paused);
    let recovery = rig.restart(&[]);
    assert_eq!(recovery, crate::Recovery::default(), "an orderly stop leaves nothing behind");
    let (turn, _) = rig.turn(session);
    assert_eq!((rig.launching().workspace, rig.launching().restore), (workspace, true));
    rig.run();
    let ready = rig.session_ready(turn);
    assert_eq!((ready.sandbox, ready.generation), (sandbox, generation.next()));
}

#[test]
fn shutdown_takes_no_new_work() {
    let mut rig = Rig::with_pool(template(1, 5), NATIVE);
    let (session, sandbox) = rig.session();
    let (busy, _) = rig.session();
    rig.running_turn(busy);
    let lease = rig.lease();
    rig.exec(lease.sandbox);
    rig.shut_down(60_000);
    let refused = [
        rig.create_session().1,
        rig.checkout(),
        rig.turn(session).0,
        rig.turn_with(busy, WhenBusy::Queue).0,
        rig.resume(session),
        rig.fork(session).1,
        rig.use_of(UseTarget::Session(busy), UseKind::Exec).0,
        rig.use_of(UseTarget::Sandbox(sandbox), UseKind::Files).0,
        rig.use_of(UseTarget::Sandbox(lease.sandbox), UseKind::Exec).0,
    ];
    for request in refused {
        assert_eq!(rig.refused(request), ErrorCode::ShuttingDown);
    }
    assert_eq!(rig.count(launch), 0);
    rig.run();
    rig.live(30_000);
    assert_eq!(rig.kernel.pools()[0].idle, 0, "nothing is refilled");
    assert!(!rig.stopped, "a turn and an exec are still in progress");
}

#[test]
fn shutdown_refuses_waiting_requests() {
    let config = model::NodeConfig { max_live: 2, ..model::NodeConfig::default() };
    let mut rig = Rig::with(config, template(0, 2), NATIVE);
    let (cold, _) = rig.slept_session();
    let (busy, _) = rig.session();
    let (_, running) = rig.running_turn(busy);
    let (_, queued) = rig.turn_with(busy, WhenBusy::Queue);
    let (waiting, turn) = rig.turn(cold);
    let checkout = rig.checkout();
    let (_, created) = rig.create_session();
    rig.shut_down(60_000);
    rig.run();
    for request in [waiting, checkout] {
        assert_eq!(rig.refused(request), ErrorCode::ShuttingDown);
    }
    assert!(matches!(rig.refused(created), ErrorCode::ShuttingDown | ErrorCode::CapacityExhausted));
    assert_eq!(rig.turn_outcomes(turn), [TurnOutcome::NotStarted]);
    assert_eq!(rig.turn_outcomes(queued).len(), 1);
    assert!(rig.turn_outcomes(running).is_empty());
}

#[test]
fn shutdown_lets_turns_finish_within_the_grace_period() {
    let mut rig = alone();
    let (session, sandbox) = rig.session();
    let (_, turn) = rig.running_turn(session);
    let lease = rig.lease();
    let use_id = rig.exec(lease.sandbox);
    rig.shut_down(60_000);
    rig.run();
    rig.pass(59_999);
    assert!(rig.effects.is_empty() && rig.broken.is_empty());
    assert_eq!(rig.state(sandbox), SandboxState::Running);
    rig.end_turn(session, turn);
    assert_eq!(rig.turn_outcomes(turn), [TurnOutcome::Completed]);
    assert_eq!((rig.count(persist), rig.count(kill)), (1, 0), "its files come first");
    rig.use_ended(use_id);
    assert_eq!(rig.count(kill), 1, "a lease has no files to save");
    assert!(!rig.stopped);
    rig.run();
    assert!(rig.stopped && rig.existing.is_empty());
    assert_eq!(rig.terminations(sandbox), [(1, EndCause::Shutdown)]);
    assert_eq!(rig.terminations(lease.sandbox), [(1, EndCause::Shutdown)]);
    goes_on(&mut rig, session);
}

#[test]
fn shutdown_ends_what_runs_when_the_grace_period_ends() {
    let mut rig = alone();
    let (session, sandbox) = rig.session();
    let (_, turn) = rig.running_turn(session);
    let (other, _) = rig.session();
    let session_use = rig.session_exec(other);
    let lease = rig.lease();
    let lease_use = rig.exec(lease.sandbox);
    rig.shut_down(60_000);
    rig.pass(60_000);
    assert_eq!(rig.count(stop_turn), 1);
    rig.run();
    assert_eq!(rig.turn_outcomes(turn), [TurnOutcome::Interrupted]);
    let mut broken: Vec<_> = rig.broken.iter().map(|(use_id, _)| *use_id).collect();
    broken.sort();
    assert_eq!(broken, [session_use, lease_use]);
    assert!(rig.stopped && rig.existing.is_empty());
    assert_eq!(rig.terminations(sandbox), [(1, EndCause::Shutdown)]);
    goes_on(&mut rig, session);
    rig.whole_turn(other);
    let refusal = rig.apply(Event::LeaseReturned { lease: lease.lease }).unwrap_err();
    assert_eq!(refusal.code, ErrorCode::LeaseLost);
}

#[test]
fn second_shutdown_request_shortens_the_grace_period_and_never_extends_it() {
    let mut rig = alone();
    let lease = rig.lease();
    let in_progress = rig.exec(lease.sandbox);
    rig.shut_down(60_000);
    rig.shut_down(600_000);
    rig.shut_down(20_000);
    rig.live(19_999);
    assert!(!rig.stopped && rig.broken.is_empty());
    rig.live(1);
    assert_eq!(rig.broken.iter().map(|(use_id, _)| *use_id).collect::<Vec<_>>(), [in_progress]);
    assert!(rig.stopped && rig.existing.is_empty());
    rig.shut_down(0);
    rig.live(1);
    assert!(rig.stopped);
}

#[test]
fn a_turn_that_was_being_started_is_given_its_grace_too() {
    let mut rig = alone();
    let (session, _) = rig.session();
    let (request, turn) = rig.turn(session);
    rig.shut_down(60_000);
    rig.finish(start_turn, Outcome::Done);
    rig.session_ready(request);
    rig.end_turn(session, turn);
    rig.run();
    assert_eq!(rig.turn_outcomes(turn), [TurnOutcome::Completed]);
    assert!(rig.stopped);
    goes_on(&mut rig, session);
}

#[test]
fn a_turn_that_cannot_be_stopped_does_not_keep_the_server_up() {
    let mut rig = alone();
    let (session, _) = rig.session();
    let (_, turn) = rig.running_turn(session);
    rig.shut_down(0);
    rig.pass(0);
    rig.finish(stop_turn, trouble());
    rig.run();
    assert_eq!(rig.turn_outcomes(turn), [TurnOutcome::Interrupted]);
    assert!(rig.stopped);
    goes_on(&mut rig, session);
}

#[test]
fn shutdown_ends_a_sandbox_in_any_phase() {
    type Act = fn(&mut Rig, SessionId);
    let table: [Act; 7] = [
        |_, _| {},
        |rig, _| rig.live(20_000),
        |rig, _| rig.pass(10_000),
        |rig, session| {
            rig.live(3_600_000);
            rig.resume(session);
        },
        |rig, session| {
            rig.pause(session);
        },
        |rig, session| {
            rig.stop(session);
        },
        |rig, session| {
            rig.running_turn(session);
            rig.abort(session, false);
        },
    ];
    for (at, act) in table.into_iter().enumerate() {
        let mut rig = alone();
        let (session, sandbox) = rig.session();
        rig.session_work(session);
        act(&mut rig, session);
        rig.shut_down(60_000);
        rig.run();
        assert!(rig.stopped, "{at}");
        assert_eq!((rig.existing.len(), rig.state(sandbox)), (0, SandboxState::Cold));
        rig.restart(&[]);
        assert_eq!(rig.resumed(session).sandbox, sandbox, "{at}");
        assert!(rig.loss_reasons(session).is_empty());
    }
}

#[test]
fn shutdown_is_reported_complete_when_nothing_is_left_and_not_before() {
    let mut rig = Rig::with_pool(template(1, 0), NATIVE);
    rig.shut_down(60_000);
    rig.finish(kill, trouble());
    assert!(!rig.stopped);
    rig.pass(1_000);
    rig.killed();
    assert!(rig.stopped);
    // The rig checks that it is not reported again.
    rig.shut_down(60_000);
    rig.pass(120_000);
    assert!(rig.effects.is_empty());
}

#[test]
fn a_server_with_nothing_to_end_stops_at_once() {
    let mut rig = alone();
    rig.slept_session();
    rig.shut_down(60_000);
    assert!(rig.stopped);
}

#[test]
fn an_orphan_keeps_the_server_up_until_it_is_gone() {
    let mut rig = alone();
    rig.restart(&[model::InstanceId::from_u128(999)]);
    rig.shut_down(0);
    assert!(!rig.stopped);
    rig.killed();
    assert!(rig.stopped);
}

#[test]
fn shutdown_retries_failed_saves_and_then_reports_the_loss() {
    for (traits, lost) in [(NATIVE, vec![]), (DOCKER, vec![TerminatedReason::Shutdown])] {
        let mut rig = Rig::with_pool(template(0, 2), traits);
        let (session, sandbox) = rig.session();
        rig.session_work(session);
        rig.shut_down(60_000);
        for pause_ms in [1_000, 2_000] {
            rig.finish(persist, trouble());
            assert_eq!(rig.count(kill), 0);
            rig.pass(pause_ms);
        }
        rig.finish(persist, trouble());
        rig.killed();
        assert!(rig.stopped);
        assert_eq!(rig.loss_reasons(session), lost);
        assert_eq!(rig.state(sandbox), SandboxState::Cold);
        rig.restart(&[]);
        assert_eq!(rig.resumed(session).lost().is_some(), !lost.is_empty());
    }
}

#[test]
fn shutdown_confirms_operations_in_progress() {
    let mut rig = alone();
    let (session, _) = rig.session();
    rig.session_work(session);
    let stopped = rig.stop(session);
    let (other, sandbox) = rig.session_after_stop();
    let deleted = rig.delete(sandbox);
    rig.shut_down(60_000);
    rig.run();
    assert_eq!(rig.answered(stopped), Reply::Stopped);
    assert_eq!(rig.answered(deleted), Reply::Gone);
    assert!(rig.stopped);
    rig.restart(&[]);
    assert_eq!(rig.status(session), SessionStatus::Stopped);
    assert_eq!(rig.status(other), SessionStatus::Paused);
}

impl Rig {
    /// Another session, while effects of the first stay as they are.
    fn session_after_stop(&mut self) -> (SessionId, model::SandboxId) {
        let held: Vec<_> = self.effects.drain(..).collect();
        let made = self.session();
        self.effects.extend(held);
        made
    }
}

#[test]
fn shutdown_stops_sweep_freeze_and_refill() {
    let mut rig = Rig::with_pool(template(1, 1), NATIVE);
    let (session, _) = rig.session();
    rig.running_turn(session);
    rig.shut_down(7_200_000);
    rig.run();
    rig.pass(3_500_000);
    assert_eq!((rig.count(freeze), rig.count(launch)), (0, 0));
    let resumed = rig.apply(Event::PoolResumed { template: name() }).unwrap_err();
    assert_eq!(resumed.code, ErrorCode::ShuttingDown);
}

#[test]
fn a_session_that_was_still_being_created_leaves_no_record() {
    let mut rig = Rig::with_pool(template(0, 1), NATIVE);
    let (session, created) = rig.create_session();
    rig.shut_down(1_000);
    rig.run();
    assert_eq!(rig.refused(created), ErrorCode::ShuttingDown);
    assert!(rig.stopped && rig.store.sandboxes.is_empty());
    assert!(rig.kernel.session(session).is_none());
}

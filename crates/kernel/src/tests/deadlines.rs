//! Deadlines of sessions: met in time and never early, in use or idle, live or cold, and across a
//! restart.

use model::lifecycle::TurnOutcome;
use model::{
    Deadline, DeadlineAction, EndCause, ErrorCode, SandboxId, SandboxState, SessionId,
    SessionStatus, Wall,
};

use super::rig::{NATIVE, Rig, TENANT, delete_workspace, kill, template};
use crate::{DeadlineChange, Event, Reply, SessionSettings, WhenBusy};

const MINUTE_MS: u64 = 60_000;
const HOUR_MS: u64 = 60 * MINUTE_MS;

fn rig() -> Rig {
    Rig::with_pool(template(0, 10), NATIVE)
}

fn at(rig: &Rig, after_ms: u64, action: DeadlineAction) -> Deadline {
    Deadline { at: Some(Wall(rig.now.wall.0 + after_ms)), idle_ms: None, action }
}

fn idle(idle_ms: u64, action: DeadlineAction) -> Deadline {
    Deadline { at: None, idle_ms: Some(idle_ms), action }
}

#[track_caller]
fn session_with(rig: &mut Rig, deadline: Deadline) -> (SessionId, SandboxId) {
    let settings =
        SessionSettings { tenant: TENANT, deadline: Some(deadline), ..SessionSettings::default() };
    let (session, request) = rig.create_session_with(settings);
    rig.run();
    (session, rig.session_ready(request).sandbox)
}

fn change(rig: &mut Rig, session: SessionId, deadline: DeadlineChange) -> Result<Reply, ErrorCode> {
    let event = Event::SessionChanged { session, labels: None, config: None, deadline };
    rig.apply(event).map_err(|refusal| refusal.code)
}

/// Whether the session exists.
fn is_known(rig: &Rig, session: SessionId) -> bool {
    rig.kernel.session(session).is_some()
}

#[test]
fn a_session_ends_at_its_time_with_its_files_and_says_why() {
    let mut rig = rig();
    let deadline = at(&rig, 20 * MINUTE_MS, DeadlineAction::End);
    let (session, sandbox) = session_with(&mut rig, deadline);
    rig.session_work(session);
    rig.live(20 * MINUTE_MS - 1);
    assert!(is_known(&rig, session), "it is not early");
    assert_eq!(rig.of(session).deadline_at, deadline.at);
    rig.live(1);
    rig.run();
    assert!(!is_known(&rig, session));
    assert_eq!(rig.end_causes(sandbox).last(), Some(&EndCause::DeadlineReached));
    assert_eq!(rig.kernel.deadlines_met(), [1, 0]);
    let request = rig.resume(session);
    let refusal = super::rig::refusal(&rig, request);
    assert_eq!(refusal.code, ErrorCode::SessionEnded);
    assert!(refusal.cause.contains("deadline"), "{}", refusal.cause);
}

#[test]
fn a_time_interrupts_the_turn_and_the_queue_behind_it() {
    for action in DeadlineAction::ALL {
        let mut rig = rig();
        let deadline = at(&rig, MINUTE_MS, action);
        let (session, sandbox) = session_with(&mut rig, deadline);
        let (_, running) = rig.running_turn(session);
        let (_, queued) = rig.turn_with(session, WhenBusy::Queue);
        rig.pass(MINUTE_MS);
        rig.run();
        assert_eq!(rig.turn_outcomes(running), [TurnOutcome::Expired], "{action:?}");
        assert_eq!(rig.turn_outcomes(queued), [TurnOutcome::Expired], "{action:?}");
        assert_eq!(rig.end_causes(sandbox), [EndCause::DeadlineReached], "{action:?}");
        assert_eq!(is_known(&rig, session), action == DeadlineAction::Pause);
    }
}

#[test]
fn a_paused_session_keeps_its_files_and_is_paused_at_its_time_only_once() {
    let mut rig = rig();
    let deadline = at(&rig, MINUTE_MS, DeadlineAction::Pause);
    let (session, sandbox) = session_with(&mut rig, deadline);
    rig.session_work(session);
    rig.keep_awake(sandbox);
    rig.pass(MINUTE_MS);
    rig.run();
    assert_eq!(
        (rig.status(session), rig.state(sandbox)),
        (SessionStatus::Paused, SandboxState::Cold)
    );
    assert_eq!(rig.count(delete_workspace), 0);
    assert_eq!(rig.of(session).deadline, None, "the time is used up");
    assert!(rig.losses(session).is_empty());
    rig.resumed(session);
    rig.live(10 * MINUTE_MS);
    assert_eq!(rig.status(session), SessionStatus::Active);
}

#[test]
fn idle_time_counts_from_the_last_use_and_not_while_something_runs() {
    let mut rig = rig();
    let (session, sandbox) = session_with(&mut rig, idle(5 * MINUTE_MS, DeadlineAction::End));
    let use_id = rig.session_exec(session);
    rig.live(30 * MINUTE_MS);
    assert_eq!(rig.of(session).deadline_at, None, "it is in use");
    rig.use_ended(use_id);
    rig.live(4 * MINUTE_MS);
    rig.session_work(session);
    rig.live(4 * MINUTE_MS);
    rig.keep_awake(sandbox);
    rig.live(20 * MINUTE_MS);
    assert!(is_known(&rig, session), "a process keeps it alive");
    rig.stop_processes(sandbox, 0);
    rig.live(5 * MINUTE_MS - 1);
    assert!(is_known(&rig, session), "it counts from the end of that");
    rig.live(5 * MINUTE_MS);
    rig.run();
    assert!(!is_known(&rig, session));
}

#[test]
fn an_idle_session_is_paused_again_after_each_use() {
    let mut rig = rig();
    let (session, sandbox) = session_with(&mut rig, idle(MINUTE_MS, DeadlineAction::Pause));
    for met in 1..=3 {
        rig.live(MINUTE_MS);
        rig.run();
        assert_eq!(rig.status(session), SessionStatus::Paused);
        assert_eq!(rig.state(sandbox), SandboxState::Cold);
        rig.live(10 * MINUTE_MS);
        assert_eq!(rig.kernel.deadlines_met(), [0, met], "a paused session has nothing to pause");
        rig.resumed(session);
    }
}

#[test]
fn a_cold_session_ends_at_its_deadline_with_its_files() {
    let mut rig = rig();
    let (session, sandbox) = session_with(&mut rig, idle(3 * HOUR_MS, DeadlineAction::End));
    rig.session_work(session);
    rig.live(2 * HOUR_MS);
    rig.run();
    assert_eq!(rig.state(sandbox), SandboxState::Cold, "the sweep took its sandbox");
    rig.pass(HOUR_MS);
    assert!(!is_known(&rig, session));
    assert_eq!(rig.count(delete_workspace), 1);
}

#[test]
fn a_deadline_survives_a_restart_and_is_met_by_it_when_it_has_passed() {
    let mut rig = rig();
    let soon = at(&rig, HOUR_MS, DeadlineAction::End);
    let late = at(&rig, 3 * HOUR_MS, DeadlineAction::End);
    let (ends, _) = session_with(&mut rig, soon);
    let (stays, _) = session_with(&mut rig, late);
    rig.session_work(ends);
    rig.skip(2 * HOUR_MS);
    rig.restart(&[]);
    rig.run();
    rig.tick();
    rig.run();
    assert!(!is_known(&rig, ends));
    assert_eq!(rig.of(stays).deadline, Some(late));
    rig.live(HOUR_MS);
    rig.run();
    assert!(!is_known(&rig, stays));
}

#[test]
fn a_crash_during_the_end_of_a_session_does_not_bring_it_back() {
    let mut rig = rig();
    let deadline = at(&rig, MINUTE_MS, DeadlineAction::End);
    let (session, _) = session_with(&mut rig, deadline);
    rig.session_work(session);
    rig.pass(MINUTE_MS);
    assert_eq!(rig.count(kill), 1);
    rig.restart(&[]);
    assert!(rig.kernel.session(session).is_none_or(|view| view.status == SessionStatus::Ended));
    rig.run();
    assert!(!is_known(&rig, session));
    assert!(rig.losses(session).is_empty(), "its owner wanted it to end");
}

#[test]
fn idle_time_of_a_session_that_was_live_counts_from_the_restart() {
    let mut rig = rig();
    let (live, _) = session_with(&mut rig, idle(HOUR_MS, DeadlineAction::End));
    let (cold, _) = session_with(&mut rig, idle(2 * HOUR_MS, DeadlineAction::End));
    rig.stop(cold);
    rig.run();
    // It is in use until the server crashes: no record says so.
    rig.session_exec(live);
    rig.skip(50 * MINUTE_MS);
    rig.restart(&[]);
    rig.run();
    rig.live(59 * MINUTE_MS);
    assert!(is_known(&rig, live) && is_known(&rig, cold));
    rig.live(MINUTE_MS);
    assert!(!is_known(&rig, live));
    rig.live(10 * MINUTE_MS);
    assert!(!is_known(&rig, cold), "a restart does not extend the time of a cold one");
}

#[test]
fn a_new_deadline_counts_idle_time_from_now_and_a_removed_one_does_nothing() {
    let mut rig = rig();
    let (session, _) = rig.session();
    rig.live(20 * MINUTE_MS);
    let set = DeadlineChange::Set(idle(10 * MINUTE_MS, DeadlineAction::End));
    assert_eq!(change(&mut rig, session, set), Ok(Reply::Noted));
    rig.live(9 * MINUTE_MS);
    assert!(is_known(&rig, session));
    assert_eq!(change(&mut rig, session, DeadlineChange::Keep), Ok(Reply::Noted));
    assert!(rig.of(session).deadline.is_some());
    assert_eq!(change(&mut rig, session, DeadlineChange::Remove), Ok(Reply::Noted));
    rig.live(HOUR_MS);
    assert!(is_known(&rig, session));
}

#[test]
fn a_deadline_that_cannot_be_is_refused_and_changes_nothing() {
    let mut rig = rig();
    let (session, _) = rig.session();
    let past = Deadline { at: Some(rig.now.wall), ..at(&rig, 1, DeadlineAction::End) };
    let none = Deadline { at: None, ..past };
    for bad in [past, none] {
        let refused = change(&mut rig, session, DeadlineChange::Set(bad));
        assert_eq!(refused, Err(ErrorCode::InvalidArgument));
        let settings = SessionSettings { deadline: Some(bad), ..SessionSettings::default() };
        let (_, request) = rig.create_session_with(settings);
        assert_eq!(rig.refused(request), ErrorCode::InvalidArgument);
    }
    assert_eq!(rig.of(session).deadline, None);
}

#[test]
fn a_stop_that_is_in_progress_at_the_deadline_ends_first() {
    let mut rig = rig();
    let deadline = at(&rig, MINUTE_MS, DeadlineAction::End);
    let (session, _) = session_with(&mut rig, deadline);
    rig.session_work(session);
    let stop = rig.stop(session);
    rig.pass(MINUTE_MS);
    assert!(is_known(&rig, session));
    rig.run();
    assert!(rig.answer(stop).is_some());
    rig.tick();
    rig.run();
    assert!(!is_known(&rig, session));
}

#[test]
fn a_fork_has_the_deadline_of_its_parent() {
    let mut rig = rig();
    let deadline = at(&rig, HOUR_MS, DeadlineAction::End);
    let (session, _) = session_with(&mut rig, deadline);
    let (fork, _) = rig.fork(session);
    rig.run();
    assert_eq!(rig.of(fork).deadline, Some(deadline));
    rig.live(HOUR_MS);
    rig.run();
    assert!(!is_known(&rig, session) && !is_known(&rig, fork));
}

//! Evictions from the side of the session: one is void when its victim comes into use or cannot be
//! saved, and an evicted session comes back.

use model::lifecycle::ActiveCause;
use model::{EndCause, ErrorCode, SandboxState, SessionId, SessionStatus};

use super::rig::{
    DOCKER, NATIVE, Rig, delete_workspace, gone, kill, launch, persist, template, trouble,
};
use super::rig_steps::{Cases, tight, tight_deleting};
use crate::{Event, Outcome, Reply, UseKind, UseTarget};

/// What a session can do to keep its sandbox.
const COMES_BACK: Cases<fn(&mut Rig, SessionId)> = &[
    ("a turn", |rig, session| {
        rig.turn(session);
    }),
    ("an exec", |rig, session| {
        rig.use_of(UseTarget::Session(session), UseKind::Exec);
    }),
    ("a file call", |rig, session| {
        rig.use_of(UseTarget::Session(session), UseKind::Files);
    }),
    ("a resume", |rig, session| {
        rig.resume(session);
    }),
];

#[test]
fn a_victim_that_comes_into_use_is_spared_and_another_one_chosen() {
    for (what, comes_back) in COMES_BACK {
        let mut rig = Rig::with(tight(1000, 2), template(0, 9), NATIVE);
        let (first_session, first) = rig.waiting_session();
        let (_, second) = rig.waiting_session();
        let (_, request) = rig.create_session();
        assert_eq!(rig.targets(persist), [first], "{what}");
        comes_back(&mut rig, first_session);
        assert_eq!(rig.alive(first).ending, None, "{what}");
        assert_eq!(rig.targets(persist), [first, second], "{what}");
        // Its files are saved all the same; that must not kill it now.
        rig.finish_of(first, persist, Outcome::Done);
        rig.run_within_limits();
        rig.session_ready(request);
        assert_eq!(rig.terminations(first), [], "{what}");
        assert_eq!(rig.state(second), SandboxState::Cold, "{what}");
        assert_eq!(rig.status(first_session), SessionStatus::Active, "{what}");
    }
}

#[test]
fn a_victim_that_comes_into_use_with_no_other_in_sight_leaves_the_newcomer_to_its_deadline() {
    let mut rig = Rig::with(tight(1000, 1), template(0, 9), NATIVE);
    let (session, sandbox) = rig.waiting_session();
    let (_, request) = rig.create_session();
    let (_, turn) = rig.turn(session);
    rig.run_within_limits();
    assert_eq!(rig.state(sandbox), SandboxState::Running);
    rig.live(60_001);
    assert_eq!(rig.refused(request), ErrorCode::CapacityExhausted);
    rig.end_turn(session, turn);
    assert_eq!(rig.terminations(sandbox), []);
}

#[test]
fn a_turn_that_ends_in_time_makes_room_for_the_newcomer_after_all() {
    let mut rig = Rig::with(tight(1000, 1), template(0, 9), NATIVE);
    let (session, sandbox) = rig.waiting_session();
    let (_, request) = rig.create_session();
    let (_, turn) = rig.turn(session);
    rig.run_within_limits();
    rig.live(5_000);
    rig.end_turn(session, turn);
    rig.run_within_limits();
    rig.session_ready(request);
    assert_eq!(rig.terminations(sandbox), [(1, EndCause::Evicted)]);
}

#[test]
fn a_turn_that_comes_after_the_kill_was_sent_gets_its_sandbox_back_with_its_files() {
    let mut rig = Rig::with(tight(1000, 2), template(0, 9), NATIVE);
    let (first_session, first) = rig.waiting_session();
    let (_, second) = rig.waiting_session();
    let (_, newcomer) = rig.create_session();
    rig.finish_of(first, persist, Outcome::Done);
    assert_eq!(rig.targets(kill), [first]);
    let (turn, _) = rig.turn(first_session);
    rig.run_within_limits();
    rig.session_ready(newcomer);
    let ready = rig.session_ready(turn);
    assert_eq!((ready.sandbox, ready.generation.0), (first, 2));
    assert_eq!(rig.state(second), SandboxState::Cold);
    assert_eq!(rig.losses(first_session), []);
}

#[test]
fn a_victim_whose_files_cannot_be_saved_is_spared_and_another_one_chosen() {
    for outcome in [trouble(), Outcome::TimedOut] {
        let mut rig = Rig::with(tight(1000, 2), template(0, 9), NATIVE);
        let (first_session, first) = rig.waiting_session();
        let (_, second) = rig.waiting_session();
        let (_, request) = rig.create_session();
        rig.finish_of(first, persist, outcome);
        assert_eq!(rig.alive(first).ending, None);
        assert_eq!(rig.targets(persist), [second]);
        rig.run_within_limits();
        rig.session_ready(request);
        assert_eq!(rig.status(first_session), SessionStatus::Active);
        assert_eq!(rig.whole_turn(first_session).sandbox, first);
        assert_eq!(rig.terminations(first), []);
    }
}

#[test]
fn a_spared_victim_is_tried_again_after_a_while() {
    let mut rig = Rig::with(tight(1000, 1), template(0, 9), NATIVE);
    let (_, sandbox) = rig.waiting_session();
    let (_, request) = rig.create_session();
    rig.finish(persist, trouble());
    assert_eq!(rig.count(persist), 0, "not at once again");
    assert!(rig.pending(request));
    rig.live(10_000);
    rig.session_ready(request);
    assert_eq!(rig.state(sandbox), SandboxState::Cold);
}

#[test]
fn victim_that_dies_during_its_save_is_evicted_all_the_same() {
    let mut rig = Rig::with(tight(1000, 1), template(0, 9), NATIVE);
    let (session, sandbox) = rig.waiting_session();
    let (_, request) = rig.create_session();
    assert_eq!(rig.count(persist), 1);
    rig.dies(sandbox);
    rig.run_within_limits();
    rig.session_ready(request);
    assert_eq!(rig.terminations(sandbox), [(1, EndCause::Crash)]);
    assert_eq!(rig.losses(session), [], "its workspace outlives it");
}

#[test]
fn a_victim_without_changes_is_not_saved_again() {
    let mut rig = Rig::with(tight(1000, 1), template(0, 9), NATIVE);
    let (session, sandbox) = rig.waiting_session();
    rig.pause(session);
    rig.run();
    let (_, request) = rig.create_session();
    assert_eq!((rig.count(persist), rig.targets(kill)), (0, vec![sandbox]));
    rig.run_within_limits();
    rig.session_ready(request);
    assert_eq!(rig.losses(session), []);
}

#[test]
fn an_evicted_session_is_paused_and_comes_back_with_its_id_and_files() {
    for traits in [NATIVE, DOCKER] {
        let mut rig = Rig::with(tight(1000, 1), template(0, 9), traits);
        let (session, sandbox) = rig.waiting_session();
        let (newcomer, request) = rig.create_session();
        rig.run_within_limits();
        rig.session_ready(request);
        assert_eq!(rig.status(session), SessionStatus::Paused);
        let view = rig.of(session);
        assert_eq!((view.sandbox_id, view.state_lost), (None, false));
        assert_eq!(rig.alive(sandbox).slept, Some(EndCause::Evicted));
        assert_eq!(rig.terminations(sandbox), [(1, EndCause::Evicted)]);
        let (turn, _) = rig.turn(session);
        rig.finish(kill, Outcome::Done);
        let launch = &rig.launches()[0];
        assert_eq!((launch.sandbox, launch.restore), (sandbox, true));
        rig.run_within_limits();
        let ready = rig.session_ready(turn);
        assert_eq!((ready.sandbox, ready.generation.0), (sandbox, 2));
        let last = *rig.actives(session).last().unwrap();
        assert_eq!((last.cause, last.state_lost), (ActiveCause::Resumed, false));
        assert_eq!(rig.status(newcomer), SessionStatus::Paused, "which gave way in its turn");
        assert_eq!(rig.kernel.stats().resume_cold_hits, 1);
    }
}

#[test]
fn where_files_go_with_entries_an_evicted_cold_one_says_so() {
    let mut rig = Rig::with(tight_deleting(1, 1), template(0, 9), NATIVE);
    let (session, sandbox) = rig.waiting_session();
    rig.live(3_600_000);
    assert_eq!(rig.state(sandbox), SandboxState::Cold);
    let (newcomer, request) = rig.create_session();
    assert_eq!(rig.losses(session), [sandbox], "published at once");
    assert_eq!(rig.count(delete_workspace), 1);
    assert_eq!(rig.store.doomed.len(), 1, "journalled before it is done");
    rig.run_within_limits();
    rig.session_ready(request);
    assert!(rig.store.doomed.is_empty());
    assert_eq!(rig.ended(sandbox).cause, EndCause::Evicted);
    assert_eq!(rig.terminations(sandbox), [(1, EndCause::Idle)], "its process ended before that");
    assert!(rig.of(session).state_lost);
    rig.end(newcomer);
    rig.run();
    let (turn, _) = rig.turn(session);
    assert!(!rig.launches()[0].restore, "there is nothing to restore");
    rig.run_within_limits();
    rig.session_ready(turn);
    let last = *rig.actives(session).last().unwrap();
    assert!(last.state_lost && last.sandbox != sandbox && last.generation.0 == 2);
    assert!(!rig.of(session).state_lost);
}

#[test]
fn a_workspace_that_cannot_be_deleted_is_tried_until_it_is() {
    let mut rig = Rig::with(tight(1, 1), template(0, 9), NATIVE);
    let (session, _) = rig.cold_session();
    let ended = rig.end(session);
    assert_eq!(rig.answered(ended), Reply::Ended, "the answer does not wait for the disk");
    rig.finish(delete_workspace, trouble());
    assert_eq!((rig.store.doomed.len(), rig.count(delete_workspace)), (1, 0));
    rig.pass(1_000);
    rig.finish(delete_workspace, gone());
    rig.live(60_000);
    assert!(rig.store.doomed.is_empty());
}

#[test]
fn a_cold_one_that_is_about_to_wake_is_not_evicted_for_someone_else() {
    let mut rig = Rig::with(tight(2, 1), template(0, 9), NATIVE);
    let (waking, cold) = rig.cold_session();
    let (_, waiting) = rig.waiting_session();
    let resume = rig.resume(waking);
    assert_eq!(rig.targets(persist), [waiting]);
    rig.session_wait_ms = Some(0);
    let (_, refused) = rig.create_session();
    assert_eq!(rig.refused(refused), ErrorCode::CapacityExhausted);
    rig.run_within_limits();
    assert_eq!(rig.session_ready(resume).sandbox, cold);
    assert_eq!(rig.losses(waking), []);
    assert_eq!(rig.count(launch), 0);
}

#[test]
fn a_fork_takes_the_entry_of_the_least_recent_cold_one() {
    let mut rig = Rig::with(tight(3, 9), template(0, 9), NATIVE);
    let (loser, first) = rig.cold_session();
    let (_, second) = rig.cold_session();
    let (parent, _) = rig.waiting_session();
    let (_, forked) = rig.fork(parent);
    assert_eq!(rig.ended(first).cause, EndCause::Evicted);
    assert_eq!(rig.losses(loser), []);
    rig.run_within_limits();
    assert!(matches!(rig.answered(forked), Reply::Forked { .. }));
    assert_eq!(rig.state(second), SandboxState::Cold);
}

#[test]
fn refused_fork_costs_no_session_its_files() {
    let mut rig = Rig::with(tight(2, 9), template(0, 9), NATIVE);
    let (other, cold) = rig.cold_session();
    let (parent, _) = rig.waiting_session();
    let request = rig.ask(|request| Event::ForkRequested { request, parent, session: other });
    assert_eq!(rig.refused(request), ErrorCode::IdConflict);
    assert_eq!((rig.state(cold), rig.losses(other)), (SandboxState::Cold, vec![]));
}

/// A fork does not wait for others to be removed: its files are where they are, and it can be asked
/// for again.
#[test]
fn a_fork_is_refused_where_no_entry_is_free_or_cold() {
    let mut rig = Rig::with(tight(2, 9), template(1, 9), NATIVE);
    let (parent, _) = rig.waiting_session();
    rig.run();
    assert_eq!(rig.kernel.stats().warm, 1);
    let (_, forked) = rig.fork(parent);
    assert_eq!(rig.refused(forked), ErrorCode::CapacityExhausted);
    rig.run_within_limits();
    assert_eq!(rig.kernel.stats().warm, 1);
}

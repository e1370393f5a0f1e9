//! Forks: a new session with a copy of the files, which are protected during the copy.

use model::lifecycle::{ActiveCause, SessionChange, TurnOutcome};
use model::{
    ErrorCode, InstanceId, LifecycleEvent, NodeConfig, SandboxState, SessionId, SessionStatus,
    WorkspaceId,
};

use super::rig::{
    DOCKER, NATIVE, Rig, copy, delete_workspace, freeze, gone, launch, template, trouble,
};
use crate::{Action, DeathCause, Event, Outcome, Reply, UseKind, UseTarget, WhenBusy};

/// A node on which only sessions have sandboxes.
fn alone() -> Rig {
    Rig::with_pool(template(0, 1), NATIVE)
}

fn changes(rig: &Rig, wanted: SessionId) -> Vec<SessionChange> {
    let change = |event: &LifecycleEvent| {
        let LifecycleEvent::SessionChanged { session, change } = event else { return None };
        (*session == wanted).then_some(*change)
    };
    rig.published.iter().filter_map(change).collect()
}

/// From where, and in which instance, the copy in progress takes its files, and where to.
fn copying(rig: &Rig) -> (WorkspaceId, Option<InstanceId>, WorkspaceId) {
    let of = |action: &Action| {
        let Action::CopyWorkspace { from, instance, to, .. } = action else { return None };
        Some((*from, *instance, *to))
    };
    rig.effects.iter().find_map(|effect| of(&effect.action)).expect("a copy in progress")
}

/// The sandbox of a session, live or cold.
fn sandbox_of(rig: &Rig, session: SessionId) -> model::SandboxId {
    rig.store.sessions[&session].sandbox.expect("a session with a sandbox")
}

#[test]
fn a_fork_has_a_copy_of_the_files_of_a_live_or_cold_parent() {
    for cold in [false, true] {
        let mut rig = alone();
        let (parent, sandbox) = if cold {
            rig.slept_session()
        } else {
            let (parent, sandbox) = rig.session();
            rig.session_work(parent);
            (parent, sandbox)
        };
        let live = (!cold).then(|| rig.instance(sandbox));
        let (fork, request) = rig.fork_begun(parent);
        assert!(rig.pending(request), "it has no files yet");
        let (from, instance, to) = copying(&rig);
        assert_eq!((from, instance), (rig.store.sandboxes[&sandbox].workspace, live));
        rig.finish(copy, Outcome::Done);
        assert_eq!(rig.answered(request), Reply::Forked { session: fork });
        assert_eq!(changes(&rig, fork), [SessionChange::Forked]);
        assert_eq!(rig.status(fork), SessionStatus::Paused);
        let (turn, _) = rig.turn(fork);
        let launch = rig.launching();
        assert_eq!((launch.workspace, launch.restore), (to, true));
        rig.run();
        let ready = rig.session_ready(turn);
        assert_ne!(ready.sandbox, sandbox);
        assert_eq!(rig.last_active(fork).cause, ActiveCause::Resumed);
        assert_eq!(rig.kernel.session(parent).unwrap().generation.0, 1, "it went on undisturbed");
    }
}

#[test]
fn a_message_to_a_fork_waits_for_its_files() {
    let mut rig = alone();
    let (parent, _) = rig.slept_session();
    let (fork, _) = rig.fork(parent);
    let (turn, _) = rig.turn(fork);
    let (exec, _) = rig.use_of(UseTarget::Session(fork), UseKind::Exec);
    assert_eq!((rig.count(launch), rig.pending(turn), rig.pending(exec)), (0, true, true));
    rig.finish(copy, Outcome::Done);
    assert!(rig.launching().restore);
    rig.run();
    assert_eq!(rig.granted(exec).instance, rig.session_ready(turn).instance);
}

#[test]
fn a_parent_is_neither_swept_nor_evicted_while_it_is_copied() {
    let config = NodeConfig { max_sandboxes: 3, ..NodeConfig::default() };
    let mut rig = Rig::with(config, template(0, 5), NATIVE);
    let (cold, _) = rig.slept_session();
    let (live, sandbox) = rig.session();
    rig.session_work(live);
    rig.fork(live);
    let (_, full) = rig.fork(cold);
    assert_eq!(rig.refused(full), ErrorCode::CapacityExhausted, "its own source is no room");
    rig.effects.clear();
    // The copy takes long, but not longer than allowed.
    rig.pass(59_000);
    assert_ne!(rig.state(sandbox), SandboxState::Cold);
    let (_, newcomer) = rig.create_session();
    rig.run();
    assert_eq!(rig.of(cold).sandbox_id, None);
    assert!(rig.store.sessions[&cold].files.is_some(), "what is not being copied gives way");
    assert_eq!(rig.state(sandbox), SandboxState::Waiting);
    assert!(rig.loss_reasons(live).is_empty() && rig.loss_reasons(cold).is_empty());
    rig.session_ready(newcomer);
}

#[test]
fn sweep_ends_a_parent_when_its_copy_has_ended() {
    let mut rig =
        Rig::with_pool(model::Template { idle_timeout_ms: Some(1_000), ..template(0, 1) }, DOCKER);
    let (parent, sandbox) = rig.session();
    rig.session_work(parent);
    rig.pass(19_000);
    rig.fork(parent);
    let held = rig.effects.clone();
    rig.effects.clear();
    rig.pass(30_000);
    assert_ne!(rig.state(sandbox), SandboxState::Cold, "a sweep came by");
    for effect in held {
        rig.end_effect(&effect, Outcome::Done);
    }
    rig.live(120_000);
    assert_eq!(rig.state(sandbox), SandboxState::Cold);
}

#[test]
fn a_parent_is_not_frozen_while_its_guest_gives_its_files_out() {
    let mut rig = Rig::with_pool(template(0, 1), DOCKER);
    let (parent, sandbox) = rig.session();
    rig.session_work(parent);
    rig.fork(parent);
    let held = rig.effects.clone();
    rig.effects.clear();
    rig.pass(15_000);
    let paused = rig.pause(parent);
    assert_eq!(rig.answered(paused), Reply::Paused);
    assert_eq!(rig.count(freeze), 0, "its guest is needed");
    for effect in held {
        rig.end_effect(&effect, Outcome::Done);
    }
    rig.live(20_000);
    assert!(rig.frozen(sandbox), "it rests as soon as it may");
}

#[test]
fn failed_copy_is_reported_and_leaves_no_fork() {
    for outcome in [Some(trouble()), Some(Outcome::TimedOut), None] {
        let mut rig = alone();
        let (parent, sandbox) = rig.slept_session();
        let (fork, request) = rig.fork(parent);
        let (_, _, to) = copying(&rig);
        let (turn, id) = rig.turn(fork);
        match outcome {
            Some(outcome) => {
                rig.finish(copy, outcome);
            }
            None => rig.pass(60_000),
        }
        assert_eq!(rig.refused(request), ErrorCode::PersistFailed);
        assert_eq!(rig.refused(turn), ErrorCode::PersistFailed);
        assert_eq!(rig.turn_outcomes(id), [TurnOutcome::NotStarted]);
        assert_eq!(rig.kernel.session(fork), None);
        assert_eq!(rig.kernel.sandboxes().len(), 1);
        let deleted = rig.finish(delete_workspace, Outcome::Done);
        assert!(matches!(deleted.action, Action::DeleteWorkspace { workspace } if workspace == to));
        assert!(rig.loss_reasons(fork).is_empty(), "it never had any");
        assert_eq!(rig.resumed(parent).sandbox, sandbox);
        rig.live(3_600_000);
        assert_eq!(rig.state(sandbox), SandboxState::Cold, "nothing holds the parent");
    }
}

#[test]
fn a_parent_that_ends_while_it_is_copied_is_no_trouble_with_the_disk() {
    // The sandbox died, and the runtime reports it first.
    let mut rig = alone();
    let (parent, _) = rig.session();
    rig.session_work(parent);
    let (fork, request) = rig.fork_begun(parent);
    rig.finish(copy, gone());
    let refusal = rig.answer(request).unwrap().as_ref().unwrap_err();
    assert_eq!((refusal.code, refusal.code.status()), (ErrorCode::SessionBusy, 409));
    assert_eq!(refusal.code.retry(), model::Retry::Later);
    assert_eq!(rig.kernel.session(fork), None);
    // Its owner ends it, and files go while they are read.
    let mut rig = alone();
    let (parent, _) = rig.session();
    rig.session_work(parent);
    let (_, request) = rig.fork(parent);
    rig.end(parent);
    rig.finish(copy, trouble());
    assert_eq!(rig.refused(request), ErrorCode::SessionBusy);
}

#[test]
fn a_turn_queued_behind_another_in_a_fork_that_fails_ends_too() {
    let mut rig = alone();
    let (parent, _) = rig.slept_session();
    let (fork, request) = rig.fork(parent);
    let (_, first) = rig.turn(fork);
    let (_, second) = rig.turn_with(fork, WhenBusy::Queue);
    rig.finish(copy, trouble());
    rig.run();
    assert_eq!(rig.refused(request), ErrorCode::PersistFailed);
    assert_eq!((rig.turn_outcomes(first).len(), rig.turn_outcomes(second).len()), (1, 1));
}

#[test]
fn a_fork_may_be_forked_and_none_is_silently_empty() {
    let mut rig = alone();
    let (parent, _) = rig.slept_session();
    let (fork, _) = rig.fork(parent);
    rig.finish(copy, Outcome::Done);
    let from = rig.store.sandboxes[&sandbox_of(&rig, fork)].workspace;
    let (second, _) = rig.fork(fork);
    assert_eq!(copying(&rig).0, from);
    let (third, early) = rig.fork(second);
    rig.run();
    // A copy of files that are not there yet can only be refused, or wait for them.
    if rig.answer(early).is_some_and(Result::is_ok) {
        assert!(rig.store.sandboxes[&sandbox_of(&rig, third)].has_files);
    } else {
        assert_eq!(rig.refused(early), ErrorCode::SessionBusy);
    }
}

#[test]
fn a_session_without_files_is_forked_at_once() {
    let mut rig = alone();
    let (parent, sandbox) = rig.session();
    rig.delete(sandbox);
    rig.run();
    let (fork, request) = rig.fork(parent);
    assert_eq!(rig.answered(request), Reply::Forked { session: fork });
    assert_eq!((rig.count(copy), rig.kernel.sandboxes().len()), (0, 0));
    let ready = rig.whole_turn(fork);
    assert!(ready.lost().is_some(), "files that its parent lost are missing here, too");
}

#[test]
fn an_ended_session_cannot_be_forked() {
    let mut rig = alone();
    let (parent, _) = rig.session();
    rig.session_work(parent);
    rig.end(parent);
    rig.run();
    let (fork, request) = rig.fork(parent);
    assert_eq!(rig.refused(request), ErrorCode::SessionEnded);
    assert_eq!((rig.kernel.session(fork), rig.count(copy)), (None, 0));
    assert!(rig.store.sessions.is_empty() && rig.store.sandboxes.is_empty());
}

#[test]
fn forks_take_entries_and_cold_sandboxes_are_evicted() {
    let config = NodeConfig { max_sandboxes: 3, ..NodeConfig::default() };
    let mut rig = Rig::with(config, template(0, 5), NATIVE);
    let (oldest, _) = rig.slept_session();
    let (older, sandbox) = rig.slept_session();
    let (parent, _) = rig.session();
    rig.session_work(parent);
    let (_, request) = rig.fork(parent);
    assert!(rig.store.sessions[&oldest].files.is_some(), "its files stay with it");
    rig.run();
    assert!(matches!(rig.answered(request), Reply::Forked { .. }));
    assert_eq!(rig.state(sandbox), SandboxState::Cold);
    assert!(rig.loss_reasons(oldest).is_empty() && rig.loss_reasons(older).is_empty());
    assert_eq!(rig.kernel.sandboxes().len(), 3);
}

#[test]
fn refused_fork_costs_no_session_its_files() {
    let config = NodeConfig { max_sandboxes: 2, ..NodeConfig::default() };
    let mut rig = Rig::with(config, template(0, 5), NATIVE);
    let (bystander, _) = rig.slept_session();
    let (parent, sandbox) = rig.session();
    rig.session_work(parent);
    let request = rig.ask(|request| Event::ForkRequested { request, parent, session: bystander });
    assert_eq!(rig.refused(request), ErrorCode::IdConflict);
    assert!(rig.loss_reasons(bystander).is_empty());
    rig.live(3_600_000);
    assert_eq!(rig.state(sandbox), SandboxState::Cold, "nothing holds the parent");
}

#[test]
fn a_fork_whose_sandbox_is_deleted_meanwhile_is_off_and_lets_go_of_its_parent() {
    let mut rig = alone();
    let (parent, sandbox) = rig.session();
    rig.session_work(parent);
    let (fork, request) = rig.fork(parent);
    let copy_of = sandbox_of(&rig, fork);
    let deleted = rig.delete(copy_of);
    rig.run();
    assert_eq!(rig.answered(deleted), Reply::Gone);
    assert_eq!(rig.refused(request), ErrorCode::Aborted);
    assert_eq!(rig.kernel.session(fork), None);
    rig.live(3_600_000);
    assert_eq!(rig.state(sandbox), SandboxState::Cold, "nothing holds the parent");
}

#[test]
fn a_copy_goes_on_when_the_parent_dies_or_is_renamed() {
    let mut rig = alone();
    let (parent, sandbox) = rig.session();
    rig.session_work(parent);
    let (fork, request) = rig.fork(parent);
    rig.dies_of(sandbox, DeathCause::Crash);
    rig.killed();
    rig.finish(copy, Outcome::Done);
    assert_eq!(rig.answered(request), Reply::Forked { session: fork });
    assert_ne!(rig.whole_turn(parent).sandbox, sandbox);
    rig.live(3_600_000);
    let renamed = sandbox_of(&rig, parent);
    assert_eq!(rig.state(renamed), SandboxState::Cold, "nothing holds the parent");
}

#[test]
fn a_fork_that_was_given_up_during_its_copy_is_not_back_after_a_restart() {
    let mut rig = Rig::with_pool(template(0, 2), NATIVE);
    let (parent, _) = rig.slept_session();
    let (fork, _) = rig.fork(parent);
    let copy = rig.store.sessions[&fork].sandbox.expect("a cold sandbox to copy into");
    rig.delete(copy);
    rig.restart(&[]);
    rig.run();
    assert!(rig.kernel.session(fork).is_none());
    assert!(!rig.store.sessions.contains_key(&fork) && rig.store.doomed.is_empty());
}

#[test]
fn a_fork_given_up_while_a_restart_copies_it_again_is_not_back_either() {
    let mut rig = Rig::with_pool(template(0, 2), NATIVE);
    let (parent, _) = rig.slept_session();
    let (fork, _) = rig.fork(parent);
    let copy = rig.store.sessions[&fork].sandbox.expect("a cold sandbox to copy into");
    rig.restart(&[]);
    rig.delete(copy);
    rig.run();
    assert!(rig.kernel.session(fork).is_none());
    assert!(!rig.store.sessions.contains_key(&fork) && rig.store.doomed.is_empty());
}

#[test]
fn a_use_of_a_fork_that_a_restart_copies_again_begins_when_the_copy_is_there() {
    let mut rig = Rig::with_pool(template(0, 2), NATIVE);
    let (parent, _) = rig.slept_session();
    let (fork, _) = rig.fork(parent);
    rig.restart(&[]);
    let (request, _) = rig.use_of(UseTarget::Session(fork), UseKind::Exec);
    assert!(rig.pending(request));
    rig.run();
    assert!(rig.store.sandboxes.contains_key(&rig.granted(request).sandbox));
}

#[test]
fn a_copy_that_a_restart_begins_again_protects_its_source_too() {
    let config = NodeConfig { max_sandboxes: 3, ..NodeConfig::default() };
    let mut rig = Rig::with(config, template(0, 5), NATIVE);
    let (parent, _) = rig.slept_session();
    let (bystander, _) = rig.slept_session();
    let (fork, _) = rig.fork(parent);
    rig.restart(&[]);
    assert_eq!(rig.count(copy), 1);
    rig.create_session();
    assert!(rig.store.sessions[&parent].files.is_none(), "it is being copied");
    assert!(rig.store.sessions[&bystander].files.is_some(), "so this one gave way");
    rig.run();
    assert_eq!(rig.whole_turn(fork).session, fork);
}

//! Files that no client wants for long, and files that are missing when a client does.

use std::sync::Arc;

use model::{
    ClaimSettings, EndCause, ErrorCode, LifecycleEvent, NodeConfig, SandboxState, SeedId,
    SessionId, SessionStatus, TerminatedReason,
};

use super::rig::{
    DOCKER, NATIVE, ON_DISK, Rig, archive, claim, copy, delete_workspace, freeze, kill, launch,
    persist, template, trouble,
};
use crate::{Action, DeathCause, Event, Failure, FailureKind, Outcome, Reply, SessionSettings};

const DAY_MS: u64 = 86_400_000;

/// From when a session sleeps, an hour after it was used, until its files are a day old.
const UNTIL_OLD_MS: u64 = DAY_MS - 3_600_000 + 1_000;

fn node(archive_after_ms: Option<u64>, prune_after_ms: Option<u64>) -> Rig {
    let config = NodeConfig { archive_after_ms, prune_after_ms, ..NodeConfig::default() };
    Rig::with(config, template(0, 1), ON_DISK)
}

fn files_gone() -> Outcome {
    Outcome::Failed(Failure { kind: FailureKind::FilesGone, detail: "no such files".into() })
}

fn lost(rig: &Rig) -> Vec<TerminatedReason> {
    let lost = |event: &LifecycleEvent| match event {
        LifecycleEvent::StateLost { reason, .. } => Some(*reason),
        _ => None,
    };
    rig.published.iter().filter_map(lost).collect()
}

fn is_archived(rig: &Rig, session: SessionId) -> bool {
    let sandbox = rig.store.sessions[&session].sandbox.expect("a sandbox");
    rig.store.sandboxes[&sandbox].archived
}

#[test]
fn cold_files_are_archived_and_come_back() {
    let mut rig = node(Some(DAY_MS), None);
    let (session, sandbox) = rig.slept_session();
    rig.pass(DAY_MS - 3_600_000 - 1);
    assert_eq!(rig.count(archive), 0, "not before its time");
    rig.pass(1_000);
    let effect = rig.finish(archive, Outcome::Done);
    let workspace = rig.store.sandboxes[&sandbox].workspace;
    assert!(matches!(effect.action, Action::ArchiveWorkspace { workspace: it } if it == workspace));
    assert!(is_archived(&rig, session));
    rig.pass(10 * DAY_MS);
    assert_eq!((rig.count(archive), lost(&rig).len()), (0, 0), "once is enough");
    rig.turn(session);
    assert!(rig.launching().restore);
    assert!(!is_archived(&rig, session), "a launch takes them");
    rig.run();
    assert!(!rig.last_active(session).state_lost);
}

#[test]
fn session_that_wants_its_files_cancels_the_archive() {
    let mut rig = node(Some(DAY_MS), None);
    let (session, _) = rig.slept_session();
    rig.pass(UNTIL_OLD_MS);
    assert_eq!(rig.count(archive), 1);
    let (turn, _) = rig.turn(session);
    assert_eq!(rig.count(launch), 1, "a launch does not wait for an archive");
    rig.finish(archive, Outcome::Done);
    assert!(!is_archived(&rig, session), "what was called off counts for nothing");
    rig.run();
    rig.session_ready(turn);
}

#[test]
fn fork_that_copies_files_cancels_the_archive() {
    let mut rig = node(Some(DAY_MS), None);
    let (parent, _) = rig.slept_session();
    rig.pass(UNTIL_OLD_MS);
    assert_eq!(rig.count(archive), 1);
    rig.fork(parent);
    rig.finish(archive, Outcome::Done);
    assert!(!is_archived(&rig, parent));
    rig.pass(1_000);
    assert_eq!((rig.count(archive), rig.count(copy)), (0, 1), "not while it is copied");
    rig.finish(copy, Outcome::Done);
    rig.pass(1_000);
    assert_eq!(rig.count(archive), 1);
}

#[test]
fn only_files_on_disk_are_archived_and_only_where_that_is_wanted() {
    for (after_ms, traits) in [(None, ON_DISK), (Some(0), ON_DISK), (Some(1_000), NATIVE)] {
        let config = NodeConfig { archive_after_ms: after_ms, ..NodeConfig::default() };
        let mut rig = Rig::with(config, template(0, 1), traits);
        rig.slept_session();
        rig.pass(20 * DAY_MS);
        assert_eq!((rig.count(archive), lost(&rig).len()), (0, 0), "{after_ms:?} {traits:?}");
    }
}

#[test]
fn failed_archive_keeps_the_files_and_is_tried_again() {
    for outcome in [Some(trouble()), None] {
        let mut rig = node(Some(DAY_MS), None);
        let (session, _) = rig.slept_session();
        rig.pass(UNTIL_OLD_MS);
        if let Some(outcome) = outcome {
            rig.finish(archive, outcome);
        } else {
            rig.effects.clear();
            rig.pass(NodeConfig::default().deadlines.workspace_ms * 10);
        }
        rig.pass(590_000);
        assert_eq!((rig.count(archive), is_archived(&rig, session)), (0, false));
        rig.pass(10_000);
        assert_eq!(rig.count(archive), 1);
    }
}

#[test]
fn archives_run_a_few_at_a_time() {
    let mut rig = node(Some(DAY_MS), None);
    for _ in 0..5 {
        let (session, _) = rig.session();
        rig.session_work(session);
    }
    rig.live(3_600_000);
    rig.pass(UNTIL_OLD_MS);
    for left in [3, 2, 1, 0, 0] {
        assert!(rig.count(archive) <= 2, "{left} are left");
        rig.finish(archive, Outcome::Done);
        rig.pass(2_000);
    }
    assert_eq!(rig.count(archive), 0);
    assert_eq!(rig.store.sandboxes.values().filter(|record| record.archived).count(), 5);
}

#[test]
fn files_are_pruned_by_the_rules_and_the_loss_is_reported() {
    let mut rig = node(Some(DAY_MS), Some(3 * DAY_MS));
    let (session, sandbox) = rig.slept_session();
    rig.live(3 * DAY_MS - 3_600_000 - 1_000);
    assert!(is_archived(&rig, session) && lost(&rig).is_empty());
    rig.pass(2_000);
    assert_eq!(lost(&rig), [TerminatedReason::Policy]);
    assert_eq!(rig.end_cause(sandbox), EndCause::Pruned);
    assert_eq!(rig.count(delete_workspace), 1, "archive and all");
    assert_eq!(rig.status(session), SessionStatus::Paused);
    rig.run();
    let (turn, _) = rig.turn(session);
    assert!(!rig.launching().restore);
    rig.run();
    assert!(rig.session_ready(turn).lost().is_some());
    assert!(rig.last_active(session).state_lost);
    assert_eq!(lost(&rig).len(), 1, "once");
}

#[test]
fn the_age_of_files_counts_over_restarts_and_jumps_of_the_clock() {
    let mut rig = node(Some(DAY_MS), Some(3 * DAY_MS));
    rig.slept_session();
    rig.pass(DAY_MS / 2);
    rig.restart(&[]);
    assert_eq!(rig.count(archive), 0);
    rig.pass(UNTIL_OLD_MS - DAY_MS / 2);
    assert_eq!(rig.count(archive), 1);
    // Nothing is known of what became of it: it is done again.
    rig.restart(&[]);
    rig.pass(1);
    assert_eq!(rig.count(archive), 1);
    rig.now.wall = rig.now.wall.plus(3 * DAY_MS);
    rig.tick();
    rig.tick();
    assert_eq!(lost(&rig), [TerminatedReason::Policy], "while it was being archived");
}

#[test]
fn archive_in_progress_does_not_prevent_deletion_or_eviction() {
    let mut rig = node(Some(DAY_MS), None);
    let (_, sandbox) = rig.slept_session();
    rig.pass(UNTIL_OLD_MS);
    assert_eq!(rig.count(archive), 1);
    let request = rig.ask(|request| Event::DeleteRequested { request, sandbox });
    assert_eq!(rig.answered(request), Reply::Gone);
    assert_eq!(rig.count(delete_workspace), 1);
    rig.run();

    let config = NodeConfig { max_sandboxes: 1, ..NodeConfig::default() };
    let mut rig = Rig::with(config, template(0, 1), ON_DISK);
    let (_, cold) = rig.slept_session();
    rig.pass(UNTIL_OLD_MS);
    assert_eq!(rig.count(archive), 1);
    let (_, other) = rig.session();
    assert_eq!(rig.end_cause(cold), EndCause::Evicted);
    assert_eq!(rig.state(other), SandboxState::Warm);
}

#[test]
fn session_whose_files_are_gone_hears_of_it_and_continues() {
    let mut rig = node(None, None);
    let (session, sandbox) = rig.slept_session();
    let (turn, _) = rig.turn(session);
    assert!(rig.launching().restore);
    rig.finish(launch, files_gone());
    assert!(rig.pending(turn), "it gets another one");
    let killed = rig.finish(kill, Outcome::Done);
    assert!(matches!(killed.action, Action::Kill { workspace: Some(_), .. }), "what is left goes");
    assert_eq!(
        (rig.end_cause(sandbox), lost(&rig)),
        (EndCause::FilesGone, vec![TerminatedReason::Crash])
    );
    assert!(!rig.launching().restore);
    rig.run();
    assert!(rig.session_ready(turn).lost().is_some());
}

#[test]
fn files_in_memory_come_back_if_they_were_saved() {
    // Never used, nothing to save: nothing to come back to, and nothing lost.
    let mut rig = Rig::with_pool(template(0, 1), DOCKER);
    let (session, sandbox) = rig.session();
    rig.live(3_600_000);
    assert_eq!(rig.state(sandbox), SandboxState::Cold);
    rig.turn(session);
    assert!(!rig.launching().restore);
    rig.run();
    assert!(!rig.last_active(session).state_lost && lost(&rig).is_empty());

    // Used and saved.
    let mut rig = Rig::with_pool(template(0, 1), DOCKER);
    let (session, _) = rig.slept_session();
    rig.turn(session);
    assert!(rig.launching().restore);

    // Used, never saved, and dead.
    let mut rig = Rig::with_pool(template(0, 1), DOCKER);
    let (session, sandbox) = rig.session();
    rig.session_work(session);
    rig.die(rig.instance(sandbox), DeathCause::Crash);
    rig.run();
    assert_eq!(lost(&rig), [TerminatedReason::Crash]);
    rig.turn(session);
    assert!(!rig.launching().restore);

    // A fork of what was never saved has what is there now.
    let mut rig = Rig::with_pool(template(0, 1), DOCKER);
    let (session, _) = rig.session();
    rig.session_work(session);
    let (fork, _) = rig.fork(session);
    rig.finish(copy, Outcome::Done);
    rig.turn(fork);
    assert!(rig.launching().restore);
}

#[test]
fn failed_save_keeps_the_sandbox_or_reports_the_loss() {
    let mut rig = Rig::with_pool(template(0, 1), DOCKER);
    let (session, sandbox) = rig.session();
    rig.session_work(session);
    let stopped = rig.stop(session);
    rig.finish(persist, files_gone());
    assert_eq!(rig.refused(stopped), ErrorCode::PersistFailed);
    assert_eq!((rig.count(kill), rig.state(sandbox)), (0, SandboxState::Waiting));
    assert_eq!(lost(&rig), []);

    rig.shut_down(0);
    rig.finish(persist, files_gone());
    assert_eq!((rig.count(persist), rig.count(kill)), (0, 1), "it would be no use to try again");
    rig.run();
    assert_eq!(lost(&rig), [TerminatedReason::Shutdown]);
    rig.restart(&[]);
    rig.turn(session);
    assert!(rig.launching().restore, "what could be saved is there");
}

#[test]
fn a_guest_that_is_needed_to_save_is_not_frozen_meanwhile() {
    let mut rig = Rig::with_pool(template(0, 1), DOCKER);
    let (session, _) = rig.session();
    rig.session_work(session);
    let paused = rig.pause(session);
    assert_eq!(rig.answered(paused), Reply::Paused, "it does not wait for that");
    assert_eq!((rig.count(persist), rig.count(freeze)), (1, 0));
    rig.pass(20_000);
    assert_eq!(rig.count(freeze), 0);
    rig.finish(persist, Outcome::Done);
    rig.pass(1);
    assert_eq!(rig.count(freeze), 1);

    // Where the host can save, nothing waits.
    let mut rig = node(None, None);
    let (session, _) = rig.session();
    rig.session_work(session);
    let paused = rig.pause(session);
    assert_eq!((rig.count(persist), rig.count(freeze), rig.pending(paused)), (1, 1, true));
    rig.finish(freeze, Outcome::Done);
    assert_eq!(rig.answered(paused), Reply::Paused);
    let durable = |event: &LifecycleEvent| matches!(event, LifecycleEvent::WorkspaceDurable { .. });
    assert!(!rig.published.iter().any(durable));
    rig.finish(persist, Outcome::Done);
    assert!(rig.published.iter().any(durable));
}

#[test]
fn files_that_come_with_a_claim_have_time_to_arrive() {
    let deadlines = NodeConfig::default().deadlines;
    for (pool_size, seed) in [(1, true), (1, false), (0, true), (0, false)] {
        let mut rig = Rig::with_pool(template(pool_size, 1), ON_DISK);
        let seed = seed.then(|| SeedId::from_bytes([7; 32]));
        let settings = ClaimSettings { seed, ..ClaimSettings::default() };
        rig.create_session_with(SessionSettings {
            claim: Some(Arc::new(settings)),
            ..SessionSettings::default()
        });
        let wanted = if pool_size == 1 { claim } else { launch };
        let effect = rig.effects.iter().find(|effect| wanted(&effect.action)).expect("it comes");
        let ready_ms = template(0, 1).ready_timeout_ms;
        let expected_ms = match (pool_size, seed) {
            (1, None) => deadlines.claim_ms,
            (1, Some(_)) => deadlines.workspace_ms,
            (_, None) => ready_ms,
            (_, Some(_)) => ready_ms + deadlines.workspace_ms,
        };
        assert_eq!(effect.deadline.since(rig.now.mono), expected_ms, "{pool_size} {seed:?}");
        assert_eq!(rig.kernel.seeds().len(), usize::from(seed.is_some()));
    }
}

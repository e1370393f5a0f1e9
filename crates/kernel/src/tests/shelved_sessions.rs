//! Shelved sessions: a limit on entries takes the entry, never the files. The files are archived,
//! and the session's next use starts on them.

use model::lifecycle::ActiveCause;
use model::template::RuntimeTraits;
use model::{
    EndCause, NodeConfig, SandboxState, SessionId, SessionStatus, TerminatedReason, WorkspaceId,
};

use super::rig::{
    DOCKER, NATIVE, ON_DISK, Rig, archive, copy, delete_workspace, kill, launch, persist, template,
    trouble,
};
use super::rig_steps::tight;
use crate::{Action, Outcome, Reply, UseKind, UseTarget};

const DAY_MS: u64 = 86_400_000;

/// A node with room for one entry.
fn one_entry(traits: RuntimeTraits) -> Rig {
    Rig::with(tight(1, 1), template(0, 9), traits)
}

/// The workspace with the files of a session, according to the journal.
#[track_caller]
pub(super) fn workspace_of(rig: &Rig, session: SessionId) -> WorkspaceId {
    let record = &rig.store.sessions[&session];
    let cold = record.sandbox.and_then(|id| rig.store.sandboxes.get(&id));
    let cold = cold.filter(|sandbox| sandbox.has_files).map(|sandbox| sandbox.workspace);
    let shelved = record.files.map(|files| files.workspace);
    assert!(cold.is_none() || shelved.is_none(), "files are in one place: {record:?}");
    cold.or(shelved).expect("a session with files")
}

fn is_shelved(rig: &Rig, session: SessionId) -> bool {
    rig.store.sessions[&session].files.is_some()
}

fn is_archived(rig: &Rig, session: SessionId) -> bool {
    rig.store.sessions[&session].files.expect("shelved files").archived
}

/// A shelved session, and the session that took its entry.
fn shelved(rig: &mut Rig) -> (SessionId, SessionId) {
    let (session, _) = rig.cold_session();
    let (other, request) = rig.create_session();
    rig.effects.retain(|effect| !archive(&effect.action));
    rig.run_within_limits();
    rig.session_ready(request);
    assert!(is_shelved(rig, session));
    (session, other)
}

#[test]
fn an_evicted_cold_one_loses_its_entry_and_keeps_its_files() {
    for traits in [NATIVE, ON_DISK, DOCKER] {
        let mut rig = one_entry(traits);
        let (session, sandbox) = rig.cold_session();
        let workspace = workspace_of(&rig, session);
        let (newcomer, request) = rig.create_session();
        let on_disk = usize::from(traits.disk.is_some());
        assert_eq!((rig.count(archive), rig.count(delete_workspace)), (on_disk, 0), "{traits:?}");
        rig.run_within_limits();
        rig.session_ready(request);
        assert_eq!(rig.ended(sandbox).cause, EndCause::Evicted);
        assert_eq!((workspace_of(&rig, session), is_archived(&rig, session)), (workspace, true));
        assert!(rig.store.doomed.is_empty() && rig.losses(session).is_empty());
        let seen = rig.of(session);
        assert_eq!((seen.status, seen.sandbox_id), (SessionStatus::Stopped, None));
        assert_eq!((seen.workspace, seen.state_lost), (Some(workspace), false));
        assert!(seen.files_durable);
        rig.stop(newcomer);
        rig.run();
        let resumed = rig.resume(session);
        let launch = rig.launching();
        assert_eq!((launch.workspace, launch.restore), (workspace, true));
        assert!(!is_shelved(&rig, session));
        rig.run_within_limits();
        let ready = rig.session_ready(resumed);
        assert_eq!((ready.cause, ready.lost()), (ActiveCause::Resumed, None));
        assert_ne!(ready.sandbox, sandbox);
        assert_eq!((ready.generation.0, rig.kernel.stats().resume_cold_hits), (2, 1));
        assert_eq!(rig.kernel.files_given_up(), 0);
    }
}

#[test]
fn sessions_that_evict_each_other_all_keep_their_files() {
    for traits in [ON_DISK, DOCKER] {
        let mut rig = Rig::with(tight(3, 3), template(1, 9), traits);
        let all: Vec<SessionId> = (0..13).map(|_| rig.waiting_session().0).collect();
        let first: Vec<WorkspaceId> = all.iter().map(|id| rig.of(*id).workspace.unwrap()).collect();
        for _ in 0..3 {
            for session in &all {
                let ready = rig.whole_turn(*session);
                assert_eq!(ready.lost(), None);
                rig.within_limits();
            }
        }
        rig.live(3_600_000);
        for (session, workspace) in all.iter().zip(first) {
            assert_eq!(workspace_of(&rig, *session), workspace, "{traits:?}");
            assert_eq!(rig.losses(*session), []);
        }
        assert!(rig.store.doomed.is_empty());
    }
}

#[test]
fn a_waiting_one_is_saved_before_its_entry_goes() {
    for traits in [NATIVE, ON_DISK, DOCKER] {
        let mut rig = one_entry(traits);
        let (session, sandbox) = rig.waiting_session();
        let (_, request) = rig.create_session();
        assert_eq!((rig.targets(persist), rig.count(kill)), (vec![sandbox], 0));
        rig.finish(persist, Outcome::Done);
        let removal = rig.finish(kill, Outcome::Done);
        assert!(matches!(removal.action, Action::Kill { workspace: None, .. }), "the files stay");
        rig.run_within_limits();
        rig.session_ready(request);
        assert_eq!(rig.terminations(sandbox), [(1, EndCause::Evicted)]);
        assert!(is_shelved(&rig, session) && rig.losses(session).is_empty());
        assert_eq!(rig.status(session), SessionStatus::Paused);
    }
}

#[test]
fn a_waiting_one_whose_entry_was_to_go_stays_if_it_is_used_or_cannot_be_saved() {
    for fails in [false, true] {
        let mut rig = Rig::with(tight(2, 9), template(0, 9), DOCKER);
        let (session, sandbox) = rig.waiting_session();
        let (other_session, other) = rig.waiting_session();
        let (_, request) = rig.create_session();
        assert_eq!(rig.targets(persist), [sandbox]);
        if fails {
            rig.finish_of(sandbox, persist, trouble());
        } else {
            rig.session_exec(session);
        }
        rig.run_within_limits();
        rig.session_ready(request);
        assert_eq!(rig.kernel.sandbox(other), None, "the next one gave way");
        assert!(is_shelved(&rig, other_session) && !is_shelved(&rig, session));
        assert_eq!(rig.terminations(sandbox), []);
    }
}

#[test]
fn session_without_files_is_not_shelved() {
    let mut rig = one_entry(DOCKER);
    let (session, sandbox) = rig.session();
    rig.stop(session);
    rig.run();
    let (other, request) = rig.create_session();
    rig.run_within_limits();
    rig.session_ready(request);
    assert_eq!(rig.ended(sandbox).cause, EndCause::Evicted);
    assert!(!is_shelved(&rig, session) && rig.store.doomed.is_empty());
    rig.end(other);
    rig.run();
    assert_eq!(rig.resumed(session).lost(), None, "nothing was lost");
}

#[test]
fn a_use_does_not_wait_for_the_archive() {
    let mut rig = one_entry(ON_DISK);
    let (session, _) = rig.cold_session();
    let workspace = workspace_of(&rig, session);
    let (other, _) = rig.create_session();
    let held = rig.effects.iter().position(|effect| archive(&effect.action));
    let held = rig.effects.remove(held.expect("an archive in progress")).unwrap();
    rig.run();
    rig.stop(other);
    rig.run();
    rig.effects.clear();
    rig.resume(session);
    assert_eq!((rig.launching().workspace, rig.launching().restore), (workspace, true));
    rig.end_effect(&held, Outcome::Done);
    assert_eq!(rig.count(launch), 1, "what was called off counts for nothing");
    rig.run();
    assert!(!rig.store.sandboxes[&rig.of(session).sandbox_id.unwrap()].archived);
}

#[test]
fn an_archive_that_fails_is_tried_again_and_takes_nothing_away() {
    for outcome in [Some(trouble()), Some(Outcome::TimedOut), None] {
        let mut rig = one_entry(ON_DISK);
        let (session, _) = rig.cold_session();
        let workspace = workspace_of(&rig, session);
        let (_, request) = rig.create_session();
        if let Some(outcome) = outcome {
            rig.finish(archive, outcome);
        } else {
            rig.effects.retain(|effect| !archive(&effect.action));
            rig.run();
            rig.pass(NodeConfig::default().deadlines.workspace_ms * 10);
        }
        rig.run();
        rig.session_ready(request);
        assert_eq!((workspace_of(&rig, session), is_archived(&rig, session)), (workspace, false));
        rig.pass(590_000);
        assert_eq!(rig.count(archive), 0, "not at once again");
        rig.live(10_000);
        assert!(is_archived(&rig, session));
    }
}

#[test]
fn archives_of_shelved_and_cold_files_share_one_limit() {
    let config = NodeConfig { archive_after_ms: Some(DAY_MS), ..tight(4, 4) };
    let mut rig = Rig::with(config, template(0, 9), ON_DISK);
    let all: Vec<SessionId> = (0..4).map(|_| rig.cold_session().0).collect();
    rig.pass(DAY_MS + 1_000);
    assert_eq!(rig.count(archive), 2);
    // Two are being archived where they are, two wait for that, and all lose their entries.
    let in_progress = |rig: &Rig| rig.kernel.archives.in_progress();
    let mut newcomers = Vec::new();
    for _ in 0..4 {
        newcomers.push(rig.create_session().1);
        assert_eq!(in_progress(&rig), 2);
    }
    // A cancelled archive ends too, and does not count.
    while rig.count(archive) > 0 {
        rig.finish(archive, Outcome::Done);
        assert!(in_progress(&rig) <= 2);
    }
    rig.run_within_limits();
    for newcomer in newcomers {
        rig.session_ready(newcomer);
    }
    assert!(all.iter().all(|session| is_archived(&rig, *session)));
}

#[test]
fn an_end_deletes_shelved_files_also_over_a_restart() {
    for restart in [false, true] {
        let mut rig = one_entry(ON_DISK);
        let (session, _) = shelved(&mut rig);
        let workspace = workspace_of(&rig, session);
        let ended = rig.end(session);
        assert_eq!(rig.answered(ended), Reply::Ended);
        assert!(rig.store.doomed.contains(&workspace), "journalled with the end");
        assert!(!rig.store.sessions.contains_key(&session));
        if restart {
            rig.restart(&[]);
        }
        assert_eq!((rig.count(delete_workspace), rig.count(archive)), (1, 0));
        rig.live(10_000);
        assert!(!rig.store.doomed.contains(&workspace));
        assert_eq!(rig.loss_reasons(session), []);
        let (turn, _) = rig.turn(session);
        assert!(rig.answer(turn).is_some_and(Result::is_err));
    }
}

#[test]
fn shelved_session_survives_restarts_and_is_archived_again() {
    let mut rig = one_entry(ON_DISK);
    let (session, _) = shelved(&mut rig);
    let workspace = workspace_of(&rig, session);
    for _ in 0..2 {
        let alive: Vec<_> = rig.existing.iter().copied().collect();
        rig.restart(&alive);
        assert_eq!(rig.count(archive), 1, "nothing is known of what became of it");
        assert_eq!((workspace_of(&rig, session), is_archived(&rig, session)), (workspace, false));
    }
    rig.run();
    assert!(is_archived(&rig, session));
    rig.restart(&[]);
    assert_eq!((rig.count(archive), is_archived(&rig, session)), (0, true), "once is enough");
    let resumed = rig.resume(session);
    assert_eq!((rig.launching().workspace, rig.launching().restore), (workspace, true));
    rig.run();
    let ready = rig.session_ready(resumed);
    assert_eq!((ready.cause, ready.generation.0, ready.lost()), (ActiveCause::Resumed, 2, None));
}

#[test]
fn a_crash_at_any_moment_of_an_eviction_keeps_the_files() {
    for traits in [ON_DISK, DOCKER] {
        let config = tight(2, 2);
        let mut rig = Rig::with(config.clone(), template(0, 9), traits);
        let all: Vec<SessionId> = (0..3).map(|_| rig.cold_session().0).collect();
        let workspaces: Vec<_> = all.iter().map(|session| workspace_of(&rig, *session)).collect();
        rig.moments = Some(Vec::new());
        for session in all.iter().chain(&all) {
            rig.resumed(*session);
            rig.session_work(*session);
        }
        let (_, aborted) = rig.create_session();
        rig.client_gone(aborted);
        rig.live(3_600_000);
        let moments = rig.moments.take().unwrap();
        assert!(moments.len() > 40, "{}", moments.len());
        for moment in &moments {
            let mut rig = Rig::after_crash(config.clone(), moment);
            let alive: Vec<_> = rig.existing.iter().copied().collect();
            rig.restart(&alive);
            rig.run();
            for (session, workspace) in all.iter().zip(&workspaces) {
                assert!(!rig.store.doomed.contains(workspace));
                assert_eq!(workspace_of(&rig, *session), *workspace);
                let ready = rig.resumed(*session);
                let unsaved = moment.store.sandboxes.values().any(|record| {
                    let reported = moment.store.sessions[session].state_lost.is_some();
                    record.workspace == *workspace && (record.dirty || reported)
                });
                let may_lose = traits == DOCKER && unsaved;
                assert!(ready.lost().is_none() || may_lose, "{:?}", ready.lost());
                assert_eq!(rig.store.sandboxes[&ready.sandbox].workspace, *workspace);
            }
        }
    }
}

#[test]
fn shelved_files_grow_too_old_like_cold_ones_and_not_while_they_are_wanted() {
    let config = NodeConfig { prune_after_ms: Some(3 * DAY_MS), ..tight(1, 1) };
    for restart in [false, true] {
        let mut rig = Rig::with(config.clone(), template(0, 9), ON_DISK);
        let (session, other) = shelved(&mut rig);
        let exec = rig.session_exec(other);
        rig.live(3 * DAY_MS - 1_000);
        if restart {
            let alive: Vec<_> = rig.existing.iter().copied().collect();
            rig.restart(&alive);
            rig.session_work(other);
        }
        assert!(is_shelved(&rig, session) && rig.losses(session).is_empty());
        rig.pass(2_000);
        assert!(!is_shelved(&rig, session));
        assert_eq!(rig.loss_reasons(session), [TerminatedReason::Policy]);
        assert_eq!((rig.count(delete_workspace), rig.kernel.files_given_up()), (1, 1));
        rig.use_ended(exec);
        rig.end(other);
        rig.run();
        let ready = rig.resumed(session);
        assert_eq!(ready.state_lost, Some(TerminatedReason::Policy));
        assert!(!rig.of(session).state_lost);
    }

    // One that waits for a place is not given up in front of it.
    let mut rig =
        Rig::with(NodeConfig { bind_timeout_ms: DAY_MS, ..config }, template(0, 9), ON_DISK);
    let (session, other) = shelved(&mut rig);
    rig.session_exec(other);
    rig.live(3 * DAY_MS - 10_000);
    rig.end(other);
    let resumed = rig.resume(session);
    assert_eq!((rig.pending(resumed), rig.count(kill)), (true, 1), "the other is still there");
    rig.effects.clear();
    rig.pass(20_000);
    assert!(is_shelved(&rig, session) && rig.losses(session).is_empty());
    rig.client_gone(resumed);
    rig.pass(1);
    assert!(!is_shelved(&rig, session), "now it has expired");
}

#[test]
fn nothing_goes_into_an_archive_while_the_server_stops() {
    let mut rig = one_entry(ON_DISK);
    let (session, _) = rig.cold_session();
    let (_, request) = rig.create_session();
    rig.finish(archive, trouble());
    rig.run();
    rig.session_ready(request);
    rig.shut_down(1_000);
    rig.run();
    rig.pass(NodeConfig::default().backoff.max_ms * 20);
    assert!(rig.stopped && rig.count(archive) == 0);
    rig.restart(&[]);
    rig.run();
    assert!(is_archived(&rig, session));
}

#[test]
fn a_message_by_the_id_of_an_evicted_sandbox_says_that_it_is_gone() {
    let mut rig = one_entry(ON_DISK);
    let (_, sandbox) = rig.cold_session();
    rig.session();
    let (request, _) = rig.use_of(UseTarget::Sandbox(sandbox), UseKind::Exec);
    assert_eq!(rig.refused(request), model::ErrorCode::SandboxGone);
    assert_eq!(rig.in_state(SandboxState::Cold), []);
}

#[test]
fn shelved_files_that_a_fork_brings_back_stay_with_the_session_that_waits_for_them() {
    let config =
        NodeConfig { prune_after_ms: Some(3 * DAY_MS), bind_timeout_ms: DAY_MS, ..tight(3, 1) };
    let mut rig = Rig::with(config, template(0, 9), ON_DISK);
    let (session, _) = rig.cold_session();
    let others = [rig.cold_session().0, rig.cold_session().0];
    let (last, _) = rig.session();
    let exec = rig.session_exec(last);
    assert!(is_shelved(&rig, session));
    for other in others {
        rig.end(other);
    }
    rig.live(3 * DAY_MS - 10_000);
    rig.use_ended(exec);
    rig.end(last);
    let resumed = rig.resume(session);
    let (fork, request) = rig.fork(session);
    rig.finish(copy, Outcome::Done);
    assert_eq!(rig.answered(request), Reply::Forked { session: fork });
    assert!(rig.pending(resumed) && !is_shelved(&rig, session));
    assert_eq!(rig.count(kill), 1, "there is no place before the last one is gone");
    rig.effects.clear();
    rig.pass(20_000);
    assert!(rig.losses(session).is_empty(), "a caller waits for these files");
}

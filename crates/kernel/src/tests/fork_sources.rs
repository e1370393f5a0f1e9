//! Files that a fork reads while their own session ends, is evicted or dies: they are deleted when
//! the copy has ended and not before, and a fork that fails for this may be requested again.

use model::{ErrorCode, SandboxState, SessionId, WorkspaceId};

use super::rig::{
    DOCKER, NATIVE, ON_DISK, Rig, archive, copy, delete_workspace, kill, persist, refusal,
    template, trouble,
};
use super::rig_steps::tight;
use super::shelved_sessions::workspace_of;
use crate::{Action, DeathCause, Outcome, Reply};

fn alone() -> Rig {
    Rig::with_pool(template(0, 5), NATIVE)
}

/// A session with files, asleep or not, and where they are.
fn parent(rig: &mut Rig, cold: bool) -> (SessionId, model::SandboxId, WorkspaceId) {
    let (session, sandbox) = if cold { rig.cold_session() } else { rig.waiting_session() };
    (session, sandbox, workspace_of(rig, session))
}

/// Ends everything but copies.
fn run_but_copies(rig: &mut Rig) {
    while let Some(at) = rig.effects.iter().position(|effect| !copy(&effect.action)) {
        let effect = rig.effects.remove(at).unwrap();
        rig.end_effect(&effect, Outcome::Done);
    }
}

#[test]
fn files_of_an_ended_session_go_when_the_fork_that_reads_them_has_its_copy() {
    for cold in [false, true] {
        for fails in [false, true] {
            let mut rig = alone();
            let (session, sandbox, workspace) = parent(&mut rig, cold);
            let (fork, request) = rig.fork(session);
            let ended = rig.end(session);
            if !cold {
                let removal = rig.finish(kill, Outcome::Done);
                let taken = matches!(removal.action, Action::Kill { workspace: Some(_), .. });
                assert!(!taken, "a fork reads them");
            }
            run_but_copies(&mut rig);
            assert_eq!(rig.answered(ended), Reply::Ended, "that waits for no fork");
            assert_eq!((rig.kernel.session(session), rig.kernel.sandbox(sandbox)), (None, None));
            rig.pass(30_000);
            assert_eq!(rig.count(delete_workspace), 0);
            assert!(rig.store.doomed.contains(&workspace), "journalled");
            rig.finish(copy, if fails { trouble() } else { Outcome::Done });
            assert_eq!(rig.count(delete_workspace), if fails { 2 } else { 1 });
            rig.run();
            assert!(rig.store.doomed.is_empty());
            if fails {
                let refusal = refusal(&rig, request);
                assert_eq!(refusal.code, ErrorCode::SessionBusy, "the disk is in order");
                assert!(refusal.retry_after_ms.is_some());
            } else {
                assert_eq!(rig.answered(request), Reply::Forked { session: fork });
                assert_eq!(rig.whole_turn(fork).lost(), None);
            }
        }
    }
}

#[test]
fn the_last_of_several_forks_lets_the_files_go() {
    let mut rig = alone();
    let (session, _, workspace) = parent(&mut rig, true);
    let forks = [rig.fork(session), rig.fork(session)];
    rig.end(session);
    for left in [1, 0] {
        assert_eq!(rig.count(delete_workspace), 0);
        rig.finish(copy, Outcome::Done);
        assert_eq!(rig.count(copy), left);
    }
    rig.run();
    assert!(!rig.store.doomed.contains(&workspace));
    for (fork, request) in forks {
        assert_eq!(rig.answered(request), Reply::Forked { session: fork });
    }
}

#[test]
fn a_restart_makes_the_copy_again_before_the_files_go() {
    for cold in [false, true] {
        let mut rig = alone();
        let (session, _, workspace) = parent(&mut rig, cold);
        let (fork, _) = rig.fork(session);
        rig.end(session);
        run_but_copies(&mut rig);
        rig.restart(&[]);
        assert_eq!((rig.count(copy), rig.count(delete_workspace)), (1, 0), "cold: {cold}");
        rig.finish(copy, Outcome::Done);
        assert_eq!(rig.count(delete_workspace), 1);
        rig.run();
        assert!(!rig.store.doomed.contains(&workspace) && rig.kernel.session(session).is_none());
        assert_eq!(rig.whole_turn(fork).lost(), None);
    }
}

#[test]
fn a_restart_in_the_middle_of_the_end_goes_on_with_both() {
    let mut rig = alone();
    let (session, _, workspace) = parent(&mut rig, false);
    let (fork, _) = rig.fork(session);
    rig.end(session);
    let alive: Vec<_> = rig.existing.iter().copied().collect();
    rig.restart(&alive);
    assert_eq!((rig.count(copy), rig.count(kill)), (1, 1));
    run_but_copies(&mut rig);
    assert_eq!(rig.count(delete_workspace), 0);
    assert!(rig.store.doomed.contains(&workspace));
    rig.run();
    assert!(rig.store.doomed.is_empty() && rig.kernel.session(session).is_none());
    assert_eq!(rig.whole_turn(fork).lost(), None);
}

#[test]
fn a_fork_of_a_session_that_is_leaving_may_be_asked_for_again() {
    for leave in [Rig::stop, Rig::end] {
        let mut rig = alone();
        let (session, _) = rig.waiting_session();
        leave(&mut rig, session);
        let (fork, request) = rig.fork(session);
        let refusal = refusal(&rig, request);
        assert_eq!(refusal.code, ErrorCode::SessionBusy);
        assert!(refusal.retry_after_ms.is_some());
        assert_eq!((rig.kernel.session(fork), rig.count(copy)), (None, 0));
    }
}

#[test]
fn files_that_are_being_deleted_are_not_copied() {
    let going: [fn(&mut Rig, model::SandboxId); 2] = [
        |rig, sandbox| {
            rig.delete(sandbox);
        },
        // Its files were in memory, and it dies with them.
        |rig, sandbox| rig.dies_of(sandbox, DeathCause::Oom),
    ];
    for go in going {
        let mut rig = Rig::with_pool(template(0, 5), DOCKER);
        let (session, sandbox) = rig.waiting_session();
        go(&mut rig, sandbox);
        let (_, early) = rig.fork(session);
        assert_eq!(refusal(&rig, early).code, ErrorCode::SessionBusy);
        assert!(refusal(&rig, early).retry_after_ms.is_some());
        rig.run();
        let (fork, request) = rig.fork(session);
        rig.run();
        assert_eq!(rig.answered(request), Reply::Forked { session: fork });
        assert!(rig.resumed(fork).lost().is_some(), "they are missing there, too");
    }
}

#[test]
fn a_fork_whose_source_dies_under_it_may_be_asked_for_again() {
    let ways: [fn(&mut Rig, SessionId, model::SandboxId); 3] = [
        |rig, _, sandbox| rig.dies(sandbox),
        |rig, session, _| {
            rig.stop(session);
            rig.finish(persist, Outcome::Done);
        },
        |rig, _, sandbox| {
            rig.delete(sandbox);
        },
    ];
    for (at, way) in ways.into_iter().enumerate() {
        for confirmed in [false, true] {
            let mut rig = Rig::with_pool(template(0, 5), DOCKER);
            let (session, sandbox) = rig.waiting_session();
            let (_, request) = rig.fork(session);
            way(&mut rig, session, sandbox);
            if confirmed {
                rig.killed();
            }
            rig.finish(copy, trouble());
            assert_eq!(refusal(&rig, request).code, ErrorCode::SessionBusy, "way {at}");
            assert!(refusal(&rig, request).retry_after_ms.is_some());
            rig.run();
            assert!(rig.store.doomed.is_empty());
        }
    }
    // A copy that fails while its source is in order is trouble of the disk.
    let mut rig = Rig::with_pool(template(0, 5), DOCKER);
    let (session, _) = rig.waiting_session();
    let (_, request) = rig.fork(session);
    rig.finish(copy, trouble());
    assert_eq!(rig.refused(request), ErrorCode::PersistFailed);
}

#[test]
fn victim_that_is_forked_stays_and_another_is_evicted() {
    let mut rig = Rig::with(tight(9, 2), template(0, 9), DOCKER);
    let (victim, sandbox) = rig.waiting_session();
    let (_, other) = rig.waiting_session();
    let (_, newcomer) = rig.create_session();
    assert_eq!(rig.targets(persist), [sandbox]);
    let (fork, request) = rig.fork(victim);
    assert_eq!(rig.targets(persist), [sandbox, other], "its files are being copied out of it");
    assert!(rig.alive(sandbox).ending.is_none());
    run_but_copies(&mut rig);
    rig.session_ready(newcomer);
    assert_eq!((rig.state(other), rig.terminations(sandbox)), (SandboxState::Cold, vec![]));
    rig.run();
    assert_eq!(rig.answered(request), Reply::Forked { session: fork });
}

#[test]
fn a_victim_that_was_to_lose_its_entry_stays_while_it_is_forked() {
    let mut rig = Rig::with(tight(2, 9), template(0, 9), ON_DISK);
    let (victim, sandbox) = rig.waiting_session();
    let lease = rig.lease();
    rig.use_once(lease.sandbox);
    let (newcomer, _) = rig.create_session();
    assert_eq!(rig.targets(persist), [sandbox]);
    let (_, early) = rig.fork(victim);
    assert_eq!(rig.refused(early), ErrorCode::CapacityExhausted, "nothing is cold");
    assert!(rig.alive(sandbox).ending.is_some(), "so that changes nothing");
    // Others make room meanwhile, and the choice stands until its files are saved.
    rig.give_back(lease.lease);
    rig.finish(kill, Outcome::Done);
    rig.end(newcomer);
    rig.finish(kill, Outcome::Done);
    let (fork, request) = rig.fork(victim);
    assert!(rig.alive(sandbox).ending.is_none());
    run_but_copies(&mut rig);
    assert!(rig.store.sessions[&victim].files.is_none() && rig.terminations(sandbox).is_empty());
    rig.run();
    assert_eq!(rig.answered(request), Reply::Forked { session: fork });
}

#[test]
fn shelved_files_are_forked_like_cold_ones() {
    let mut rig = Rig::with(tight(3, 9), template(0, 9), ON_DISK);
    let (session, _, workspace) = parent(&mut rig, true);
    let others = [rig.session(), rig.session(), rig.session()];
    assert_eq!(rig.store.sessions[&session].files.map(|files| files.archived), Some(true));
    for (other, _) in &others[..2] {
        rig.end(*other);
    }
    rig.run();
    let (fork, request) = rig.fork(session);
    let from = rig.effects.iter().find_map(|effect| match &effect.action {
        Action::CopyWorkspace { from, .. } => Some(*from),
        _ => None,
    });
    assert_eq!((from, rig.count(archive)), (Some(workspace), 0));
    assert!(rig.store.sessions[&session].files.is_none(), "it has an entry again");
    rig.within_limits();
    rig.restart(&[]);
    rig.run_within_limits();
    assert!(rig.pending(request), "its caller went with the run before");
    assert_eq!((workspace_of(&rig, session), rig.losses(session)), (workspace, vec![]));
    assert_eq!(rig.resumed(fork).lost(), None);
    assert_eq!(rig.resumed(session).lost(), None);
}

//! Saves: files in memory are saved before their sandbox is frozen, and a save covers what was
//! acknowledged before it began, nothing later.

use model::{ErrorCode, SandboxState, SessionId};

use super::rig::{DOCKER, NATIVE, ON_DISK, Rig, freeze, kill, persist, probe, template, trouble};
use super::rig_steps::{Cases, tight};
use crate::{Outcome, Reply, UseKind, UseTarget};

/// When a quiet sandbox is frozen, and how long one that could not be saved is left alone.
const QUIET_MS: u64 = 10_000;

fn scene() -> (Rig, SessionId, model::SandboxId) {
    let mut rig = Rig::with_pool(template(0, 5), DOCKER);
    let (session, sandbox) = rig.session();
    rig.session_work(session);
    (rig, session, sandbox)
}

#[test]
fn unsaved_files_in_memory_are_saved_before_their_sandbox_is_frozen() {
    let (mut rig, session, sandbox) = scene();
    assert!(!rig.of(session).files_durable, "they are in its processes only");
    rig.pass(QUIET_MS);
    assert_eq!((rig.count(persist), rig.count(freeze)), (1, 0));
    rig.finish(persist, Outcome::Done);
    assert!(rig.of(session).files_durable && rig.store.sandboxes[&sandbox].has_files);
    rig.pass(1);
    assert_eq!((rig.count(persist), rig.count(freeze)), (0, 1));
    rig.run();
    assert!(rig.frozen(sandbox));
    // It crashes in its sleep, and nothing is lost.
    rig.dies(sandbox);
    rig.run();
    assert_eq!((rig.losses(session), rig.resumed(session).lost()), (vec![], None));
}

#[test]
fn freeze_without_unsaved_files_happens_at_once() {
    for traits in [NATIVE, ON_DISK] {
        let mut rig = Rig::with_pool(template(0, 5), traits);
        let (session, _) = rig.session();
        rig.session_work(session);
        assert!(rig.of(session).files_durable, "they outlive its processes");
        rig.pass(QUIET_MS);
        assert_eq!((rig.count(persist), rig.count(freeze)), (0, 1));
    }
    // Never used, or by a lease, whose files end with it.
    let mut rig = Rig::with_pool(template(0, 5), DOCKER);
    rig.session();
    let lease = rig.lease();
    rig.use_once(lease.sandbox);
    rig.pass(QUIET_MS);
    assert_eq!((rig.count(persist), rig.count(freeze)), (0, 2));
}

#[test]
fn reading_changes_nothing_that_would_have_to_be_saved() {
    let (mut rig, session, sandbox) = scene();
    rig.live(QUIET_MS + 1);
    assert!(rig.frozen(sandbox));
    let (request, read) = rig.use_of(UseTarget::Session(session), UseKind::Read);
    rig.run();
    rig.granted(request);
    rig.use_ended(read);
    assert!(rig.of(session).files_durable);
    rig.pass(QUIET_MS);
    assert_eq!((rig.count(persist), rig.count(freeze)), (0, 1));
    rig.run();
    rig.stop(session);
    assert_eq!((rig.count(persist), rig.count(kill)), (0, 1));
}

#[test]
fn freeze_does_not_follow_a_failed_save_and_is_tried_again() {
    for outcome in [trouble(), Outcome::TimedOut] {
        let (mut rig, session, sandbox) = scene();
        rig.pass(QUIET_MS);
        rig.finish(persist, outcome);
        rig.pass(QUIET_MS - 1);
        assert_eq!((rig.count(persist), rig.count(freeze)), (0, 0), "not at once again");
        assert!(!rig.frozen(sandbox) && !rig.of(session).files_durable);
        rig.pass(1);
        assert_eq!((rig.count(persist), rig.count(freeze)), (1, 0));
        rig.live(1);
        assert!(rig.frozen(sandbox) && rig.of(session).files_durable);
    }
}

#[test]
fn a_pause_whose_save_fails_tries_again_before_it_freezes() {
    let (mut rig, session, sandbox) = scene();
    let paused = rig.pause(session);
    assert_eq!(rig.answered(paused), Reply::Paused);
    rig.finish(persist, trouble());
    assert!(!rig.of(session).files_durable, "and it does not say so");
    rig.pass(QUIET_MS);
    assert_eq!((rig.count(persist), rig.count(freeze)), (1, 0));
    rig.live(1);
    assert!(rig.frozen(sandbox) && rig.of(session).files_durable);
}

#[test]
fn a_freeze_on_request_saves_first_and_says_when_it_cannot() {
    let (mut rig, _, sandbox) = scene();
    let request = rig.ask_freeze(sandbox);
    assert_eq!((rig.count(persist), rig.count(freeze), rig.pending(request)), (1, 0, true));
    rig.finish(persist, Outcome::Done);
    assert_eq!((rig.count(freeze), rig.pending(request)), (1, true));
    rig.finish(freeze, Outcome::Done);
    assert_eq!(rig.answered(request), Reply::Frozen { frozen: true });

    let (mut rig, _, sandbox) = scene();
    let request = rig.ask_freeze(sandbox);
    rig.finish(persist, trouble());
    assert_eq!(rig.refused(request), ErrorCode::PersistFailed);
    assert_eq!((rig.count(freeze), rig.frozen(sandbox)), (0, false));
    rig.live(QUIET_MS + 1);
    assert!(rig.frozen(sandbox), "it is tried again");
}

#[test]
fn a_freeze_that_waits_for_a_save_is_off_when_the_sandbox_is_used_or_goes() {
    let (mut rig, session, sandbox) = scene();
    let request = rig.ask_freeze(sandbox);
    let exec = rig.use_of(UseTarget::Session(session), UseKind::Exec).0;
    rig.granted(exec);
    assert_eq!(rig.refused(request), ErrorCode::SandboxBusy);
    rig.finish(persist, Outcome::Done);
    assert_eq!((rig.count(freeze), rig.state(sandbox)), (0, SandboxState::Running));

    let (mut rig, session, sandbox) = scene();
    let request = rig.ask_freeze(sandbox);
    rig.end(session);
    rig.run();
    assert_eq!(rig.refused(request), ErrorCode::SandboxGone);
}

#[test]
fn a_freeze_whose_save_an_eviction_needs_too_is_answered_either_way() {
    for fails in [false, true] {
        let mut rig = Rig::with(tight(9, 1), template(0, 5), DOCKER);
        let (session, sandbox) = rig.waiting_session();
        let request = rig.ask_freeze(sandbox);
        rig.create_session();
        assert_eq!(rig.count(persist), 1, "one save is for both");
        rig.finish(persist, if fails { trouble() } else { Outcome::Done });
        if fails {
            assert_eq!(rig.refused(request), ErrorCode::PersistFailed);
        } else {
            assert_eq!((rig.refused(request), rig.count(kill)), (ErrorCode::SandboxGone, 1));
        }
        assert_eq!(rig.losses(session), []);
    }
}

/// An activity whose caller is answered when it ends.
const WRITES: Cases<fn(&mut Rig, SessionId)> = &[
    ("an exec", |rig, session| one_use(rig, session, UseKind::Exec)),
    ("a file call", |rig, session| one_use(rig, session, UseKind::Files)),
    ("a connection", |rig, session| one_use(rig, session, UseKind::Port)),
    ("a stream", |rig, session| one_use(rig, session, UseKind::Stream)),
    ("a turn", |rig, session| {
        let (request, turn) = rig.turn(session);
        rig.finish(super::rig::start_turn, Outcome::Done);
        rig.session_ready(request);
        rig.end_turn(session, turn);
    }),
];

fn one_use(rig: &mut Rig, session: SessionId, kind: UseKind) {
    let (request, use_id) = rig.use_of(UseTarget::Session(session), kind);
    if rig.pending(request) {
        rig.finish(probe, Outcome::Done);
    }
    rig.granted(request);
    rig.use_ended(use_id);
}

#[test]
fn a_use_that_ended_during_a_save_is_saved_before_the_sandbox_goes() {
    for traits in [DOCKER, NATIVE] {
        for (what, write) in WRITES {
            let mut rig = Rig::with(tight(9, 1), template(0, 5), traits);
            let (session, sandbox) = rig.waiting_session();
            let (_, newcomer) = rig.create_session();
            assert_eq!(rig.targets(persist), [sandbox], "{what}");
            // The choice is void, and then made again while the same save goes on.
            write(&mut rig, session);
            assert!(rig.alive(sandbox).ending.is_some(), "{what}");
            rig.finish(persist, Outcome::Done);
            assert_eq!((rig.count(persist), rig.count(kill)), (1, 0), "{what}: it came later");
            rig.finish(persist, Outcome::Done);
            assert_eq!((rig.count(persist), rig.count(kill)), (0, 1), "{what}");
            rig.run_within_limits();
            rig.session_ready(newcomer);
            assert_eq!(rig.losses(session), [], "{what}");
        }
    }
}

#[test]
fn a_read_that_ended_during_a_save_needs_no_other() {
    let mut rig = Rig::with(tight(9, 1), template(0, 5), DOCKER);
    let (session, _) = rig.waiting_session();
    rig.create_session();
    one_use(&mut rig, session, UseKind::Read);
    rig.finish(persist, Outcome::Done);
    assert_eq!((rig.count(persist), rig.count(kill)), (0, 1));
}

#[test]
fn a_use_that_ends_during_the_save_of_a_stop_is_saved_too() {
    let (mut rig, session, sandbox) = scene();
    let exec = rig.session_exec(session);
    let stopped = rig.stop(session);
    rig.use_ended(exec);
    rig.finish(persist, Outcome::Done);
    assert_eq!((rig.count(persist), rig.count(kill)), (1, 0));
    rig.run();
    assert_eq!(rig.answered(stopped), Reply::Stopped);
    assert_eq!((rig.state(sandbox), rig.losses(session)), (SandboxState::Cold, vec![]));
}

#[test]
fn a_use_that_ended_during_the_save_for_a_freeze_is_saved_before_it() {
    let (mut rig, session, sandbox) = scene();
    rig.pass(QUIET_MS);
    assert_eq!(rig.count(persist), 1);
    one_use(&mut rig, session, UseKind::Files);
    rig.finish(persist, Outcome::Done);
    assert!(!rig.of(session).files_durable);
    rig.pass(QUIET_MS);
    assert_eq!((rig.count(persist), rig.count(freeze)), (1, 0));
    rig.live(1);
    assert!(rig.frozen(sandbox) && rig.of(session).files_durable);
}

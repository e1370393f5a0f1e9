//! Every phase that a sandbox can be in when something else happens to it: its state, its deletion,
//! its death. Delete works from every state, and every instance is removed.

use model::stats::NodeStats;
use model::{EndCause, ErrorCode, SandboxId, SandboxState, SessionStatus};

use super::rig::{
    DOCKER, NATIVE, Rig, claim, copy, freeze, kill, launch, persist, probe, secret_settings,
    start_turn, template, thaw, trouble, wipe,
};
use super::rig_steps::tight;
use crate::{DeathCause, Outcome, Reply, UseKind, UseTarget};

use SandboxState::{Running, Waiting, Warm, Warming};

/// Longer than a quiet sandbox stays unfrozen, and than one counts as heard of.
const QUIET_MS: u64 = 11_000;
const HOUR_MS: u64 = 3_600_000;

/// Brings a sandbox into some situation.
type Situation = fn(&mut Rig) -> SandboxId;

/// Everything that a live sandbox can be doing, and the state that it shows meanwhile.
const SITUATIONS: &[(&str, SandboxState, Situation)] = &[
    ("idle in its pool", Warm, |rig| rig.in_state(Warm)[0]),
    ("being launched for a pool", Warming, |rig| {
        rig.checkout();
        rig.checkout();
        rig.targets(launch)[0]
    }),
    ("being launched for a session", Warming, |rig| {
        rig.session();
        rig.effects.clear();
        rig.create_session();
        rig.create_session();
        *rig.targets(launch).last().unwrap()
    }),
    ("being bound to a lease", Warm, |rig| {
        rig.checkout_with(|checkout| checkout.claim = Some(secret_settings()));
        rig.targets(claim)[0]
    }),
    ("being bound to a session", Warm, |rig| {
        rig.create_session();
        rig.targets(claim)[0]
    }),
    ("leased and fresh", Warm, |rig| rig.lease().sandbox),
    ("leased, with an exec", Running, |rig| {
        let lease = rig.lease();
        rig.exec(lease.sandbox);
        lease.sandbox
    }),
    ("leased, between uses", Waiting, |rig| {
        let lease = rig.lease();
        rig.use_once(lease.sandbox);
        lease.sandbox
    }),
    ("leased and frozen", Waiting, |rig| {
        let lease = rig.lease();
        rig.use_once(lease.sandbox);
        rig.live(QUIET_MS);
        assert!(rig.alive(lease.sandbox).frozen);
        lease.sandbox
    }),
    ("a session's and fresh", Warm, |rig| rig.session().1),
    ("a session's, with a turn starting", Running, |rig| {
        let (session, sandbox) = rig.session();
        rig.turn(session);
        assert_eq!(rig.targets(start_turn), [sandbox]);
        sandbox
    }),
    ("a session's, with a turn", Running, |rig| {
        let (session, sandbox) = rig.session();
        rig.turn(session);
        rig.run();
        sandbox
    }),
    ("a session's, between turns", Waiting, |rig| rig.waiting_session().1),
    ("a session's, being frozen", Waiting, |rig| {
        let (_, sandbox) = rig.waiting_session();
        rig.pass(10_000);
        assert_eq!(rig.targets(freeze), [sandbox]);
        sandbox
    }),
    ("a session's and frozen", Waiting, |rig| {
        let (_, sandbox) = rig.waiting_session();
        rig.live(QUIET_MS);
        assert!(rig.alive(sandbox).frozen);
        sandbox
    }),
    ("a session's, being thawed for a turn", Running, |rig| {
        let (session, sandbox) = rig.waiting_session();
        rig.live(QUIET_MS);
        rig.turn(session);
        assert_eq!(rig.targets(thaw), [sandbox]);
        sandbox
    }),
    ("a session's, being probed for a turn", Running, |rig| {
        let (session, sandbox) = rig.waiting_session();
        rig.pass(6_000);
        rig.turn(session);
        assert_eq!(rig.targets(probe), [sandbox]);
        sandbox
    }),
    ("a session's, being saved by the sweep", Waiting, |rig| {
        let (_, sandbox) = rig.waiting_session();
        rig.live(QUIET_MS);
        rig.pass(HOUR_MS / 2 + 60_000 - QUIET_MS);
        assert_eq!(rig.targets(persist), [sandbox]);
        sandbox
    }),
    ("a session's, being put to sleep", Waiting, |rig| {
        let (session, sandbox) = rig.waiting_session();
        rig.stop(session);
        rig.finish(persist, Outcome::Done);
        assert_eq!(rig.targets(kill), [sandbox]);
        sandbox
    }),
    ("a session's, and dead", Running, |rig| {
        let (session, sandbox) = rig.session();
        rig.turn(session);
        rig.run();
        rig.dies(sandbox);
        sandbox
    }),
    ("a session's, that could not be removed yet", Waiting, |rig| {
        let (session, sandbox) = rig.waiting_session();
        rig.stop(session);
        rig.finish(persist, Outcome::Done);
        rig.finish(kill, trouble());
        sandbox
    }),
];

fn stage() -> Rig {
    Rig::with_pool(template(1, 2), NATIVE)
}

#[test]
fn every_situation_of_a_sandbox_shows_its_state() {
    for (what, state, bring_about) in SITUATIONS {
        let mut rig = stage();
        let sandbox = bring_about(&mut rig);
        assert_eq!(rig.state(sandbox), *state, "{what}");
    }
}

#[test]
fn delete_works_from_every_live_state_and_confirms_that_nothing_is_left() {
    for (what, _, bring_about) in SITUATIONS {
        let mut rig = stage();
        let sandbox = bring_about(&mut rig);
        let instance = rig.instance(sandbox);
        let request = rig.delete(sandbox);
        assert!(rig.pending(request), "{what}: answered before it was gone");
        rig.live(60_000);
        assert_eq!(rig.answered(request), Reply::Gone, "{what}");
        assert!(rig.kernel.sandbox(sandbox).is_none(), "{what}");
        assert!(rig.terminations(sandbox).len() <= 1, "{what}: announced twice");
        let left = rig.kernel.sandboxes().iter().any(|view| view.instance == Some(instance));
        assert!(!left, "{what}: its process lives on");
        assert_eq!(rig.ended(sandbox).cause, EndCause::Deleted, "{what}");
        let again = rig.delete(sandbox);
        assert_eq!(rig.answered(again), Reply::Gone, "{what}: a repeated delete");
    }
}

#[test]
fn death_ends_every_live_state_and_is_noticed_once() {
    for (what, _, bring_about) in SITUATIONS {
        let mut rig = stage();
        let sandbox = bring_about(&mut rig);
        rig.dies_of(sandbox, DeathCause::Oom);
        rig.dies_of(sandbox, DeathCause::Crash);
        rig.live(60_000);
        let instance = rig.kernel.sandbox(sandbox).and_then(|view| view.instance);
        assert_eq!(instance, None, "{what}: something dead counts as alive");
        assert!(rig.terminations(sandbox).len() <= 1, "{what}: announced twice");
    }
}

#[test]
fn node_statistics_add_up_in_every_situation() {
    for (what, _, bring_about) in SITUATIONS {
        let mut rig = stage();
        bring_about(&mut rig);
        let NodeStats { total, cold, warming, warm, waiting, running, .. } = rig.kernel.stats();
        assert_eq!(total, cold + warming + warm + waiting + running, "{what}");
        assert_eq!(total as usize, rig.kernel.sandboxes().len(), "{what}");
    }
}

#[test]
fn delete_works_on_a_wipe_a_proof_and_a_cold_record() {
    for proving in [false, true] {
        let mut rig = Rig::with_pool(template(1, 0), DOCKER);
        let lease = rig.lease();
        rig.use_once(lease.sandbox);
        rig.give_back(lease.lease);
        if proving {
            rig.finish(wipe, Outcome::Done);
        }
        let request = rig.delete(lease.sandbox);
        rig.run();
        assert_eq!(rig.answered(request), Reply::Gone);
        assert_eq!(rig.ended(lease.sandbox).cause, EndCause::Deleted);
        assert_eq!(rig.kernel.stats().warm, 1, "another one takes its place");
    }
    let mut rig = stage();
    let (session, sandbox) = rig.cold_session();
    let request = rig.delete(sandbox);
    assert_eq!(rig.answered(request), Reply::Gone, "there is no process to wait for");
    assert_eq!(rig.ended(sandbox).cause, EndCause::Deleted);
    assert_eq!(rig.losses(session), [sandbox]);
    rig.run();
    assert!(rig.store.doomed.is_empty(), "its files are deleted");
    assert_eq!(rig.status(session), SessionStatus::Stopped);
}

#[test]
fn a_generation_that_was_never_ready_is_not_announced_as_gone() {
    let mut rig = stage();
    let (session, sandbox) = rig.cold_session();
    let announced = [(1, EndCause::SessionStopped)];
    assert_eq!(rig.terminations(sandbox), announced);
    let resume = rig.resume(session);
    rig.finish_of(sandbox, launch, trouble());
    rig.run();
    assert_eq!(rig.refused(resume), ErrorCode::LaunchFailed);
    assert_eq!(rig.terminations(sandbox), announced);
    assert_eq!((rig.state(sandbox), rig.losses(session)), (SandboxState::Cold, vec![]));
    assert_eq!(rig.resumed(session).generation.0, 3);
}

#[test]
fn deleted_sandbox_is_gone_for_every_caller() {
    let mut rig = stage();
    let lease = rig.lease();
    rig.delete(lease.sandbox);
    rig.run();
    let (request, _) = rig.use_of(UseTarget::Sandbox(lease.sandbox), UseKind::Exec);
    assert_eq!(rig.refused(request), ErrorCode::SandboxGone);
    let never = SandboxId::from_u128(12_345);
    let (request, _) = rig.use_of(UseTarget::Sandbox(never), UseKind::Exec);
    assert_eq!(rig.refused(request), ErrorCode::SandboxUnknown);
    let request = rig.delete(never);
    assert_eq!(rig.refused(request), ErrorCode::SandboxUnknown);
    assert!(rig.kernel.why(rig.now, never).is_none());
}

#[test]
fn a_fork_that_is_deleted_while_it_is_copied_lets_its_parent_go() {
    let mut rig = stage();
    let (parent, source) = rig.waiting_session();
    let (child, request) = rig.fork_begun(parent);
    let sandbox = rig.targets(copy)[0];
    let deleted = rig.delete(sandbox);
    rig.run();
    assert_eq!(rig.answered(deleted), Reply::Gone);
    assert_eq!(rig.refused(request), ErrorCode::Aborted);
    assert!(rig.kernel.session(child).is_none(), "no client heard of it");
    assert!(rig.store.doomed.is_empty(), "what was copied is deleted");
    rig.live(HOUR_MS);
    assert_eq!(rig.state(source), SandboxState::Cold, "nothing holds the parent any more");
}

#[test]
fn the_source_of_a_fork_may_be_deleted_while_it_is_copied() {
    for copied in [Outcome::Done, trouble()] {
        let mut rig = stage();
        let (parent, source) = rig.waiting_session();
        let (child, request) = rig.fork(parent);
        let deleted = rig.delete(source);
        rig.finish(kill, Outcome::Done);
        assert_eq!(rig.answered(deleted), Reply::Gone);
        rig.finish(copy, copied.clone());
        rig.run();
        assert!(!rig.pending(request));
        assert_eq!(rig.kernel.session(child).is_some(), copied == Outcome::Done);
        assert_eq!(rig.losses(parent), [source]);
    }
}

#[test]
fn deleting_a_cold_sandbox_whose_session_is_in_line_keeps_to_the_limits() {
    let mut rig = Rig::with(tight(2, 1), template(0, 1), NATIVE);
    let (stopped, cold) = rig.cold_session();
    let (busy, _) = rig.waiting_session();
    // The other one is evicted, and its files are saved first.
    let resume = rig.resume(stopped);
    assert_eq!(rig.count(persist), 1);
    let deleted = rig.delete(cold);
    assert_eq!(rig.answered(deleted), Reply::Gone);
    // The entry that became free is taken by someone else.
    let (_, forked) = rig.fork(busy);
    rig.run_within_limits();
    assert!(!rig.pending(resume), "it is refused or served");
    assert!(!rig.pending(forked));
}

#[test]
fn pause_ends_with_its_sandbox_even_if_a_turn_came_meanwhile() {
    let mut rig = stage();
    let (session, sandbox) = rig.waiting_session();
    let pause = rig.pause(session);
    assert_eq!(rig.targets(freeze), [sandbox]);
    let (request, turn) = rig.turn(session);
    rig.dies(sandbox);
    rig.run();
    assert!(!rig.pending(pause));
    rig.session_ready(request);
    rig.end_turn(session, turn);
    let end = rig.end(session);
    rig.run();
    assert_eq!(rig.answered(end), Reply::Ended, "nothing is in the way");
}

#[test]
fn a_turn_for_a_fork_whose_copy_was_deleted_is_refused_and_nothing_breaks() {
    let mut rig = stage();
    let (parent, _) = rig.waiting_session();
    let (child, forked) = rig.fork_begun(parent);
    let sandbox = rig.targets(copy)[0];
    let deleted = rig.delete(sandbox);
    let (turn, _) = rig.turn(child);
    rig.run();
    assert_eq!(rig.answered(deleted), Reply::Gone);
    assert!(!rig.pending(forked) && !rig.pending(turn));
    rig.pass(60_000);
}

#[test]
fn a_session_whose_creator_went_away_and_whose_turn_was_aborted_does_not_start_for_ever() {
    let mut rig = Rig::with_pool(template(0, 2), NATIVE);
    let (session, created) = rig.create_session();
    let (turn, _) = rig.turn(session);
    rig.client_gone(created);
    let aborted = rig.abort(session, false);
    rig.live(300_000);
    assert!(!rig.pending(turn) && !rig.pending(aborted));
    let status = rig.kernel.session(session).map(|view| view.status);
    assert_ne!(status, Some(SessionStatus::Starting));
}

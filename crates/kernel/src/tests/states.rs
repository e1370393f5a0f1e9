//! The five states of a sandbox, every edge between them, and what can be read of them.

use model::record::Owner;
use model::state::Wakefulness;
use model::stats::NodeStats;
use model::{EndCause, ErrorCode, SandboxState};

use super::rig::{DOCKER, NATIVE, Rig, copy, launch, probe, prove, template, thaw, wipe};
use super::rig_steps::tight;
use crate::{Action, DeathCause, Event, Outcome, UseKind, UseTarget};

use SandboxState::{Cold, Running, Waiting, Warm, Warming};

/// Longer than a quiet sandbox stays unfrozen, and than one counts as heard of.
const QUIET_MS: u64 = 11_000;
const HOUR_MS: u64 = 3_600_000;

fn stage() -> Rig {
    Rig::with_pool(template(1, 2), NATIVE)
}

#[test]
fn a_life_goes_through_every_state_and_back() {
    let mut rig = Rig::with_pool(template(0, 1), NATIVE);
    let (session, request) = rig.create_session();
    let sandbox = rig.only().id;
    assert_eq!(rig.state(sandbox), Warming);
    assert!(rig.pending(request));
    rig.finish(launch, Outcome::Done);
    assert_eq!(rig.state(sandbox), Warm);
    assert_eq!(rig.session_ready(request).sandbox, sandbox);
    for _ in 0..2 {
        let (_, turn) = rig.turn(session);
        assert_eq!(rig.state(sandbox), Running);
        rig.run();
        assert_eq!(rig.state(sandbox), Running);
        rig.end_turn(session, turn);
        assert_eq!(rig.state(sandbox), Waiting);
    }
    rig.live(HOUR_MS);
    assert_eq!(rig.state(sandbox), Cold);
    assert_eq!(rig.generation(sandbox), 1);
    rig.turn(session);
    assert_eq!((rig.state(sandbox), rig.generation(sandbox)), (Warming, 2));
    rig.finish(launch, Outcome::Done);
    assert_eq!(rig.state(sandbox), Running);
}

#[test]
fn a_fresh_checkout_and_a_fresh_session_are_warm_until_their_first_use() {
    let mut rig = Rig::with_pool(template(1, 2), NATIVE);
    let lease = rig.lease();
    let (session, sandbox) = rig.session();
    rig.live(QUIET_MS);
    assert_eq!((rig.state(lease.sandbox), rig.state(sandbox)), (Warm, Warm));
    let exec = rig.exec(lease.sandbox);
    assert_eq!(rig.state(lease.sandbox), Running);
    rig.use_ended(exec);
    assert_eq!(rig.state(lease.sandbox), Waiting);
    let exec = rig.session_exec(session);
    assert_eq!(rig.state(sandbox), Running);
    rig.use_ended(exec);
    assert_eq!(rig.state(sandbox), Waiting);
}

#[test]
fn an_exec_whose_client_went_away_before_it_began_leaves_a_fresh_sandbox_warm() {
    // While it was being launched, while a fork was copied, while another was evicted for it.
    for forked in [false, true] {
        let mut rig = stage();
        let (mut session, mut sandbox) = rig.cold_session();
        if forked {
            session = rig.fork(session).0;
            sandbox = rig.targets(copy)[0];
        } else {
            rig.resume(session);
        }
        let (exec, _) = rig.use_of(UseTarget::Session(session), UseKind::Exec);
        rig.client_gone(exec);
        rig.run();
        rig.resumed(session);
        assert_eq!(rig.state(sandbox), Warm, "forked: {forked}");
    }
}

#[test]
fn a_file_call_is_a_use_but_does_not_make_a_sandbox_running() {
    for kind in [UseKind::Files, UseKind::Port] {
        let mut rig = Rig::with_pool(template(1, 1), NATIVE);
        let lease = rig.lease();
        rig.pass(1_000);
        let (request, use_id) = rig.use_of(UseTarget::Sandbox(lease.sandbox), kind);
        assert_eq!(rig.granted(request).sandbox, lease.sandbox);
        assert_eq!(rig.state(lease.sandbox), Waiting);
        let alive = rig.alive(lease.sandbox);
        assert_eq!((alive.uses_in_progress, alive.last_used_at), (1, rig.now.wall));
        rig.use_ended(use_id);
        assert_eq!(rig.alive(lease.sandbox).uses_in_progress, 0);
    }
}

#[test]
fn an_untouched_return_is_warm_again_under_another_id() {
    let mut rig = Rig::with_pool(template(1, 0), NATIVE);
    let lease = rig.lease();
    let instance = rig.instance(lease.sandbox);
    rig.give_back(lease.lease);
    assert!(rig.effects.is_empty(), "nothing has to be done to it");
    let back = rig.only();
    assert_eq!((back.state, back.owner, back.instance), (Warm, Owner::Unowned, Some(instance)));
    assert_ne!(back.id, lease.sandbox);
    assert_eq!(rig.ended(lease.sandbox).cause, EndCause::Returned);
    assert_eq!(rig.terminations(lease.sandbox), [(1, EndCause::Returned)]);
}

#[test]
fn a_wiped_and_proven_return_is_warm_again_under_another_id() {
    let mut rig = Rig::with_pool(template(1, 0), DOCKER);
    let lease = rig.lease();
    rig.use_once(lease.sandbox);
    rig.give_back(lease.lease);
    assert_eq!(rig.only().state, Waiting);
    let late = rig.apply(Event::LeaseRenewed { lease: lease.lease, ttl_ms: None });
    assert_eq!(late.map_err(|refusal| refusal.code), Err(ErrorCode::LeaseLost));
    rig.give_back(lease.lease);
    rig.finish(wipe, Outcome::Done);
    assert_eq!(rig.only().state, Waiting, "a wipe alone proves nothing");
    rig.finish(prove, Outcome::Done);
    assert_eq!((rig.only().state, rig.only().owner), (Warm, Owner::Unowned));
    assert_ne!(rig.only().id, lease.sandbox);
    assert_eq!(rig.ended(lease.sandbox).cause, EndCause::Returned);
}

#[test]
fn a_used_return_is_gone_where_the_runtime_recreates() {
    let mut rig = Rig::with_pool(template(1, 1), NATIVE);
    let lease = rig.lease();
    rig.use_once(lease.sandbox);
    rig.give_back(lease.lease);
    rig.run();
    assert_eq!(rig.ended(lease.sandbox).cause, EndCause::Returned);
    assert_eq!(rig.in_state(Warm).len(), 1);
}

/// What is in the way of a use at the moment it is asked for.
type InTheWay = (&'static str, u64, fn(&Action) -> bool);
const IN_THE_WAY: &[InTheWay] = &[("a probe", 6_000, probe), ("a thaw", QUIET_MS, thaw)];

#[test]
fn marking_running_is_synchronous_whatever_is_in_the_way() {
    for &(what, quiet_ms, effect) in IN_THE_WAY {
        let mut rig = stage();
        let (session, sandbox) = rig.waiting_session();
        rig.live(quiet_ms);
        rig.turn(session);
        assert_eq!(rig.targets(effect), [sandbox], "{what} for a turn");
        assert_eq!(rig.state(sandbox), Running, "{what} for a turn");

        let mut rig = stage();
        let (session, sandbox) = rig.waiting_session();
        rig.live(quiet_ms);
        rig.use_of(UseTarget::Session(session), UseKind::Exec);
        assert_eq!(rig.targets(effect), [sandbox], "{what} for an exec");
        assert_eq!(rig.state(sandbox), Running, "{what} for an exec");
    }
    let mut rig = stage();
    let lease = rig.lease();
    rig.use_once(lease.sandbox);
    rig.live(QUIET_MS);
    rig.use_of(UseTarget::Sandbox(lease.sandbox), UseKind::Exec);
    assert_eq!(rig.targets(thaw), [lease.sandbox]);
    assert_eq!(rig.state(lease.sandbox), Running, "an exec under a lease");
}

#[test]
fn node_statistics_of_a_small_world_are_exact() {
    let mut rig = Rig::with(tight(9, 9), template(1, 5), NATIVE);
    rig.cold_session();
    let (warm_hit, _) = rig.waiting_session();
    let (cold_hit, _) = rig.cold_session();
    rig.pause(warm_hit);
    rig.run();
    rig.resumed(warm_hit);
    rig.resumed(cold_hit);
    let (running, _) = rig.session();
    rig.turn(running);
    rig.run();
    rig.create_session();
    let expected = NodeStats {
        total: 6,
        cold: 1,
        warming: 1,
        warm: 2,
        waiting: 1,
        running: 1,
        max_capacity: 9,
        resume_warm_hits: 1,
        resume_cold_hits: 1,
    };
    assert_eq!(rig.kernel.stats(), expected);
}

#[test]
fn why_tells_of_the_living_what_keeps_them_and_what_comes_next() {
    let mut rig = stage();
    let (session, sandbox) = rig.waiting_session();
    let used_at = rig.alive(sandbox).last_used_at;
    let alive = rig.alive(sandbox);
    assert_eq!((alive.state, alive.owner), (Waiting, Owner::Session(session)));
    assert_eq!((alive.wakefulness, alive.uses_in_progress), (Wakefulness::Auto, 0));
    assert_eq!(alive.freezes_at, Some(used_at.plus(10_000)));
    assert!(alive.sleeps_at.is_some_and(|at| at >= used_at.plus(1_800_000)));
    rig.keep_awake(sandbox);
    let instance = rig.instance(sandbox);
    rig.write_scale(instance, 2, false);
    let alive = rig.alive(sandbox);
    assert_eq!((alive.wakefulness, alive.keep_alive_processes), (Wakefulness::Awake, 1));
    assert_eq!((alive.scale, alive.freezes_at, alive.sleeps_at), (2, None, None));
    let used_at = alive.last_used_at;
    rig.pass(QUIET_MS);
    assert_eq!(rig.alive(sandbox).last_used_at, used_at, "asking is not using");
}

#[test]
fn why_tells_of_the_cold_why_they_sleep_and_of_the_ended_how_they_ended() {
    let mut rig = stage();
    let (session, sandbox) = rig.waiting_session();
    rig.live(HOUR_MS);
    let alive = rig.alive(sandbox);
    assert_eq!((alive.state, alive.slept), (Cold, Some(EndCause::Idle)));
    assert_eq!(rig.terminations(sandbox), [(1, EndCause::Idle)]);
    let lease = rig.lease();
    rig.dies_of(lease.sandbox, DeathCause::Oom);
    rig.run();
    let ended = rig.ended(lease.sandbox);
    assert_eq!((ended.cause, ended.lease, ended.session), (EndCause::Oom, Some(lease.lease), None));
    assert_eq!(ended.ended_at, rig.now.wall);
    rig.end(session);
    rig.run();
    assert_eq!(rig.written_end(sandbox).session, Some(session));
}

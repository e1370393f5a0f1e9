//! Expiry: a sandbox too near its end is not handed out, an expired one ends, and both follow the
//! wall clock wherever it jumps. A renewal never shortens a lease.

use model::{EndCause, ErrorCode, LeaseId, SandboxState, Template, Wall};

use super::rig::{
    NATIVE, Rig, claim, full, instance_of, kill, launch, name, persist, refusal, template,
};
use crate::{Action, CheckoutPolicy, Event, Outcome, Reply, SandboxView};

const HOUR_MS: u64 = 3_600_000;
const DAY_MS: u64 = 24 * HOUR_MS;
const YEAR_MS: u64 = 365 * DAY_MS;

fn with_margin(mut template: Template, margin_ms: Option<u64>) -> Template {
    template.pool.acquire_min_remaining_ttl_ms = margin_ms;
    template
}

fn resize(rig: &mut Rig, pool_size: u32, max_overflow: u32) {
    let resized = Event::PoolResized { template: name(), pool_size, max_overflow };
    assert_eq!(rig.apply(resized), Ok(Reply::Noted));
}

#[track_caller]
fn only_idle(rig: &Rig) -> SandboxView {
    let mut idle = rig.idle();
    assert_eq!(idle.len(), 1);
    idle.remove(0)
}

/// Lets time pass, without a tick, until the sandbox has this much left.
fn age_to(rig: &mut Rig, idle: &SandboxView, left_ms: u64) {
    rig.skip(idle.expires_at.unwrap().since(rig.now.wall) - left_ms);
}

/// An idle sandbox with this much time left, without an alarm since.
fn aged(template: Template, left_ms: u64) -> (Rig, SandboxView) {
    let mut rig = Rig::asking(template, NATIVE);
    let idle = only_idle(&rig);
    age_to(&mut rig, &idle, left_ms);
    (rig, idle)
}

/// Whether a checkout that takes nothing but an idle sandbox gets this one.
fn is_handed_out(rig: &mut Rig, idle: &SandboxView) -> bool {
    let request = rig.checkout_with(|checkout| checkout.policy = CheckoutPolicy::IdleOnly);
    let refused = rig.answer(request).is_some();
    assert_eq!(rig.instances(claim).is_empty(), refused);
    rig.instances(claim) == Vec::from_iter(idle.instance)
}

fn renew(rig: &mut Rig, lease: LeaseId, ttl_ms: Option<u64>) -> Result<Wall, ErrorCode> {
    match rig.apply(Event::LeaseRenewed { lease, ttl_ms }) {
        Ok(Reply::Renewed { expires_at }) => Ok(expires_at),
        Ok(other) => panic!("expected a renewal, found {other:?}"),
        Err(refusal) => Err(refusal.code),
    }
}

#[test]
fn idle_sandbox_with_30_s_left_and_a_margin_of_60_s_is_skipped_killed_and_replaced() {
    let mut rig = Rig::with_pool(with_margin(template(1, 10), Some(60_000)), NATIVE);
    let old = only_idle(&rig);
    // So much later that no jitter makes the second one end first.
    rig.live(3 * HOUR_MS);
    resize(&mut rig, 2, 9);
    rig.run();
    let young = rig.idle().into_iter().find(|idle| idle.id != old.id).unwrap();
    age_to(&mut rig, &old, 30_000);
    let request = rig.checkout();
    assert_eq!(rig.instances(kill), Vec::from_iter(old.instance), "it is killed, not leaked");
    rig.finish(claim, Outcome::Done);
    assert_eq!(rig.checked_out(request).sandbox, young.id, "the next one is returned");
    assert_eq!(rig.count(kill), 1, "the caller did not wait for the removal");
    rig.run();
    assert_eq!(rig.end_cause(old.id), EndCause::NearExpiry);
    assert_eq!(rig.pool().counters.discarded_near_expiry, 1);
    assert_eq!(rig.pool().idle, 2, "the pool is refilled");
}

#[test]
fn an_unset_margin_means_60_s() {
    for (left_ms, handed_out) in [(30_000, false), (60_000, false), (60_001, true)] {
        let (mut rig, idle) = aged(with_margin(template(1, 0), None), left_ms);
        assert_eq!(is_handed_out(&mut rig, &idle), handed_out, "{left_ms} ms left");
    }
}

#[test]
fn idle_sandbox_with_exactly_60_s_left_is_refused() {
    let (mut rig, idle) = aged(with_margin(template(1, 0), Some(60_000)), 60_000);
    assert!(!is_handed_out(&mut rig, &idle));
    let (mut rig, idle) = aged(with_margin(template(1, 0), Some(60_000)), 60_001);
    assert!(is_handed_out(&mut rig, &idle));
}

#[test]
fn an_unset_margin_leaves_half_of_a_short_life() {
    for (left_ms, handed_out) in [(5_000, false), (5_001, true)] {
        let mut short = template(1, 0);
        short.pool.idle_ttl_ms = 10_000;
        let (mut rig, idle) = aged(short, left_ms);
        assert_eq!(is_handed_out(&mut rig, &idle), handed_out, "{left_ms} ms left");
    }
}

#[test]
fn a_margin_of_0_opts_out_but_the_dead_stay_dead() {
    for (left_ms, handed_out) in [(1, true), (0, false)] {
        let (mut rig, idle) = aged(with_margin(template(1, 0), Some(0)), left_ms);
        assert_eq!(is_handed_out(&mut rig, &idle), handed_out, "{left_ms} ms left");
    }
}

#[test]
fn an_overflow_launch_replaces_what_was_too_near_its_end() {
    let (mut rig, idle) = aged(template(1, 1), 30_000);
    let request = rig.checkout();
    assert!(rig.count(launch) >= 1, "the caller does not wait for the removal");
    rig.finish(launch, Outcome::Done);
    rig.finish(claim, Outcome::Done);
    assert_ne!(rig.checked_out(request).sandbox, idle.id);
}

#[test]
fn near_expiry_is_reaped_by_time_alone() {
    let mut rig = Rig::with_pool(template(1, 1), NATIVE);
    let idle = only_idle(&rig);
    let left_ms = idle.expires_at.unwrap().since(rig.now.wall);
    rig.pass(left_ms - 60_001);
    assert_eq!((rig.count(kill), rig.pool().idle), (0, 1));
    rig.pass(1);
    assert_eq!(rig.instances(kill), Vec::from_iter(idle.instance));
    assert_eq!(rig.count(launch), 1, "its replacement does not wait for the removal");
    rig.run();
    assert_eq!(rig.pool().idle, 1);
    assert_eq!(rig.end_causes(idle.id), [EndCause::NearExpiry]);
}

#[test]
fn machine_that_slept_ends_expired_sandboxes_and_leases() {
    let (mut rig, lease) = full();
    let leased = rig.kernel.sandboxes().remove(0);
    // The monotonic clock stood still, and the first event after it is not a tick.
    rig.now.wall = rig.now.wall.plus(HOUR_MS);
    rig.checkout();
    assert_eq!(rig.kernel.next_wake(), Some(rig.now.mono), "it is looked at now");
    rig.tick();
    assert_eq!(rig.instances(kill), Vec::from_iter(leased.instance));
    assert_eq!(renew(&mut rig, lease, None), Err(ErrorCode::LeaseLost));

    let mut rig = Rig::with_pool(template(1, 0), NATIVE);
    rig.now.wall = rig.now.wall.plus(DAY_MS);
    rig.tick();
    assert_eq!((rig.count(kill), rig.pool().counters.discarded_near_expiry), (1, 1));
}

#[test]
fn clock_set_back_gives_more_time_and_loses_no_lease() {
    let mut rig = Rig::with_pool(template(1, 0), NATIVE);
    let idle = only_idle(&rig);
    let left_ms = idle.expires_at.unwrap().since(rig.now.wall);
    rig.now.wall = Wall(rig.now.wall.0 - HOUR_MS);
    rig.pass(left_ms - 1);
    assert_eq!(rig.count(kill), 0);
    rig.pass(HOUR_MS - 60_000);
    assert_eq!(rig.count(kill), 0);
    rig.pass(1);
    assert_eq!(rig.count(kill), 1);
}

#[test]
fn sandboxes_launched_together_do_not_expire_together() {
    let rig = Rig::with_pool(template(20, 0), NATIVE);
    let mut lives: Vec<u64> =
        rig.idle().iter().map(|idle| idle.expires_at.unwrap().since(rig.now.wall)).collect();
    lives.sort_unstable();
    assert!(lives[0] >= DAY_MS * 9 / 10, "a tenth of the life at most");
    assert!(lives[19] <= DAY_MS);
    assert!(lives[19] - lives[0] > DAY_MS / 20, "they are spread: {lives:?}");
    lives.dedup();
    assert_eq!(lives.len(), 20);
}

#[test]
fn jitter_never_eats_the_margin() {
    let mut tight = with_margin(template(50, 0), Some(9_990));
    tight.pool.idle_ttl_ms = 10_000;
    let rig = Rig::with_pool(tight, NATIVE);
    assert_eq!(rig.idle().len(), 50);
    let ends = |idle: &SandboxView| idle.expires_at.unwrap().since(rig.now.wall);
    assert!(rig.idle().iter().all(|idle| ends(idle) > 9_990));
}

#[test]
fn idle_lifetime_begins_when_the_sandbox_becomes_idle() {
    let mut short = template(1, 0);
    short.pool.idle_ttl_ms = 100_000;
    let mut rig = Rig::new(model::NodeConfig::default());
    rig.put(short, NATIVE);
    rig.pass(29_000);
    rig.finish(launch, Outcome::Done);
    let left_ms = |rig: &Rig| only_idle(rig).expires_at.unwrap().since(rig.now.wall);
    assert!(left_ms(&rig) >= 90_000, "the launch took none of it");
    rig.pass(9_000);
    let lease = rig.lease();
    rig.give_back(lease.lease);
    assert!(left_ms(&rig) >= 90_000, "a return gives a fresh one");
}

#[test]
fn the_claim_sets_the_new_expiry_first() {
    let (mut rig, idle) = aged(with_margin(template(1, 0), Some(0)), 1_000);
    let request = rig.checkout();
    let until = rig.now.wall.plus(600_000);
    assert_eq!(rig.kernel.sandbox(idle.id).unwrap().expires_at, Some(until));
    rig.pass(2_000);
    assert_eq!(rig.count(kill), 0, "nothing expires while it is being checked");
    let bound = rig.finish(claim, Outcome::Done);
    let Action::Claim { expires_at, .. } = bound.action else { unreachable!() };
    assert_eq!(expires_at, Some(until));
    assert_eq!(rig.checked_out(request).expires_at, until);
}

#[test]
fn a_lease_ends_at_its_time_also_when_it_is_running() {
    for (ttl_ms, ends_ms) in [(None, 600_000), (Some(1_000), 1_000)] {
        let mut rig = Rig::with_pool(template(1, 0), NATIVE);
        let request = rig.checkout_with(|checkout| checkout.ttl_ms = ttl_ms);
        rig.run();
        let lease = rig.checked_out(request);
        assert_eq!(lease.expires_at, rig.now.wall.plus(ends_ms));
        let exec = rig.exec(lease.sandbox);
        rig.pass(ends_ms - 1);
        assert_eq!(rig.state(lease.sandbox), SandboxState::Running);
        rig.pass(1);
        assert_eq!(rig.instances(kill), [lease.instance]);
        let (broken, refusal) = rig.broken.remove(0);
        assert_eq!((broken, refusal.code), (exec, ErrorCode::SandboxGone));
        assert!(refusal.cause.contains(EndCause::LeaseExpired.in_words()), "{}", refusal.cause);
        assert_eq!(renew(&mut rig, lease.lease, None), Err(ErrorCode::LeaseLost));
        rig.run();
        assert_eq!(rig.end_causes(lease.sandbox), [EndCause::LeaseExpired]);
        assert_eq!(rig.pool().idle, 1, "another takes its place");
    }
}

#[test]
fn a_renewal_gives_time_and_never_takes_any() {
    let (mut rig, lease) = full();
    let began = rig.now.wall;
    rig.pass(1_000);
    assert_eq!(renew(&mut rig, lease, Some(1)), Ok(began.plus(600_000)));
    assert_eq!(renew(&mut rig, lease, None), Ok(began.plus(601_000)));
    assert_eq!(renew(&mut rig, lease, Some(HOUR_MS)), Ok(began.plus(HOUR_MS + 1_000)));
    rig.pass(HOUR_MS - 1);
    assert_eq!(rig.count(kill), 0, "it outlives its first end");
    rig.pass(1);
    assert_eq!(rig.count(kill), 1);
}

#[test]
fn a_renewal_that_cannot_be_right_is_refused() {
    let (mut rig, lease) = full();
    for ttl_ms in [0, YEAR_MS + 1, u64::MAX] {
        let renewed = renew(&mut rig, lease, Some(ttl_ms));
        assert_eq!(renewed, Err(ErrorCode::InvalidArgument), "{ttl_ms} ms");
    }
    assert!(renew(&mut rig, lease, Some(YEAR_MS)).is_ok());
    let unknown = LeaseId::from_u128(99);
    assert_eq!(renew(&mut rig, unknown, None), Err(ErrorCode::LeaseUnknown));
    rig.give_back(lease);
    assert_eq!(renew(&mut rig, lease, None), Err(ErrorCode::LeaseLost));
}

/// A pool of one that lives this long and no longer.
fn mortal(max_lifetime_ms: u64) -> Template {
    let mut mortal = template(1, 0);
    mortal.max_lifetime_ms = Some(max_lifetime_ms);
    mortal
}

#[test]
fn no_lease_outlives_its_sandbox() {
    let mut rig = Rig::with_pool(mortal(120_000), NATIVE);
    let born = rig.now.wall;
    rig.pass(10_000);
    let lease = rig.lease();
    assert_eq!(lease.expires_at, born.plus(120_000));
    assert_eq!(renew(&mut rig, lease.lease, Some(HOUR_MS)), Ok(born.plus(120_000)));
    rig.exec(lease.sandbox);
    rig.pass(110_000);
    rig.run();
    assert_eq!(rig.end_cause(lease.sandbox), EndCause::LifetimeOver);
}

#[test]
fn a_return_does_not_make_a_sandbox_young_again() {
    let mut rig = Rig::with_pool(mortal(120_000), NATIVE);
    let end = rig.now.wall.plus(120_000);
    rig.pass(9_000);
    let lease = rig.lease();
    rig.give_back(lease.lease);
    assert_eq!(only_idle(&rig).expires_at, Some(end));
    rig.pass(51_000);
    assert_eq!(rig.count(kill), 1, "less than the margin is left");
}

#[test]
fn a_session_is_not_cut_off_in_the_middle_of_a_turn() {
    let mut rig = Rig::with_pool(mortal(120_000), NATIVE);
    let (session, sandbox) = rig.session();
    // Between turns its end is on the clock; the next turn must not be caught by it.
    rig.whole_turn(session);
    rig.live(119_000);
    let (request, turn) = rig.turn(session);
    rig.run();
    let instance = rig.session_ready(request).instance;
    rig.live(60_000);
    assert_eq!(rig.state(sandbox), SandboxState::Running);
    rig.end_turn(session, turn);
    rig.pass(0);
    assert_eq!(rig.instances(persist), [instance], "its files come first");
    assert!(!rig.instances(kill).contains(&instance));
    rig.run();
    assert_eq!(rig.state(sandbox), SandboxState::Cold);
    assert_eq!(rig.end_causes(sandbox), [EndCause::LifetimeOver]);
    let ready = rig.whole_turn(session);
    assert!(ready.lost().is_none());
}

#[test]
fn expired_idle_sandbox_is_not_handed_out() {
    for margin_ms in [None, Some(0)] {
        let mut rig = Rig::with_pool(with_margin(mortal(100_000), margin_ms), NATIVE);
        let idle = only_idle(&rig);
        assert_eq!(idle.expires_at, Some(rig.now.wall.plus(100_000)));
        rig.skip(100_000);
        assert!(!is_handed_out(&mut rig, &idle));
        assert_eq!(rig.instances(kill), Vec::from_iter(idle.instance));
    }
}

#[test]
fn waiter_does_not_get_a_sandbox_that_is_about_to_expire() {
    let mut rig = Rig::with_pool(mortal(120_000), NATIVE);
    let lease = rig.lease();
    rig.pass(9_000);
    rig.skip(60_000);
    let request = rig.checkout();
    rig.give_back(lease.lease);
    assert_eq!(rig.instances(kill), [lease.instance]);
    assert_eq!(rig.count(claim), 0);
    let killed = rig.finish(kill, Outcome::Done);
    rig.run();
    assert_ne!(Some(rig.checked_out(request).instance), instance_of(&killed.action));
    let late = rig.checkout_with(|checkout| checkout.policy = CheckoutPolicy::IdleOnly);
    assert_eq!(refusal(&rig, late).code, ErrorCode::PoolEmpty);
}

/// Alarms that were set between a step back and a step forward of the clock are not late.
#[test]
fn a_clock_that_goes_back_and_forth_makes_no_lease_last_longer() {
    let mut rig = Rig::with_pool(template(1, 0), NATIVE);
    rig.now.wall = Wall(rig.now.wall.0 - 900);
    rig.tick();
    let request = rig.checkout_with(|checkout| checkout.ttl_ms = Some(5_000));
    rig.run();
    let lease = rig.checked_out(request);
    rig.now.wall = rig.now.wall.plus(1_800);
    rig.tick();
    rig.pass(3_300);
    rig.run();
    assert_eq!(rig.end_causes(lease.sandbox), [EndCause::LeaseExpired]);
}

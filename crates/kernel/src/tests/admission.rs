//! Places are reserved before anything is launched and released exactly once, whatever fails in
//! between; callers without a place are refused or wait in order.

use model::{EndCause, ErrorCode, NodeConfig, RequestId, SandboxState, TemplateName};

use super::rig::{
    DOCKER, FRESH_MS, NATIVE, Rig, claim, delete_workspace, gone, kill, launch, name, persist,
    template, trouble,
};
use super::rig_steps::{Cases, other, tight};
use crate::{CheckoutPath, CheckoutPolicy, Event, Outcome, Reply};

#[test]
fn a_hundred_sessions_at_once_never_exceed_two_processes() {
    let mut rig = Rig::with(tight(1000, 2), template(0, 100), NATIVE);
    rig.session_wait_ms = Some(0);
    let requests: Vec<RequestId> = (0..100)
        .map(|_| {
            let (_, request) = rig.create_session();
            rig.within_limits();
            request
        })
        .collect();
    assert_eq!(rig.count(launch), 2);
    rig.run_within_limits();
    let refused = requests.iter().filter(|r| matches!(rig.answer(**r), Some(Err(_)))).count();
    assert_eq!(refused, 98, "nothing may be evicted while it is being started");
    for refusal in requests.iter().filter_map(|r| rig.answer(*r)?.as_ref().err()) {
        assert_eq!(refusal.code, ErrorCode::CapacityExhausted);
        assert!(refusal.retry_after_ms.is_some(), "the refusal says when to come back");
    }
}

#[test]
fn a_hundred_checkouts_at_once_never_exceed_two_processes_and_are_all_served() {
    let mut rig = Rig::with(tight(1000, 2), template(0, 100), NATIVE);
    let requests: Vec<RequestId> = (0..100)
        .map(|_| {
            let request = rig.checkout();
            rig.within_limits();
            request
        })
        .collect();
    assert_eq!(rig.count(launch), 2);
    for request in requests {
        rig.run_within_limits();
        // First come, first served: this one is next.
        let lease = rig.checked_out(request);
        rig.give_back(lease.lease);
    }
}

#[test]
fn sessions_that_are_done_make_room_for_any_number_of_others() {
    for traits in [NATIVE, DOCKER] {
        let mut rig = Rig::with(tight(1000, 3), template(1, 100), traits);
        for _ in 0..50 {
            let (session, request) = rig.create_session();
            rig.run_within_limits();
            rig.session_ready(request);
            rig.whole_turn(session);
            rig.run_within_limits();
        }
        assert!(rig.kernel.stats().cold >= 47);
    }
}

#[test]
fn entries_are_bounded_however_many_processes_there_may_be() {
    let mut rig = Rig::with(tight(3, 100), template(2, 50), NATIVE);
    for _ in 0..20 {
        let (session, request) = rig.create_session();
        rig.run_within_limits();
        rig.session_ready(request);
        rig.whole_turn(session);
    }
    assert_eq!(rig.kernel.stats().total, 3);
    let leases: Vec<_> = (0..3).map(|_| rig.lease()).collect();
    rig.within_limits();
    let request = rig.checkout_with(|checkout| checkout.policy = CheckoutPolicy::FailFast);
    assert_eq!(rig.refused(request), ErrorCode::CapacityExhausted);
    rig.give_back(leases[0].lease);
    rig.lease();
}

#[test]
fn memory_is_bounded_by_the_sum_of_limits() {
    let small = || {
        let mut template = other("small", 0, 10);
        template.limits.memory_mb = 256;
        template
    };
    let config = NodeConfig { memory_budget_mb: Some(1024), ..NodeConfig::default() };
    let mut rig = Rig::with(config, template(0, 10), NATIVE);
    rig.put(small(), NATIVE);
    let big = rig.lease();
    let of_small = |checkout: &mut crate::Checkout| {
        checkout.template = TemplateName::new("small").unwrap();
        checkout.policy = CheckoutPolicy::FailFast;
    };
    let fits = [rig.checkout_with(of_small), rig.checkout_with(of_small)];
    let too_much = rig.checkout_with(of_small);
    rig.run_within_limits();
    for request in fits {
        rig.checked_out(request);
    }
    assert_eq!(rig.refused(too_much), ErrorCode::CapacityExhausted);
    rig.give_back(big.lease);
    // A sandbox returned untouched is idle and is evicted.
    let fits = rig.checkout_with(of_small);
    rig.run_within_limits();
    rig.checked_out(fits);
}

#[test]
fn an_applicant_larger_than_the_whole_budget_is_refused_at_once() {
    let config = NodeConfig { memory_budget_mb: Some(100), ..NodeConfig::default() };
    let mut rig = Rig::with(config, template(0, 10), NATIVE);
    let (_, request) = rig.create_session();
    assert_eq!(rig.refused(request), ErrorCode::CapacityExhausted);
    rig.nothing_reserved();
}

/// How a launch can fail.
const FAILURES: Cases<fn(&mut Rig)> = &[
    ("it fails", |rig| {
        rig.finish(launch, trouble());
    }),
    ("it is gone", |rig| {
        rig.finish(launch, gone());
    }),
    ("it takes too long", |rig| rig.pass(30_000)),
    ("it dies", |rig| {
        let sandbox = rig.targets(launch)[0];
        rig.dies(sandbox);
    }),
];

#[test]
fn a_failed_launch_gives_its_place_back_once_it_is_confirmed_as_removed() {
    for (what, fails) in FAILURES {
        let mut rig = Rig::with(tight(10, 1), template(0, 1), NATIVE);
        let request = rig.checkout();
        fails(&mut rig);
        assert_eq!(rig.processes(), 1, "{what}: something of it may be left");
        assert_eq!(rig.count(kill), 1, "{what}");
        rig.finish(kill, trouble());
        assert_eq!(rig.processes(), 1, "{what}: it could not be removed");
        rig.pass(1_000);
        rig.finish(kill, Outcome::Done);
        rig.nothing_reserved();
        assert!(!rig.pending(request), "{what}: the waiting caller is refused");
        let slots = rig.kernel.pool_stats(&name()).unwrap().slots_used;
        assert_eq!(slots, 0, "{what}: the slot is free again");
        rig.effects.clear();
        rig.lease();
    }
}

#[test]
fn a_failed_launch_of_a_session_gives_its_place_back_and_leaves_no_session() {
    for (what, fails) in FAILURES {
        let mut rig = Rig::with(tight(10, 1), template(0, 1), NATIVE);
        let (session, request) = rig.create_session();
        fails(&mut rig);
        rig.run();
        let expected = if *what == "it takes too long" {
            ErrorCode::ReadyTimeout
        } else {
            ErrorCode::LaunchFailed
        };
        assert_eq!(rig.refused(request), expected, "{what}");
        rig.nothing_reserved();
        assert!(rig.kernel.session(session).is_none(), "{what}: no client heard of it");
        assert_eq!(rig.kernel.stats().total, 0, "{what}");
        rig.session();
    }
}

#[test]
fn a_late_completion_gives_nothing_back_twice() {
    let mut rig = Rig::with(tight(10, 1), template(0, 1), NATIVE);
    rig.create_session();
    let late = rig.effects.front().cloned().unwrap();
    rig.pass(30_000);
    rig.end_effect(&late, trouble());
    rig.end_effect(&late, Outcome::Done);
    let killed = rig.finish(kill, Outcome::Done);
    rig.end_effect(&killed, Outcome::Done);
    rig.end_effect(&late, Outcome::Done);
    rig.nothing_reserved();
}

#[test]
fn a_session_whose_client_goes_away_gives_back_whatever_it_had() {
    // While it is being launched.
    let mut rig = Rig::with(tight(10, 1), template(0, 1), NATIVE);
    let (session, request) = rig.create_session();
    rig.client_gone(request);
    rig.run();
    rig.nothing_reserved();
    assert!(rig.kernel.session(session).is_none());
    // While it is being bound to an idle one.
    let mut rig = Rig::with(tight(10, 1), template(1, 0), NATIVE);
    let (session, request) = rig.create_session();
    assert_eq!(rig.count(claim), 1);
    rig.client_gone(request);
    rig.run();
    assert!(rig.kernel.session(session).is_none());
    assert_eq!(rig.only().state, SandboxState::Warm, "another one takes its place");
    // While it waits for an eviction.
    let mut rig = Rig::with(tight(10, 1), template(0, 1), NATIVE);
    let (resting, sandbox) = rig.waiting_session();
    let (session, request) = rig.create_session();
    assert_eq!(rig.targets(persist), [sandbox]);
    rig.client_gone(request);
    assert!(rig.kernel.session(session).is_none());
    rig.run();
    rig.nothing_reserved();
    assert_eq!(rig.whole_turn(resting).sandbox, sandbox);
}

#[test]
fn a_checkout_whose_client_goes_away_gives_back_whatever_it_had() {
    // While it is queued behind another.
    let mut rig = Rig::with(tight(10, 1), template(0, 5), NATIVE);
    let first = rig.lease();
    let waiting = [rig.checkout(), rig.checkout(), rig.checkout()];
    rig.client_gone(waiting[1]);
    rig.give_back(first.lease);
    rig.run_within_limits();
    let second = rig.checked_out(waiting[0]);
    rig.give_back(second.lease);
    rig.run_within_limits();
    let third = rig.checked_out(waiting[2]);
    assert!(rig.pending(waiting[1]), "no caller is answered");
    rig.give_back(third.lease);
    // While it is being bound.
    rig.skip(FRESH_MS);
    let request = rig.checkout();
    assert_eq!(rig.count(claim), 1);
    rig.client_gone(request);
    rig.run();
    let stats = rig.kernel.pool_stats(&name()).unwrap();
    assert_eq!((stats.leased, stats.idle, stats.slots_used), (0, 1, 1));
    // While one is launched for it: then it is unowned and serves the next caller.
    let mut rig = Rig::with(tight(10, 1), template(0, 5), NATIVE);
    let request = rig.checkout();
    rig.client_gone(request);
    rig.run();
    assert_eq!(rig.only().state, SandboxState::Warm);
    assert_eq!(rig.lease().path, CheckoutPath::Fast);
}

#[test]
fn a_kill_that_fails_keeps_its_place_until_one_works() {
    let mut rig = Rig::with(tight(10, 1), template(0, 5), NATIVE);
    let lease = rig.lease();
    rig.use_once(lease.sandbox);
    rig.give_back(lease.lease);
    let next = rig.checkout();
    for pause_ms in [1_000, 2_000, 4_000, 8_000] {
        rig.finish(kill, trouble());
        rig.within_limits();
        assert_eq!(rig.count(launch), 0, "its place is still taken");
        rig.pass(pause_ms);
    }
    rig.run_within_limits();
    rig.checked_out(next);
    assert_eq!(rig.terminations(lease.sandbox), [(1, EndCause::Returned)]);
}

#[test]
fn checkout_without_a_victim_is_refused_or_waits_by_its_policy() {
    let mut rig = Rig::with(tight(10, 1), template(0, 5), NATIVE);
    rig.session_wait_ms = Some(0);
    let busy = rig.lease();
    let impatient = rig.checkout_with(|checkout| checkout.policy = CheckoutPolicy::FailFast);
    assert_eq!(rig.refused(impatient), ErrorCode::CapacityExhausted);
    let no_time = rig.checkout_with(|checkout| checkout.wait_ms = Some(0));
    assert_eq!(rig.refused(no_time), ErrorCode::CapacityExhausted);
    let (_, session) = rig.create_session();
    assert_eq!(rig.refused(session), ErrorCode::CapacityExhausted);
    let patient = rig.checkout_with(|checkout| checkout.wait_ms = Some(5_000));
    let longer = rig.checkout_with(|checkout| checkout.wait_ms = Some(9_000));
    rig.pass(4_999);
    assert!(rig.pending(patient));
    rig.pass(1);
    assert_eq!(rig.refused(patient), ErrorCode::CheckoutTimeout);
    assert!(rig.pending(longer), "its deadline is its own");
    rig.give_back(busy.lease);
    rig.run_within_limits();
    rig.checked_out(longer);
}

#[test]
fn places_are_given_in_order_of_arrival_across_pools_and_sessions() {
    let mut rig = Rig::with(tight(10, 1), template(0, 5), NATIVE);
    rig.put(other("u", 0, 5), NATIVE);
    let busy = rig.lease();
    rig.use_once(busy.sandbox);
    rig.give_back(busy.lease);
    // The kill is in progress, so there is hope for one of each, in this order.
    let of_u = |checkout: &mut crate::Checkout| {
        checkout.template = TemplateName::new("u").unwrap();
    };
    let first = rig.checkout_with(of_u);
    let second = rig.checkout();
    let third = rig.checkout_with(of_u);
    for request in [first, second, third] {
        rig.run_within_limits();
        let lease = rig.checked_out(request);
        rig.use_once(lease.sandbox);
        rig.give_back(lease.lease);
    }
    // A session stands in the same line: it is served before a checkout that came later.
    let (_, session) = rig.create_session();
    let later = rig.checkout_with(of_u);
    rig.finish(kill, Outcome::Done);
    assert_eq!(rig.launches()[0].template.name, name());
    assert!(rig.pending(later));
    rig.run_within_limits();
    rig.session_ready(session);
    rig.checked_out(later);
}

#[test]
fn a_refill_never_evicts() {
    let mut rig = Rig::with(tight(10, 2), template(0, 5), NATIVE);
    let (_, first) = rig.waiting_session();
    let (_, second) = rig.waiting_session();
    rig.put(other("u", 2, 5), NATIVE);
    rig.live(60_000);
    assert_eq!(
        (rig.state(first), rig.state(second)),
        (SandboxState::Waiting, SandboxState::Waiting)
    );
    assert_eq!(rig.kernel.stats().warm, 0);
}

#[test]
fn a_refill_takes_no_place_that_someone_waits_for() {
    let mut rig = Rig::with(tight(10, 1), template(0, 5), NATIVE);
    rig.put(other("u", 1, 5), NATIVE);
    rig.run();
    let busy = rig.checkout_with(|checkout| checkout.template = TemplateName::new("u").unwrap());
    rig.run();
    let busy = rig.checked_out(busy);
    rig.use_once(busy.sandbox);
    let waiting = rig.checkout();
    // The place that becomes free is that of the pool which wants to refill.
    rig.give_back(busy.lease);
    rig.finish(kill, Outcome::Done);
    assert_eq!(rig.launches()[0].template.name, name());
    rig.run_within_limits();
    rig.checked_out(waiting);
}

#[test]
fn a_starved_pool_refills_as_soon_as_there_is_room() {
    for touched in [true, false] {
        let mut rig = Rig::with(tight(10, 2), template(0, 5), NATIVE);
        let leases = [rig.lease(), rig.lease()];
        rig.put(other("u", 2, 5), NATIVE);
        rig.run();
        assert_eq!(rig.kernel.stats().warm, 2, "both are leased");
        if touched {
            rig.use_once(leases[0].sandbox);
        }
        rig.give_back(leases[0].lease);
        rig.live(31_000);
        let of_u = rig.kernel.pool_stats(&TemplateName::new("u").unwrap()).unwrap();
        assert_eq!(of_u.idle, 1, "touched: {touched}");
        rig.within_limits();
    }
}

#[test]
fn room_made_by_a_deleted_cold_record_is_noticed_by_a_starved_pool() {
    let mut rig = Rig::with(tight(2, 5), template(0, 5), NATIVE);
    let (_, cold) = rig.cold_session();
    rig.put(other("u", 2, 5), NATIVE);
    rig.run();
    assert_eq!(rig.kernel.stats().warm, 1);
    rig.delete(cold);
    rig.run();
    assert_eq!(rig.kernel.stats().warm, 2);
}

#[test]
fn a_larger_limit_of_slots_lets_those_who_wait_in() {
    let mut rig = Rig::with(tight(10, 5), template(0, 1), NATIVE);
    rig.lease();
    let waiting = rig.checkout();
    rig.run();
    assert!(rig.pending(waiting), "the only slot is taken");
    let resized = Event::PoolResized { template: name(), pool_size: 0, max_overflow: 2 };
    assert_eq!(rig.apply(resized), Ok(Reply::Noted));
    rig.run();
    rig.checked_out(waiting);
}

#[test]
fn removals_that_fail_are_tried_again_with_growing_pauses() {
    let mut rig = Rig::with_pool(template(0, 1), NATIVE);
    let (_, sandbox) = rig.session();
    rig.delete(sandbox);
    for pause_ms in [1_000, 2_000, 4_000] {
        rig.finish(kill, trouble());
        rig.pass(pause_ms - 1);
        assert_eq!(rig.count(kill), 0);
        rig.pass(1);
        assert_eq!(rig.count(kill), 1);
    }
    let mut rig = Rig::with_pool(template(0, 1), NATIVE);
    let (_, sandbox) = rig.cold_session();
    rig.delete(sandbox);
    for pause_ms in [1_000, 2_000, 4_000] {
        rig.finish(delete_workspace, trouble());
        rig.pass(pause_ms - 1);
        assert_eq!(rig.count(delete_workspace), 0);
        rig.pass(1);
        assert_eq!(rig.count(delete_workspace), 1);
    }
}

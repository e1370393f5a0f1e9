//! Checkouts: the three paths and policies, the order of waiters, what they may request, and when
//! their wait ends.

use std::sync::Arc;

use model::{ErrorCode, NodeConfig, RequestId, TemplateName};

use super::rig::{NATIVE, Rig, claim, full, launch, name, refusal, secret_settings, template};
use crate::{
    Action, Checkout, CheckoutPath, CheckoutPolicy, Event, Outcome, Reply, UseKind, UseTarget,
};

/// A checkout, and what was asked for, to ask for it again.
fn asked(rig: &mut Rig) -> (RequestId, Checkout) {
    let mut kept = None;
    let request = rig.checkout_with(|checkout| kept = Some(checkout.clone()));
    (request, kept.unwrap())
}

#[test]
fn the_fast_path_takes_an_idle_sandbox() {
    let mut rig = Rig::asking(template(1, 0), NATIVE);
    let idle = rig.idle().remove(0);
    let request = rig.checkout();
    assert!(rig.pending(request), "it is proven to answer first");
    rig.finish(claim, Outcome::Done);
    let got = rig.checked_out(request);
    assert_eq!((got.sandbox, got.path, got.uses), (idle.id, CheckoutPath::Fast, 0));
    let counters = rig.pool().counters;
    assert_eq!((counters.fast, counters.overflow, counters.blocked), (1, 0, 0));
}

#[test]
fn the_fast_path_takes_the_oldest() {
    let mut rig = Rig::with_pool(template(1, 2), NATIVE);
    let first = rig.idle().remove(0);
    let grow = Event::PoolResized { template: name(), pool_size: 3, max_overflow: 0 };
    assert_eq!(rig.apply(grow), Ok(Reply::Noted));
    rig.run();
    assert_eq!(rig.lease().sandbox, first.id);
    assert_ne!(rig.lease().sandbox, first.id);
}

#[test]
fn the_overflow_path_starts_one() {
    let mut rig = Rig::with_pool(template(0, 1), NATIVE);
    let request = rig.checkout();
    assert_eq!((rig.count(launch), rig.count(claim)), (1, 0));
    rig.run();
    assert_eq!(rig.checked_out(request).path, CheckoutPath::Overflow);
    let counters = rig.pool().counters;
    assert_eq!((counters.fast, counters.overflow, counters.blocked), (0, 1, 0));
}

#[test]
fn the_blocked_path_waits_for_a_return() {
    let (mut rig, lease) = full();
    let request = rig.checkout();
    rig.run();
    assert!(rig.pending(request));
    assert_eq!(rig.pool().waiters, 1);
    rig.give_back(lease);
    let got = rig.checked_out(request);
    assert_eq!(got.path, CheckoutPath::Blocked, "a return serves the first waiter at once");
    let counters = rig.pool().counters;
    assert_eq!((counters.fast, counters.overflow, counters.blocked), (1, 0, 1));
}

#[test]
fn a_fast_checkout_is_made_up_for_at_once() {
    let mut rig = Rig::with_pool(template(1, 1), NATIVE);
    rig.checkout();
    assert_eq!(rig.count(launch), 1, "refill is rate-limited, never delayed");
}

#[test]
fn checkout_policy_says_how_far_a_checkout_goes() {
    use CheckoutPolicy::{FailFast, IdleOnly, Wait};
    use ErrorCode::{CapacityExhausted, PoolEmpty};
    let idle = || Rig::asking(template(1, 0), NATIVE);
    let slot = || Rig::with_pool(template(0, 1), NATIVE);
    for (policy, wait_ms, on_slot, on_full) in [
        (Wait, None, None, None),
        (FailFast, None, None, Some(CapacityExhausted)),
        (IdleOnly, None, Some(PoolEmpty), Some(PoolEmpty)),
        // One that waits no time at all does not wait for others.
        (Wait, Some(0), None, Some(CapacityExhausted)),
        (FailFast, Some(0), None, Some(CapacityExhausted)),
    ] {
        let rows = [(idle(), None, 1, 0), (slot(), on_slot, 0, 1), (full().0, on_full, 0, 0)];
        for (at, (mut rig, refused, claims, launches)) in rows.into_iter().enumerate() {
            let request = rig.checkout_with(|checkout| {
                (checkout.policy, checkout.wait_ms) = (policy, wait_ms);
            });
            let case = format!("{policy:?} {wait_ms:?} row {at}");
            if let Some(code) = refused {
                assert_eq!(refusal(&rig, request).code, code, "{case}");
                assert!(refusal(&rig, request).retry_after_ms.is_some(), "{case}");
                assert_eq!(rig.pool().counters.refused, 1, "{case}");
                assert_eq!((rig.count(claim), rig.count(launch)), (0, 0), "{case}");
            } else {
                assert!(rig.pending(request), "{case}");
                assert_eq!((rig.count(claim), rig.count(launch)), (claims, launches), "{case}");
            }
        }
    }
}

#[test]
fn a_wait_ends_exactly_at_its_deadline() {
    for (wait_ms, ends_ms) in [(Some(500), 500), (None, 30_000)] {
        let (mut rig, _) = full();
        let request = rig.checkout_with(|checkout| checkout.wait_ms = wait_ms);
        rig.pass(ends_ms - 1);
        assert!(rig.pending(request));
        rig.pass(1);
        assert_eq!(rig.refused(request), ErrorCode::CheckoutTimeout);
        let pool = rig.pool();
        assert_eq!((pool.waiters, pool.counters.timed_out, pool.counters.refused), (0, 1, 0));
    }
}

#[test]
fn checkout_that_does_not_wait_for_others_still_has_a_deadline() {
    let mut slow = template(0, 1);
    slow.ready_timeout_ms = 600_000;
    let mut rig = Rig::with_pool(slow, NATIVE);
    let request = rig.checkout_with(|checkout| checkout.policy = CheckoutPolicy::FailFast);
    rig.pass(29_999);
    assert!(rig.pending(request), "it waits for its own launch");
    rig.pass(1);
    assert_eq!(rig.refused(request), ErrorCode::CapacityExhausted);
    rig.run();
    assert_eq!(rig.pool().idle, 1, "what was started for it is not lost");
}

#[test]
fn too_many_waiters_are_refused() {
    let mut small = template(1, 0);
    small.pool.max_waiters = 2;
    let mut rig = Rig::with_pool(small, NATIVE);
    rig.lease();
    let waiters = [(); 2].map(|()| rig.checkout_with(|checkout| checkout.wait_ms = Some(100)));
    let third = rig.checkout();
    assert_eq!(rig.refused(third), ErrorCode::QueueFull);
    assert!(waiters.iter().all(|waiter| rig.pending(*waiter)));
    rig.pass(100);
    let fourth = rig.checkout();
    assert!(rig.pending(fourth), "there is room in the line again");
}

#[test]
fn checkouts_that_launch_their_own_sandbox_are_no_waiters() {
    let mut small = template(0, 3);
    small.pool.max_waiters = 1;
    let mut rig = Rig::with_pool(small, NATIVE);
    let launching = [(); 3].map(|()| rig.checkout());
    assert_eq!((rig.count(launch), rig.pool().counters.overflow), (3, 3));
    assert!(launching.iter().all(|one| rig.pending(*one)));
    let waiter = rig.checkout();
    assert!(rig.pending(waiter), "no slot is left: it is the first that waits");
    let refused = rig.checkout();
    assert_eq!(rig.refused(refused), ErrorCode::QueueFull);
    rig.run();
    for one in launching {
        assert_eq!(rig.checked_out(one).path, CheckoutPath::Overflow);
    }
    assert_eq!((rig.pool().counters.blocked, rig.pool().counters.refused), (1, 1));
}

#[test]
fn checkout_that_has_a_slot_and_no_place_is_a_waiter() {
    let mut small = template(0, 5);
    small.pool.max_waiters = 1;
    let config = NodeConfig { max_live: 1, ..NodeConfig::default() };
    let mut rig = Rig::with(config, small, NATIVE);
    rig.lease();
    let waiter = rig.checkout();
    let refused = rig.checkout();
    assert!(rig.pending(waiter));
    assert_eq!(rig.refused(refused), ErrorCode::QueueFull);
}

#[test]
fn waiters_are_served_in_order_of_arrival() {
    let (mut rig, mut lease) = full();
    let waiters = [(); 4].map(|()| rig.checkout());
    let _ = rig.apply(Event::ClientGone { request: waiters[1] });
    for (at, waiter) in [(0, waiters[0]), (2, waiters[2]), (3, waiters[3])] {
        rig.give_back(lease);
        rig.run();
        lease = rig.checked_out(waiter).lease;
        assert!(waiters[at + 1..].iter().all(|later| rig.pending(*later)), "no caller overtakes");
    }
}

#[test]
fn a_newcomer_does_not_overtake_one_who_waits() {
    let (mut rig, lease) = full();
    let first = rig.checkout();
    rig.give_back(lease);
    let newcomer = rig.checkout();
    rig.run();
    rig.checked_out(first);
    assert!(rig.pending(newcomer));
}

#[test]
fn settings_are_bound_when_the_sandbox_is_claimed() {
    for (pool, given) in [(template(1, 0), true), (template(0, 1), true), (template(1, 0), false)] {
        let mut rig = Rig::asking(pool, NATIVE);
        // Asking for nothing is not asking.
        let settings = if given { secret_settings() } else { Arc::default() };
        let request = rig.checkout_with(|checkout| checkout.claim = Some(Arc::clone(&settings)));
        if rig.count(launch) == 1 {
            let started = rig.finish(launch, Outcome::Done);
            let Action::Launch(launched) = started.action else { unreachable!() };
            assert_eq!(launched.settings, None, "a pool sandbox is born without any");
        }
        let bound = rig.finish(claim, Outcome::Done);
        let Action::Claim { settings: bound, .. } = bound.action else { unreachable!() };
        let expected = given.then_some(settings);
        assert_eq!(bound, expected);
        let sandbox = UseTarget::Sandbox(rig.checked_out(request).sandbox);
        let (granted, _) = rig.use_of(sandbox, UseKind::Exec);
        assert_eq!(rig.granted(granted).settings, expected);
    }
}

#[test]
fn a_repeated_checkout_is_recognised() {
    let mut rig = Rig::asking(template(1, 0), NATIVE);
    let (request, checkout) = asked(&mut rig);
    let again = Event::CheckoutRequested(checkout.clone());
    assert_eq!(rig.apply(again.clone()), Ok(Reply::Pending));
    assert_eq!(rig.count(claim), 1);
    rig.run();
    let got = rig.checked_out(request);
    assert_eq!(rig.apply(again), Ok(Reply::CheckedOut(got)));
    assert_eq!((rig.pool().leased, rig.count(claim)), (1, 0));
}

#[test]
fn the_id_of_a_lease_is_used_once() {
    let conflict = |rig: &mut Rig, lease| {
        let request = rig.checkout_with(|checkout| checkout.lease = lease);
        assert_eq!(rig.refused(request), ErrorCode::IdConflict);
    };
    let mut rig = Rig::asking(template(1, 0), NATIVE);
    let (_, claiming) = asked(&mut rig);
    conflict(&mut rig, claiming.lease);
    rig.run();
    let (_, waiting) = asked(&mut rig);
    conflict(&mut rig, waiting.lease);
    rig.give_back(claiming.lease);
    conflict(&mut rig, claiming.lease);
    assert_eq!(rig.count(claim), 1, "the one who waited is served all the same");
}

#[test]
fn a_checkout_that_cannot_be_right_is_refused() {
    const YEAR_MS: u64 = 365 * 86_400_000;
    let mut rig = Rig::with_pool(template(1, 0), NATIVE);
    let other = TemplateName::new("other").unwrap();
    let request = rig.checkout_with(|checkout| checkout.template = other);
    assert_eq!(rig.refused(request), ErrorCode::TemplateUnknown);
    for ttl_ms in [0, YEAR_MS + 1, u64::MAX] {
        let request = rig.checkout_with(|checkout| checkout.ttl_ms = Some(ttl_ms));
        assert_eq!(rig.refused(request), ErrorCode::InvalidArgument);
    }
    let request = rig.checkout_with(|checkout| checkout.ttl_ms = Some(YEAR_MS));
    rig.checked_out(request);
}

#[test]
fn a_checkout_that_waits_for_a_place_on_the_node_is_blocked_too() {
    let config = NodeConfig { max_live: 1, ..NodeConfig::default() };
    let mut rig = Rig::with(config, template(0, 9), NATIVE);
    rig.lease();
    let waiting = rig.checkout();
    let counters = rig.pool().counters;
    assert_eq!((counters.fast, counters.overflow, counters.blocked), (0, 1, 1));
    assert_eq!(rig.pool().launching, 1, "its launch stands in line");
    assert!(rig.pending(waiting));
}

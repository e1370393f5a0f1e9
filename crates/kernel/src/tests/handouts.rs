//! Sandboxes that are handed out without a probe: when, on what proof, and what happens to one that
//! was dead.

use std::collections::BTreeMap;
use std::sync::Arc;

use model::lifecycle::ActiveCause;
use model::record::Owner;
use model::{
    ClaimSettings, EndCause, ErrorCode, InstanceId, LeaseId, LifecycleEvent, NetworkPolicy,
    RequestId, SecretName, SecretUse,
};

use super::rig::{
    DOCKER, FRESH_MS, NATIVE, Rig, TENANT, ask_always, claim, full, kill, launch, name, prove,
    secret_settings, template, wipe,
};
use crate::{
    Action, CheckedOut, Checkout, CheckoutPath, CheckoutPolicy, DeathCause, Event, Outcome, Reply,
    UseKind, UseTarget,
};

/// A checkout that is answered in the same decision.
#[track_caller]
fn at_once(rig: &mut Rig) -> CheckedOut {
    let effects = rig.count(claim);
    let checkout = Checkout {
        request: RequestId::from_u128(rig.id()),
        lease: LeaseId::from_u128(rig.id()),
        tenant: TENANT,
        template: name(),
        ttl_ms: None,
        wait_ms: None,
        policy: CheckoutPolicy::Wait,
        claim: None,
    };
    let answer = rig.apply(Event::CheckoutRequested(checkout));
    let Ok(Reply::CheckedOut(out)) = answer else {
        panic!("expected a checkout, found {answer:?}")
    };
    assert_eq!(rig.count(claim), effects, "no sandbox was probed");
    out
}

#[test]
fn a_sandbox_whose_guest_is_lost_is_not_handed_out_before_its_death_is_known() {
    let mut rig = Rig::with_pool(template(2, 0), DOCKER);
    let (lost, left) = (rig.idle()[0].instance.unwrap(), rig.idle()[1].instance.unwrap());
    rig.apply(Event::GuestLost { instance: lost }).unwrap();
    assert_eq!(rig.instances(kill), [lost]);
    assert_eq!(at_once(&mut rig).instance, left);
    let waiter = rig.checkout();
    rig.run();
    assert_ne!(rig.checked_out(waiter).instance, lost, "the next one is fresh");
}

#[test]
fn a_guest_that_is_lost_during_a_claim_costs_the_caller_nothing() {
    let mut rig = Rig::asking(template(2, 0), DOCKER);
    let waiter = rig.checkout();
    let [lost] = rig.instances(claim)[..] else { panic!("one claim") };
    rig.apply(Event::GuestLost { instance: lost }).unwrap();
    rig.run();
    assert_ne!(rig.checked_out(waiter).instance, lost);
}

#[test]
fn a_lease_that_is_returned_after_its_guest_was_lost_leaves_no_idle_sandbox() {
    let mut rig = Rig::with_pool(template(1, 0), DOCKER);
    let lease = rig.lease();
    rig.apply(Event::GuestLost { instance: lease.instance }).unwrap();
    rig.give_back(lease.lease);
    assert_eq!((rig.pool().idle, rig.instances(wipe)), (0, vec![lease.instance]));
}

#[test]
fn a_lost_guest_of_a_lease_ends_it_with_the_cause_of_its_death() {
    let mut rig = Rig::with_pool(template(1, 0), DOCKER);
    let lease = rig.lease();
    rig.apply(Event::GuestLost { instance: lease.instance }).unwrap();
    assert_eq!(rig.count(kill), 0);
    rig.dies_of(lease.sandbox, DeathCause::Oom);
    rig.run();
    assert_eq!(rig.end_cause(lease.sandbox), EndCause::Oom);
}

#[test]
fn a_fresh_sandbox_is_handed_out_in_the_same_decision() {
    let mut rig = Rig::with_pool(template(1, 1), NATIVE);
    let idle = rig.idle().remove(0);
    let seen = rig.published.len();
    let out = at_once(&mut rig);
    assert_eq!((out.sandbox, out.path, out.uses), (idle.id, CheckoutPath::Fast, 0));
    let record = &rig.store.sandboxes[&out.sandbox];
    assert_eq!((record.owner, record.uses), (Owner::Lease(out.lease), 1));
    assert_eq!(record.expires_at, Some(out.expires_at));
    assert_eq!(out.expires_at, rig.now.wall.plus(template(1, 1).pool.lease_ttl_ms));
    assert_eq!(rig.published.len(), seen + 1, "in the same transaction");
    assert!(matches!(rig.published.last(),
        Some(LifecycleEvent::SandboxActive { sandbox_id, lease, cause: ActiveCause::Created, .. })
            if *sandbox_id == out.sandbox && *lease == Some(out.lease)));
    let pool = rig.pool();
    assert_eq!((pool.leased, pool.idle, pool.counters.fast), (1, 0, 1));
    assert_eq!(rig.count(launch), 1, "it is made up for at once");
    let lasts_ms = out.expires_at.since(rig.now.wall);
    rig.run();
    rig.live(lasts_ms);
    assert_eq!(rig.kernel.why_lease(out.lease), Some(EndCause::LeaseExpired));
}

#[test]
fn a_proof_is_good_for_less_than_the_time_that_is_set() {
    for (age_ms, fresh) in [(0, true), (FRESH_MS - 1, true), (FRESH_MS, false), (60_000, false)] {
        let mut rig = Rig::with_pool(template(1, 0), NATIVE);
        rig.skip(age_ms);
        let request = rig.checkout();
        assert_eq!(rig.count(claim), usize::from(!fresh), "{age_ms} ms");
        assert_eq!(rig.pending(request), !fresh, "{age_ms} ms");
        rig.run();
        rig.checked_out(request);
    }
}

#[test]
fn node_may_require_a_probe_before_every_handout() {
    let mut rig = Rig::with(ask_always(), template(1, 0), NATIVE);
    let request = rig.checkout();
    assert_eq!((rig.count(claim), rig.pending(request)), (1, true));
}

#[test]
fn being_handed_out_proves_nothing_and_a_claim_does() {
    let mut rig = Rig::with_pool(template(1, 0), NATIVE);
    for _ in 0..5 {
        let out = at_once(&mut rig);
        rig.give_back(out.lease);
        rig.skip(FRESH_MS / 5);
    }
    // Its launch is the last that was heard of it.
    let request = rig.checkout();
    assert_eq!(rig.count(claim), 1);
    rig.finish(claim, Outcome::Done);
    let out = rig.checked_out(request);
    assert_eq!(out.uses, 5, "each handout counts as a use");
    rig.give_back(out.lease);
    rig.skip(FRESH_MS - 1);
    at_once(&mut rig);
}

fn secret_use() -> SecretUse {
    let secret = SecretName::new("s").unwrap();
    SecretUse { secret, env: Some("S".to_owned()), file: None, boundary: None }
}

#[test]
fn settings_of_any_kind_are_bound_and_nothing_is_not() {
    let one = || BTreeMap::from([("a".to_owned(), "b".to_owned())]);
    let base = ClaimSettings::default;
    for (settings, binds) in [
        (base(), false),
        (ClaimSettings { env: one(), ..base() }, true),
        (ClaimSettings { labels: one(), ..base() }, true),
        (ClaimSettings { secrets: vec![secret_use()], ..base() }, true),
        (ClaimSettings { network: Some(NetworkPolicy::None), ..base() }, true),
    ] {
        let mut rig = Rig::with_pool(template(1, 0), NATIVE);
        let settings = Arc::new(settings);
        let request = rig.checkout_with(|checkout| checkout.claim = Some(Arc::clone(&settings)));
        assert_eq!((rig.count(claim), rig.pending(request)), (usize::from(binds), binds));
        rig.run();
        let bound = rig.kernel.lease(rig.checked_out(request).lease).and_then(|view| view.claim);
        assert_eq!(bound, binds.then_some(settings));
    }
}

#[test]
fn untouched_sandbox_goes_back_to_its_pool_as_it_is() {
    let mut rig = Rig::with_pool(template(1, 0), NATIVE);
    let first = at_once(&mut rig);
    rig.give_back(first.lease);
    assert!(rig.effects.is_empty(), "neither asked nor made anew");
    let second = at_once(&mut rig);
    assert_eq!(second.instance, first.instance);
    assert_ne!(second.sandbox, first.sandbox);
    rig.use_once(second.sandbox);
    rig.give_back(second.lease);
    assert_eq!(rig.instances(kill), [second.instance]);
}

#[test]
fn waiter_is_served_at_once_by_a_return_a_launch_and_a_proof() {
    let (mut rig, lease) = full();
    let waiter = rig.checkout();
    rig.give_back(lease);
    assert_eq!(rig.checked_out(waiter).path, CheckoutPath::Blocked);
    assert_eq!((rig.pool().leased, rig.count(claim)), (1, 0));
    // What was just started has answered.
    let mut rig = Rig::with_pool(template(0, 1), NATIVE);
    let waiter = rig.checkout();
    rig.finish(launch, Outcome::Done);
    assert_eq!(rig.checked_out(waiter).path, CheckoutPath::Overflow);
    assert_eq!((rig.pool().leased, rig.count(claim)), (1, 0));
    // So has what was just proven clean.
    let mut rig = Rig::with_pool(template(1, 0), DOCKER);
    let lease = at_once(&mut rig);
    rig.use_once(lease.sandbox);
    let waiter = rig.checkout();
    rig.skip(FRESH_MS);
    rig.give_back(lease.lease);
    rig.finish(wipe, Outcome::Done);
    rig.finish(prove, Outcome::Done);
    assert_eq!(rig.checked_out(waiter).instance, lease.instance);
    assert_eq!(rig.count(claim), 0);
}

#[test]
fn waiters_that_can_be_served_at_once_do_not_overtake_those_that_cannot() {
    let mut rig = Rig::with_pool(template(2, 0), NATIVE);
    let leases = [at_once(&mut rig), at_once(&mut rig)];
    let first = rig.checkout_with(|checkout| checkout.claim = Some(secret_settings()));
    let second = rig.checkout();
    rig.give_back(leases[0].lease);
    assert_eq!(rig.instances(claim), [leases[0].instance]);
    assert!(rig.pending(first) && rig.pending(second));
    rig.give_back(leases[1].lease);
    assert_eq!(rig.checked_out(second).instance, leases[1].instance);
    rig.run();
    assert_eq!(rig.checked_out(first).instance, leases[0].instance);
}

#[test]
fn sandbox_handed_out_dead_ends_the_moment_its_death_is_known() {
    for (cause, end, code) in [
        (DeathCause::Crash, EndCause::Crash, ErrorCode::SandboxCrashed),
        (DeathCause::Oom, EndCause::Oom, ErrorCode::Oom),
    ] {
        let mut rig = Rig::with_pool(template(1, 1), NATIVE);
        let out = at_once(&mut rig);
        let exec = rig.exec(out.sandbox);
        rig.die(out.instance, cause);
        assert_eq!(rig.broken.last().map(|(use_id, why)| (*use_id, why.code)), Some((exec, code)));
        assert_eq!(rig.kernel.why_lease(out.lease), Some(end));
        let (request, _) = rig.use_of(UseTarget::Sandbox(out.sandbox), UseKind::Exec);
        assert_eq!(rig.refused(request), ErrorCode::SandboxGone);
        assert_eq!(rig.apply(Event::LeaseReturned { lease: out.lease }), Ok(Reply::Noted));
        rig.run();
        assert_eq!(rig.end_causes(out.sandbox), [end]);
        assert_ne!(rig.lease().instance, out.instance);
    }
}

#[test]
fn sandbox_handed_out_at_once_is_known_after_a_crash() {
    let mut rig = Rig::with_pool(template(1, 0), NATIVE);
    let out = at_once(&mut rig);
    let alive: Vec<InstanceId> = rig.existing.iter().copied().collect();
    rig.restart(&alive);
    let lost = rig.apply(Event::LeaseRenewed { lease: out.lease, ttl_ms: None });
    assert_eq!(lost.map_err(|refusal| refusal.code), Err(ErrorCode::LeaseLost));
    assert_eq!(rig.instances(kill), [out.instance]);
}

#[test]
fn sandbox_that_had_settings_is_claimed_again_even_after_a_wipe() {
    let mut rig = Rig::with_pool(template(1, 0), DOCKER);
    let request = rig.checkout_with(|checkout| checkout.claim = Some(secret_settings()));
    rig.run();
    let first = rig.checked_out(request);
    rig.give_back(first.lease);
    rig.run();
    let request = rig.checkout();
    let bound = rig.finish(claim, Outcome::Done);
    assert!(matches!(bound.action, Action::Claim { settings: None, .. }));
    let second = rig.checked_out(request);
    assert_eq!(second.instance, first.instance);
    rig.give_back(second.lease);
    assert_eq!(at_once(&mut rig).instance, first.instance, "now nothing is bound to it");
}

#[test]
fn session_probes_its_sandbox_first() {
    let mut rig = Rig::with_pool(template(1, 0), NATIVE);
    let (_, request) = rig.create_session();
    assert_eq!((rig.count(claim), rig.pending(request)), (1, true));
}

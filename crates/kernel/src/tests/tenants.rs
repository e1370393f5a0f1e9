//! Keys: from the request to the tombstone everything carries the key of its owner, and never that
//! of the next user.

use std::collections::BTreeMap;
use std::sync::Arc;

use model::record::Owner;
use model::why::Why;
use model::{
    ClaimSettings, EndCause, ErrorCode, KeyId, LeaseId, LifecycleEvent, RequestId, SandboxId,
    SessionId,
};

use super::rig::{DOCKER, FRESH_MS, NATIVE, Rig, TENANT, full, name, template, trouble};
use crate::{Checkout, CheckoutPolicy, DeathCause, Event, Reply, SessionSettings};

const OTHER: KeyId = KeyId::from_u128(0x07_4e4);

/// The keys that events of a sandbox were published to, in order.
fn keys_published_to(rig: &Rig, sandbox: SandboxId) -> Vec<KeyId> {
    let of = |event: &LifecycleEvent| {
        matches!(event,
            LifecycleEvent::SandboxActive { sandbox_id, .. }
            | LifecycleEvent::SandboxTerminated { sandbox_id, .. }
            | LifecycleEvent::SandboxFrozen { sandbox_id, .. }
            | LifecycleEvent::SandboxWakefulness { sandbox_id, .. }
            | LifecycleEvent::WorkspaceDurable { sandbox_id, .. }
                if *sandbox_id == sandbox)
    };
    let seen = rig.published.iter().zip(&rig.published_to).filter(|(event, _)| of(event));
    seen.map(|(_, tenant)| *tenant).collect()
}

fn ended_tenant(rig: &Rig, sandbox: SandboxId) -> KeyId {
    match rig.kernel.why(rig.now, sandbox) {
        Some(Why::Ended(ended)) => ended.tenant,
        other => panic!("expected an end, found {other:?}"),
    }
}

#[test]
fn sandbox_carries_the_key_of_its_lease_until_it_is_returned_and_then_none() {
    for (traits, touched) in [(NATIVE, false), (DOCKER, true)] {
        let mut rig = Rig::with_pool(template(1, 0), traits);
        let out = rig.lease();
        let view = rig.kernel.lease(out.lease).expect("a lease that is had");
        assert_eq!((view.id, view.tenant), (out.sandbox, TENANT));
        assert_eq!(rig.store.sandboxes[&out.sandbox].tenant, TENANT);
        assert_eq!(rig.kernel.tenant_of_lease(out.lease), Some(TENANT));
        assert_eq!(rig.kernel.tenant_of_sandbox(out.sandbox), Some(TENANT));
        if touched {
            rig.use_once(out.sandbox);
            // Someone waits, so that it is worth wiping.
            rig.checkout_with(|checkout| checkout.tenant = OTHER);
        }
        rig.give_back(out.lease);
        rig.run();
        assert_eq!(keys_published_to(&rig, out.sandbox), [TENANT, TENANT]);
        assert_eq!(ended_tenant(&rig, out.sandbox), TENANT);
        assert_eq!(rig.kernel.tenant_of_sandbox(out.sandbox), Some(TENANT));
        assert_eq!(rig.kernel.tenant_of_lease(out.lease), Some(TENANT));
        assert_eq!(rig.kernel.lease(out.lease), None);
        let now = &rig.kernel.sandboxes()[0];
        let whose = if touched { OTHER } else { KeyId::NIL };
        assert_eq!((now.tenant, rig.store.sandboxes[&now.id].tenant), (whose, whose));
        assert_eq!(rig.kernel.tenant_of_sandbox(now.id), Some(whose));
    }
}

#[test]
fn sandbox_left_by_a_crash_still_carries_its_key() {
    let (mut rig, lease) = full();
    let sandbox = rig.kernel.lease(lease).expect("a lease").id;
    rig.restart(&[]);
    assert_eq!(rig.kernel.tenant_of_sandbox(sandbox), Some(TENANT), "while it is being removed");
    rig.run();
    for _ in 0..2 {
        assert_eq!(rig.kernel.tenant_of_lease(lease), Some(TENANT));
        assert_eq!(rig.kernel.tenant_of_sandbox(sandbox), Some(TENANT));
        assert_eq!(rig.kernel.why_lease(lease), Some(EndCause::Restart));
        assert_eq!(keys_published_to(&rig, sandbox), [TENANT, TENANT]);
        rig.restart(&[]);
        rig.run();
    }
}

#[test]
fn a_session_and_its_forks_belong_to_the_key_that_created_it() {
    let mut rig = Rig::with_pool(template(1, 2), NATIVE);
    let settings = SessionSettings { tenant: OTHER, ..SessionSettings::default() };
    let (parent, request) = rig.create_session_with(settings);
    rig.run();
    let sandbox = rig.session_ready(request).sandbox;
    let created_at = rig.now.wall;
    rig.whole_turn(parent);
    let session = SessionId::from_u128(rig.id());
    rig.ask(|request| Event::ForkRequested { request, parent, session });
    rig.run();
    rig.skip(5_000);
    for id in [parent, session] {
        let view = rig.kernel.session(id).expect("a session");
        assert_eq!((view.tenant, view.created_at), (OTHER, created_at));
        assert_eq!(rig.store.sessions[&id].tenant, OTHER);
    }
    assert!(rig.kernel.sandboxes().iter().all(|view| match view.owner {
        Owner::Session(_) => view.tenant == OTHER,
        Owner::Unowned | Owner::Lease(_) => view.tenant == KeyId::NIL,
    }));
    assert!(rig.published_to.iter().all(|tenant| *tenant == OTHER), "{:?}", rig.published);
    rig.restart(&[]);
    rig.run();
    assert_eq!(rig.kernel.session(session).map(|view| view.tenant), Some(OTHER));
    assert_eq!(rig.kernel.tenant_of_sandbox(sandbox), Some(OTHER));
    assert_eq!(keys_published_to(&rig, sandbox), [OTHER, OTHER, OTHER]);
}

#[test]
fn sandbox_lost_during_its_claim_carries_no_key() {
    let mut rig = Rig::with_pool(template(1, 0), NATIVE);
    rig.skip(FRESH_MS);
    let idle = rig.idle()[0].id;
    let request = rig.checkout();
    assert_eq!(rig.kernel.tenant_of_sandbox(idle), Some(TENANT));
    rig.finish(super::rig::claim, trouble());
    assert_eq!(rig.kernel.tenant_of_sandbox(idle), Some(KeyId::NIL));
    rig.run();
    assert_eq!(keys_published_to(&rig, idle), [KeyId::NIL]);
    let next = rig.checked_out(request).sandbox;
    assert_eq!(keys_published_to(&rig, next), [TENANT]);
}

#[test]
fn a_lease_that_is_asked_for_again_is_given_to_its_key_alone() {
    let mut rig = Rig::with_pool(template(2, 0), NATIVE);
    let out = rig.lease();
    for (tenant, works) in [(TENANT, true), (OTHER, false), (KeyId::NIL, false)] {
        let again = Checkout {
            request: RequestId::from_u128(rig.id()),
            lease: out.lease,
            tenant,
            template: name(),
            ttl_ms: None,
            wait_ms: None,
            policy: CheckoutPolicy::Wait,
            claim: None,
        };
        let answer = rig.apply(Event::CheckoutRequested(again));
        if works {
            let Ok(Reply::CheckedOut(same)) = answer else { panic!("found {answer:?}") };
            assert_eq!(same.sandbox, out.sandbox);
        } else {
            assert_eq!(answer.map_err(|refusal| refusal.code), Err(ErrorCode::IdConflict));
        }
    }
}

#[test]
fn health_of_a_pool_is_published_to_no_single_key() {
    let mut rig = Rig::new(model::NodeConfig::default());
    rig.put(template(1, 0), NATIVE);
    for _ in 0..3 {
        rig.finish(super::rig::launch, trouble());
        rig.finish(super::rig::kill, crate::Outcome::Done);
    }
    let health = |event: &LifecycleEvent| matches!(event, LifecycleEvent::PoolHealth { .. });
    let at = rig.published.iter().position(health).expect("a pool that is degraded");
    assert_eq!(rig.published_to[at], KeyId::NIL);
}

#[test]
fn a_view_shows_what_was_bound() {
    let mut rig = Rig::with_pool(template(1, 0), NATIVE);
    assert_eq!(rig.idle()[0].claim, None);
    let labels = BTreeMap::from([("job".to_owned(), "7".to_owned())]);
    let claim = Arc::new(ClaimSettings { labels, ..ClaimSettings::default() });
    let request = rig.checkout_with(|checkout| checkout.claim = Some(Arc::clone(&claim)));
    rig.run();
    let sandbox = rig.checked_out(request).sandbox;
    assert_eq!(rig.kernel.sandbox(sandbox).and_then(|view| view.claim), Some(claim));
}

#[test]
fn templates_are_listed_with_the_sizes_they_have_now() {
    let mut rig = Rig::with_pool(template(1, 2), NATIVE);
    let resized = Event::PoolResized { template: name(), pool_size: 3, max_overflow: 4 };
    assert_eq!(rig.apply(resized), Ok(Reply::Noted));
    let stats = rig.pool();
    assert_eq!((stats.pool_size, stats.max_overflow, stats.slots), (3, 4, 7));
    let known = rig.kernel.template(&name()).expect("a template");
    assert_eq!((known.pool.pool_size, known.pool.max_overflow), (3, 4));
    assert_eq!(rig.kernel.templates(), [known]);
    let unknown = model::TemplateName::new("unknown").expect("a name");
    assert_eq!(rig.kernel.template(&unknown), None);
}

#[test]
fn unknown_ids_belong_to_no_key() {
    let (rig, _) = full();
    assert_eq!(rig.kernel.tenant_of_lease(LeaseId::from_u128(99)), None);
    assert_eq!(rig.kernel.tenant_of_sandbox(SandboxId::from_u128(99)), None);
    assert_eq!(rig.kernel.why_lease(LeaseId::from_u128(99)), None);
    assert_eq!(rig.kernel.lease(LeaseId::from_u128(99)), None);
}

#[test]
fn end_cause_of_a_lease_is_found_by_its_id() {
    let (mut rig, lease) = full();
    assert_eq!(rig.kernel.why_lease(lease), None);
    let sandbox = rig.kernel.lease(lease).expect("a lease").id;
    let instance = rig.instance(sandbox);
    rig.die(instance, DeathCause::Oom);
    assert_eq!(rig.kernel.why_lease(lease), Some(EndCause::Oom));
    assert_eq!(rig.kernel.lease(lease), None);
}

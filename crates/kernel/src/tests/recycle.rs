//! What becomes of a returned sandbox: kept as it is, wiped and proven, or removed. Its user never
//! meets it again, and nothing of that user reaches the next one.

use model::{EndCause, ErrorCode, LeaseId, LifecycleEvent, SandboxId, SandboxState};

use super::rig::{
    DOCKER, NATIVE, Rig, claim, gone, kill, launch, name, prove, refusal, secret_settings,
    template, thaw, trouble, unsupported, wipe,
};
use crate::{CheckedOut, DeathCause, Event, Outcome, UseKind, UseTarget};

/// A lease that was used, on a pool of one.
fn used(traits: model::template::RuntimeTraits) -> (Rig, CheckedOut) {
    let mut rig = Rig::with_pool(template(1, 0), traits);
    let lease = rig.lease();
    rig.use_once(lease.sandbox);
    (rig, lease)
}

#[track_caller]
fn lost(rig: &mut Rig, lease: LeaseId) -> String {
    let refusal = rig.apply(Event::LeaseRenewed { lease, ttl_ms: None }).expect_err("a refusal");
    assert_eq!(refusal.code, ErrorCode::LeaseLost);
    refusal.cause.into_owned()
}

#[track_caller]
fn use_refused(rig: &mut Rig, sandbox: SandboxId) -> ErrorCode {
    let (request, _) = rig.use_of(UseTarget::Sandbox(sandbox), UseKind::Exec);
    rig.refused(request)
}

/// The leases that the announcements of the end of a sandbox named.
fn announced_leases(rig: &Rig, sandbox: SandboxId) -> Vec<Option<LeaseId>> {
    let published = rig.published.iter();
    let of = |event: &LifecycleEvent| {
        if let LifecycleEvent::SandboxTerminated { sandbox_id, lease, .. } = event {
            (*sandbox_id == sandbox).then_some(*lease)
        } else {
            None
        }
    };
    published.filter_map(of).collect()
}

#[test]
fn an_untouched_lease_goes_back_as_it_is_under_a_new_id() {
    for traits in [NATIVE, DOCKER] {
        let mut rig = Rig::with_pool(template(1, 0), traits);
        let lease = rig.lease();
        rig.give_back(lease.lease);
        assert!(rig.effects.is_empty(), "there is nothing to do");
        let idle = rig.idle().remove(0);
        assert_eq!(idle.instance, Some(lease.instance));
        assert_ne!(idle.id, lease.sandbox);
        assert_eq!(use_refused(&mut rig, lease.sandbox), ErrorCode::SandboxGone);
        assert_eq!(rig.end_cause(lease.sandbox), EndCause::Returned);
        assert_eq!(rig.end_causes(lease.sandbox), [EndCause::Returned]);
        assert_eq!(announced_leases(&rig, lease.sandbox), [Some(lease.lease)]);
        let counters = rig.pool().counters;
        assert_eq!((counters.recycled, counters.retired), (1, 0));
        let next = rig.lease();
        assert_eq!((next.sandbox, next.instance, next.uses), (idle.id, lease.instance, 1));
        assert!(rig.end_causes(next.sandbox).is_empty());
    }
}

#[test]
fn any_use_touches_and_so_do_settings() {
    for (kind, settings) in [
        (Some(UseKind::Exec), None),
        (Some(UseKind::Files), None),
        (Some(UseKind::Port), None),
        (None, Some(secret_settings())),
    ] {
        let mut rig = Rig::with_pool(template(1, 0), NATIVE);
        let request = rig.checkout_with(|checkout| checkout.claim = settings);
        rig.run();
        let lease = rig.checked_out(request);
        if let Some(kind) = kind {
            let (_, use_id) = rig.use_of(UseTarget::Sandbox(lease.sandbox), kind);
            rig.use_ended(use_id);
        }
        rig.give_back(lease.lease);
        assert_eq!(rig.instances(kill), [lease.instance], "{kind:?}");
    }
}

#[test]
fn a_used_sandbox_is_destroyed_and_replaced_where_the_runtime_recreates() {
    let (mut rig, lease) = used(NATIVE);
    rig.give_back(lease.lease);
    assert_eq!((rig.count(wipe), rig.count(kill), rig.pool().idle), (0, 1, 0));
    assert!(rig.end_causes(lease.sandbox).is_empty(), "announced once removal is confirmed");
    rig.run();
    assert_eq!(rig.end_causes(lease.sandbox), [EndCause::Returned]);
    assert_eq!(announced_leases(&rig, lease.sandbox), [Some(lease.lease)]);
    assert_eq!(rig.end_cause(lease.sandbox), EndCause::Returned);
    assert_ne!(rig.lease().instance, lease.instance);
    assert_eq!(rig.pool().counters.retired, 1);
}

#[test]
fn a_used_sandbox_is_wiped_and_proven_where_the_runtime_can() {
    let (mut rig, lease) = used(DOCKER);
    rig.give_back(lease.lease);
    assert_eq!(rig.instances(wipe), [lease.instance]);
    assert_eq!(rig.state(lease.sandbox), SandboxState::Waiting);
    assert_eq!(use_refused(&mut rig, lease.sandbox), ErrorCode::SandboxGone);
    rig.finish(wipe, Outcome::Done);
    assert_eq!((rig.instances(prove), rig.pool().idle), (vec![lease.instance], 0));
    rig.finish(prove, Outcome::Done);
    let idle = rig.idle().remove(0);
    assert_eq!(idle.instance, Some(lease.instance));
    assert_ne!(idle.id, lease.sandbox);
    assert_eq!(rig.end_causes(lease.sandbox), [EndCause::Returned]);
    assert_eq!(announced_leases(&rig, lease.sandbox), [Some(lease.lease)]);
    assert_eq!((rig.pool().counters.recycled, rig.pool().counters.retired), (1, 0));
}

/// A lease that was used, and whose sandbox is frozen.
fn used_and_frozen() -> (Rig, CheckedOut) {
    let (mut rig, lease) = used(DOCKER);
    let frozen = rig.ask_freeze(lease.sandbox);
    rig.run();
    rig.answered(frozen);
    assert!(rig.frozen(lease.sandbox));
    (rig, lease)
}

#[test]
fn a_frozen_sandbox_is_thawed_wiped_and_used_again() {
    let (mut rig, lease) = used_and_frozen();
    rig.give_back(lease.lease);
    assert_eq!((rig.count(thaw), rig.count(wipe), rig.count(kill)), (1, 0, 0));
    assert_eq!(use_refused(&mut rig, lease.sandbox), ErrorCode::SandboxGone);
    rig.finish(thaw, Outcome::Done);
    assert_eq!(rig.instances(wipe), [lease.instance]);
    rig.run();
    assert_eq!((rig.pool().counters.recycled, rig.pool().counters.retired), (1, 0));
    let next = rig.lease();
    assert_eq!(next.instance, lease.instance);
    rig.exec(next.sandbox);
}

#[test]
fn a_frozen_sandbox_that_cannot_be_thawed_is_not_used_again() {
    for outcome in [trouble(), gone(), Outcome::TimedOut] {
        let (mut rig, lease) = used_and_frozen();
        rig.give_back(lease.lease);
        rig.finish(thaw, outcome.clone());
        assert_eq!(rig.instances(kill), [lease.instance], "{outcome:?}");
        assert_eq!(rig.count(wipe), 0);
        rig.run();
        assert_ne!(rig.lease().instance, lease.instance);
    }
}

#[test]
fn sandbox_is_retired_on_any_doubt_of_its_wipe() {
    let wipe_ends: fn(&mut Rig, Outcome) = |rig, outcome| {
        rig.finish(wipe, outcome);
    };
    let prove_ends: fn(&mut Rig, Outcome) = |rig, outcome| {
        rig.finish(wipe, Outcome::Done);
        rig.finish(prove, outcome);
    };
    for (outcome, cause, why) in [
        (trouble(), EndCause::NotClean, "trouble"),
        (gone(), EndCause::Crash, "gone"),
        (Outcome::TimedOut, EndCause::NotClean, "the sandbox did not answer in time"),
    ] {
        for step in [wipe_ends, prove_ends] {
            let (mut rig, lease) = used(DOCKER);
            rig.give_back(lease.lease);
            step(&mut rig, outcome.clone());
            assert_eq!(rig.instances(kill), [lease.instance], "{outcome:?}");
            rig.run();
            assert_eq!(rig.end_cause(lease.sandbox), cause);
            assert_eq!(rig.ended(lease.sandbox).detail.as_deref(), Some(why));
            assert_eq!(rig.end_causes(lease.sandbox), [cause]);
            assert_eq!(announced_leases(&rig, lease.sandbox), [Some(lease.lease)]);
            let counters = rig.pool().counters;
            assert_eq!((counters.recycled, counters.retired + counters.crashed), (0, 1));
            assert_ne!(rig.lease().instance, lease.instance);
        }
    }
}

#[test]
fn a_runtime_that_turns_out_not_to_wipe_is_not_asked_again() {
    let (mut rig, lease) = used(DOCKER);
    rig.give_back(lease.lease);
    rig.finish(wipe, unsupported());
    assert_eq!(rig.instances(kill), [lease.instance]);
    rig.run();
    assert_eq!(rig.end_cause(lease.sandbox), EndCause::Returned);
    let next = rig.lease();
    rig.use_once(next.sandbox);
    rig.give_back(next.lease);
    assert_eq!((rig.instances(kill), rig.count(wipe)), (vec![next.instance], 0));
    rig.run();
    let idle = rig.idle().remove(0);
    rig.put(template(1, 0), DOCKER);
    rig.run();
    assert_eq!(rig.idle().remove(0).id, idle.id, "news of the runtime ends nothing");
    for wiped in [false, true] {
        let lease = rig.lease();
        rig.use_once(lease.sandbox);
        rig.give_back(lease.lease);
        assert_eq!(rig.count(wipe), usize::from(wiped), "each is taken for what it was when made");
        rig.run();
    }
}

#[test]
fn a_wipe_or_a_proof_that_does_not_end_retires_a_sandbox() {
    for proving in [false, true] {
        let (mut rig, lease) = used(DOCKER);
        rig.give_back(lease.lease);
        if proving {
            rig.finish(wipe, Outcome::Done);
        }
        let stuck = rig.effects.pop_front().unwrap();
        rig.pass(10_000);
        assert_eq!(rig.instances(kill), [lease.instance]);
        rig.end_effect(&stuck, Outcome::Done);
        assert_eq!(rig.pool().idle, 0, "too late");
    }
}

#[test]
fn a_sandbox_that_dies_is_never_used_again() {
    for (death, cause) in [(DeathCause::Crash, EndCause::Crash), (DeathCause::Oom, EndCause::Oom)] {
        let dies: [fn(&mut Rig, LeaseId); 4] = [
            |_, _| {},
            |rig, lease| rig.give_back(lease),
            |rig, lease| {
                rig.give_back(lease);
                rig.finish(wipe, Outcome::Done);
            },
            |rig, lease| {
                rig.give_back(lease);
                rig.finish(wipe, Outcome::Done);
                rig.finish(prove, Outcome::Done);
            },
        ];
        for until in dies {
            let (mut rig, lease) = used(DOCKER);
            until(&mut rig, lease.lease);
            let id = rig.kernel.sandboxes().remove(0).id;
            rig.die(lease.instance, death);
            assert_eq!(rig.instances(kill), [lease.instance], "what is left of it is removed");
            rig.run();
            assert_eq!((rig.end_cause(id), rig.end_causes(id)), (cause, vec![cause]));
            assert_eq!(rig.pool().counters.crashed, 1);
            assert_ne!(rig.lease().instance, lease.instance);
        }
    }
}

#[test]
fn a_sandbox_is_retired_after_its_last_use() {
    let mut worn = template(1, 0);
    worn.pool.max_uses = 3;
    let mut rig = Rig::with_pool(worn, DOCKER);
    for uses in 0..3 {
        let lease = rig.lease();
        assert_eq!(lease.uses, uses);
        rig.use_once(lease.sandbox);
        rig.give_back(lease.lease);
        if uses == 2 {
            assert_eq!((rig.count(wipe), rig.instances(kill)), (0, vec![lease.instance]));
            rig.run();
            assert_eq!(rig.end_cause(lease.sandbox), EndCause::MaxUses);
        }
        rig.run();
    }
    assert_eq!(rig.lease().uses, 0, "a fresh one takes its place");
}

#[test]
fn sandbox_returned_frozen_or_busy_is_not_reused_as_it_is() {
    // A frozen one that can be wiped is thawed for that.
    for (traits, frozen) in [(NATIVE, false), (NATIVE, true), (DOCKER, false)] {
        let mut rig = Rig::with_pool(template(1, 0), traits);
        let lease = rig.lease();
        rig.pass(10_000);
        if frozen {
            rig.run();
            assert!(rig.kernel.sandbox(lease.sandbox).unwrap().frozen);
        }
        rig.give_back(lease.lease);
        assert_eq!(rig.instances(kill), [lease.instance]);
        rig.run();
        assert_eq!(rig.end_cause(lease.sandbox), EndCause::Returned);
    }
}

#[test]
fn a_return_breaks_what_is_in_progress_and_says_so() {
    for traits in [NATIVE, DOCKER] {
        let mut rig = Rig::with_pool(template(1, 0), traits);
        let lease = rig.lease();
        let exec = rig.exec(lease.sandbox);
        rig.give_back(lease.lease);
        let (broken, refusal) = rig.broken.remove(0);
        assert_eq!((broken, refusal.code), (exec, ErrorCode::SandboxGone));
        assert!(refusal.cause.contains("returned"), "{}", refusal.cause);
        rig.use_ended(exec);
        rig.run();
        assert_eq!((rig.pool().idle, rig.kernel.stats().running), (1, 0));
    }
}

#[test]
fn return_refuses_callers_that_wait_for_a_thaw() {
    let (mut rig, lease) = used(NATIVE);
    rig.pass(10_000);
    rig.run();
    let (request, _) = rig.use_of(UseTarget::Sandbox(lease.sandbox), UseKind::Exec);
    assert!(rig.pending(request));
    rig.give_back(lease.lease);
    let refusal = refusal(&rig, request);
    assert_eq!(refusal.code, ErrorCode::SandboxGone);
    assert!(refusal.cause.contains("returned"), "{}", refusal.cause);
}

#[test]
fn a_lease_that_is_gone_says_why() {
    // Whatever its pool does with the sandbox, a lease that was returned ended by that.
    let (mut rig, lease) = used(NATIVE);
    rig.give_back(lease.lease);
    assert!(lost(&mut rig, lease.lease).contains("returned"));
    let mut worn = template(1, 0);
    worn.pool.max_uses = 1;
    let mut rig = Rig::with_pool(worn, DOCKER);
    let lease = rig.lease();
    rig.use_once(lease.sandbox);
    rig.give_back(lease.lease);
    assert!(lost(&mut rig, lease.lease).contains("returned"));

    let (mut rig, lease) = used(NATIVE);
    rig.pass(600_000);
    assert!(lost(&mut rig, lease.lease).contains("its lease was not renewed in time"));
    for (death, word) in [(DeathCause::Crash, "crash"), (DeathCause::Oom, "out of memory")] {
        let (mut rig, lease) = used(NATIVE);
        let exec = rig.exec(lease.sandbox);
        rig.die(lease.instance, death);
        assert!(lost(&mut rig, lease.lease).contains(word));
        let code =
            if death == DeathCause::Oom { ErrorCode::Oom } else { ErrorCode::SandboxCrashed };
        assert_eq!((rig.broken[0].0, rig.broken[0].1.code), (exec, code));
        rig.run();
        assert!(lost(&mut rig, lease.lease).contains(word), "also when nothing is left");
    }
    let unknown = rig.apply(Event::LeaseReturned { lease: LeaseId::from_u128(99) });
    assert_eq!(unknown.map_err(|refusal| refusal.code), Err(ErrorCode::LeaseUnknown));
}

#[test]
fn a_lease_returned_while_it_is_bound_ends_its_wait() {
    let mut rig = Rig::asking(template(1, 0), NATIVE);
    let lease = LeaseId::from_u128(77);
    let request = rig.checkout_with(|checkout| checkout.lease = lease);
    rig.give_back(lease);
    assert_eq!(rig.refused(request), ErrorCode::Aborted);
    rig.finish(claim, Outcome::Done);
    assert_eq!((rig.pool().idle, rig.pool().leased), (1, 0));
    assert!(lost(&mut rig, lease).contains("returned"));
}

/// Without patience every checkout would start a sandbox and every return would kill one.
#[test]
fn surplus_return_is_wiped_and_ended_after_a_while() {
    let mut rig = Rig::with_pool(template(1, 1), DOCKER);
    let leases = [(); 2].map(|()| {
        let lease = rig.lease();
        rig.use_once(lease.sandbox);
        lease
    });
    for lease in &leases {
        rig.give_back(lease.lease);
    }
    assert_eq!((rig.count(wipe), rig.count(kill)), (2, 0));
    rig.run();
    assert_eq!((rig.pool().idle, rig.pool().slots_used), (2, 2));
    rig.live(30_000);
    assert_eq!((rig.pool().idle, rig.pool().slots_used), (1, 1));
}

#[test]
fn a_smaller_pool_does_not_wipe_what_has_no_place_in_it() {
    let mut rig = Rig::with_pool(template(2, 0), DOCKER);
    let leases = [(); 2].map(|()| {
        let lease = rig.lease();
        rig.use_once(lease.sandbox);
        lease
    });
    let smaller = Event::PoolResized { template: name(), pool_size: 1, max_overflow: 0 };
    rig.apply(smaller).expect("resized");
    rig.give_back(leases[0].lease);
    assert_eq!((rig.instances(kill), rig.count(wipe)), (vec![leases[0].instance], 0));
    rig.run();
    assert_eq!(rig.end_cause(leases[0].sandbox), EndCause::Surplus);
    rig.give_back(leases[1].lease);
    assert_eq!(rig.instances(wipe), [leases[1].instance]);
}

#[test]
fn a_sandbox_of_a_replaced_template_is_not_kept() {
    for touched in [false, true] {
        let mut rig = Rig::with_pool(template(1, 0), DOCKER);
        let lease = rig.lease();
        if touched {
            rig.use_once(lease.sandbox);
        }
        let mut other = template(1, 0);
        other.limits.pids = 64;
        rig.put(other, DOCKER);
        rig.give_back(lease.lease);
        assert_eq!((rig.instances(kill), rig.count(wipe)), (vec![lease.instance], 0));
        rig.run();
        assert_eq!(rig.end_cause(lease.sandbox), EndCause::TemplateReplaced);
        assert_eq!(rig.pool().idle, 1);
    }
}

#[test]
fn a_failed_wipe_does_not_keep_a_waiter_from_a_free_slot() {
    let mut slow = template(1, 1);
    slow.pool.refill_per_s = 1;
    let mut rig = Rig::with_pool(slow, DOCKER);
    let lease = rig.lease();
    rig.use_once(lease.sandbox);
    rig.give_back(lease.lease);
    let request = rig.checkout();
    assert_eq!((rig.count(wipe), rig.count(launch)), (1, 0), "it is nearly there");
    rig.finish(wipe, trouble());
    assert_eq!(rig.count(launch), 1, "no caller waits while a slot is free");
    rig.finish(launch, Outcome::Done);
    rig.checked_out(request);
}

//! Checkouts that fail: failed claims and launches, clients that go away, and completions that come
//! late or twice.

use model::{EndCause, ErrorCode, NodeConfig};

use super::rig::{
    DOCKER, FRESH_MS, NATIVE, Rig, claim, freeze, full, gone, instance_of, kill, launch, name,
    prove, refusal, secret_settings, template, thaw, trouble, wipe,
};
use crate::{
    Action, CheckoutPath, CheckoutPolicy, Effect, Event, Failure, FailureKind, Outcome, Reply,
    UseKind, UseTarget,
};

#[test]
fn idle_only_checkout_is_refused_when_the_last_claim_fails() {
    let mut rig = Rig::asking(template(1, 1), NATIVE);
    let request = rig.checkout_with(|checkout| checkout.policy = CheckoutPolicy::IdleOnly);
    rig.finish(claim, trouble());
    assert_eq!(rig.refused(request), ErrorCode::PoolEmpty);
    assert_eq!(rig.pool().waiters, 0);
}

#[test]
fn after_a_failed_claim_the_caller_keeps_its_place() {
    let (mut rig, lease) = full();
    let (first, second) = (rig.checkout(), rig.checkout());
    rig.skip(FRESH_MS);
    rig.give_back(lease);
    rig.finish(claim, trouble());
    assert!(rig.pending(first));
    rig.run();
    assert_eq!(rig.checked_out(first).path, CheckoutPath::Blocked);
    assert!(rig.pending(second));
}

#[test]
fn a_failed_claim_tries_the_next_idle_one() {
    for (outcome, cause) in [
        (trouble(), EndCause::ClaimFailed),
        (gone(), EndCause::Crash),
        (Outcome::TimedOut, EndCause::ClaimFailed),
    ] {
        let mut rig = Rig::asking(template(2, 0), NATIVE);
        let request = rig.checkout();
        let failed = rig.finish(claim, outcome);
        assert_ne!(rig.instances(claim), vec![instance_of(&failed.action).unwrap()]);
        rig.finish(claim, Outcome::Done);
        let got = rig.checked_out(request);
        assert_eq!(rig.count(kill), 1, "the caller does not wait for the removal");
        rig.run();
        assert_eq!(rig.end_cause(failed.id.sandbox), cause);
        assert_ne!(got.sandbox, failed.id.sandbox);
    }
}

/// Another sandbox would fail as well.
fn refused() -> Outcome {
    let kind = FailureKind::Refused(ErrorCode::BoundaryFull);
    Outcome::Failed(Failure { kind, detail: "64 keys".into() })
}

#[test]
fn a_claim_that_would_fail_with_every_sandbox_takes_only_one() {
    let mut rig = Rig::asking(template(5, 0), NATIVE);
    let request = rig.checkout();
    let failed = rig.finish(claim, refused());
    let refusal = refusal(&rig, request);
    assert_eq!((refusal.code, refusal.cause.as_ref()), (ErrorCode::BoundaryFull, "64 keys"));
    assert!(refusal.retry_after_ms.is_some());
    assert_eq!((rig.count(claim), rig.count(kill), rig.pool().idle), (0, 1, 4));
    rig.run();
    assert_eq!(rig.end_cause(failed.id.sandbox), EndCause::ClaimFailed);
    assert_eq!((rig.pool().waiters, rig.pool().leased), (0, 0));
}

#[test]
fn claims_that_fail_one_after_another_do_not_use_up_the_pool() {
    for outcome in [trouble(), Outcome::TimedOut] {
        let mut rig = Rig::asking(template(9, 0), NATIVE);
        let request = rig.checkout();
        rig.finish(claim, outcome.clone());
        assert!(rig.pending(request), "the sandbox may have been the reason");
        rig.finish(claim, outcome);
        let refusal = refusal(&rig, request);
        assert_eq!(refusal.code, ErrorCode::LaunchFailed);
        assert!(refusal.retry_after_ms.is_some());
        assert_eq!((rig.count(claim), rig.count(kill)), (0, 2));
        rig.run();
        assert_eq!((rig.pool().waiters, rig.pool().leased), (0, 0));
    }
}

#[test]
fn a_launch_that_would_fail_again_refuses_the_session_with_the_reason() {
    let mut rig = Rig::asking(template(0, 1), NATIVE);
    let (session, request) = rig.create_session();
    rig.finish(launch, refused());
    assert_eq!(rig.refused(request), ErrorCode::BoundaryFull);
    rig.run();
    assert!(rig.kernel.session(session).is_none(), "no caller knows it");
}

#[test]
fn a_claim_that_does_not_end_is_given_up() {
    let mut rig = Rig::asking(template(2, 0), NATIVE);
    let request = rig.checkout();
    let stuck = rig.effects.pop_front().unwrap();
    rig.pass(5_000);
    assert_eq!((rig.count(claim), rig.count(kill)), (1, 1));
    rig.end_effect(&stuck, Outcome::Done);
    assert!(rig.pending(request), "too late: it is being removed");
    rig.run();
    assert_ne!(rig.checked_out(request).sandbox, stuck.id.sandbox);
}

#[test]
fn checkout_whose_deadline_passes_during_the_claim_is_served_or_refused() {
    for (outcome, served) in [(Outcome::Done, true), (trouble(), false)] {
        let mut rig = Rig::asking(template(1, 0), NATIVE);
        let request = rig.checkout_with(|checkout| checkout.wait_ms = Some(100));
        rig.pass(200);
        assert!(rig.pending(request), "its sandbox is nearly there");
        rig.finish(claim, outcome);
        rig.pass(0);
        assert_eq!(rig.answer(request).map(Result::is_ok), Some(served));
    }
}

#[test]
fn a_client_that_goes_away_leaves_nothing_behind() {
    // In line.
    let (mut rig, lease) = full();
    let waiter = rig.checkout();
    let _ = rig.apply(Event::ClientGone { request: waiter });
    rig.give_back(lease);
    rig.run();
    assert_eq!((rig.pool().idle, rig.pool().slots_used, rig.pool().waiters), (1, 1, 0));
    // While its sandbox is started, and while that is bound.
    for (settings, launched, bound) in [
        (None, false, Outcome::Done),
        (None, true, Outcome::Done),
        (Some(secret_settings()), true, Outcome::Done),
        (None, true, trouble()),
        (None, true, Outcome::TimedOut),
    ] {
        let mut rig = Rig::asking(template(0, 1), NATIVE);
        let touched = settings.is_some();
        let waiter = rig.checkout_with(|checkout| checkout.claim = settings);
        let first = rig.effects[0].id.sandbox;
        if launched {
            rig.finish(launch, Outcome::Done);
        }
        let _ = rig.apply(Event::ClientGone { request: waiter });
        if launched {
            rig.finish(claim, bound.clone());
        }
        rig.run();
        assert!(rig.pending(waiter), "no caller is answered");
        let kept = u32::from(!touched && bound == Outcome::Done);
        let pool = rig.pool();
        assert_eq!((pool.idle, pool.slots_used, pool.leased, pool.waiters), (kept, kept, 0, 0));
        if launched {
            assert!(rig.kernel.sandbox(first).is_none(), "its id was promised to someone");
        }
        rig.lease();
    }
}

#[test]
fn failed_launch_is_reported_when_its_slot_is_free() {
    let mut rig = Rig::with_pool(template(0, 1), NATIVE);
    let request = rig.checkout();
    rig.finish(launch, trouble());
    assert!(rig.pending(request), "whatever was made is removed first");
    rig.finish(kill, trouble());
    assert_eq!((rig.pending(request), rig.pool().slots_used), (true, 1));
    rig.pass(1_000);
    rig.finish(kill, Outcome::Done);
    let refusal = refusal(&rig, request);
    assert_eq!((refusal.code, refusal.cause.as_ref()), (ErrorCode::LaunchFailed, "trouble"));
    assert!(refusal.retry_after_ms.is_some());
    assert_eq!((rig.pool().slots_used, rig.pool().counters.launch_failed), (0, 1));
}

#[test]
fn a_sandbox_that_is_not_ready_in_time_is_a_ready_timeout() {
    let mut rig = Rig::with_pool(template(0, 1), NATIVE);
    let request = rig.checkout_with(|checkout| checkout.wait_ms = Some(60_000));
    rig.pass(29_999);
    assert_eq!(rig.count(kill), 0);
    rig.pass(1);
    assert_eq!((rig.count(kill), rig.pending(request)), (1, true));
    rig.finish(kill, Outcome::Done);
    assert_eq!(rig.refused(request), ErrorCode::ReadyTimeout);
    assert_eq!(rig.pool().slots_used, 0);
}

/// Everything that can be seen of a kernel.
fn seen(rig: &Rig) -> impl PartialEq + std::fmt::Debug + use<> {
    let kernel = &rig.kernel;
    let counts = (rig.effects.len(), rig.published.len(), rig.broken.len());
    (kernel.stats(), kernel.pools(), kernel.sandboxes(), kernel.next_wake(), counts)
}

#[test]
fn late_and_repeated_completions_change_nothing() {
    let mut rig = Rig::asking(template(1, 1), DOCKER);
    let mut over: Vec<Effect> = Vec::new();
    let mut step = |rig: &mut Rig, wanted: fn(&Action) -> bool, outcome| {
        over.push(rig.finish(wanted, outcome));
        for effect in &over {
            for late in [Outcome::Done, trouble(), gone(), Outcome::TimedOut] {
                let before = seen(rig);
                rig.end_effect(effect, late.clone());
                assert_eq!(seen(rig), before, "{late:?} of {effect:?}");
            }
        }
    };
    let request = rig.checkout();
    step(&mut rig, claim, Outcome::Done);
    let lease = rig.checked_out(request);
    rig.use_once(lease.sandbox);
    rig.pass(10_000);
    step(&mut rig, freeze, Outcome::Done);
    rig.use_of(UseTarget::Sandbox(lease.sandbox), UseKind::Files);
    step(&mut rig, thaw, Outcome::Done);
    let resize = |rig: &mut Rig, pool_size| {
        let _ = rig.apply(Event::PoolResized { template: name(), pool_size, max_overflow: 1 });
    };
    resize(&mut rig, 3);
    while rig.count(launch) > 1 {
        step(&mut rig, launch, Outcome::Done);
    }
    step(&mut rig, launch, trouble());
    rig.give_back(lease.lease);
    step(&mut rig, wipe, Outcome::Done);
    step(&mut rig, prove, trouble());
    while rig.count(kill) > 0 {
        step(&mut rig, kill, Outcome::Done);
    }
    assert!(rig.pool().slots_used > 0);
}

#[test]
fn a_claim_that_fails_after_the_deadline_is_not_followed_by_another() {
    let mut rig = Rig::asking(template(2, 0), NATIVE);
    let request = rig.checkout_with(|checkout| checkout.wait_ms = Some(1_000));
    rig.pass(2_000);
    assert!(rig.pending(request), "a claim in progress is waited for");
    rig.finish(claim, trouble());
    assert_eq!(rig.refused(request), ErrorCode::CheckoutTimeout);
    assert_eq!(rig.count(claim), 0);
}

#[test]
fn claims_that_fail_together_do_not_change_the_order() {
    let mut rig = Rig::asking(template(3, 0), NATIVE);
    let first = rig.checkout();
    let second = rig.checkout_with(|checkout| checkout.policy = CheckoutPolicy::IdleOnly);
    // Both claims are given up at the same moment, and one idle sandbox is left.
    rig.pass(NodeConfig::default().deadlines.claim_ms);
    assert_eq!(rig.refused(second), ErrorCode::PoolEmpty);
    rig.finish(claim, Outcome::Done);
    rig.finish(claim, Outcome::Done);
    rig.finish(claim, Outcome::Done);
    assert!(matches!(rig.answered(first), Reply::CheckedOut(_)));
}

#[test]
fn checkout_that_another_sandbox_is_coming_to_hears_of_no_failed_launch() {
    let mut rig = Rig::new(NodeConfig::default());
    rig.put(template(1, 1), NATIVE);
    let request = rig.checkout();
    assert_eq!(rig.count(launch), 2, "one for the caller, one to keep ready");
    rig.finish(launch, trouble());
    rig.finish(kill, Outcome::Done);
    assert!(rig.pending(request));
    rig.run();
    assert!(matches!(rig.answered(request), Reply::CheckedOut(_)));
}

#[test]
fn checkout_that_does_not_wait_for_others_takes_a_free_launch() {
    let mut rig = Rig::new(NodeConfig::default());
    rig.put(template(1, 0), NATIVE);
    let request = rig.checkout_with(|checkout| checkout.policy = CheckoutPolicy::FailFast);
    assert!(rig.pending(request));
    rig.run();
    assert!(matches!(rig.answered(request), Reply::CheckedOut(_)));
}

#[test]
fn checkout_refused_while_launches_fail_did_not_wait() {
    let mut rig = Rig::new(NodeConfig::default());
    rig.put(template(0, 9), NATIVE);
    for _ in 0..3 {
        rig.checkout();
        rig.pass(1);
        rig.finish(launch, trouble());
        rig.finish(kill, Outcome::Done);
    }
    let request = rig.checkout_with(|checkout| checkout.policy = CheckoutPolicy::FailFast);
    assert_eq!(rig.refused(request), ErrorCode::LaunchFailed);
    let counters = rig.pool().counters;
    assert_eq!((counters.overflow, counters.blocked, counters.refused), (3, 0, 4));
}

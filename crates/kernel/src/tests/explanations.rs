//! What a user can learn afterwards: why a sandbox is cold, and why a checkout got none.

use model::why::{Shortage, Tier};
use model::{EndCause, ErrorCode};

use super::rig::{NATIVE, Rig, launch, refusal, template, trouble};
use super::rig_steps::tight;
use crate::{DeathCause, Event, UseKind, UseTarget};

#[test]
fn why_of_an_evicted_session_names_the_shortage_and_the_candidates() {
    let mut rig = Rig::with(tight(1000, 1), template(0, 9), NATIVE);
    let (session, sandbox) = rig.waiting_session();
    assert_eq!(rig.alive(sandbox).last_end, None, "it is not cold");
    let (_, request) = rig.create_session();
    rig.run_within_limits();
    rig.session_ready(request);

    let end = rig.alive(sandbox).last_end.expect("how it ended is known");
    assert_eq!((end.cause, end.session), (EndCause::Evicted, Some(session)));
    let eviction = end.eviction.expect("the decision is recorded");
    assert_eq!((eviction.tier, eviction.shortage), (Tier::Waiting, Shortage::Processes));
    assert_eq!(eviction.candidates.iter().map(|c| c.sandbox).collect::<Vec<_>>(), [sandbox]);
}

#[test]
fn why_of_a_session_whose_sandbox_died_repeats_how_it_died() {
    let mut rig = Rig::with_pool(template(0, 1), NATIVE);
    let (_, sandbox) = rig.session();
    let detail = Some("its launcher was killed".into());
    let instance = rig.instance(sandbox);
    let _ = rig.apply(Event::InstanceDied { instance, cause: DeathCause::Crash, detail });
    rig.run();
    assert_eq!(rig.ended(sandbox).detail.as_deref(), Some("its launcher was killed"));
    let (use_of_it, _) = rig.use_of(UseTarget::Sandbox(sandbox), UseKind::Exec);
    let refused = refusal(&rig, use_of_it);
    assert_eq!(refused.code, ErrorCode::SandboxGone);
    assert!(refused.cause.ends_with("crashed (its launcher was killed)"), "{}", refused.cause);
    // The session goes on under another id.
    let alive = rig.alive(rig.only().id);
    assert_ne!(alive.sandbox, sandbox);
    let end = alive.last_end.expect("how it ended is known");
    assert_eq!((end.sandbox, end.detail.as_deref()), (sandbox, Some("its launcher was killed")));
}

/// The cause of a checkout that waited in vain.
fn timeout_cause(rig: &mut Rig) -> String {
    let request = rig.checkout();
    rig.live(60_001);
    let refusal = refusal(rig, request);
    assert_eq!(refusal.code, ErrorCode::CheckoutTimeout);
    refusal.cause.into_owned()
}

#[test]
fn checkout_timeout_names_the_limit_that_was_reached() {
    let mut node_is_full = Rig::with(tight(1000, 1), template(0, 9), NATIVE);
    node_is_full.lease();
    let cause = timeout_cause(&mut node_is_full);
    assert!(cause.contains("node.max_live was reached (1)"), "{cause}");
    assert!(cause.contains("in use or held"), "{cause}");

    let mut no_entry_is_left = Rig::with(tight(1, 1000), template(0, 9), NATIVE);
    no_entry_is_left.lease();
    let cause = timeout_cause(&mut no_entry_is_left);
    assert!(cause.contains("node.max_sandboxes was reached (1)"), "{cause}");

    let mut pool_is_full = Rig::with_pool(template(1, 1), NATIVE);
    pool_is_full.lease();
    pool_is_full.lease();
    let cause = timeout_cause(&mut pool_is_full);
    assert!(cause.contains("all 2 slots of the pool are taken"), "{cause}");
    assert!(cause.contains("pool_size 1, max_overflow 1"), "{cause}");
}

#[test]
fn checkout_timeout_says_that_launches_fail_or_are_slow() {
    let mut slow = Rig::with_pool(template(0, 1), NATIVE);
    let request = slow.checkout_with(|checkout| checkout.wait_ms = Some(10));
    assert_eq!(slow.count(launch), 1);
    slow.pass(11);
    let cause = refusal(&slow, request).cause;
    assert!(cause.ends_with("a sandbox was still being started"), "{cause}");

    let mut failing = Rig::with_pool(template(0, 2), NATIVE);
    failing.checkout();
    let request = failing.checkout_with(|checkout| checkout.wait_ms = Some(10));
    failing.finish(launch, trouble());
    failing.pass(11);
    let cause = refusal(&failing, request).cause;
    assert!(cause.starts_with("no sandbox was free in time: launches fail: "), "{cause}");
}

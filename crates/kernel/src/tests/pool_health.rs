//! Failed launches: they slow a pool down, one at a time with growing pauses, and never stop it.

use model::{ErrorCode, LifecycleEvent, NodeConfig};

use super::rig::{NATIVE, Rig, kill, launch, refusal, template, trouble};
use crate::{CheckoutPolicy, DeathCause, Outcome};

/// Ends the oldest launch badly and lets its removal work.
fn fail_one(rig: &mut Rig) {
    rig.finish(launch, trouble());
    while rig.count(kill) > 0 {
        rig.finish(kill, Outcome::Done);
    }
}

/// A pool of one whose launches have failed just often enough to degrade it.
fn degraded() -> Rig {
    let mut rig = Rig::new(NodeConfig::default());
    rig.put(template(1, 1), NATIVE);
    for _ in 0..3 {
        assert!(!rig.pool().degraded);
        fail_one(&mut rig);
    }
    assert!(rig.pool().degraded);
    rig
}

/// What was said of the pool's health.
fn health(rig: &Rig) -> Vec<(bool, String)> {
    let of = |event: &LifecycleEvent| {
        if let LifecycleEvent::PoolHealth { degraded, detail, .. } = event {
            Some((*degraded, detail.clone()))
        } else {
            None
        }
    };
    rig.published.iter().filter_map(of).collect()
}

/// How long it takes until the next launch begins.
fn pause_ms(rig: &mut Rig) -> u64 {
    let began = rig.now.mono;
    while rig.count(launch) == 0 {
        let next = rig.kernel.next_wake().expect("a pool never stops trying");
        rig.pass(next.since(rig.now.mono).max(1));
    }
    rig.now.mono.since(began)
}

#[test]
fn a_pool_degrades_after_three_failures_and_says_so_once() {
    let mut rig = degraded();
    assert_eq!(rig.count(launch), 0);
    assert_eq!(rig.pool().last_failure.as_deref(), Some("trouble"));
    pause_ms(&mut rig);
    fail_one(&mut rig);
    assert_eq!(health(&rig), [(true, "trouble".to_owned())]);
    assert_eq!(rig.pool().counters.launch_failed, 4);
}

#[test]
fn degraded_pool_doubles_its_pauses_up_to_a_limit_with_jitter() {
    let mut rig = degraded();
    let mut pauses = Vec::new();
    for expected_ms in [1_000, 2_000, 4_000, 8_000, 16_000, 32_000, 60_000, 60_000, 60_000] {
        let pause = pause_ms(&mut rig);
        let most_ms = expected_ms + expected_ms / 4;
        assert!((expected_ms..=most_ms).contains(&pause), "{pause} after {pauses:?}");
        pauses.push(pause);
        fail_one(&mut rig);
    }
    assert!(pauses[6..].iter().any(|pause| *pause != 60_000), "those who fail alike drift apart");
}

#[test]
fn degraded_pool_tries_one_launch_at_a_time() {
    let mut rig = Rig::new(NodeConfig::default());
    rig.put(template(5, 5), NATIVE);
    while rig.count(launch) > 0 {
        fail_one(&mut rig);
    }
    for _ in 0..2 {
        rig.checkout_with(|checkout| checkout.wait_ms = Some(600_000));
    }
    assert_eq!(rig.count(launch), 0);
    pause_ms(&mut rig);
    assert_eq!(rig.count(launch), 1, "one launch shows whether they work again");
    rig.checkout();
    rig.pass(5_000);
    assert_eq!(rig.count(launch), 1);
    rig.finish(launch, Outcome::Done);
    assert!(rig.count(launch) > 1, "they do: the rest follows");
}

#[test]
fn a_pool_that_works_again_says_so_and_is_as_before() {
    let mut rig = degraded();
    pause_ms(&mut rig);
    rig.finish(launch, Outcome::Done);
    assert_eq!(health(&rig), [(true, "trouble".to_owned()), (false, String::new())]);
    let pool = rig.pool();
    assert_eq!((pool.degraded, pool.last_failure, pool.idle), (false, None, 1));
    // Failures are counted from the start.
    let lease = rig.lease();
    rig.use_once(lease.sandbox);
    rig.give_back(lease.lease);
    assert!(!rig.pool().degraded);
}

#[test]
fn failures_between_successes_do_not_degrade_a_pool() {
    let mut rig = Rig::new(NodeConfig::default());
    rig.put(template(1, 0), NATIVE);
    for _ in 0..5 {
        fail_one(&mut rig);
        fail_one(&mut rig);
        rig.finish(launch, Outcome::Done);
        assert!(!rig.pool().degraded);
        let idle = rig.idle().remove(0);
        rig.die(idle.instance.unwrap(), DeathCause::Crash);
        rig.finish(kill, Outcome::Done);
    }
}

#[test]
fn degraded_pool_says_when_to_come_back() {
    let mut rig = degraded();
    let request = rig.checkout_with(|checkout| checkout.policy = CheckoutPolicy::FailFast);
    let seen = refusal(&rig, request);
    assert_eq!((seen.code, seen.cause.as_ref()), (ErrorCode::LaunchFailed, "trouble"));
    let wait_ms = seen.retry_after_ms.unwrap();
    assert!((1_000..=1_250).contains(&wait_ms), "{wait_ms}");
    rig.pass(wait_ms);
    assert_eq!(rig.count(launch), 1, "that is when it is tried again");
    assert_eq!(rig.pool().counters.refused, 1);
}

#[test]
fn degraded_pool_serves_waiters_when_launches_work_again() {
    let mut rig = degraded();
    let request = rig.checkout();
    assert!(rig.pending(request));
    pause_ms(&mut rig);
    rig.run();
    rig.checked_out(request);
}

#[test]
fn degraded_pool_reports_the_failure_to_a_waiter() {
    let mut rig = degraded();
    let request = rig.checkout_with(|checkout| checkout.wait_ms = Some(500));
    rig.pass(500);
    let seen = refusal(&rig, request);
    assert_eq!(seen.code, ErrorCode::CheckoutTimeout);
    assert!(seen.cause.contains("trouble"), "{}", seen.cause);
}

#[test]
fn a_degraded_pool_still_hands_out_what_is_returned() {
    let mut rig = Rig::with_pool(template(1, 3), NATIVE);
    let lease = rig.lease();
    let idle = rig.idle().remove(0);
    rig.die(idle.instance.unwrap(), DeathCause::Crash);
    while !rig.pool().degraded {
        fail_one(&mut rig);
    }
    rig.give_back(lease.lease);
    assert_eq!(rig.lease().instance, lease.instance);
}

#[test]
fn pool_that_a_limit_of_the_node_holds_back_says_which() {
    let memory = NodeConfig { memory_budget_mb: Some(512 * 2), ..NodeConfig::default() };
    let entries = NodeConfig { max_sandboxes: 2, ..NodeConfig::default() };
    let processes = NodeConfig { max_live: 2, ..NodeConfig::default() };
    for (config, setting) in
        [(memory, "memory_budget_mb"), (entries, "max_sandboxes"), (processes, "max_live")]
    {
        let mut rig = Rig::with(config, template(2, 2), NATIVE);
        rig.live(5_000);
        assert_eq!((rig.pool().idle, rig.pool().held_back), (2, None), "{setting}");
        rig.put(template(3, 2), NATIVE);
        rig.live(5_000);
        let pool = rig.pool();
        assert_eq!(pool.idle + pool.launching, 2, "{setting}");
        assert_eq!(pool.held_back, Some(format!("node.{setting} was reached")));
    }
}

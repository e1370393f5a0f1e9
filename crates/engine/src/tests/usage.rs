//! What keys use is counted to the millisecond, once, and for ever.

use std::time::Duration;

use model::{KeyId, UsageRecord};
use store::Store as _;

use super::node::{ADMIN, ALICE, BOB, Node, config, template};
use crate::Caller;

async fn used(node: &Node, caller: Caller) -> UsageRecord {
    // A measurement that is younger than a second is not repeated.
    tokio::time::sleep(Duration::from_secs(2)).await;
    let all = node.engine.usage(caller).await.unwrap();
    let own = all.iter().find(|one| one.total.key == caller.key);
    own.map_or_else(|| UsageRecord::none(caller.key), |one| one.total)
}

fn about(ms: u64, expected_ms: u64) -> bool {
    // The fake runtime takes no time, but a settle of a test does.
    ms.abs_diff(expected_ms) <= 100
}

async fn node() -> Node {
    let mut config = config();
    let memory_mb = 100;
    config.templates = vec![template("default")];
    config.templates[0].limits.memory_mb = memory_mb;
    let node = Node::start(config).await;
    node.settle().await;
    node
}

#[tokio::test(start_paused = true)]
async fn usage_is_counted_from_hand_out_to_return() {
    let node = node().await;
    tokio::time::sleep(Duration::from_mins(1)).await;
    let lease = node.checkout(ALICE).await.unwrap().keep();
    for _ in 0..3 {
        node.run(ALICE, lease.sandbox, "echo hi").await.unwrap();
    }
    tokio::time::sleep(Duration::from_secs(33)).await;
    node.engine.return_lease(ALICE, lease.lease).await.unwrap();
    tokio::time::sleep(Duration::from_secs(50)).await;
    let total = used(&node, ALICE).await;
    assert!(about(total.sandbox_ms, 33_000), "{total:?}");
    assert_eq!(total.memory_mb_ms, total.sandbox_ms * 100);
    // Each program of the fake runtime takes a millisecond.
    assert_eq!((total.cpu_us, total.cpu_incomplete), (Some(3_000), false));
    assert_eq!(used(&node, BOB).await, UsageRecord::none(BOB.key), "another key used nothing");
    let all = node.engine.usage(BOB).await.unwrap();
    assert!(all.iter().all(|one| one.total.key == BOB.key), "nor does it see others");
}

#[tokio::test(start_paused = true)]
async fn usage_adds_up_sandboxes_that_live_at_once() {
    let node = node().await;
    let first = node.checkout(ALICE).await.unwrap().keep();
    tokio::time::sleep(Duration::from_secs(10)).await;
    let second = node.checkout(ALICE).await.unwrap().keep();
    tokio::time::sleep(Duration::from_secs(10)).await;
    node.engine.return_lease(ALICE, first.lease).await.unwrap();
    tokio::time::sleep(Duration::from_secs(10)).await;
    node.engine.return_lease(ALICE, second.lease).await.unwrap();
    let total = used(&node, ALICE).await;
    assert!(about(total.sandbox_ms, 40_000), "{total:?}");
    assert_eq!(node.engine.usage_of_all().sandbox_ms, total.sandbox_ms);
}

#[tokio::test(start_paused = true)]
async fn usage_survives_a_crash_and_loses_at_most_a_round() {
    let mut node = node().await;
    let mut shown = 0;
    let mut passed_ms = 0;
    for round in 1..=3_u64 {
        node.checkout(ALICE).await.unwrap().keep();
        tokio::time::sleep(Duration::from_secs(25)).await;
        passed_ms += 25_000;
        let stored = node.store.usage().await.unwrap();
        let stored = stored.iter().find(|one| one.key == ALICE.key).unwrap().sandbox_ms;
        assert!(stored + 11_000 * round >= passed_ms, "round {round}: {stored} of {passed_ms}");
        node = node.kill_and_start().await;
        node.settle().await;
        let total = used(&node, ALICE).await.sandbox_ms;
        assert!(total >= shown.max(stored), "round {round}: {total} after {shown}, {stored}");
        assert!(total <= passed_ms + 100, "round {round}: {total} of {passed_ms}: counted twice");
        shown = total;
    }
}

#[tokio::test(start_paused = true)]
async fn usage_until_an_orderly_stop_is_stored() {
    let node = node().await;
    node.checkout(ALICE).await.unwrap().keep();
    tokio::time::sleep(Duration::from_secs(7)).await;
    let store = std::sync::Arc::clone(&node.store);
    node.engine.shutdown_now().await.unwrap();
    let left = store.crash().usage().await.unwrap();
    let total = left.iter().find(|one| one.key == ALICE.key).unwrap();
    assert!(about(total.sandbox_ms, 7_000), "{total:?}");
}

#[tokio::test(start_paused = true)]
async fn usage_of_a_revoked_key_stays() {
    let node = node().await;
    let made = node.engine.create_key("ci", model::Role::Use, None).await.unwrap();
    let caller = Caller { key: made.record.id, role: model::Role::Use };
    let none = node.engine.usage(ADMIN).await.unwrap();
    assert!(
        none.iter().any(|one| one.total == UsageRecord::none(caller.key)),
        "a new key is shown"
    );
    let lease = node.checkout(caller).await.unwrap().keep();
    tokio::time::sleep(Duration::from_secs(5)).await;
    node.engine.return_lease(caller, lease.lease).await.unwrap();
    let before = used(&node, caller).await;
    assert!(about(before.sandbox_ms, 5_000), "{before:?}");
    node.engine.revoke_key(caller.key).await.unwrap();
    let node = node.kill_and_start().await;
    assert_eq!(used(&node, caller).await, before);
    let seen = node.engine.usage(ADMIN).await.unwrap();
    assert!(seen.iter().all(|one| one.total.key != KeyId::NIL), "the pool is no key");
}

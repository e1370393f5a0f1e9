//! A waiting checkout is served by the next return, and never delays that return.

use std::time::Duration;

use serde_json::json;
use tokio::time::timeout;
use wire::{CheckoutPath, CheckoutPolicy, CheckoutRequest, ExecRequest};

use super::stage::{Kind, Stage};

on_every_runtime!(return_serves_the_waiting_checkout, return_never_waits_for_a_replacement);

/// Everything is leased and a checkout waits: it gets the next returned sandbox, within the limit.
fn return_serves_the_waiting_checkout(kind: Kind) {
    let Some(stage) = Stage::start(kind, "waiter") else { return };
    stage.act(async {
        stage.pool(json!({ "pool_size": 2, "max_overflow": 0 })).await;
        let (first, second) = (stage.checkout().await, stage.checkout().await);
        let at_once = CheckoutRequest { policy: Some(CheckoutPolicy::FailFast), ..Stage::wish() };
        let refused = stage.client().checkout(at_once).await.unwrap_err();
        assert!(refused.retryable(), "{refused:?}");
        let waiter = stage.waiter().await;
        first.exec(ExecRequest::shell("echo mine > /workspace/mine")).await.unwrap();
        let returned = first.sandbox().id;
        first.give_back().await.unwrap();
        let served = waiter.await.unwrap().unwrap();
        assert_eq!(served.path(), Some(CheckoutPath::Blocked));
        assert!(![returned, second.sandbox().id].contains(&served.sandbox().id));
        let seen = served.exec(ExecRequest::shell("ls -A /workspace")).await.unwrap();
        assert_eq!(seen.stdout.as_deref(), Some(""), "{seen:?}");
        let pool = stage.stats().await;
        assert_eq!((pool.leased, pool.waiters, pool.slots_used), (2, 0, 2), "{pool:?}");
        served.give_back().await.unwrap();
        second.give_back().await.unwrap();
        stage.full().await;
    });
    stage.end();
}

/// A sandbox had its last use and a checkout waits. Nothing can be made or removed at that moment,
/// and still the return is answered.
fn return_never_waits_for_a_replacement(kind: Kind) {
    let Some(stage) = Stage::start(kind, "replacement") else { return };
    stage.act(async {
        for max_uses in [1, 2] {
            let settings = json!({ "pool_size": 1, "max_overflow": 0, "max_uses": max_uses });
            stage.pool(settings).await;
            for _ in 1..max_uses {
                let lease = stage.checkout().await;
                lease.exec(ExecRequest::shell("true")).await.unwrap();
                lease.give_back().await.unwrap();
            }
            let retired = stage.full().await.counters.retired;
            let last = stage.checkout().await;
            last.exec(ExecRequest::shell("echo mine > /workspace/mine")).await.unwrap();
            let waiter = stage.waiter().await;
            let held = stage.hold();
            let returned = timeout(Duration::from_secs(20), last.give_back()).await;
            returned.expect("a return waits for nothing").unwrap();
            let pool = stage.stats().await;
            assert_eq!((pool.leased, pool.idle, pool.waiters), (0, 0, 1), "{pool:?}");
            drop(held);
            let served = waiter.await.unwrap().unwrap();
            let seen = served.exec(ExecRequest::shell("ls -A /workspace")).await.unwrap();
            assert_eq!(seen.stdout.as_deref(), Some(""), "{seen:?}");
            assert_eq!(stage.stats().await.counters.retired, retired + 1);
            served.give_back().await.unwrap();
            stage.full().await;
        }
    });
    stage.end();
}

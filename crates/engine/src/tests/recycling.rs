//! Sandboxes that are wiped and handed out again: each user sees how often that happened, and the
//! metrics count it.

use kernel::UseKind;
use model::template::{Recycle, RuntimeKind};
use prometheus_client::encoding::text::encode;
use prometheus_client::registry::Registry;
use runtime::fake::{Fault, Operation};
use runtime::{ExecSpec, RuntimeError, RuntimeErrorCode};

use super::node::{ALICE, BOB, Node, config, name, template};
use crate::CheckoutRequest;

async fn node() -> Node {
    let mut config = config();
    let mut wiped = template("wiped");
    wiped.runtime = RuntimeKind::Docker;
    wiped.pool.pool_size = 1;
    wiped.pool.max_overflow = 0;
    wiped.pool.max_uses = 2;
    config.templates.push(wiped);
    let node = Node::start(config).await;
    node.settle().await;
    node
}

/// One use: which container it was, and which time it was handed out.
async fn used(node: &Node) -> (String, u32) {
    let asked = CheckoutRequest::of(name("wiped"));
    let lease = node.engine.checkout(ALICE, asked).await.unwrap().keep();
    node.run(ALICE, lease.sandbox, "echo hi").await.unwrap();
    let view = node.engine.lease(ALICE, lease.lease).unwrap();
    assert_eq!(view.runtime, RuntimeKind::Docker);
    let container = node.engine.container_id(&view).unwrap();
    node.engine.return_lease(ALICE, lease.lease).await.unwrap();
    node.settle().await;
    (container, view.uses)
}

fn counted(node: &Node, line: &str) -> bool {
    let (mut registry, mut text) = (Registry::default(), String::new());
    node.engine.metrics().register(&mut registry);
    encode(&mut text, &registry).unwrap();
    let found = text.lines().any(|known| known == line);
    assert!(found, "no {line} in\n{text}");
    found
}

#[tokio::test(start_paused = true)]
async fn recycled_container_is_replaced_after_its_allowed_uses() {
    let node = node().await;
    let (first, uses) = used(&node).await;
    assert_eq!(uses, 1);
    assert_eq!(used(&node).await, (first.clone(), 2), "it was wiped and handed out again");
    let (other, uses) = used(&node).await;
    assert_eq!(uses, 1);
    assert_ne!(other, first, "a used-up container is not handed out");
    assert!(counted(&node, "shoal_effect_seconds_count{action=\"wipe\",runtime=\"docker\"} 2"));
    assert!(counted(&node, "shoal_effect_seconds_count{action=\"prove\",runtime=\"docker\"} 2"));
    let ended = "shoal_sandboxes_ended_total{reason=\"policy\",cause=\"max_uses\"} 1";
    assert!(counted(&node, ended));
}

#[tokio::test(start_paused = true)]
async fn sandbox_not_proven_clean_is_counted_and_never_handed_out() {
    for operation in [Operation::Wipe, Operation::Prove] {
        let node = node().await;
        let cause = RuntimeError::new(RuntimeErrorCode::System, "look", "something is left");
        node.docker.inject(operation, Fault::Fail(cause));
        let (first, _) = used(&node).await;
        let (second, uses) = used(&node).await;
        assert_ne!(first, second);
        assert_eq!(uses, 1);
        let action = if operation == Operation::Wipe { "wipe" } else { "prove" };
        let failed =
            format!("shoal_effects_failed_total{{action=\"{action}\",runtime=\"docker\"}} 1");
        assert!(counted(&node, &failed));
    }
}

#[tokio::test(start_paused = true)]
async fn recycling_follows_the_runtime_settings_of_each_start() {
    let mut node = node().await;
    for (recycle, again) in
        [(Recycle::Wipe, true), (Recycle::Recreate, false), (Recycle::Wipe, true)]
    {
        node = node.kill_and_start_recycling(recycle).await;
        node.settle().await;
        let mut instances = Vec::new();
        for _ in 0..2 {
            let asked = CheckoutRequest::of(name("wiped"));
            let lease = node.engine.checkout(ALICE, asked).await.unwrap().keep();
            node.run(ALICE, lease.sandbox, "echo hi").await.unwrap();
            node.engine.return_lease(ALICE, lease.lease).await.unwrap();
            node.settle().await;
            instances.push(lease.instance);
        }
        assert_eq!(instances[0] == instances[1], again, "{recycle:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn health_reports_a_missing_container_engine_if_a_template_needs_it() {
    let degraded = |node: &Node| node.engine.health().degraded;
    let node = node().await;
    node.docker.pretend_trouble(Some("the engine does not answer"));
    node.runtime.pretend_trouble(None);
    let received = degraded(&node);
    assert_eq!(received.len(), 1, "{received:?}");
    assert_eq!(received[0].what, "runtime docker");
    assert!(received[0].cause.contains("does not answer"));
    let up: Vec<_> =
        node.engine.runtimes().into_iter().map(|(kind, why)| (kind, why.is_none())).collect();
    assert_eq!(up, [(RuntimeKind::Fake, true), (RuntimeKind::Docker, false)]);
    node.docker.pretend_trouble(None);
    assert_eq!(degraded(&node), []);
    let without = Node::start(config()).await;
    without.docker.pretend_trouble(Some("the engine does not answer"));
    assert_eq!(degraded(&without), [], "no template uses it");
}

#[tokio::test(start_paused = true)]
async fn ended_use_reaches_nothing_of_the_next_user() {
    let node = node().await;
    let asked = || CheckoutRequest::of(name("wiped"));
    let lease = node.engine.checkout(ALICE, asked()).await.unwrap().keep();
    let stale = node.engine.use_sandbox(ALICE, lease.sandbox, UseKind::Files).await.unwrap();
    node.engine.return_lease(ALICE, lease.lease).await.unwrap();
    node.settle().await;
    let next = node.engine.checkout(BOB, asked()).await.unwrap().keep();
    assert_eq!(next.instance, lease.instance, "it was wiped and handed out again");
    assert!(stale.write_file("/workspace/late", None).await.is_err());
    assert!(stale.make_directory("/workspace/late", false).await.is_err());
    assert!(stale.exec(ExecSpec::shell("echo late > /workspace/late")).await.is_err());
    assert!(stale.stat("/workspace").await.is_err());
    drop(stale);
    let listed = node.run(BOB, next.sandbox, "ls /workspace").await.unwrap();
    assert_eq!(listed.stdout, b"");
}

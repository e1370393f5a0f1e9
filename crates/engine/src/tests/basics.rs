//! One thing at a time: what a caller gets, and what is left after it.

use std::time::Duration;

use model::{EndCause, ErrorCode, SandboxState};
use runtime::fake::{Fault, Operation};
use store::StoreErrorCode;
use tokio::time::timeout;

use super::node::{ADMIN, ALICE, BOB, Node, config, name};
use crate::{CheckoutPath, CheckoutRequest, SessionRequest, UseKind};

#[tokio::test(start_paused = true)]
async fn a_sandbox_is_handed_out_used_and_returned() {
    let node = Node::start(config()).await;
    node.settle().await;
    assert_eq!(node.engine.stats().warm, 2, "the pool is warm");
    let lease = node.checkout(ALICE).await.unwrap();
    assert_eq!(lease.path, CheckoutPath::Fast);
    let ran = node.run(ALICE, lease.sandbox, "echo hi").await.unwrap();
    assert_eq!(ran.stdout, b"hi\n");
    let kept = lease.keep();
    node.engine.return_lease(ALICE, kept.lease).await.unwrap();
    let gone = node.run(ALICE, kept.sandbox, "echo hi").await.unwrap_err();
    assert_eq!(gone.code, ErrorCode::SandboxGone);
    assert!(gone.cause.contains("returned"), "{gone}");
    node.settle().await;
    assert_eq!(node.runtime.alive().sandboxes, 2, "another took its place");
}

#[tokio::test(start_paused = true)]
async fn lease_that_no_caller_keeps_is_returned() {
    let node = Node::start(config()).await;
    node.settle().await;
    drop(node.checkout(ALICE).await.unwrap());
    node.settle().await;
    assert_eq!(node.engine.pool(&name("default")).unwrap().leased, 0);
}

#[tokio::test(start_paused = true)]
async fn checkout_that_is_given_up_holds_nothing() {
    let mut config = config();
    config.templates[0].pool.pool_size = 0;
    config.templates[0].pool.max_overflow = 1;
    let node = Node::start(config).await;
    node.runtime.inject(Operation::Launch, Fault::Delay(Duration::from_secs(5)));
    for patience_ms in [0, 1, 100] {
        let patience = Duration::from_millis(patience_ms);
        assert!(timeout(patience, node.checkout(ALICE)).await.is_err());
    }
    tokio::time::sleep(Duration::from_mins(1)).await;
    let pool = node.engine.pool(&name("default")).unwrap();
    assert_eq!((pool.leased, pool.waiters), (0, 0));
    let lease = node.checkout(ALICE).await.unwrap();
    drop(lease);
}

#[tokio::test(start_paused = true)]
async fn sandbox_of_one_key_does_not_exist_for_another() {
    let node = Node::start(config()).await;
    let lease = node.checkout(ALICE).await.unwrap().keep();
    let engine = &node.engine;
    let unknown = ErrorCode::SandboxUnknown;
    assert_eq!(engine.sandbox(BOB, lease.sandbox).unwrap_err().code, unknown);
    let used = engine.use_sandbox(BOB, lease.sandbox, UseKind::Files).await;
    assert_eq!(used.err().unwrap().code, unknown);
    assert_eq!(engine.delete_sandbox(BOB, lease.sandbox).await.unwrap_err().code, unknown);
    assert_eq!(engine.freeze(BOB, lease.sandbox).await.unwrap_err().code, unknown);
    assert_eq!(engine.why(BOB, lease.sandbox).await.unwrap_err().code, unknown);
    let lost = engine.return_lease(BOB, lease.lease).await.unwrap_err();
    assert_eq!(lost.code, ErrorCode::LeaseUnknown);
    assert!(engine.sandboxes(BOB).is_empty());
    assert_eq!(engine.sandboxes(ALICE).len(), 1);
    assert!(engine.sandboxes(ADMIN).len() >= 2, "and those in the pool");
    assert_eq!(engine.sandbox(ADMIN, lease.sandbox).unwrap().state, SandboxState::Warm);
    let page = engine.events(BOB, store::EventQuery::after(0, 100)).await.unwrap();
    assert!(page.events.is_empty(), "{:?}", page.events);
    let page = engine.events(ALICE, store::EventQuery::after(0, 100)).await.unwrap();
    assert_eq!(page.events.len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_sandbox_that_dies_says_so_at_once_and_its_return_is_accepted() {
    let node = Node::start(config()).await;
    for (out_of_memory, code) in [(false, ErrorCode::SandboxCrashed), (true, ErrorCode::Oom)] {
        let lease = node.checkout(ALICE).await.unwrap().keep();
        let running = node.run(ALICE, lease.sandbox, "sleep 1000");
        tokio::pin!(running);
        assert!(timeout(Duration::from_millis(50), &mut running).await.is_err());
        node.runtime.crash(lease.instance, out_of_memory);
        let refusal = timeout(Duration::from_secs(1), running).await.unwrap().unwrap_err();
        assert_eq!(refusal.code, code, "{refusal}");
        node.settle().await;
        let again = node.run(ALICE, lease.sandbox, "true").await.unwrap_err();
        assert_eq!(again.code, ErrorCode::SandboxGone, "{again}");
        node.engine.return_lease(ALICE, lease.lease).await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn full_disk_refuses_checkouts_and_loses_nothing() {
    let node = Node::start(config()).await;
    node.settle().await;
    let before = node.checkout(ALICE).await.unwrap().keep();
    node.store.fail_commits(8, StoreErrorCode::DiskFull);
    let refused = timeout(Duration::from_secs(10), node.checkout(BOB)).await.unwrap();
    let refusal = refused.err().unwrap();
    assert_eq!(refusal.code, ErrorCode::StoreUnavailable);
    assert!(refusal.retry_after_ms.is_some());
    assert!(!node.engine.health().degraded.is_empty());
    let at_once = node.checkout(BOB).await.err().unwrap();
    assert_eq!(at_once.code, ErrorCode::StoreUnavailable);
    tokio::time::sleep(Duration::from_secs(20)).await;
    assert!(node.engine.health().degraded.is_empty());
    assert!(node.engine.sandbox(ALICE, before.sandbox).is_ok());
    assert_eq!(
        node.engine.pool(&name("default")).unwrap().leased,
        1,
        "a refused checkout holds nothing"
    );
}

#[tokio::test(start_paused = true)]
async fn after_a_crash_leases_are_lost_and_say_so() {
    let node = Node::start(config()).await;
    node.settle().await;
    let lease = node.checkout(ALICE).await.unwrap().keep();
    let node = node.kill_and_start().await;
    let lost = node.engine.return_lease(ALICE, lease.lease).await.unwrap_err();
    assert_eq!(lost.code, ErrorCode::LeaseLost, "{lost}");
    let gone = node.run(ALICE, lease.sandbox, "true").await.unwrap_err();
    assert_eq!(gone.code, ErrorCode::SandboxGone, "{gone}");
    node.settle().await;
    assert_eq!(node.engine.stats().warm, 2, "and the pool is warm again");
    assert!(node.checkout(ALICE).await.is_ok());
}

#[tokio::test(start_paused = true)]
async fn shutdown_lets_running_work_finish_and_leaves_nothing() {
    let node = Node::start(config()).await;
    node.settle().await;
    let lease = node.checkout(ALICE).await.unwrap().keep();
    let running = node.run(ALICE, lease.sandbox, "sleep 3; echo done");
    let stopping = async {
        tokio::time::sleep(Duration::from_millis(100)).await;
        node.engine.shutdown().await
    };
    let (ran, stopped) = tokio::join!(running, stopping);
    assert_eq!(ran.unwrap().stdout, b"done\n");
    stopped.unwrap();
    assert_eq!(node.runtime.alive().sandboxes, 0);
    let refused = node.engine.checkout(ALICE, CheckoutRequest::of(name("default"))).await;
    assert_eq!(refused.err().unwrap().code, ErrorCode::ShuttingDown);
}

#[tokio::test(start_paused = true)]
async fn keys_work_until_they_expire_or_are_revoked_also_after_a_restart() {
    let node = Node::start(config()).await;
    let forever = node.engine.create_key("ci", model::Role::Use, None).await.unwrap();
    let short = node.engine.create_key("brief", model::Role::Read, Some(1_000)).await.unwrap();
    let caller = node.engine.authenticate(&forever.secret).unwrap();
    assert_eq!((caller.key, caller.role), (forever.record.id, model::Role::Use));
    assert!(node.engine.authenticate(&short.secret).is_some());
    assert!(node.engine.authenticate("shoal_").is_none());
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert!(node.engine.authenticate(&short.secret).is_none(), "expired");
    let node = node.kill_and_start().await;
    assert!(node.engine.authenticate(&forever.secret).is_some());
    node.engine.revoke_key(forever.record.id).await.unwrap();
    assert!(node.engine.authenticate(&forever.secret).is_none());
    let node = node.kill_and_start().await;
    assert!(node.engine.authenticate(&forever.secret).is_none());
    assert!(!format!("{:?}", node.engine.keys()).contains(&forever.secret));
}

#[tokio::test(start_paused = true)]
async fn a_crash_while_a_pool_is_removed_does_not_keep_the_node_from_starting() {
    for resize in [false, true] {
        let node = Node::start(config()).await;
        node.settle().await;
        if resize {
            node.engine.resize_pool(&name("default"), Some(1), None).await.unwrap();
        }
        let _lease = node.checkout(ALICE).await.unwrap().keep();
        node.runtime.inject(Operation::Kill, Fault::Hang);
        let default = name("default");
        let removal = node.engine.destroy_pool(&default, true);
        assert!(timeout(Duration::from_millis(100), removal).await.is_err());
        let node = node.kill_and_start().await;
        node.settle().await;
        assert!(node.checkout(ALICE).await.is_ok(), "the configured template is there");
        assert_eq!(node.engine.pool(&name("default")).unwrap().pool_size, 2);
    }
}

#[tokio::test(start_paused = true)]
async fn template_changes_survive_a_restart_unless_configured() {
    let mut config = config();
    config.first_templates = std::mem::take(&mut config.templates);
    let node = Node::start(config).await;
    node.engine.resize_pool(&name("default"), Some(5), None).await.unwrap();
    let node = node.kill_and_start().await;
    assert_eq!(node.engine.pool(&name("default")).unwrap().pool_size, 5);
}

#[tokio::test(start_paused = true)]
async fn sandbox_of_the_run_before_is_gone_with_its_reason_at_once() {
    let node = Node::start(config()).await;
    let lease = node.checkout(ALICE).await.unwrap().keep();
    let session = node.engine.create_session(ALICE, SessionRequest::of(name("default"))).await;
    let session = session.unwrap().id;
    node.engine.use_session(ALICE, session, UseKind::Exec, None).await.unwrap();
    let slept = node.engine.session(ALICE, session).unwrap().sandbox_id.unwrap();
    let node = node.kill_and_start().await;
    // At once, and after all leftovers were removed.
    for _ in 0..2 {
        let engine = &node.engine;
        let refusals = [
            engine.use_sandbox(ALICE, lease.sandbox, UseKind::Exec).await.err().unwrap(),
            engine.freeze(ALICE, lease.sandbox).await.unwrap_err(),
            engine.freeze(ALICE, slept).await.unwrap_err(),
            engine.renew_lease(ALICE, lease.lease, None).await.unwrap_err(),
        ];
        for refusal in refusals {
            assert_eq!(refusal.code.status(), 410, "{refusal}");
            assert_eq!(refusal.reason, Some(EndCause::Restart.reason()), "{refusal}");
        }
        node.settle().await;
    }
}

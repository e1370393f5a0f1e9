//! Harnesses that a caller holds and speaks with directly: in leased sandboxes and in those of
//! sessions, prewarmed or not, one holder at a time, ended with their holder.

use std::collections::BTreeMap;
use std::time::Duration;

use model::template::Harness;
use model::{ErrorCode, SandboxId};
use serde_json::{Value, json};
use tokio::time::timeout;

use super::harnesses::{asked, every_kind, node, program, whole};
use super::node::{ALICE, BOB, Node, name};
use crate::{CheckoutRequest, HarnessErrorCode, HeldHarness, TurnRequest, Use, UseKind, WhenBusy};

const PATIENCE: Duration = Duration::from_secs(30);

/// Holds a harness.
async fn hold(node: &Node, sandbox: SandboxId) -> (Use, HeldHarness) {
    let used = node.engine.use_sandbox(ALICE, sandbox, UseKind::Harness).await.unwrap();
    let held = used.hold_harness().await.unwrap();
    (used, held)
}

/// The value of a variable, as the harness reports it.
async fn token(held: &mut HeldHarness) -> Value {
    let turn = json!({ "type": "turn", "id": "t", "input": "env TOKEN" });
    let query = json!({ "cmd": "query", "prompt": "env TOKEN" });
    for line in [turn, query] {
        held.hears.line(&line.to_string()).await;
    }
    let line = timeout(PATIENCE, held.says.next()).await.expect("an answer").unwrap();
    serde_json::from_str::<Value>(&line).unwrap()["data"]["value"].clone()
}

#[tokio::test(start_paused = true)]
async fn held_harness_of_a_lease_has_its_settings_and_ends_with_its_holder() {
    for harness in every_kind() {
        let node = node(harness.clone()).await;
        for env in [BTreeMap::new(), BTreeMap::from([("TOKEN".to_owned(), "mine".to_owned())])] {
            let expected = env.get("TOKEN").cloned();
            let asked = CheckoutRequest { env, ..CheckoutRequest::of(name("default")) };
            let lease = node.engine.checkout(ALICE, asked).await.unwrap();
            let (used, mut held) = hold(&node, lease.sandbox).await;
            assert_eq!(token(&mut held).await, json!(expected), "{harness:?}");
            let second = node.engine.use_sandbox(ALICE, lease.sandbox, UseKind::Harness).await;
            assert_eq!(second.map(drop).unwrap_err().code, ErrorCode::HarnessBusy);
            let foreign = node.engine.use_sandbox(BOB, lease.sandbox, UseKind::Harness).await;
            assert_eq!(foreign.map(drop).unwrap_err().code, ErrorCode::SandboxUnknown);
            drop(held);
            drop(used);
            node.settle().await;
            let (_used, mut held) = hold(&node, lease.sandbox).await;
            assert_eq!(token(&mut held).await, json!(expected), "{harness:?}: a new harness");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn held_harness_is_the_prewarmed_one() {
    let node = node(Harness::Jsonl(program("jsonl", true))).await;
    let lease = node.checkout(ALICE).await.unwrap();
    // The pool is full again.
    node.settle().await;
    let before = node.runtime.alive().tasks;
    let (_used, _held) = hold(&node, lease.sandbox).await;
    node.settle().await;
    assert_eq!(node.runtime.alive().tasks, before, "none was started");
}

#[tokio::test(start_paused = true)]
async fn held_harness_and_turns_of_its_session_alternate() {
    for harness in every_kind() {
        let node = node(harness.clone()).await;
        let session = node.engine.create_session(ALICE, asked()).await.unwrap();
        let sandbox = session.sandbox_id.unwrap();
        whole(&node, session.id, "say a").await;
        let (used, mut held) = hold(&node, sandbox).await;
        assert_eq!(token(&mut held).await, json!("mine"), "{harness:?}");
        for when_busy in [WhenBusy::Refuse, WhenBusy::Queue] {
            let turn =
                TurnRequest { input: "\"say b\"".into(), when_busy, turn: None, wait_ms: None };
            let refused = node.engine.start_turn(ALICE, session.id, turn).await;
            assert_eq!(refused.map(drop).unwrap_err().code, ErrorCode::HarnessBusy);
        }
        node.engine.resume_session(ALICE, session.id).await.expect("the session runs already");
        drop(held);
        drop(used);
        let pieces = whole(&node, session.id, "say c").await;
        assert!(pieces.iter().any(|piece| piece.data.contains("\"c\"")), "{harness:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn held_harness_reports_why_its_sandbox_ended() {
    let node = node(Harness::Jsonl(program("jsonl", false))).await;
    for oom in [false, true] {
        let lease = node.checkout(ALICE).await.unwrap();
        let (used, mut held) = hold(&node, lease.sandbox).await;
        node.runtime.crash(lease.instance, oom);
        let error = timeout(PATIENCE, held.says.next()).await.expect("its end").unwrap_err();
        assert_eq!(error.code, HarnessErrorCode::SandboxGone);
        let expected = if oom { ErrorCode::Oom } else { ErrorCode::SandboxCrashed };
        assert_eq!(used.end_reason().await.map(|refusal| refusal.code), Some(expected));
    }
    let lease = node.checkout(ALICE).await.unwrap();
    let (used, _held) = hold(&node, lease.sandbox).await;
    node.engine.return_lease(ALICE, lease.lease).await.unwrap();
    assert!(used.end_reason().await.is_some(), "a return ends the hold of the harness");
}

#[tokio::test(start_paused = true)]
async fn held_harness_that_cannot_start_is_refused_and_may_be_tried_again() {
    let node = node(Harness::Jsonl(program("missing", false))).await;
    let lease = node.checkout(ALICE).await.unwrap();
    for _ in 0..2 {
        let used = node.engine.use_sandbox(ALICE, lease.sandbox, UseKind::Harness).await.unwrap();
        let refused = used.hold_harness().await.map(drop).unwrap_err();
        assert_eq!(refused.code, ErrorCode::HarnessFailed, "{refused}");
    }
}

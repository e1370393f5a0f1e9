//! Sessions whose turns a program answers: started or bound with the session's settings, replaced
//! when it dies, cancelled on request, and never awaited without end.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use harness::scripted::{ScriptedBridge, ScriptedJsonl};
use model::template::{Harness, HarnessProgram};
use model::{ErrorCode, SessionId, TurnPiece};
use serde_json::Value;
use tokio::time::timeout;

use super::node::{ALICE, Node, config, name};
use crate::{LogStream, SessionRequest, SessionUpdate, TurnRequest, WhenBusy};

const PATIENCE: Duration = Duration::from_secs(30);

pub(super) fn program(command: &str, prewarm: bool) -> HarnessProgram {
    HarnessProgram { command: vec![command.to_owned()], prewarm }
}

pub(super) fn every_kind() -> [Harness; 4] {
    let command = ["node", "/bridge.js"].map(str::to_owned).to_vec();
    [
        Harness::Jsonl(program("jsonl", false)),
        Harness::Jsonl(program("jsonl", true)),
        Harness::AshBridge(program("bridge", false)),
        Harness::AshBridge(HarnessProgram { command, prewarm: true }),
    ]
}

pub(super) async fn node(harness: Harness) -> Node {
    let mut config = config();
    config.templates[0].pool.pool_size = 0;
    let node = Node::start(config).await;
    node.runtime.add_program("jsonl", Arc::new(ScriptedJsonl));
    node.runtime.add_program("bridge", Arc::new(ScriptedBridge));
    node.runtime.add_program("node", Arc::new(ScriptedBridge));
    let mut template = node.engine.template(&name("default")).unwrap().as_ref().clone();
    template.harness = harness;
    template.pool.pool_size = 2;
    node.engine.put_template(template).await.unwrap();
    node.settle().await;
    node
}

pub(super) fn asked() -> SessionRequest {
    SessionRequest {
        env: BTreeMap::from([("TOKEN".to_owned(), "mine".to_owned())]),
        config: Some(r#"{"model":"m1"}"#.into()),
        ..SessionRequest::of(name("default"))
    }
}

pub(super) async fn whole(node: &Node, session: SessionId, script: &str) -> Vec<TurnPiece> {
    let input = serde_json::to_string(script).unwrap().into();
    let asked = TurnRequest { input, when_busy: WhenBusy::Refuse, turn: None, wait_ms: None };
    let mut follow = node.engine.start_turn(ALICE, session, asked).await.unwrap().follow;
    let mut pieces = Vec::new();
    while let Some(piece) = timeout(PATIENCE, follow.next()).await.expect("in time").unwrap() {
        pieces.push(piece);
    }
    pieces
}

fn end(pieces: &[TurnPiece]) -> Value {
    serde_json::from_str(&pieces.last().unwrap().data).unwrap()
}

/// Everything that the harness said, as text.
fn said(pieces: &[TurnPiece]) -> String {
    let messages = pieces.iter().filter(|piece| &*piece.name == "message");
    messages.map(|piece| piece.data.to_string()).collect()
}

#[tokio::test(start_paused = true)]
async fn harness_has_the_session_settings_at_once_after_a_change_and_in_the_next_sandbox() {
    for harness in every_kind() {
        let node = node(harness.clone()).await;
        let session = node.engine.create_session(ALICE, asked()).await.unwrap().id;
        let received = said(&whole(&node, session, "env TOKEN; config").await);
        assert!(received.contains("mine") && received.contains("m1"), "{harness:?}: {received}");
        let config = Some(r#"{"model":"m2"}"#.into());
        let update = SessionUpdate { config, ..SessionUpdate::default() };
        node.engine.update_session(ALICE, session, update).await.unwrap();
        let received = said(&whole(&node, session, "config").await);
        assert!(received.contains("m2") && !received.contains("m1"), "{harness:?}: {received}");
        let sandbox = node.engine.session(ALICE, session).unwrap().sandbox_id.unwrap();
        let view = node.engine.sandbox(ALICE, sandbox).unwrap();
        node.runtime.crash(view.instance.unwrap(), false);
        node.settle().await;
        let received = said(&whole(&node, session, "env TOKEN; config").await);
        assert!(received.contains("mine") && received.contains("m2"), "{harness:?}: {received}");
    }
}

#[tokio::test(start_paused = true)]
async fn harness_that_dies_ends_its_turn_at_once_and_the_next_message_works() {
    for harness in every_kind() {
        let node = node(harness.clone()).await;
        let session = node.engine.create_session(ALICE, asked()).await.unwrap().id;
        for breaking in ["say a; die 3", "garbage", "fail no luck"] {
            let received = timeout(Duration::from_secs(1), whole(&node, session, breaking)).await;
            let received = received.expect("within a second");
            let end = end(&received);
            assert_eq!(end["outcome"], "failed", "{harness:?} {breaking}: {end}");
            assert!(end["error"]["message"].is_string(), "{end}");
            let names: Vec<_> = received.iter().map(|piece| &*piece.name).collect();
            assert!(names.ends_with(&["error", "turn_ended"]), "{names:?}");
            let received = whole(&node, session, "say again").await;
            assert_eq!(end_of(&received), "completed", "{harness:?} after {breaking}");
        }
    }
}

fn end_of(pieces: &[TurnPiece]) -> String {
    end(pieces)["outcome"].as_str().unwrap().to_owned()
}

#[tokio::test(start_paused = true)]
async fn abort_reaches_a_harness_that_listens_and_one_that_does_not() {
    for harness in every_kind() {
        for script in ["say a; hang", "say a; deaf"] {
            for keep in [true, false] {
                let node = node(harness.clone()).await;
                let session = node.engine.create_session(ALICE, asked()).await.unwrap().id;
                let input = serde_json::to_string(script).unwrap().into();
                let asked =
                    TurnRequest { input, when_busy: WhenBusy::Refuse, turn: None, wait_ms: None };
                let mut started =
                    node.engine.start_turn(ALICE, session, asked).await.unwrap().follow;
                while &*started.next().await.unwrap().unwrap().name != "message" {}
                let aborting = node.engine.abort_session(ALICE, session, keep);
                let aborted = timeout(PATIENCE, aborting).await.expect("in time").unwrap();
                assert!(aborted.turn.is_some());
                let mut last = None;
                while let Some(piece) = started.next().await.unwrap() {
                    last = Some(piece);
                }
                assert_eq!(end_of(&[last.unwrap()]), "aborted");
                let received = whole(&node, session, "say on").await;
                assert_eq!(end_of(&received), "completed", "{harness:?} {script} {keep}");
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn harness_that_cannot_start_refuses_the_session_and_leaves_nothing() {
    for kind in [Harness::Jsonl as fn(HarnessProgram) -> Harness, Harness::AshBridge] {
        let node = node(kind(program("missing", false))).await;
        let refusal = node.engine.create_session(ALICE, asked()).await.unwrap_err();
        assert_eq!(refusal.code, ErrorCode::HarnessFailed, "{refusal}");
        node.settle().await;
        let query = crate::SessionQuery { limit: 10, ..crate::SessionQuery::default() };
        let left = node.engine.sessions(ALICE, &query).sessions;
        assert!(left.iter().all(|view| view.sandbox_id.is_none()), "{left:?}");
    }
}

/// A bridge that takes long to load, and waits for its session.
fn slow_bridge() -> Harness {
    let command = ["node", "/bridge.js", "load_ms=3000"].map(str::to_owned).to_vec();
    Harness::AshBridge(HarnessProgram { command, prewarm: true })
}

/// Creates a session with this variable; how long it took, and its id.
async fn created(node: &Node, broken: &str) -> (Duration, Result<SessionId, model::Refusal>) {
    let env = BTreeMap::from([("BROKEN".to_owned(), broken.to_owned())]);
    let before = tokio::time::Instant::now();
    let made = node.engine.create_session(ALICE, SessionRequest { env, ..asked() }).await;
    (before.elapsed(), made.map(|view| view.id))
}

#[tokio::test(start_paused = true)]
async fn session_of_a_bridge_that_was_ready_before_does_not_wait_for_it() {
    let node = node(slow_bridge()).await;
    let (took, _) = created(&node, "0").await;
    assert!(took >= Duration::from_secs(3), "it is not known whether it can start: {took:?}");
    node.settle().await;
    let (took, session) = created(&node, "no").await;
    assert!(took < Duration::from_secs(1), "{took:?}");
    let before = tokio::time::Instant::now();
    let received = whole(&node, session.unwrap(), "env BROKEN").await;
    assert!(said(&received).contains("no") && end_of(&received) == "completed");
    assert!(before.elapsed() >= Duration::from_secs(2), "the turn waits for it");
    node.settle().await;
    let (took, _) = created(&node, "0").await;
    assert!(took < Duration::from_secs(1), "{took:?}");
    node.settle().await;
    let other = SessionRequest { env: BTreeMap::new(), ..asked() };
    let before = tokio::time::Instant::now();
    node.engine.create_session(ALICE, other).await.unwrap();
    assert!(before.elapsed() >= Duration::from_secs(3), "other variables, another bridge");
}

#[tokio::test(start_paused = true)]
async fn bridge_that_fails_after_its_session_is_reported_by_the_turn_and_waited_for_again() {
    let node = node(slow_bridge()).await;
    created(&node, "0").await.1.unwrap();
    node.settle().await;
    let session = created(&node, "1").await.1.expect("it was ready before");
    let received = whole(&node, session, "say a").await;
    let end = end(&received);
    assert_eq!(end["outcome"], "failed", "{end}");
    assert!(end["error"]["message"].as_str().unwrap().contains("the key is wrong"), "{end}");
    node.settle().await;
    let refused = created(&node, "1").await.1.unwrap_err();
    assert_eq!(refused.code, ErrorCode::HarnessFailed, "{refused}");
    node.settle().await;
    // A session that ends while its bridge is loaded ends as every other.
    created(&node, "0").await.1.unwrap();
    node.settle().await;
    let session = created(&node, "0").await.1.unwrap();
    node.engine.end_session(ALICE, session).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn harness_output_of_its_own_is_kept() {
    let node = node(Harness::Jsonl(program("jsonl", false))).await;
    let session = node.engine.create_session(ALICE, asked()).await.unwrap().id;
    whole(&node, session, "log first; log second").await;
    node.settle().await;
    let lines = node.engine.session_logs(ALICE, session, None).unwrap();
    let texts: Vec<_> = lines.iter().map(|line| (line.stream, &*line.text)).collect();
    assert_eq!(texts, [(LogStream::Stderr, "first"), (LogStream::Stderr, "second")]);
    let rest = node.engine.session_logs(ALICE, session, Some(lines[0].index)).unwrap();
    assert_eq!(rest, lines[1..]);
}

//! Harnesses that speak Ash's bridge protocol, on the fake runtime.

use std::time::Duration;

use harness::{Cancelled, HarnessEnd, HarnessErrorCode, HarnessLink};
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::stage::{Stage, ask, binding, bridge, completed, failed, read, turn_id};

async fn link(stage: &Stage) -> HarnessLink {
    stage.start(&bridge(&["bridge"]), Some(&binding())).await.unwrap()
}

#[tokio::test(start_paused = true)]
async fn bridge_messages_are_passed_on_and_the_last_result_counts() {
    let stage = Stage::new().await;
    let link = link(&stage).await;
    let (said, end) = ask(&link, 1, "say a; env ASH_SESSION_ID; env ASH_WORKSPACE_DIR").await;
    assert_eq!(said[0], r#"{"text":"a"}"#);
    assert_eq!(said[1], json!({ "value": binding().session.to_string() }).to_string());
    assert_eq!(said[2], r#"{"value":"/workspace"}"#);
    assert_eq!(completed(end)["type"], "result");
    let input = r#"{"prompt":"config","maxTurns":3,"cmd":"shutdown","other":1}"#;
    let mut turn = link.turn(turn_id(2), input, Some(r#"{"model":"m"}"#)).await.unwrap();
    let (said, _) = read(&mut turn).await;
    let query: Value = serde_json::from_str(&said[0]).unwrap();
    let expected = json!({
        "cmd": "query", "prompt": "config", "sessionId": binding().session.to_string(),
        "maxTurns": 3, "model": "m",
    });
    assert_eq!(query["config"], expected);
}

#[tokio::test(start_paused = true)]
async fn a_bridge_error_ends_a_turn_and_its_late_done_never_the_next() {
    let stage = Stage::new().await;
    let link = link(&stage).await;
    let (_, end) = ask(&link, 1, "fail no luck").await;
    assert_eq!(failed(end), ("harness_error".to_owned(), "no luck".to_owned()));
    let (said, end) = ask(&link, 2, "say a").await;
    assert_eq!(said[0], r#"{"text":"a"}"#);
    completed(end);
    // Half a second late: the harness waits for it.
    let before = Instant::now();
    failed(ask(&link, 3, "fail_late 500").await.1);
    assert!(before.elapsed() >= Duration::from_millis(500));
    // Two seconds late: it does not, and the next turn begins after the `done`, not before.
    failed(ask(&link, 4, "fail_late 2000").await.1);
    let (said, end) = ask(&link, 5, "say b; sleep 5000; say c").await;
    assert_eq!(said[..2], [r#"{"text":"b"}"#, r#"{"text":"c"}"#]);
    completed(end);
    let (said, _) = ask(&link, 6, "say d").await;
    assert_eq!(said[0], r#"{"text":"d"}"#);
}

#[tokio::test(start_paused = true)]
async fn a_turn_that_is_given_up_while_a_bridge_owes_its_done_leaves_the_bridge() {
    let stage = Stage::new().await;
    let link = link(&stage).await;
    failed(ask(&link, 1, "fail_late 3000").await.1);
    let waiting = link.turn(turn_id(2), "\"say a\"", None);
    let given_up = tokio::time::timeout(Duration::from_secs(1), waiting).await;
    assert!(given_up.is_err(), "the `done` is due");
    let (said, end) = ask(&link, 3, "say b").await;
    assert_eq!(said[0], r#"{"text":"b"}"#);
    completed(end);
}

#[tokio::test(start_paused = true)]
async fn a_bridge_that_never_ends_its_query_gets_no_other() {
    let stage = Stage::new().await;
    let started = link(&stage).await;
    failed(ask(&started, 1, "fail_late 60000").await.1);
    let refused = started.turn(turn_id(2), "\"say a\"", None).await.map(drop).unwrap_err();
    assert_eq!(refused.code, HarnessErrorCode::Protocol);
    assert!(!started.is_alive(), "the next turn gets another bridge");
    let again = link(&stage).await;
    completed(ask(&again, 3, "say b").await.1);
}

#[tokio::test(start_paused = true)]
async fn a_bridge_is_interrupted_or_killed() {
    let stage = Stage::new().await;
    let started = link(&stage).await;
    let mut turn = started.turn(turn_id(1), "\"hang\"", None).await.unwrap();
    let cancelled = turn.cancel(Duration::from_secs(1)).await;
    assert_eq!(cancelled, Cancelled::Ended(HarnessEnd::Completed { result: None }));
    completed(ask(&started, 2, "say a").await.1);
    let mut turn = started.turn(turn_id(3), "\"deaf\"", None).await.unwrap();
    assert_eq!(turn.cancel(Duration::from_secs(1)).await, Cancelled::Killed);
    assert!(!started.is_alive());
    // The socket of the dead bridge does not disturb the next one.
    let again = link(&stage).await;
    let (_, end) = ask(&again, 4, "log why; die 7").await;
    assert_eq!(failed(end).1, "the harness exited with code 7: why");
}

#[tokio::test(start_paused = true)]
async fn a_bridge_that_breaks_its_protocol_is_killed() {
    for (text, code) in [("garbage", "harness_protocol"), ("huge", "harness_too_large")] {
        let stage = Stage::new().await;
        let link = link(&stage).await;
        assert_eq!(failed(ask(&link, 1, text).await.1).0, code);
        assert!(!link.is_alive());
    }
}

#[tokio::test(start_paused = true)]
async fn a_bridge_that_is_never_ready_is_refused() {
    let stage = Stage::new().await;
    let before = Instant::now();
    let refused = stage.start(&bridge(&["sleep", "1000"]), Some(&binding())).await;
    assert_eq!(refused.map(drop).unwrap_err().code, HarnessErrorCode::ReadyTimeout);
    assert_eq!(before.elapsed().as_secs(), 10, "a bridge has ten seconds, whatever others have");
    let refused = stage.start(&bridge(&["exit", "4"]), Some(&binding())).await;
    assert_eq!(refused.map(drop).unwrap_err().code, HarnessErrorCode::Died);
    let unbound = stage.start(&bridge(&["bridge"]), None).await;
    assert_eq!(unbound.map(drop).unwrap_err().code, HarnessErrorCode::NotStarted);
}

#[tokio::test(start_paused = true)]
async fn a_bridge_that_was_started_early_gets_its_settings_late() {
    let stage = Stage::new().await;
    let early = stage.start(&bridge(&["node", "/bridge.js"]), None).await.unwrap();
    assert!(early.is_alive() && !early.works_unbound());
    let refused = early.turn(turn_id(1), "\"x\"", None).await.map(drop).unwrap_err();
    assert_eq!(refused.code, HarnessErrorCode::NotStarted);
    let mut late = binding();
    assert!(early.can_bind(&late));
    late.env.insert("NODE_OPTIONS".to_owned(), "x".to_owned());
    assert!(!early.can_bind(&late), "Node reads it when it starts");
    let link = early.clone().bind(&binding()).await.unwrap();
    let (said, end) = ask(&link, 1, "env TOKEN; env ASH_SESSION_ID").await;
    assert_eq!(said[0], r#"{"value":"secret"}"#);
    assert_eq!(said[1], json!({ "value": binding().session.to_string() }).to_string());
    completed(end);
    let refused = early.bind(&binding()).await.map(drop).unwrap_err();
    assert_eq!(refused.code, HarnessErrorCode::Busy, "it has one session");
    drop(link);
    stage.until_nothing_runs().await;
    let unused = stage.start(&bridge(&["node", "/bridge.js"]), None).await.unwrap();
    drop(unused);
    stage.until_nothing_runs().await;
}

#[tokio::test(start_paused = true)]
async fn an_early_bridge_is_not_waited_for_before_its_session() {
    let stage = Stage::new().await;
    let slow = bridge(&["node", "/bridge.js", "start_ms=3000"]);
    let before = Instant::now();
    let early = stage.start(&slow, None).await.unwrap();
    assert!(early.is_alive() && before.elapsed() < Duration::from_secs(1), "a pool does not wait");
    let link = early.bind(&binding()).await.unwrap();
    assert!(before.elapsed() >= Duration::from_secs(3), "a session does");
    let (said, _) = ask(&link, 1, "env TOKEN").await;
    assert_eq!(said[0], r#"{"value":"secret"}"#);
    drop(link);
    // A session that is given up in the middle leaves nothing.
    let early = stage.start(&slow, None).await.unwrap();
    let given_up =
        tokio::time::timeout(Duration::from_secs(1), early.clone().bind(&binding())).await;
    assert!(given_up.is_err() && !early.is_alive());
    drop(early);
    stage.until_nothing_runs().await;
}

#[tokio::test(start_paused = true)]
async fn a_bridge_is_started_for_its_session_if_node_never_waits_for_it() {
    // It ends before the session comes, or while the session waits for it, or never waits.
    for (arguments, pause_s) in [
        (["early_exit=9", ""], 1),
        (["early_exit=9", "start_ms=2000"], 0),
        (["start_ms=100000", ""], 0),
    ] {
        let stage = Stage::new().await;
        let command = ["node", "/bridge.js", arguments[0], arguments[1]];
        let early = stage.start(&bridge(&command), None).await.unwrap();
        tokio::time::sleep(Duration::from_secs(pause_s)).await;
        let link = early.bind(&binding()).await.unwrap();
        let (said, end) = ask(&link, 1, "env TOKEN").await;
        assert_eq!(said[0], r#"{"value":"secret"}"#, "{arguments:?}");
        completed(end);
        drop(link);
        stage.until_nothing_runs().await;
    }
}

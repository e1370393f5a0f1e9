//! Harnesses that a caller holds, on the fake runtime.

use harness::{HELD_LINE_BYTES_MAX, HarnessErrorCode, HarnessLink, HeldHarness, Logs, StartedFor};
use model::template::Harness;
use serde_json::{Value, json};
use std::sync::Arc;
use tokio::time::timeout;

use crate::stage::{PATIENCE, Stage, ask, binding, bridge, jsonl, turn_id};

async fn started(stage: &Stage, harness: &Harness, started_for: StartedFor<'_>) -> HarnessLink {
    let logs: Arc<dyn Logs> = Arc::clone(&stage.logs) as _;
    let sandbox = Arc::clone(&stage.sandbox);
    harness::start(sandbox, harness, started_for, logs, PATIENCE).await.unwrap()
}

async fn next(held: &mut HeldHarness) -> Result<Value, (HarnessErrorCode, String)> {
    let next = timeout(PATIENCE, held.says.next()).await.expect("something is said");
    next.map(|line| serde_json::from_str(&line).unwrap()).map_err(|error| (error.code, error.cause))
}

fn turn(script: &str) -> String {
    json!({ "type": "turn", "id": "t", "input": script }).to_string()
}

#[tokio::test(start_paused = true)]
async fn a_held_harness_passes_lines_both_ways_unchanged() {
    let (stage, bound) = (Stage::new().await, binding());
    let link = started(&stage, &jsonl(&["harness"]), StartedFor::Caller(&bound)).await;
    let mut held = link.hold().await.unwrap();
    // It was started for its holder and got no message, not even a binding.
    held.hears.line(&turn("env TOKEN; config")).await;
    assert_eq!(next(&mut held).await.unwrap()["data"], json!({ "value": "secret" }));
    assert_eq!(next(&mut held).await.unwrap()["data"], json!({ "config": null }));
    assert_eq!(next(&mut held).await.unwrap()["type"], "result");
    held.hears.line(r#"{"type":"bind","env":{"TOKEN":"other"},"config":1}"#).await;
    assert_eq!(next(&mut held).await.unwrap(), json!({ "type": "bound" }));
    // A line that would end a turn or break the protocol is passed on like any other.
    held.hears.line(&turn("wrong_id; twice; twice")).await;
    for kind in ["event", "result", "result", "result"] {
        assert_eq!(next(&mut held).await.unwrap()["type"], kind);
    }
}

#[tokio::test(start_paused = true)]
async fn a_bridge_can_be_held() {
    let (stage, bound) = (Stage::new().await, binding());
    let link = started(&stage, &bridge(&["bridge"]), StartedFor::Caller(&bound)).await;
    let mut held = link.hold().await.unwrap();
    held.hears.line(r#"{"cmd":"query","prompt":"say hi"}"#).await;
    assert_eq!(next(&mut held).await.unwrap()["data"], json!({ "text": "hi" }));
    drop(held);
    stage.until_nothing_runs().await;
    let shell = started(&stage, &Harness::Shell, StartedFor::Caller(&bound)).await;
    let refused = shell.hold().await.map(drop).unwrap_err();
    assert_eq!(refused.code, HarnessErrorCode::NotStarted);
}

#[tokio::test(start_paused = true)]
async fn a_harness_has_one_holder_and_ends_with_it() {
    let stage = Stage::new().await;
    let link = started(&stage, &jsonl(&["harness"]), StartedFor::NoSession).await;
    let given = link.turn(turn_id(1), "\"hang\"", None).await.unwrap();
    assert_eq!(link.hold().await.map(drop).unwrap_err().code, HarnessErrorCode::Busy);
    drop(given);
    let link = started(&stage, &jsonl(&["harness"]), StartedFor::NoSession).await;
    ask(&link, 1, "say a").await;
    let held = link.hold().await.unwrap();
    assert_eq!(link.hold().await.map(drop).unwrap_err().code, HarnessErrorCode::Busy);
    let refused = link.turn(turn_id(2), "\"say x\"", None).await.map(drop).unwrap_err();
    assert_eq!(refused.code, HarnessErrorCode::Busy);
    assert!(link.is_alive());
    drop(held);
    assert!(!link.is_alive());
    stage.until_nothing_runs().await;
}

#[tokio::test(start_paused = true)]
async fn the_end_of_a_held_harness_follows_its_last_output() {
    for (script, expected) in [
        ("say a; die 3", (HarnessErrorCode::Died, "the harness exited with code 3")),
        (
            "say a; hang_up",
            (HarnessErrorCode::Died, "the harness closed its connection but still runs"),
        ),
        ("log bye; say a; die 0", (HarnessErrorCode::Died, "the harness exited with code 0: bye")),
    ] {
        let stage = Stage::new().await;
        let link = started(&stage, &jsonl(&["harness"]), StartedFor::NoSession).await;
        let mut held = link.hold().await.unwrap();
        held.hears.line(&turn(script)).await;
        assert_eq!(next(&mut held).await.unwrap()["data"], json!({ "text": "a" }));
        let (code, cause) = next(&mut held).await.unwrap_err();
        assert_eq!((code, &*cause), expected);
        // Writing to a program that is gone does nothing.
        timeout(PATIENCE, held.hears.line("x")).await.expect("the write does not wait");
    }
}

#[tokio::test(start_paused = true)]
async fn a_line_that_is_too_long_ends_a_held_harness() {
    let stage = Stage::new().await;
    let link = started(&stage, &jsonl(&["harness"]), StartedFor::NoSession).await;
    let mut held = link.hold().await.unwrap();
    held.hears.line(&turn("huge")).await;
    let (code, cause) = next(&mut held).await.unwrap_err();
    assert_eq!(code, HarnessErrorCode::TooLarge);
    assert!(cause.contains(&HELD_LINE_BYTES_MAX.to_string()), "{cause}");
}

#[tokio::test(start_paused = true)]
async fn a_held_harness_reports_that_its_sandbox_is_gone() {
    let stage = Stage::new().await;
    let link = started(&stage, &jsonl(&["harness"]), StartedFor::NoSession).await;
    let mut held = link.hold().await.unwrap();
    stage.runtime.crash(stage.sandbox.instance(), false);
    assert_eq!(next(&mut held).await.unwrap_err().0, HarnessErrorCode::SandboxGone);
}

#[tokio::test(start_paused = true)]
async fn dropped_waits_on_a_held_harness_lose_nothing() {
    let stage = Stage::new().await;
    let link = started(&stage, &jsonl(&["harness"]), StartedFor::NoSession).await;
    let mut held = link.hold().await.unwrap();
    let script: Vec<_> = (0..40).map(|n| format!("say {n}; sleep {}", n % 3)).collect();
    held.hears.line(&turn(&script.join(";"))).await;
    let mut said = 0;
    while said < 40 {
        let wait = timeout(std::time::Duration::from_micros(300), held.says.next()).await;
        if let Ok(line) = wait {
            let line: Value = serde_json::from_str(&line.unwrap()).unwrap();
            assert_eq!(line["data"]["text"], said.to_string());
            said += 1;
        }
    }
}

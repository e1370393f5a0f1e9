//! Harnesses that speak our JSON lines, on the fake runtime.

use std::time::Duration;

use harness::{Cancelled, HarnessEnd, HarnessErrorCode, HarnessEvent, HarnessLink, LogStream};
use serde_json::json;
use tokio::time::Instant;

use crate::stage::{Stage, ask, binding, completed, failed, jsonl, read, turn_id};

async fn link(stage: &Stage) -> HarnessLink {
    stage.start(&jsonl(&["harness"]), Some(&binding())).await.unwrap()
}

#[tokio::test(start_paused = true)]
async fn jsonl_turns_are_answered_one_after_the_other() {
    let stage = Stage::new().await;
    let link = link(&stage).await;
    let (said, end) = ask(&link, 1, "say a; out b; err c; count; env TOKEN; config").await;
    let expected = [
        r#"{"text":"a"}"#,
        "stdout: b",
        "stderr: c",
        r#"{"turns":1}"#,
        r#"{"value":"secret"}"#,
        r#"{"config":{"model":"small"}}"#,
    ];
    assert_eq!(said, expected);
    assert_eq!(completed(end)["did"], "say a; out b; err c; count; env TOKEN; config");
    let (said, end) = ask(&link, 2, "count").await;
    assert_eq!(said, [r#"{"turns":2}"#]);
    completed(end);
    let pretty = "{\n \"text\": \"config\"\n}";
    let mut turn = link.turn(turn_id(3), pretty, Some("{\r\n\"a\":1}")).await.unwrap();
    assert_eq!(read(&mut turn).await.0, [r#"{"config":{"a":1}}"#]);
}

#[tokio::test(start_paused = true)]
async fn a_harness_that_was_started_early_is_bound_late() {
    let stage = Stage::new().await;
    let link = stage.start(&jsonl(&["harness"]), None).await.unwrap();
    let (said, _) = ask(&link, 1, "env TOKEN").await;
    assert_eq!(said, [r#"{"value":null}"#]);
    let link = link.bind(&binding()).await.unwrap();
    let (said, _) = ask(&link, 2, "env TOKEN; config").await;
    assert_eq!(said, [r#"{"value":"secret"}"#, r#"{"config":{"model":"small"}}"#]);
}

#[tokio::test(start_paused = true)]
async fn a_harness_takes_one_turn_at_a_time() {
    let stage = Stage::new().await;
    let link = link(&stage).await;
    let mut first = link.turn(turn_id(1), "\"hang\"", None).await.unwrap();
    let refused = link.turn(turn_id(2), "\"say x\"", None).await.map(drop).unwrap_err();
    assert_eq!(refused.code, HarnessErrorCode::Busy);
    let bad = link.clone().bind(&binding()).await.map(drop).unwrap_err();
    assert_eq!(bad.code, HarnessErrorCode::Busy);
    let cancelled = first.cancel(Duration::from_secs(1)).await;
    let Cancelled::Ended(end) = cancelled else { panic!("{cancelled:?}") };
    assert_eq!(failed(end), ("cancelled".to_owned(), "cancelled".to_owned()));
    assert!(link.is_alive());
    let refused = link.turn(turn_id(3), "no JSON", None).await.map(drop).unwrap_err();
    assert_eq!(refused.code, HarnessErrorCode::Input);
    let (said, _) = ask(&link, 4, "say again").await;
    assert_eq!(said, [r#"{"text":"again"}"#]);
}

#[tokio::test(start_paused = true)]
async fn a_harness_that_does_not_stop_is_killed_after_the_grace() {
    let stage = Stage::new().await;
    let link = link(&stage).await;
    let mut turn = link.turn(turn_id(1), "\"say a; deaf\"", None).await.unwrap();
    let (before, mut said) = (Instant::now(), Vec::new());
    let cancelled = turn.cancel_into(Duration::from_secs(3), |event| said.push(event)).await;
    assert_eq!(cancelled, Cancelled::Killed);
    assert_eq!(before.elapsed().as_secs(), 3);
    assert_eq!(said, [HarnessEvent::Message(r#"{"text":"a"}"#.into())]);
    assert_eq!(stage.runtime.alive().tasks, 0);
    assert!(!link.is_alive());
    let refused = link.turn(turn_id(2), "\"say x\"", None).await.map(drop).unwrap_err();
    assert_eq!(refused.code, HarnessErrorCode::Died);
}

#[tokio::test(start_paused = true)]
async fn a_dropped_turn_kills_its_program() {
    let stage = Stage::new().await;
    let link = link(&stage).await;
    drop(link.turn(turn_id(1), "\"deaf\"", None).await.unwrap());
    assert!(!link.is_alive());
    let refused = link.turn(turn_id(2), "\"say x\"", None).await.map(drop).unwrap_err();
    assert_eq!(refused.code, HarnessErrorCode::Died);
    stage.until_nothing_runs().await;
}

#[tokio::test(start_paused = true)]
async fn a_harness_death_is_reported_within_a_second_with_its_reason() {
    let stage = Stage::new().await;
    let started = link(&stage).await;
    let before = Instant::now();
    let (said, end) = ask(&started, 1, "say a; log out of luck; die 3").await;
    assert_eq!(said, [r#"{"text":"a"}"#]);
    let (code, message) = failed(end);
    assert_eq!(code, "harness_died");
    assert_eq!(message, "the harness exited with code 3: out of luck");
    assert!(before.elapsed() < Duration::from_secs(1));
    assert_eq!(stage.logs.of(LogStream::Stderr), ["out of luck"]);
    assert!(!started.is_alive());
    let again = link(&stage).await;
    let mut turn = again.turn(turn_id(2), "\"deaf\"", None).await.unwrap();
    stage.runtime.crash(stage.sandbox.instance(), true);
    assert_eq!(read(&mut turn).await.1, HarnessEnd::SandboxGone);
    let refused = again.turn(turn_id(3), "\"x\"", None).await.map(drop).unwrap_err();
    assert_eq!(refused.code, HarnessErrorCode::SandboxGone);
}

#[tokio::test(start_paused = true)]
async fn a_harness_that_breaks_its_protocol_fails_its_turn_and_is_killed() {
    for (text, code, words) in [
        ("garbage", "harness_protocol", "a line of the harness cannot be parsed"),
        ("wrong_id", "harness_protocol", "has no turn \"other\""),
        ("huge", "harness_too_large", "too long"),
        ("hang_up", "harness_died", "closed its connection"),
    ] {
        let stage = Stage::new().await;
        let link = link(&stage).await;
        let (said, end) = ask(&link, 1, &format!("say first; {text}")).await;
        assert_eq!(said, [r#"{"text":"first"}"#], "{text}");
        let (found, message) = failed(end);
        assert_eq!(found, code, "{text}");
        assert!(message.contains(words), "{text}: {message}");
        assert!(!link.is_alive(), "{text}");
        assert_eq!(stage.runtime.alive().tasks, 0, "{text}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_second_result_is_not_the_next_turns_fault() {
    let stage = Stage::new().await;
    let link = link(&stage).await;
    let (_, end) = ask(&link, 1, "twice").await;
    assert_eq!(completed(end), json!(1));
    // The second one may still be on its way.
    tokio::time::sleep(Duration::from_secs(1)).await;
    let refused = link.turn(turn_id(2), "\"hang\"", None).await.map(drop).unwrap_err();
    assert_eq!(refused.code, HarnessErrorCode::Protocol);
    assert!(refused.cause.contains("was ended twice"), "{refused}");
}

#[tokio::test(start_paused = true)]
async fn a_harness_that_is_never_ready_is_refused() {
    let stage = Stage::new().await;
    for (command, code, words) in [
        (&["sleep", "1000"][..], HarnessErrorCode::ReadyTimeout, "in time"),
        (&["sh", "-c", "echo why >&2; sleep 1000"], HarnessErrorCode::ReadyTimeout, "in time: why"),
        (&["sh", "-c", "echo why >&2; exit 3"], HarnessErrorCode::Died, "code 3: why"),
        (
            &["sh", "-c", "echo the reason why >&2; echo v20 >&2; exit 3"],
            HarnessErrorCode::Died,
            "code 3: the reason why\nv20",
        ),
        (&["echo", "hi"], HarnessErrorCode::Died, "exited with code 0"),
        (&["nothing"], HarnessErrorCode::NotStarted, "no program nothing"),
        (&["channel"], HarnessErrorCode::ReadyTimeout, "in time"),
    ] {
        let refused = stage.start(&jsonl(command), None).await.map(drop).unwrap_err();
        assert_eq!(refused.code, code, "{command:?}: {refused}");
        assert!(refused.cause.contains(words), "{command:?}: {refused}");
        // Logs and events contain the failure, and never the program's output.
        let told = refused.into_runtime_error().to_string();
        assert!(!told.contains("why"), "{command:?}: {told}");
    }
    stage.until_nothing_runs().await;
}

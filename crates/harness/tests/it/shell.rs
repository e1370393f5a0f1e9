//! Turns that are command lines, on the fake runtime.

use std::time::Duration;

use harness::{Cancelled, HarnessEnd, HarnessErrorCode};
use model::template::Harness;
use serde_json::json;

use crate::stage::{Stage, ask, binding, completed, failed, read, turn_id};

#[tokio::test(start_paused = true)]
async fn shell_output_is_passed_on_and_the_exit_is_the_result() {
    let stage = Stage::new().await;
    let link = stage.start(&Harness::Shell, Some(&binding())).await.unwrap();
    let (said, end) = ask(&link, 1, "echo hi; echo no >&2; exit 3").await;
    assert!(said.contains(&"stdout: hi\n".to_owned()), "{said:?}");
    assert!(said.contains(&"stderr: no\n".to_owned()), "{said:?}");
    assert_eq!(completed(end), json!({ "exit_code": 3, "signal": null }));
    let (said, end) = ask(&link, 2, "printenv TOKEN; kill -9 $$").await;
    assert_eq!(said, ["stdout: secret\n"]);
    assert_eq!(completed(end), json!({ "exit_code": 137, "signal": "SIGKILL" }));
    let input = r#"{"command":"pwd; printenv TOKEN","cwd":"/tmp","env":{"TOKEN":"other"}}"#;
    let mut turn = link.turn(turn_id(3), input, None).await.unwrap();
    let said = read(&mut turn).await.0.concat().replace("stdout: ", "");
    assert_eq!(said, "/tmp\nother\n");
    let (_, end) = ask(&link, 4, "oom").await;
    assert_eq!(completed(end)["oom"], true);
}

#[tokio::test(start_paused = true)]
async fn a_cancelled_or_dropped_shell_turn_leaves_nothing() {
    let stage = Stage::new().await;
    let link = stage.start(&Harness::Shell, None).await.unwrap();
    let mut turn = link.turn(turn_id(1), "\"sleep 100 & sleep 100\"", None).await.unwrap();
    let cancelled = turn.cancel(Duration::from_secs(1)).await;
    let Cancelled::Ended(end) = cancelled else { panic!("{cancelled:?}") };
    assert_eq!(completed(end)["signal"], "SIGTERM");
    assert_eq!(stage.runtime.alive().tasks, 0);
    let turn = link.turn(turn_id(2), "\"sleep 100 & sleep 100\"", None).await.unwrap();
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(stage.runtime.alive().tasks, 2);
    drop(turn);
    stage.until_nothing_runs().await;
    assert!(link.is_alive());
    let (said, _) = ask(&link, 3, "echo on").await;
    assert_eq!(said, ["stdout: on\n"]);
}

#[tokio::test(start_paused = true)]
async fn a_shell_turn_that_cannot_run_reports_why() {
    let stage = Stage::new().await;
    let link = stage.start(&Harness::Shell, None).await.unwrap();
    let refused = link.turn(turn_id(1), "[1]", None).await.map(drop).unwrap_err();
    assert_eq!(refused.code, HarnessErrorCode::Input);
    let (_, end) = ask(&link, 2, "echo 'no end").await;
    assert_eq!(failed(end).0, "harness_not_started");
    let mut turn = link.turn(turn_id(3), "\"sleep 100\"", None).await.unwrap();
    stage.runtime.crash(stage.sandbox.instance(), false);
    assert_eq!(read(&mut turn).await.1, HarnessEnd::SandboxGone);
    assert!(!link.is_alive());
    let refused = link.turn(turn_id(4), "\"true\"", None).await.map(drop).unwrap_err();
    assert_eq!(refused.code, HarnessErrorCode::SandboxGone);
}

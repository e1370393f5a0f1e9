//! Programs, waited for and watched.

use serde_json::{Value, json};

use crate::raw_client::Connection;
use crate::stage::{Stage, request, text};

async fn watch(stage: &Stage, id: &str, accept: &str, body: &Value) -> Connection {
    let mut connection = stage.connect().await;
    let path = format!("/v1/sandboxes/{id}/exec");
    let headers = format!("accept: {accept}\r\n");
    let body = body.to_string();
    connection.send(request(&stage.admin, "POST", &path, &headers, body.as_bytes())).await;
    connection
}

async fn run(stage: &Stage, id: &str, body: Value) -> Value {
    stage.call("POST", &format!("/v1/sandboxes/{id}/exec"), body).await.expect(200)
}

#[tokio::test]
async fn a_program_runs_to_its_end() {
    let stage = Stage::start().await;
    let (_, id) = stage.checkout().await;
    let answer = stage
        .call("POST", &format!("/v1/sandboxes/{id}/exec"), json!({"argv": ["echo", "a b"]}))
        .await;
    let timing = &answer.headers["server-timing"];
    assert!(timing.starts_with("grant;dur=") && timing.contains("exec;dur="), "{timing}");
    assert_eq!(answer.expect(200)["stdout"], "a b\n");
    let ran = run(&stage, &id, json!({"command": "cat", "stdin": "grün"})).await;
    assert_eq!((&ran["stdout"], &ran["truncated"]), (&"grün".into(), &false.into()));
    let ran = run(&stage, &id, json!({"command": "cat", "stdin_base64": "//4="})).await;
    assert_eq!((&ran["stdout"], &ran["stdout_base64"]), (&Value::Null, &"//4=".into()));
    let ran = run(&stage, &id, json!({"command": "printenv X", "env": {"X": "1"}})).await;
    assert_eq!(ran["stdout"], "1\n");
    let ran = run(&stage, &id, json!({"command": "exit 3"})).await;
    assert_eq!((&ran["exit_code"], &ran["signal"]), (&3.into(), &Value::Null));
    let ran =
        run(&stage, &id, json!({"command": "cat", "stdin": "abcdef", "output_bytes": 3})).await;
    assert_eq!((&ran["stdout"], &ran["stdout_truncated"]), (&"abc".into(), &true.into()));
    let ran = run(&stage, &id, json!({"command": "sleep 100", "timeout_ms": 50})).await;
    assert_eq!((&ran["timed_out"], &ran["signal"]), (&true.into(), &"SIGKILL".into()));
    assert_eq!(ran["exit_code"], 137);
    let exec = format!("/v1/sandboxes/{id}/exec");
    let unknown = stage.call("POST", &exec, json!({"argv": ["nosuch"]})).await;
    unknown.problem("path_not_found");
}

#[tokio::test]
async fn a_program_is_watched_as_events_and_as_lines() {
    let stage = Stage::start().await;
    let (_, id) = stage.checkout().await;
    let body = json!({"command": "echo one; echo two"});
    let mut events = watch(&stage, &id, "text/event-stream", &body).await;
    let head = events.head().await;
    assert_eq!((head.status, head.headers["content-type"].as_str()), (200, "text/event-stream"));
    let mut names = Vec::new();
    let mut output = String::new();
    while let Some((_, name, data)) = events.event().await {
        assert_eq!(data["type"], name);
        if name == "stdout" {
            output.push_str(data["data"].as_str().unwrap());
        }
        if name == "exit" {
            assert_eq!(data["exit_code"], 0);
        }
        names.push(name);
    }
    assert_eq!(output, "one\ntwo\n");
    assert_eq!(
        (names.first().unwrap().as_str(), names.last().unwrap().as_str()),
        ("started", "exit")
    );
    let mut lines = watch(&stage, &id, "application/x-ndjson", &body).await;
    let answer = lines.answer().await;
    assert_eq!(answer.headers["content-type"], "application/x-ndjson");
    let lines = String::from_utf8(answer.body).unwrap();
    let types: Vec<_> = lines
        .lines()
        .map(|line| text(&serde_json::from_str::<Value>(line).unwrap()["type"]))
        .collect();
    assert_eq!(
        (types.first().unwrap().as_str(), types.last().unwrap().as_str()),
        ("started", "exit")
    );
    let unknown = json!({"argv": ["nosuch"]});
    let mut refused = watch(&stage, &id, "text/event-stream", &unknown).await;
    refused.answer().await.problem("path_not_found");
    let late = json!({"command": "sleep 100", "timeout_ms": 50});
    let mut late = watch(&stage, &id, "text/event-stream", &late).await;
    late.head().await;
    let mut last = None;
    while let Some(event) = late.event().await {
        last = Some(event);
    }
    let (_, name, data) = last.unwrap();
    assert_eq!((name.as_str(), &data["timed_out"]), ("exit", &true.into()));
}

#[tokio::test]
async fn programs_are_counted_however_they_are_run() {
    let stage = Stage::start().await;
    let (_, id) = stage.checkout().await;
    for accept in ["application/json", "text/event-stream", "application/x-ndjson"] {
        for command in [json!({"command": "exit 3"}), json!({"argv": ["nosuch"]})] {
            watch(&stage, &id, accept, &command).await.answer().await;
        }
    }
    let metrics = String::from_utf8(stage.get("/metrics").await.body).unwrap();
    let counts: Vec<_> =
        metrics.lines().filter(|line| line.starts_with("shoal_exec_seconds_count")).collect();
    assert!(counts.len() == 2 && counts.iter().all(|line| line.ends_with(" 3")), "{counts:?}");
}

#[tokio::test]
async fn a_stream_may_be_cut_to_a_size() {
    let stage = Stage::start().await;
    let (_, id) = stage.checkout().await;
    let body = json!({"command": "cat", "stdin": "abcdef", "output_bytes": 4});
    let mut events = watch(&stage, &id, "text/event-stream", &body).await;
    events.head().await;
    let mut output = String::new();
    while let Some((_, name, data)) = events.event().await {
        match name.as_str() {
            "stdout" => output.push_str(data["data"].as_str().unwrap()),
            "exit" => assert_eq!(data["stdout_truncated"], true),
            _ => {}
        }
    }
    assert_eq!(output, "abcd");
}

#[tokio::test]
async fn exec_timeout_applies_to_a_client_that_does_not_read() {
    use http_body_util::BodyExt as _;
    use tower_service::Service as _;
    let stage = Stage::start().await;
    let (_, id) = stage.checkout().await;
    for (command, timed_out) in [("sleep 1000", true), ("true", false)] {
        let body = json!({"command": command, "timeout_ms": 50}).to_string();
        let request = axum::extract::Request::post(format!("/v1/sandboxes/{id}/exec"))
            .header("host", "localhost")
            .header("accept", "application/x-ndjson")
            .header("authorization", format!("Bearer {}", stage.admin))
            .body(axum::body::Body::from(body))
            .unwrap();
        let unread = stage.api.router().call(request).await.unwrap();
        stage.until("it is gone", |stage| stage.runtime.alive().tasks == 0).await;
        tokio::time::sleep(std::time::Duration::from_millis(100)).await;
        let told = unread.into_body().collect().await.unwrap().to_bytes();
        let last = told.trim_ascii_end().split(|byte| *byte == b'\n').next_back().unwrap();
        let last: Value = serde_json::from_slice(last).unwrap();
        assert_eq!((&last["type"], &last["timed_out"]), (&"exit".into(), &timed_out.into()));
    }
}

#[tokio::test]
async fn a_sandbox_that_dies_ends_its_stream_with_the_reason() {
    let stage = Stage::start().await;
    let (_, id) = stage.checkout().await;
    let body = json!({"command": "sleep 100"});
    let mut events = watch(&stage, &id, "text/event-stream", &body).await;
    events.head().await;
    assert_eq!(events.event().await.unwrap().1, "started");
    let sandbox = stage.engine.sandboxes(engine::Caller::SERVER);
    let sandbox = sandbox.into_iter().find(|view| view.id.to_string() == id).unwrap();
    stage.runtime.crash(sandbox.instance.unwrap(), true);
    let (_, name, data) = events.event().await.unwrap();
    assert_eq!((name.as_str(), &data["problem"]["code"]), ("error", &"oom".into()), "{data}");
    assert!(events.event().await.is_none());
}

#[tokio::test]
async fn a_client_that_goes_away_takes_its_program_along() {
    let stage = Stage::start().await;
    let (_, id) = stage.checkout().await;
    for accept in ["text/event-stream", "application/json"] {
        let body = json!({"command": "sleep 1000"});
        let mut client = watch(&stage, &id, accept, &body).await;
        stage.until("it runs", |stage| stage.runtime.alive().tasks == 1).await;
        if accept == "text/event-stream" {
            client.head().await;
        }
        drop(client);
        stage.until("it is gone", |stage| stage.runtime.alive().tasks == 0).await;
    }
    run(&stage, &id, json!({"command": "true"})).await;
}

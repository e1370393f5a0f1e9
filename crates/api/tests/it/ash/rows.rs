//! What Ash was measured to do wrong, row by row: here it must be right. Rows about files that
//! outlive their sandbox, and about the host, are tried with real sandboxes elsewhere.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use engine::Caller;
use harness::scripted::ScriptedBridge;
use model::Role;
use model::template::{Harness, HarnessProgram};
use runtime::ExitStatus;
use runtime::fake::{FakeProgram, FakeProgramContext};
use serde_json::{Value, json};

use super::{begin, call, completed, deploy, get, names, said, send, session, stage, stage_with};
use crate::raw_client::Connection;
use crate::stage::{Stage, request, text};

/// The most that may be alive.
const MOST: u32 = 4;

async fn small() -> Stage {
    stage_with(|_, node, _| {
        node.max_sandboxes = MOST;
        node.max_live = MOST;
    })
    .await
}

fn live(stage: &Stage) -> u32 {
    let stats = stage.engine.stats();
    stats.total - stats.cold
}

/// A message that said something and goes on until it is stopped.
async fn running(stage: &Stage, session: &str) -> Connection {
    let mut connection = begin(stage, session, &json!({"content": "say a; hang"})).await;
    connection.head().await;
    while connection.event().await.unwrap().1 != "message" {}
    connection
}

/// The names of all events that are left.
async fn rest(connection: &mut Connection) -> Vec<String> {
    let mut rest = Vec::new();
    while let Some((_, name, _)) = connection.event().await {
        rest.push(name);
    }
    rest
}

#[tokio::test]
async fn row_01_live_processes_never_exceed_the_maximum_sequential() {
    let stage = small().await;
    deploy(&stage, "tester").await;
    for _ in 0..14 {
        let made = call(&stage, "POST", "/api/sessions", json!({"agent": "tester"})).await;
        let id = text(&made.expect(201)["session"]["id"]);
        completed(&send(&stage, &id, "say hi").await);
        assert!(live(&stage) <= MOST && stage.engine.stats().total <= MOST);
    }
}

#[tokio::test]
async fn row_01_live_processes_never_exceed_the_maximum_a_hundred_at_once() {
    let stage = small().await;
    deploy(&stage, "tester").await;
    let creates =
        (0..100).map(|_| call(&stage, "POST", "/api/sessions", json!({"agent": "tester"})));
    let watching = async {
        loop {
            assert!(live(&stage) <= MOST && stage.engine.stats().total <= MOST);
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    let made = tokio::select! {
        made = futures_util::future::join_all(creates) => made,
        () = watching => unreachable!("it watches for ever"),
    };
    for answer in &made {
        if answer.status != 201 {
            let told = answer.expect(503);
            assert!(text(&told["error"]).contains("capacity reached"), "{told}");
            assert!(answer.headers.contains_key("retry-after"));
        }
    }
    assert!(made.iter().any(|answer| answer.status == 201));
}

#[tokio::test]
async fn row_03_environment_and_configuration_are_there_from_a_warm_pool_and_after_a_resume() {
    settings_are_there(&stage().await, None).await;
}

#[tokio::test]
async fn row_03_the_same_where_the_bridge_was_started_before_its_session() {
    let stage = stage_with(|ash, _, _| {
        let command = ["node", "/bridge.js"].map(str::to_owned).to_vec();
        ash.harness = Harness::AshBridge(HarnessProgram { command, prewarm: true });
    })
    .await;
    settings_are_there(&stage, Some("3")).await;
    // Node reads this one when it starts: the session gets another bridge, with the variable.
    let body = json!({"agent": "tester", "extraEnv": {"NODE_OPTIONS": "--no-deprecation"}});
    let made = call(&stage, "POST", "/api/sessions", body).await.expect(201);
    let id = text(&made["session"]["id"]);
    let told = send(&stage, &id, "env NODE_OPTIONS; env SHOAL_HARNESS_FD").await;
    let said = said(&told);
    assert_eq!(said[0]["value"], "--no-deprecation");
    assert_eq!(said[1]["value"], Value::Null, "it was not started early");
}

/// Node before version 20 knows no `--import` and exits.
struct OldNode;

#[async_trait]
impl FakeProgram for OldNode {
    async fn run(&self, inside: FakeProgramContext) -> ExitStatus {
        if inside.channel.is_some() {
            return ExitStatus::Code(9);
        }
        ScriptedBridge.run(inside).await
    }
}

#[tokio::test]
async fn row_03_the_same_where_the_bridge_cannot_be_started_early() {
    let stage = stage_with(|ash, _, _| {
        let command = ["node", "/bridge.js"].map(str::to_owned).to_vec();
        ash.harness = Harness::AshBridge(HarnessProgram { command, prewarm: true });
        ash.pool.pool_size = 0;
    })
    .await;
    stage.runtime.add_program("node", Arc::new(OldNode));
    let name = model::TemplateName::new("ash").unwrap();
    stage.engine.resize_pool(&name, Some(1), None).await.unwrap();
    settings_are_there(&stage, None).await;
}

/// `early` is what the first bridge finds in the variable that only an early one has.
async fn settings_are_there(stage: &Stage, early: Option<&str>) {
    let body = json!({"name": "tester", "env": {"A": "agent", "B": "agent"}});
    call(stage, "POST", "/api/agents", body).await.expect(201);
    stage.until("one is warm", |stage| stage.engine.stats().warm > 0).await;
    let body = json!({
        "agent": "tester", "extraEnv": {"B": "session"}, "permissionMode": "default", "model": "m",
    });
    let made = call(stage, "POST", "/api/sessions", body).await.expect(201);
    let id = text(&made["session"]["id"]);
    let told = send(stage, &id, "env SHOAL_HARNESS_FD").await;
    assert_eq!(said(&told)[0]["value"].as_str(), early, "whether it was started early");
    let check = async |when: &str| {
        let told = send(stage, &id, "env A; env B; env ASH_PERMISSION_MODE; config").await;
        let said = said(&told);
        let values: Vec<_> = said[..3].iter().map(|one| &one["value"]).collect();
        assert_eq!(values, ["agent", "session", "default"], "{when}");
        assert_eq!(said[3]["config"]["model"], "m", "{when}");
        assert_eq!(said[3]["config"]["sessionId"], id.as_str(), "{when}");
    };
    check("from a warm pool").await;
    // What the next session finds is its own.
    let other = call(stage, "POST", "/api/sessions", json!({"agent": "tester"})).await.expect(201);
    let told = send(stage, &text(&other["session"]["id"]), "env B").await;
    assert_eq!(said(&told)[0]["value"], "agent");
    for what in ["stop", "resume"] {
        let path = format!("/api/sessions/{id}/{what}");
        call(stage, "POST", &path, Value::Null).await.expect(200);
    }
    check("after a cold resume").await;
}

#[tokio::test]
async fn row_05_a_running_sandbox_is_never_evicted() {
    let stage = stage_with(|_, node, _| {
        node.max_sandboxes = 1;
        node.max_live = 1;
        node.wait_ms = 200;
    })
    .await;
    let id = session(&stage, json!({})).await;
    let mut running = running(&stage, &id).await;
    let before = stage.engine.session(Caller::SERVER, id.parse().unwrap()).unwrap();
    let refused = call(&stage, "POST", "/api/sessions", json!({"agent": "tester"})).await;
    assert!(text(&refused.expect(503)["error"]).contains("capacity reached"));
    let after = stage.engine.session(Caller::SERVER, before.id).unwrap();
    assert_eq!((after.sandbox_id, after.turn), (before.sandbox_id, before.turn));
    assert!(after.turn.is_some());
    stage.engine.abort_session(Caller::SERVER, before.id, true).await.unwrap();
    assert_eq!(rest(&mut running).await, ["error", "done"]);
}

#[tokio::test]
async fn row_06_a_death_in_the_middle_is_an_error_and_done_at_once() {
    let stage = stage().await;
    let id = session(&stage, json!({})).await;
    // How soon is measured where time can be stopped: in the tests of the engine.
    let told = send(&stage, &id, "say a; die 3").await;
    assert_eq!(names(&told), ["session_start", "message", "error", "done"], "{told:?}");
    completed(&send(&stage, &id, "say again").await);

    let mut running = running(&stage, &id).await;
    let sandbox = get(&stage, &format!("/api/sessions/{id}")).await.expect(200);
    let sandbox = text(&sandbox["session"]["sandboxId"]).parse().unwrap();
    let view = stage.engine.sandbox(Caller::SERVER, sandbox).unwrap();
    stage.runtime.crash(view.instance.unwrap(), false);
    assert_eq!(rest(&mut running).await, ["error", "done"]);
    completed(&send(&stage, &id, "say again").await);
}

#[tokio::test]
async fn row_07_a_second_message_at_once_is_refused_and_mixes_with_nothing() {
    let stage = stage().await;
    let id = session(&stage, json!({})).await;
    let mut first = running(&stage, &id).await;
    let path = format!("/api/sessions/{id}/messages");
    let refused = call(&stage, "POST", &path, json!({"content": "say c"})).await.expect(409);
    assert!(text(&refused["error"]).starts_with("Session is busy"), "{refused}");
    stage.engine.abort_session(Caller::SERVER, id.parse().unwrap(), true).await.unwrap();
    assert_eq!(rest(&mut first).await, ["error", "done"]);
    let past = get(&stage, &path).await.expect(200);
    assert_eq!(past["messages"].as_array().unwrap().len(), 1, "{past}");
    completed(&send(&stage, &id, "say d").await);
}

#[tokio::test]
async fn row_08_a_client_that_leaves_loses_nothing() {
    let stage = stage().await;
    let id = session(&stage, json!({})).await;
    let mut first = begin(&stage, &id, &json!({"content": "say a; sleep 300; say b"})).await;
    let head = first.head().await;
    let turn = head.headers["x-shoal-turn-id"].clone();
    let start = first.event().await.unwrap();
    assert_eq!(start.2["turnId"], turn.as_str());
    let (last, _, data) = first.event().await.unwrap();
    assert_eq!(data, json!({"text": "a"}));
    drop(first);
    let path = format!("/compat/ash/api/sessions/{id}/turns/{turn}/events");
    let headers = format!("last-event-id: {}\r\n", last.unwrap());
    // During the turn, and after its end.
    for _ in 0..2 {
        let mut again = stage.connect().await;
        again.send(request(&stage.admin, "GET", &path, &headers, b"")).await;
        let told = super::stream(&mut again).await;
        let expected = ["session_start", "message", "turn_complete", "message", "done"];
        assert_eq!(names(&told), expected);
        assert_eq!(told[1].2, json!({"text": "b"}));
    }
    let past = get(&stage, &format!("/api/sessions/{id}/messages")).await.expect(200);
    assert_eq!(past["messages"].as_array().unwrap().len(), 2, "{past}");
}

/// A bridge that never gets ready.
struct Stuck;

#[async_trait]
impl FakeProgram for Stuck {
    async fn run(&self, _inside: FakeProgramContext) -> ExitStatus {
        std::future::pending().await
    }
}

#[tokio::test]
async fn row_11_health_is_told_while_other_sessions_are_being_made() {
    let stage = stage().await;
    stage.runtime.add_program("bridge", Arc::new(Stuck));
    deploy(&stage, "tester").await;
    let creates = (0..5).map(|_| call(&stage, "POST", "/api/sessions", json!({"agent": "tester"})));
    let creating = futures_util::future::join_all(creates);
    let looking = async {
        stage
            .until("they are being made", |stage| stage.engine.sessions_by_status()[1].1 == 5)
            .await;
        for _ in 0..20 {
            assert_eq!(get(&stage, "/health").await.expect(200)["status"], "ok");
        }
    };
    tokio::select! {
        made = creating => panic!("nothing could be made: {made:?}"),
        () = looking => {}
    }
}

#[tokio::test]
async fn row_13_what_one_key_has_is_invisible_to_another() {
    let stage = stage().await;
    let (one, other) = (stage.key(Role::Use).await, stage.key(Role::Use).await);
    let agents = "/compat/ash/api/agents";
    stage.call_as(&one, "POST", agents, json!({"name": "a", "env": {"S": "1"}})).await.expect(201);
    let sessions = "/compat/ash/api/sessions";
    let made = stage.call_as(&one, "POST", sessions, json!({"agent": "a"})).await.expect(201);
    let id = text(&made["session"]["id"]);
    stage.call_as(&other, "POST", sessions, json!({"agent": "a"})).await.expect(404);
    let listed = stage.call_as(&other, "GET", sessions, Value::Null).await.expect(200);
    assert_eq!(listed, json!({"sessions": []}));
    let not_found = json!({"error": "Session not found", "statusCode": 404});
    for (method, rest, body) in [
        ("GET", "", Value::Null),
        ("DELETE", "", Value::Null),
        ("POST", "/pause", Value::Null),
        ("POST", "/fork", Value::Null),
        ("POST", "/messages", json!({"content": "hi"})),
        ("GET", "/messages", Value::Null),
        ("GET", "/events", Value::Null),
        ("GET", "/logs", Value::Null),
        ("POST", "/exec", json!({"command": "true"})),
        ("GET", "/files", Value::Null),
        ("GET", "/workspace", Value::Null),
        ("PATCH", "/config", json!({"model": "m"})),
    ] {
        let path = format!("{sessions}/{id}{rest}");
        let answer = stage.call_as(&other, method, &path, body).await;
        assert_eq!(answer.expect(404), not_found, "{method} {rest}");
    }
    let shown = stage.call_as(&one, "GET", &format!("{sessions}/{id}"), Value::Null).await;
    assert_eq!(shown.expect(200)["session"]["status"], "active");
}

//! The dialect of Ash as its clients meet it: through sockets, with a bridge that does what a
//! message tells it to.

mod agents;
mod credentials;
mod keys;
mod malformed;
mod rows;
mod sessions;

use std::sync::Arc;

use api::{AshSettings, Settings};
use harness::scripted::ScriptedBridge;
use model::template::{Harness, HarnessProgram};
use model::{NodeConfig, Template};
use serde_json::{Value, json};

use crate::raw_client::{Answer, Connection};
use crate::stage::{Plan, Stage, request, template, text};

/// A server with a template for sessions of Ash.
pub(super) async fn stage() -> Stage {
    stage_with(|_, _, _| ()).await
}

pub(super) async fn stage_with(
    change: impl FnOnce(&mut Template, &mut NodeConfig, &mut AshSettings),
) -> Stage {
    let program = HarnessProgram { command: vec!["bridge".to_owned()], prewarm: false };
    let mut ash = Template { harness: Harness::AshBridge(program), ..template("ash") };
    let mut plan = Plan::default();
    let mut settings = AshSettings::default();
    ash.pool.pool_size = 1;
    change(&mut ash, &mut plan.engine.node, &mut settings);
    plan.settings = Settings { ash: settings, ..Settings::default() };
    plan.engine.templates = vec![ash];
    let stage = Stage::with(plan).await;
    stage.runtime.add_program("bridge", Arc::new(ScriptedBridge));
    stage.runtime.add_program("node", Arc::new(ScriptedBridge));
    stage
}

/// One request, as a client of Ash sends it.
pub(super) async fn call(stage: &Stage, method: &str, path: &str, body: Value) -> Answer {
    stage.call(method, &format!("/compat/ash{path}"), body).await
}

pub(super) async fn get(stage: &Stage, path: &str) -> Answer {
    call(stage, "GET", path, Value::Null).await
}

/// Deploys an agent and makes a session of it.
pub(super) async fn session(stage: &Stage, more: Value) -> String {
    deploy(stage, "tester").await;
    let mut body = json!({"agent": "tester"});
    for (name, value) in more.as_object().into_iter().flatten() {
        body[name] = value.clone();
    }
    let made = call(stage, "POST", "/api/sessions", body).await.expect(201);
    text(&made["session"]["id"])
}

pub(super) async fn deploy(stage: &Stage, name: &str) {
    let body = json!({"name": name, "systemPrompt": "Be brief."});
    call(stage, "POST", "/api/agents", body).await.expect(201);
}

/// What a message gave: names of events and what they say.
pub(super) type Told = Vec<(Option<u64>, String, Value)>;

/// Begins a message.
pub(super) async fn begin(stage: &Stage, session: &str, body: &Value) -> Connection {
    begin_as(&stage.admin, stage, session, body).await
}

pub(super) async fn begin_as(key: &str, stage: &Stage, session: &str, body: &Value) -> Connection {
    let path = format!("/compat/ash/api/sessions/{session}/messages");
    let headers = "content-type: application/json\r\naccept: text/event-stream\r\n";
    let bytes = request(key, "POST", &path, headers, body.to_string().as_bytes());
    let mut connection = stage.connect().await;
    connection.send(bytes).await;
    connection
}

/// The stream of a message whose head was not read yet.
pub(super) async fn stream(connection: &mut Connection) -> Told {
    let head = connection.head().await;
    assert_eq!(head.status, 200, "{head:?}");
    assert_eq!(head.headers["content-type"], "text/event-stream");
    assert_eq!(head.headers["cache-control"], "no-cache");
    let mut told = Vec::new();
    while let Some(event) = connection.event().await {
        told.push(event);
    }
    told
}

/// Sends a message and reads its whole stream.
pub(super) async fn send(stage: &Stage, session: &str, content: &str) -> Told {
    let mut connection = begin(stage, session, &json!({"content": content})).await;
    stream(&mut connection).await
}

pub(super) fn names(told: &Told) -> Vec<&str> {
    told.iter().map(|(_, name, _)| name.as_str()).collect()
}

/// The result of a message that ended as it should.
#[track_caller]
pub(super) fn completed(told: &Told) -> &Value {
    let names = names(told);
    assert_eq!(names.first(), Some(&"session_start"), "{told:?}");
    assert_eq!(names.last(), Some(&"done"), "{told:?}");
    assert!(!names.contains(&"error"), "{told:?}");
    let complete = told.iter().find(|(_, name, _)| name == "turn_complete");
    &complete.unwrap_or_else(|| panic!("not complete: {told:?}")).2["result"]
}

/// What the bridge said in a message besides its result.
pub(super) fn said(told: &Told) -> Vec<&Value> {
    let messages = told.iter().filter(|(_, name, _)| name == "message");
    messages.map(|(_, _, data)| data).filter(|data| data["type"] != "result").collect()
}

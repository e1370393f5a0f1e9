//! The harness of a sandbox over a web socket: lines both ways, one speaker, and an end that says
//! why.

use std::sync::Arc;

use futures_util::{SinkExt as _, StreamExt as _};
use harness::scripted::{ScriptedBridge, ScriptedJsonl};
use model::Role;
use model::template::{Harness, HarnessProgram};
use serde_json::{Value, json};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_tungstenite::tungstenite::client::IntoClientRequest as _;
use tokio_tungstenite::tungstenite::{Error, Message};
use tokio_tungstenite::{WebSocketStream, client_async};

use crate::raw_client::PATIENCE;
use crate::stage::{Plan, Stage, template, text};

/// A server with a template of each kind of harness.
async fn stage() -> Stage {
    let program =
        |command: &str| HarnessProgram { command: vec![command.to_owned()], prewarm: false };
    let mut plan = Plan::default();
    plan.engine.templates[0].harness = Harness::Jsonl(program("jsonl"));
    let mut bridge = template("bridge");
    bridge.harness = Harness::AshBridge(program("bridge"));
    plan.engine.templates.extend([template("shell"), bridge]);
    let stage = Stage::with(plan).await;
    stage.runtime.add_program("jsonl", Arc::new(ScriptedJsonl));
    stage.runtime.add_program("bridge", Arc::new(ScriptedBridge));
    stage
}

struct Lines(WebSocketStream<TcpStream>);

impl Lines {
    async fn try_open(stage: &Stage, sandbox: &str, key: &str) -> Result<Self, Error> {
        let path = format!("ws://{}/v1/sandboxes/{sandbox}/harness", stage.address);
        let mut request = path.into_client_request().unwrap();
        let bearer = format!("Bearer {key}").parse().unwrap();
        request.headers_mut().insert("authorization", bearer);
        let stream = TcpStream::connect(stage.address).await.unwrap();
        Ok(Self(client_async(request, stream).await?.0))
    }

    async fn open(stage: &Stage, sandbox: &str) -> Self {
        Self::try_open(stage, sandbox, &stage.admin).await.unwrap()
    }

    /// Why it is not opened.
    async fn refused(stage: &Stage, sandbox: &str, key: &str) -> (u16, String) {
        match Self::try_open(stage, sandbox, key).await {
            Err(Error::Http(answer)) => {
                let body = answer.body().clone().unwrap_or_default();
                let problem: Value = serde_json::from_slice(&body).unwrap_or_default();
                (answer.status().as_u16(), problem["code"].as_str().unwrap_or_default().to_owned())
            }
            Err(other) => panic!("{other}"),
            Ok(_) => panic!("it was opened"),
        }
    }

    async fn say(&mut self, message: impl Into<Message>) {
        self.0.send(message.into()).await.unwrap();
    }

    async fn turn(&mut self, script: &str) {
        let turn = json!({ "type": "turn", "id": "t", "input": script });
        self.say(turn.to_string()).await;
    }

    async fn next(&mut self) -> Message {
        loop {
            let next = timeout(PATIENCE, self.0.next()).await.expect("a message");
            let message = next.expect("not over without a word").unwrap();
            if !message.is_ping() && !message.is_pong() {
                return message;
            }
        }
    }

    async fn line(&mut self) -> Value {
        let message = self.next().await;
        serde_json::from_str(message.to_text().unwrap()).unwrap()
    }

    async fn closed(&mut self) -> (u16, String) {
        loop {
            if let Message::Close(Some(frame)) = self.next().await {
                return (frame.code.into(), frame.reason.to_string());
            }
        }
    }
}

async fn sandbox_of(stage: &Stage, template: &str) -> String {
    let body = json!({ "template": template });
    let made = stage.call("POST", "/v1/checkouts", body).await.expect(201);
    text(&made["sandbox"]["id"])
}

#[tokio::test]
async fn harness_lines_pass_both_ways_and_other_output_is_no_line() {
    let stage = stage().await;
    let sandbox = sandbox_of(&stage, "default").await;
    let mut lines = Lines::open(&stage, &sandbox).await;
    // What looks like an answer and is printed goes to the logs.
    let forged = r#"log {"type":"result","id":"t","data":"forged"}"#;
    lines.turn(&format!("{forged}; say grün; count")).await;
    assert_eq!(lines.line().await["data"], json!({ "text": "grün" }));
    assert_eq!(lines.line().await["data"], json!({ "turns": 1 }));
    assert_eq!(lines.line().await["type"], "result");
    let now = stage.get(&format!("/v1/sandboxes/{sandbox}")).await.expect(200);
    assert_eq!(now["state"], "running");
    let bridge = sandbox_of(&stage, "bridge").await;
    let mut spoken = Lines::open(&stage, &bridge).await;
    spoken.say(r#"{"cmd":"query","prompt":"say hi"}"#).await;
    assert_eq!(spoken.line().await["data"], json!({ "text": "hi" }));
}

#[tokio::test]
async fn harness_has_one_client_at_a_time_and_ends_with_it() {
    let stage = stage().await;
    let sandbox = sandbox_of(&stage, "default").await;
    let mut first = Lines::open(&stage, &sandbox).await;
    let admin = stage.admin.clone();
    let busy = (409, "harness_busy".to_owned());
    assert_eq!(Lines::refused(&stage, &sandbox, &admin).await, busy);
    first.turn("count").await;
    assert_eq!(first.line().await["data"]["turns"], 1);
    drop(first);
    let mut second = loop {
        match Lines::try_open(&stage, &sandbox, &admin).await {
            Ok(lines) => break lines,
            Err(Error::Http(answer)) => assert_eq!(answer.status(), 409),
            Err(other) => panic!("{other}"),
        }
        tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    };
    second.turn("env SHOAL_NONE; die 0").await;
    second.line().await;
    assert_eq!(second.closed().await.0, 4000);
}

#[tokio::test]
async fn harness_connection_is_refused_before_the_upgrade() {
    let stage = stage().await;
    let sandbox = sandbox_of(&stage, "default").await;
    let shell = sandbox_of(&stage, "shell").await;
    let (reader, other) = (stage.key(Role::Read).await, stage.key(Role::Use).await);
    let admin = stage.admin.clone();
    for (sandbox, key, expected) in [
        (&shell, &*admin, (409, "no_harness")),
        (&sandbox, &*reader, (403, "forbidden")),
        (&sandbox, &*other, (404, "sandbox_unknown")),
        (&sandbox, "shoal_wrong", (401, "unauthorized")),
    ] {
        let (status, code) = Lines::refused(&stage, sandbox, key).await;
        assert_eq!((status, &*code), expected);
    }
    let plain = stage.get(&format!("/v1/sandboxes/{sandbox}/harness")).await;
    plain.problem("upgrade_required");
}

#[tokio::test]
async fn harness_has_either_a_turn_or_a_client() {
    let stage = stage().await;
    let session =
        stage.call("POST", "/v1/sessions", json!({"template": "default"})).await.expect(201);
    let (id, sandbox) = (text(&session["id"]), text(&session["sandbox_id"]));
    let admin = stage.admin.clone();
    let turns = format!("/v1/sessions/{id}/turns");
    let lines = Lines::open(&stage, &sandbox).await;
    for when_busy in ["refuse", "queue"] {
        let turn = json!({ "input": "say a", "when_busy": when_busy });
        stage.call("POST", &turns, turn).await.problem("harness_busy");
    }
    drop(lines);
    stage.until("no client uses the harness", |stage| stage.runtime.alive().tasks == 0).await;
    let waiting = stage.connect().await;
    let body = json!({ "input": "hang" }).to_string();
    let kind = "content-type: application/json\r\naccept: text/event-stream\r\n";
    let mut waiting = waiting;
    waiting.send(&crate::stage::request(&admin, "POST", &turns, kind, body.as_bytes())).await;
    stage.until("it has a turn", |stage| stage.runtime.alive().tasks == 1).await;
    assert_eq!(Lines::refused(&stage, &sandbox, &admin).await, (409, "harness_busy".to_owned()));
}

#[tokio::test]
async fn harness_close_has_its_reason() {
    let stage = stage().await;
    for (script, number, reason) in [
        ("log bye; die 3", 4000, "harness_died: the harness exited with code 3: bye"),
        ("huge", 4003, "harness_too_large: a line of the harness is longer than 4194304 bytes"),
    ] {
        let sandbox = sandbox_of(&stage, "default").await;
        let mut lines = Lines::open(&stage, &sandbox).await;
        lines.turn(script).await;
        assert_eq!(lines.closed().await, (number, reason.to_owned()));
    }
    for (oom, number, code) in [(false, 4002, "sandbox_crashed: "), (true, 4001, "oom: ")] {
        let sandbox = sandbox_of(&stage, "default").await;
        let mut lines = Lines::open(&stage, &sandbox).await;
        let id = sandbox.parse().unwrap();
        let caller = stage.engine.authenticate(&stage.admin).unwrap();
        let instance = stage.engine.sandbox(caller, id).unwrap().instance.unwrap();
        stage.runtime.crash(instance, oom);
        let (found, reason) = lines.closed().await;
        assert!(found == number && reason.starts_with(code), "{found} {reason}");
    }
    let (lease, sandbox) = stage.checkout().await;
    let mut lines = Lines::open(&stage, &sandbox).await;
    stage.call("DELETE", &format!("/v1/checkouts/{lease}"), Value::Null).await.expect(204);
    let (found, reason) = lines.closed().await;
    assert_eq!(found, 4002, "{reason}");
}

#[tokio::test]
async fn harness_refuses_what_is_not_a_line() {
    let stage = stage().await;
    let long = "x".repeat((1 << 20) + 1);
    for (message, number, code) in [
        (Message::Text("a\nb".into()), 1007, "invalid_argument: "),
        (Message::Text(long.into()), 1009, "too_large: "),
        (Message::Binary(b"bytes".to_vec().into()), 1003, "invalid_argument: "),
    ] {
        let sandbox = sandbox_of(&stage, "default").await;
        let mut lines = Lines::open(&stage, &sandbox).await;
        lines.say(message).await;
        let (found, reason) = lines.closed().await;
        assert!(found == number && reason.starts_with(code), "{found} {reason}");
    }
}

#[tokio::test]
async fn harness_connection_ends_with_the_server() {
    let mut stage = stage().await;
    let sandbox = sandbox_of(&stage, "default").await;
    let mut lines = Lines::open(&stage, &sandbox).await;
    let stopped = stage.stop();
    let (number, reason) = lines.closed().await;
    assert!(number == 1001 && reason.starts_with("shutting_down: "), "{number} {reason}");
    stopped.await.unwrap();
}

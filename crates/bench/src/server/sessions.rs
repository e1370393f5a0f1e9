//! What is timed of conversations: making one, a turn until the first word of a harness that says
//! one at once, setting aside and going on, with little and with much in the workspace.

use std::time::Duration;

use async_trait::async_trait;
use serde_json::Value;
use tokio::time::{Instant, sleep};

use super::super::contender::{Contender, Times};
use super::http::Connection;
use super::test_server::TestServer;
use command::failure::Failure;

pub(in super::super) const CREATE: &str = "create a session";
pub(in super::super) const TURN: &str = "turn until the first word";
pub(in super::super) const PAUSE: &str = "pause, 100 MB";
pub(in super::super) const WARM: &str = "resume warm";
pub(in super::super) const COLD: &str = "resume cold, 1 MB";
pub(in super::super) const COLD_MUCH: &str = "resume cold, 100 MB";

/// What each may take in the middle, in milliseconds, and what Ash publishes for the same.
pub(in super::super) const LIMITS: [(&str, f64, Option<f64>); 5] = [
    (CREATE, 1.0, Some(44.0)),
    (TURN, 0.3, Some(0.41)),
    (PAUSE, 2.0, None),
    (WARM, 1.0, Some(1.7)),
    (COLD, 5.0, Some(32.0)),
];

/// How often as long as with little a cold resume may take with much.
pub(in super::super) const MUCH_LIMIT: f64 = 2.0;

/// How long the replacement of a used sandbox may take.
const REPLACEMENT: Duration = Duration::from_millis(10);

/// A harness that answers at once, and reports how long that took.
const HARNESS: &str = r#"
import json, os, time
out = os.fdopen(os.dup(3), 'w', buffering=1)
out.write('{"type":"ready","protocol":1}\n')
for line in os.fdopen(3):
    began = time.perf_counter_ns()
    said = json.loads(line)
    kind = said['type']
    if kind == 'bind':
        out.write('{"type":"bound"}\n')
    elif kind == 'turn':
        took = time.perf_counter_ns() - began
        out.write('{"type":"event","id":"%s","data":{"took_ns":%d}}\n' % (said['id'], took))
        out.write('{"type":"result","id":"%s","data":null}\n' % said['id'])
"#;

/// Makes the templates that are measured.
pub(super) async fn prepare(served: &TestServer) -> Result<(), Failure> {
    let mut connection = served.connect().await?;
    let pool = serde_json::json!({ "pool_size": 8, "max_overflow": 8 });
    let disk = serde_json::json!({ "kind": "disk", "limit": "soft" });
    let command = ["python3", "-c", HARNESS];
    let files = serde_json::json!({ "name": "files", "pool": pool, "workspace": disk });
    let talk = serde_json::json!({
        "name": "talk", "workspace": disk, "harness": { "jsonl": { "command": command } },
    });
    for template in [files, talk] {
        let name = template["name"].as_str().unwrap_or_default().to_owned();
        let path = format!("/v1/templates/{name}");
        connection.json("PUT", &path, &template.to_string()).await?;
    }
    Ok(())
}

async fn create(connection: &mut Connection, template: &str) -> Result<String, Failure> {
    let body = format!(r#"{{"template":"{template}"}}"#);
    let answer = connection.json("POST", "/v1/sessions", &body).await?;
    Ok(answer["id"].as_str().unwrap_or_default().to_owned())
}

async fn act(connection: &mut Connection, session: &str, what: &str) -> Result<Duration, Failure> {
    let began = Instant::now();
    connection.json("POST", &format!("/v1/sessions/{session}/{what}"), "").await?;
    Ok(began.elapsed())
}

/// Makes a session and ends it.
pub(super) struct Create(Connection);

impl Create {
    pub(super) async fn of(served: &TestServer) -> Result<Self, Failure> {
        Ok(Self(served.connect().await?))
    }
}

#[async_trait]
impl Contender for Create {
    fn name(&self) -> &'static str {
        CREATE
    }

    async fn sample(&mut self) -> Result<Times, Failure> {
        let began = Instant::now();
        let session = create(&mut self.0, "files").await?;
        let took = began.elapsed();
        self.0.json("DELETE", &format!("/v1/sessions/{session}"), "").await?;
        // The replacement is launched meanwhile and not measured.
        sleep(REPLACEMENT).await;
        Ok(vec![(CREATE, took)])
    }
}

/// Sends messages to a harness that answers at once.
pub(super) struct Turn {
    connection: Connection,
    session: String,
}

impl Turn {
    pub(super) async fn of(served: &TestServer) -> Result<Self, Failure> {
        let mut connection = served.connect().await?;
        let session = create(&mut connection, "talk").await?;
        Ok(Self { connection, session })
    }
}

#[async_trait]
impl Contender for Turn {
    fn name(&self) -> &'static str {
        TURN
    }

    async fn sample(&mut self) -> Result<Times, Failure> {
        let path = format!("/v1/sessions/{}/turns", self.session);
        let body = r#"{"input":"hi"}"#;
        let (took, answer) = self.connection.stream(&path, body, "event: message\n").await?;
        let data = answer.split("event: message\n").nth(1).unwrap_or_default();
        let data = data.lines().find_map(|line| line.strip_prefix("data: ")).unwrap_or_default();
        let said: Value = serde_json::from_str(data).unwrap_or_default();
        let own = said["took_ns"].as_u64().map(Duration::from_nanos);
        let own = own.ok_or_else(|| Failure::new("the harness sent no message", &answer))?;
        if !answer.contains(r#""outcome":"completed""#) {
            return Err(Failure::new("a turn failed", answer));
        }
        Ok(vec![(TURN, took.saturating_sub(own))])
    }
}

/// Pauses and resumes a session, from memory or from disk.
pub(super) struct PauseResume {
    connection: Connection,
    little: String,
    much: String,
}

impl PauseResume {
    pub(super) async fn of(served: &TestServer) -> Result<Self, Failure> {
        let mut connection = served.connect().await?;
        let mut made = Vec::new();
        for mb in [1, 100] {
            let session = create(&mut connection, "files").await?;
            let line = format!(
                "for n in 0 1 2 3 4 5 6 7 8 9; do head -c {} /dev/urandom > file-$n; done",
                mb * 100_000
            );
            let body = serde_json::json!({ "command": line }).to_string();
            let path = format!("/v1/sessions/{session}/exec");
            connection.json("POST", &path, &body).await?;
            made.push(session);
        }
        let much = made.pop().unwrap_or_default();
        let little = made.pop().unwrap_or_default();
        Ok(Self { connection, little, much })
    }
}

#[async_trait]
impl Contender for PauseResume {
    fn name(&self) -> &'static str {
        "pause and resume"
    }

    async fn sample(&mut self) -> Result<Times, Failure> {
        let connection = &mut self.connection;
        let pause = act(connection, &self.much, "pause").await?;
        let warm = act(connection, &self.much, "resume").await?;
        act(connection, &self.much, "stop").await?;
        let cold_much = act(connection, &self.much, "resume").await?;
        act(connection, &self.little, "stop").await?;
        let cold = act(connection, &self.little, "resume").await?;
        Ok(vec![(PAUSE, pause), (WARM, warm), (COLD, cold), (COLD_MUCH, cold_much)])
    }
}

//! Harnesses for the fake runtime that do what a turn says, so that tests can see every way in
//! which a turn may go. A turn is a text of steps, each `word argument`, separated by `;`:
//!
//! | step | what it does |
//! |---|---|
//! | `say X` | an event `{"text":X}` (a message of the bridge) |
//! | `out X`, `err X` | output of the turn |
//! | `log X` | a line on its own standard error |
//! | `count` | counts in `/workspace/turns` and says so |
//! | `env X` | says the value of a variable, as bound |
//! | `config` | says what it was configured with |
//! | `sleep X` | waits so many milliseconds, unless cancelled |
//! | `hang` | waits until it is cancelled |
//! | `deaf` | waits for ever |
//! | `fail X` | ends the turn with this error |
//! | `fail_late X` | the bridge's `done` after the error comes so many milliseconds later, whatever else it does by then |
//! | `die X` | exits with this code |
//! | `hang_up` | closes its connection and goes on |
//! | `garbage`, `huge`, `wrong_id`, `twice` | breaks the protocol |
//!
//! Arguments of the bridge: `start_ms=N`, as long as Node takes until it waits for its settings;
//! `early_exit=N`, how it then exits in place of that; `load_ms=N`, as long as the bridge takes to
//! listen. A bridge that finds `BROKEN=1` in its environment does not start.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use runtime::ExitStatus;
use runtime::fake::{FakeProgram, FakeProgramContext};
use serde_json::{Value, json};
use tokio::io::{
    AsyncBufReadExt as _, AsyncWriteExt as _, BufReader, DuplexStream, Lines, ReadHalf, WriteHalf,
};
use tokio::sync::Mutex;
use tokio::task::JoinSet;

/// The file that counts turns.
const TURNS: &str = "/workspace/turns";

/// A harness that speaks our JSON lines.
#[derive(Debug, Clone, Copy, Default)]
pub struct ScriptedJsonl;

/// A harness that speaks Ash's bridge protocol.
#[derive(Debug, Clone, Copy, Default)]
pub struct ScriptedBridge;

/// How a turn went on.
enum Next {
    /// The turn has ended as requested.
    Over,
    /// The program has ended too.
    Exit(ExitStatus),
}

struct Script {
    inside: FakeProgramContext,
    lines: Lines<BufReader<ReadHalf<DuplexStream>>>,
    writer: Arc<Mutex<Option<WriteHalf<DuplexStream>>>>,
    /// What is still to be said later; ends with the program.
    later: JoinSet<()>,
    env: BTreeMap<String, String>,
    config: Value,
    is_bridge: bool,
}

impl Script {
    fn new(inside: FakeProgramContext, stream: DuplexStream, is_bridge: bool) -> Self {
        let (reader, writer) = tokio::io::split(stream);
        let env = inside.env.clone();
        let lines = BufReader::new(reader).lines();
        let writer = Arc::new(Mutex::new(Some(writer)));
        let later = JoinSet::new();
        Self { inside, lines, writer, later, env, config: Value::Null, is_bridge }
    }

    async fn write(&mut self, line: &str) {
        if let Some(writer) = &mut *self.writer.lock().await {
            // The other side may be gone.
            let _ = writer.write_all(format!("{line}\n").as_bytes()).await;
        }
    }

    fn write_later(&mut self, line: &Value, late: Duration) {
        let (writer, line) = (Arc::clone(&self.writer), format!("{line}\n"));
        self.later.spawn(async move {
            tokio::time::sleep(late).await;
            if let Some(writer) = &mut *writer.lock().await {
                let _ = writer.write_all(line.as_bytes()).await;
            }
        });
    }

    async fn say(&mut self, line: Value) {
        self.write(&line.to_string()).await;
    }

    async fn tell(&mut self, id: &Value, data: Value) {
        if self.is_bridge {
            self.say(json!({ "ev": "message", "data": data })).await;
        } else {
            self.say(json!({ "type": "event", "id": id, "data": data })).await;
        }
    }

    /// Waits, unless it is asked to stop.
    async fn pause(&mut self, time: Option<Duration>) -> bool {
        let waited = async {
            match time {
                Some(time) => tokio::time::sleep(time).await,
                None => std::future::pending().await,
            }
        };
        let is_bridge = self.is_bridge;
        let stopped = async {
            while let Ok(Some(line)) = self.lines.next_line().await {
                let line: Value = serde_json::from_str(&line).unwrap_or_default();
                let (name, stop) =
                    if is_bridge { ("cmd", "interrupt") } else { ("type", "cancel") };
                if line[name] == stop {
                    return;
                }
            }
        };
        tokio::select! {
            () = waited => false,
            () = stopped => true,
        }
    }

    async fn steps(&mut self, id: &Value, text: &str) -> Next {
        for step in text.split(';').map(str::trim).filter(|step| !step.is_empty()) {
            let (word, argument) = step.split_once(' ').unwrap_or((step, ""));
            let number: u64 = argument.parse().unwrap_or(0);
            match word {
                "say" => self.tell(id, json!({ "text": argument })).await,
                "out" | "err" => {
                    let stream = if word == "out" { "stdout" } else { "stderr" };
                    self.say(
                        json!({ "type": "output", "id": id, "stream": stream, "text": argument }),
                    )
                    .await;
                }
                "log" => self.inside.write_err(format!("{argument}\n").as_bytes()).await,
                "count" => {
                    let before = self.inside.read(TURNS).unwrap_or_default();
                    let count: u64 = String::from_utf8_lossy(&before).trim().parse().unwrap_or(0);
                    let after = (count + 1).to_string();
                    // Without files there is nothing to count with, and the test sees that.
                    let _ = self.inside.write(TURNS, after.as_bytes());
                    self.tell(id, json!({ "turns": count + 1 })).await;
                }
                "env" => {
                    let value = self.env.get(argument).cloned();
                    self.tell(id, json!({ "value": value })).await;
                }
                "config" => {
                    let config = self.config.clone();
                    self.tell(id, json!({ "config": config })).await;
                }
                "sleep" if !self.pause(Some(Duration::from_millis(number))).await => {}
                "sleep" | "hang" => {
                    if word == "sleep" || self.pause(None).await {
                        return self.stopped(id).await;
                    }
                }
                "deaf" => std::future::pending().await,
                "fail" => return self.failed(id, argument, Duration::ZERO).await,
                "fail_late" => {
                    return self.failed(id, "late", Duration::from_millis(number)).await;
                }
                "die" => return Next::Exit(ExitStatus::Code(argument.parse().unwrap_or(1))),
                "hang_up" => {
                    if let Some(mut writer) = self.writer.lock().await.take() {
                        let _ = writer.shutdown().await;
                    }
                    std::future::pending::<()>().await;
                }
                "garbage" => self.write("this is no JSON").await,
                "huge" => self.write(&"x".repeat(51 << 20)).await,
                "wrong_id" => {
                    self.say(json!({ "type": "event", "id": "other", "data": {} })).await;
                }
                "twice" => self.say(json!({ "type": "result", "id": id, "data": 1 })).await,
                _ => self.tell(id, json!({ "unknown": step })).await,
            }
        }
        self.completed(id, text).await
    }

    async fn completed(&mut self, id: &Value, text: &str) -> Next {
        if self.is_bridge {
            self.tell(id, json!({ "type": "result", "result": text })).await;
            self.say(json!({ "ev": "done", "sessionId": "x" })).await;
        } else {
            self.say(json!({ "type": "result", "id": id, "data": { "did": text } })).await;
        }
        Next::Over
    }

    async fn stopped(&mut self, id: &Value) -> Next {
        if self.is_bridge {
            self.say(json!({ "ev": "done", "sessionId": "x" })).await;
        } else {
            let line =
                json!({ "type": "error", "id": id, "message": "cancelled", "code": "cancelled" });
            self.say(line).await;
        }
        Next::Over
    }

    async fn failed(&mut self, id: &Value, why: &str, late: Duration) -> Next {
        if self.is_bridge {
            self.say(json!({ "ev": "error", "error": why })).await;
            self.write_later(&json!({ "ev": "done", "sessionId": "x" }), late);
        } else {
            self.say(json!({ "type": "error", "id": id, "message": why })).await;
        }
        Next::Over
    }

    /// The next request.
    async fn next_request(&mut self) -> Option<Value> {
        let line = self.lines.next_line().await.ok()??;
        Some(serde_json::from_str(&line).unwrap_or_default())
    }
}

fn text_of(input: &Value) -> String {
    let text = input.as_str().or(input["text"].as_str());
    text.map_or_else(|| input.to_string(), str::to_owned)
}

#[async_trait]
impl FakeProgram for ScriptedJsonl {
    async fn run(&self, mut inside: FakeProgramContext) -> ExitStatus {
        let Some(channel) = inside.channel.take() else { return ExitStatus::Code(2) };
        let mut script = Script::new(inside, channel, false);
        script.say(json!({ "type": "ready", "protocol": 1 })).await;
        while let Some(line) = script.next_request().await {
            match line["type"].as_str() {
                Some("bind") => {
                    let bound = line["env"].as_object().into_iter().flatten();
                    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
                    script.env.extend(bound.map(|(name, value)| (name.clone(), text(value))));
                    script.config = line["config"].clone();
                    script.say(json!({ "type": "bound" })).await;
                }
                Some("turn") => {
                    if !line["config"].is_null() {
                        script.config = line["config"].clone();
                    }
                    if let Next::Exit(status) =
                        script.steps(&line["id"], &text_of(&line["input"])).await
                    {
                        return status;
                    }
                }
                Some(_) | None => {}
            }
        }
        ExitStatus::Code(0)
    }
}

/// The number in an argument `name=number`.
fn number_of(inside: &FakeProgramContext, name: &str) -> Option<u64> {
    let given = |argument: &String| argument.strip_prefix(name)?.strip_prefix('=')?.parse().ok();
    inside.argv.iter().find_map(given)
}

async fn take_ms(inside: &FakeProgramContext, name: &str) {
    let millis = number_of(inside, name).unwrap_or(0);
    tokio::time::sleep(Duration::from_millis(millis)).await;
}

#[async_trait]
impl FakeProgram for ScriptedBridge {
    async fn run(&self, mut inside: FakeProgramContext) -> ExitStatus {
        // One that was started early waits for its settings, as Node does.
        if let Some(channel) = inside.channel.take() {
            take_ms(&inside, "start_ms").await;
            if let Some(code) = number_of(&inside, "early_exit") {
                return ExitStatus::Code(i32::try_from(code).unwrap_or(1));
            }
            let mut script = Script::new(inside, channel, true);
            script.say(json!({ "type": "waiting" })).await;
            let Some(settings) = script.next_request().await else { return ExitStatus::Code(0) };
            inside = script.inside;
            let given = settings["env"].as_object().into_iter().flatten();
            let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
            inside.env.extend(given.map(|(name, value)| (name.clone(), text(value))));
        }
        take_ms(&inside, "load_ms").await;
        if inside.env.get("BROKEN").is_some_and(|value| value == "1") {
            inside.write_err(b"the key is wrong\n").await;
            return ExitStatus::Code(3);
        }
        let Some(path) = inside.env.get("ASH_BRIDGE_SOCKET") else { return ExitStatus::Code(2) };
        let Some(mut listener) = inside.listen(path) else { return ExitStatus::Code(1) };
        inside.write_out(b"R").await;
        let Some(stream) = listener.accept().await else { return ExitStatus::Code(1) };
        let mut script = Script::new(inside, stream, true);
        script.say(json!({ "ev": "ready" })).await;
        while let Some(line) = script.next_request().await {
            if line["cmd"].as_str() == Some("query") {
                script.config = line.clone();
                let text = text_of(&line["prompt"]);
                if let Next::Exit(status) = script.steps(&Value::Null, &text).await {
                    return status;
                }
            }
        }
        ExitStatus::Code(0)
    }
}

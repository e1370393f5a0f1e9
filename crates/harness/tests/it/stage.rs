//! Helpers of the tests: a sandbox of the fake runtime, a binding, and turns that are read to their
//! end.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use harness::scripted::{ScriptedBridge, ScriptedJsonl};
use harness::{
    Binding, HarnessEnd, HarnessError, HarnessEvent, HarnessLink, LogStream, Logs, StartedFor, Turn,
};
use model::template::{Harness, HarnessProgram};
use model::{Generation, InstanceId, SandboxId, SessionId, Template, TemplateName, TurnId};
use runtime::fake::FakeRuntime;
use runtime::{LaunchSpec, Runtime as _, Sandbox};

/// Nothing in these tests takes this long.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

/// Collects log lines.
#[derive(Default)]
pub(crate) struct Kept(pub Mutex<Vec<(LogStream, String)>>);

impl Logs for Kept {
    fn line(&self, stream: LogStream, text: &str) {
        self.0.lock().unwrap().push((stream, text.to_owned()));
    }
}

impl Kept {
    pub(crate) fn of(&self, wanted: LogStream) -> Vec<String> {
        let kept = self.0.lock().unwrap();
        kept.iter().filter(|(stream, _)| *stream == wanted).map(|(_, text)| text.clone()).collect()
    }
}

/// A sandbox of the fake runtime.
pub(crate) struct Stage {
    pub(crate) runtime: FakeRuntime,
    pub(crate) sandbox: Arc<dyn Sandbox>,
    pub(crate) logs: Arc<Kept>,
}

impl Stage {
    pub(crate) async fn new() -> Self {
        let runtime = FakeRuntime::default();
        runtime.add_program("harness", Arc::new(ScriptedJsonl));
        runtime.add_program("bridge", Arc::new(ScriptedBridge));
        runtime.add_program("node", Arc::new(ScriptedBridge));
        let template = Template::named(TemplateName::new("default").unwrap());
        let spec = LaunchSpec::of(&template, InstanceId::from_u128(1));
        let sandbox = runtime.launch(spec).await.unwrap();
        Self { runtime, sandbox, logs: Arc::default() }
    }

    /// Waits until no program runs and no stream is open.
    pub(crate) async fn until_nothing_runs(&self) {
        let ended = async {
            while self.runtime.alive().tasks + self.runtime.alive().streams > 0 {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        tokio::time::timeout(PATIENCE, ended).await.expect("nothing runs in the end");
    }

    pub(crate) async fn start(
        &self,
        harness: &Harness,
        binding: Option<&Binding>,
    ) -> Result<HarnessLink, HarnessError> {
        let logs: Arc<dyn Logs> = Arc::clone(&self.logs) as _;
        let started_for = binding.map_or(StartedFor::NoSession, StartedFor::Session);
        harness::start(Arc::clone(&self.sandbox), harness, started_for, logs, PATIENCE).await
    }
}

pub(crate) fn jsonl(command: &[&str]) -> Harness {
    Harness::Jsonl(program(command))
}

pub(crate) fn bridge(command: &[&str]) -> Harness {
    Harness::AshBridge(program(command))
}

fn program(command: &[&str]) -> HarnessProgram {
    let command = command.iter().map(|&word| word.to_owned()).collect();
    HarnessProgram { command, prewarm: false }
}

pub(crate) fn binding() -> Binding {
    Binding {
        session: SessionId::from_u128(7),
        sandbox: SandboxId::from_u128(8),
        generation: Generation(3),
        resumed: false,
        env: BTreeMap::from([("TOKEN".to_owned(), "secret".to_owned())]),
        config: Some(Arc::from("{\"model\":\"small\"}")),
    }
}

pub(crate) fn turn_id(number: u128) -> TurnId {
    TurnId::from_u128(number)
}

/// The events of a turn, in short form, and how it ended.
pub(crate) async fn read(turn: &mut Turn) -> (Vec<String>, HarnessEnd) {
    let mut said = Vec::new();
    loop {
        let event = tokio::time::timeout(PATIENCE, turn.next()).await.expect("something happens");
        match event {
            HarnessEvent::Output { stream, text } => {
                said.push(format!("{}: {text}", stream.as_str()));
            }
            HarnessEvent::Message(data) => said.push(data.to_string()),
            HarnessEvent::Ended(end) => return (said, end),
        }
    }
}

/// Gives a turn and reads it to its end.
pub(crate) async fn ask(link: &HarnessLink, number: u128, text: &str) -> (Vec<String>, HarnessEnd) {
    let input = serde_json::Value::from(text).to_string();
    let mut turn = link.turn(turn_id(number), &input, None).await.expect("it takes the turn");
    read(&mut turn).await
}

#[track_caller]
pub(crate) fn completed(end: HarnessEnd) -> serde_json::Value {
    match end {
        HarnessEnd::Completed { result } => {
            result.map_or(serde_json::Value::Null, |text| serde_json::from_str(&text).unwrap())
        }
        other @ (HarnessEnd::Failed { .. } | HarnessEnd::SandboxGone) => panic!("{other:?}"),
    }
}

#[track_caller]
pub(crate) fn failed(end: HarnessEnd) -> (String, String) {
    match end {
        HarnessEnd::Failed { code, message } => (code.as_str().to_owned(), message),
        other @ (HarnessEnd::Completed { .. } | HarnessEnd::SandboxGone) => panic!("{other:?}"),
    }
}

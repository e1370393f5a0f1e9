//! Ash's bridge protocol: a Node program that listens on a Unix socket and exchanges lines of JSON
//! without ids. A query ends at `done` or `error`; after an error a `done` still comes, sometimes
//! late, and must never end the next query: no query is sent while one is due.

use std::sync::Arc;
use std::time::Duration;

use model::{SandboxId, SessionId, TurnId};
use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Map, Value, json};

use crate::binding::Binding;
use crate::error::{FailureCode, HarnessError, HarnessErrorCode};
use crate::json::{ascii, checked_line};
use crate::link::{HarnessEnd, HarnessEvent};
use crate::protocol::{Meaning, Protocol};

/// The longest line of a bridge.
pub(crate) const LINE_BYTES_MAX: usize = 50 << 20;

/// The byte that a bridge writes to its output when it listens.
pub(crate) const READY_BYTE: u8 = b'R';

/// How long a turn waits for the `done` that follows its error.
const DONE_TIMEOUT: Duration = Duration::from_secs(1);

/// How long the next turn waits for it. A bridge that sends none until then is replaced.
const LATE_DONE_TIMEOUT: Duration = Duration::from_secs(5);

/// The most characters of an error message that are passed on.
const MESSAGE_CHARS_MAX: usize = 4096;

pub(crate) const WORKSPACE: &str = "/workspace";

/// The options of a query besides its prompt.
const OPTIONS: &[&str] = &[
    "allowedTools",
    "betas",
    "disallowedTools",
    "effort",
    "includePartialMessages",
    "initialAgent",
    "maxBudgetUsd",
    "maxTurns",
    "model",
    "outputFormat",
    "subagents",
    "thinking",
    "traceContext",
];

/// The socket of a sandbox's bridge. Socket paths must be short.
pub(crate) fn socket_path(sandbox: SandboxId) -> String {
    let id = sandbox.to_string();
    format!("/tmp/ash-{}.sock", id.rsplit('-').next().unwrap_or_default())
}

/// The variables that a bridge finds, besides those of its session.
pub fn bridge_variables(session: SessionId, sandbox: SandboxId) -> [(String, String); 5] {
    let pair = |name: &str, value: &str| (name.to_owned(), value.to_owned());
    [
        pair("ASH_BRIDGE_SOCKET", &socket_path(sandbox)),
        pair("ASH_AGENT_DIR", WORKSPACE),
        pair("ASH_WORKSPACE_DIR", WORKSPACE),
        pair("ASH_SANDBOX_ID", &sandbox.to_string()),
        pair("ASH_SESSION_ID", &session.to_string()),
    ]
}

/// A line of the bridge.
#[derive(Debug, Deserialize)]
struct Line<'a> {
    ev: String,
    #[serde(borrow)]
    data: Option<&'a RawValue>,
    error: Option<String>,
    text: Option<String>,
}

/// The kind of a message, as far as it matters here.
#[derive(Debug, Deserialize)]
struct Kind {
    #[serde(rename = "type")]
    kind: Option<String>,
}

fn parse(text: &str) -> Result<Line<'_>, String> {
    serde_json::from_str(text)
        .map_err(|error| format!("a line of the bridge cannot be parsed: {error}"))
}

/// Checks that the first line of a bridge says that it is ready.
pub(crate) fn check_ready(text: &str) -> Result<(), String> {
    let line = parse(text)?;
    match (line.ev.as_str(), line.error) {
        ("ready", _) => Ok(()),
        ("error", Some(error)) => Err(error.chars().take(MESSAGE_CHARS_MAX).collect()),
        (other, _) => Err(format!("the first event of the bridge is {other:?} and not \"ready\"")),
    }
}

/// A conversation with a bridge.
#[derive(Debug)]
pub(crate) struct AshBridge {
    session: SessionId,
    /// The error of the query, while its `done` is waited for.
    failed: Option<String>,
    /// Whether the `done` of a query that failed has still not come.
    owes_done: bool,
    result: Option<Arc<str>>,
}

impl AshBridge {
    pub(crate) fn new(session: SessionId) -> Self {
        Self { session, failed: None, owes_done: false, result: None }
    }

    fn meaning(&mut self, text: &str) -> Result<Meaning, String> {
        let line = parse(text)?;
        if let Some(failed) = &self.failed {
            // Output of a query that failed belongs to no turn.
            if line.ev != "done" {
                return Ok(Meaning::Nothing);
            }
            let end = failure(failed);
            self.failed = None;
            return Ok(Meaning::Ended(end));
        }
        match line.ev.as_str() {
            "message" => {
                let data = line.data.ok_or("a message has no data")?;
                let data = checked_line(data)?;
                if serde_json::from_str::<Kind>(&data)
                    .is_ok_and(|kind| kind.kind.as_deref() == Some("result"))
                {
                    self.result = Some(Arc::clone(&data));
                }
                Ok(Meaning::Event(HarnessEvent::Message(data)))
            }
            "error" => {
                let failed = line.error.unwrap_or_else(|| "the bridge gave no reason".to_owned());
                self.failed = Some(failed);
                Ok(Meaning::Nothing)
            }
            "done" => Ok(Meaning::Ended(HarnessEnd::Completed { result: self.result.take() })),
            "log" => Ok(line.text.map_or(Meaning::Nothing, Meaning::Log)),
            // Other events of a newer bridge do no harm.
            _ => Ok(Meaning::Nothing),
        }
    }
}

fn failure(failed: &str) -> HarnessEnd {
    let message = failed.chars().take(MESSAGE_CHARS_MAX).collect();
    HarnessEnd::Failed { code: FailureCode::Said(None), message }
}

fn object(text: &str, what: &str) -> Result<Map<String, Value>, HarnessError> {
    serde_json::from_str(text).map_err(|error| {
        HarnessError::new(HarnessErrorCode::Input, format!("{what} is not a JSON object: {error}"))
    })
}

/// The query for a turn.
fn query(session: SessionId, input: &str, config: Option<&str>) -> Result<String, HarnessError> {
    let bad = |cause: &str| HarnessError::new(HarnessErrorCode::Input, cause);
    let mut given = match config {
        Some(config) => object(config, "the configuration")?,
        None => Map::new(),
    };
    let input: Value = serde_json::from_str(input)
        .map_err(|error| bad(&format!("the input is not JSON: {error}")))?;
    let prompt = match input {
        Value::String(_) | Value::Array(_) => input,
        Value::Object(mut fields) => {
            let prompt = fields.remove("prompt");
            given.extend(fields);
            match prompt {
                Some(prompt @ (Value::String(_) | Value::Array(_))) => prompt,
                Some(_) | None => return Err(bad("the prompt is neither text nor blocks")),
            }
        }
        Value::Null | Value::Bool(_) | Value::Number(_) => {
            return Err(bad("a turn is text, blocks, or an object with a prompt"));
        }
    };
    let mut query = json!({ "cmd": "query", "prompt": prompt, "sessionId": session.to_string() });
    for &name in OPTIONS {
        if let Some(value) = given.remove(name).filter(|value| !value.is_null()) {
            query[name] = value;
        }
    }
    // The stock bridge decodes chunks as text, even if they cut a character.
    Ok(ascii(&query.to_string()))
}

impl Protocol for AshBridge {
    fn begin(
        &mut self,
        _: TurnId,
        input: &str,
        config: Option<&str>,
    ) -> Result<String, HarnessError> {
        let query = query(self.session, input, config)?;
        self.failed = None;
        self.result = None;
        Ok(query)
    }

    fn on_line(&mut self, line: &str) -> Meaning {
        self.meaning(line).unwrap_or_else(Meaning::Broken)
    }

    fn on_line_between_turns(&mut self, line: &str) -> Meaning {
        match parse(line) {
            Ok(line) if line.ev == "done" => {
                self.owes_done = false;
                Meaning::Nothing
            }
            Ok(line) if line.ev == "log" => line.text.map_or(Meaning::Nothing, Meaning::Log),
            Ok(_) => Meaning::Nothing,
            Err(cause) => Meaning::Broken(cause),
        }
    }

    fn silence_timeout(&self) -> Option<Duration> {
        self.failed.is_some().then_some(DONE_TIMEOUT)
    }

    fn on_silence(&mut self) -> Meaning {
        match self.failed.take() {
            Some(failed) => {
                self.owes_done = true;
                Meaning::Ended(failure(&failed))
            }
            None => Meaning::Nothing,
        }
    }

    fn settle_timeout(&self) -> Option<Duration> {
        self.owes_done.then_some(LATE_DONE_TIMEOUT)
    }

    fn cancel(&self) -> String {
        json!({ "cmd": "interrupt" }).to_string()
    }

    fn bind(&self, _: &Binding) -> Result<Option<String>, HarnessError> {
        Ok(None)
    }

    fn is_bound(&self, _: &str) -> bool {
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DONE: &str = r#"{"ev":"done","sessionId":"s"}"#;
    const ERROR: &str = r#"{"ev":"error","error":"no"}"#;
    const MESSAGE: &str = r#"{"ev":"message","data":{"type":"assistant"}}"#;
    const RESULT: &str = r#"{"ev":"message","data":{"type":"result","n":1}}"#;

    fn protocol() -> AshBridge {
        let mut protocol = AshBridge::new(SessionId::NIL);
        protocol.begin(TurnId::NIL, "\"hi\"", None).unwrap();
        protocol
    }

    fn completed(result: Option<&str>) -> Meaning {
        Meaning::Ended(HarnessEnd::Completed { result: result.map(Arc::from) })
    }

    fn is_piece(meaning: &Meaning) -> bool {
        matches!(meaning, Meaning::Event(HarnessEvent::Message(_)))
    }

    #[test]
    fn a_bridge_query_ends_with_its_last_result() {
        let mut protocol = protocol();
        assert!(is_piece(&protocol.on_line(RESULT)));
        assert!(is_piece(&protocol.on_line(MESSAGE)));
        assert_eq!(protocol.on_line(r#"{"ev":"log","level":"info","text":"t","ts":"x"}"#), {
            Meaning::Log("t".to_owned())
        });
        assert_eq!(protocol.on_line(r#"{"ev":"exec_result","exitCode":0}"#), Meaning::Nothing);
        assert_eq!(protocol.silence_timeout(), None);
        assert_eq!(protocol.on_line(DONE), completed(Some(r#"{"type":"result","n":1}"#)));
        protocol.begin(TurnId::NIL, "\"hi\"", None).unwrap();
        assert_eq!(protocol.on_line(DONE), completed(None), "an old result is not the next one's");
    }

    #[test]
    fn a_bridge_done_after_an_error_is_waited_for() {
        let mut protocol = protocol();
        assert_eq!(protocol.on_line(ERROR), Meaning::Nothing);
        assert_eq!(protocol.silence_timeout(), Some(DONE_TIMEOUT));
        assert_eq!(protocol.on_line(MESSAGE), Meaning::Nothing);
        assert_eq!(protocol.on_line(DONE), Meaning::Ended(failure("no")));
        assert_eq!((protocol.silence_timeout(), protocol.settle_timeout()), (None, None));
    }

    #[test]
    fn a_late_bridge_done_is_due_before_the_next_query() {
        let mut protocol = protocol();
        protocol.on_line(ERROR);
        assert_eq!(protocol.on_silence(), Meaning::Ended(failure("no")));
        for line in [MESSAGE, ERROR] {
            assert_eq!(protocol.on_line_between_turns(line), Meaning::Nothing);
            assert_eq!(protocol.settle_timeout(), Some(LATE_DONE_TIMEOUT), "{line}");
        }
        assert_eq!(protocol.on_line_between_turns(DONE), Meaning::Nothing);
        assert_eq!(protocol.settle_timeout(), None);
        protocol.begin(TurnId::NIL, "\"hi\"", None).unwrap();
        assert!(is_piece(&protocol.on_line(MESSAGE)));
        assert_eq!(protocol.on_line(DONE), completed(None));
    }

    #[test]
    fn bridge_queries_contain_only_known_options() {
        let of = |input, config| {
            let query = query(SessionId::NIL, input, config).unwrap();
            serde_json::from_str::<Value>(&query).unwrap()
        };
        let id = SessionId::NIL.to_string();
        let plain = json!({ "cmd": "query", "prompt": "hi", "sessionId": id });
        assert_eq!(of("\"hi\"", None), plain);
        assert_eq!(of("\"hi\"", Some(r#"{"env":{},"__proto__":1,"model":null}"#)), plain);
        let blocks = of(r#"[{"type":"text","text":"x"}]"#, Some(r#"{"model":"m"}"#));
        assert_eq!(blocks["prompt"][0]["text"], "x");
        assert_eq!(blocks["model"], "m");
        let object = of(r#"{"prompt":"p","model":"n","cmd":"exec"}"#, Some(r#"{"model":"m"}"#));
        assert_eq!((&object["model"], &object["cmd"]), (&json!("n"), &json!("query")));
        for input in ["1", "null", "{}", r#"{"prompt":1}"#, "x"] {
            assert!(query(SessionId::NIL, input, None).is_err(), "{input}");
        }
        assert!(query(SessionId::NIL, "\"x\"", Some("[]")).is_err());
    }

    #[test]
    fn invalid_bridge_lines_break_the_protocol() {
        for line in ["x", "[]", "{}", r#"{"ev":1}"#, r#"{"ev":"message"}"#] {
            assert!(matches!(protocol().on_line(line), Meaning::Broken(_)), "{line}");
        }
        assert!(check_ready(r#"{"ev":"ready"}"#).is_ok());
        assert!(check_ready(DONE).is_err());
        assert_eq!(check_ready(ERROR), Err("no".to_owned()), "its own reason counts");
    }
}

//! Ash's bridge protocol: a Node program that listens on a Unix socket and exchanges lines of JSON
//! without ids. A query ends at `done` or `error`; after an error a `done` still comes, sometimes
//! late, and must never end the next query.

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

/// How long to wait for the `done` that follows an error, and how long a bridge must be silent
/// after a `done` that may be late until it counts as the real one.
const LATE_DONE_TIMEOUT: Duration = Duration::from_secs(1);

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

/// What the protocol waits for in silence.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Waiting {
    /// Nothing.
    No,
    /// The `done` after an error, which ends the turn.
    ForDone { failed: String },
    /// Whether the `done` that came belongs to an earlier query.
    ForMore,
}

/// A conversation with a bridge.
#[derive(Debug)]
pub(crate) struct AshBridge {
    session: SessionId,
    /// How many `done` of earlier queries may still come.
    late_dones: u32,
    waiting: Waiting,
    /// Whether the query has sent anything yet.
    has_spoken: bool,
    result: Option<Arc<str>>,
}

impl AshBridge {
    pub(crate) fn new(session: SessionId) -> Self {
        Self { session, late_dones: 0, waiting: Waiting::No, has_spoken: false, result: None }
    }

    fn meaning(&mut self, text: &str) -> Result<Meaning, String> {
        let line = parse(text)?;
        if let Waiting::ForDone { failed } = &self.waiting {
            // Output of a query that failed belongs to no turn.
            if line.ev != "done" {
                return Ok(Meaning::Nothing);
            }
            let end = failure(failed);
            self.waiting = Waiting::No;
            return Ok(Meaning::Ended(end));
        }
        match line.ev.as_str() {
            "message" => {
                let data = line.data.ok_or("a message has no data")?;
                let data = checked_line(data)?;
                self.waiting = Waiting::No;
                self.has_spoken = true;
                if serde_json::from_str::<Kind>(&data)
                    .is_ok_and(|kind| kind.kind.as_deref() == Some("result"))
                {
                    self.result = Some(Arc::clone(&data));
                }
                Ok(Meaning::Event(HarnessEvent::Message(data)))
            }
            "error" => {
                let failed = line.error.unwrap_or_else(|| "the bridge gave no reason".to_owned());
                self.waiting = Waiting::ForDone { failed };
                Ok(Meaning::Nothing)
            }
            "done" => Ok(self.done()),
            "log" => Ok(line.text.map_or(Meaning::Nothing, Meaning::Log)),
            // Other events of a newer bridge do no harm.
            _ => Ok(Meaning::Nothing),
        }
    }

    fn done(&mut self) -> Meaning {
        // A query that gave its result has ended; otherwise the `done` may belong to an earlier
        // query.
        if self.late_dones > 0 && self.result.is_none() {
            self.late_dones -= 1;
            if self.has_spoken {
                self.waiting = Waiting::ForMore;
            }
            return Meaning::Nothing;
        }
        self.completed()
    }

    fn completed(&mut self) -> Meaning {
        self.waiting = Waiting::No;
        Meaning::Ended(HarnessEnd::Completed { result: self.result.take() })
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
        self.waiting = Waiting::No;
        self.has_spoken = false;
        self.result = None;
        Ok(query)
    }

    fn on_line(&mut self, line: &str) -> Meaning {
        self.meaning(line).unwrap_or_else(Meaning::Broken)
    }

    fn on_line_between_turns(&mut self, line: &str) -> Meaning {
        match parse(line) {
            Ok(line) if line.ev == "done" => {
                self.late_dones = self.late_dones.saturating_sub(1);
                Meaning::Nothing
            }
            Ok(line) if line.ev == "log" => line.text.map_or(Meaning::Nothing, Meaning::Log),
            Ok(_) => Meaning::Nothing,
            Err(cause) => Meaning::Broken(cause),
        }
    }

    fn silence_timeout(&self) -> Option<Duration> {
        match self.waiting {
            Waiting::No => None,
            Waiting::ForDone { .. } | Waiting::ForMore => Some(LATE_DONE_TIMEOUT),
        }
    }

    fn on_silence(&mut self) -> Meaning {
        match std::mem::replace(&mut self.waiting, Waiting::No) {
            Waiting::No => Meaning::Nothing,
            Waiting::ForDone { failed } => {
                self.late_dones += 1;
                Meaning::Ended(failure(&failed))
            }
            Waiting::ForMore => self.completed(),
        }
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
        assert_eq!(protocol.silence_timeout(), Some(LATE_DONE_TIMEOUT));
        assert_eq!(protocol.on_line(MESSAGE), Meaning::Nothing);
        assert_eq!(protocol.on_line(DONE), Meaning::Ended(failure("no")));
        assert_eq!((protocol.silence_timeout(), protocol.late_dones), (None, 0));
    }

    #[test]
    fn a_late_bridge_done_ends_nothing() {
        // It comes between the two, before the next has spoken, or after.
        for before in [0, 1, 2] {
            let mut protocol = protocol();
            protocol.on_line(ERROR);
            assert_eq!(protocol.on_silence(), Meaning::Ended(failure("no")));
            if before == 0 {
                assert_eq!(protocol.on_line_between_turns(DONE), Meaning::Nothing);
            }
            protocol.begin(TurnId::NIL, "\"hi\"", None).unwrap();
            if before == 1 {
                assert_eq!(protocol.on_line(DONE), Meaning::Nothing);
                assert_eq!(
                    protocol.silence_timeout(),
                    None,
                    "the next may think for as long as it likes"
                );
            }
            assert!(is_piece(&protocol.on_line(MESSAGE)));
            if before == 2 {
                assert_eq!(protocol.on_line(DONE), Meaning::Nothing);
                assert_eq!(protocol.silence_timeout(), Some(LATE_DONE_TIMEOUT));
                assert!(is_piece(&protocol.on_line(MESSAGE)), "it was not the end");
                assert_eq!(protocol.silence_timeout(), None);
            }
            assert_eq!(protocol.on_line(DONE), completed(None), "{before}");
        }
    }

    #[test]
    fn a_missing_bridge_done_is_not_waited_for_twice() {
        let mut first = protocol();
        first.on_line(ERROR);
        first.on_silence();
        first.begin(TurnId::NIL, "\"hi\"", None).unwrap();
        first.on_line(RESULT);
        assert!(matches!(first.on_line(DONE), Meaning::Ended(_)), "its result ended it");
        let mut second = protocol();
        second.on_line(ERROR);
        second.on_silence();
        second.begin(TurnId::NIL, "\"hi\"", None).unwrap();
        second.on_line(MESSAGE);
        assert_eq!(second.on_line(DONE), Meaning::Nothing);
        assert_eq!(second.on_silence(), completed(None), "nothing more came");
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

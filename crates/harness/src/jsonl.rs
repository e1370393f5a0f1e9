//! Our own protocol, `docs/harness.md`: lines of JSON on a channel of the program's own. Each line
//! names its turn; a line about an unknown turn breaks the protocol.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use model::TurnId;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use crate::binding::Binding;
use crate::error::{FailureCode, HarnessError, HarnessErrorCode};
use crate::json::{checked_line, is_object, one_line};
use crate::link::{HarnessEnd, HarnessEvent, Stream};
use crate::protocol::{Meaning, Protocol};

/// The version of the protocol.
const PROTOCOL: u64 = 1;

/// The longest line of a harness.
pub(crate) const LINE_BYTES_MAX: usize = 4 << 20;

/// The most characters of an error message that are passed on.
const MESSAGE_CHARS_MAX: usize = 4096;

/// How many ended turns are remembered, so that their late lines are recognised.
const PAST_TURNS_MAX: usize = 256;

/// A line of the harness.
#[derive(Debug, Deserialize)]
struct Line<'a> {
    #[serde(rename = "type")]
    kind: String,
    id: Option<String>,
    #[serde(borrow)]
    data: Option<&'a RawValue>,
    stream: Option<String>,
    text: Option<String>,
    message: Option<String>,
    code: Option<String>,
    protocol: Option<u64>,
}

/// A line of the host.
#[derive(Debug, Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum HostLine<'a> {
    Bind {
        session_id: String,
        sandbox_id: String,
        generation: u64,
        resumed: bool,
        env: &'a BTreeMap<String, String>,
        config: Option<&'a RawValue>,
    },
    Turn {
        id: String,
        input: &'a RawValue,
        config: Option<&'a RawValue>,
    },
    Cancel {
        id: String,
    },
}

/// A conversation in JSON lines.
#[derive(Debug, Default)]
pub(crate) struct Jsonl {
    turn: String,
    past: VecDeque<String>,
}

/// JSON of a caller that becomes part of a line.
fn raw(text: &str, what: &str) -> Result<Box<RawValue>, HarnessError> {
    let bad = |cause: String| {
        HarnessError::new(HarnessErrorCode::Input, format!("{what} is not JSON: {cause}"))
    };
    let text = one_line(text).map_err(bad)?;
    RawValue::from_string(text).map_err(|error| bad(error.to_string()))
}

fn line(said: &HostLine<'_>) -> Result<String, HarnessError> {
    serde_json::to_string(said)
        .map_err(|error| HarnessError::new(HarnessErrorCode::Input, error.to_string()))
}

/// Checks that the first line of a harness says that it is ready.
pub(crate) fn check_ready(text: &str) -> Result<(), String> {
    let line = parse(text)?;
    if let ("error", Some(message)) = (&*line.kind, line.message) {
        return Err(message.chars().take(MESSAGE_CHARS_MAX).collect());
    }
    match (&*line.kind, line.protocol) {
        ("ready", Some(PROTOCOL)) => Ok(()),
        ("ready", Some(other)) => {
            Err(format!("the harness speaks protocol {other}, and only {PROTOCOL} is supported"))
        }
        ("ready", None) => Err("the ready line of the harness names no protocol".to_owned()),
        (kind, _) => {
            Err(format!("the first line of the harness is of type {kind:?} and not \"ready\""))
        }
    }
}

fn parse(text: &str) -> Result<Line<'_>, String> {
    serde_json::from_str(text)
        .map_err(|error| format!("a line of the harness cannot be parsed: {error}"))
}

impl Jsonl {
    fn meaning(&self, text: &str) -> Result<Meaning, String> {
        let line = parse(text)?;
        let id = || line.id.as_deref().ok_or(format!("a line of type {:?} has no id", line.kind));
        let is_piece = matches!(&*line.kind, "event" | "output");
        let is_end = matches!(&*line.kind, "result" | "error");
        if !is_piece && !is_end {
            return match &*line.kind {
                "bound" => Ok(Meaning::Nothing),
                kind => Err(format!("a line of type {kind:?} is not allowed here")),
            };
        }
        let id = id()?;
        if id != self.turn || self.turn.is_empty() {
            let is_past = self.past.iter().any(|past| past == id);
            return match (is_past, is_piece) {
                // A line may still have been on its way.
                (true, true) => Ok(Meaning::Nothing),
                (true, false) => Err(format!("turn {id} was ended twice")),
                (false, _) => Err(format!("the harness has no turn {id:?}")),
            };
        }
        of_the_turn(&line)
    }
}

/// The meaning of a line of the present turn.
fn of_the_turn(line: &Line<'_>) -> Result<Meaning, String> {
    let data = line.data.map(checked_line).transpose()?;
    match &*line.kind {
        "event" => match data {
            Some(data) if is_object(&data) => Ok(Meaning::Event(HarnessEvent::Message(data))),
            Some(_) | None => Err("the data of an event is not an object".to_owned()),
        },
        "output" => {
            let stream = match line.stream.as_deref() {
                None | Some("stdout") => Stream::Stdout,
                Some("stderr") => Stream::Stderr,
                Some(other) => return Err(format!("{other:?} is not an output stream")),
            };
            let text = line.text.as_deref().ok_or("an output has no text")?.to_owned();
            Ok(Meaning::Event(HarnessEvent::Output { stream, text }))
        }
        "result" => Ok(Meaning::Ended(HarnessEnd::Completed { result: data })),
        _ => {
            let message = line.message.as_deref().unwrap_or("the harness gave no reason");
            Ok(Meaning::Ended(HarnessEnd::Failed {
                code: FailureCode::said(line.code.as_deref()),
                message: message.chars().take(MESSAGE_CHARS_MAX).collect(),
            }))
        }
    }
}

impl Protocol for Jsonl {
    fn begin(
        &mut self,
        turn: TurnId,
        input: &str,
        config: Option<&str>,
    ) -> Result<String, HarnessError> {
        let input = raw(input, "the input")?;
        let config = config.map(|config| raw(config, "the configuration")).transpose()?;
        let said = line(&HostLine::Turn {
            id: turn.to_string(),
            input: &input,
            config: config.as_deref(),
        })?;
        self.turn = turn.to_string();
        Ok(said)
    }

    fn on_line(&mut self, line: &str) -> Meaning {
        let meaning = self.meaning(line).unwrap_or_else(Meaning::Broken);
        if matches!(meaning, Meaning::Ended(_)) {
            if self.past.len() >= PAST_TURNS_MAX {
                self.past.pop_front();
            }
            self.past.push_back(std::mem::take(&mut self.turn));
        }
        meaning
    }

    fn on_line_between_turns(&mut self, line: &str) -> Meaning {
        self.meaning(line).unwrap_or_else(Meaning::Broken)
    }

    fn silence_timeout(&self) -> Option<Duration> {
        None
    }

    fn on_silence(&mut self) -> Meaning {
        Meaning::Nothing
    }

    fn settle_timeout(&self) -> Option<Duration> {
        // Lines have ids: what comes late is recognised.
        None
    }

    fn cancel(&self) -> String {
        line(&HostLine::Cancel { id: self.turn.clone() }).unwrap_or_default()
    }

    fn bind(&self, binding: &Binding) -> Result<Option<String>, HarnessError> {
        let config = binding.config.as_deref();
        let config = config.map(|config| raw(config, "the configuration")).transpose()?;
        line(&HostLine::Bind {
            session_id: binding.session.to_string(),
            sandbox_id: binding.sandbox.to_string(),
            generation: binding.generation.0,
            resumed: binding.resumed,
            env: &binding.env,
            config: config.as_deref(),
        })
        .map(Some)
    }

    fn is_bound(&self, line: &str) -> bool {
        parse(line).is_ok_and(|line| line.kind == "bound")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::connection::{Connection, Received};
    use proptest::prelude::*;
    use serde_json::json;
    use std::sync::Arc;
    use tokio::io::AsyncWriteExt as _;

    const TURN: TurnId = TurnId::from_u128(5);

    fn protocol() -> Jsonl {
        let mut protocol = Jsonl::default();
        let said = protocol.begin(TURN, "\"hi\"", Some("{}")).unwrap();
        let expected = format!(r#"{{"type":"turn","id":"{TURN}","input":"hi","config":{{}}}}"#);
        assert_eq!(said, expected);
        protocol
    }

    fn of_turn(rest: &str) -> String {
        format!("{{\"id\":\"{TURN}\",{rest}}}")
    }

    #[test]
    fn jsonl_lines_of_the_turn_have_a_meaning() {
        let message = |text: &str| Meaning::Event(HarnessEvent::Message(Arc::from(text)));
        let output = |stream, text: &str| {
            Meaning::Event(HarnessEvent::Output { stream, text: text.to_owned() })
        };
        let failed = |code: Option<&str>, message: &str| {
            let code = FailureCode::Said(code.map(Arc::from));
            Meaning::Ended(HarnessEnd::Failed { code, message: message.to_owned() })
        };
        let result = |text: Option<&str>| {
            Meaning::Ended(HarnessEnd::Completed { result: text.map(Arc::from) })
        };
        for (rest, meaning) in [
            (r#""type":"event","data":{"n": 1e400}"#, message(r#"{"n": 1e400}"#)),
            (r#""type":"output","text":"x""#, output(Stream::Stdout, "x")),
            (r#""type":"output","stream":"stderr","text":"""#, output(Stream::Stderr, "")),
            (r#""type":"result""#, result(None)),
            (r#""type":"result","data":null"#, result(None)),
            (r#""type":"result","data":[1, 2],"new":1"#, result(Some("[1, 2]"))),
            (r#""type":"error","message":"m","code":"c""#, failed(Some("c"), "m")),
            (r#""type":"error""#, failed(None, "the harness gave no reason")),
        ] {
            assert_eq!(protocol().on_line(&of_turn(rest)), meaning, "{rest}");
        }
        assert_eq!(protocol().on_line(r#"{"type":"bound"}"#), Meaning::Nothing);
    }

    #[test]
    fn invalid_jsonl_lines_break_the_protocol() {
        for line in [
            "x".to_owned(),
            "[]".to_owned(),
            "{}".to_owned(),
            r#"{"type":7}"#.to_owned(),
            r#"{"type":"ready","protocol":1}"#.to_owned(),
            r#"{"type":"event","data":{}}"#.to_owned(),
            r#"{"type":"result","id":"other"}"#.to_owned(),
            of_turn(r#""type":"event""#),
            of_turn(r#""type":"event","data":[]"#),
            of_turn(r#""type":"output""#),
            of_turn(r#""type":"output","stream":"x","text":"y""#),
            of_turn(&format!(r#""type":"result","data":{}{}"#, "[".repeat(200), "]".repeat(200))),
        ] {
            assert!(matches!(protocol().on_line(&line), Meaning::Broken(_)), "{line}");
        }
    }

    #[test]
    fn late_lines_of_an_ended_turn_are_ignored() {
        let mut protocol = protocol();
        let end = of_turn(r#""type":"result""#);
        assert!(matches!(protocol.on_line(&end), Meaning::Ended(_)));
        let event = of_turn(r#""type":"event","data":{}"#);
        assert_eq!(protocol.on_line_between_turns(&event), Meaning::Nothing);
        protocol.begin(TurnId::from_u128(6), "1", None).unwrap();
        assert_eq!(protocol.on_line(&event), Meaning::Nothing);
        assert!(matches!(protocol.on_line(&end), Meaning::Broken(_)), "but not a second end");
    }

    /// Authors of harnesses read in the document which lines the host sends: those, and no others.
    #[test]
    fn host_lines_are_those_of_the_document() {
        let document = include_str!("../../../docs/harness.md");
        let documented =
            document.lines().filter_map(|row| row.strip_prefix("| host | `{\"type\":\""));
        let documented: Vec<_> = documented.filter_map(|row| row.split('"').next()).collect();
        let binding = Binding {
            session: model::SessionId::NIL,
            sandbox: model::SandboxId::NIL,
            generation: model::Generation(1),
            resumed: false,
            env: BTreeMap::new(),
            config: None,
        };
        let mut protocol = Jsonl::default();
        let bind = protocol.bind(&binding).unwrap().unwrap();
        let turn = protocol.begin(TURN, "1", None).unwrap();
        let said = [bind, turn, protocol.cancel()].map(|line| {
            let line: serde_json::Value = serde_json::from_str(&line).unwrap();
            line["type"].as_str().unwrap().to_owned()
        });
        assert_eq!(documented, said);
    }

    #[test]
    fn the_first_line_names_the_protocol() {
        assert_eq!(check_ready(r#"{"type":"ready","protocol":1,"name":"x"}"#), Ok(()));
        for line in [r#"{"type":"ready"}"#, r#"{"type":"ready","protocol":2}"#, "{}", "ready"] {
            assert!(check_ready(line).is_err(), "{line}");
        }
        let own = check_ready(r#"{"type":"error","message":"no key"}"#);
        assert_eq!(own, Err("no key".to_owned()), "its own reason counts");
    }

    #[test]
    fn a_host_line_is_one_line_whatever_it_contains() {
        let mut protocol = Jsonl::default();
        let said = protocol.begin(TURN, "{\n\"a\":\r\n\"b\\nc\"}", None).unwrap();
        assert!(!said.contains(['\r', '\n']), "{said}");
        assert!(said.contains(r#""input":{"a":"b\nc"}"#), "{said}");
        assert!(protocol.begin(TURN, "{", None).is_err());
        assert!(protocol.begin(TURN, "1} {", None).is_err());
        assert!(protocol.begin(TURN, "1", Some("")).is_err());
    }

    /// One line that a harness may send.
    #[derive(Debug, Clone)]
    enum Step {
        Event(u32),
        Past(u32),
        Empty,
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let step = prop_oneof![
            any::<u32>().prop_map(Step::Event),
            any::<u32>().prop_map(Step::Past),
            Just(Step::Empty),
        ];
        proptest::collection::vec(step, 0..20)
    }

    /// The result of these bytes when they arrive cut like this: the events, and how it ended.
    fn heard_of(bytes: &[u8], cuts: &[usize]) -> (Vec<HarnessEvent>, Option<Meaning>) {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(async {
            let (ours, mut theirs) = tokio::io::duplex(1 << 20);
            let mut connection = Connection::new(Box::new(ours), 1000);
            let mut protocol = Jsonl::default();
            let past = TurnId::from_u128(4);
            protocol.begin(past, "1", None).unwrap();
            protocol.on_line(&format!(r#"{{"type":"result","id":"{past}"}}"#));
            protocol.begin(TURN, "1", None).unwrap();
            let mut events = Vec::new();
            let mut rest = bytes;
            for &size in cuts.iter().chain(std::iter::repeat(&usize::MAX)) {
                let (now, later) = rest.split_at(size.min(rest.len()));
                theirs.write_all(now).await.unwrap();
                while let Some(heard) = connection.next_at_once().await {
                    let meaning = match heard {
                        Received::Line(line) => protocol.on_line(&line),
                        Received::Garbage | Received::TooLong | Received::End => {
                            Meaning::Broken("no line".to_owned())
                        }
                    };
                    match meaning {
                        Meaning::Event(event) => events.push(event),
                        Meaning::Nothing | Meaning::Log(_) => {}
                        end @ (Meaning::Ended(_) | Meaning::Broken(_)) => {
                            return (events, Some(end));
                        }
                    }
                }
                if later.is_empty() {
                    return (events, None);
                }
                rest = later;
            }
            (events, None)
        })
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(200))]

        #[test]
        fn a_jsonl_turn_is_the_same_however_it_is_cut(
            steps in steps(), cuts in proptest::collection::vec(1_usize..60, 0..40),
        ) {
            let past = TurnId::from_u128(4);
            let (mut text, mut expected) = (String::new(), Vec::new());
            for step in steps {
                match step {
                    Step::Event(n) => {
                        text += &of_turn(&format!(r#""type":"event","data":{{"n":{n}}}"#));
                        expected.push(HarnessEvent::Message(Arc::from(format!("{{\"n\":{n}}}"))));
                    }
                    Step::Past(n) => {
                        let id = past.to_string();
                        text += &json!({ "type": "event", "id": id, "data": { "n": n } }).to_string();
                    }
                    Step::Empty => {}
                }
                text.push('\n');
            }
            text += &of_turn(r#""type":"result","data":7"#);
            text.push('\n');
            let (events, end) = heard_of(text.as_bytes(), &cuts);
            prop_assert_eq!(events, expected);
            let result = Some(Arc::from("7"));
            prop_assert_eq!(end, Some(Meaning::Ended(HarnessEnd::Completed { result })));
        }

        #[test]
        fn garbage_breaks_the_jsonl_protocol_and_nothing_else(
            garbage in proptest::collection::vec(any::<u8>(), 1..2000),
            cuts in proptest::collection::vec(1_usize..200, 0..40),
        ) {
            let mut bytes = of_turn(r#""type":"event","data":{}"#).into_bytes();
            bytes.push(b'\n');
            bytes.extend_from_slice(&garbage);
            bytes.extend_from_slice(b"\n");
            bytes.extend_from_slice(of_turn(r#""type":"result""#).as_bytes());
            bytes.push(b'\n');
            let (events, end) = heard_of(&bytes, &cuts);
            prop_assert_eq!(events.len(), 1);
            let is_blank = garbage.iter().all(|byte| matches!(byte, b'\r' | b'\n'));
            prop_assert!(matches!(end, Some(Meaning::Broken(_))) || is_blank, "{:?}", end);
        }
    }
}

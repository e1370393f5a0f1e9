//! The stream of a message as Ash frames it, made from the pieces of a turn: `session_start` first,
//! events derived from a message before that message, and `done` last in every case. The last frame
//! of a piece has the number of the piece, so that a client that resumes after it gets every frame.

use bytes::Bytes;
use model::SessionId;
use model::lifecycle::TurnOutcome;
use model::turn::TurnPiece;
use serde::Deserialize;
use serde_json::{Value, json};

use super::VERSION;
use super::message_events::granular;

/// The state of the stream of a turn.
#[derive(Debug)]
pub(super) struct TurnFrames {
    session: SessionId,
    /// A message of type `result` was sent.
    result: bool,
    error: bool,
}

/// The end of a turn, as far as it is sent.
#[derive(Debug, Deserialize)]
struct Ended {
    outcome: TurnOutcome,
    #[serde(default)]
    error: Option<Value>,
}

impl TurnFrames {
    pub(super) const fn new(session: SessionId) -> Self {
        Self { session, result: false, error: false }
    }

    /// The first frame.
    pub(super) fn start(&self, turn: model::TurnId) -> Bytes {
        let session = self.session;
        // The id of the turn is ours: by it a client that lost its connection finds the rest.
        let data = json!({"sessionId": session, "version": VERSION, "turnId": turn});
        Frame { name: "session_start", data: &data.to_string() }.write(None)
    }

    /// The frames of a piece; whether it was the last one.
    pub(super) fn piece(&mut self, piece: &TurnPiece) -> (Vec<Bytes>, bool) {
        let mut events: Vec<(String, String)> = Vec::new();
        let mut is_last = false;
        match &*piece.name {
            "message" => {
                let message: Value = serde_json::from_str(&piece.data).unwrap_or_default();
                self.result |= message["type"] == "result";
                let before = granular(&message).into_iter();
                events.extend(before.map(|(name, data)| (name, data.to_string())));
                events.push(("message".to_owned(), one_line(&piece.data)));
            }
            "output" => {
                let output: Value = serde_json::from_str(&piece.data).unwrap_or_default();
                let data = json!({"delta": output["text"]});
                events.push(("text_delta".to_owned(), data.to_string()));
            }
            // A harness that sends SDK messages has already sent it as one.
            "result" if self.result => {}
            "result" => {
                let result: Value = serde_json::from_str(&piece.data).unwrap_or_default();
                let data = json!({"numTurns": 1, "result": result});
                events.push(("turn_complete".to_owned(), data.to_string()));
            }
            "error" => events.extend(self.error(&piece.data)),
            "turn_ended" => {
                is_last = true;
                events.extend(self.end(&piece.data));
                events.push(("done".to_owned(), json!({"sessionId": self.session}).to_string()));
            }
            // Only our own API shows where the turn runs.
            _ => {}
        }
        let last = events.len().saturating_sub(1);
        let frames = events
            .iter()
            .enumerate()
            .map(|(n, (name, data))| Frame { name, data }.write((n == last).then_some(piece.seq)));
        (frames.collect(), is_last)
    }

    /// The last frames, where the end of the turn is not heard of.
    pub(super) fn end_early(&mut self, error: Option<&str>) -> Vec<Bytes> {
        let error = error.map(|text| self.say_error(text));
        let done = ("done".to_owned(), json!({"sessionId": self.session}).to_string());
        let events = error.into_iter().chain([done]);
        events.map(|(name, data)| Frame { name: &name, data: &data }.write(None)).collect()
    }

    fn error(&mut self, data: &str) -> Option<(String, String)> {
        let error: Value = serde_json::from_str(data).unwrap_or_default();
        Some(self.say_error(text_of(&error)?))
    }

    /// A failed turn is reported as an error, once.
    fn end(&mut self, data: &str) -> Option<(String, String)> {
        let ended: Option<Ended> = serde_json::from_str(data).ok();
        let (outcome, error) = match ended {
            Some(ended) => (ended.outcome, ended.error),
            None => (TurnOutcome::Failed, None),
        };
        if self.error {
            return None;
        }
        let fallback = match outcome {
            TurnOutcome::Completed => return None,
            TurnOutcome::Failed => "The agent reported an error",
            TurnOutcome::Aborted => "The message was aborted",
            TurnOutcome::TimedOut => "The message took too long",
            TurnOutcome::SandboxCrashed => "The sandbox died",
            TurnOutcome::Oom => "The sandbox ran out of memory",
            TurnOutcome::DiskLimit => "The sandbox wrote too much to its workspace",
            TurnOutcome::Interrupted => "The server stopped",
            TurnOutcome::Expired => "The session reached its deadline",
            TurnOutcome::NotStarted => "No sandbox could be had",
        };
        let said = error.as_ref().and_then(text_of);
        Some(self.say_error(said.unwrap_or(fallback)))
    }

    fn say_error(&mut self, text: &str) -> (String, String) {
        self.error = true;
        ("error".to_owned(), json!({"error": text}).to_string())
    }
}

/// What an error says: a text, or an object that has one.
fn text_of(error: &Value) -> Option<&str> {
    match error {
        Value::String(text) => Some(text),
        Value::Object(fields) => {
            let text = fields.get("message").or_else(|| fields.get("error"))?;
            text.as_str()
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::Array(_) => None,
    }
}

/// JSON may have line breaks between its parts, which would end a line of the stream.
fn one_line(data: &str) -> String {
    if data.contains(['\n', '\r']) { data.replace(['\n', '\r'], " ") } else { data.to_owned() }
}

struct Frame<'a> {
    name: &'a str,
    data: &'a str,
}

impl Frame<'_> {
    /// Clients of Ash read line by line: `event: ` and `data: `, each with its space.
    fn write(&self, id: Option<u64>) -> Bytes {
        let Self { name, data } = self;
        let id = id.map(|id| format!("id: {id}\n")).unwrap_or_default();
        format!("{id}event: {name}\ndata: {data}\n\n").into()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use model::{TurnId, Wall};
    use proptest::prelude::*;

    use super::*;

    const SESSION: SessionId = SessionId::from_u128(7);

    fn piece(seq: u64, name: &str, data: &Value) -> TurnPiece {
        let data = Arc::from(data.to_string());
        TurnPiece { seq, at: Wall(1), name: Arc::from(name), data }
    }

    fn stream_text(pieces: &[(&str, Value)]) -> String {
        let mut turn_frames = TurnFrames::new(SESSION);
        let mut text = turn_frames.start(TurnId::from_u128(9)).to_vec();
        for (seq, (name, data)) in (1..).zip(pieces) {
            let (frames, is_last) = turn_frames.piece(&piece(seq, name, data));
            for frame in frames {
                text.extend_from_slice(&frame);
            }
            assert_eq!(is_last, seq as usize == pieces.len());
        }
        String::from_utf8(text).unwrap()
    }

    /// Names in their order, as a client of Ash reads them.
    fn names(text: &str) -> Vec<&str> {
        text.lines().filter_map(|line| line.strip_prefix("event: ")).collect()
    }

    fn ended(outcome: &str) -> (&'static str, Value) {
        ("turn_ended", json!({"outcome": outcome, "result": null, "error": null}))
    }

    #[test]
    fn the_golden_transcript_of_a_plain_message() {
        let answer = json!({
            "type": "assistant", "session_id": "s",
            "message": {"role": "assistant", "content": [{"type": "text", "text": "Hi"}]},
        });
        let result = json!({
            "type": "result", "subtype": "success", "session_id": "s", "cost_usd": 0,
            "duration_ms": 100, "duration_api_ms": 50, "is_error": false, "num_turns": 1,
            "result": "Hi",
        });
        let text = stream_text(&[
            ("sandbox_active", json!({"sandbox_id": "x"})),
            ("turn_started", json!({})),
            ("message", answer.clone()),
            ("message", result.clone()),
            ("result", result.clone()),
            ended("completed"),
        ]);
        let id = SESSION.to_string();
        let turn = TurnId::from_u128(9).to_string();
        let expected = format!(
            "event: session_start\ndata: {}\n\n\
             id: 3\nevent: message\ndata: {answer}\n\n\
             event: turn_complete\ndata: {}\n\n\
             id: 4\nevent: message\ndata: {result}\n\n\
             id: 6\nevent: done\ndata: {}\n\n",
            json!({"sessionId": id, "version": VERSION, "turnId": turn}),
            json!({"numTurns": 1, "result": "Hi"}),
            json!({"sessionId": id}),
        );
        assert_eq!(text, expected);
    }

    #[test]
    fn done_is_last_whatever_happened_and_an_error_is_told_once() {
        let error = ("error", json!({"code": "harness_failed", "message": "no key"}));
        let text = stream_text(&[error, ended("failed")]);
        assert_eq!(names(&text), ["session_start", "error", "done"]);
        assert!(text.contains("data: {\"error\":\"no key\"}\n"), "{text}");
        for outcome in [
            "failed",
            "aborted",
            "timed_out",
            "sandbox_crashed",
            "oom",
            "disk_limit",
            "interrupted",
            "expired",
            "not_started",
        ] {
            let text = stream_text(&[ended(outcome)]);
            assert_eq!(names(&text), ["session_start", "error", "done"], "{outcome}");
        }
        let said = json!({"outcome": "oom", "error": "it took 3 GB"});
        assert!(stream_text(&[("turn_ended", said)]).contains("it took 3 GB"));
        let said = json!({"outcome": "oom", "error": {"code": "oom", "message": "3 GB"}});
        assert!(stream_text(&[("turn_ended", said)]).contains("{\"error\":\"3 GB\"}"));
        assert_eq!(names(&stream_text(&[ended("completed")])), ["session_start", "done"]);
    }

    #[test]
    fn other_harnesses_are_told_in_the_same_words() {
        let text = stream_text(&[
            ("output", json!({"stream": "stdout", "text": "hi\n"})),
            ("result", json!({"exit_code": 0})),
            ended("completed"),
        ]);
        assert_eq!(names(&text), ["session_start", "text_delta", "turn_complete", "done"]);
        assert!(text.contains("data: {\"delta\":\"hi\\n\"}\n"), "{text}");
        assert!(text.contains("{\"numTurns\":1,\"result\":{\"exit_code\":0}}"), "{text}");
    }

    #[test]
    fn every_frame_is_one_line_of_data() {
        let mut turn_frames = TurnFrames::new(SESSION);
        let data = Arc::from("{\"type\":\"assistant\",\n\r\"message\":{}}");
        let piece = TurnPiece { seq: 1, at: Wall(1), name: Arc::from("message"), data };
        let (frames, _) = turn_frames.piece(&piece);
        let text = String::from_utf8(frames[0].to_vec()).unwrap();
        assert_eq!(text.lines().filter(|line| line.starts_with("data: ")).count(), 1);
        assert_eq!(text.lines().count(), 4, "{text}");
    }

    fn any_json() -> impl Strategy<Value = Value> {
        let word = prop_oneof![
            Just("stream_event"),
            Just("content_block_delta"),
            Just("assistant"),
            Just("user"),
            Just("result"),
            Just("done"),
            Just("a\nevent: done\ndata: {}"),
        ];
        let leaf = prop_oneof![
            Just(Value::Null),
            word.prop_map(Value::from),
            any::<u8>().prop_map(Value::from)
        ];
        let names = ["type", "event", "delta", "message", "content", "text", "tool_use_result"];
        leaf.prop_recursive(4, 24, 4, move |inner| {
            let field = (prop::sample::select(names.to_vec()), inner.clone());
            prop_oneof![
                prop::collection::vec(inner, 0..3).prop_map(Value::from),
                prop::collection::vec(field, 0..4).prop_map(|fields| {
                    fields.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
                }),
            ]
        })
    }

    proptest! {
        #[test]
        fn whatever_a_harness_says_a_stream_is_frames_and_done_comes_once(
            said in prop::collection::vec(any_json(), 0..6),
        ) {
            let mut turn_frames = TurnFrames::new(SESSION);
            let pieces = said.iter().map(|data| ("message", data.clone())).chain([ended("failed")]);
            let mut text = String::new();
            for (seq, (name, data)) in (1..).zip(pieces) {
                for frame in turn_frames.piece(&piece(seq, name, &data)).0 {
                    let frame = String::from_utf8(frame.to_vec()).unwrap();
                    let lines: Vec<_> = frame.strip_suffix("\n\n").unwrap().split('\n').collect();
                    let numbered = lines[0] == format!("id: {seq}");
                    let [event, data] = lines[usize::from(numbered)..] else { panic!("{frame:?}") };
                    prop_assert!(event.starts_with("event: "), "{frame:?}");
                    let data = data.strip_prefix("data: ").unwrap();
                    prop_assert!(serde_json::from_str::<Value>(data).is_ok(), "{frame:?}");
                    text.push_str(&frame);
                }
            }
            let names = names(&text);
            prop_assert_eq!(names.iter().filter(|name| **name == "done").count(), 1);
            prop_assert_eq!(names.last(), Some(&"done"));
        }
    }
}

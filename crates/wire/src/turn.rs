//! Turns: the message to a session, the pieces of the answer, and how the turn ended.

use std::fmt;

use model::lifecycle::TurnOutcome;
use model::{Generation, SandboxId, SessionId, TurnId};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::time::Time;

/// A message to a session.
#[derive(Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct TurnRequest {
    /// A text or an object, as the harness of the session understands it: to the `shell` it is a
    /// command line.
    #[cfg_attr(feature = "schema", schema(value_type = TurnInput))]
    pub input: Value,
    /// What to do if another turn is in progress; `refuse` if not given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub when_busy: Option<WhenBusy>,
    /// Its id, if the client chooses it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<TurnId>,
    /// How long to wait for a place if the server is full; the server's default if not given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schema(maximum = 600_000))]
    pub wait_ms: Option<u64>,
}

/// The message: for the schema only.
#[cfg(feature = "schema")]
#[derive(utoipa::ToSchema)]
#[schema(as = TurnInput)]
#[serde(untagged)]
pub enum TurnInput {
    /// A text.
    Text(String),
    /// An object.
    Object(serde_json::Map<String, Value>),
}

impl TurnRequest {
    /// A text, with every default.
    pub fn text(text: impl Into<String>) -> Self {
        Self { input: Value::String(text.into()), when_busy: None, id: None, wait_ms: None }
    }
}

/// The message may be secret.
impl fmt::Debug for TurnRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TurnRequest")
            .field("when_busy", &self.when_busy)
            .field("id", &self.id)
            .field("wait_ms", &self.wait_ms)
            .finish_non_exhaustive()
    }
}

/// What to do with a new turn while another is in progress.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub enum WhenBusy {
    /// Refuse the new turn.
    #[default]
    Refuse,
    /// Queue the new turn behind the others.
    Queue,
}

/// A turn as it is stored.
#[derive(Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Turn {
    /// Its id.
    pub id: TurnId,
    /// Its session.
    pub session_id: SessionId,
    /// Its place in the history: later turns have higher ones.
    pub number: u64,
    /// The message.
    pub input: Value,
    /// How it ended; null until then.
    pub outcome: Option<TurnOutcome>,
    /// The result from the harness.
    pub result: Option<Value>,
    /// The error, if it failed.
    pub error: Option<TurnError>,
    /// The sandbox in which it ran.
    pub sandbox_id: Option<SandboxId>,
    /// The generation of that sandbox.
    pub generation: Option<Generation>,
    /// When the message was sent.
    pub created_at: Time,
    /// When the harness got the message.
    pub started_at: Option<Time>,
    /// When it ended.
    pub ended_at: Option<Time>,
    /// Its pieces, if requested; the end is in the fields above.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub events: Option<Vec<TurnEvent>>,
    /// Set if there are more pieces: the value of `after` at the turn's own address.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub events_next: Option<u64>,
}

impl fmt::Debug for Turn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Turn")
            .field("id", &self.id)
            .field("number", &self.number)
            .field("outcome", &self.outcome)
            .field("error", &self.error)
            .finish_non_exhaustive()
    }
}

/// The error of a turn.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct TurnError {
    /// The error code. Harnesses may have their own codes.
    #[serde(default)]
    pub code: String,
    /// In words.
    #[serde(default)]
    pub message: String,
}

/// One piece of a turn's answer.
#[derive(Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct TurnEvent {
    /// Its number in the turn.
    pub id: u64,
    /// When it came; absent on streams.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at: Option<Time>,
    /// Its kind: `sandbox_active`, `turn_started`, `output`, `message`, `error`, `result`,
    /// `sandbox_terminated` or `turn_ended`, which is the last.
    pub event: String,
    /// Its contents.
    pub data: Value,
}

impl fmt::Debug for TurnEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TurnEvent")
            .field("id", &self.id)
            .field("event", &self.event)
            .finish_non_exhaustive()
    }
}

/// The contents of a piece named `output`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct TurnOutput {
    /// `stdout` or `stderr`.
    pub stream: String,
    /// The output.
    pub text: String,
}

/// The contents of the last piece, named `turn_ended`.
#[derive(Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct TurnEnded {
    /// The session.
    pub session: SessionId,
    /// The turn.
    pub turn: TurnId,
    /// How it ended.
    pub outcome: TurnOutcome,
    /// The result from the harness.
    pub result: Option<Value>,
    /// The error, if it failed.
    pub error: Option<TurnError>,
}

impl TurnEnded {
    /// The name of the piece.
    pub const NAME: &'static str = "turn_ended";
}

impl fmt::Debug for TurnEnded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TurnEnded")
            .field("turn", &self.turn)
            .field("outcome", &self.outcome)
            .field("error", &self.error)
            .finish_non_exhaustive()
    }
}

/// The result of a turn, for a client that waited for its end.
#[derive(Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct TurnAnswer {
    /// The turn.
    pub id: TurnId,
    /// Its session.
    pub session_id: SessionId,
    /// How it ended.
    pub outcome: TurnOutcome,
    /// The result from the harness.
    pub result: Option<Value>,
    /// The error, if it failed.
    pub error: Option<TurnError>,
    /// The output on `stdout`.
    pub output: String,
    /// The output on `stderr`.
    pub errors: String,
    /// Messages of the harness, in order.
    pub messages: Vec<Value>,
    /// Whether these were truncated.
    pub truncated: bool,
}

impl fmt::Debug for TurnAnswer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TurnAnswer")
            .field("id", &self.id)
            .field("outcome", &self.outcome)
            .field("error", &self.error)
            .finish_non_exhaustive()
    }
}

/// Turns of a session, oldest first.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct TurnList {
    /// One page of them.
    pub turns: Vec<Turn>,
    /// The value of `after` for the next page, if there may be one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<u64>,
}

/// The pieces of a turn, in order.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct TurnEventList {
    /// One page of it.
    pub events: Vec<TurnEvent>,
    /// The value of `after` for the next page, if there may be one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<u64>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn turn_message_is_a_text_or_an_object_and_is_not_printed() {
        let request: TurnRequest =
            serde_json::from_str(r#"{"input":"hunter2","when_busy":"queue"}"#).unwrap();
        assert_eq!(request.when_busy, Some(WhenBusy::Queue));
        assert!(!format!("{request:?}").contains("hunter2"));
        assert!(serde_json::from_str::<TurnRequest>(r#"{"text":"x"}"#).is_err());
        assert!(serde_json::from_str::<TurnRequest>(r#"{"when_busy":"queue"}"#).is_err());
    }

    #[test]
    fn turn_end_is_read_from_the_last_piece() {
        let text = r#"{"type":"turn_ended","session":"00000000-0000-0000-0000-000000000001",
            "turn":"00000000-0000-0000-0000-000000000002","outcome":"failed","result":null,
            "error":{"code":"harness_failed","message":"it died"}}"#;
        let end: TurnEnded = serde_json::from_str(text).unwrap();
        assert_eq!(
            (end.outcome, end.error.unwrap().code),
            (TurnOutcome::Failed, "harness_failed".to_owned())
        );
    }
}

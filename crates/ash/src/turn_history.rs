//! The history of a session, as Ash lists it: derived from the stored turns, so it is the same each
//! time.

use std::borrow::Cow;

use model::TurnId;
use model::lifecycle::{LifecycleEvent, TurnOutcome};
use model::turn::{TurnPiece, TurnRecord};
use model::{StoredEvent, Wall};
use serde::Deserialize;
use serde_json::{Value, json};

use super::message_events::{blocks, tool_result_block, turn_complete};

/// Pieces that a turn can have before its numbers would run into those of the next.
const SPAN: u64 = 10_000_000;
/// Events of one millisecond that keep their numbers apart from those of the next.
const TICK: u64 = 2_048;

/// The place of a message in a session: it grows, with gaps. 1 and above.
pub(super) const fn sequence(turn_number: u64, seq: u64) -> u64 {
    turn_number.saturating_mul(SPAN).saturating_add(if seq < SPAN { seq } else { SPAN - 1 }) + 1
}

/// The turn and the piece that a place stands for; nothing comes before 0.
pub(super) const fn place(sequence: u64) -> (u64, Option<u64>) {
    match sequence.checked_sub(1) {
        None => (0, None),
        Some(at) => (at / SPAN, Some(at % SPAN)),
    }
}

/// A message of the past.
pub(super) struct PastMessage {
    pub(super) seq: u64,
    pub(super) role: &'static str,
    pub(super) content: String,
    pub(super) at: Wall,
}

/// The message of the user, which is the first of a turn.
pub(super) fn user_message(turn: &TurnRecord) -> PastMessage {
    let mut said: Value = serde_json::from_str(&turn.input).unwrap_or_default();
    if let Some(prompt) = said.get_mut("prompt") {
        said = prompt.take();
    }
    let content = json!({"type": "user", "content": said}).to_string();
    PastMessage { seq: 0, role: "user", content, at: turn.created_at }
}

/// The message in a piece, if it is one that is listed.
pub(super) fn answered(piece: &TurnPiece) -> Option<PastMessage> {
    if &*piece.name != "message" {
        return None;
    }
    // Only its kind is looked for: the rest of it may be large.
    let message: Kind = serde_json::from_str(&piece.data).ok()?;
    let is_listed = message.kind == "assistant" || message.kind == "result";
    let (seq, at, content) = (piece.seq, piece.at, piece.data.to_string());
    is_listed.then_some(PastMessage { seq, role: "assistant", content, at })
}

/// The type of a message.
#[derive(Deserialize)]
struct Kind<'a> {
    #[serde(borrow, rename = "type")]
    kind: Cow<'a, str>,
}

/// Whether a piece says that something went wrong.
pub(super) fn is_error(piece: &TurnPiece) -> bool {
    &*piece.name == "error"
}

fn message_of(piece: &TurnPiece) -> Option<Value> {
    if &*piece.name != "message" {
        return None;
    }
    serde_json::from_str(&piece.data).ok()
}

/// An event of the past.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct PastEvent {
    pub(super) at: Wall,
    pub(super) kind: &'static str,
    pub(super) data: Value,
    pub(super) from: Origin,
}

/// What an event was made of: its id is made of this.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Origin {
    Piece { turn: TurnId, seq: u64, part: u64 },
    Event(u64),
}

/// The events in a piece.
pub(super) fn events_of(turn: TurnId, piece: &TurnPiece) -> Vec<PastEvent> {
    let said: Vec<(&'static str, Value)> = match &*piece.name {
        "message" => message_of(piece).as_ref().map(of_message).unwrap_or_default(),
        "error" => {
            let error: Value = serde_json::from_str(&piece.data).unwrap_or_default();
            vec![("error", json!({"error": error["message"]}))]
        }
        "output" => {
            let output: Value = serde_json::from_str(&piece.data).unwrap_or_default();
            vec![("text", json!({"text": output["text"]}))]
        }
        _ => Vec::new(),
    };
    let numbered = (0..).zip(said);
    numbered
        .map(|(part, (kind, data))| {
            let from = Origin::Piece { turn, seq: piece.seq, part };
            PastEvent { at: piece.at, kind, data, from }
        })
        .collect()
}

fn of_message(message: &Value) -> Vec<(&'static str, Value)> {
    let of_block = |block: &Value| match block["type"].as_str()? {
        "text" => Some(("text", json!({"text": block["text"]}))),
        "thinking" => Some(("reasoning", json!({"text": block["thinking"]}))),
        "tool_use" => {
            let (name, id, input) = (&block["name"], &block["id"], &block["input"]);
            Some(("tool_start", json!({"toolName": name, "toolId": id, "input": input})))
        }
        _ => None,
    };
    match message["type"].as_str() {
        Some("assistant") => blocks(message).filter_map(of_block).collect(),
        Some("user") if !message["tool_use_result"].is_null() => {
            let (result, block) = (&message["tool_use_result"], tool_result_block(message));
            let stdout = result.get("stdout").unwrap_or(&block["content"]);
            let stderr = result.get("stderr").cloned().unwrap_or_default();
            let id = &block["tool_use_id"];
            let data = json!({"toolName": null, "toolId": id, "stdout": stdout, "stderr": stderr});
            vec![("tool_result", data)]
        }
        Some("result") => vec![("turn_complete", turn_complete(message))],
        Some(_) | None => Vec::new(),
    }
}

/// The end of a turn, where that is something to tell.
pub(super) fn failure_of(turn: &TurnRecord) -> Option<PastEvent> {
    let end = turn.end.as_ref().filter(|end| end.outcome != TurnOutcome::Completed)?;
    let word = serde_json::to_value(end.outcome).unwrap_or_default();
    let error = end.error.as_deref().map_or(word, Value::from);
    let from = Origin::Piece { turn: turn.id, seq: end.seq, part: 0 };
    Some(PastEvent { at: end.at, kind: "error", data: json!({"error": error}), from })
}

/// An event of the session itself.
pub(super) fn lifecycle_of(stored: &StoredEvent) -> Option<PastEvent> {
    let data = match &stored.event {
        LifecycleEvent::SessionChanged { change, .. } => json!({"action": change}),
        LifecycleEvent::SandboxActive { sandbox_id, cause, state_lost, .. } => json!({
            "action": "sandbox_active", "sandboxId": sandbox_id, "cause": cause,
            "stateLost": state_lost,
        }),
        LifecycleEvent::SandboxTerminated { sandbox_id, reason, .. } => {
            json!({"action": "sandbox_terminated", "sandboxId": sandbox_id, "reason": reason})
        }
        LifecycleEvent::StateLost { reason, .. } => {
            json!({"action": "state_lost", "reason": reason})
        }
        LifecycleEvent::WorkspaceDurable { .. }
        | LifecycleEvent::TurnStarted { .. }
        | LifecycleEvent::TurnEnded { .. }
        | LifecycleEvent::SandboxFrozen { .. }
        | LifecycleEvent::SandboxWakefulness { .. }
        | LifecycleEvent::SandboxState { .. }
        | LifecycleEvent::PoolHealth { .. } => return None,
    };
    Some(PastEvent { at: stored.at, kind: "lifecycle", data, from: Origin::Event(stored.number) })
}

/// The moment before which nothing can come after a place.
pub(super) const fn moment(sequence: u64) -> Wall {
    Wall(sequence / TICK)
}

/// Puts events in their order, each with its place: by their time, and as they came within one
/// millisecond.
pub(super) fn placed(mut events: Vec<PastEvent>) -> Vec<(u64, PastEvent)> {
    events.sort_by_key(|event| event.at);
    let mut last = 0;
    let placed = events.into_iter().map(|event| {
        last = (event.at.0.saturating_mul(TICK)).max(last + 1);
        (last, event)
    });
    placed.collect()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use model::lifecycle::SessionChange;
    use model::turn::TurnEnd;
    use model::{KeyId, SessionId};

    use super::*;

    const TURN: TurnId = TurnId::from_u128(5);

    fn piece(seq: u64, name: &str, data: &Value) -> TurnPiece {
        let data = Arc::from(data.to_string());
        TurnPiece { seq, at: Wall(10 + seq), name: Arc::from(name), data }
    }

    fn turn(input: &Value, end: Option<(TurnOutcome, Option<&str>)>) -> TurnRecord {
        let end = end.map(|(outcome, error)| TurnEnd {
            at: Wall(99),
            outcome,
            seq: 9,
            result: None,
            error: error.map(Arc::from),
        });
        TurnRecord {
            id: TURN,
            number: 3,
            session: SessionId::NIL,
            tenant: KeyId::NIL,
            input: Arc::from(input.to_string()),
            created_at: Wall(10),
            started: None,
            end,
        }
    }

    #[test]
    fn history_sequences_grow_and_lead_back() {
        assert_eq!(place(0), (0, None));
        for (number, seq) in [(0, 0), (0, 1), (1, 0), (7, 123), (900_000_000, SPAN - 1)] {
            let at = sequence(number, seq);
            assert!((1..1 << 53).contains(&at), "clients count in doubles");
            assert_eq!(place(at), (number, Some(seq)));
        }
        assert!(sequence(1, SPAN + 5) < sequence(2, 0));
    }

    #[test]
    fn history_lists_messages_as_they_were_sent() {
        for (input, said) in [
            (json!("hi"), json!("hi")),
            (json!({"prompt": "hi", "model": "m"}), json!("hi")),
            (json!([{"type": "text"}]), json!([{"type": "text"}])),
        ] {
            let message = user_message(&turn(&input, None));
            let content: Value = serde_json::from_str(&message.content).unwrap();
            assert_eq!(content, json!({"type": "user", "content": said}));
            assert_eq!((message.seq, message.role), (0, "user"));
        }
    }

    #[test]
    fn history_messages_are_answers_and_results_only() {
        for (name, data, listed) in [
            ("message", json!({"type": "assistant"}), true),
            ("message", json!({"type": "result"}), true),
            ("message", json!({"type": "stream_event"}), false),
            ("message", json!({"type": "system"}), false),
            ("output", json!({"type": "assistant"}), false),
        ] {
            assert_eq!(answered(&piece(1, name, &data)).is_some(), listed, "{name} {data}");
        }
    }

    #[test]
    fn events_are_of_the_kinds_that_clients_know() {
        let answer = json!({"type": "assistant", "message": {"content": [
            {"type": "thinking", "thinking": "hm"}, {"type": "text", "text": "hi"},
            {"type": "tool_use", "id": "t", "name": "Bash", "input": {}}, {"type": "other"},
        ]}});
        let tool = json!({
            "type": "user", "tool_use_result": {"stdout": "o", "stderr": "e"},
            "message": {"content": [{"type": "tool_result", "tool_use_id": "t"}]},
        });
        let result = json!({"type": "result", "num_turns": 1, "result": "hi"});
        let kinds = |name: &str, data: &Value| -> Vec<_> {
            let events = events_of(TURN, &piece(1, name, data)).into_iter();
            events.map(|event| (event.kind, event.data)).collect()
        };
        assert_eq!(
            kinds("message", &answer),
            [
                ("reasoning", json!({"text": "hm"})),
                ("text", json!({"text": "hi"})),
                ("tool_start", json!({"toolName": "Bash", "toolId": "t", "input": {}})),
            ]
        );
        let expected_event = json!({"toolName": null, "toolId": "t", "stdout": "o", "stderr": "e"});
        assert_eq!(kinds("message", &tool), [("tool_result", expected_event)]);
        let complete = json!({"numTurns": 1, "result": "hi"});
        assert_eq!(kinds("message", &result), [("turn_complete", complete)]);
        let error = json!({"code": "x", "message": "no"});
        assert_eq!(kinds("error", &error), [("error", json!({"error": "no"}))]);
        assert_eq!(kinds("sandbox_active", &json!({})), []);
        let event = LifecycleEvent::SessionChanged {
            session: SessionId::NIL,
            change: SessionChange::Paused,
        };
        let stored = StoredEvent { number: 4, at: Wall(1), tenant: KeyId::NIL, event };
        let expected_event = lifecycle_of(&stored).unwrap();
        assert_eq!(
            (expected_event.kind, expected_event.data),
            ("lifecycle", json!({"action": "paused"}))
        );
    }

    #[test]
    fn a_turn_that_ended_badly_has_an_error() {
        let input = json!("hi");
        assert_eq!(failure_of(&turn(&input, None)), None);
        assert_eq!(failure_of(&turn(&input, Some((TurnOutcome::Completed, None)))), None);
        let said = |error| failure_of(&turn(&input, Some((TurnOutcome::Oom, error)))).unwrap().data;
        assert_eq!(said(Some("3 GB")), json!({"error": "3 GB"}));
        assert_eq!(said(None), json!({"error": "oom"}));
    }

    #[test]
    fn history_events_are_ordered_by_time() {
        let event = |at, number| PastEvent {
            at: Wall(at),
            kind: "lifecycle",
            data: Value::Null,
            from: Origin::Event(number),
        };
        let places = placed(vec![event(5, 1), event(3, 2), event(5, 3)]);
        let order: Vec<_> = places.iter().map(|(at, event)| (*at, event.from)).collect();
        let origin = Origin::Event;
        assert_eq!(
            order,
            [(3 * TICK, origin(2)), (5 * TICK, origin(1)), (5 * TICK + 1, origin(3))]
        );
        assert_eq!(moment(5 * TICK + 1), Wall(5));
    }
}

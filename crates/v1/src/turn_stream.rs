//! The answer to a turn: a stream of its pieces, or everything at its end. If the client
//! disconnects, the engine decides what happens to the turn.

use bytes::Bytes;
use engine::{Caller, TurnFollow};
use model::{ErrorCode, SessionId, TurnId};
use serde_json::Value;
use tokio::time::timeout;
use wire::{TurnAnswer, TurnEnded, TurnOutput};

use web::app::App;
use web::key_watch::KeyWatch;
use web::long_lived::LongLivedSlot;
use web::refused::Refused;
use web::stream::{BodySource, Format, HEARTBEAT};

/// How much of each output, and of all messages together, is kept for who waits for the end.
const KEPT_BYTES: usize = 1 << 20;

/// A turn that is followed.
pub(crate) struct Followed {
    app: App,
    key: KeyWatch,
    follow: TurnFollow,
    begun: bool,
    over: bool,
    _slot: LongLivedSlot,
}

impl Followed {
    pub(crate) fn new(app: App, caller: Caller, follow: TurnFollow, slot: LongLivedSlot) -> Self {
        let key = KeyWatch::new(caller.key);
        Self { app, key, follow, begun: false, over: false, _slot: slot }
    }
}

impl BodySource for Followed {
    async fn next(&mut self) -> Option<Bytes> {
        if !std::mem::replace(&mut self.begun, true) {
            return Some(Format::retry());
        }
        if self.over || !self.key.works(&self.app) {
            return None;
        }
        let next = timeout(HEARTBEAT, self.follow.next());
        match self.key.while_valid(&self.app, next).await? {
            Err(_) => Format::Sse.heartbeat(),
            Ok(Ok(Some(piece))) => {
                self.over = &*piece.name == TurnEnded::NAME;
                Some(Format::event_of_json(piece.seq, &piece.name, &piece.data))
            }
            Ok(Ok(None)) => None,
            // The client reconnects with the last number it read.
            Ok(Err(refusal)) => {
                tracing::warn!(cause = %refusal, "the stream of a turn failed");
                None
            }
        }
    }
}

/// Waits for the end of a turn, with what it gave as far as that is kept.
pub(crate) async fn collected(
    mut follow: TurnFollow,
    session_id: SessionId,
    id: TurnId,
) -> Result<TurnAnswer, Refused> {
    let mut kept = CollectedTurn::default();
    while let Some(piece) = follow.next().await? {
        match &*piece.name {
            "output" => kept.output(&piece.data),
            "message" => kept.message(&piece.data),
            TurnEnded::NAME => {
                let end: TurnEnded = serde_json::from_str(&piece.data).map_err(|error| {
                    Refused::new(
                        ErrorCode::Internal,
                        format!("the end of the turn cannot be decoded: {error}"),
                    )
                })?;
                let CollectedTurn { output, errors, messages, truncated, .. } = kept;
                let TurnEnded { outcome, result, error, .. } = end;
                return Ok(TurnAnswer {
                    id,
                    session_id,
                    outcome,
                    result,
                    error,
                    output,
                    errors,
                    messages,
                    truncated,
                });
            }
            _ => {}
        }
    }
    let cause = "the server is stopping; the turn can be followed again when the server is back";
    Err(Refused::new(ErrorCode::ShuttingDown, cause))
}

#[derive(Default)]
struct CollectedTurn {
    output: String,
    errors: String,
    messages: Vec<Value>,
    message_bytes: usize,
    truncated: bool,
}

impl CollectedTurn {
    fn output(&mut self, json: &str) {
        let Ok(written) = serde_json::from_str::<TurnOutput>(json) else { return };
        let to = if written.stream == "stderr" { &mut self.errors } else { &mut self.output };
        let mut room = KEPT_BYTES.saturating_sub(to.len()).min(written.text.len());
        while !written.text.is_char_boundary(room) {
            room -= 1;
        }
        to.push_str(&written.text[..room]);
        self.truncated |= room < written.text.len();
    }

    fn message(&mut self, json: &str) {
        self.message_bytes += json.len();
        match serde_json::from_str(json) {
            Ok(message) if self.message_bytes <= KEPT_BYTES => self.messages.push(message),
            Ok(_) | Err(_) => self.truncated = true,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(stream: &str, text: &str) -> String {
        serde_json::json!({ "stream": stream, "text": text }).to_string()
    }

    #[test]
    fn collected_turn_output_is_bounded_and_cut_between_characters() {
        let mut kept = CollectedTurn::default();
        kept.output(&written("stdout", "a"));
        kept.output(&written("stderr", "b"));
        kept.message(r#"{"n":1}"#);
        assert_eq!((&*kept.output, &*kept.errors, kept.messages.len()), ("a", "b", 1));
        assert!(!kept.truncated);
        kept.output(&written("stdout", &"ü".repeat(KEPT_BYTES)));
        assert!(kept.truncated && kept.output.len() >= KEPT_BYTES - 1);
        assert!(kept.output.len() <= KEPT_BYTES);
        kept.message(&format!("\"{}\"", "x".repeat(KEPT_BYTES)));
        assert_eq!(kept.messages.len(), 1);
    }
}

//! Messages: one of our turns, as a stream of Ash. The turn continues when its client disconnects;
//! a client finds the rest by the turn's id, which is in the first event and in a header.

use std::collections::VecDeque;
use std::sync::Arc;

use axum::extract::{Request, State};
use axum::response::Response;
use axum::routing::MethodFilter;
use bytes::Bytes;
use engine::{INPUT_BYTES_MAX, TurnFollow, TurnRequest, WhenBusy};
use http::header::CONNECTION;
use http::{HeaderMap, HeaderName, HeaderValue};
use model::{SessionStatus, TurnId};
use serde_json::{Map, Value};
use tokio::time::timeout;

use super::errors::AshError;
use super::fields::{At, Fields, session_id};
use super::known_sessions::{find_session, remember_soon};
use super::turn_frames::TurnFrames;
use super::{Routes, answer, request_body};
use crate::app::App;
use web::front::{By, Needs};
use web::key_watch::KeyWatch;
use web::long_lived::LongLivedSlot;
use web::query::Query;
use web::stream::{self, BodySource, Format, HEARTBEAT};

const TEXT_CHARS_MAX: usize = 500_000;
const BLOCKS_MAX: usize = 20;
const BLOCKS: &[&str] = &["text", "image", "document"];
const EFFORTS: &[&str] = &["low", "medium", "high", "max"];
const MODEL_CHARS_MAX: usize = 100;
/// A message and its options.
const BODY_MAX: u64 = INPUT_BYTES_MAX as u64 + (1 << 20);
const LAST_EVENT_ID: &str = "last-event-id";
const TURN_ID: HeaderName = HeaderName::from_static("x-shoal-turn-id");

pub(super) fn routes(routes: &mut Routes) {
    let (all, name) = ("/api/sessions/{id}/messages", "/compat/ash/api/sessions/{id}/messages");
    routes.add(MethodFilter::POST, all, name, Needs::Use, send);
    let one = "/api/sessions/{id}/turns/{turn}/events";
    let name = "/compat/ash/api/sessions/{id}/turns/{turn}/events";
    routes.add(MethodFilter::GET, one, name, Needs::Read, follow);
}

/// The message as the harness gets it: the text alone, or with its options.
fn input_of(body: &mut Fields) -> Result<Value, AshError> {
    let content = body.required("content")?;
    match &content {
        Value::String(text) if text.chars().count() > TEXT_CHARS_MAX => {
            let cause = format!("body/content must NOT have more than {TEXT_CHARS_MAX} characters");
            return Err(AshError::invalid(cause));
        }
        Value::String(_) => {}
        Value::Array(blocks) => check_blocks(blocks)?,
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::Object(_) => {
            return Err(AshError::invalid("body/content must be string or array"));
        }
    }
    let mut asked = Map::new();
    let mut put = |name: &str, value: Option<Value>| {
        if let Some(value) = value {
            asked.insert(name.to_owned(), value);
        }
    };
    let partial = body.flag("includePartialMessages")?.filter(|wanted| *wanted);
    put("includePartialMessages", partial.map(Value::from));
    put("model", body.text("model", MODEL_CHARS_MAX)?.map(Value::from));
    put("maxTurns", body.number("maxTurns", 1, u64::from(u32::MAX))?.map(Value::from));
    put("maxBudgetUsd", body.amount("maxBudgetUsd")?);
    put("effort", body.one_of("effort", EFFORTS)?.map(Value::from));
    put("thinking", with_type(body, "thinking", &["type"])?);
    put("outputFormat", with_type(body, "outputFormat", &["type", "schema"])?);
    body.refuse_rest()?;
    if asked.is_empty() {
        return Ok(content);
    }
    asked.insert("prompt".to_owned(), content);
    Ok(Value::Object(asked))
}

fn check_blocks(blocks: &[Value]) -> Result<(), AshError> {
    if blocks.is_empty() || blocks.len() > BLOCKS_MAX {
        let cause = format!("body/content must have from 1 to {BLOCKS_MAX} items");
        return Err(AshError::invalid(cause));
    }
    let fits = |block: &Value| BLOCKS.iter().any(|kind| block["type"] == *kind);
    if !blocks.iter().all(fits) {
        let cause = format!("body/content/type must be one of {}", BLOCKS.join(", "));
        return Err(AshError::invalid(cause));
    }
    Ok(())
}

fn with_type(body: &mut Fields, name: &str, required: &[&str]) -> Result<Option<Value>, AshError> {
    let Some(object) = body.object(name)? else { return Ok(None) };
    for field in required {
        if !object.contains_key(*field) {
            let cause = format!("body/{name} must have required property '{field}'");
            return Err(AshError::invalid(cause));
        }
    }
    Ok(Some(Value::Object(object)))
}

async fn send(
    State(app): State<App>,
    By(caller): By,
    At(id): At<String>,
    request: Request,
) -> Result<Response, AshError> {
    let id = session_id(&id)?;
    refuse_unless_active(find_session(&app, caller, id).await?.status, app.options.strict)?;
    let input = |mut body: Fields| Ok(Arc::from(input_of(&mut body)?.to_string()));
    let read = request_body::read(request, &app, BODY_MAX, input).await?;
    let asked = TurnRequest {
        input: read.taken,
        when_busy: WhenBusy::Refuse,
        turn: None,
        wait_ms: Some(0),
    };
    let slot = app.long_lived.begin(caller.key)?;
    let started = app.engine.start_turn(caller, id, asked).await?;
    drop(read.share);
    if let Ok(view) = app.engine.session(caller, id) {
        remember_soon(&app, view);
    }
    let (turn_frames, key) = (TurnFrames::new(id), KeyWatch::new(caller.key));
    let stream = Stream::new(app, (key, slot), turn_frames, started.turn, started.follow);
    Ok(streamed(started.turn, stream))
}

/// Whether a session takes messages and programs. A paused one goes on by itself, unless it is to
/// be as in Ash.
pub(super) fn refuse_unless_active(status: SessionStatus, strict: bool) -> Result<(), AshError> {
    let refused = match status {
        SessionStatus::Active => false,
        SessionStatus::Starting | SessionStatus::Paused => strict,
        SessionStatus::Stopped | SessionStatus::Ended => true,
    };
    if refused {
        return Err(AshError::new(400, format!("Session is {}", answer::status(status))));
    }
    Ok(())
}

/// The rest of a turn, for a client that lost its connection.
async fn follow(
    State(app): State<App>,
    By(caller): By,
    At((id, turn)): At<(String, String)>,
    mut query: Query,
    headers: HeaderMap,
) -> Result<Response, AshError> {
    let id = session_id(&id)?;
    let wrong = |_| AshError::invalid("params/turn must match format \"uuid\"");
    let turn: TurnId = turn.parse().map_err(wrong)?;
    let after = query.number("after", 0..=u64::MAX)?;
    let after = match headers.get(LAST_EVENT_ID) {
        None => after.unwrap_or(0),
        Some(value) => {
            let number = value.to_str().ok().and_then(|text| text.trim().parse().ok());
            number.ok_or_else(|| AshError::invalid("headers/last-event-id must be integer"))?
        }
    };
    find_session(&app, caller, id).await?;
    let slot = app.long_lived.begin(caller.key)?;
    let follow = app.engine.follow_turn(caller, id, turn, after).await?;
    let (turn_frames, key) = (TurnFrames::new(id), KeyWatch::new(caller.key));
    Ok(streamed(turn, Stream::new(app, (key, slot), turn_frames, turn, follow)))
}

fn streamed(turn: TurnId, stream: Stream) -> Response {
    let mut response = stream::response(Format::Sse, stream);
    let headers = response.headers_mut();
    headers.insert(CONNECTION, HeaderValue::from_static("keep-alive"));
    if let Ok(id) = HeaderValue::try_from(turn.to_string()) {
        headers.insert(TURN_ID, id);
    }
    response
}

/// The stream of a turn.
struct Stream {
    app: App,
    key: KeyWatch,
    turn_frames: TurnFrames,
    follow: TurnFollow,
    ready: VecDeque<Bytes>,
    is_over: bool,
    _slot: LongLivedSlot,
}

impl Stream {
    fn new(
        app: App,
        (key, slot): (KeyWatch, LongLivedSlot),
        turn_frames: TurnFrames,
        turn: TurnId,
        follow: TurnFollow,
    ) -> Self {
        let ready = VecDeque::from([turn_frames.start(turn)]);
        Self { app, key, turn_frames, follow, ready, is_over: false, _slot: slot }
    }

    fn end(&mut self, error: &str) {
        self.ready.extend(self.turn_frames.end_early(Some(error)));
        self.is_over = true;
    }
}

impl BodySource for Stream {
    async fn next(&mut self) -> Option<Bytes> {
        loop {
            if let Some(frame) = self.ready.pop_front() {
                return Some(frame);
            }
            if self.is_over {
                return None;
            }
            let piece = timeout(HEARTBEAT, self.follow.next()).await;
            // Frames that came after the key was revoked are not sent.
            if !self.key.works(&self.app) {
                self.end("Invalid API key");
                continue;
            }
            let Ok(piece) = piece else { return Format::Sse.heartbeat() };
            match piece {
                Ok(Some(piece)) => {
                    let (frames, is_last) = self.turn_frames.piece(&piece);
                    self.ready.extend(frames);
                    self.is_over = is_last;
                }
                // The end of a turn comes before this: without it, the server stops.
                Ok(None) => self.end("The server stopped before the turn ended"),
                Err(refusal) => self.end(&refusal.cause),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn input(body: Value) -> Result<Value, AshError> {
        input_of(&mut Fields::inner(body, "body")?)
    }

    #[test]
    fn message_options_go_beside_its_text() {
        let blocks = json!([{"type": "text", "text": "hi"}]);
        for (body, expected) in [
            (json!({"content": "hi"}), json!("hi")),
            (json!({"content": "hi", "includePartialMessages": false}), json!("hi")),
            (json!({"content": blocks}), blocks.clone()),
            (
                json!({"content": "hi", "includePartialMessages": true, "model": "m"}),
                json!({"prompt": "hi", "includePartialMessages": true, "model": "m"}),
            ),
            (
                json!({"content": blocks, "maxTurns": 3, "maxBudgetUsd": 0.5, "effort": "max"}),
                json!({"prompt": blocks, "maxTurns": 3, "maxBudgetUsd": 0.5, "effort": "max"}),
            ),
            (
                json!({"content": "", "thinking": {"type": "enabled", "budgetTokens": 1}}),
                json!({"prompt": "", "thinking": {"type": "enabled", "budgetTokens": 1}}),
            ),
        ] {
            assert_eq!(input(body.clone()).unwrap(), expected, "{body}");
        }
    }

    #[test]
    fn malformed_messages_are_refused() {
        for body in [
            json!({}),
            json!({"content": null}),
            json!({"content": 1}),
            json!({"content": {}}),
            json!({"content": []}),
            json!({"content": [{"type": "video"}]}),
            json!({"content": ["hi"]}),
            json!({"content": vec![json!({"type": "text"}); BLOCKS_MAX + 1]}),
            json!({"content": "x".repeat(TEXT_CHARS_MAX + 1)}),
            json!({"content": "hi", "maxTurns": 0}),
            json!({"content": "hi", "maxTurns": 1.5}),
            json!({"content": "hi", "maxBudgetUsd": -1}),
            json!({"content": "hi", "effort": "huge"}),
            json!({"content": "hi", "thinking": {}}),
            json!({"content": "hi", "thinking": "yes"}),
            json!({"content": "hi", "outputFormat": {"type": "json_schema"}}),
            json!({"content": "hi", "includePartialMessages": "yes"}),
            json!({"content": "hi", "model": 4}),
        ] {
            assert!(input(body.clone()).is_err(), "{body}");
        }
    }

    #[test]
    fn message_resumes_a_paused_session_unless_strict() {
        use SessionStatus::{Active, Ended, Paused, Starting, Stopped};
        for (status, strict, refused) in [
            (Active, true, None),
            (Paused, false, None),
            (Starting, false, None),
            (Paused, true, Some("Session is paused")),
            (Stopped, false, Some("Session is stopped")),
            (Ended, false, Some("Session is ended")),
        ] {
            let expected = refused.map(|text| AshError::new(400, text));
            assert_eq!(refuse_unless_active(status, strict).err(), expected);
        }
    }
}

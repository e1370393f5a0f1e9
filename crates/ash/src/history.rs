//! Pages of earlier messages, events and logs.

use axum::extract::State;
use axum::response::Response;
use axum::routing::MethodFilter;
use engine::{Caller, EventQuery, LogLine, LogStream};
use model::turn::{TurnPiece, TurnRecord};
use model::{SessionId, TurnId, Wall};
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

use super::errors::AshError;
use super::fields::{At, session_id};
use super::known_sessions::find_session;
use super::turn_history::{self, Origin, PastEvent, PastMessage};
use super::{Routes, answer};
use crate::app::App;
use web::front::{By, Needs};
use web::query::Query;

const TURNS: u32 = 100;
const PIECES: u32 = 1000;
const PAGE_MAX: u64 = 1000;
const MESSAGES: u64 = 100;
const EVENTS: u64 = 200;
/// A page ends where it has become so large.
const PAGE_BYTES: usize = 4 << 20;
/// The largest number that clients can represent.
const AFTER_MAX: u64 = 1 << 53;
const LIFECYCLE: &str = "lifecycle";
/// Nothing here makes these.
const MCP_STATUS: &str = "mcp_status";
const KINDS: &[&str] = &[
    "text",
    "tool_start",
    "tool_result",
    "reasoning",
    "error",
    "turn_complete",
    LIFECYCLE,
    MCP_STATUS,
];

pub(super) fn routes(routes: &mut Routes) {
    let get = MethodFilter::GET;
    let of = "/api/sessions/{id}/messages";
    routes.add(get, of, "/compat/ash/api/sessions/{id}/messages", Needs::Read, messages);
    let of = "/api/sessions/{id}/events";
    routes.add(get, of, "/compat/ash/api/sessions/{id}/events", Needs::Read, events);
    let of = "/api/sessions/{id}/logs";
    routes.add(get, of, "/compat/ash/api/sessions/{id}/logs", Needs::Read, logs);
}

/// The turns of a session and what they gave, a page at a time.
struct Reader<'a> {
    app: &'a App,
    caller: Caller,
    session: SessionId,
}

impl Reader<'_> {
    async fn turns(&self, after: u64) -> Result<Vec<TurnRecord>, AshError> {
        Ok(self.app.engine.turns(self.caller, self.session, after, TURNS).await?)
    }

    async fn pieces(&self, turn: TurnId, after: u64) -> Result<Vec<TurnPiece>, AshError> {
        let engine = &self.app.engine;
        Ok(engine.turn_pieces(self.caller, self.session, turn, after, PIECES).await?)
    }
}

async fn messages(
    State(app): State<App>,
    By(caller): By,
    At(id): At<String>,
    mut query: Query,
) -> Result<Response, AshError> {
    let session = session_id(&id)?;
    let limit = query.number("limit", 1..=PAGE_MAX)?.unwrap_or(MESSAGES) as usize;
    let after = query.number("after", 0..=AFTER_MAX)?.unwrap_or(0);
    let tenant = find_session(&app, caller, session).await?.tenant;
    let found = past_messages(&Reader { app: &app, caller, session }, after, limit).await?;
    let shown: Vec<_> = found
        .into_iter()
        .map(|(turn, message)| {
            json!({
                "id": answer::derived_id(turn.id, "message", message.seq),
                "tenantId": tenant,
                "sessionId": session,
                "role": message.role,
                "content": message.content,
                "sequence": turn_history::sequence(turn.number, message.seq),
                "createdAt": answer::time(message.at),
            })
        })
        .collect();
    Ok(answer::ok(&json!({"messages": shown})))
}

/// Which turn a message is of.
struct Of {
    id: TurnId,
    number: u64,
}

async fn past_messages(
    reader: &Reader<'_>,
    after: u64,
    limit: usize,
) -> Result<Vec<(Of, PastMessage)>, AshError> {
    let (first, from) = turn_history::place(after);
    let (mut found, mut page) = (Vec::new(), Page::of(limit));
    let mut number = first.saturating_sub(1);
    loop {
        let turns = reader.turns(number).await?;
        let Some(last) = turns.last() else { return Ok(found) };
        number = last.number;
        for turn in &turns {
            // Everything of a turn before this one was read already.
            let read = from.filter(|_| turn.number == first);
            let of = || Of { id: turn.id, number: turn.number };
            if read.is_none() {
                found.push((of(), turn_history::user_message(turn)));
                page.add(1, turn.input.len());
            }
            let mut seq = read.unwrap_or(0);
            while !page.is_full() {
                let pieces = reader.pieces(turn.id, seq).await?;
                let Some(last) = pieces.last() else { break };
                seq = last.seq;
                for message in pieces.iter().filter_map(turn_history::answered) {
                    page.add(1, message.content.len());
                    found.push((of(), message));
                }
            }
            if page.is_full() {
                found.truncate(limit);
                return Ok(found);
            }
        }
    }
}

async fn events(
    State(app): State<App>,
    By(caller): By,
    At(id): At<String>,
    mut query: Query,
) -> Result<Response, AshError> {
    let session = session_id(&id)?;
    let limit = query.number("limit", 1..=PAGE_MAX)?.unwrap_or(EVENTS) as usize;
    let after = query.number("after", 0..=AFTER_MAX)?.unwrap_or(0);
    let kind = query.text("type")?;
    if let Some(kind) = &kind
        && !KINDS.contains(&kind.as_str())
    {
        let cause = format!("querystring/type must be one of {}", KINDS.join(", "));
        return Err(AshError::invalid(cause));
    }
    let tenant = find_session(&app, caller, session).await?.tenant;
    let wanted = HistoryQuery { after, limit, kind };
    let reader = Reader { app: &app, caller, session };
    let shown: Vec<_> = past_events(&reader, &wanted)
        .await?
        .into_iter()
        .map(|(sequence, event)| {
            json!({
                "id": id_of(session, event.from),
                "tenantId": tenant,
                "sessionId": session,
                "type": event.kind,
                "data": event.data.to_string(),
                "sequence": sequence,
                "createdAt": answer::time(event.at),
            })
        })
        .collect();
    Ok(answer::ok(&json!({"events": shown})))
}

/// Which events.
struct HistoryQuery {
    after: u64,
    limit: usize,
    kind: Option<String>,
}

impl HistoryQuery {
    fn takes(&self, event: &PastEvent) -> bool {
        self.is_any_or(event.kind)
    }

    fn is_any_or(&self, word: &str) -> bool {
        self.kind.as_deref().is_none_or(|kind| kind == word)
    }

    /// Whether turns have any of them.
    fn is_of_turns(&self) -> bool {
        self.kind.as_deref().is_none_or(|kind| kind != LIFECYCLE && kind != MCP_STATUS)
    }
}

fn id_of(session: SessionId, from: Origin) -> String {
    match from {
        Origin::Piece { turn, seq, part } => {
            answer::derived_id(turn, &format!("event {part}"), seq)
        }
        Origin::Event(number) => {
            let mut digest = Sha256::new();
            digest.update(session.as_u128().to_be_bytes());
            digest.update(number.to_be_bytes());
            answer::uuid_of(&digest.finalize())
        }
    }
}

async fn past_events(
    reader: &Reader<'_>,
    wanted: &HistoryQuery,
) -> Result<Vec<(u64, PastEvent)>, AshError> {
    let (mut found, until) =
        if wanted.is_of_turns() { turn_events(reader, wanted).await? } else { (Vec::new(), None) };
    if wanted.is_any_or(LIFECYCLE) {
        // What comes after turns that were not read has its place in a later page.
        found.extend(lifecycle_events(reader, wanted, until).await?);
    }
    let places = turn_history::placed(found).into_iter();
    let after = places.filter(|(place, _)| *place > wanted.after);
    Ok(after.take(wanted.limit).collect())
}

/// Events of turns that are wanted, enough of them for a page; and up to when they were read, if
/// not to the end.
async fn turn_events(
    reader: &Reader<'_>,
    wanted: &HistoryQuery,
) -> Result<(Vec<PastEvent>, Option<Wall>), AshError> {
    let begin = turn_history::moment(wanted.after);
    let (mut found, mut page) = (Vec::new(), Page::of(wanted.limit));
    let mut number = 0;
    loop {
        let turns = reader.turns(number).await?;
        let Some(last) = turns.last() else { return Ok((found, None)) };
        number = last.number;
        let later = |turn: &&TurnRecord| turn.end.as_ref().is_none_or(|end| end.at >= begin);
        for turn in turns.iter().filter(later) {
            let mut seq = 0;
            let mut has_error = false;
            loop {
                let pieces = reader.pieces(turn.id, seq).await?;
                let Some(last) = pieces.last() else { break };
                seq = last.seq;
                for piece in &pieces {
                    has_error |= turn_history::is_error(piece);
                    if piece.at < begin {
                        continue;
                    }
                    let events = turn_history::events_of(turn.id, piece).into_iter();
                    let before = found.len();
                    found.extend(events.filter(|event| wanted.takes(event)));
                    // Those of the first moment may have been in the page before.
                    if piece.at > begin {
                        page.add(found.len() - before, piece.data.len());
                    }
                }
                if page.is_full() {
                    let until = found.last().map(|event| event.at);
                    return Ok((found, until));
                }
            }
            let failure = turn_history::failure_of(turn).filter(|_| !has_error);
            let failure = failure.filter(|event| event.at >= begin && wanted.takes(event));
            page.add(failure.iter().filter(|event| event.at > begin).count(), 0);
            found.extend(failure);
        }
    }
}

/// Events of the session itself from the beginning of a page to before `until`, at most as many as
/// fit.
async fn lifecycle_events(
    reader: &Reader<'_>,
    wanted: &HistoryQuery,
    until: Option<Wall>,
) -> Result<Vec<PastEvent>, AshError> {
    let begin = turn_history::moment(wanted.after);
    let mut query = EventQuery::after(0, PIECES);
    query.session = Some(reader.session);
    let (mut found, mut page) = (Vec::new(), Page::of(wanted.limit));
    while !page.is_full() {
        let events = reader.app.engine.events(reader.caller, query).await?.events;
        let Some(last) = events.last() else { break };
        query.after = last.number;
        let fits =
            |event: &PastEvent| event.at >= begin && until.is_none_or(|until| event.at < until);
        for event in events.iter().filter_map(turn_history::lifecycle_of).filter(fits) {
            page.add(usize::from(event.at > begin), 0);
            found.push(event);
        }
    }
    Ok(found)
}

/// How much fits into an answer.
struct Page {
    left: usize,
    bytes_left: usize,
}

impl Page {
    const fn of(limit: usize) -> Self {
        Self { left: limit, bytes_left: PAGE_BYTES }
    }

    const fn add(&mut self, count: usize, bytes: usize) {
        if count > 0 {
            self.left = self.left.saturating_sub(count);
            self.bytes_left = self.bytes_left.saturating_sub(bytes);
        }
    }

    const fn is_full(&self) -> bool {
        self.left == 0 || self.bytes_left == 0
    }
}

async fn logs(
    State(app): State<App>,
    By(caller): By,
    At(id): At<String>,
    mut query: Query,
) -> Result<Response, AshError> {
    let session = session_id(&id)?;
    let after = match query.parsed::<i64>("after")? {
        None | Some(-1) => None,
        Some(index) => {
            let wrong = |_| AshError::invalid("querystring/after must be >= -1");
            Some(u64::try_from(index).map_err(wrong)?)
        }
    };
    find_session(&app, caller, session).await?;
    let lines = app.engine.session_logs(caller, session, after)?;
    let shown: Vec<_> = lines.iter().map(log_line).collect();
    Ok(answer::ok(&json!({"logs": shown, "source": "sandbox"})))
}

fn log_line(line: &LogLine) -> Value {
    let level = match line.stream {
        LogStream::Stdout => "stdout",
        LogStream::Stderr => "stderr",
        LogStream::System => "system",
    };
    json!({
        "index": line.index, "level": level, "text": line.text, "ts": answer::time(line.at),
    })
}

//! Turns: sent, followed from any piece, and read again.

use axum::extract::{Request, State};
use axum::response::Response;
use engine::{Caller, INPUT_BYTES_MAX, StartedTurn, TurnRequest};
use http::HeaderMap;
use model::turn::{TurnPiece, TurnRecord};
use model::{ErrorCode, SessionId, TurnId};
use wire::{TurnEventList, TurnList, WhenBusy};

use crate::accepts;
use crate::checkouts::check_wait_ms;
use crate::events::{AFTER_MAX, RESUME, last_event_id};
use crate::exec::USING;
use crate::turn_stream::{Followed, collected};
use crate::use_routes::SESSION_REFUSES;
use crate::view;
use web::answer;
use web::app::App;
use web::body::{Json, json_up_to};
use web::front::{By, Needs, no_content};
use web::operation::{Content, Kind, Operation, Param, Route, Takes, Verb, json};
use web::path::{Named, NamedOf};
use web::query::{NoQuery, Query};
use web::refused::Refused;
use web::stream::{self, Format, SSE};

const PAGE: u64 = 100;
const PAGE_MAX: u64 = 1000;
/// The most bytes of pieces in a page of turns; the rest is at the turns' own addresses.
const PAGE_BYTES: usize = 4 << 20;
/// A message, escaped as JSON may do it, and the rest of the request.
const BODY_BYTES_MAX: u64 = 2 * INPUT_BYTES_MAX as u64 + 4096;
const JSON: &str = "application/json";

const ALL: &str = "/v1/sessions/{id}/turns";
const ONE: &str = "/v1/sessions/{id}/turns/{turn}";
const EVENTS: &str = "/v1/sessions/{id}/turns/{turn}/events";

const SAYING: &[ErrorCode] = &[
    ErrorCode::TurnInProgress,
    ErrorCode::HarnessBusy,
    ErrorCode::TurnQueueFull,
    ErrorCode::IdConflict,
    ErrorCode::TooLarge,
];

const STREAM: &str = "A stream of the pieces of the turn, by name: `sandbox_active`, `turn_started`, \
    `output`, `message`, `error`, `result`, `sandbox_terminated`, and last `turn_ended`";

const READING: &[ErrorCode] = &[
    ErrorCode::SessionUnknown,
    ErrorCode::TurnUnknown,
    ErrorCode::StoreUnavailable,
    ErrorCode::ShuttingDown,
];

pub(super) fn routes() -> Vec<Route> {
    let say = Operation::new(
        "send_turn",
        "Send a message; the answer is a stream, or with `Accept: application/json` the result at the end",
    )
    .answers(200, STREAM, [Content(SSE, None), json("TurnAnswer")]);
    let list = Operation::new("list_turns", "List the turns of a session").answers(
        200,
        "A page of turns, oldest first",
        [json("TurnList")],
    );
    let get = Operation::new("get_turn", "Get a turn").answers(200, "The turn", [json("Turn")]);
    let follow = Operation::new(
        "follow_turn",
        "Read or follow the pieces of a turn, during the turn and afterwards",
    )
    .answers(
        200,
        "The same stream as for the message; a page of the stored pieces if only `application/json` is accepted",
        [Content(SSE, None), json("TurnEventList")],
    )
    .answers(204, "The client has already seen the end", []);
    let limit = Param::new(
        "limit",
        Kind::Number(1, PAGE_MAX),
        "The most turns in a page; 100 if not given",
    );
    let after = |about| Param::new("after", Kind::Number(0, AFTER_MAX), about);
    vec![
        Route::new(
            Verb::Post,
            ALL,
            Needs::Use,
            send,
            say.takes(Takes::Json("TurnRequest"))
                .refuses(SAYING)
                .refuses(USING)
                .refuses(SESSION_REFUSES),
        ),
        Route::new(
            Verb::Get,
            ALL,
            Needs::Read,
            self::list,
            list.query([
                after("Only turns with a higher number: `next` of the previous page"),
                limit,
                Param::new("include", Kind::OneOf(&["events"]), "Include the pieces of each turn"),
            ])
            .refuses(READING),
        ),
        Route::new(Verb::Get, ONE, Needs::Read, read, get.refuses(READING)),
        Route::new(
            Verb::Get,
            EVENTS,
            Needs::Read,
            self::follow,
            follow
                .query([
                    after("Only pieces after this one"),
                    Param::new(
                        "limit",
                        Kind::Number(1, PAGE_MAX),
                        "The most pieces in a page; 100 if not given",
                    ),
                ])
                .headers([RESUME])
                .refuses(READING),
        ),
    ]
}

/// Whether one answer is wanted, and no stream.
fn wants_json(headers: &HeaderMap) -> bool {
    accepts(headers, JSON) && !accepts(headers, SSE)
}

async fn send(
    State(app): State<App>,
    By(caller): By,
    NoQuery: NoQuery,
    Named(id): Named<SessionId>,
    request: Request,
) -> Result<Response, Refused> {
    // A caller that may not use the session must not make the server read a large body.
    app.engine.check_session(caller, id)?;
    let is_waited_for = wants_json(request.headers());
    let Json { value, bytes, share } =
        json_up_to::<wire::TurnRequest>(request, &app, BODY_BYTES_MAX).await?;
    drop(bytes);
    if !value.input.is_string() && !value.input.is_object() {
        return Err(Refused::invalid("input", "input: must be a text or an object"));
    }
    check_wait_ms(value.wait_ms)?;
    let asked = TurnRequest {
        input: value.input.to_string().into(),
        when_busy: match value.when_busy.unwrap_or_default() {
            WhenBusy::Refuse => engine::WhenBusy::Refuse,
            WhenBusy::Queue => engine::WhenBusy::Queue,
        },
        turn: value.id,
        wait_ms: value.wait_ms,
    };
    if is_waited_for {
        let StartedTurn { turn, follow, .. } = app.engine.start_turn(caller, id, asked).await?;
        drop(share);
        return answer::ok(&collected(follow, id, turn).await?);
    }
    // Before the turn begins: a refusal must have no effect.
    let slot = app.long_lived.begin(caller.key)?;
    let StartedTurn { follow, .. } = app.engine.start_turn(caller, id, asked).await?;
    drop(share);
    Ok(stream::response(Format::Sse, Followed::new(app, caller, follow, slot)))
}

async fn list(
    State(app): State<App>,
    By(caller): By,
    mut query: Query,
    Named(id): Named<SessionId>,
) -> Result<Response, Refused> {
    let after = query.number("after", 0..=AFTER_MAX)?.unwrap_or(0);
    let limit = query.number("limit", 1..=PAGE_MAX)?.unwrap_or(PAGE) as u32;
    let with_events = match query.text("include")?.as_deref() {
        None => false,
        Some("events") => true,
        Some(other) => {
            return Err(Refused::bad(
                "include",
                format!("`include`: {other:?} cannot be included"),
            ));
        }
    };
    query.done()?;
    let records = app.engine.turns(caller, id, after, limit).await?;
    // A page that has become large is short: only what comes after it tells whether it is the last.
    let next = match records.last() {
        Some(last) if !app.engine.turns(caller, id, last.number, 1).await?.is_empty() => {
            Some(last.number)
        }
        Some(_) | None => None,
    };
    let mut turns: Vec<_> = records.iter().map(view::turn).collect();
    if with_events {
        let mut room = PAGE_BYTES;
        for turn in &mut turns {
            let (events, more) = beginning(&app, caller, id, turn.id, &mut room).await?;
            turn.events_next = more.then(|| events.last().map_or(0, |event| event.seq));
            turn.events = Some(events.iter().map(view::turn_event).collect());
        }
    }
    answer::ok(&TurnList { turns, next })
}

/// The first pieces of a turn, as far as there is room, and whether there are more.
async fn beginning(
    app: &App,
    caller: Caller,
    id: SessionId,
    turn: TurnId,
    room: &mut usize,
) -> Result<(Vec<TurnPiece>, bool), Refused> {
    let mut pieces: Vec<TurnPiece> = Vec::new();
    loop {
        if *room == 0 {
            return Ok((pieces, true));
        }
        let after = pieces.last().map_or(0, |piece| piece.seq);
        let page = app.engine.turn_pieces(caller, id, turn, after, PAGE_MAX as u32).await?;
        if page.is_empty() {
            return Ok((pieces, false));
        }
        for piece in page {
            *room = room.saturating_sub(piece.data.len());
            pieces.push(piece);
            if *room == 0 {
                break;
            }
        }
    }
}

async fn read(
    State(app): State<App>,
    By(caller): By,
    NoQuery: NoQuery,
    NamedOf(id, turn): NamedOf<SessionId, TurnId>,
) -> Result<Response, Refused> {
    answer::ok(&view::turn(&app.engine.turn(caller, id, turn).await?))
}

async fn follow(
    State(app): State<App>,
    By(caller): By,
    mut query: Query,
    NamedOf(id, turn): NamedOf<SessionId, TurnId>,
    headers: HeaderMap,
) -> Result<Response, Refused> {
    let after = query.number("after", 0..=AFTER_MAX)?;
    let limit = query.number("limit", 1..=PAGE_MAX)?.unwrap_or(PAGE);
    query.done()?;
    let after = last_event_id(&headers)?.or(after).unwrap_or(0);
    let record = app.engine.turn(caller, id, turn).await?;
    if record.end.as_ref().is_some_and(|end| after >= end.seq) {
        return Ok(no_content());
    }
    if wants_json(&headers) {
        return page(&app, caller, &record, after, limit).await;
    }
    let slot = app.long_lived.begin(caller.key)?;
    let follow = app.engine.follow_turn(caller, id, turn, after).await?;
    Ok(stream::response(Format::Sse, Followed::new(app, caller, follow, slot)))
}

/// The stored pieces of a turn, its end included.
async fn page(
    app: &App,
    caller: Caller,
    record: &TurnRecord,
    after: u64,
    limit: u64,
) -> Result<Response, Refused> {
    let (id, turn) = (record.session, record.id);
    let mut events = Vec::new();
    let mut ended = false;
    if record.end.is_some() {
        let mut follow = app.engine.follow_turn(caller, id, turn, after).await?;
        let mut bytes = 0;
        while (events.len() as u64) < limit && bytes < PAGE_BYTES {
            let Some(piece) = follow.next().await? else { break };
            ended = &*piece.name == wire::TurnEnded::NAME;
            bytes += piece.data.len();
            events.push(view::turn_event(&piece));
        }
    } else {
        let pieces = app.engine.turn_pieces(caller, id, turn, after, limit as u32).await?;
        events.extend(pieces.iter().map(view::turn_event));
    }
    // While it lasts there may be more at any time.
    let last = events.last().map_or(after, |event| event.id);
    answer::ok(&TurnEventList { events, next: (!ended).then_some(last) })
}

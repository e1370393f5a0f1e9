//! The harness log of a session, output that belongs to no turn: as a page, or as a stream. It has
//! the lines of the sandbox that the session has now.

use std::collections::VecDeque;
use std::time::Duration;

use axum::extract::State;
use axum::response::Response;
use bytes::Bytes;
use engine::{Caller, LogStream};
use http::HeaderMap;
use model::{ErrorCode, Generation, SessionId};
use tokio::time::{Instant, sleep};
use wire::{LogLine, LogList};

use crate::accepts;
use crate::events::{AFTER_MAX, RESUME, last_event_id};
use web::answer;
use web::app::App;
use web::front::{By, Needs};
use web::key_watch::KeyWatch;
use web::long_lived::LongLivedSlot;
use web::operation::{Content, Kind, Operation, Param, Route, Verb, json};
use web::path::Named;
use web::query::Query;
use web::refused::Refused;
use web::stream::{self, BodySource, Format, HEARTBEAT, SSE};

/// How often a stream looks for new lines.
const LOOK: Duration = Duration::from_millis(250);

pub(super) fn routes() -> Vec<Route> {
    let logs = Operation::new(
        "get_session_logs",
        "Read or stream the output of the harness that belongs to no turn",
    )
    .answers(
        200,
        "The stored lines of the sandbox that the session has now",
        [json("LogList"), Content(SSE, Some("LogLine"))],
    );
    let after = Param::new("after", Kind::Number(0, AFTER_MAX), "Only lines after this one");
    let logs = logs.query([after]).headers([RESUME]);
    vec![Route::new(
        Verb::Get,
        "/v1/sessions/{id}/logs",
        Needs::Read,
        self::logs,
        logs.refuses(&[ErrorCode::SessionUnknown, ErrorCode::SessionEnded]),
    )]
}

async fn logs(
    State(app): State<App>,
    By(caller): By,
    mut query: Query,
    Named(id): Named<SessionId>,
    headers: HeaderMap,
) -> Result<Response, Refused> {
    let after = query.number("after", 0..=AFTER_MAX)?;
    query.done()?;
    let after = last_event_id(&headers)?.or(after);
    if accepts(&headers, SSE) {
        let generation = app.engine.session(caller, id)?.generation;
        let slot = app.long_lived.begin(caller.key)?;
        let key = KeyWatch::new(caller.key);
        let ready = VecDeque::from([Format::retry()]);
        let said_at = Instant::now();
        let follow_stream =
            LogFollow { _slot: slot, app, caller, id, after, generation, key, ready, said_at };
        return Ok(stream::response(Format::Sse, follow_stream));
    }
    let logs = lines(&app, caller, id, after)?;
    let next = logs.last().map(|line| line.id).or(after);
    answer::ok(&LogList { logs, next })
}

fn lines(
    app: &App,
    caller: Caller,
    id: SessionId,
    after: Option<u64>,
) -> Result<Vec<LogLine>, Refused> {
    let lines = app.engine.session_logs(caller, id, after)?;
    let line = |line: engine::LogLine| LogLine {
        id: line.index,
        at: line.at.into(),
        stream: match line.stream {
            LogStream::Stdout => wire::LogStream::Stdout,
            LogStream::Stderr => wire::LogStream::Stderr,
            LogStream::System => wire::LogStream::System,
        },
        text: line.text,
    };
    Ok(lines.into_iter().map(line).collect())
}

/// A stream of lines.
struct LogFollow {
    _slot: LongLivedSlot,
    app: App,
    caller: Caller,
    id: SessionId,
    after: Option<u64>,
    /// Of the sandbox whose lines these are.
    generation: Generation,
    key: KeyWatch,
    ready: VecDeque<Bytes>,
    said_at: Instant,
}

impl LogFollow {
    /// Looks for new lines; none if the session has ended.
    fn poll_lines(&mut self) -> Option<()> {
        let generation = self.app.engine.session(self.caller, self.id).ok()?.generation;
        if std::mem::replace(&mut self.generation, generation) != generation {
            // Another sandbox counts its lines anew.
            self.after = None;
        }
        for line in lines(&self.app, self.caller, self.id, self.after).ok()? {
            self.after = Some(line.id);
            self.ready.push_back(Format::Sse.event(Some(line.id), LogLine::NAME, &line));
        }
        Some(())
    }
}

impl BodySource for LogFollow {
    async fn next(&mut self) -> Option<Bytes> {
        loop {
            if let Some(ready) = self.ready.pop_front() {
                self.said_at = Instant::now();
                return Some(ready);
            }
            if *self.app.stopping.borrow() || !self.key.works(&self.app) {
                return None;
            }
            self.poll_lines()?;
            if !self.ready.is_empty() {
                continue;
            }
            if self.said_at.elapsed() >= HEARTBEAT {
                self.ready.extend(Format::Sse.heartbeat());
                continue;
            }
            sleep(LOOK).await;
        }
    }
}

//! The output of a process: a page as JSON, all of it as bytes, or followed. Only following a
//! running process without `observe` is a use; the rest is read from disk and thaws nothing.

use axum::extract::State;
use axum::response::Response;
use bytes::Bytes;
use engine::{Caller, LogQuery, OutputSelection, ProcessRef, UseKind};
use http::header::CONTENT_TYPE;
use http::{HeaderMap, HeaderName, HeaderValue};
use model::{ProcessRecord, SandboxId};
use wire::ProcessLog;

use super::{BYTES, TEXT};
use crate::accepts;
use crate::events::{AFTER_MAX, last_event_id};
use crate::log_stream::{FollowedLog, RawLog};
use crate::log_text::LogText;
use web::answer;
use web::app::App;
use web::front::Admitted;
use web::path::NamedOf;
use web::query::Query;
use web::refused::Refused;
use web::stream::{self, BodySource, Format, NDJSON, SSE};
use web::use_target::UseTarget;

const PAGE_BYTES: u64 = 1 << 20;
pub(super) const PAGE_BYTES_MAX: u64 = 4 << 20;
/// How much is read from disk at once when all of it is wanted.
const READ_BYTES: u64 = 256 << 10;

/// How it is wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Form {
    Page,
    Raw(&'static str),
    Followed(Format),
}

fn form(headers: &HeaderMap) -> Form {
    if accepts(headers, SSE) {
        return Form::Followed(Format::Sse);
    }
    if accepts(headers, NDJSON) {
        return Form::Followed(Format::Lines);
    }
    if accepts(headers, BYTES) {
        return Form::Raw(BYTES);
    }
    if accepts(headers, "text/plain") { Form::Raw(TEXT) } else { Form::Page }
}

fn wanted(query: &mut Query) -> Result<OutputSelection, Refused> {
    match query.text("stream")?.as_deref() {
        None | Some("both") => Ok(OutputSelection::Both),
        Some("stdout") => Ok(OutputSelection::Stdout),
        Some("stderr") => Ok(OutputSelection::Stderr),
        Some(other) => {
            Err(Refused::bad("stream", format!("`stream`: {other:?} is not one of the streams")))
        }
    }
}

pub(super) async fn logs(
    State(app): State<App>,
    Admitted { caller, request_id }: Admitted,
    mut query: Query,
    NamedOf(id, of): NamedOf<SandboxId, ProcessRef>,
    headers: HeaderMap,
) -> Result<Response, Refused> {
    let wanted = wanted(&mut query)?;
    let offset = query.number("offset", 0..=AFTER_MAX)?;
    let max_bytes = query.number("max_bytes", 1..=PAGE_BYTES_MAX)?;
    let follow = query.flag("follow")?;
    let observe = query.flag("observe")?;
    query.done()?;
    let offset = last_event_id(&headers)?.or(offset);
    let record = app.engine.process(caller, id, &of).await?;
    if !observe {
        app.engine.note_process_read(caller, id);
    }
    let of = ProcessRef::Id(record.id);
    match form(&headers) {
        Form::Page => {
            let max_bytes = max_bytes.unwrap_or(PAGE_BYTES);
            let asked = LogQuery { wanted, offset, max_bytes };
            page(&app, caller, id, &of, asked).await
        }
        Form::Raw(kind) if follow => {
            let used = watching(&app, caller, id, &record, observe).await?;
            let follow =
                app.engine.follow_log(caller, id, &of, wanted, offset.unwrap_or(0)).await?;
            Ok(bytes_of(kind, RawLog::new(app, caller, follow, used)?))
        }
        Form::Raw(kind) => {
            let part =
                Part { app, caller, id, of, wanted, at: offset.unwrap_or(0), left: max_bytes };
            Ok(bytes_of(kind, part))
        }
        Form::Followed(format) => {
            let used = watching(&app, caller, id, &record, observe).await?;
            let follow =
                app.engine.follow_log(caller, id, &of, wanted, offset.unwrap_or(0)).await?;
            let text = LogText::new(wanted != OutputSelection::Both);
            let request_id = request_id.to_str().unwrap_or_default().to_owned();
            let followed = FollowedLog::new(
                app, caller, id, record.id, follow, text, format, request_id, used,
            )?;
            Ok(stream::response(format, followed))
        }
    }
}

/// A use while a client follows a running process. One that only observes it gets what is written
/// while the sandbox is awake, and keeps it neither awake nor thaws it.
async fn watching(
    app: &App,
    caller: Caller,
    id: SandboxId,
    record: &ProcessRecord,
    observe: bool,
) -> Result<Option<engine::Use>, Refused> {
    match record.end {
        Some(_) => Ok(None),
        None if observe => Ok(None),
        None => UseTarget::from(id).begin(app, caller, UseKind::Stream).await.map(Some),
    }
}

async fn page(
    app: &App,
    caller: Caller,
    id: SandboxId,
    of: &ProcessRef,
    asked: LogQuery,
) -> Result<Response, Refused> {
    let page = app.engine.process_log(caller, id, of, asked).await?;
    let mut text = LogText::new(asked.wanted != OutputSelection::Both);
    let mut pieces: Vec<_> = page.pieces.into_iter().flat_map(|piece| text.push(piece)).collect();
    let mut next_offset = page.next_offset;
    match text.held_from() {
        // The rest of a character comes with the next page, unless nothing else is in this one.
        Some(held) if !pieces.is_empty() && !page.over => next_offset = held,
        Some(_) | None => pieces.extend(text.finish()),
    }
    answer::ok(&ProcessLog {
        pieces,
        next_offset,
        first_offset: page.first,
        more: page.more,
        over: page.over,
    })
}

fn bytes_of(kind: &'static str, pieces: impl BodySource) -> Response {
    let mut response = Response::new(stream::body(pieces));
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    // A browser must never render output of a sandbox as a page.
    let no_sniffing = HeaderName::from_static("x-content-type-options");
    headers.insert(no_sniffing, HeaderValue::from_static("nosniff"));
    response
}

/// The whole stored log, read as fast as the client takes it.
struct Part {
    app: App,
    caller: Caller,
    id: SandboxId,
    of: ProcessRef,
    wanted: OutputSelection,
    at: u64,
    left: Option<u64>,
}

impl BodySource for Part {
    async fn next(&mut self) -> Option<Bytes> {
        loop {
            let max_bytes = self.left.unwrap_or(READ_BYTES).min(READ_BYTES);
            if max_bytes == 0 {
                return None;
            }
            let asked = LogQuery { wanted: self.wanted, offset: Some(self.at), max_bytes };
            let page = self.app.engine.process_log(self.caller, self.id, &self.of, asked).await;
            // A cut-off body is noticed by the client: a complete log has a regular end.
            let page = page.ok()?;
            let went_on = page.next_offset > self.at;
            self.at = page.next_offset;
            let bytes: Vec<u8> =
                page.pieces.iter().flat_map(|piece| piece.bytes.iter().copied()).collect();
            if let Some(left) = &mut self.left {
                *left = left.saturating_sub(bytes.len() as u64);
            }
            if !bytes.is_empty() {
                return Some(bytes.into());
            }
            if !page.more || !went_on {
                return None;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use http::header::ACCEPT;

    use super::*;

    #[test]
    fn log_format_follows_the_accept_header() {
        let mut headers = HeaderMap::new();
        assert_eq!(form(&headers), Form::Page);
        for (accept, expected) in [
            ("*/*", Form::Page),
            ("application/json", Form::Page),
            ("text/event-stream", Form::Followed(Format::Sse)),
            ("application/x-ndjson", Form::Followed(Format::Lines)),
            ("application/octet-stream", Form::Raw(BYTES)),
            ("text/plain", Form::Raw(TEXT)),
        ] {
            headers.insert(ACCEPT, accept.parse().unwrap());
            assert_eq!(form(&headers), expected, "{accept}");
        }
    }
}

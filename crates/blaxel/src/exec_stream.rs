//! The streamed output of a process from its start: one JSON text per line, the last one the
//! process itself. The process outlives the stream, and a slow client loses no output: the stream
//! reads the log.

use std::collections::VecDeque;
use std::time::Duration;

use axum::response::Response;
use bytes::Bytes;
use engine::{LogFollow, ProcessRef, Use};
use http::header::{CONNECTION, CONTENT_TYPE};
use http::{HeaderName, HeaderValue};
use model::ProcessRecord;
use serde::Serialize;
use tokio::time::{Instant, sleep, sleep_until};

use super::errors::BlaxelError;
use super::lossy_text::LossyText;
use super::process_view::{INLINE_BYTES, Where, shown, written};
use super::processes::{BOTH, Patience, stopping};
use super::target::Target;
use web::key_watch::KeyWatch;
use web::long_lived::LongLivedSlot;
use web::stream::{BodySource, NDJSON, body};

/// How often a silent stream sends a heartbeat.
const KEEPALIVE: Duration = Duration::from_secs(5);

#[derive(Serialize)]
struct Event<'a> {
    r#type: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    data: Option<&'a str>,
}

fn line(kind: &'static str, data: Option<&str>) -> Bytes {
    let mut text = Vec::with_capacity(data.map_or(0, str::len) + 64);
    // Texts always can be written.
    let _ = serde_json::to_writer(&mut text, &Event { r#type: kind, data });
    text.push(b'\n');
    text.into()
}

/// The stream of a process.
pub(super) struct ExecStream {
    lines: VecDeque<Bytes>,
    watched: Option<Watched>,
}

struct Watched {
    target: Target,
    record: ProcessRecord,
    follow: LogFollow,
    stdout: LossyText,
    stderr: LossyText,
    patience: Patience,
    until: Instant,
    key: KeyWatch,
    /// Last: the stream is a use of the sandbox, and a place.
    _held: (Use, LongLivedSlot),
}

enum Next {
    Line(Bytes),
    /// Nothing to send yet.
    Nothing,
    Over(Result<ProcessRecord, BlaxelError>),
}

impl ExecStream {
    pub(super) async fn response(
        target: &Target,
        held: (Use, LongLivedSlot),
        started: Result<ProcessRecord, BlaxelError>,
        patience: Patience,
    ) -> Response {
        let watched = match started {
            Ok(record) => Watched::begin(target, held, record, patience).await,
            Err(error) => Err(error),
        };
        let stream = match watched {
            Ok(watched) => Self { lines: VecDeque::new(), watched: Some(watched) },
            // An error is an event here, not a status.
            Err(error) => {
                Self { lines: VecDeque::from([line("error", Some(&error.text))]), watched: None }
            }
        };
        let mut response = Response::new(body(stream));
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static(NDJSON));
        headers.insert(CONNECTION, HeaderValue::from_static("keep-alive"));
        let buffering = HeaderName::from_static("x-accel-buffering");
        headers.insert(buffering, HeaderValue::from_static("no"));
        response
    }

    async fn end(&mut self, ended: Result<ProcessRecord, BlaxelError>) {
        let Some(mut watched) = self.watched.take() else { return };
        for (kind, rest) in
            [("stdout", watched.stdout.finish()), ("stderr", watched.stderr.finish())]
        {
            if !rest.is_empty() {
                self.lines.push_back(line(kind, Some(&rest)));
            }
        }
        let last_line = async {
            let record = ended?;
            let target = &watched.target;
            let written = written(&target.app, target.caller, &record, INLINE_BYTES).await?;
            let shown = shown(&record, written, Where::Alone);
            serde_json::to_string(&shown).map_err(|error| BlaxelError::new(500, error.to_string()))
        };
        self.lines.push_back(match last_line.await {
            Ok(text) => line("result", Some(&text)),
            Err(error) => line("error", Some(&error.text)),
        });
    }
}

impl Watched {
    async fn begin(
        target: &Target,
        held: (Use, LongLivedSlot),
        record: ProcessRecord,
        patience: Patience,
    ) -> Result<Self, BlaxelError> {
        let of = ProcessRef::Id(record.id);
        let engine = &target.app.engine;
        let follow = engine.follow_log(target.caller, record.sandbox, &of, BOTH, 0).await?;
        Ok(Self {
            target: target.clone(),
            record,
            follow,
            stdout: LossyText::default(),
            stderr: LossyText::default(),
            patience,
            until: Instant::now() + patience.wait,
            key: KeyWatch::new(target.key),
            _held: held,
        })
    }

    async fn next(&mut self) -> Next {
        if !self.key.works(&self.target.app) {
            return Next::Over(Err(BlaxelError::new(401, "the key is no longer valid")));
        }
        let piece = tokio::select! {
            biased;
            () = sleep_until(self.until) => return Next::Over(Err(self.patience.timed_out())),
            piece = self.follow.next() => piece,
            () = self.target.server_stops() => return Next::Over(Err(stopping())),
            () = sleep(KEEPALIVE) => return Next::Line(line("keepalive", None)),
        };
        match piece {
            Ok(Some(piece)) => {
                let (kind, side) = if piece.stderr {
                    ("stderr", &mut self.stderr)
                } else {
                    ("stdout", &mut self.stdout)
                };
                let text = side.push(&piece.bytes);
                if text.is_empty() { Next::Nothing } else { Next::Line(line(kind, Some(&text))) }
            }
            Ok(None) => {
                let of = ProcessRef::Id(self.record.id);
                let engine = &self.target.app.engine;
                let record =
                    engine.wait_process(self.target.caller, self.record.sandbox, &of).await;
                Next::Over(record.map_err(BlaxelError::from))
            }
            Err(refusal) => Next::Over(Err(refusal.into())),
        }
    }
}

impl BodySource for ExecStream {
    async fn next(&mut self) -> Option<Bytes> {
        loop {
            if let Some(line) = self.lines.pop_front() {
                return Some(line);
            }
            match self.watched.as_mut()?.next().await {
                Next::Line(line) => return Some(line),
                Next::Nothing => {}
                Next::Over(ended) => self.end(ended).await,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exec_stream_lines_have_the_format_of_blaxel() {
        assert_eq!(line("stdout", Some("a\nb")), "{\"type\":\"stdout\",\"data\":\"a\\nb\"}\n");
        assert_eq!(line("keepalive", None), "{\"type\":\"keepalive\"}\n");
    }
}

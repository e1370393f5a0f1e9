//! Streamed bodies: each piece is made only after the client took the one before it, so a slow
//! client costs no memory, and a client that disconnects ends its stream.

use std::borrow::Cow;
use std::convert::Infallible;
use std::io::Write as _;

use axum::body::Body;
use axum::response::Response;
use bytes::Bytes;
use futures_util::stream;
use http::header::{CACHE_CONTROL, CONTENT_TYPE};
use http::{HeaderName, HeaderValue};
use serde::Serialize;

/// How often a silent stream sends a heartbeat.
pub const HEARTBEAT: std::time::Duration = std::time::Duration::from_secs(15);

/// The media type of server-sent events.
pub const SSE: &str = "text/event-stream";
/// The media type of JSON in lines.
pub const NDJSON: &str = "application/x-ndjson";

/// The source of the pieces of a streamed body.
pub trait BodySource: Send + 'static {
    /// The next one; none at the end.
    fn next(&mut self) -> impl Future<Output = Option<Bytes>> + Send;
}

/// A body of these pieces.
pub fn body(pieces: impl BodySource) -> Body {
    Body::from_stream(stream::unfold(pieces, |mut pieces| async move {
        let piece = pieces.next().await?;
        Some((Ok::<_, Infallible>(piece), pieces))
    }))
}

/// A stream of events or lines.
pub fn response(format: Format, pieces: impl BodySource) -> Response {
    let mut response = Response::new(body(pieces));
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(format.media_type()));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    // Proxies that collect answers would keep the events from their reader.
    let buffering = HeaderName::from_static("x-accel-buffering");
    headers.insert(buffering, HeaderValue::from_static("no"));
    response
}

/// How events are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// As server-sent events.
    Sse,
    /// As one JSON text in each line.
    Lines,
}

impl Format {
    const fn media_type(self) -> &'static str {
        match self {
            Self::Sse => SSE,
            Self::Lines => NDJSON,
        }
    }

    /// One event.
    pub fn event(self, id: Option<u64>, name: &str, value: &impl Serialize) -> Bytes {
        let mut text = Vec::with_capacity(256);
        self.add_event(&mut text, id, name, value);
        text.into()
    }

    /// One event more in a piece that has several.
    pub fn add_event(
        self,
        text: &mut Vec<u8>,
        id: Option<u64>,
        name: &str,
        value: &impl Serialize,
    ) {
        // Writing to memory does not fail.
        if self == Self::Sse {
            if let Some(id) = id {
                let _ = writeln!(text, "id: {id}");
            }
            let _ = write!(text, "event: {name}\ndata: ");
        }
        // Our own words always can be written, and have no line breaks in them.
        let _ = serde_json::to_writer(&mut *text, value);
        text.extend_from_slice(match self {
            Self::Sse => b"\n\n",
            Self::Lines => b"\n",
        });
    }

    /// One event whose value is JSON already. Line breaks outside of texts mean nothing in JSON,
    /// and inside they are escaped.
    pub fn event_of_json(id: u64, name: &str, json: &str) -> Bytes {
        let broken = json.contains(['\n', '\r']);
        let json =
            if broken { json.replace(['\n', '\r'], " ").into() } else { Cow::Borrowed(json) };
        format!("id: {id}\nevent: {name}\ndata: {json}\n\n").into()
    }

    /// Says how soon to come back when the connection breaks.
    pub const fn retry() -> Bytes {
        Bytes::from_static(b"retry: 1000\n\n")
    }

    /// A sign of life, where there is a form for it.
    pub const fn heartbeat(self) -> Option<Bytes> {
        match self {
            Self::Sse => Some(Bytes::from_static(b": still here\n\n")),
            Self::Lines => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stream_event_is_one_line_or_one_block() {
        let value = serde_json::json!({"data": "a\nb"});
        let sse = Format::Sse.event(Some(7), "stdout", &value);
        assert_eq!(sse, "id: 7\nevent: stdout\ndata: {\"data\":\"a\\nb\"}\n\n");
        let line = Format::Lines.event(Some(7), "stdout", &value);
        assert_eq!(line, "{\"data\":\"a\\nb\"}\n");
        let given = Format::event_of_json(8, "message", "{\n\"a\":\"b\\nc\"\r\n}");
        assert_eq!(given, "id: 8\nevent: message\ndata: { \"a\":\"b\\nc\"  }\n\n");
    }
}

//! Reads request bodies, with limits on size, time and the memory of all bodies together.
//! JSON that cannot be read is refused with the line, the column and the field.

use std::time::Duration;

use axum::body::Body;
use axum::extract::{FromRequest, Request};
use bytes::{Bytes, BytesMut};
use http::HeaderMap;
use http::header::{CONTENT_LENGTH, CONTENT_TYPE};
use http_body_util::BodyExt as _;
use model::ErrorCode;
use serde::de::DeserializeOwned;
use tokio::time::{Instant, timeout, timeout_at};

use crate::app::App;
use crate::body_memory::{BodyMemory, Share};
use crate::refused::Refused;
use crate::settings::Settings;

/// A JSON body, with its bytes.
pub struct Json<T> {
    /// The parsed value.
    pub value: T,
    /// The body as it came.
    pub bytes: Bytes,
    /// Its share of the memory for bodies.
    pub share: Share,
}

/// A JSON body that may be left out.
pub struct OptionalJson<T>(pub T);

impl<T: DeserializeOwned> FromRequest<App> for Json<T> {
    type Rejection = Refused;

    async fn from_request(request: Request, app: &App) -> Result<Self, Refused> {
        json_up_to(request, app, app.settings.json_bytes_max).await
    }
}

/// A JSON body of another size than most.
pub async fn json_up_to<T: DeserializeOwned>(
    request: Request,
    app: &App,
    bytes_max: u64,
) -> Result<Json<T>, Refused> {
    let (bytes, share) = json_bytes(request, app, bytes_max).await?;
    Ok(Json { value: parse(&bytes)?, bytes, share })
}

impl<T: DeserializeOwned + Default> FromRequest<App> for OptionalJson<T> {
    type Rejection = Refused;

    async fn from_request(request: Request, app: &App) -> Result<Self, Refused> {
        let (bytes, _share) = json_bytes(request, app, app.settings.json_bytes_max).await?;
        if bytes.is_empty() { Ok(Self(T::default())) } else { parse(&bytes).map(Self) }
    }
}

/// The bytes of a JSON body, and what they take of the memory for bodies.
pub async fn json_bytes(
    request: Request,
    app: &App,
    bytes_max: u64,
) -> Result<(Bytes, Share), Refused> {
    let (parts, body) = request.into_parts();
    refuse_other_types(&parts.headers)?;
    let within = Within::new(&app.settings, &app.body_memory, bytes_max);
    read(&parts.headers, body, within).await
}

/// A body of whatever kind, read whole, and what it takes of the memory for bodies.
pub async fn whole_body(
    request: Request,
    app: &App,
    bytes_max: u64,
) -> Result<(Bytes, Share), Refused> {
    let (parts, body) = request.into_parts();
    let within = Within::new(&app.settings, &app.body_memory, bytes_max);
    read(&parts.headers, body, within).await
}

/// The limits of a body that is read whole.
#[derive(Clone, Copy)]
struct Within<'a> {
    bytes_max: u64,
    stall: Duration,
    until: Instant,
    memory: &'a BodyMemory,
}

impl<'a> Within<'a> {
    fn new(settings: &Settings, memory: &'a BodyMemory, bytes_max: u64) -> Self {
        let until = Instant::now() + settings.body_total;
        Self { bytes_max, stall: settings.body_stall, until, memory }
    }
}

/// A body without a type is read as JSON; another type is refused, since it is likely an error.
fn refuse_other_types(headers: &HeaderMap) -> Result<(), Refused> {
    let Some(given) = headers.get(CONTENT_TYPE) else { return Ok(()) };
    let kind = media_type(given.as_bytes());
    if kind.eq_ignore_ascii_case(b"application/json") || kind.ends_with(b"+json") {
        return Ok(());
    }
    let kind = String::from_utf8_lossy(kind);
    let cause = format!("the body has the media type {kind} instead of application/json");
    let mut refused = Refused::new(ErrorCode::UnsupportedMediaType, cause);
    refused.field = Some("Content-Type".into());
    Err(refused)
}

/// A media type without its parameters.
pub fn media_type(value: &[u8]) -> &[u8] {
    value.split(|byte| *byte == b';').next().unwrap_or_default().trim_ascii()
}

/// A whole body, and what it takes of the memory for bodies.
async fn read(
    headers: &HeaderMap,
    body: Body,
    within: Within<'_>,
) -> Result<(Bytes, Share), Refused> {
    let announced = headers.get(CONTENT_LENGTH).and_then(|value| value.to_str().ok()?.parse().ok());
    if announced.is_some_and(|length: u64| length > within.bytes_max) {
        return Err(too_large(within.bytes_max));
    }
    let whole = timeout_at(within.until, collect(body, announced, within)).await;
    whole.unwrap_or_else(|_| {
        let cause = "the body did not arrive completely in time";
        Err(Refused::new(ErrorCode::RequestTimeout, cause))
    })
}

fn too_large(bytes_max: u64) -> Refused {
    Refused::new(ErrorCode::TooLarge, format!("the body has more than {bytes_max} bytes"))
}

async fn collect(
    mut body: Body,
    announced: Option<u64>,
    within: Within<'_>,
) -> Result<(Bytes, Share), Refused> {
    let mut first = Bytes::new();
    let mut all = BytesMut::new();
    let mut share = Share::default();
    let mut pace = Pace::new();
    loop {
        let length = (all.len() + first.len()) as u64;
        let next = next_chunk(&mut body, within.stall);
        let Some(chunk) = pace.within(&share, length, next).await? else { break };
        let length = length + chunk.len() as u64;
        if length > within.bytes_max {
            return Err(too_large(within.bytes_max));
        }
        share.grow_to(within.memory, length)?;
        // Most bodies come in one piece, which is then not copied.
        if first.is_empty() && all.is_empty() {
            first = chunk;
            continue;
        }
        if !first.is_empty() {
            // Reserved but unwritten memory costs nothing; growing step by step would.
            all.reserve(announced.unwrap_or(length) as usize);
            all.extend_from_slice(&std::mem::take(&mut first));
        }
        all.extend_from_slice(&chunk);
    }
    Ok((if all.is_empty() { first } else { all.freeze() }, share))
}

/// Bytes of a body that holds memory must arrive in this time, as many as below.
const PACE_EVERY: Duration = Duration::from_secs(10);
const PACE_BYTES: u64 = 64 << 10;

/// The least speed of a body that holds memory which other requests need.
struct Pace {
    since: Instant,
    length: u64,
}

impl Pace {
    fn new() -> Self {
        Self { since: Instant::now(), length: 0 }
    }

    /// Waits for the next bytes of a body that has this length so far.
    async fn within<T>(
        &mut self,
        share: &Share,
        length: u64,
        next: impl Future<Output = Result<T, Refused>>,
    ) -> Result<T, Refused> {
        if share.is_empty() || length >= self.length + PACE_BYTES {
            (self.since, self.length) = (Instant::now(), length);
        }
        if share.is_empty() {
            return next.await;
        }
        timeout_at(self.since + PACE_EVERY, next).await.unwrap_or_else(|_| {
            let cause = format!(
                "fewer than {PACE_BYTES} bytes of a large body arrived within {} s",
                PACE_EVERY.as_secs()
            );
            Err(Refused::new(ErrorCode::RequestTimeout, cause))
        })
    }
}

/// The next bytes of a body, if it does not pause for too long.
pub async fn next_chunk(body: &mut Body, stall: Duration) -> Result<Option<Bytes>, Refused> {
    loop {
        let Ok(frame) = timeout(stall, body.frame()).await else {
            let cause = format!("no bytes of the body arrived for {} s", stall.as_secs());
            return Err(Refused::new(ErrorCode::RequestTimeout, cause));
        };
        match frame {
            None => return Ok(None),
            Some(Err(error)) => {
                let cause = format!("the body was cut off: {error}");
                return Err(Refused::bad("body", cause));
            }
            Some(Ok(frame)) => match frame.into_data() {
                Ok(data) if data.is_empty() => {}
                Ok(data) => return Ok(Some(data)),
                // Trailers, which nothing here uses.
                Err(_) => {}
            },
        }
    }
}

fn parse<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, Refused> {
    // serde would read a list as fields in their order, which no client means.
    if bytes.trim_ascii_start().starts_with(b"[") {
        return Err(Refused::bad("body", "a JSON object is expected, at line 1"));
    }
    serde_json::from_slice(bytes).map_err(|error| explain::<T>(bytes, &error))
}

/// Reads it again, slower, to find the field.
fn explain<T: DeserializeOwned>(bytes: &[u8], error: &serde_json::Error) -> Refused {
    if bytes.is_empty() {
        return Refused::bad("body", "the body is empty; a JSON object is expected");
    }
    let slow = &mut serde_json::Deserializer::from_slice(bytes);
    let path = serde_path_to_error::deserialize::<_, T>(slow)
        .err()
        .map(|error| error.path().to_string())
        .filter(|path| path != "." && path != "?");
    // A field that is missing or unknown is named by the message alone.
    let text = error.to_string();
    let quoted = || {
        let about = text.starts_with("missing field") || text.starts_with("unknown field");
        let name = text.split('`').nth(1).filter(|_| about)?;
        Some(name.to_owned())
    };
    let field = match (path, quoted()) {
        (Some(path), Some(name)) if !path.ends_with(&name) => format!("{path}.{name}"),
        (Some(path), _) => path,
        (None, Some(name)) => name,
        (None, None) => "body".to_owned(),
    };
    Refused::bad(field, text)
}

#[cfg(test)]
mod tests {
    use futures_util::StreamExt as _;
    use wire::{CheckoutRequest, ExecRequest, Template};

    use super::*;

    #[test]
    fn json_errors_name_the_field_and_the_position() {
        let deep = "[".repeat(200);
        for (text, field, part) in [
            ("", "body", "empty"),
            ("{", "body", "line 1 column 1"),
            ("nonsense", "body", "line 1 column 2"),
            ("[]", "body", "line 1"),
            ("{\"template\":\"a\",\n\"ttl_s\":\"x\"}", "ttl_s", "line 2 column"),
            ("{\"template\":\"a\",\"ttl\":1}", "ttl", "unknown field"),
            ("{\"env\":{}}", "template", "missing field"),
            ("{\"template\":\"a\",\"env\":{\"A\":1}}", "env.A", "expected a string"),
            ("{\"template\":\"a\"} x", "body", "trailing"),
            (&format!("{{\"template\":\"a\",\"env\":{deep}"), "env", "line 1"),
        ] {
            let refused = parse::<CheckoutRequest>(text.as_bytes()).unwrap_err();
            assert_eq!(refused.refusal.code, ErrorCode::BadRequest, "{text}");
            assert_eq!(refused.field.as_deref(), Some(field), "{text}: {refused:?}");
            assert!(refused.refusal.cause.contains(part), "{text}: {refused:?}");
        }
        let nested = r#"{"name":"t","pool":{"pol_size":1}}"#;
        let refused = parse::<Template>(nested.as_bytes()).err().unwrap();
        assert_eq!(refused.field.as_deref(), Some("pool.pol_size"));
        let bytes = b"{\"command\":\"\xff\"}";
        assert!(parse::<ExecRequest>(bytes).is_err());
    }

    fn within(memory: &BodyMemory, bytes_max: u64) -> Within<'_> {
        Within::new(&Settings::default(), memory, bytes_max)
    }

    fn pieces(pieces: &'static [&'static str]) -> Body {
        let pieces = pieces.iter().map(|piece| Ok::<_, std::io::Error>(*piece));
        Body::from_stream(futures_util::stream::iter(pieces))
    }

    #[tokio::test]
    async fn body_is_read_up_to_its_limit() {
        let none = HeaderMap::new();
        let memory = BodyMemory::new(0);
        let read_4 =
            async |body| read(&none, body, within(&memory, 4)).await.map(|(bytes, _)| bytes);
        assert_eq!(read_4(Body::from("abcd")).await.unwrap(), "abcd");
        assert_eq!(read_4(Body::empty()).await.unwrap(), "");
        let refused = read_4(Body::from("abcde")).await.unwrap_err();
        assert_eq!(refused.refusal.code, ErrorCode::TooLarge);
        assert_eq!(read_4(pieces(&["a", "", "bc", "d"])).await.unwrap(), "abcd");
        assert!(read_4(pieces(&["ab", "cd", "e"])).await.is_err());
        let mut headers = HeaderMap::new();
        headers.insert(CONTENT_LENGTH, "5".parse().unwrap());
        assert!(read(&headers, Body::empty(), within(&memory, 4)).await.is_err());
    }

    #[tokio::test]
    async fn bodies_share_a_memory_limit() {
        let none = HeaderMap::new();
        let memory = BodyMemory::new(100 << 10);
        let read_80 = || read(&none, Body::from(vec![b' '; 80 << 10]), within(&memory, 1 << 20));
        let held = read_80().await.unwrap_or_else(|refused| panic!("{refused:?}"));
        let refused = read_80().await.err().unwrap();
        assert_eq!(refused.refusal.code, ErrorCode::Overloaded);
        let small = read(&none, Body::from("{}"), within(&memory, 1 << 20)).await;
        assert!(small.is_ok(), "small ones always have room");
        drop(held);
        assert!(read_80().await.is_ok());
    }

    #[tokio::test(start_paused = true)]
    async fn body_that_pauses_or_arrives_too_slowly_is_refused() {
        let memory = BodyMemory::new(1 << 20);
        let none = HeaderMap::new();
        let began = Instant::now();
        let body =
            Body::from_stream(futures_util::stream::pending::<Result<Bytes, std::io::Error>>());
        let refused = read(&none, body, within(&memory, 4)).await.err().unwrap();
        assert_eq!(refused.refusal.code, ErrorCode::RequestTimeout);
        assert_eq!(began.elapsed(), Settings::default().body_stall);
        let dribble = futures_util::stream::unfold((), |()| async {
            tokio::time::sleep(Duration::from_secs(20)).await;
            Some((Ok::<_, std::io::Error>("x"), ()))
        });
        let began = Instant::now();
        let dribbling = read(&none, Body::from_stream(dribble), within(&memory, 1 << 20)).await;
        assert_eq!(dribbling.err().unwrap().refusal.code, ErrorCode::RequestTimeout);
        assert_eq!(began.elapsed(), Settings::default().body_total);
    }

    #[tokio::test(start_paused = true)]
    async fn body_that_holds_memory_must_go_on() {
        let memory = BodyMemory::new(1 << 20);
        let none = HeaderMap::new();
        let began = Instant::now();
        let piece = |bytes| Ok::<_, std::io::Error>(Bytes::from(vec![b' '; bytes]));
        let slowly = |bytes, pause| {
            let pieces = futures_util::stream::unfold(0, move |n| async move {
                if n > 0 {
                    tokio::time::sleep(Duration::from_secs(pause)).await;
                }
                (n < 4).then(|| (piece(if n == 0 { 200 << 10 } else { bytes }), n + 1))
            });
            read(&none, Body::from_stream(pieces), within(&memory, 1 << 20))
        };
        let refused = slowly(1, 6).await.err().unwrap();
        assert_eq!(refused.refusal.code, ErrorCode::RequestTimeout);
        assert_eq!(began.elapsed(), PACE_EVERY);
        assert!(slowly(64 << 10, 9).await.is_ok(), "one that goes on may take its time");
        let small = futures_util::stream::iter([piece(10)]).chain(futures_util::stream::pending());
        let began = Instant::now();
        let waited = read(&none, Body::from_stream(small), within(&memory, 1 << 20)).await;
        assert!(waited.is_err());
        assert_eq!(began.elapsed(), Settings::default().body_stall, "a small one holds nothing");
    }

    #[test]
    fn body_with_another_media_type_is_refused() {
        for (kind, fits) in [
            (None, true),
            (Some("application/json"), true),
            (Some("application/json; charset=utf-8"), true),
            (Some("Application/JSON"), true),
            (Some("application/merge-patch+json"), true),
            (Some("text/plain"), false),
            (Some("application/x-www-form-urlencoded"), false),
            (Some(""), false),
        ] {
            let mut headers = HeaderMap::new();
            if let Some(kind) = kind {
                headers.insert(CONTENT_TYPE, kind.parse().unwrap());
            }
            assert_eq!(refuse_other_types(&headers).is_ok(), fits, "{kind:?}");
        }
    }
}

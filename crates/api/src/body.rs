//! Bodies of requests: read within a size and without long pauses. JSON that cannot be read is
//! refused with the line, the column and the field.

use std::time::Duration;

use axum::body::Body;
use axum::extract::{FromRequest, Request};
use bytes::{Bytes, BytesMut};
use http::HeaderMap;
use http::header::{CONTENT_LENGTH, CONTENT_TYPE};
use http_body_util::BodyExt as _;
use model::ErrorCode;
use serde::de::DeserializeOwned;
use tokio::time::timeout;

use crate::app::App;
use crate::refused::Refused;

/// A JSON body, with its bytes.
pub(crate) struct Json<T> {
    pub(crate) value: T,
    pub(crate) bytes: Bytes,
}

/// A JSON body that may carry the input of a program.
pub(crate) struct LargeJson<T>(pub(crate) T);

/// A JSON body that may be left out.
pub(crate) struct OptionalJson<T>(pub(crate) T);

impl<T: DeserializeOwned> FromRequest<App> for Json<T> {
    type Rejection = Refused;

    async fn from_request(request: Request, app: &App) -> Result<Self, Refused> {
        let bytes = json_bytes(request, app, app.settings.json_bytes_max).await?;
        Ok(Self { value: parse(&bytes)?, bytes })
    }
}

impl<T: DeserializeOwned> FromRequest<App> for LargeJson<T> {
    type Rejection = Refused;

    async fn from_request(request: Request, app: &App) -> Result<Self, Refused> {
        let bytes = json_bytes(request, app, app.settings.exec_bytes_max).await?;
        parse(&bytes).map(Self)
    }
}

impl<T: DeserializeOwned + Default> FromRequest<App> for OptionalJson<T> {
    type Rejection = Refused;

    async fn from_request(request: Request, app: &App) -> Result<Self, Refused> {
        let bytes = json_bytes(request, app, app.settings.json_bytes_max).await?;
        if bytes.is_empty() { Ok(Self(T::default())) } else { parse(&bytes).map(Self) }
    }
}

async fn json_bytes(request: Request, app: &App, bytes_max: u64) -> Result<Bytes, Refused> {
    let (parts, body) = request.into_parts();
    refuse_other_types(&parts.headers)?;
    read(&parts.headers, body, bytes_max, app.settings.body_stall).await
}

/// Without a type it is taken for JSON; a wrong one is more likely a mistake than meant.
fn refuse_other_types(headers: &HeaderMap) -> Result<(), Refused> {
    let Some(given) = headers.get(CONTENT_TYPE) else { return Ok(()) };
    let kind = media_type(given.as_bytes());
    if kind.eq_ignore_ascii_case(b"application/json") || kind.ends_with(b"+json") {
        return Ok(());
    }
    let kind = String::from_utf8_lossy(kind);
    let cause = format!("the body is said to be {kind}, not application/json");
    let mut refused = Refused::new(ErrorCode::UnsupportedMediaType, cause);
    refused.field = Some("Content-Type".into());
    Err(refused)
}

/// A media type without its parameters.
pub(crate) fn media_type(value: &[u8]) -> &[u8] {
    value.split(|byte| *byte == b';').next().unwrap_or_default().trim_ascii()
}

/// A whole body.
async fn read(
    headers: &HeaderMap,
    mut body: Body,
    bytes_max: u64,
    stall: Duration,
) -> Result<Bytes, Refused> {
    let too_large =
        || Refused::new(ErrorCode::TooLarge, format!("the body has more than {bytes_max} bytes"));
    let announced = headers.get(CONTENT_LENGTH).and_then(|value| value.to_str().ok()?.parse().ok());
    if announced.is_some_and(|length: u64| length > bytes_max) {
        return Err(too_large());
    }
    let mut first = Bytes::new();
    let mut all = BytesMut::new();
    while let Some(chunk) = next_chunk(&mut body, stall).await? {
        if (all.len() + first.len() + chunk.len()) as u64 > bytes_max {
            return Err(too_large());
        }
        // Most bodies come in one piece, which is then not copied.
        if first.is_empty() && all.is_empty() {
            first = chunk;
            continue;
        }
        if !first.is_empty() {
            all.extend_from_slice(&std::mem::take(&mut first));
        }
        all.extend_from_slice(&chunk);
    }
    Ok(if all.is_empty() { first } else { all.freeze() })
}

/// The next bytes of a body, if it does not pause for too long.
pub(crate) async fn next_chunk(body: &mut Body, stall: Duration) -> Result<Option<Bytes>, Refused> {
    loop {
        let Ok(frame) = timeout(stall, body.frame()).await else {
            let cause = format!("nothing of the body arrived for {} s", stall.as_secs());
            return Err(Refused::new(ErrorCode::RequestTimeout, cause));
        };
        match frame {
            None => return Ok(None),
            Some(Err(error)) => {
                let cause = format!("the body ended before its end: {error}");
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
    // Lists would be read as fields in their order, which nobody means.
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
    use wire::{CheckoutRequest, ExecRequest, Template};

    use super::*;

    #[test]
    fn json_that_cannot_be_read_names_the_field_and_the_place() {
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

    #[tokio::test]
    async fn a_body_is_read_up_to_its_limit() {
        let stall = Duration::from_secs(1);
        let none = HeaderMap::new();
        let read_4 = |body| read(&none, body, 4, stall);
        assert_eq!(read_4(Body::from("abcd")).await.unwrap(), "abcd");
        assert_eq!(read_4(Body::empty()).await.unwrap(), "");
        let refused = read_4(Body::from("abcde")).await.unwrap_err();
        assert_eq!(refused.refusal.code, ErrorCode::TooLarge);
        let pieces = |pieces: &'static [&'static str]| {
            let pieces = pieces.iter().map(|piece| Ok::<_, std::io::Error>(*piece));
            Body::from_stream(futures_util::stream::iter(pieces))
        };
        assert_eq!(read_4(pieces(&["a", "", "bc", "d"])).await.unwrap(), "abcd");
        assert!(read_4(pieces(&["ab", "cd", "e"])).await.is_err());
        let mut headers = HeaderMap::new();
        headers.insert(CONTENT_LENGTH, "5".parse().unwrap());
        assert!(read(&headers, Body::empty(), 4, stall).await.is_err());
    }

    #[tokio::test(start_paused = true)]
    async fn a_body_that_pauses_is_given_up() {
        let body =
            Body::from_stream(futures_util::stream::pending::<Result<Bytes, std::io::Error>>());
        let refused = read(&HeaderMap::new(), body, 4, Duration::from_secs(30)).await.unwrap_err();
        assert_eq!(refused.refusal.code, ErrorCode::RequestTimeout);
    }

    #[test]
    fn only_json_is_taken_for_json() {
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

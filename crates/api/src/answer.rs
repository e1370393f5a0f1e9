//! Answers: JSON, and how long the steps to them took.

use std::fmt::Write as _;
use std::time::Duration;

use axum::body::Body;
use axum::response::Response;
use bytes::Bytes;
use http::header::CONTENT_TYPE;
use http::{HeaderName, HeaderValue, StatusCode};
use model::ErrorCode;
use serde::Serialize;

use crate::refused::Refused;

pub(crate) const SERVER_TIMING: HeaderName = HeaderName::from_static("server-timing");

const JSON: HeaderValue = HeaderValue::from_static("application/json");

/// Enough for most answers.
const JSON_BYTES: usize = 512;

pub(crate) fn json(status: StatusCode, value: &impl Serialize) -> Result<Response, Refused> {
    Ok(bytes(status, Body::from(json_bytes(value)?)))
}

pub(crate) fn ok(value: &impl Serialize) -> Result<Response, Refused> {
    json(StatusCode::OK, value)
}

pub(crate) fn json_bytes(value: &impl Serialize) -> Result<Bytes, Refused> {
    let mut text = Vec::with_capacity(JSON_BYTES);
    let failed = |error: serde_json::Error| Refused::new(ErrorCode::Internal, error.to_string());
    serde_json::to_writer(&mut text, value).map_err(failed)?;
    Ok(text.into())
}

/// A body that is JSON already.
pub(crate) fn bytes(status: StatusCode, body: Body) -> Response {
    let mut response = Response::new(body);
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, JSON);
    response
}

/// A step and how long it took, for the `Server-Timing` header.
pub(crate) struct Step {
    pub(crate) name: &'static str,
    pub(crate) took: Duration,
    pub(crate) desc: Option<&'static str>,
}

pub(crate) fn timed(response: &mut Response, steps: &[Step]) {
    let mut text = String::with_capacity(48);
    for step in steps {
        let comma = if text.is_empty() { "" } else { ", " };
        let ms = step.took.as_secs_f64() * 1000.0;
        // Writing to a string cannot fail.
        let _ = write!(text, "{comma}{};dur={ms:.3}", step.name);
        if let Some(desc) = step.desc {
            let _ = write!(text, ";desc=\"{desc}\"");
        }
    }
    if let Ok(value) = HeaderValue::try_from(text) {
        response.headers_mut().insert(SERVER_TIMING, value);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_are_told_in_milliseconds() {
        let mut response = Response::new(Body::empty());
        let took = Duration::from_micros(62);
        let steps = [
            Step { name: "acquire", took, desc: Some("fast") },
            Step { name: "exec", took: Duration::from_millis(3), desc: None },
        ];
        timed(&mut response, &steps);
        let expected = "acquire;dur=0.062;desc=\"fast\", exec;dur=3.000";
        assert_eq!(response.headers()[SERVER_TIMING], expected);
    }
}

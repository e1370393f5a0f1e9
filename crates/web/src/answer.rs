//! Answers: JSON bodies and the `Server-Timing` header.

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

/// The header with the duration of each step of a request.
pub const SERVER_TIMING: HeaderName = HeaderName::from_static("server-timing");

const JSON: HeaderValue = HeaderValue::from_static("application/json");

/// Enough for most answers.
const JSON_BYTES: usize = 512;

/// An answer that is JSON.
pub fn json(status: StatusCode, value: &impl Serialize) -> Result<Response, Refused> {
    Ok(bytes(status, Body::from(json_bytes(value)?)))
}

/// A successful answer that is JSON.
pub fn ok(value: &impl Serialize) -> Result<Response, Refused> {
    json(StatusCode::OK, value)
}

/// A value as the bytes of its JSON.
pub fn json_bytes(value: &impl Serialize) -> Result<Bytes, Refused> {
    let mut text = Vec::with_capacity(JSON_BYTES);
    let failed = |error: serde_json::Error| Refused::new(ErrorCode::Internal, error.to_string());
    serde_json::to_writer(&mut text, value).map_err(failed)?;
    Ok(text.into())
}

/// A body that is JSON already.
pub fn bytes(status: StatusCode, body: Body) -> Response {
    let mut response = Response::new(body);
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, JSON);
    response
}

/// A step and how long it took, for the `Server-Timing` header.
pub struct Step {
    /// The name of the step.
    pub name: &'static str,
    /// How long it took.
    pub took: Duration,
    /// A description.
    pub desc: Option<&'static str>,
}

/// Adds the durations of the steps to the headers of an answer.
pub fn timed(response: &mut Response, steps: &[Step]) {
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
    fn server_timing_is_in_milliseconds() {
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

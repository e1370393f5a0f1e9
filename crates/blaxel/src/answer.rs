//! Answers in the form of Blaxel: JSON, the headers that every answer has, and moments as its
//! clients read them. They are really in GMT here.

use std::time::{Duration, UNIX_EPOCH};

use axum::body::Body;
use axum::response::Response;
use bytes::Bytes;
use http::header::{CACHE_CONTROL, CONTENT_TYPE, EXPIRES, PRAGMA, X_CONTENT_TYPE_OPTIONS};
use http::{HeaderMap, HeaderValue, StatusCode};
use model::Wall;
use serde::Serialize;
use serde_json::json;

use super::errors::BlaxelError;
use crate::app::App;
use web::body_memory::Share;

pub(super) const JSON: HeaderValue = HeaderValue::from_static("application/json; charset=utf-8");

/// Adds the headers of every answer. Which web pages may read it is a setting of the server, and
/// the same for all dialects.
pub(crate) fn add_default_headers(headers: &mut HeaderMap) {
    let always = [
        (CACHE_CONTROL, "no-cache, no-store, must-revalidate"),
        (PRAGMA, "no-cache"),
        (EXPIRES, "0"),
        (X_CONTENT_TYPE_OPTIONS, "nosniff"),
    ];
    for (name, value) in always {
        headers.entry(name).or_insert(HeaderValue::from_static(value));
    }
}

pub(super) fn ok(value: &impl Serialize) -> Result<Response, BlaxelError> {
    let text = serde_json::to_vec(value);
    let text = text.map_err(|error| BlaxelError::new(500, error.to_string()))?;
    let mut response = Response::new(Body::from(text));
    response.headers_mut().insert(CONTENT_TYPE, JSON);
    Ok(response)
}

/// An answer that may be large: what it takes of the memory for bodies it takes until it is sent.
pub(super) fn counted(
    app: &App,
    mut share: Share,
    value: &impl Serialize,
) -> Result<Response, BlaxelError> {
    let text = serde_json::to_vec(value);
    let text = text.map_err(|error| BlaxelError::new(500, error.to_string()))?;
    share.grow_to(&app.body_memory, text.len() as u64)?;
    let mut response =
        Response::new(Body::from(Bytes::from_owner(Counted { text, _share: share })));
    response.headers_mut().insert(CONTENT_TYPE, JSON);
    Ok(response)
}

/// Bytes, and the memory that is counted for them.
struct Counted {
    text: Vec<u8>,
    _share: Share,
}

impl AsRef<[u8]> for Counted {
    fn as_ref(&self) -> &[u8] {
        &self.text
    }
}

/// An answer with a path and a message only.
pub(super) fn done(path: &str, message: &str) -> Result<Response, BlaxelError> {
    ok(&json!({"path": path, "message": message}))
}

pub(super) fn empty(status: StatusCode) -> Response {
    let mut response = Response::new(Body::empty());
    *response.status_mut() = status;
    response
}

/// A moment such as `Mon, 02 Jan 2006 15:04:05 GMT`.
pub(super) fn http_date(at: Wall) -> String {
    // A stored time cannot be later than the last year of the format.
    let last_ms = 253_402_300_799_000;
    httpdate::fmt_http_date(UNIX_EPOCH + Duration::from_millis(at.0.min(last_ms)))
}

/// A moment with milliseconds.
pub(super) fn moment(at: Wall) -> String {
    wire::Time::from(at).to_string()
}

/// A moment in whole seconds.
pub(super) fn second(at: Wall) -> String {
    let mut text = moment(at);
    if let Some(dot) = text.find('.') {
        text.replace_range(dot.., "Z");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_the_formats_that_clients_read() {
        let at = Wall(1_136_214_245_678);
        assert_eq!(http_date(at), "Mon, 02 Jan 2006 15:04:05 GMT");
        assert_eq!(moment(at), "2006-01-02T15:04:05.678Z");
        assert_eq!(second(at), "2006-01-02T15:04:05Z");
        assert_eq!(http_date(Wall(u64::MAX)), "Fri, 31 Dec 9999 23:59:59 GMT");
    }

    #[tokio::test]
    async fn memory_of_a_large_answer_is_counted_until_it_is_sent() {
        let (app, _stop) = App::for_tests().await;
        let all = app.settings.body_memory_bytes;
        let is_free = || Share::default().grow_to(&app.body_memory, all).is_ok();
        let text = "\u{1}".repeat(1 << 20);
        let answer = counted(&app, Share::default(), &text).unwrap();
        assert!(!is_free());
        let left = all - (6 << 20) + (64 << 10);
        assert!(Share::default().grow_to(&app.body_memory, left).is_err(), "as it is written");
        drop(answer);
        assert!(is_free());
    }

    #[test]
    fn default_headers_let_no_page_read_an_answer() {
        let mut headers = HeaderMap::new();
        headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-transform"));
        add_default_headers(&mut headers);
        assert_eq!(headers[CACHE_CONTROL], "no-transform", "what is said stays");
        assert_eq!(headers[X_CONTENT_TYPE_OPTIONS], "nosniff");
        assert!(!headers.keys().any(|name| name.as_str().starts_with("access-control")));
    }
}

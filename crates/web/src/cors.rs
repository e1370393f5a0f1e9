//! CORS: pages in browsers may call only from the configured origins; by default from none.

use axum::body::Body;
use axum::response::Response;
use http::header::{
    ACCESS_CONTROL_ALLOW_HEADERS, ACCESS_CONTROL_ALLOW_METHODS, ACCESS_CONTROL_ALLOW_ORIGIN,
    ACCESS_CONTROL_EXPOSE_HEADERS, ACCESS_CONTROL_MAX_AGE, ACCESS_CONTROL_REQUEST_METHOD, ORIGIN,
    VARY,
};
use http::{HeaderMap, HeaderValue, Method, StatusCode};

const METHODS: HeaderValue = HeaderValue::from_static("GET, HEAD, POST, PUT, PATCH, DELETE");
const HEADERS: HeaderValue = HeaderValue::from_static(
    "authorization, content-type, idempotency-key, last-event-id, range, x-request-id, \
     blaxel-version, x-blaxel-authorization, x-blaxel-creation-timeout, x-blaxel-preview-token, \
     x-blaxel-workspace",
);
const EXPOSED: HeaderValue = HeaderValue::from_static(
    "content-range, idempotency-replayed, retry-after, server-timing, x-request-id",
);
const MAX_AGE_S: HeaderValue = HeaderValue::from_static("600");

/// The origins that may call.
#[derive(Debug)]
pub struct Cors(Vec<String>);

impl Cors {
    /// Pages of these origins may call; none if there are none.
    pub fn new(origins: &[String]) -> Self {
        Self(origins.iter().map(|origin| origin.trim_end_matches('/').to_owned()).collect())
    }

    /// The origin of a request, if it may call.
    pub fn allowed(&self, headers: &HeaderMap) -> Option<HeaderValue> {
        if self.0.is_empty() {
            return None;
        }
        let origin = headers.get(ORIGIN)?;
        self.0.iter().any(|known| known.as_bytes() == origin.as_bytes()).then(|| origin.clone())
    }

    /// The answer to a browser that asks before it calls.
    pub fn preflight(method: &Method, headers: &HeaderMap) -> Option<Response> {
        if method != Method::OPTIONS || !headers.contains_key(ACCESS_CONTROL_REQUEST_METHOD) {
            return None;
        }
        let mut response = Response::new(Body::empty());
        *response.status_mut() = StatusCode::NO_CONTENT;
        let headers = response.headers_mut();
        headers.insert(ACCESS_CONTROL_ALLOW_METHODS, METHODS);
        headers.insert(ACCESS_CONTROL_ALLOW_HEADERS, HEADERS);
        headers.insert(ACCESS_CONTROL_MAX_AGE, MAX_AGE_S);
        Some(response)
    }

    /// Lets the page of an origin read the answer.
    pub fn mark(origin: HeaderValue, headers: &mut HeaderMap) {
        headers.insert(ACCESS_CONTROL_ALLOW_ORIGIN, origin);
        headers.insert(ACCESS_CONTROL_EXPOSE_HEADERS, EXPOSED);
        headers.append(VARY, HeaderValue::from_static("origin"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cors_allows_only_configured_origins() {
        let cors = Cors::new(&["https://app.example/".to_owned()]);
        let mut headers = HeaderMap::new();
        assert_eq!(cors.allowed(&headers), None);
        for (origin, allowed) in [
            ("https://app.example", true),
            ("https://app.example.evil", false),
            ("http://app.example", false),
            ("null", false),
        ] {
            headers.insert(ORIGIN, origin.parse().unwrap());
            assert_eq!(cors.allowed(&headers).is_some(), allowed, "{origin}");
            assert_eq!(Cors::new(&[]).allowed(&headers), None);
        }
    }
}

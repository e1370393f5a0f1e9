//! Reads request bodies. They are JSON whatever their media type is, and may be missing if every
//! field may; unknown fields are ignored.

use axum::extract::{FromRequestParts as _, Request};
use bytes::Bytes;
use http::HeaderMap;
use http::header::ACCEPT;
use serde::de::DeserializeOwned;

use super::errors::BlaxelError;
use crate::app::App;
use web::body::whole_body;
use web::body_memory::Share;
use web::query::Query;

/// A body, and what it takes of the memory for bodies.
pub(super) async fn bytes(
    request: Request,
    app: &App,
    bytes_max: u64,
) -> Result<(Bytes, Share), BlaxelError> {
    Ok(whole_body(request, app, bytes_max).await?)
}

/// A JSON object.
pub(super) fn parse<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, BlaxelError> {
    let text = if bytes.trim_ascii().is_empty() { b"{}" } else { bytes };
    if text.trim_ascii_start().starts_with(b"[") {
        return Err(BlaxelError::bad("invalid request body: an object is expected"));
    }
    serde_json::from_slice(text)
        .map_err(|error| BlaxelError::bad(format!("invalid request body: {error}")))
}

/// The parameters of a request.
pub(super) async fn query(request: Request) -> Result<(Query, Request), BlaxelError> {
    let (mut parts, body) = request.into_parts();
    let query = Query::from_request_parts(&mut parts, &()).await?;
    Ok((query, Request::from_parts(parts, body)))
}

/// Whether a parameter is on; what is neither is taken as it is not given.
pub(super) fn flag(
    query: &mut Query,
    name: &'static str,
    default: bool,
) -> Result<bool, BlaxelError> {
    let text = query.text(name)?.unwrap_or_default().to_ascii_lowercase();
    Ok(match text.as_str() {
        "true" | "1" | "t" => true,
        "false" | "0" | "f" => false,
        _ => default,
    })
}

/// The parts of a list with commas between them.
pub(super) fn list(query: &mut Query, name: &'static str) -> Result<Vec<String>, BlaxelError> {
    let text = query.text(name)?.unwrap_or_default();
    let parts = text.split(',').map(str::trim).filter(|part| !part.is_empty());
    Ok(parts.map(str::to_owned).collect())
}

/// A number, or else the default if it is missing or none.
pub(super) fn number(
    query: &mut Query,
    name: &'static str,
    default: u32,
) -> Result<u32, BlaxelError> {
    Ok(query.text(name)?.and_then(|text| text.parse().ok()).unwrap_or(default))
}

/// The media types that a client accepts.
pub(super) fn accept(headers: &HeaderMap) -> String {
    let all: Vec<_> = headers.get_all(ACCEPT).iter().filter_map(|it| it.to_str().ok()).collect();
    all.join(",").to_ascii_lowercase()
}

//! One message of the protocol over HTTP: a POST, answered with JSON, without a session. The body
//! is read within the limits of every other body; what it says is the business of the protocol's
//! own library.

use std::sync::{Arc, LazyLock};

use axum::body::Body;
use axum::extract::Request;
use axum::response::Response;
use bytes::Bytes;
use http::header::{ACCEPT, CONTENT_TYPE, HOST};
use http::{HeaderMap, HeaderName, HeaderValue, Method};
use http_body_util::{BodyExt as _, Full};
use rmcp::transport::streamable_http_server::session::never::NeverSessionManager;
use rmcp::transport::streamable_http_server::{StreamableHttpServerConfig, StreamableHttpService};

use super::created::Created;
use super::origin;
use super::server::{Server, Toolbox};
use web::app::App;
use web::body::json_bytes;
use web::front::Admitted;
use web::handed_out::Handover;
use web::refused::Refused;

const JSON: HeaderValue = HeaderValue::from_static("application/json");
/// The library requires a host; it was checked before.
const ANY_HOST: HeaderValue = HeaderValue::from_static("localhost");
const BOTH: HeaderValue = HeaderValue::from_static("application/json, text/event-stream");

/// What the library reads of the headers, besides the two that are the same for every message.
const READ: [HeaderName; 3] = [
    HeaderName::from_static("mcp-protocol-version"),
    HeaderName::from_static("mcp-method"),
    HeaderName::from_static("mcp-name"),
];

static NO_SESSIONS: LazyLock<Arc<NeverSessionManager>> = LazyLock::new(Arc::default);

/// Answers one message.
pub(super) async fn serve(
    app: &App,
    by: Admitted,
    of: Arc<dyn Toolbox>,
    request: Request,
) -> Result<Response, Refused> {
    origin::check(app, request.headers())?;
    let headers = read_headers(request.headers());
    let bytes_max = app.settings.exec_bytes_max;
    let (bytes, share) = json_bytes(request, app, bytes_max).await?;
    let made = Created::default();
    let server = Server::new(app.clone(), by, made.clone(), of);
    let config = StreamableHttpServerConfig::default()
        // Hosts and origins are checked already, by the settings of this server.
        .disable_allowed_hosts()
        .disable_allowed_origins()
        .with_legacy_session_mode(false)
        .with_json_response(true)
        .with_max_request_body_bytes(usize::try_from(bytes_max).unwrap_or(usize::MAX));
    let of_message = server.clone();
    let speaking = StreamableHttpService::new(
        move || Ok(of_message.clone()),
        Arc::clone(&NO_SESSIONS),
        config,
    );
    let mut asked = http::Request::new(Full::new(bytes));
    *asked.method_mut() = Method::POST;
    *asked.headers_mut() = headers;
    let (parts, body) = speaking.handle(asked).await.into_parts();
    drop(share);
    let bytes = match body.collect().await {
        Ok(whole) => whole.to_bytes(),
        Err(never) => match never {},
    };
    let mut response = Response::new(handed_over(bytes, made));
    *response.status_mut() = parts.status;
    if let Some(refusal) = server.refusal() {
        response.extensions_mut().insert(refusal);
    }
    if let Some(kind) = parts.headers.get(CONTENT_TYPE) {
        response.headers_mut().insert(CONTENT_TYPE, kind.clone());
    }
    Ok(response)
}

fn handed_over(bytes: Bytes, made: Created) -> Body {
    if bytes.is_empty() { Body::empty() } else { Body::new(Handover::new(bytes, made, None)) }
}

/// A client of the protocol accepts JSON, whether its headers say so or not.
fn read_headers(given: &HeaderMap) -> HeaderMap {
    let mut headers = HeaderMap::new();
    for name in READ {
        if let Some(value) = given.get(&name) {
            headers.insert(name, value.clone());
        }
    }
    headers.insert(HOST, ANY_HOST);
    headers.insert(ACCEPT, BOTH);
    headers.insert(CONTENT_TYPE, JSON);
    headers
}

//! Servers inside a sandbox, reached through its API: HTTP with any method, and what that goes over
//! to. No key of ours gets inside.

use axum::extract::Request;
use axum::response::Response;
use engine::{Caller, UseKind};
use http::uri::PathAndQuery;

use super::errors::BlaxelError;
use super::target::Target;
use super::{PREFIX, access};
use web::front::OfInside;
use web::port::pass_to;
use web::proxy::{self, ProxyPath};

pub(super) async fn pass_on(
    target: &Target,
    word: Option<&str>,
    port: u16,
    behind: &str,
    mut request: Request,
) -> Result<Response, BlaxelError> {
    let query = request.uri().query().map(|query| format!("?{query}")).unwrap_or_default();
    let behind = if behind.is_empty() { "/" } else { behind };
    let inside = PathAndQuery::try_from(format!("{behind}{query}"));
    let inside = inside.map_err(|_| BlaxelError::bad("the path cannot be forwarded"))?;
    let of = word.map(|word| format!("{PREFIX}/{word}")).unwrap_or_default();
    let path = ProxyPath { prefix: format!("{of}/port/{port}"), inside };
    let needs_key = word.is_some() || !target.app.options.keyless;
    let headers = request.headers_mut();
    if let Some(own) = access::for_inside(&target.app, needs_key, headers) {
        headers.entry(proxy::INNER_AUTHORIZATION).or_insert(own);
    }
    let used = target.begin(UseKind::Port).await?;
    // It lasts for as long as the key that was given.
    let (app, caller) = (target.app.clone(), Caller { key: target.key, ..target.caller });
    let mut response = pass_to(app.web.clone(), caller, used, port, path, request).await?;
    response.extensions_mut().insert(OfInside);
    Ok(response)
}

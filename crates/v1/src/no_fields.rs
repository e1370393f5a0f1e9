//! Bodies of routes that need none. Many clients send `{}` with every POST, which says nothing and is
//! accepted; any field is refused, since nothing would come of it.

use axum::body::Body;
use axum::extract::{FromRequest as _, Request, State};
use axum::middleware::Next;
use axum::response::Response;
use serde::Deserialize;

use web::app::App;
use web::body::OptionalJson;
use web::refused::Refused;

/// A JSON object without fields.
#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct NoFields {}

/// Lets a request through without its body, if that says nothing.
pub(crate) async fn accept(
    State(app): State<App>,
    request: Request,
    next: Next,
) -> Result<Response, Refused> {
    let (parts, body) = request.into_parts();
    let whole = Request::from_parts(parts.clone(), body);
    let OptionalJson(NoFields {}) = OptionalJson::from_request(whole, &app).await?;
    Ok(next.run(Request::from_parts(parts, Body::empty())).await)
}

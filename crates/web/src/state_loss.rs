//! Reports state loss in answers. The next answer about a session whose files were lost has the
//! header `Shoal-State-Lost`, and a field if it is a JSON object. The loss counts as reported when
//! the answer is taken for writing, and not before: a client that disconnected has seen nothing.

use std::pin::Pin;
use std::task::{Context, Poll};

use axum::body::Body;
use axum::response::Response;
use bytes::Bytes;
use engine::{Engine, Loss};
use http::header::{CONTENT_LENGTH, CONTENT_TYPE};
use http::{HeaderMap, HeaderName, HeaderValue};
use http_body::{Body as _, Frame, SizeHint};
use http_body_util::BodyExt as _;
use serde_json::{Map, Value};

/// Why files were lost: a reason of `sandbox_terminated`.
pub const STATE_LOST: HeaderName = HeaderName::from_static(wire::STATE_LOST_HEADER);

/// The names of the two fields of a JSON answer.
#[derive(Debug, Clone, Copy)]
pub struct LossFields {
    lost: &'static str,
    reason: &'static str,
}

impl LossFields {
    /// The names in our own API.
    pub const SNAKE: Self = Self { lost: "state_lost", reason: "state_lost_reason" };
    /// The names in dialects with camel case.
    pub const CAMEL: Self = Self { lost: "stateLost", reason: "stateLostReason" };

    /// Puts them into a JSON object.
    pub fn add(self, object: &mut Map<String, Value>, loss: Loss) {
        object.insert(self.lost.to_owned(), Value::Bool(true));
        object.insert(self.reason.to_owned(), Value::from(loss.reason.as_str()));
    }
}

/// Makes an answer report a loss.
pub async fn report(
    engine: Engine,
    response: Response,
    losses: Vec<Loss>,
    fields: LossFields,
) -> Response {
    let Some(loss) = losses.last().copied() else { return response };
    let (mut parts, body) = response.into_parts();
    parts.headers.insert(STATE_LOST, HeaderValue::from_static(loss.reason.as_str()));
    let body = if is_json(&parts.headers) {
        // The fields make the body longer: its length is counted anew.
        parts.headers.remove(CONTENT_LENGTH);
        with_fields(body, loss, fields).await
    } else {
        body
    };
    let taken = ReportingBody { body, report: Some((engine, losses)) };
    // An answer without a body is never polled for one: its headers are all there is to take.
    let body = if taken.body.is_end_stream() { taken.without_body() } else { Body::new(taken) };
    Response::from_parts(parts, body)
}

fn is_json(headers: &HeaderMap) -> bool {
    let kind = headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let kind = kind.split(';').next().unwrap_or_default().trim();
    kind == "application/json" || kind == "application/problem+json"
}

/// The same JSON object with the fields that report a loss. Other JSON stays as it is.
async fn with_fields(body: Body, loss: Loss, fields: LossFields) -> Body {
    if body.size_hint().exact().is_none() {
        return body;
    }
    let Ok(collected) = body.collect().await else { return Body::empty() };
    let bytes = collected.to_bytes();
    let Ok(mut object) = serde_json::from_slice::<Map<String, Value>>(&bytes) else {
        return Body::from(bytes);
    };
    fields.add(&mut object, loss);
    serde_json::to_vec(&object).map_or_else(|_| Body::from(bytes), Body::from)
}

/// A body that marks the loss as reported when it is taken for writing.
struct ReportingBody {
    body: Body,
    report: Option<(Engine, Vec<Loss>)>,
}

impl ReportingBody {
    fn mark_reported(&mut self) {
        if let Some((engine, losses)) = self.report.take() {
            engine.losses_reported(&losses);
        }
    }

    fn without_body(mut self) -> Body {
        self.mark_reported();
        self.body
    }
}

impl http_body::Body for ReportingBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        self.mark_reported();
        Pin::new(&mut self.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

//! Refusals in the form of Blaxel: a text under `error`, with the status that its clients look at.
//! Our own error code is in a header.

use std::borrow::Cow;

use axum::body::Body;
use axum::response::{IntoResponse, Response};
use http::header::{CONTENT_TYPE, RETRY_AFTER, WWW_AUTHENTICATE};
use http::{HeaderName, HeaderValue, StatusCode};
use model::{ErrorCode, Refusal, TerminatedReason};
use serde_json::json;

use super::answer::JSON;
use web::refused::{RETRY_AFTER_MS, Refused};
use web::request_log::LoggedRefusal;

const CODE: HeaderName = HeaderName::from_static("x-shoal-error");
const REASON: HeaderName = HeaderName::from_static("x-shoal-reason");

/// Why a request was refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct BlaxelError {
    pub(super) status: u16,
    pub(super) text: Cow<'static, str>,
    shape: Shape,
    code: ErrorCode,
    /// What clients look for in place of the number of the status.
    word: Option<&'static str>,
    /// Why a sandbox ended.
    reason: Option<TerminatedReason>,
    retry_after_ms: Option<u64>,
}

/// How the body of a refusal is built.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Shape {
    /// By a sandbox: `error` alone.
    Sandbox,
    /// By the control plane: `code`, `error` and `message`.
    Control,
    /// An unknown route of a sandbox, with the text of its framework.
    NoRoute,
}

impl BlaxelError {
    pub(super) fn new(status: u16, text: impl Into<Cow<'static, str>>) -> Self {
        let (shape, code, word) = (Shape::Sandbox, code_of(status), None);
        Self { status, text: text.into(), shape, code, word, reason: None, retry_after_ms: None }
    }

    /// A request that cannot be read.
    pub(super) fn bad(text: impl Into<Cow<'static, str>>) -> Self {
        Self::new(400, text)
    }

    pub(super) fn no_route() -> Self {
        Self { shape: Shape::NoRoute, ..Self::new(404, "404 page not found") }
    }

    /// A feature of Blaxel that is missing here.
    pub(super) fn not_here(what: impl Into<Cow<'static, str>>) -> Self {
        let code = ErrorCode::Unsupported;
        Self { code, ..Self::new(code.status(), what) }
    }

    /// The same, as the control plane says it.
    pub(super) fn of_control(self) -> Self {
        Self { shape: Shape::Control, ..self }
    }

    /// The same, with a code that says more than its status.
    pub(super) fn with_code(self, code: ErrorCode) -> Self {
        Self { code, ..self }
    }

    /// The same, with the status that one route has for it.
    pub(super) fn with_status(self, status: u16) -> Self {
        Self { status, ..self }
    }

    /// The same, for a client that gave its sandbox only so much time.
    pub(super) fn creation_timed_out(self) -> Self {
        Self { status: 408, word: Some("CREATION_TIMEOUT"), ..self }
    }

    /// The same in other words.
    pub(super) fn with_text(self, text: impl Into<Cow<'static, str>>) -> Self {
        Self { text: text.into(), ..self }
    }

    pub(super) fn is(&self, code: ErrorCode) -> bool {
        self.code == code
    }

    /// Puts it into a response.
    pub(crate) fn write(&self, response: &mut Response) {
        let status = StatusCode::from_u16(self.status);
        *response.status_mut() = status.unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let headers = response.headers_mut();
        let default_ms = (self.status == 503).then_some(RETRY_AFTER_MS);
        if let Some(ms) = self.retry_after_ms.or(default_ms) {
            headers.insert(RETRY_AFTER, HeaderValue::from(ms.div_ceil(1000).max(1)));
        }
        headers.insert(CODE, HeaderValue::from_static(self.code.as_str()));
        if let Some(reason) = self.reason {
            headers.insert(REASON, HeaderValue::from_static(reason.as_str()));
        }
        if self.status == 401 {
            headers.insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        let (text, status) = (&*self.text, self.status);
        let (kind, body) = match self.shape {
            Shape::Sandbox => (JSON, json!({"error": text}).to_string()),
            Shape::Control => {
                let code = self.word.map_or_else(|| json!(status), |word| json!(word));
                (JSON, json!({"code": code, "error": text, "message": text}).to_string())
            }
            Shape::NoRoute => (HeaderValue::from_static("text/plain"), text.to_owned()),
        };
        headers.insert(CONTENT_TYPE, kind);
        *response.body_mut() = Body::from(body);
        response.extensions_mut().insert(LoggedRefusal::new(self.code, &self.text));
    }
}

/// The code of a refusal that the dialect words itself, unless it says more.
const fn code_of(status: u16) -> ErrorCode {
    match status {
        400 => ErrorCode::BadRequest,
        401 => ErrorCode::Unauthorized,
        404 => ErrorCode::NotFound,
        405 => ErrorCode::MethodNotAllowed,
        409 => ErrorCode::IdConflict,
        422 => ErrorCode::InvalidArgument,
        _ => ErrorCode::Internal,
    }
}

impl From<Refused> for BlaxelError {
    fn from(refused: Refused) -> Self {
        Self::from(refused.refusal)
    }
}

impl From<Refusal> for BlaxelError {
    fn from(refusal: Refusal) -> Self {
        use ErrorCode as Code;
        let code = refusal.code;
        let status = match code {
            Code::BadRequest | Code::ProcessNameTaken | Code::InvalidArgument => 400,
            Code::ProcessUnknown => 404,
            Code::PathWrongKind
            | Code::PathDenied
            | Code::PathExists
            | Code::PortTaken
            | Code::DiskLimit
            | Code::LimitReached
            | Code::Oom => 422,
            Code::PortClosed
            | Code::TemplateUnknown
            | Code::TemplateInvalid
            | Code::TemplateInUse
            | Code::ImageUnknown
            | Code::ImageInvalid
            | Code::ImageInUse
            | Code::SandboxUnknown
            | Code::LeaseUnknown
            | Code::SessionUnknown
            | Code::ProcessOver
            | Code::StdinClosed
            | Code::IdConflict
            | Code::CapacityExhausted
            | Code::CheckoutTimeout
            | Code::QueueFull
            | Code::PoolEmpty
            | Code::PoolClosed
            | Code::BoundaryFull
            | Code::EgressUnavailable
            | Code::LaunchFailed
            | Code::ReadyTimeout
            | Code::SandboxGone
            | Code::LeaseLost
            | Code::SandboxCrashed
            | Code::SessionEnded
            | Code::SessionStopped
            | Code::SessionBusy
            | Code::TurnInProgress
            | Code::TurnQueueFull
            | Code::TurnUnknown
            | Code::HarnessFailed
            | Code::HarnessBusy
            | Code::NoHarness
            | Code::NotLeased
            | Code::SandboxBusy
            | Code::Aborted
            | Code::PersistFailed
            | Code::Unsupported
            | Code::DeadlineExceeded
            | Code::IdempotencyConflict
            | Code::SecretMissing
            | Code::NetworkRefused
            | Code::PathNotFound
            | Code::RangeNotSatisfiable
            | Code::RequestTimeout
            | Code::TooLarge
            | Code::UnsupportedMediaType
            | Code::QuotaExceeded
            | Code::MethodNotAllowed
            | Code::NotFound
            | Code::Unauthorized
            | Code::Forbidden
            | Code::HostRefused
            | Code::UpgradeRequired
            | Code::ClientGone
            | Code::DiskFull
            | Code::StoreUnavailable
            | Code::Overloaded
            | Code::ShuttingDown
            | Code::Internal => code.status(),
        };
        let is_unknown = code == Code::ProcessUnknown;
        let text = if is_unknown { "process not found".into() } else { refusal.cause };
        let (retry_after_ms, reason) = (refusal.retry_after_ms, refusal.reason);
        Self { code, reason, retry_after_ms, ..Self::new(status, text) }
    }
}

impl IntoResponse for BlaxelError {
    fn into_response(self) -> Response {
        let mut response = Response::new(Body::empty());
        self.write(&mut response);
        response
    }
}

#[cfg(test)]
mod tests {
    use http_body_util::BodyExt as _;

    use super::*;

    async fn answered(error: BlaxelError) -> (u16, String) {
        let response = error.into_response();
        let status = response.status().as_u16();
        let bytes = response.into_body().collect().await.unwrap().to_bytes();
        (status, String::from_utf8(bytes.to_vec()).unwrap())
    }

    #[tokio::test]
    async fn refusal_has_the_form_of_its_route() {
        let json = |text: &str| format!("{{\"error\":\"{text}\"}}");
        let of = |code, cause: &'static str| BlaxelError::from(Refusal::new(code, cause));
        for (error, status, text) in [
            (of(ErrorCode::ProcessUnknown, "x"), 404, json("process not found")),
            (of(ErrorCode::ProcessNameTaken, "taken"), 400, json("taken")),
            (of(ErrorCode::StdinClosed, "closed"), 409, json("closed")),
            (of(ErrorCode::PathWrongKind, "no"), 422, json("no")),
            (BlaxelError::no_route(), 404, "404 page not found".to_owned()),
            (
                BlaxelError::new(404, "none").of_control(),
                404,
                r#"{"code":404,"error":"none","message":"none"}"#.to_owned(),
            ),
        ] {
            assert_eq!(answered(error).await, (status, text));
        }
    }

    #[test]
    fn a_refusal_in_words_of_the_dialect_has_a_code_too() {
        for (error, expected) in [
            (BlaxelError::no_route(), "not_found"),
            (BlaxelError::bad("no"), "bad_request"),
            (BlaxelError::new(405, "no"), "method_not_allowed"),
            (BlaxelError::new(409, "there is one"), "id_conflict"),
            (BlaxelError::new(422, "no"), "invalid_argument"),
            (BlaxelError::new(404, "no").with_code(ErrorCode::SandboxUnknown), "sandbox_unknown"),
            (BlaxelError::not_here("no").of_control(), "unsupported"),
        ] {
            assert_eq!(error.into_response().headers()[CODE], expected);
        }
    }

    #[test]
    fn every_refusal_has_its_code_and_retry_after() {
        for &code in ErrorCode::ALL {
            let response = BlaxelError::from(Refusal::new(code, "why")).into_response();
            assert_eq!(response.headers()[CODE], code.as_str());
            let is_later = response.status() == 503;
            assert_eq!(response.headers().contains_key(RETRY_AFTER), is_later, "{code}");
        }
    }
}

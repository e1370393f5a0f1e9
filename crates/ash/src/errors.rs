//! Refusals with the texts and shapes of Ash. Clients compare some of these texts, so they must not
//! change; our own cause is appended.

use std::borrow::Cow;

use axum::body::Body;
use axum::response::{IntoResponse, Response};
use http::header::{CONTENT_TYPE, RETRY_AFTER};
use http::{HeaderValue, Method, StatusCode};
use model::{ErrorCode, Refusal};
use serde_json::{Value, json};

use web::refused::{RETRY_AFTER_MS, Refused};
use web::request_log::LoggedRefusal;

pub(super) const JSON: HeaderValue = HeaderValue::from_static("application/json; charset=utf-8");

/// Why a request was refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct AshError {
    status: u16,
    shape: Shape,
    text: Cow<'static, str>,
    /// For the request log: clients of Ash never see it.
    code: Option<ErrorCode>,
    retry_after_ms: Option<u64>,
}

/// How the body of a refusal is built.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Shape {
    /// By a handler: `error` and `statusCode`.
    Handler,
    /// By the framework around the handlers: a word, a code, and the text as `message`.
    Framework { word: &'static str, code: Option<&'static str> },
}

impl AshError {
    pub(super) fn new(status: u16, text: impl Into<Cow<'static, str>>) -> Self {
        let shape = Shape::Handler;
        Self { status, shape, text: text.into(), code: None, retry_after_ms: None }
    }

    /// A request that does not fit what the route takes.
    pub(super) fn invalid(text: impl Into<Cow<'static, str>>) -> Self {
        let shape = Shape::Framework { word: "Bad Request", code: Some("FST_ERR_VALIDATION") };
        Self { shape, ..Self::new(400, text) }
    }

    pub(super) fn no_session() -> Self {
        Self::new(404, "Session not found")
    }

    pub(super) fn no_agent() -> Self {
        Self::new(404, "Agent not found")
    }

    /// A session that ended does not come back.
    pub(super) fn ended() -> Self {
        Self::new(410, "Session has ended — create a new session")
    }

    pub(super) fn no_route(method: &Method, path: &str) -> Self {
        let shape = Shape::Framework { word: "Not Found", code: None };
        Self { shape, ..Self::new(404, format!("Route {method}:{path} not found")) }
    }

    /// The same refusal with the operation that failed, if the server is at fault.
    pub(super) fn during(mut self, what: &str) -> Self {
        if self.status == 500 && self.shape == Shape::Handler {
            self.text = format!("Failed to {what}: {}", self.text).into();
        }
        self
    }

    fn body(&self) -> Value {
        let (status, text) = (self.status, &*self.text);
        match self.shape {
            Shape::Handler => json!({"error": text, "statusCode": status}),
            Shape::Framework { word, code: None } => {
                json!({"message": text, "error": word, "statusCode": status})
            }
            Shape::Framework { word, code: Some(code) } => {
                json!({"statusCode": status, "code": code, "error": word, "message": text})
            }
        }
    }

    /// Puts it into a response.
    pub(crate) fn write(&self, response: &mut Response) {
        let status = StatusCode::from_u16(self.status);
        *response.status_mut() = status.unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, JSON);
        let default_ms = (self.status == 503).then_some(RETRY_AFTER_MS);
        if let Some(ms) = self.retry_after_ms.or(default_ms) {
            headers.insert(RETRY_AFTER, HeaderValue::from(ms.div_ceil(1000).max(1)));
        }
        *response.body_mut() = Body::from(self.body().to_string());
        let logged = match self.code {
            Some(code) => Some(LoggedRefusal::new(code, &self.text)),
            None => LoggedRefusal::of_status(self.status, &self.text),
        };
        if let Some(logged) = logged {
            response.extensions_mut().insert(logged);
        }
    }
}

impl From<Refused> for AshError {
    fn from(refused: Refused) -> Self {
        let field = refused.field.clone();
        let ash_error = Self::from(refused.refusal);
        match (field, ash_error.shape) {
            // Texts of the framework contain the field.
            (Some(field), Shape::Framework { .. }) if !ash_error.text.contains(&*field) => {
                Self { text: format!("{field}: {}", ash_error.text).into(), ..ash_error }
            }
            _ => ash_error,
        }
    }
}

impl From<Refusal> for AshError {
    fn from(refusal: Refusal) -> Self {
        use ErrorCode as Code;
        let cause = refusal.cause;
        let framework = |word, code, text| Self {
            shape: Shape::Framework { word, code },
            ..Self::new(refusal.code.status(), text)
        };
        let ash_error = match refusal.code {
            Code::SessionUnknown => Self::no_session(),
            Code::SessionEnded => Self::ended(),
            Code::SessionStopped => Self::new(400, "Session is stopped"),
            Code::SessionBusy | Code::SandboxBusy | Code::TurnInProgress | Code::HarnessBusy => {
                Self::new(409, format!("Session is busy: {cause}"))
            }
            Code::CapacityExhausted
            | Code::CheckoutTimeout
            | Code::QueueFull
            | Code::PoolEmpty
            | Code::BoundaryFull
            | Code::PoolClosed => Self::new(503, format!("Sandbox capacity reached: {cause}")),
            Code::BadRequest => framework("Bad Request", Some("FST_ERR_VALIDATION"), cause),
            Code::TooLarge => {
                framework("Payload Too Large", Some("FST_ERR_CTP_BODY_TOO_LARGE"), cause)
            }
            Code::UnsupportedMediaType => {
                framework("Unsupported Media Type", Some("FST_ERR_CTP_INVALID_MEDIA_TYPE"), cause)
            }
            Code::QuotaExceeded => framework("Too Many Requests", None, cause),
            Code::MethodNotAllowed | Code::NotFound => framework("Not Found", None, cause),
            Code::InvalidArgument
            | Code::SecretMissing
            | Code::NetworkRefused
            | Code::LimitReached
            | Code::PathWrongKind
            | Code::PathDenied
            | Code::PathExists
            | Code::ProcessNameTaken
            | Code::ProcessOver
            | Code::StdinClosed
            | Code::PortTaken
            | Code::PortClosed
            | Code::IdConflict => Self::new(400, cause),
            // The operator of a server behind a name reads this first.
            Code::HostRefused => {
                let remedy = refusal.code.remedy();
                Self::new(refusal.code.status(), format!("{cause}: {remedy}"))
            }
            Code::PathNotFound => Self::new(404, "File not found"),
            Code::TurnUnknown => Self::new(404, "Message not found"),
            Code::Unauthorized
            | Code::Forbidden
            | Code::UpgradeRequired
            | Code::RequestTimeout
            | Code::RangeNotSatisfiable
            | Code::TurnQueueFull
            | Code::ClientGone
            | Code::DiskFull
            | Code::EgressUnavailable
            | Code::StoreUnavailable
            | Code::Overloaded
            | Code::ShuttingDown => Self::new(refusal.code.status(), cause),
            Code::TemplateUnknown
            | Code::TemplateInvalid
            | Code::TemplateInUse
            | Code::ImageUnknown
            | Code::ImageInvalid
            | Code::ImageInUse
            | Code::SandboxUnknown
            | Code::LeaseUnknown
            | Code::ProcessUnknown
            | Code::LaunchFailed
            | Code::ReadyTimeout
            | Code::HarnessFailed
            | Code::NoHarness
            | Code::SandboxGone
            | Code::LeaseLost
            | Code::SandboxCrashed
            | Code::Oom
            | Code::DiskLimit
            | Code::NotLeased
            | Code::Aborted
            | Code::PersistFailed
            | Code::Unsupported
            | Code::DeadlineExceeded
            | Code::IdempotencyConflict
            | Code::Internal => Self::new(500, cause),
        };
        Self { code: Some(refusal.code), retry_after_ms: refusal.retry_after_ms, ..ash_error }
    }
}

impl IntoResponse for AshError {
    fn into_response(self) -> Response {
        let mut response = Response::new(Body::empty());
        self.write(&mut response);
        response
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ash_error(error: &AshError) -> (u16, Value) {
        (error.status, error.body())
    }

    /// The texts that clients of Ash look for, and those that they are shown.
    #[test]
    fn refusals_have_the_texts_of_ash() {
        use ErrorCode as Code;
        let of = |code, cause: &'static str| AshError::from(Refusal::new(code, cause));
        let handler = |text: &str, status: u16| json!({"error": text, "statusCode": status});
        let table = [
            (AshError::no_session(), 404, "Session not found"),
            (of(Code::SessionUnknown, "x"), 404, "Session not found"),
            (AshError::no_agent(), 404, "Agent not found"),
            (AshError::new(404, "Agent \"a\" not found"), 404, "Agent \"a\" not found"),
            (AshError::ended(), 410, "Session has ended — create a new session"),
            (of(Code::SessionEnded, "x"), 410, "Session has ended — create a new session"),
            (of(Code::SessionStopped, "x"), 400, "Session is stopped"),
            (of(Code::TurnInProgress, "a turn"), 409, "Session is busy: a turn"),
            (of(Code::SessionBusy, "it ends"), 409, "Session is busy: it ends"),
            (of(Code::CapacityExhausted, "all run"), 503, "Sandbox capacity reached: all run"),
            (of(Code::QueueFull, "many wait"), 503, "Sandbox capacity reached: many wait"),
            (of(Code::PoolClosed, "drained"), 503, "Sandbox capacity reached: drained"),
            (of(Code::Unauthorized, "Invalid API key"), 401, "Invalid API key"),
            (of(Code::PathNotFound, "x"), 404, "File not found"),
            (of(Code::PathWrongKind, "Path is not a file"), 400, "Path is not a file"),
            (of(Code::InvalidArgument, "Invalid file path"), 400, "Invalid file path"),
            (
                of(Code::LaunchFailed, "no").during("create session"),
                500,
                "Failed to create session: no",
            ),
            (
                of(Code::LaunchFailed, "no").during("resume session"),
                500,
                "Failed to resume session: no",
            ),
            (
                of(Code::CapacityExhausted, "x").during("fork session"),
                503,
                "Sandbox capacity reached: x",
            ),
            (of(Code::Internal, "it broke"), 500, "it broke"),
        ];
        for (error, status, text) in table {
            assert_eq!(ash_error(&error), (status, handler(text, status)), "{text}");
        }
    }

    #[test]
    fn refusals_of_the_framework_have_its_shape() {
        let invalid = AshError::invalid("params/id must match format \"uuid\"");
        let expected = json!({
            "statusCode": 400, "code": "FST_ERR_VALIDATION", "error": "Bad Request",
            "message": "params/id must match format \"uuid\"",
        });
        assert_eq!(ash_error(&invalid), (400, expected));
        let nowhere = AshError::no_route(&Method::GET, "/x");
        let expected =
            json!({"message": "Route GET:/x not found", "error": "Not Found", "statusCode": 404});
        assert_eq!(ash_error(&nowhere), (404, expected));
        let limited = AshError::from(Refusal::new(ErrorCode::QuotaExceeded, "slow down"));
        let expected =
            json!({"statusCode": 429, "error": "Too Many Requests", "message": "slow down"});
        assert_eq!(ash_error(&limited), (429, expected));
        let refused = AshError::from(Refused::bad("limit", "must be a number"));
        assert_eq!(refused.body()["message"], "limit: must be a number");
    }

    #[test]
    fn every_refusal_has_an_error_a_status_and_retry_after() {
        for &code in ErrorCode::ALL {
            let mut response = Response::new(Body::empty());
            let error = AshError::from(Refusal::new(code, "why"));
            error.write(&mut response);
            assert!(error.body()["error"].is_string(), "{code}");
            assert_eq!(error.body()["statusCode"], error.status, "{code}");
            assert_eq!(response.status().as_u16(), error.status);
            let is_later = error.status == 503;
            assert_eq!(response.headers().contains_key(RETRY_AFTER), is_later, "{code}");
        }
    }
}

//! A refusal on its way to its caller. Handlers return it; the front writes it as a problem, since
//! only the front knows the id of the request.

use std::borrow::Cow;

use axum::body::Body;
use axum::response::{IntoResponse, Response};
use http::header::{CONTENT_TYPE, RETRY_AFTER, WWW_AUTHENTICATE};
use http::{HeaderValue, StatusCode};
use model::{ErrorCode, Refusal, SandboxId, SessionId, TerminatedReason};
use wire::Problem;

/// The pause before another try, where nothing better is known.
pub const RETRY_AFTER_MS: u64 = 1000;

/// Why a request was refused, and which field, parameter or header is wrong.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refused {
    /// The code, the cause and the remedy.
    pub refusal: Refusal,
    /// The wrong field, if there is one.
    pub field: Option<Cow<'static, str>>,
    /// What is known of a sandbox that has ended.
    pub elsewhere: Option<Box<Elsewhere>>,
}

/// Why a sandbox ended, and which sandbox to use instead.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Elsewhere {
    /// Why it ended.
    pub reason: TerminatedReason,
    /// The session that it belonged to.
    pub session_id: Option<SessionId>,
    /// The sandbox that the session has now.
    pub sandbox_id: Option<SandboxId>,
}

impl Refused {
    /// A refusal with its cause.
    pub fn new(code: ErrorCode, cause: impl Into<Cow<'static, str>>) -> Self {
        Refusal::new(code, cause).into()
    }

    /// A request that cannot be read.
    pub fn bad(field: impl Into<Cow<'static, str>>, cause: impl Into<Cow<'static, str>>) -> Self {
        Self::with_field(Refusal::new(ErrorCode::BadRequest, cause), field)
    }

    /// A request that can be read, with a value that cannot be right.
    pub fn invalid(
        field: impl Into<Cow<'static, str>>,
        cause: impl Into<Cow<'static, str>>,
    ) -> Self {
        Self::with_field(Refusal::new(ErrorCode::InvalidArgument, cause), field)
    }

    /// A request without the protocol upgrade that the route requires.
    pub fn upgrade(cause: impl Into<Cow<'static, str>>) -> Self {
        Self::with_field(Refusal::new(ErrorCode::UpgradeRequired, cause), "Upgrade")
    }

    /// A refusal with the wrong field.
    pub fn with_field(refusal: Refusal, field: impl Into<Cow<'static, str>>) -> Self {
        Self { refusal, field: Some(field.into()), elsewhere: None }
    }

    /// As it is sent to the client.
    pub fn problem(&self, request_id: &str) -> Problem {
        let problem = Problem::new(&self.refusal, self.field.as_deref(), request_id);
        let elsewhere = self.elsewhere.as_ref();
        Problem {
            retry_after_ms: self.retry_after_ms(),
            reason: elsewhere.map(|elsewhere| elsewhere.reason).or(self.refusal.reason),
            session_id: elsewhere.and_then(|elsewhere| elsewhere.session_id),
            sandbox_id: elsewhere.and_then(|elsewhere| elsewhere.sandbox_id),
            ..problem
        }
    }

    /// When to try again: soon, if the refusal gives no time.
    fn retry_after_ms(&self) -> Option<u64> {
        let default_ms = (self.refusal.code.status() == 503).then_some(RETRY_AFTER_MS);
        self.refusal.retry_after_ms.or(default_ms)
    }

    /// Puts the problem into a response that was made from this refusal.
    pub fn write(&self, response: &mut Response, request_id: &str) {
        let code = self.refusal.code;
        let status = StatusCode::from_u16(code.status());
        *response.status_mut() = status.unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static(Problem::MEDIA_TYPE));
        if let Some(ms) = self.retry_after_ms() {
            headers.insert(RETRY_AFTER, HeaderValue::from(ms.div_ceil(1000).max(1)));
        }
        if code == ErrorCode::Unauthorized {
            headers.insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        let text = serde_json::to_vec(&self.problem(request_id));
        *response.body_mut() = Body::from(text.unwrap_or_default());
    }
}

impl From<Refusal> for Refused {
    /// A cause that begins with a field says which one is wrong: `pool.pool_size: ...`.
    fn from(refusal: Refusal) -> Self {
        let names_a_field =
            matches!(refusal.code, ErrorCode::InvalidArgument | ErrorCode::TemplateInvalid);
        let field = refusal.cause.split_once(": ").map(|(field, _)| field).filter(|field| {
            let fits =
                |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || matches!(c, '_' | '.');
            names_a_field && !field.is_empty() && field.chars().all(fits)
        });
        let field = field.map(|field| Cow::Owned(field.to_owned()));
        Self { refusal, field, elsewhere: None }
    }
}

impl IntoResponse for Refused {
    fn into_response(self) -> Response {
        let mut response = Response::new(Body::empty());
        response.extensions_mut().insert(self);
        response
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusal_cause_that_begins_with_a_field_names_it() {
        for (code, cause, field) in [
            (ErrorCode::InvalidArgument, "wait_ms: must be at most 5", Some("wait_ms")),
            (ErrorCode::TemplateInvalid, "pool.pool_size: no", Some("pool.pool_size")),
            (ErrorCode::InvalidArgument, "no: such thing", Some("no")),
            (ErrorCode::InvalidArgument, "No such: thing", None),
            (ErrorCode::InvalidArgument, "nothing at all", None),
            (ErrorCode::SandboxGone, "it: ended", None),
        ] {
            assert_eq!(Refused::from(Refusal::new(code, cause)).field.as_deref(), field, "{cause}");
        }
    }

    #[test]
    fn refusal_for_an_ended_sandbox_has_its_reason() {
        let gone = Refused::from(Refusal::sandbox_gone(model::EndCause::Restart)).problem("r");
        assert_eq!(gone.reason, Some(model::EndCause::Restart.reason()));
        let plain = Refused::new(ErrorCode::QueueFull, "full").problem("r");
        assert_eq!(plain.reason, None);
    }

    #[test]
    fn retry_after_is_in_whole_seconds() {
        for (ms, seconds) in [(0, "1"), (1, "1"), (1000, "1"), (1001, "2")] {
            let refusal = Refusal::new(ErrorCode::QueueFull, "full").retry_after(ms);
            let mut response = Response::new(Body::empty());
            Refused::from(refusal).write(&mut response, "r");
            assert_eq!(response.headers()[RETRY_AFTER], seconds);
            assert_eq!(response.status(), 503);
        }
    }

    #[test]
    fn refusals_with_status_503_have_retry_after() {
        for &code in ErrorCode::ALL {
            let refused = Refused::new(code, "no");
            let mut response = Response::new(Body::empty());
            refused.write(&mut response, "r");
            let is_later = code.status() == 503;
            assert_eq!(response.headers().contains_key(RETRY_AFTER), is_later, "{code}");
            assert_eq!(refused.problem("r").retry_after_ms.is_some(), is_later, "{code}");
        }
    }
}

//! A refusal as `application/problem+json`: what to branch on, what happened, what to do about it,
//! and whether trying again helps.

use std::borrow::Cow;
use std::fmt;

use model::{ErrorCode, Refusal, SandboxId, SessionId, TerminatedReason};
use serde::{Deserialize, Serialize};

/// Why a request was refused.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Problem {
    /// Where the code is explained, relative to the server.
    #[serde(rename = "type")]
    #[cfg_attr(feature = "schema", schema(value_type = String, example = "/docs/errors/template_unknown"))]
    pub kind: Cow<'static, str>,
    /// The code in words.
    #[cfg_attr(feature = "schema", schema(value_type = String, example = "template unknown"))]
    pub title: Cow<'static, str>,
    /// The HTTP status.
    pub status: u16,
    /// What to branch on. A newer server may send codes that an older client does not know.
    #[cfg_attr(feature = "schema", schema(value_type = String, example = "template_unknown"))]
    pub code: Cow<'static, str>,
    /// What happened.
    pub detail: String,
    /// How to fix it.
    #[cfg_attr(feature = "schema", schema(value_type = String))]
    pub remedy: Cow<'static, str>,
    /// Whether the same request may work later.
    pub retryable: bool,
    /// When a retry is likely to work.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry_after_ms: Option<u64>,
    /// The field, parameter or header that is wrong.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub field: Option<String>,
    /// Why the sandbox ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<TerminatedReason>,
    /// The session that the sandbox belonged to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session_id: Option<SessionId>,
    /// The sandbox that the session has now.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sandbox_id: Option<SandboxId>,
    /// The id of the request, also in the server's log.
    pub request_id: String,
}

impl Problem {
    /// The media type of a problem.
    pub const MEDIA_TYPE: &'static str = "application/problem+json";

    /// A refusal as it is sent to the caller.
    pub fn new(refusal: &Refusal, field: Option<&str>, request_id: &str) -> Self {
        let code = refusal.code;
        Self {
            kind: format!("/docs/errors/{code}").into(),
            title: code.as_str().replace('_', " ").into(),
            status: code.status(),
            code: code.as_str().into(),
            detail: refusal.cause.to_string(),
            remedy: code.remedy().into(),
            retryable: refusal.is_retryable(),
            retry_after_ms: refusal.retry_after_ms,
            field: field.map(str::to_owned),
            reason: None,
            session_id: None,
            sandbox_id: None,
            request_id: request_id.to_owned(),
        }
    }

    /// The code, if this version knows it.
    pub fn error_code(&self) -> Option<ErrorCode> {
        ErrorCode::ALL.iter().copied().find(|code| code.as_str() == self.code)
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.code, self.detail)
    }
}

impl std::error::Error for Problem {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn problem_has_code_cause_and_remedy() {
        let refusal = Refusal::new(ErrorCode::QueueFull, "1024 wait already").retry_after(250);
        let problem = Problem::new(&refusal, None, "r1");
        assert_eq!(
            serde_json::to_value(&problem).unwrap(),
            serde_json::json!({
                "type": "/docs/errors/queue_full",
                "title": "queue full",
                "status": 503,
                "code": "queue_full",
                "detail": "1024 wait already",
                "remedy": "retry later, or raise max_waiters",
                "retryable": true,
                "retry_after_ms": 250,
                "request_id": "r1",
            })
        );
        assert_eq!(problem.error_code(), Some(ErrorCode::QueueFull));
    }

    #[test]
    fn every_error_code_is_read_back_and_unknown_ones_are_not() {
        for &code in ErrorCode::ALL {
            let problem = Problem::new(&Refusal::new(code, "c"), Some("f"), "r");
            let text = serde_json::to_string(&problem).unwrap();
            let read: Problem = serde_json::from_str(&text).unwrap();
            assert_eq!((read.error_code(), &read), (Some(code), &problem));
        }
        let mut newer = Problem::new(&Refusal::new(ErrorCode::Internal, "c"), None, "r");
        newer.code = "of_the_future".into();
        assert_eq!(newer.error_code(), None);
    }
}

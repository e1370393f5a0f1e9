//! Errors of the client: the server refused, or no answer arrived.

use std::time::Duration;

use model::ErrorCode;
use wire::Problem;

/// Why a call failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ClientError {
    /// The server refused, with the reason.
    #[error("{0}")]
    Problem(Box<Problem>),
    /// No connection could be made, so nothing was sent.
    #[error("no server at {address}: {cause}")]
    Connect {
        /// The address of the server.
        address: String,
        /// Why not.
        cause: String,
    },
    /// The connection ended before the answer. The server may have done the request.
    #[error("the connection broke: {cause}")]
    Cut {
        /// Why.
        cause: String,
    },
    /// No answer came in time. The server may have done the request.
    #[error("no answer to {call} after {} ms", after.as_millis())]
    Timeout {
        /// Method and path.
        call: String,
        /// How long the client waited.
        after: Duration,
    },
    /// The answer is not of this API: another kind of server, or another version.
    #[error("the answer to {call} ({status}) is not understood: {cause}")]
    Unexpected {
        /// Method and path.
        call: String,
        /// The HTTP status.
        status: u16,
        /// What is wrong with it.
        cause: String,
    },
    /// The call itself cannot be made.
    #[error("{cause}")]
    Invalid {
        /// What is wrong with it.
        cause: String,
    },
}

impl ClientError {
    pub(crate) fn invalid(cause: impl Into<String>) -> Self {
        Self::Invalid { cause: cause.into() }
    }

    pub(crate) fn cut(cause: impl std::fmt::Display) -> Self {
        Self::Cut { cause: cause.to_string() }
    }

    /// Whether the same call may work later.
    pub fn retryable(&self) -> bool {
        match self {
            Self::Problem(problem) => problem.retryable,
            Self::Connect { .. } | Self::Cut { .. } | Self::Timeout { .. } => true,
            Self::Unexpected { .. } | Self::Invalid { .. } => false,
        }
    }

    /// When to try again, if the server said so.
    pub fn retry_after(&self) -> Option<Duration> {
        self.problem()?.retry_after_ms.map(Duration::from_millis)
    }

    /// The error of the server, if it refused.
    pub fn problem(&self) -> Option<&Problem> {
        match self {
            Self::Problem(problem) => Some(problem),
            Self::Connect { .. }
            | Self::Cut { .. }
            | Self::Timeout { .. }
            | Self::Unexpected { .. }
            | Self::Invalid { .. } => None,
        }
    }

    /// The error code, if the server refused with a known one.
    pub fn code(&self) -> Option<ErrorCode> {
        self.problem()?.error_code()
    }
}

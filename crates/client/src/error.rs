//! What can go wrong: the server refused, or there was no answer to be had.

use std::time::Duration;

use model::ErrorCode;
use wire::Problem;

/// Why a call failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ClientError {
    /// The server refused, and says why.
    #[error("{0}")]
    Problem(Box<Problem>),
    /// No connection came about, so nothing was asked.
    #[error("no server at {address}: {cause}")]
    Connect {
        /// Where.
        address: String,
        /// Why not.
        cause: String,
    },
    /// The connection ended before the answer did. What was asked may have been done.
    #[error("the connection was cut off: {cause}")]
    Cut {
        /// What is known of it.
        cause: String,
    },
    /// No answer came in time. What was asked may have been done.
    #[error("no answer to {call} after {} ms", after.as_millis())]
    Timeout {
        /// Method and path.
        call: String,
        /// How long was waited.
        after: Duration,
    },
    /// The answer is none of this API: another kind of server, or another version.
    #[error("{call} was answered with {status}, which cannot be understood: {cause}")]
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

    /// When that is likely, if the server said so.
    pub fn retry_after(&self) -> Option<Duration> {
        self.problem()?.retry_after_ms.map(Duration::from_millis)
    }

    /// The server's own words.
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

    /// The code to branch on, if the server refused with one that is known here.
    pub fn code(&self) -> Option<ErrorCode> {
        self.problem()?.error_code()
    }
}

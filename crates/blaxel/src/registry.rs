//! State of the dialect beside the engine, and errors of names that the engine stores.

use engine::NamedError;
use model::{ErrorCode, Refusal, Wall};

use super::terminal::Terminals;

/// The kind of names that are sandboxes of Blaxel.
pub(super) const KIND: &str = "blaxel.sandbox";

/// The state of the dialect.
pub(crate) struct Registry {
    pub(super) began: Wall,
    pub(super) terminals: Terminals,
}

impl Registry {
    pub(crate) fn new(began: Wall) -> Self {
        Self { began, terminals: Terminals::default() }
    }
}

/// Why a sandbox could not be created or changed.
pub(super) fn refused(error: NamedError) -> Refusal {
    let too_much = |cause: String| Refusal::new(ErrorCode::LimitReached, cause);
    match error {
        NamedError::Busy => Refusal::new(
            ErrorCode::Overloaded,
            "another request is already creating this sandbox; retry",
        )
        .retry_after(1000),
        NamedError::TooMany(most) => too_much(format!("the key already has {most} sandboxes")),
        NamedError::TooLarge(most) => {
            too_much(format!("descriptions of all sandboxes have more than {most} bytes"))
        }
        NamedError::Refused(refusal) => refusal,
    }
}

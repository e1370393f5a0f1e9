//! What the dialect keeps beside the engine, and what it calls things that the engine keeps under
//! names.

use engine::NamedError;
use model::{ErrorCode, Refusal, Wall};

use super::terminal::Terminals;

/// What sandboxes of Blaxel are called among what has a name.
pub(super) const KIND: &str = "blaxel.sandbox";

/// What the dialect keeps.
pub(crate) struct Registry {
    pub(super) began: Wall,
    pub(super) terminals: Terminals,
}

impl Registry {
    pub(crate) fn new(began: Wall) -> Self {
        Self { began, terminals: Terminals::default() }
    }
}

/// Why a sandbox was not made or changed.
pub(super) fn refused(error: NamedError) -> Refusal {
    let too_much = |cause: String| Refusal::new(ErrorCode::LimitReached, cause);
    match error {
        NamedError::Busy => {
            Refusal::new(ErrorCode::Overloaded, "others make sandboxes").retry_after(1000)
        }
        NamedError::TooMany(most) => too_much(format!("there are {most} sandboxes already")),
        NamedError::TooLarge(most) => {
            too_much(format!("descriptions of all sandboxes have more than {most} bytes"))
        }
        NamedError::Refused(refusal) => refusal,
    }
}

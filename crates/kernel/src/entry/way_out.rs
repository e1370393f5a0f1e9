//! The way of a sandbox to its end: why it ends, what is left of it, and how firm that is. The
//! steps on it are taken in `ending`.

use std::sync::Arc;

use model::why::Eviction;
use model::{EndCause, Mono};

/// The way to its end.
#[derive(Debug, Clone)]
pub(crate) struct Ending {
    pub(crate) cause: EndCause,
    pub(crate) detail: Option<Arc<str>>,
    pub(crate) eviction: Option<Arc<Eviction>>,
    pub(crate) after: After,
    /// What happens if a use comes in between, or if the files cannot be saved.
    pub(crate) resolve: Resolve,
    /// The removal in progress takes the workspace along.
    pub(crate) takes_workspace: bool,
    /// Saves that worked, while something went on writing.
    pub(crate) saves: u32,
    pub(crate) attempts: u32,
    pub(crate) retry_at: Mono,
}

impl Ending {
    /// An end at once that leaves nothing.
    pub(crate) const fn now(cause: EndCause) -> Self {
        Self {
            cause,
            detail: None,
            eviction: None,
            after: After::Gone,
            resolve: Resolve::Now,
            takes_workspace: false,
            saves: 0,
            attempts: 0,
            retry_at: Mono::NEVER,
        }
    }
}

/// What is left when the process is gone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum After {
    /// Nothing: record and workspace go.
    Gone,
    /// A cold record with the workspace.
    Cold,
    /// The same under a new id, because this one died.
    Renamed,
    /// No record: the files stay with the session.
    Shelved,
}

/// How firm the decision to end it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Resolve {
    /// Void as soon as a caller uses it; its files come first.
    Voidable,
    /// Its user wants it, but its files come first.
    Careful,
    /// It must end: its files are saved if that works within a few attempts.
    Firm,
    /// At once.
    Now,
}

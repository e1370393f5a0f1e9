//! The way of a sandbox to its end: why it ends, what is left of it, and how firm that is. The
//! steps on it are taken in `crate::termination`.

use std::sync::Arc;

use model::why::Eviction;
use model::{EndCause, Mono};

/// The way to its end.
#[derive(Debug, Clone)]
pub(crate) struct Termination {
    pub(crate) cause: EndCause,
    pub(crate) detail: Option<Arc<str>>,
    pub(crate) eviction: Option<Arc<Eviction>>,
    pub(crate) after: AfterEnd,
    /// What happens if a use comes in between, or if the files cannot be saved.
    pub(crate) firmness: Firmness,
    /// The removal in progress takes the workspace along.
    pub(crate) takes_workspace: bool,
    /// Saves that worked, while something went on writing.
    saves: u32,
    /// Saves that failed, or removals once those are tried.
    attempts: u32,
    retry_at: Mono,
}

impl Termination {
    /// An end at once that leaves nothing.
    pub(crate) const fn now(cause: EndCause) -> Self {
        Self::new(cause, AfterEnd::Gone, Firmness::Now)
    }

    pub(crate) const fn new(cause: EndCause, after: AfterEnd, firmness: Firmness) -> Self {
        Self {
            cause,
            detail: None,
            eviction: None,
            after,
            firmness,
            takes_workspace: false,
            saves: 0,
            attempts: 0,
            retry_at: Mono::NEVER,
        }
    }

    /// An attempt failed. Tells how many have.
    pub(crate) const fn attempt_failed(&mut self) -> u32 {
        self.attempts += 1;
        self.attempts
    }

    /// From now on its removal is attempted.
    pub(crate) const fn removal_began(&mut self) {
        self.attempts = 0;
    }

    /// The next attempt is at `at`.
    pub(crate) const fn retry(&mut self, at: Mono) {
        self.retry_at = at;
    }

    /// Tells whether the time of the next attempt has come.
    pub(crate) fn take_retry(&mut self, now: Mono) -> bool {
        let due = self.retry_at <= now;
        if due {
            self.retry_at = Mono::NEVER;
        }
        due
    }

    /// When the next attempt is, if one waits for its time.
    pub(crate) const fn retry_at(&self) -> Mono {
        self.retry_at
    }

    /// A save worked. Tells how many have.
    pub(crate) const fn save_worked(&mut self) -> u32 {
        self.saves += 1;
        self.saves
    }
}

/// What is left when the process is gone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum AfterEnd {
    /// Nothing: record and workspace go.
    Gone,
    /// A cold record with the workspace.
    Cold,
    /// The same under a new id, because this one died.
    Renamed,
    /// No record: the files stay with the session.
    Shelved,
}

/// How firm the decision to end it is, the weakest first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Firmness {
    /// Void as soon as a caller uses it; its files come first.
    Voidable,
    /// Its user wants it, but its files come first.
    Careful,
    /// It must end: its files are saved if that works within a few attempts.
    Firm,
    /// At once.
    Now,
}

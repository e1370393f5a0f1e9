//! The termination of a sandbox: why it ends, what stays of it, and how firm the decision is. The
//! steps are taken in `crate::termination`.

use std::sync::Arc;

use model::why::Eviction;
use model::{EndCause, Mono};

/// The termination of a sandbox.
#[derive(Debug, Clone)]
pub(crate) struct Termination {
    pub(crate) cause: EndCause,
    pub(crate) detail: Option<Arc<str>>,
    pub(crate) eviction: Option<Arc<Eviction>>,
    pub(crate) after: AfterEnd,
    /// What happens if a use comes meanwhile, or if a save fails.
    pub(crate) firmness: Firmness,
    /// The removal in progress deletes the workspace too.
    pub(crate) takes_workspace: bool,
    /// Saves that worked while something still wrote.
    saves: u32,
    /// Saves that failed, or later removals that failed.
    attempts: u32,
    retry_at: Mono,
}

impl Termination {
    /// A termination at once that leaves nothing.
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

    /// An attempt failed. Returns how many have.
    pub(crate) const fn attempt_failed(&mut self) -> u32 {
        self.attempts += 1;
        self.attempts
    }

    /// The removal begins: attempts are counted from zero.
    pub(crate) const fn removal_began(&mut self) {
        self.attempts = 0;
    }

    /// The next attempt is at `at`.
    pub(crate) const fn retry(&mut self, at: Mono) {
        self.retry_at = at;
    }

    /// Returns whether the next attempt is due.
    pub(crate) fn take_retry(&mut self, now: Mono) -> bool {
        let due = self.retry_at <= now;
        if due {
            self.retry_at = Mono::NEVER;
        }
        due
    }

    /// When the next attempt is due, if there is one.
    pub(crate) const fn retry_at(&self) -> Mono {
        self.retry_at
    }

    /// A save worked. Returns how many have.
    pub(crate) const fn save_worked(&mut self) -> u32 {
        self.saves += 1;
        self.saves
    }
}

/// What stays when the instance is gone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum AfterEnd {
    /// Nothing: record and workspace are removed.
    Gone,
    /// A cold record with the workspace.
    Cold,
    /// The same under a new id, because this sandbox died.
    Renamed,
    /// No record: the session is shelved with its files.
    Shelved,
}

/// How firm the decision is, the weakest first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Firmness {
    /// Void as soon as a caller uses the sandbox, or if a save fails.
    Voidable,
    /// Its user requested it, but a failed save voids it.
    Careful,
    /// It must end: its files are saved first if that works within a few attempts.
    Firm,
    /// At once.
    Now,
}

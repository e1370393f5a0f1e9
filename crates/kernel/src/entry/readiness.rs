//! Whether the launched instance of a sandbox became ready. Its end is published only if it did.

/// Whether the launched instance became ready.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum Readiness {
    /// Not yet, or its end was already published.
    #[default]
    NotYet,
    /// It was ready in this generation, so its end must be published.
    Ready,
    /// Its launch failed; a waiting caller is refused when it is removed.
    Failed,
}

impl Readiness {
    /// As recorded in the journal before a restart.
    pub(crate) const fn recorded(announced: bool) -> Self {
        if announced { Self::Ready } else { Self::NotYet }
    }

    /// Its end is being published. Returns whether it must be.
    pub(crate) fn end_announced(&mut self) -> bool {
        let ready = *self == Self::Ready;
        if ready {
            *self = Self::NotYet;
        }
        ready
    }
}

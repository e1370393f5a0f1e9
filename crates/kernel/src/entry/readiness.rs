//! Whether what was launched for a sandbox became ready: its end is announced only if it did.

/// Whether what was launched became ready.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum Readiness {
    /// Not yet, or not since its end was announced.
    #[default]
    NotYet,
    /// It has been ready in this generation, so its end is to be announced.
    Ready,
    /// Its launch failed, and a caller that waits is to hear of it when it is gone.
    Failed,
}

impl Readiness {
    /// What was written down before a restart.
    pub(crate) const fn recorded(announced: bool) -> Self {
        if announced { Self::Ready } else { Self::NotYet }
    }

    /// Its end is announced now. Tells whether it is to be.
    pub(crate) fn end_announced(&mut self) -> bool {
        let ready = *self == Self::Ready;
        if ready {
            *self = Self::NotYet;
        }
        ready
    }
}

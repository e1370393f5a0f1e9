//! What users saw of the state of a sandbox: the state at the end of the last decision, and how many
//! changes the kernel told lately. It leaves out changes that come too fast, counts them, and tells
//! the last one of a burst late, so that the last one told is always the present state. This module
//! never changes a state.

use model::{Mono, SandboxState};

/// The most changes of one sandbox that the kernel tells within [`WINDOW_MS`], besides its end.
pub const CHANGES_TOLD_MAX: u32 = 10;

/// For how long it counts changes before it tells more of them.
pub(crate) const WINDOW_MS: u64 = 1_000;

/// What users saw of the state of a sandbox.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Shown {
    /// The state at the end of the last decision.
    state: SandboxState,
    /// The state before it, if users did not see that change yet.
    untold_from: Option<SandboxState>,
    /// Changes left out since the last one that users saw, besides the one above.
    skipped: u32,
    /// Since when it counts changes, and how many it told since.
    window_from: Mono,
    told: u32,
}

/// What is to be done about a change.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Change {
    /// There is none, or it waits for a time that is set already.
    None,
    /// Tell it now.
    Tell(Told),
    /// There were too many: tell it then, if it is still the last one.
    Later(Mono),
}

/// A change that users see.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Told {
    pub(crate) from: SandboxState,
    pub(crate) to: SandboxState,
    /// Changes before it that were left out.
    pub(crate) skipped: u32,
}

impl Default for Shown {
    /// Users saw nothing yet: every sandbox begins without a process.
    fn default() -> Self {
        Self::of(SandboxState::Cold)
    }
}

impl Shown {
    /// One that is in this state, with nothing left to tell.
    pub(crate) const fn of(state: SandboxState) -> Self {
        Self { state, untold_from: None, skipped: 0, window_from: Mono(0), told: 0 }
    }

    pub(crate) const fn state(self) -> SandboxState {
        self.state
    }

    /// A decision is over, and the state is this.
    pub(crate) fn becomes(&mut self, to: SandboxState, now: Mono) -> Change {
        let from = std::mem::replace(&mut self.state, to);
        if from == to {
            return Change::None;
        }
        if now.since(self.window_from) >= WINDOW_MS {
            (self.window_from, self.told) = (now, 0);
        }
        if self.told < CHANGES_TOLD_MAX {
            self.told += 1;
            return Change::Tell(self.tell(from));
        }
        if self.untold_from.replace(from).is_some() {
            // The alarm is set already.
            self.skipped += 1;
            return Change::None;
        }
        Change::Later(self.window_from.plus(WINDOW_MS))
    }

    /// Time has passed: maybe the last change of a burst is due now.
    pub(crate) fn time_passed(&mut self, now: Mono) -> Change {
        let Some(from) = self.untold_from else { return Change::None };
        let at = self.window_from.plus(WINDOW_MS);
        if now < at {
            return Change::Later(at);
        }
        (self.window_from, self.told) = (now, 1);
        self.untold_from = None;
        Change::Tell(self.tell(from))
    }

    /// The sandbox is gone, or goes on under another id: the last change that users see of this one.
    pub(crate) fn gone(mut self) -> Option<Told> {
        let to = SandboxState::Cold;
        let from = std::mem::replace(&mut self.state, to);
        if from == to {
            return self.untold_from.take().map(|from| self.tell(from));
        }
        Some(self.tell(from))
    }

    /// The change from there to the present state, with what was left out before it.
    fn tell(&mut self, from: SandboxState) -> Told {
        let untold = u32::from(self.untold_from.take().is_some());
        let skipped = std::mem::take(&mut self.skipped) + untold;
        Told { from, to: self.state, skipped }
    }
}

#[cfg(test)]
mod tests {
    use SandboxState::{Cold, Running, Waiting, Warm, Warming};

    use super::*;

    fn told(from: SandboxState, to: SandboxState, skipped: u32) -> Change {
        Change::Tell(Told { from, to, skipped })
    }

    #[test]
    fn changes_are_told_up_to_a_limit_and_then_counted() {
        let mut shown = Shown::default();
        let start = Mono(5_000);
        assert_eq!(shown.becomes(Cold, start), Change::None);
        assert_eq!(shown.becomes(Warming, start), told(Cold, Warming, 0));
        assert_eq!(shown.becomes(Warm, start), told(Warming, Warm, 0));
        for _ in 0..(CHANGES_TOLD_MAX - 2) / 2 {
            assert!(matches!(shown.becomes(Running, start.plus(1)), Change::Tell(_)));
            assert!(matches!(shown.becomes(Waiting, start.plus(2)), Change::Tell(_)));
        }
        let end = start.plus(WINDOW_MS);
        assert_eq!(shown.becomes(Running, start.plus(3)), Change::Later(end));
        assert_eq!(shown.becomes(Waiting, start.plus(4)), Change::None, "it waits already");
        assert_eq!(shown.time_passed(start.plus(5)), Change::Later(end));
        assert_eq!(shown.time_passed(end), told(Running, Waiting, 1), "the last one comes late");
        assert_eq!(shown.time_passed(end), Change::None);
    }

    #[test]
    fn the_next_change_after_a_burst_says_how_many_were_left_out() {
        let mut shown = Shown::of(Waiting);
        let start = Mono(0);
        for _ in 0..CHANGES_TOLD_MAX {
            shown.becomes(Running, start);
            shown.becomes(Waiting, start);
        }
        let left_out = CHANGES_TOLD_MAX;
        assert_eq!(shown.becomes(Running, start.plus(WINDOW_MS)), told(Waiting, Running, left_out));
    }

    #[test]
    fn one_that_is_gone_is_told_whatever_was_told_before() {
        let mut shown = Shown::of(Waiting);
        for _ in 0..CHANGES_TOLD_MAX {
            shown.becomes(Running, Mono(0));
            shown.becomes(Waiting, Mono(0));
        }
        let left_out = CHANGES_TOLD_MAX;
        let gone = Some(Told { from: Waiting, to: Cold, skipped: left_out });
        assert_eq!(shown.gone(), gone);
        shown.becomes(Cold, Mono(0));
        assert_eq!(shown.gone(), gone, "also if it was cold already and that was left out");
        assert_eq!(Shown::default().gone(), None);
    }
}

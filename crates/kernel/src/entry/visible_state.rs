//! The state of a sandbox that users saw last, and how many transitions the kernel published
//! lately. Transitions that come too fast are counted instead of published. The last transition of
//! a burst is published late, so users always end with the present state. This module never changes
//! a state.

use model::{Mono, SandboxState};

/// The most transitions of one sandbox that the kernel publishes within `WINDOW_MS`, besides its
/// end.
pub const TRANSITIONS_PER_SECOND_MAX: u32 = 10;

/// The window in which transitions are counted.
pub(crate) const WINDOW_MS: u64 = 1_000;

/// The state of a sandbox that users saw last.
#[derive(Debug, Clone, Copy)]
pub(crate) struct VisibleState {
    /// The state at the end of the last decision.
    state: SandboxState,
    /// The state before it, if that transition is not published yet.
    unpublished_from: Option<SandboxState>,
    /// Transitions skipped since the last published one, besides the one above.
    skipped: u32,
    /// When the window began, and how many transitions were published in it.
    window_from: Mono,
    published: u32,
}

/// Whether to publish a transition.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Publish {
    /// There is none, or it waits for an alarm that is already set.
    Nothing,
    /// Publish it now.
    Now(VisibleChange),
    /// There were too many: publish it then, if it is still the last one.
    At(Mono),
}

/// A transition that users see.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct VisibleChange {
    pub(crate) from: SandboxState,
    pub(crate) to: SandboxState,
    /// Transitions before it that were skipped.
    pub(crate) skipped: u32,
}

impl Default for VisibleState {
    /// Users saw nothing yet: every sandbox starts cold.
    fn default() -> Self {
        Self::of(SandboxState::Cold)
    }
}

impl VisibleState {
    /// A sandbox in this state, with nothing left to publish.
    pub(crate) const fn of(state: SandboxState) -> Self {
        Self { state, unpublished_from: None, skipped: 0, window_from: Mono(0), published: 0 }
    }

    pub(crate) const fn state(self) -> SandboxState {
        self.state
    }

    /// At the end of a decision the state is this.
    pub(crate) fn becomes(&mut self, to: SandboxState, now: Mono) -> Publish {
        let from = std::mem::replace(&mut self.state, to);
        if from == to {
            return Publish::Nothing;
        }
        if now.since(self.window_from) >= WINDOW_MS {
            (self.window_from, self.published) = (now, 0);
        }
        if self.published < TRANSITIONS_PER_SECOND_MAX {
            self.published += 1;
            return Publish::Now(self.publish(from));
        }
        if self.unpublished_from.replace(from).is_some() {
            // The alarm is set already.
            self.skipped += 1;
            return Publish::Nothing;
        }
        Publish::At(self.window_from.plus(WINDOW_MS))
    }

    /// Time passed: the last transition of a burst may be due.
    pub(crate) fn time_passed(&mut self, now: Mono) -> Publish {
        let Some(from) = self.unpublished_from else { return Publish::Nothing };
        let at = self.window_from.plus(WINDOW_MS);
        if now < at {
            return Publish::At(at);
        }
        (self.window_from, self.published) = (now, 1);
        self.unpublished_from = None;
        Publish::Now(self.publish(from))
    }

    /// The sandbox is gone, or continues under another id: the last transition of this one.
    pub(crate) fn gone(mut self) -> Option<VisibleChange> {
        let to = SandboxState::Cold;
        let from = std::mem::replace(&mut self.state, to);
        if from == to {
            return self.unpublished_from.take().map(|from| self.publish(from));
        }
        Some(self.publish(from))
    }

    /// The transition from there to the present state, with what was skipped before it.
    fn publish(&mut self, from: SandboxState) -> VisibleChange {
        let unpublished = u32::from(self.unpublished_from.take().is_some());
        let skipped = std::mem::take(&mut self.skipped) + unpublished;
        VisibleChange { from, to: self.state, skipped }
    }
}

#[cfg(test)]
mod tests {
    use SandboxState::{Cold, Running, Waiting, Warm, Warming};

    use super::*;

    fn published(from: SandboxState, to: SandboxState, skipped: u32) -> Publish {
        Publish::Now(VisibleChange { from, to, skipped })
    }

    #[test]
    fn transitions_are_published_up_to_a_limit_and_then_counted() {
        let mut visible = VisibleState::default();
        let start = Mono(5_000);
        assert_eq!(visible.becomes(Cold, start), Publish::Nothing);
        assert_eq!(visible.becomes(Warming, start), published(Cold, Warming, 0));
        assert_eq!(visible.becomes(Warm, start), published(Warming, Warm, 0));
        for _ in 0..(TRANSITIONS_PER_SECOND_MAX - 2) / 2 {
            assert!(matches!(visible.becomes(Running, start.plus(1)), Publish::Now(_)));
            assert!(matches!(visible.becomes(Waiting, start.plus(2)), Publish::Now(_)));
        }
        let end = start.plus(WINDOW_MS);
        assert_eq!(visible.becomes(Running, start.plus(3)), Publish::At(end));
        assert_eq!(visible.becomes(Waiting, start.plus(4)), Publish::Nothing, "it waits already");
        assert_eq!(visible.time_passed(start.plus(5)), Publish::At(end));
        assert_eq!(
            visible.time_passed(end),
            published(Running, Waiting, 1),
            "the last one comes late"
        );
        assert_eq!(visible.time_passed(end), Publish::Nothing);
    }

    #[test]
    fn transition_after_a_burst_says_how_many_were_skipped() {
        let mut visible = VisibleState::of(Waiting);
        let start = Mono(0);
        for _ in 0..TRANSITIONS_PER_SECOND_MAX {
            visible.becomes(Running, start);
            visible.becomes(Waiting, start);
        }
        let left_out = TRANSITIONS_PER_SECOND_MAX;
        assert_eq!(
            visible.becomes(Running, start.plus(WINDOW_MS)),
            published(Waiting, Running, left_out)
        );
    }

    #[test]
    fn last_transition_of_a_sandbox_is_always_published() {
        let mut visible = VisibleState::of(Waiting);
        for _ in 0..TRANSITIONS_PER_SECOND_MAX {
            visible.becomes(Running, Mono(0));
            visible.becomes(Waiting, Mono(0));
        }
        let left_out = TRANSITIONS_PER_SECOND_MAX;
        let gone = Some(VisibleChange { from: Waiting, to: Cold, skipped: left_out });
        assert_eq!(visible.gone(), gone);
        visible.becomes(Cold, Mono(0));
        assert_eq!(visible.gone(), gone, "also if it was cold already and that was left out");
        assert_eq!(VisibleState::default().gone(), None);
    }
}

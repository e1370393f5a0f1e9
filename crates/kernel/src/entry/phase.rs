//! The life of a sandbox: its phases, every step from one phase to the next, and why each is taken.
//! A phase changes by one of these steps and in no other way. `docs/architecture.md` draws them,
//! and a test compares the drawing with this file.
//!
//! Whether its processes run is a part of it too. After a failed freeze the kernel never assumes
//! that they do.

use model::SandboxState;

use crate::entry::Entry;
use crate::request::RequestIx;

/// What a sandbox is doing, in more detail than its state shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Phase {
    /// No process.
    Cold,
    /// Being started.
    Launching,
    /// In its pool, ready to be handed out.
    Idle,
    /// Being bound to a lease (with the request that waits for it) or a session.
    Claiming(Option<RequestIx>),
    /// A lease's or a session's.
    InUse,
    /// Being wiped after a use.
    Wiping,
    /// Being proven clean after a wipe.
    Proving,
    /// Being removed, until that is confirmed.
    Killing,
}

/// A reason to go from one phase to the next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Step {
    /// A pool refills, a caller waits, or a session wants it: an instance is launched.
    Launch,
    /// Its guest answers; it joins the idle list of its pool.
    Warm,
    /// Its guest answers; the session it was launched for uses it.
    Resume,
    /// It is handed out to a lease at once: there is nothing to bind.
    HandOut,
    /// A session takes it, or a lease (with its waiting request) that has settings to bind or must
    /// probe it first.
    Claim(Option<RequestIx>),
    /// Its guest has bound the settings of the lease or the session.
    Bind,
    /// Its lease ended and nothing of the user is in it.
    Keep,
    /// Its lease ended.
    Wipe,
    /// The wipe succeeded.
    Prove,
    /// It is clean, and joins the idle list of its pool under another id.
    Reuse,
    /// It ends: deleted, evicted, expired, swept, dead, unfit, or the node stops.
    Kill,
    /// The server starts again and removes what an earlier run left.
    CleanUp,
    /// Its instance is gone; its session keeps its files.
    Sleep,
}

/// Whether its processes run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Frozen {
    No,
    Yes,
    /// A freeze failed: it must be thawed before use, to be sure.
    Unsure,
}

impl Step {
    /// The phase it leads to.
    const fn leads_to(self) -> Phase {
        match self {
            Self::Launch => Phase::Launching,
            Self::Warm | Self::Keep | Self::Reuse => Phase::Idle,
            Self::Claim(request) => Phase::Claiming(request),
            Self::Resume | Self::HandOut | Self::Bind => Phase::InUse,
            Self::Wipe => Phase::Wiping,
            Self::Prove => Phase::Proving,
            Self::Kill | Self::CleanUp => Phase::Killing,
            Self::Sleep => Phase::Cold,
        }
    }

    /// Whether it may be taken in a phase.
    const fn may_follow(self, phase: Phase) -> bool {
        match self {
            Self::Launch | Self::CleanUp => matches!(phase, Phase::Cold),
            Self::Warm | Self::Resume => matches!(phase, Phase::Launching),
            Self::HandOut | Self::Claim(_) => matches!(phase, Phase::Idle),
            Self::Bind => matches!(phase, Phase::Claiming(_)),
            Self::Keep | Self::Wipe => matches!(phase, Phase::InUse),
            Self::Prove => matches!(phase, Phase::Wiping),
            Self::Reuse => matches!(phase, Phase::Proving),
            Self::Kill => !matches!(phase, Phase::Cold | Phase::Killing),
            Self::Sleep => matches!(phase, Phase::Killing),
        }
    }
}

impl Entry {
    pub(crate) const fn phase(&self) -> Phase {
        self.phase
    }

    /// The state that users see.
    pub(crate) fn state(&self) -> SandboxState {
        match self.phase {
            Phase::Cold => SandboxState::Cold,
            Phase::Launching => SandboxState::Warming,
            Phase::Wiping | Phase::Proving => SandboxState::Waiting,
            // A removal shows nothing of its own until it is confirmed.
            Phase::Killing => match self.derived.state {
                SandboxState::Cold => SandboxState::Warming,
                state @ (SandboxState::Warming
                | SandboxState::Warm
                | SandboxState::Waiting
                | SandboxState::Running) => state,
            },
            Phase::InUse if self.holds.is_running() => SandboxState::Running,
            Phase::InUse if self.clean.is_used() => SandboxState::Waiting,
            Phase::InUse | Phase::Idle | Phase::Claiming(_) => SandboxState::Warm,
        }
    }

    /// Takes a step to the next phase.
    pub(crate) fn take(&mut self, step: Step) {
        debug_assert!(step.may_follow(self.phase), "{step:?} does not follow {:?}", self.phase);
        self.phase = step.leads_to();
    }

    /// The request that waited for it was answered or went away. The claim continues.
    pub(crate) fn claim_unwanted(&mut self) {
        debug_assert!(matches!(self.phase, Phase::Claiming(_)), "only a claim is unwanted");
        self.phase = Phase::Claiming(None);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::fmt::Write as _;

    use super::{Phase, Step};

    const PHASES: [Phase; 8] = [
        Phase::Cold,
        Phase::Launching,
        Phase::Idle,
        Phase::Claiming(None),
        Phase::InUse,
        Phase::Wiping,
        Phase::Proving,
        Phase::Killing,
    ];

    const STEPS: [Step; 13] = [
        Step::Launch,
        Step::Warm,
        Step::Resume,
        Step::HandOut,
        Step::Claim(None),
        Step::Bind,
        Step::Keep,
        Step::Wipe,
        Step::Prove,
        Step::Reuse,
        Step::Kill,
        Step::CleanUp,
        Step::Sleep,
    ];

    /// A name without what belongs to one sandbox.
    fn name(shown: impl std::fmt::Debug) -> String {
        format!("{shown:?}").split('(').next().unwrap_or_default().to_owned()
    }

    /// The arrows of the code, as the drawing writes them.
    fn arrows() -> BTreeSet<String> {
        let mut arrows = BTreeSet::new();
        for step in STEPS {
            for phase in PHASES.into_iter().filter(|phase| step.may_follow(*phase)) {
                let mut arrow = String::new();
                let (from, to) = (name(phase), name(step.leads_to()));
                let _ = write!(arrow, "{from} --> {to}: {}", name(step));
                arrows.insert(arrow);
            }
        }
        arrows
    }

    #[test]
    fn the_drawing_in_the_architecture_document_shows_every_step() {
        let document = include_str!("../../../../docs/architecture.md");
        let drawn: BTreeSet<String> = document
            .lines()
            .map(str::trim)
            .filter(|line| line.contains(" --> ") && !line.contains("[*]"))
            .map(|line| line.split(" (").next().unwrap_or(line).to_owned())
            .collect();
        assert_eq!(arrows(), drawn, "docs/architecture.md draws other steps than the code takes");
    }

    #[test]
    fn every_phase_is_reached_and_left() {
        for phase in PHASES {
            let reached = STEPS.iter().any(|step| name(step.leads_to()) == name(phase));
            let left = STEPS.iter().any(|step| step.may_follow(phase));
            assert!(reached && left, "{phase:?} is a dead end or is never reached");
        }
    }
}

//! Publishes each transition of the state that users see, at the end of a decision. A transition is
//! never in the journal, and a decision that has nothing else to store is not committed because of
//! it.
//!
//! To users an id begins `cold` and ends `cold`: the last transition of a sandbox that is gone, or
//! that continues under another id, leads there and says why.

use model::{EndCause, Generation, KeyId, SandboxId, SandboxState, SessionId};

use crate::Kernel;
use crate::alarms::Ringer;
use crate::entry::{Entry, EntryIx, Publish, VisibleChange, VisibleState};
use crate::sessions::Sessions;

/// A transition of a sandbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Transition {
    /// The key that owns the sandbox; nil if none does.
    pub tenant: KeyId,
    /// The session that owns the sandbox, if one does.
    pub session: Option<SessionId>,
    /// Which.
    pub sandbox: SandboxId,
    /// Its generation.
    pub generation: Generation,
    /// The state before.
    pub from: SandboxState,
    /// The state now.
    pub to: SandboxState,
    /// Why it is cold, if `to` is cold.
    pub cause: Option<EndCause>,
    /// Transitions just before this one that were not published, because there were too many in a
    /// second.
    pub skipped: u32,
}

/// The sandboxes whose state changed in this decision. A flag on each makes it appear once.
#[derive(Debug, Default)]
pub(crate) struct ChangedStates {
    entries: Vec<EntryIx>,
}

impl ChangedStates {
    pub(crate) fn add(&mut self, entry: EntryIx) {
        self.entries.push(entry);
    }
}

impl Kernel {
    /// At the end of a decision: publishes the transitions.
    pub(crate) fn publish_transitions(&mut self) {
        // Most decisions change no state, so this costs almost nothing.
        if self.changed_states.entries.is_empty() {
            return;
        }
        let mut at = 0;
        while let Some(&entry) = self.changed_states.entries.get(at) {
            self.publish_state_change(entry);
            at += 1;
        }
        self.changed_states.entries.clear();
    }

    fn publish_state_change(&mut self, entry: EntryIx) {
        let Some(sandbox) = self.entries.get_mut(entry) else { return };
        if !sandbox.state_changed.lower() {
            return;
        }
        let (from, to) = (sandbox.visible.state(), sandbox.derived.state);
        if self.flaws.hides_waiting(to) {
            sandbox.visible = VisibleState::of(to);
            return;
        }
        if from == to {
            return;
        }
        self.counts.transition(from, to);
        match sandbox.visible.becomes(to, self.now.mono) {
            Publish::Now(change) => {
                let one = transition(sandbox, &self.sessions, change, why_cold(sandbox, to));
                self.out.transitions.push(one);
            }
            Publish::Nothing => {}
            Publish::At(at) => {
                self.alarms.at_latest(Ringer::Entry(entry), &mut sandbox.alarm, at);
            }
        }
    }

    /// After a restore: the restored states count as seen, without transitions.
    pub(crate) fn accept_restored_states(&mut self) {
        for entry in self.changed_states.entries.drain(..) {
            if let Some(sandbox) = self.entries.get_mut(entry)
                && sandbox.state_changed.lower()
            {
                sandbox.visible = VisibleState::of(sandbox.derived.state);
            }
        }
    }

    /// Time passed: publishes the last transition of a burst.
    pub(crate) fn publish_late_transition(&mut self, entry: EntryIx) {
        let sandbox = &mut self.entries[entry];
        match sandbox.visible.time_passed(self.now.mono) {
            Publish::Nothing => {}
            Publish::Now(change) => {
                let one = transition(sandbox, &self.sessions, change, why_cold(sandbox, change.to));
                self.out.transitions.push(one);
            }
            Publish::At(at) => self.arm(entry, at),
        }
    }

    /// Publishes the last transition of a sandbox under its present id.
    pub(crate) fn publish_last_transition(&mut self, entry: EntryIx, cause: EndCause) {
        let sandbox = &mut self.entries[entry];
        let visible = std::mem::take(&mut sandbox.visible);
        if sandbox.derived.state != SandboxState::Cold && sandbox.state_changed.raise() {
            self.changed_states.add(entry);
        }
        if visible.state() != SandboxState::Cold {
            self.counts.transition(visible.state(), SandboxState::Cold);
        }
        if let Some(change) = visible.gone() {
            let one = transition(sandbox, &self.sessions, change, Some(cause));
            self.out.transitions.push(one);
        }
    }
}

/// Why a sandbox is cold, if that is its state.
fn why_cold(sandbox: &Entry, state: SandboxState) -> Option<EndCause> {
    if state == SandboxState::Cold { sandbox.slept } else { None }
}

#[inline]
fn transition(
    sandbox: &Entry,
    sessions: &Sessions,
    change: VisibleChange,
    cause: Option<EndCause>,
) -> Transition {
    Transition {
        tenant: sandbox.tenant(),
        session: sandbox.session().map(|session| sessions[session].id),
        sandbox: sandbox.id,
        generation: sandbox.generation,
        from: change.from,
        to: change.to,
        cause,
        skipped: change.skipped,
    }
}

//! Counters of the node: sandboxes by the state that users see, and what happened since the node
//! started. No decision may depend on them.

use model::{DeadlineAction, SandboxState};

/// Counters of the node.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    by_state: [u32; SandboxState::ALL.len()],
    /// How many sessions resumed in a live sandbox, and how many needed a launch.
    resumed_warm: u64,
    resumed_cold: u64,
    /// How many deadlines of sessions were reached, by action.
    deadlines_met: [u64; DeadlineAction::ALL.len()],
    /// How many sessions lost files because of the node's configuration.
    files_given_up: u64,
    /// Transitions, by state before and after.
    transitions: [[u64; SandboxState::ALL.len()]; SandboxState::ALL.len()],
}

impl Counts {
    /// The visible state of a sandbox changed.
    pub(crate) const fn transition(&mut self, from: SandboxState, to: SandboxState) {
        self.transitions[from as usize][to as usize] += 1;
    }

    /// All transitions that ever happened, with their count.
    pub(crate) fn transition_counts(
        &self,
    ) -> impl Iterator<Item = (SandboxState, SandboxState, u64)> {
        let pairs = SandboxState::ALL
            .into_iter()
            .flat_map(|from| SandboxState::ALL.into_iter().map(move |to| (from, to)));
        let counted =
            pairs.map(|(from, to)| (from, to, self.transitions[from as usize][to as usize]));
        counted.filter(|(_, _, times)| *times > 0)
    }

    pub(crate) const fn came(&mut self, state: SandboxState) {
        self.by_state[state as usize] += 1;
    }

    pub(crate) const fn went(&mut self, state: SandboxState) {
        self.by_state[state as usize] -= 1;
    }

    pub(crate) const fn resumed_warm(&mut self) {
        self.resumed_warm += 1;
    }

    pub(crate) const fn resumed_cold(&mut self) {
        self.resumed_cold += 1;
    }

    /// The deadline of a session was reached.
    pub(crate) const fn deadline_met(&mut self, action: DeadlineAction) {
        self.deadlines_met[action as usize] += 1;
    }

    /// How many deadlines were reached, in the order of [`DeadlineAction::ALL`].
    pub(crate) const fn deadlines_met(&self) -> [u64; DeadlineAction::ALL.len()] {
        self.deadlines_met
    }

    /// The node's configuration deleted the files of a session, if it had any.
    pub(crate) fn gave_up_files(&mut self, had_any: bool) {
        self.files_given_up += u64::from(had_any);
    }

    /// How many sandboxes there are in each state, in the order of [`SandboxState::ALL`].
    pub(crate) const fn by_state(&self) -> &[u32; SandboxState::ALL.len()] {
        &self.by_state
    }

    /// How many sessions resumed in a live sandbox, and how many needed a launch.
    pub(crate) const fn resumed(&self) -> (u64, u64) {
        (self.resumed_warm, self.resumed_cold)
    }

    pub(crate) const fn files_given_up(&self) -> u64 {
        self.files_given_up
    }
}

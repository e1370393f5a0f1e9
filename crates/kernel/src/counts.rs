//! What the node counts: sandboxes by the state that users see, and what happened since it started.
//! No decision may depend on it.

use model::SandboxState;

/// What the node counts.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    by_state: [u32; SandboxState::ALL.len()],
    /// How many sessions found their sandbox awake, or had to have it started.
    resumed_warm: u64,
    resumed_cold: u64,
    /// How many sessions lost files by a setting of the node.
    files_given_up: u64,
}

impl Counts {
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

    /// A setting of the node gave up the files of a session, if it had any.
    pub(crate) fn gave_up_files(&mut self, had_any: bool) {
        self.files_given_up += u64::from(had_any);
    }

    /// How many sandboxes there are in each state, in the order of [`SandboxState::ALL`].
    pub(crate) const fn by_state(&self) -> &[u32; SandboxState::ALL.len()] {
        &self.by_state
    }

    /// How many sessions found their sandbox awake, and how many had to have it started.
    pub(crate) const fn resumed(&self) -> (u64, u64) {
        (self.resumed_warm, self.resumed_cold)
    }

    pub(crate) const fn files_given_up(&self) -> u64 {
        self.files_given_up
    }
}

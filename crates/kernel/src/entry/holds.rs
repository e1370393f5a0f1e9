//! What is going on in a sandbox or is about to, and so keeps it from being taken away: the turn,
//! the uses, the requests that wait for it, the copies that are made of its files. What a program
//! of its own does to keep it awake is in `rare_state`.

use crate::event::UseKind;

/// What is going on in a sandbox or is about to.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Holds {
    demand: Demand,
    /// A turn of its session is bound to it.
    turn: bool,
    /// Commands and conversations with its harness in progress.
    execs: u32,
    /// Other uses in progress.
    calls: u32,
    /// Forks that read its files.
    copies: u32,
}

/// What those who wait for a sandbox want of it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Demand {
    /// Nothing that needs it awake.
    #[default]
    None,
    /// To use it: it may not be frozen, swept or evicted.
    Use,
    /// To run a command in it.
    Run,
}

impl Holds {
    /// Notes what those who wait want.
    pub(crate) const fn set_demand(&mut self, demand: Demand) {
        self.demand = demand;
    }

    /// It is made ready for a caller that waits.
    pub(crate) const fn pin(&mut self) {
        self.demand = match self.demand {
            Demand::None | Demand::Use => Demand::Use,
            Demand::Run => Demand::Run,
        };
    }

    pub(crate) const fn turn_bound(&mut self) {
        self.turn = true;
    }

    /// Tells whether there was a turn.
    pub(crate) const fn finish_turn(&mut self) -> bool {
        std::mem::replace(&mut self.turn, false)
    }

    pub(crate) const fn use_began(&mut self, kind: UseKind) {
        *self.count(kind) += 1;
    }

    pub(crate) const fn use_ended(&mut self, kind: UseKind) {
        *self.count(kind) -= 1;
    }

    /// All uses are over, and those who wait are sent away.
    pub(crate) const fn broken(&mut self) {
        (self.execs, self.calls) = (0, 0);
        self.demand = Demand::None;
    }

    pub(crate) const fn copy_began(&mut self) {
        self.copies += 1;
    }

    pub(crate) const fn copy_ended(&mut self) {
        self.copies = self.copies.saturating_sub(1);
    }

    const fn count(&mut self, kind: UseKind) -> &mut u32 {
        match kind {
            UseKind::Exec | UseKind::Harness => &mut self.execs,
            UseKind::Files | UseKind::Read | UseKind::Port | UseKind::Stream => &mut self.calls,
        }
    }

    /// A turn or a command runs in it, or is about to.
    pub(crate) fn is_running(&self) -> bool {
        self.turn || self.execs > 0 || self.is_wanted_to_run()
    }

    /// Nothing is in progress in it.
    pub(crate) const fn is_quiet(&self) -> bool {
        !self.turn && self.execs == 0 && self.calls == 0
    }

    /// A caller is about to use it.
    pub(crate) fn is_wanted(&self) -> bool {
        self.demand != Demand::None
    }

    /// A caller is about to run a command in it.
    pub(crate) fn is_wanted_to_run(&self) -> bool {
        self.demand == Demand::Run
    }

    pub(crate) const fn has_turn(&self) -> bool {
        self.turn
    }

    /// A fork reads its files.
    pub(crate) const fn is_copied(&self) -> bool {
        self.copies > 0
    }

    pub(crate) fn uses_in_progress(&self) -> u32 {
        self.execs + self.calls + u32::from(self.turn)
    }
}

//! What is in progress in a sandbox or about to begin, and so protects it from being taken away:
//! the turn, the uses, the requests that wait for it, the copies of its files. Keep-alive
//! (processes and the scale file) is in `rare_state`.

use crate::event::UseKind;

/// Activity in a sandbox, and what is about to begin.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Holds {
    demand: Demand,
    /// A turn of its session is bound to it.
    turn: bool,
    /// Execs and harness connections in progress.
    execs: u32,
    /// Other uses in progress.
    calls: u32,
    /// Forks that read its files.
    copies: u32,
}

/// What waiting callers need a sandbox for.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Demand {
    /// Nothing that needs it to run.
    #[default]
    None,
    /// A use: it must not be frozen, swept or evicted.
    Use,
    /// An exec.
    Run,
}

impl Holds {
    /// Stores the demand of waiting callers.
    pub(crate) const fn set_demand(&mut self, demand: Demand) {
        self.demand = demand;
    }

    /// It is being made ready for a waiting caller.
    pub(crate) const fn pin(&mut self) {
        self.demand = match self.demand {
            Demand::None | Demand::Use => Demand::Use,
            Demand::Run => Demand::Run,
        };
    }

    pub(crate) const fn turn_bound(&mut self) {
        self.turn = true;
    }

    /// Returns whether there was a turn.
    pub(crate) const fn finish_turn(&mut self) -> bool {
        std::mem::replace(&mut self.turn, false)
    }

    pub(crate) const fn use_began(&mut self, kind: UseKind) {
        *self.count(kind) += 1;
    }

    pub(crate) const fn use_ended(&mut self, kind: UseKind) {
        *self.count(kind) -= 1;
    }

    /// All uses ended, and waiting callers are refused.
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

    /// A turn or an exec runs in it, or is about to.
    pub(crate) fn is_running(&self) -> bool {
        self.turn || self.execs > 0 || self.is_wanted_to_run()
    }

    /// It has no activity.
    pub(crate) const fn is_quiet(&self) -> bool {
        !self.turn && self.execs == 0 && self.calls == 0
    }

    /// A caller is about to use it.
    pub(crate) fn is_wanted(&self) -> bool {
        self.demand != Demand::None
    }

    /// A caller is about to run an exec in it.
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

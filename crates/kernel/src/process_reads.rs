//! Reads of a sandbox's processes. A caller that polls the state or the output of a process waits
//! for it, so a read counts as a use while a process has not ended: the sandbox is not frozen, and
//! one that was frozen because it was idle is thawed. A read never thaws a sandbox that was frozen
//! or paused on request.

use model::{ErrorCode, Refusal, SandboxId, SessionStatus};

use crate::Kernel;
use crate::entry::{EntryIx, Firmness, Frozen, OpKind, Phase};
use crate::request::WaitingFor;

impl Kernel {
    pub(crate) fn processes_read(&mut self, sandbox: SandboxId) {
        let Some(entry) = self.entries.by_id(sandbox) else { return };
        if !self.is_read_a_use(entry) || self.flaws.ignores_process_reads() {
            return;
        }
        let refusal = Refusal::new(ErrorCode::SandboxBusy, "the sandbox came into use again");
        self.void_termination(entry, &refusal);
        self.touch(entry);
        if let Some(session) = self.entries[entry].session() {
            self.sessions[session].last_active_at = self.now.wall;
        }
        let sandbox = &mut self.entries[entry];
        if sandbox.frozen != Frozen::No || sandbox.ops.is_doing(OpKind::Freeze) {
            sandbox.rare_mut().thaw_for_reader = true;
        }
        if !self.thaw_if_wanted(entry) {
            self.arm_freeze_and_sweep(entry);
        }
    }

    /// Whether a caller that reads about the processes of a sandbox waits for one of them.
    fn is_read_a_use(&self, entry: EntryIx) -> bool {
        let sandbox = &self.entries[entry];
        let Some(rare) = &sandbox.rare else { return false };
        let ends = |firmness| firmness != Firmness::Voidable;
        let freezes = |what: &WaitingFor| matches!(what, WaitingFor::Freeze { frozen: true, .. });
        sandbox.phase() == Phase::InUse
            && !rare.processes.is_empty()
            && !rare.frozen_on_request
            && !rare.waiting.iter().any(|req| freezes(&self.requests[*req].what))
            && !sandbox.termination.as_ref().is_some_and(|it| ends(it.firmness))
            && sandbox.session().is_none_or(|it| self.sessions[it].status != SessionStatus::Paused)
    }
}

//! How a sandbox ends: its files are saved if that is worth it, then the instance is removed. A
//! voidable termination is void as soon as a caller uses the sandbox (promise 1). A failed save
//! never kills a sandbox, except where it must end.

use std::sync::Arc;

use model::{EndCause, Refusal};

use crate::Kernel;
use crate::effect::Action;
use crate::entry::{
    AfterEnd, EntryIx, EntryOwner, Firmness, Frozen, OpKind, Phase, Step, Termination,
};
use crate::event::{FailureKind, Outcome};
use crate::request::{RequestIx, WaitingFor};

impl Kernel {
    /// Decides that a sandbox ends. A firmer decision replaces a weaker one; a weaker one is
    /// ignored.
    // Not inlined: hot callers must not pay for its stack space.
    #[inline(never)]
    pub(crate) fn end(
        &mut self,
        entry: EntryIx,
        cause: EndCause,
        after: AfterEnd,
        firmness: Firmness,
    ) {
        self.begin_termination(entry, Termination::new(cause, after, firmness));
    }

    /// Ends a sandbox at once, with a detail. The detail is stored before its uses and processes
    /// end, so their ends can repeat it.
    pub(crate) fn end_now(
        &mut self,
        entry: EntryIx,
        cause: EndCause,
        after: AfterEnd,
        detail: Option<Arc<str>>,
    ) {
        let mut termination = Termination::new(cause, after, Firmness::Now);
        termination.detail = detail;
        self.begin_termination(entry, termination);
    }

    fn begin_termination(&mut self, entry: EntryIx, termination: Termination) {
        let Termination { cause, after, firmness, .. } = termination;
        let sandbox = &mut self.entries[entry];
        if sandbox.phase() == Phase::Killing {
            if after == AfterEnd::Gone
                && let Some(current) = &mut sandbox.termination
                && current.after != AfterEnd::Gone
            {
                current.after = AfterEnd::Gone;
                current.cause = cause;
                self.mark(entry);
                self.settle(entry);
            }
            return;
        }
        if let Some(current) = &sandbox.termination
            && current.firmness >= firmness
        {
            return;
        }
        sandbox.termination = Some(Box::new(termination));
        self.mark(entry);
        self.leave_pool_line(entry);
        self.settle(entry);
        self.step_termination(entry);
    }

    /// Takes the next step of a termination.
    pub(crate) fn step_termination(&mut self, entry: EntryIx) {
        let sandbox = &self.entries[entry];
        let Some(termination) = &sandbox.termination else { return };
        let save = match termination.firmness {
            Firmness::Now => false,
            Firmness::Voidable | Firmness::Careful | Firmness::Firm => {
                sandbox.files.is_dirty()
                    && sandbox.phase() == Phase::InUse
                    && !self.flaws.skips_save()
            }
        };
        if !save {
            self.kill(entry);
            return;
        }
        if !sandbox.ops.is_saving() {
            self.save(entry);
        }
        // Copies of its files need not wait any longer.
        self.source_changed(entry);
    }

    /// Voids the termination of a sandbox.
    pub(crate) fn void_termination(&mut self, entry: EntryIx, refusal: &Refusal) {
        let sandbox = &mut self.entries[entry];
        if sandbox.termination.take().is_none() {
            return;
        }
        self.publish_waiting_end(entry);
        self.mark(entry);
        self.recompute_demand(entry);
        self.arm_freeze_and_sweep(entry);
        self.arm_expiry(entry);
        if self.entries[entry].wants_restart(self.now.mono) {
            // Programs that could not be restarted during the termination are restarted now.
            self.arm(entry, self.now.mono);
        }
        for req in self.take_waiting(entry, |what| matches!(what, WaitingFor::Delete { .. })) {
            self.answer(req, Err(refusal.clone()));
        }
        if let Some(session) = self.entries[entry].session() {
            self.termination_voided(session, refusal);
            self.session_due(session);
        }
        self.due.look_at_line();
    }

    /// Removes an instance, whatever its phase.
    pub(crate) fn kill(&mut self, entry: EntryIx) {
        self.uncount_phase(entry);
        if let Some(pool) = self.entries[entry].slot {
            // Callers that waited for it look for another at once, if there is a slot.
            self.pool_due(pool);
        }
        let sandbox = &mut self.entries[entry];
        if !sandbox.is_live() {
            // Nothing was launched: there is nothing to remove.
            self.removed(entry);
            return;
        }
        if let Some(session) = sandbox.session() {
            self.note_use(session);
        }
        let sandbox = &mut self.entries[entry];
        sandbox.take(Step::Kill);
        sandbox.ops.cancel_save();
        sandbox.ops.cancel_turn();
        if let Some(termination) = &mut sandbox.termination {
            termination.removal_began();
        }
        self.mark(entry);
        self.settle(entry);
        self.send_kill(entry);
        self.source_changed(entry);
        let cause = self.entries[entry].end_cause();
        self.notify_instance_ended(entry, cause);
        self.break_uses(entry, cause);
    }

    pub(crate) fn send_kill(&mut self, entry: EntryIx) {
        let sandbox = &mut self.entries[entry];
        let termination = sandbox.termination.as_mut().expect("what is being killed has a cause");
        // A launch that timed out may have made a workspace all the same. While a fork reads it, it
        // stays.
        let goes = termination.after == AfterEnd::Gone && !sandbox.holds.is_copied();
        termination.takes_workspace = goes || !sandbox.files.has_files();
        let workspace = termination.takes_workspace.then_some(sandbox.workspace);
        let action = Action::Kill { instance: sandbox.instance, workspace };
        self.begin(entry, OpKind::Kill, self.config.deadlines.kill_ms, action);
    }

    pub(crate) fn kill_ended(&mut self, entry: EntryIx, outcome: &Outcome) {
        if *outcome == Outcome::Done || self.flaws.forgets_failed_kill() {
            self.removed(entry);
            return;
        }
        // The instance may still exist, so its place stays taken and the kernel tries again. That
        // may take long.
        self.publish_waiting_end(entry);
        let backoff = &self.config.backoff;
        let sandbox = &mut self.entries[entry];
        let termination = sandbox.termination.as_mut().expect("what is being killed has a cause");
        let at = self.now.mono.plus(backoff.pause_ms(termination.attempt_failed()));
        termination.retry(at);
        self.arm(entry, at);
    }

    /// Undoes what depends on the phase that a sandbox is leaving.
    fn uncount_phase(&mut self, entry: EntryIx) {
        let sandbox = &mut self.entries[entry];
        sandbox.ops.cancel();
        match (sandbox.phase(), sandbox.slot) {
            (Phase::Launching, Some(pool)) => self.pools[pool].occupied.launch_ended(),
            (Phase::Wiping | Phase::Proving, Some(pool)) => {
                self.pools[pool].occupied.cleaning_ended();
            }
            (Phase::Claiming(req), _) => {
                if let Some(pool) = sandbox.slot {
                    self.pools[pool].occupied.lease_ended();
                }
                self.claim_lost(entry, req);
            }
            (Phase::InUse, Some(pool)) => {
                let cause = sandbox.end_cause();
                self.pools[pool].occupied.lease_ended();
                self.forget_lease(entry, cause);
            }
            (
                Phase::Cold
                | Phase::Idle
                | Phase::Killing
                | Phase::Launching
                | Phase::Wiping
                | Phase::Proving
                | Phase::InUse,
                _,
            ) => {}
        }
        self.entries[entry].frozen = Frozen::No;
    }

    /// An instance died on its own.
    pub(crate) fn died(&mut self, entry: EntryIx, cause: EndCause, detail: Option<Arc<str>>) {
        let sandbox = &self.entries[entry];
        if sandbox.phase() == Phase::Killing {
            return;
        }
        if let Some(pool) = sandbox.slot {
            self.pools[pool].counters.crashed += 1;
        }
        if sandbox.phase() == Phase::Launching {
            let detail = detail.unwrap_or_else(|| "the sandbox died during its launch".into());
            self.launch_ended(
                entry,
                Outcome::Failed(crate::Failure { kind: FailureKind::Gone, detail }),
            );
            return;
        }
        let after = match sandbox.owner() {
            // A sandbox that was still being claimed is not its session's yet.
            EntryOwner::Session(_) if sandbox.phase() == Phase::InUse => AfterEnd::Renamed,
            EntryOwner::Session(_) | EntryOwner::Unowned | EntryOwner::Lease(_) => AfterEnd::Gone,
        };
        self.end_now(entry, cause, after, detail);
    }

    /// Takes the requests of one kind that wait for a sandbox.
    pub(crate) fn take_waiting(
        &mut self,
        entry: EntryIx,
        wanted: impl Fn(&WaitingFor) -> bool,
    ) -> Vec<RequestIx> {
        let requests = &self.requests;
        let Some(rare) = &mut self.entries[entry].rare else { return Vec::new() };
        rare.waiting.extract_if(.., |req| wanted(&requests[*req].what)).collect()
    }
}

//! The way to the end of a sandbox: save its files if they are worth it, then remove it. Promise 1
//! lives here: a decision that is voidable is void as soon as a caller uses the sandbox, and a
//! failed save never kills, except where the sandbox must end.

use std::sync::Arc;

use model::{EndCause, Refusal};

use crate::Kernel;
use crate::effect::Action;
use crate::entry::{After, Ending, EntryIx, Frozen, OpKind, Own, Phase, Resolve, Step};
use crate::event::{FailureKind, Outcome};
use crate::request::{RequestIx, Waiting};

impl Kernel {
    /// Decides that a sandbox ends. A firmer decision replaces a weaker one; a weaker one is
    /// ignored.
    // What callers do more often than this must not pay for the room that it takes.
    #[inline(never)]
    pub(crate) fn end(&mut self, entry: EntryIx, cause: EndCause, after: After, resolve: Resolve) {
        self.begin_ending(entry, Ending::new(cause, after, resolve));
    }

    /// Ends a sandbox at once, and notes how it came to that. The note is there before its uses and
    /// processes are over, so that their ends can repeat it.
    pub(crate) fn end_now(
        &mut self,
        entry: EntryIx,
        cause: EndCause,
        after: After,
        detail: Option<Arc<str>>,
    ) {
        let mut ending = Ending::new(cause, after, Resolve::Now);
        ending.detail = detail;
        self.begin_ending(entry, ending);
    }

    fn begin_ending(&mut self, entry: EntryIx, ending: Ending) {
        let Ending { cause, after, resolve, .. } = ending;
        let sandbox = &mut self.entries[entry];
        if sandbox.phase() == Phase::Killing {
            if after == After::Gone
                && let Some(current) = &mut sandbox.ending
                && current.after != After::Gone
            {
                current.after = After::Gone;
                current.cause = cause;
                self.mark(entry);
                self.settle(entry);
            }
            return;
        }
        if let Some(current) = &sandbox.ending
            && current.resolve >= resolve
        {
            return;
        }
        sandbox.ending = Some(Box::new(ending));
        self.mark(entry);
        self.leave_pool_line(entry);
        self.settle(entry);
        self.step_ending(entry);
    }

    /// Takes the next step to the end of a sandbox.
    pub(crate) fn step_ending(&mut self, entry: EntryIx) {
        let sandbox = &self.entries[entry];
        let Some(ending) = &sandbox.ending else { return };
        let save = match ending.resolve {
            Resolve::Now => false,
            Resolve::Voidable | Resolve::Careful | Resolve::Firm => {
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
        // Copies of its files wait for nothing more.
        self.source_changed(entry);
    }

    /// The sandbox is not ended after all.
    pub(crate) fn void_ending(&mut self, entry: EntryIx, refusal: &Refusal) {
        let sandbox = &mut self.entries[entry];
        if sandbox.ending.take().is_none() {
            return;
        }
        self.mark(entry);
        self.repin(entry);
        self.arm_quiet(entry);
        self.arm_expiry(entry);
        if self.entries[entry].wants_restart(self.now.mono) {
            // Programs that could not be started in a sandbox on its way out are started now.
            self.arm(entry, self.now.mono);
        }
        for req in self.take_waiting(entry, |what| matches!(what, Waiting::Delete { .. })) {
            self.answer(req, Err(refusal.clone()));
        }
        if let Some(session) = self.entries[entry].session() {
            self.ending_voided(session, refusal);
            self.session_due(session);
        }
        self.due.look_at_line();
    }

    /// Removes a sandbox, whatever it is doing.
    pub(crate) fn kill(&mut self, entry: EntryIx) {
        self.uncount_phase(entry);
        if let Some(pool) = self.entries[entry].slot {
            // Those who counted on it look for another at once, if there is a slot.
            self.pool_due(pool);
        }
        let sandbox = &mut self.entries[entry];
        if !sandbox.is_live() {
            // Nothing was launched: it is gone already.
            self.removed(entry);
            return;
        }
        sandbox.take(Step::Kill);
        sandbox.ops.call_off_save();
        sandbox.ops.call_off_turn();
        if let Some(ending) = &mut sandbox.ending {
            ending.removal_began();
        }
        self.mark(entry);
        self.settle(entry);
        self.send_kill(entry);
        self.source_changed(entry);
        let cause = self.entries[entry].end_cause();
        self.tell_over(entry, cause);
        self.break_uses(entry, cause);
    }

    pub(crate) fn send_kill(&mut self, entry: EntryIx) {
        let sandbox = &mut self.entries[entry];
        let ending = sandbox.ending.as_mut().expect("what is being killed has a cause");
        // A launch that was never heard of may have made one all the same.
        // A fork may be reading it: then it goes when that has ended.
        let goes = ending.after == After::Gone && !sandbox.holds.is_copied();
        ending.takes_workspace = goes || !sandbox.files.has_files();
        let workspace = ending.takes_workspace.then_some(sandbox.workspace);
        let action = Action::Kill { instance: sandbox.instance, workspace };
        self.begin(entry, OpKind::Kill, self.config.deadlines.kill_ms, action);
    }

    pub(crate) fn kill_ended(&mut self, entry: EntryIx, outcome: &Outcome) {
        if *outcome == Outcome::Done || self.flaws.forgets_failed_kill() {
            self.removed(entry);
            return;
        }
        // It may still exist, so its place stays taken and we go on trying.
        let backoff = &self.config.backoff;
        let sandbox = &mut self.entries[entry];
        let ending = sandbox.ending.as_mut().expect("what is being killed has a cause");
        let at = self.now.mono.plus(backoff.pause_ms(ending.attempt_failed()));
        ending.retry(at);
        self.arm(entry, at);
    }

    /// Whatever still depends on the phase that a sandbox is leaving.
    fn uncount_phase(&mut self, entry: EntryIx) {
        let sandbox = &mut self.entries[entry];
        sandbox.ops.call_off();
        match (sandbox.phase(), sandbox.slot) {
            (Phase::Launching, Some(pool)) => self.pools[pool].occupied.launch_over(),
            (Phase::Wiping | Phase::Proving, Some(pool)) => {
                self.pools[pool].occupied.cleaning_over();
            }
            (Phase::Claiming(req), _) => {
                if let Some(pool) = sandbox.slot {
                    self.pools[pool].occupied.lease_over();
                }
                self.claim_lost(entry, req);
            }
            (Phase::InUse, Some(pool)) => {
                let cause = sandbox.end_cause();
                self.pools[pool].occupied.lease_over();
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
            let detail = detail.unwrap_or_else(|| "it died while it was being started".into());
            self.launch_ended(
                entry,
                Outcome::Failed(crate::Failure { kind: FailureKind::Gone, detail }),
            );
            return;
        }
        let after = match sandbox.owner() {
            // One that was still being bound is not its session's yet.
            Own::Session(_) if sandbox.phase() == Phase::InUse => After::Renamed,
            Own::Session(_) | Own::Nobody | Own::Lease(_) => After::Gone,
        };
        self.end_now(entry, cause, after, detail);
    }

    /// Takes the requests of one kind that wait for a sandbox.
    pub(crate) fn take_waiting(
        &mut self,
        entry: EntryIx,
        wanted: impl Fn(&Waiting) -> bool,
    ) -> Vec<RequestIx> {
        let requests = &self.requests;
        let Some(extra) = &mut self.entries[entry].extra else { return Vec::new() };
        extra.waiting.extract_if(.., |req| wanted(&requests[*req].what)).collect()
    }
}

//! What the passing of time means. An alarm only says "look": the kernel finds what is due by
//! looking at the facts, in a fixed order, so an early or repeated alarm is harmless.

use model::{Mono, Now};

use crate::Kernel;
use crate::alarms::Ringer;
use crate::entry::{EntryIx, Lane, Phase};
use crate::event::Outcome;

/// How many alarms one event handles, so that no event takes long. The rest ring again at once.
const ALARMS_PER_TICK_MAX: u32 = 256;

impl Kernel {
    /// Advances the kernel's time. Its monotonic clock never goes back.
    pub(crate) fn advance_clock(&mut self, now: Now) {
        self.now = Now { mono: now.mono.max(self.now.mono), wall: now.wall };
        if self.alarms.clock_jumped(self.now) {
            for entry in self.entries.indices() {
                self.arm_expiry(entry);
                self.arm_cold(entry);
            }
            for session in self.sessions.indices() {
                self.arm_shelved_pruning(session);
                self.arm_deadline(session);
            }
        }
    }

    pub(crate) fn ticked(&mut self) {
        for _ in 0..ALARMS_PER_TICK_MAX {
            let Some(ringer) = self.alarms.take_due(self.now.mono) else { break };
            match ringer {
                Ringer::Entry(entry) => self.entry_rang(entry),
                Ringer::Session(session) => self.session_rang(session),
                Ringer::Pool(pool) => {
                    self.pools[pool].alarm = Mono::NEVER;
                    self.pool_due(pool);
                }
                Ringer::Request(req) => self.request_overdue(req),
                Ringer::PendingRemovals => self.removals_due(),
                Ringer::ShelvedArchives => self.shelved_archives_due(),
                Ringer::Shutdown => self.shutdown_grace_ended(),
            }
        }
    }

    /// Looks at a sandbox: first at its operations, then at its expiry, then at sweep and freeze.
    fn entry_rang(&mut self, entry: EntryIx) {
        self.entries[entry].alarm = Mono::NEVER;
        let now = self.now.mono;
        // One after the other: the end of one may cancel the next.
        for lane in Lane::ALL {
            let sandbox = self.entries.get_mut(entry);
            if let Some(kind) = sandbox.and_then(|sandbox| sandbox.ops.take_late(lane, now)) {
                self.op_ended(entry, kind, Outcome::TimedOut);
            }
        }
        if self.entries.get(entry).is_some() {
            self.retry_termination(entry);
        }
        if self.entries.get(entry).is_some() {
            self.processes_due(entry);
            self.expire(entry);
        }
        if self.entries.get(entry).is_some() {
            // After a possible expiry: nothing is restarted in a sandbox that ends.
            self.restart_processes(entry);
        }
        if self.entries.get(entry).is_some() {
            self.settle(entry);
            self.sweep(entry);
        }
        if self.entries.get(entry).is_some() {
            self.archive_or_prune(entry);
        }
        if self.entries.get(entry).is_some() {
            self.publish_late_transition(entry);
            self.freeze_if_quiet(entry);
            self.arm_again(entry);
        }
    }

    fn retry_termination(&mut self, entry: EntryIx) {
        let now = self.now.mono;
        let sandbox = &mut self.entries[entry];
        let Some(termination) = &mut sandbox.termination else { return };
        if !termination.take_retry(now) {
            return;
        }
        if sandbox.phase() == Phase::Killing {
            if sandbox.ops.is_free() {
                self.send_kill(entry);
            }
        } else if !sandbox.ops.is_saving() {
            self.step_termination(entry);
        }
    }

    /// Sets the alarm for what comes next.
    fn arm_again(&mut self, entry: EntryIx) {
        let sandbox = &self.entries[entry];
        let mut at = Mono::NEVER;
        if let Some(deadline) = sandbox.ops.first_deadline() {
            at = at.min(deadline);
        }
        if let Some(termination) = &sandbox.termination {
            at = at.min(termination.retry_at());
        }
        if sandbox.spared_until > self.now.mono {
            at = at.min(sandbox.spared_until);
        }
        if at != Mono::NEVER {
            self.arm(entry, at);
        }
        self.arm_processes(entry);
        self.arm_expiry(entry);
        self.arm_freeze_and_sweep(entry);
        self.arm_cold(entry);
    }
}

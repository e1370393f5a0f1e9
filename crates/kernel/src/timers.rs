//! What the passing of time means. An alarm only says "look": what is due is found by looking at
//! the facts, in a fixed order, so an alarm that rings early or twice is harmless.

use model::{Mono, Now};

use crate::alarms::Ringer;
use crate::entry::{Entry, Op, Phase};
use crate::event::Outcome;
use crate::slab::Ix;
use crate::{Kernel, offset};

/// How many alarms one event handles, so that no event takes long. The rest ring at once again.
const ALARMS_PER_TICK_MAX: u32 = 256;

/// The wall clock may run ahead by this much before alarms are set again.
const CLOCK_JUMP_MS: u64 = 1_000;

impl Kernel {
    /// Moves the kernel's idea of time. It never goes back on the monotonic clock.
    pub(crate) fn advance_clock(&mut self, now: Now) {
        self.now = Now { mono: now.mono.max(self.now.mono), wall: now.wall };
        let offset = offset(self.now);
        self.clock_lowest = self.clock_lowest.min(offset);
        if offset.abs_diff(self.clock_lowest) > CLOCK_JUMP_MS {
            // The machine slept, or someone set its clock: whatever ends by the wall clock may end
            // sooner than was thought. (A clock that is set back only makes alarms ring early.)
            self.clock_lowest = offset;
            for ix in self.entries.places() {
                self.arm_expiry(ix);
                self.arm_cold(ix);
            }
            for session in self.sessions.places() {
                self.arm_shelf(session);
            }
        }
    }

    pub(crate) fn ticked(&mut self) {
        for _ in 0..ALARMS_PER_TICK_MAX {
            let Some(ringer) = self.alarms.take_due(self.now.mono) else { break };
            match ringer {
                Ringer::Entry(ix) => self.entry_rang(ix),
                Ringer::Session(session) => self.session_rang(session),
                Ringer::Pool(pool) => {
                    self.pools[pool].alarm = Mono::NEVER;
                    self.pool_due(pool);
                }
                Ringer::Request(req) => self.request_overdue(req),
                Ringer::Debts => self.debts_due(),
                Ringer::Shelf => self.shelves_due(),
                Ringer::Shutdown => self.shutdown_grace_over(),
            }
        }
    }

    /// Looks at a sandbox: first at what is in progress, then at its time, then at its rest.
    fn entry_rang(&mut self, ix: Ix) {
        self.entries[ix].alarm = Mono::NEVER;
        let now = self.now.mono;
        // One after the other: the end of one may call off the next.
        let slots: [fn(&mut Entry) -> &mut Option<Op>; 3] =
            [|entry| &mut entry.op, |entry| &mut entry.saving, |entry| &mut entry.turn_op];
        for slot in slots {
            let entry = self.entries.get_mut(ix);
            let late = entry.and_then(|entry| slot(entry).take_if(|op| op.deadline <= now));
            if let Some(op) = late {
                self.op_ended(ix, op.kind, Outcome::TimedOut);
            }
        }
        if self.entries.get(ix).is_some() {
            self.retry_ending(ix);
        }
        if self.entries.get(ix).is_some() {
            self.processes_due(ix);
            self.expire(ix);
        }
        if self.entries.get(ix).is_some() {
            self.settle(ix);
            self.sweep(ix);
        }
        if self.entries.get(ix).is_some() {
            self.keep_or_give_up(ix);
        }
        if self.entries.get(ix).is_some() {
            self.freeze_if_quiet(ix);
            self.arm_again(ix);
        }
    }

    fn retry_ending(&mut self, ix: Ix) {
        let now = self.now.mono;
        let entry = &mut self.entries[ix];
        let Some(ending) = &mut entry.ending else { return };
        if ending.retry_at > now {
            return;
        }
        ending.retry_at = Mono::NEVER;
        if entry.phase == Phase::Killing {
            if entry.op.is_none() {
                self.send_kill(ix);
            }
        } else if entry.saving.is_none() {
            self.step_ending(ix);
        }
    }

    /// Sets the alarm for whatever comes next.
    fn arm_again(&mut self, ix: Ix) {
        let entry = &self.entries[ix];
        let mut at = Mono::NEVER;
        for op in [entry.op, entry.saving, entry.turn_op].into_iter().flatten() {
            at = at.min(op.deadline);
        }
        if let Some(ending) = &entry.ending {
            at = at.min(ending.retry_at);
        }
        if entry.spared_until > self.now.mono {
            at = at.min(entry.spared_until);
        }
        if at != Mono::NEVER {
            self.arm(ix, at);
        }
        self.arm_processes(ix);
        self.arm_expiry(ix);
        self.arm_quiet(ix);
        self.arm_cold(ix);
    }
}

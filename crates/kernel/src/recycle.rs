//! What becomes of a sandbox after a lease. An untouched one goes back to its pool as it is. A
//! touched one is destroyed, or, where the runtime can do that, wiped and proven clean and alive
//! from outside; any doubt destroys it. Its user never meets it again under the same id.

use std::sync::Arc;

use model::EndCause;
use model::state::PoolPhase;
use model::template::Recycle;

use crate::Kernel;
use crate::effect::Action;
use crate::entry::{AfterEnd, EntryIx, Firmness, Frozen, OpKind, Step};
use crate::event::{FailureKind, Outcome};
use crate::pool::PoolIx;

/// What to do with a returned sandbox.
#[derive(Debug, PartialEq, Eq)]
enum Fate {
    /// Back into the pool as it is.
    Keep,
    /// Into the pool after a wipe.
    Wipe,
    /// End it.
    End(EndCause),
}

impl Kernel {
    /// A leased sandbox is returned to its pool.
    pub(crate) fn recycle(&mut self, entry: EntryIx, cause: EndCause) {
        self.break_uses(entry, cause);
        let Some(pool) = self.entries[entry].slot else { return };
        self.forget_lease(entry, cause);
        let fate = self.fate(entry, pool, cause);
        // Nothing ever began in a sandbox that is kept as it is.
        if fate != Fate::Keep {
            self.notify_instance_ended(entry, cause);
        }
        match fate {
            Fate::Keep => {
                self.pools[pool].occupied.lease_ended();
                self.pools[pool].counters.recycled += 1;
                self.rename_recycled(entry);
                self.put_idle(entry, Step::Keep);
            }
            Fate::Wipe => {
                self.pools[pool].occupied.lease_ended();
                self.pools[pool].occupied.cleaning_began();
                let sandbox = &mut self.entries[entry];
                sandbox.take(Step::Wipe);
                sandbox.ops.cancel_save();
                // The guest takes part in its wipe, so it must run.
                if sandbox.frozen == Frozen::No {
                    self.wipe(entry);
                } else {
                    self.thaw(entry);
                }
                self.mark(entry);
                self.settle(entry);
            }
            Fate::End(cause) => {
                self.pools[pool].counters.retired += 1;
                self.end(entry, cause, AfterEnd::Gone, Firmness::Now);
            }
        }
        self.pool_due(pool);
    }

    fn fate(&self, entry: EntryIx, pool: PoolIx, cause: EndCause) -> Fate {
        let sandbox = &self.entries[entry];
        let known = &self.pools[pool];
        if known.phase != PoolPhase::Active || self.shutdown.is_some() {
            return Fate::End(EndCause::PoolClosed);
        }
        if !Arc::ptr_eq(&sandbox.template, &known.template) {
            return Fate::End(EndCause::TemplateReplaced);
        }
        let busy = !sandbox.ops.is_free();
        let untouched = !sandbox.clean.is_touched() && !busy && sandbox.frozen == Frozen::No;
        if untouched || self.flaws.skips_wipe() {
            return Fate::Keep;
        }
        // What the kernel learned of the runtime since the launch counts too.
        let recycle = match known.traits.recycle {
            Recycle::Recreate => Recycle::Recreate,
            Recycle::Wipe => sandbox.traits.recycle,
        };
        match recycle {
            Recycle::Recreate => Fate::End(cause),
            Recycle::Wipe if busy => Fate::End(cause),
            Recycle::Wipe if sandbox.uses >= sandbox.template.pool.max_uses => {
                Fate::End(EndCause::MaxUses)
            }
            // The pool was made smaller meanwhile.
            Recycle::Wipe if known.occupied.slots() > known.slots() => Fate::End(EndCause::Surplus),
            Recycle::Wipe => Fate::Wipe,
        }
    }

    fn wipe(&mut self, entry: EntryIx) {
        let action = Action::Wipe { instance: self.entries[entry].instance };
        self.begin(entry, OpKind::Wipe, self.config.deadlines.wipe_ms, action);
    }

    /// A returned sandbox was thawed for its wipe.
    pub(crate) fn thawed_for_wipe(&mut self, entry: EntryIx, outcome: &Outcome) {
        if *outcome == Outcome::Done {
            self.entries[entry].frozen = Frozen::No;
            self.wipe(entry);
            return;
        }
        if let Some(pool) = self.entries[entry].slot {
            self.pools[pool].counters.retired += 1;
        }
        self.end_now(entry, EndCause::NotClean, AfterEnd::Gone, why_not(outcome));
    }

    pub(crate) fn wipe_ended(&mut self, entry: EntryIx, outcome: &Outcome) {
        let pool = self.entries[entry].slot;
        let cause = match outcome {
            Outcome::Done => None,
            Outcome::Failed(failure) => Some(match failure.kind {
                // The runtime turned out not to support wiping.
                FailureKind::Unsupported => {
                    if let Some(pool) = pool {
                        self.learn_recycling(pool, Recycle::Recreate);
                    }
                    EndCause::Returned
                }
                FailureKind::Trouble
                | FailureKind::Gone
                | FailureKind::FilesGone
                | FailureKind::NeedsGuest
                | FailureKind::Refused(_) => EndCause::NotClean,
            }),
            Outcome::TimedOut => Some(EndCause::NotClean),
        };
        if let Some(cause) = cause {
            if let Some(pool) = pool {
                self.pools[pool].counters.retired += 1;
            }
            let detail = if cause == EndCause::NotClean { why_not(outcome) } else { None };
            self.end_now(entry, cause, AfterEnd::Gone, detail);
            return;
        }
        let sandbox = &mut self.entries[entry];
        sandbox.take(Step::Prove);
        let action = Action::Prove { instance: sandbox.instance };
        self.begin(entry, OpKind::Prove, self.config.deadlines.wipe_ms, action);
        self.settle(entry);
    }

    /// Records how a pool's runtime can recycle sandboxes.
    pub(crate) fn learn_recycling(&mut self, pool: PoolIx, recycle: Recycle) {
        if self.pools[pool].traits.recycle != recycle {
            self.pools[pool].traits.recycle = recycle;
            self.mark_pool(pool);
        }
    }

    pub(crate) fn prove_ended(&mut self, entry: EntryIx, outcome: &Outcome) {
        let Some(pool) = self.entries[entry].slot else { return };
        if *outcome != Outcome::Done {
            self.pools[pool].counters.retired += 1;
            self.end_now(entry, EndCause::NotClean, AfterEnd::Gone, why_not(outcome));
            return;
        }
        self.pools[pool].occupied.cleaning_ended();
        self.pools[pool].counters.recycled += 1;
        self.entries[entry].proven_at = self.now.mono;
        self.rename_recycled(entry);
        self.put_idle(entry, Step::Reuse);
    }

    /// Puts a clean, live sandbox into the idle list of its pool, with a new lifetime.
    pub(crate) fn put_idle(&mut self, entry: EntryIx, step: Step) {
        let Some(pool) = self.entries[entry].slot else { return };
        self.entries[entry].take(step);
        let known = &self.pools[pool];
        let stale = !Arc::ptr_eq(&self.entries[entry].template, &known.template);
        if known.phase != PoolPhase::Active || self.shutdown.is_some() || stale {
            // The fence: nothing enters a pool that is closing. The sandbox has already left its
            // former phase and its count.
            let cause = if stale { EndCause::TemplateReplaced } else { EndCause::PoolClosed };
            self.end(entry, cause, AfterEnd::Gone, Firmness::Now);
            return;
        }
        let idle_ttl_ms = known.template.pool.idle_ttl_ms;
        let margin_ms = known.template.pool.acquire_margin_ms();
        // Sandboxes launched together must not expire together. The jitter always leaves enough
        // time for a hand-out.
        let jitter_ms = self.minter.below((idle_ttl_ms / 10).min(idle_ttl_ms - margin_ms));
        let expires_at = self.now.wall.plus(idle_ttl_ms - jitter_ms);
        let sandbox = &mut self.entries[entry];
        let last_tenant = sandbox.tenant();
        sandbox.join_line(self.now);
        self.flaws.tenant_may_remain(sandbox, last_tenant);
        sandbox.life.limit_to(expires_at);
        self.pools[pool].idle.push(&mut self.entries, entry);
        self.mark(entry);
        self.settle(entry);
        self.arm_expiry(entry);
        if !self.flaws.forgets_waiters() || self.pools[pool].queue.is_empty() {
            self.pool_due(pool);
        }
    }

    /// Takes a sandbox out of the idle list, if it is in it.
    pub(crate) fn leave_pool_line(&mut self, entry: EntryIx) {
        let sandbox = &mut self.entries[entry];
        if sandbox.leave_line()
            && let Some(pool) = sandbox.slot
        {
            self.pools[pool].idle.remove(&mut self.entries, entry);
            // There may be one too few now.
            self.pool_due(pool);
        }
    }
}

/// What kept a sandbox from its next use, for `why`.
fn why_not(outcome: &Outcome) -> Option<Arc<str>> {
    match outcome {
        Outcome::Done => None,
        Outcome::Failed(failure) => Some(Arc::clone(&failure.detail)),
        Outcome::TimedOut => Some(Arc::from("the sandbox did not answer in time")),
    }
}

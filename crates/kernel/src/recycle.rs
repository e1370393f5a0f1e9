//! What becomes of a sandbox after a use. One that nobody touched goes back as it is. A touched one
//! is destroyed, or wiped and proven clean and alive from outside where the runtime does that; any
//! doubt destroys it. Whatever happens, its user never meets it again under the same id.

use model::EndCause;
use model::state::PoolPhase;
use model::template::Recycle;

use crate::effect::Action;
use crate::entry::{After, Frozen, OpKind, Phase, Resolve};
use crate::event::{FailureKind, Outcome};
use crate::slab::Ix;
use crate::{Flaw, Kernel};

/// What to do with a sandbox that comes back.
#[derive(Debug, PartialEq, Eq)]
enum Fate {
    /// Back into the pool as it is.
    Keep,
    /// Into the pool once it is clean.
    Wipe,
    /// Away.
    End(EndCause),
}

impl Kernel {
    /// A leased sandbox comes back to its pool.
    pub(crate) fn recycle(&mut self, ix: Ix, cause: EndCause) {
        self.break_uses(ix, cause);
        let Some(pool) = self.entries[ix].slot else { return };
        self.forget_lease(ix, cause);
        match self.fate(ix, pool, cause) {
            Fate::Keep => {
                self.pools[pool].leased -= 1;
                self.pools[pool].counters.recycled += 1;
                self.rename_recycled(ix);
                self.put_idle(ix);
            }
            Fate::Wipe => {
                self.pools[pool].leased -= 1;
                self.pools[pool].cleaning += 1;
                let entry = &mut self.entries[ix];
                entry.phase = Phase::Wiping;
                entry.saving = None;
                let action = Action::Wipe { instance: entry.instance };
                self.begin(ix, OpKind::Wipe, self.config.deadlines.wipe_ms, action);
                self.mark(ix);
                self.settle(ix);
            }
            Fate::End(cause) => {
                self.pools[pool].counters.retired += 1;
                self.end(ix, cause, After::Gone, Resolve::Now);
            }
        }
        self.pool_due(pool);
    }

    fn fate(&self, ix: Ix, pool: Ix, cause: EndCause) -> Fate {
        let entry = &self.entries[ix];
        let known = &self.pools[pool];
        if known.phase != PoolPhase::Active || self.shutdown.is_some() {
            return Fate::End(EndCause::PoolClosed);
        }
        if !std::sync::Arc::ptr_eq(&entry.template, &known.template) {
            return Fate::End(EndCause::TemplateReplaced);
        }
        let busy = entry.op.is_some() || entry.frozen != Frozen::No;
        let untouched = !entry.touched && !busy;
        if untouched || self.flawed(Flaw::WipeSkipped) {
            return Fate::Keep;
        }
        // What was learned of the runtime since it was launched counts too.
        let recycle = match known.traits.recycle {
            Recycle::Recreate => Recycle::Recreate,
            Recycle::Wipe => entry.traits.recycle,
        };
        match recycle {
            Recycle::Recreate => Fate::End(cause),
            Recycle::Wipe if busy => Fate::End(cause),
            Recycle::Wipe if entry.uses >= entry.template.pool.max_uses => {
                Fate::End(EndCause::MaxUses)
            }
            // The pool was made smaller meanwhile.
            Recycle::Wipe if known.slots_used > known.slots() => Fate::End(EndCause::Surplus),
            Recycle::Wipe => Fate::Wipe,
        }
    }

    pub(crate) fn wipe_ended(&mut self, ix: Ix, outcome: &Outcome) {
        let pool = self.entries[ix].slot;
        let cause = match outcome {
            Outcome::Done => None,
            Outcome::Failed(failure) => Some(match failure.kind {
                // It turned out that nothing is ever wiped there.
                FailureKind::Unsupported => {
                    if let Some(pool) = pool {
                        self.learn_recycling(pool, Recycle::Recreate);
                    }
                    EndCause::Returned
                }
                FailureKind::Trouble | FailureKind::Gone | FailureKind::FilesGone => {
                    EndCause::NotClean
                }
            }),
            Outcome::TimedOut => Some(EndCause::NotClean),
        };
        if let Some(cause) = cause {
            if let Some(pool) = pool {
                self.pools[pool].counters.retired += 1;
            }
            self.end(ix, cause, After::Gone, Resolve::Now);
            return;
        }
        let entry = &mut self.entries[ix];
        entry.phase = Phase::Proving;
        let action = Action::Prove { instance: entry.instance };
        self.begin(ix, OpKind::Prove, self.config.deadlines.wipe_ms, action);
        self.settle(ix);
    }

    /// What becomes of used sandboxes of a pool, as its runtime is known by now.
    pub(crate) fn learn_recycling(&mut self, pool: Ix, recycle: Recycle) {
        if self.pools[pool].traits.recycle != recycle {
            self.pools[pool].traits.recycle = recycle;
            self.mark_pool(pool);
        }
    }

    pub(crate) fn prove_ended(&mut self, ix: Ix, outcome: &Outcome) {
        let Some(pool) = self.entries[ix].slot else { return };
        if *outcome != Outcome::Done {
            self.pools[pool].counters.retired += 1;
            self.end(ix, EndCause::NotClean, After::Gone, Resolve::Now);
            return;
        }
        self.pools[pool].cleaning -= 1;
        self.pools[pool].counters.recycled += 1;
        self.entries[ix].proven_at = self.now.mono;
        self.rename_recycled(ix);
        self.put_idle(ix);
    }

    /// Puts a sandbox that is clean and alive among the idle ones of its pool, with a fresh life.
    pub(crate) fn put_idle(&mut self, ix: Ix) {
        let Some(pool) = self.entries[ix].slot else { return };
        let known = &self.pools[pool];
        let stale = !std::sync::Arc::ptr_eq(&self.entries[ix].template, &known.template);
        if known.phase != PoolPhase::Active || self.shutdown.is_some() || stale {
            // The fence: nothing enters a pool that is closing. It has left its former phase, and
            // that is counted already.
            self.entries[ix].phase = Phase::Idle;
            let cause = if stale { EndCause::TemplateReplaced } else { EndCause::PoolClosed };
            self.end(ix, cause, After::Gone, Resolve::Now);
            return;
        }
        let idle_ttl_ms = known.template.pool.idle_ttl_ms;
        let margin_ms = known.template.pool.acquire_margin_ms();
        // Those that are warmed together must not expire together. The jitter never eats so much
        // that one could not be handed out.
        let jitter_ms = self.minter.below((idle_ttl_ms / 10).min(idle_ttl_ms - margin_ms));
        let expires_at = self.now.wall.plus(idle_ttl_ms - jitter_ms);
        let tenant_remains = self.flawed(Flaw::TenantRemains);
        let entry = &mut self.entries[ix];
        entry.phase = Phase::Idle;
        let tenant = entry.tenant;
        entry.disown();
        if tenant_remains {
            entry.tenant = tenant;
        }
        entry.in_line = true;
        entry.used = false;
        entry.touched = false;
        entry.dirty = false;
        entry.settings = None;
        entry.extra = None;
        entry.last_used = self.now;
        entry.expires_at =
            Some(entry.hard_expires_at.map_or(expires_at, |hard| hard.min(expires_at)));
        self.pools[pool].idle.push(&mut self.entries, ix);
        self.mark(ix);
        self.settle(ix);
        self.arm_expiry(ix);
        if !self.flawed(Flaw::ReturnForgetsWaiters) || self.pools[pool].queue.is_empty() {
            self.pool_due(pool);
        }
    }

    /// Takes a sandbox out of the idle ones, if it is among them.
    pub(crate) fn leave_pool_line(&mut self, ix: Ix) {
        let entry = &mut self.entries[ix];
        if std::mem::take(&mut entry.in_line)
            && let Some(pool) = entry.slot
        {
            self.pools[pool].idle.remove(&mut self.entries, ix);
            // There may be one too few now.
            self.pool_due(pool);
        }
    }
}

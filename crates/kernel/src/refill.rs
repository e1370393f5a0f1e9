//! The reconciler of a pool. It is idempotent: it compares what the pool has with what it should
//! have, serves waiters in order, launches what is missing at a bounded rate, and ends a surplus
//! that has lasted a while. Failures slow it down and never stop it.

use std::sync::Arc;

use model::state::PoolPhase;
use model::{EndCause, ErrorCode, KeyId, LifecycleEvent, Mono, Refusal};

use crate::Kernel;
use crate::alarms::Ringer;
use crate::entry::{AfterEnd, Firmness};
use crate::pool::{PoolIx, SURPLUS_PATIENCE_MS};

impl Kernel {
    pub(crate) fn reconcile_pool(&mut self, pool: PoolIx) {
        match self.pools[pool].phase {
            PoolPhase::Active if self.shutdown.is_none() => {
                self.serve_waiters(pool);
                self.refuse_idle_only(pool);
                self.refuse_without_disk(pool);
                self.launch_for_waiters(pool);
                self.withdraw_surplus_applications(pool);
                self.refill(pool);
                self.shrink(pool);
            }
            PoolPhase::Active | PoolPhase::Draining | PoolPhase::Destroying => {
                self.empty_pool(pool);
            }
        }
        if self.pools.get(pool).is_some() {
            self.arm_pool(pool);
        }
    }

    /// Hands out idle sandboxes to waiting callers, in the order of the queue.
    fn serve_waiters(&mut self, pool: PoolIx) {
        while !self.pools[pool].queue.is_empty()
            && let Some(entry) = self.take_idle(pool)
        {
            if let Some(shortage) = self.shortage_ahead_of(pool)
                && self.evict_one(shortage)
            {
                continue;
            }
            let Some(req) = self.next_in_pool_queue(pool) else { break };
            self.serve(entry, req);
        }
    }

    /// Withdraws applications for places that are no longer needed.
    fn withdraw_surplus_applications(&mut self, pool: PoolIx) {
        let known = &self.pools[pool];
        let unneeded = known.coming().saturating_sub(known.expecting());
        // The pool may have been made smaller since.
        let too_many = known.occupied.slots().saturating_sub(known.slots());
        let surplus = unneeded.max(too_many).min(known.occupied.applying());
        for _ in 0..surplus {
            self.withdraw_for_pool(pool);
        }
    }

    /// Launches what is missing. It takes free places and never evicts.
    fn refill(&mut self, pool: PoolIx) {
        if !self.is_served(&self.pools[pool].template.name) {
            return;
        }
        let now = self.now.mono;
        let allowed = self.launches_allowed(pool).min(self.pools[pool].refill_allowance(now));
        let known = &self.pools[pool];
        let memory_mb = known.template.limits.memory_mb.into();
        for _ in 0..known.lacking().min(allowed) {
            if !self.has_room_for(memory_mb) {
                self.due.starved(pool);
                break;
            }
            self.pools[pool].bucket.take();
            self.launch_for_refill(pool);
        }
    }

    /// How many launches may begin now: any number; one at a time with pauses while the pool is
    /// degraded; none while the disk is short.
    pub(crate) fn launches_allowed(&self, pool: PoolIx) -> u32 {
        let known = &self.pools[pool];
        if self.lacks_disk(pool) {
            0
        } else if !known.is_degraded(self.config.backoff.degraded_after) {
            u32::MAX
        } else if self.now.mono < known.health.retry_at() {
            0
        } else {
            1_u32.saturating_sub(known.occupied.launching() + known.occupied.applying())
        }
    }

    /// Ends a surplus of idle sandboxes that has lasted a while, oldest first.
    fn shrink(&mut self, pool: PoolIx) {
        let now = self.now.mono;
        let known = &mut self.pools[pool];
        let surplus = known.idle.len().saturating_sub(known.template.pool.pool_size);
        if surplus == 0 {
            known.surplus_since = None;
            return;
        }
        let since = *known.surplus_since.get_or_insert(now);
        if now.since(since) < SURPLUS_PATIENCE_MS {
            return;
        }
        known.surplus_since = None;
        for _ in 0..surplus {
            if let Some(entry) = self.pools[pool].idle.first() {
                self.end(entry, EndCause::Surplus, AfterEnd::Gone, Firmness::Now);
            }
        }
    }

    /// Empties a pool that is closing: it refuses callers, launches nothing and keeps nothing.
    fn empty_pool(&mut self, pool: PoolIx) {
        while let Some(req) = self.last_in_pool_queue(pool) {
            let refusal = match (&self.shutdown, self.pools[pool].phase) {
                (Some(_), _) => crate::shutdown::stopping(),
                (None, PoolPhase::Destroying) => {
                    Refusal::new(ErrorCode::TemplateUnknown, "the pool was destroyed")
                }
                (None, PoolPhase::Active | PoolPhase::Draining) => {
                    Refusal::new(ErrorCode::PoolClosed, "the pool is being drained")
                }
            };
            self.refuse_waiter(req, refusal);
        }
        self.withdraw_surplus_applications(pool);
        self.pools[pool].surplus_since = None;
        let cause = if self.shutdown.is_some() { EndCause::Shutdown } else { EndCause::PoolClosed };
        while let Some(entry) = self.pools[pool].idle.first() {
            self.end(entry, cause, AfterEnd::Gone, Firmness::Now);
        }
        self.finish_destroying(pool);
    }

    /// Sets the alarm for when the pool may do what it may not do now.
    fn arm_pool(&mut self, pool: PoolIx) {
        let now = self.now.mono;
        let degraded = self.pools[pool].is_degraded(self.config.backoff.degraded_after);
        let known = &mut self.pools[pool];
        let mut at = Mono::NEVER;
        if let Some(since) = known.surplus_since {
            at = at.min(since.plus(SURPLUS_PATIENCE_MS));
        }
        if degraded && now < known.health.retry_at() {
            at = at.min(known.health.retry_at());
        }
        let have = (known.idle.len() + known.coming()).saturating_sub(known.expecting());
        if known.phase == PoolPhase::Active
            && have < known.template.pool.pool_size
            && known.bucket.is_empty()
        {
            at = at.min(known.refill_at().max(now.plus(1)));
        }
        if at != Mono::NEVER {
            self.alarms.at_latest(Ringer::Pool(pool), &mut known.alarm, at);
        }
    }

    /// A launch failed.
    pub(crate) fn pool_failed(&mut self, pool: PoolIx, began: Mono, detail: &Arc<str>) {
        let backoff = &self.config.backoff;
        let known = &mut self.pools[pool];
        let now = self.now.mono;
        let Some(times) = known.health.failed(began, now, detail, backoff.degraded_after) else {
            return;
        };
        let pause_ms = backoff.pause_ms(times);
        let jitter_ms = self.minter.below(pause_ms / 4 + 1);
        known.health.pause_until(now.plus(pause_ms + jitter_ms));
        if times == 1 {
            let template = known.template.name.clone();
            let detail = detail.to_string();
            let event = LifecycleEvent::PoolHealth { template, degraded: true, detail };
            self.publish(KeyId::NIL, event);
        }
        self.pool_due(pool);
    }

    /// A launch worked.
    pub(crate) fn pool_recovered(&mut self, pool: PoolIx) {
        let degraded_after = self.config.backoff.degraded_after;
        let known = &mut self.pools[pool];
        if known.health.recovered(degraded_after) {
            let template = known.template.name.clone();
            let detail = String::new();
            let event = LifecycleEvent::PoolHealth { template, degraded: false, detail };
            self.publish(KeyId::NIL, event);
        }
    }
}

//! Checkouts: the fast path takes the oldest idle sandbox that will live long enough, the overflow
//! path launches one, the blocked path waits until its deadline. No caller overtakes another of the
//! same key, and none waits while a sandbox is idle.

use model::why::Shortage;
use model::{EndCause, ErrorCode, KeyId, Refusal};

use crate::Kernel;
use crate::disk_limits::disk_full;
use crate::entry::{AfterEnd, EntryIx, Firmness, Phase};
use crate::event::{Checkout, CheckoutPolicy};
use crate::lease::refuse_ttl;
use crate::pool::PoolIx;
use crate::reply::{CheckoutPath, Reply};
use crate::request::{RequestIx, Terms, Waiter, WaitingFor};

impl Kernel {
    pub(crate) fn checkout(&mut self, asked: Checkout) -> Result<Reply, Refusal> {
        self.refuse_when_stopping()?;
        if let Some(entry) = self.entries.by_lease(asked.lease) {
            return self.checkout_again(entry, asked.tenant);
        }
        if self.tombstones.of_lease(asked.lease).is_some() {
            let cause = format!("lease {} was used before", asked.lease);
            return Err(Refusal::new(ErrorCode::IdConflict, cause));
        }
        let pool = self.served_pool(&asked.template)?;
        self.refuse_when_closed(pool)?;
        if self.requests.wants_lease(asked.lease) {
            let cause = format!("lease {} is being checked out already", asked.lease);
            return Err(Refusal::new(ErrorCode::IdConflict, cause));
        }
        let settings = &self.pools[pool].template.pool;
        let ttl_ms = asked.ttl_ms.unwrap_or(settings.lease_ttl_ms);
        refuse_ttl(ttl_ms)?;
        let max_waiters = settings.max_waiters;
        let waits_ms = asked.wait_ms.unwrap_or(self.config.wait_ms);
        let policy = match asked.policy {
            CheckoutPolicy::Wait if waits_ms == 0 => CheckoutPolicy::FailFast,
            policy @ (CheckoutPolicy::Wait
            | CheckoutPolicy::FailFast
            | CheckoutPolicy::IdleOnly) => policy,
        };
        // A caller that does not wait for others still waits for its own launch.
        let deadline_ms = match policy {
            CheckoutPolicy::Wait => waits_ms,
            CheckoutPolicy::FailFast | CheckoutPolicy::IdleOnly => {
                waits_ms.max(self.config.wait_ms)
            }
        };
        let idle = if self.pools[pool].queue.is_empty() { self.take_idle(pool) } else { None };
        let memory_mb = self.pools[pool].template.limits.memory_mb.into();
        if idle.is_none() {
            self.refuse_unserved(pool, policy, max_waiters, asked.tenant)?;
        }
        self.refuse_checkout_above_limits(asked.tenant, memory_mb)?;
        let claim = self.claim_of_lease(pool, asked.claim)?;
        let terms = Terms { lease: asked.lease, tenant: asked.tenant, ttl_ms, claim };
        if let Some(entry) = idle
            && self.can_hand_out_without_probe(entry, &terms)
        {
            self.pools[pool].counters.fast += 1;
            return Ok(Reply::CheckedOut(self.hand_out(entry, terms, CheckoutPath::Fast)));
        }
        let seq = self.minter.next_arrival();
        let path = CheckoutPath::Fast;
        let waiter =
            Waiter { pool, seq, terms, memory_mb, policy, path, entry: None, failed_claims: 0 };
        let deadline = self.now.mono.plus(deadline_ms);
        let req = self.wait(asked.request, deadline, WaitingFor::Checkout(Box::new(waiter)));
        if let Some(entry) = idle {
            self.pools[pool].counters.fast += 1;
            self.bind_to_lease(entry, req);
        } else {
            self.requests.lease_wanted(asked.lease);
            self.enqueue(pool, req);
        }
        Ok(Reply::Pending)
    }

    /// The same lease was requested again: it already has its sandbox.
    fn checkout_again(&self, entry: EntryIx, tenant: KeyId) -> Result<Reply, Refusal> {
        let sandbox = &self.entries[entry];
        match sandbox.phase() {
            Phase::InUse if sandbox.tenant() != tenant => {
                Err(Refusal::new(ErrorCode::IdConflict, "this lease belongs to another key"))
            }
            Phase::InUse => Ok(Reply::CheckedOut(self.checked_out(entry, CheckoutPath::Fast))),
            Phase::Cold
            | Phase::Launching
            | Phase::Idle
            | Phase::Claiming(_)
            | Phase::Wiping
            | Phase::Proving
            | Phase::Killing => {
                Err(Refusal::new(ErrorCode::IdConflict, "this lease is being checked out already"))
            }
        }
    }

    /// Refuses a checkout that its policy does not allow to go on.
    fn refuse_unserved(
        &mut self,
        pool: PoolIx,
        policy: CheckoutPolicy,
        max_waiters: u32,
        key: KeyId,
    ) -> Result<(), Refusal> {
        let known = &self.pools[pool];
        let refusal = match policy {
            CheckoutPolicy::IdleOnly => {
                Refusal::new(ErrorCode::PoolEmpty, "no sandbox is idle").retry_after(1_000)
            }
            CheckoutPolicy::Wait | CheckoutPolicy::FailFast
                if self.lacks_disk(pool) && known.expecting() >= known.coming() =>
            {
                disk_full()
            }
            // It would hold up all applicants behind it.
            CheckoutPolicy::Wait | CheckoutPolicy::FailFast
                if !self.can_ever_fit(known.template.limits.memory_mb.into()) =>
            {
                self.capacity_exhausted(Some(Shortage::Memory))
            }
            CheckoutPolicy::FailFast
                if known.free_slots() == 0 && known.expecting() >= known.coming() =>
            {
                let cause = format!("all {} slots of the pool are taken", known.slots());
                Refusal::new(ErrorCode::CapacityExhausted, cause).retry_after(1_000)
            }
            CheckoutPolicy::Wait | CheckoutPolicy::FailFast
                if known.waiters_without_launch() >= max_waiters
                    && !self.can_launch_for_next(pool) =>
            {
                if self.displace_in_pool_queue(pool, key) {
                    return Ok(());
                }
                let cause = format!("{max_waiters} callers wait already");
                Refusal::new(ErrorCode::QueueFull, cause).retry_after(1_000)
            }
            CheckoutPolicy::Wait | CheckoutPolicy::FailFast => return Ok(()),
        };
        self.pools[pool].counters.refused += 1;
        Err(refusal)
    }

    /// Whether a sandbox can be launched at once for one more caller: a slot and a place are free
    /// beside those for the callers before it.
    fn can_launch_for_next(&self, pool: PoolIx) -> bool {
        let known = &self.pools[pool];
        let launches = known.expecting().saturating_sub(known.coming());
        known.free_slots().min(self.launches_allowed(pool)) > launches
            && !self.admission.has_applicants()
            && self.has_room_for(known.template.limits.memory_mb.into())
    }

    /// Puts a checkout into the queue, and launches a sandbox for it if there is a slot.
    fn enqueue(&mut self, pool: PoolIx, req: RequestIx) {
        self.join_pool_queue(req);
        self.arm_request(req);
        // It may take a sandbox that the refill is launching.
        self.pool_due(pool);
        let before = self.pools[pool].coming();
        self.launch_for_waiters(pool);
        let started = self.pools[pool].coming() > before;
        let counters = &mut self.pools[pool].counters;
        let path = if started {
            counters.overflow += 1;
            CheckoutPath::Overflow
        } else {
            counters.blocked += 1;
            CheckoutPath::Blocked
        };
        let waiter = self.waiter(req);
        waiter.path = path;
        let patient = waiter.policy == CheckoutPolicy::Wait;
        if started {
            self.refuse_if_hopeless(pool, req);
        } else if !patient && self.pools[pool].expecting() > self.pools[pool].coming() {
            // There is a slot, but the pool is degraded and starts no launch now.
            self.pools[pool].counters.blocked -= 1;
            let health = &self.pools[pool].health;
            let cause = health
                .last_failure()
                .unwrap_or("the pool is degraded and starts no launch now")
                .to_owned();
            let wait_ms = health.retry_at().since(self.now.mono);
            let seq = self.waiter(req).seq;
            self.leave_pool_queue(pool, seq);
            let refusal = Refusal::new(ErrorCode::LaunchFailed, cause).retry_after(wait_ms);
            self.refuse_waiter(req, refusal);
        }
    }

    /// Applies for a launch for each caller that no sandbox is coming to.
    pub(crate) fn launch_for_waiters(&mut self, pool: PoolIx) {
        let allowed = self.launches_allowed(pool);
        let known = &self.pools[pool];
        let wanted = known.expecting().saturating_sub(known.coming());
        for _ in 0..wanted.min(known.free_slots()).min(allowed) {
            self.apply_for_pool(pool);
        }
    }

    /// The oldest idle sandbox that will live long enough. Those that will not are ended.
    pub(crate) fn take_idle(&mut self, pool: PoolIx) -> Option<EntryIx> {
        let margin_ms = self.flaws.margin_ms(self.pools[pool].template.pool.acquire_margin_ms());
        while let Some(entry) = self.pools[pool].idle.first() {
            if self.entries[entry].life.outlives(self.now.wall, margin_ms) {
                return Some(entry);
            }
            self.discard_near_expiry(entry, pool);
        }
        None
    }

    pub(crate) fn discard_near_expiry(&mut self, entry: EntryIx, pool: PoolIx) {
        self.pools[pool].counters.discarded_near_expiry += 1;
        self.end(entry, EndCause::NearExpiry, AfterEnd::Gone, Firmness::Now);
    }
}

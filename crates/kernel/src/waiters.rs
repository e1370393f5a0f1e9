//! Checkouts that wait in the queue of a pool, and how they leave it without a sandbox: their
//! deadline passes, their client goes away, or nothing can come.

use model::template::PoolSettings;
use model::{ErrorCode, KeyId, Refusal};

use crate::Kernel;
use crate::event::CheckoutPolicy;
use crate::pool::PoolIx;
use crate::reply::CheckoutPath;
use crate::request::{RequestIx, Waiter, WaitingFor};

impl Kernel {
    /// Puts a checkout into the queue of its pool.
    pub(crate) fn join_pool_queue(&mut self, req: RequestIx) {
        let waiter = self.waiter(req);
        let (pool, seq, key) = (waiter.pool, waiter.seq, waiter.terms.tenant);
        let memory_mb = waiter.memory_mb;
        self.pools[pool].queue.insert(seq, key, req);
        self.keys.count(key, |key| key.waits(memory_mb));
    }

    /// Takes a checkout out of the queue of its pool, if it is there.
    pub(crate) fn leave_pool_queue(&mut self, pool: PoolIx, seq: u64) -> Option<RequestIx> {
        let (key, req) = self.pools[pool].queue.remove(seq)?;
        let memory_mb = self.waiter(req).memory_mb;
        self.keys.count(key, |key| key.waits_no_longer(memory_mb));
        Some(req)
    }

    /// Takes the checkout that is served next out of the queue of a pool.
    pub(crate) fn next_in_pool_queue(&mut self, pool: PoolIx) -> Option<RequestIx> {
        let keys = &self.keys;
        let seq = self.flaws.next_waiter(&self.pools[pool].queue, |key| keys.live(key))?;
        self.leave_pool_queue(pool, seq)
    }

    /// Takes the checkout that came last out of the queue of a pool.
    pub(crate) fn last_in_pool_queue(&mut self, pool: PoolIx) -> Option<RequestIx> {
        let (seq, ..) = self.pools[pool].queue.iter().next_back()?;
        self.leave_pool_queue(pool, seq)
    }

    /// A full queue of a pool takes one more of a key that has clearly fewer in it than another:
    /// the latest of that other key is refused instead.
    pub(crate) fn displace_in_pool_queue(&mut self, pool: PoolIx, key: KeyId) -> bool {
        let queue = &self.pools[pool].queue;
        let Some((_, most, seq)) = queue.busiest() else { return false };
        if most <= queue.of_key(key) + 1 {
            return false;
        }
        let Some(req) = self.leave_pool_queue(pool, seq) else { return false };
        let cause = "the queue of the pool is full, and this key has the most callers in it";
        self.refuse_waiter(req, Refusal::new(ErrorCode::QueueFull, cause).retry_after(1_000));
        true
    }

    /// Refuses a checkout for which no place is free or can be evicted, unless its policy lets it
    /// wait.
    pub(crate) fn refuse_if_hopeless(&mut self, pool: PoolIx, req: RequestIx) {
        self.make_room();
        let (seq, policy) = (self.waiter(req).seq, self.waiter(req).policy);
        if self.is_waiter_covered(pool, seq) {
            return;
        }
        let counters = &mut self.pools[pool].counters;
        counters.overflow -= 1;
        match policy {
            CheckoutPolicy::Wait => {
                counters.blocked += 1;
                self.waiter(req).path = CheckoutPath::Blocked;
            }
            CheckoutPolicy::FailFast | CheckoutPolicy::IdleOnly => {
                self.leave_pool_queue(pool, seq);
                let refusal = self.capacity_exhausted(self.shortage());
                self.refuse_waiter(req, refusal);
                self.pool_due(pool);
            }
        }
    }

    /// Refuses callers that want only an idle sandbox and did not get one.
    pub(crate) fn refuse_idle_only(&mut self, pool: PoolIx) {
        if !std::mem::take(&mut self.pools[pool].idle_only_in_line) {
            return;
        }
        let line: Vec<(u64, RequestIx)> =
            self.pools[pool].queue.iter().map(|(seq, _, req)| (seq, *req)).collect();
        for (seq, req) in line {
            if self.waiter(req).policy == CheckoutPolicy::IdleOnly {
                self.leave_pool_queue(pool, seq);
                let refusal = Refusal::new(ErrorCode::PoolEmpty, "no sandbox is idle");
                self.refuse_waiter(req, refusal.retry_after(1_000));
            }
        }
    }

    pub(crate) fn checkout_overdue(&mut self, req: RequestIx) {
        let waiter = self.waiter(req);
        let (pool, seq, policy) = (waiter.pool, waiter.seq, waiter.policy);
        self.leave_pool_queue(pool, seq);
        let code = match policy {
            CheckoutPolicy::Wait => ErrorCode::CheckoutTimeout,
            CheckoutPolicy::FailFast => ErrorCode::CapacityExhausted,
            CheckoutPolicy::IdleOnly => ErrorCode::PoolEmpty,
        };
        let cause = self.overdue_cause(pool);
        self.pools[pool].counters.timed_out += 1;
        self.drop_waiter(req, Refusal::new(code, cause).retry_after(1_000));
        self.pool_due(pool);
    }

    /// Why a checkout got no sandbox before its deadline: what was short, with its setting.
    fn overdue_cause(&self, pool: PoolIx) -> String {
        let known = &self.pools[pool];
        let why = if let Some(failure) = known.health.last_failure() {
            format!("launches fail: {failure}")
        } else if known.occupied.applying() > 0
            && let Some(shortage) = self.shortage()
        {
            self.place_shortage(shortage)
        } else if known.coming() > known.expecting() {
            "a sandbox was still being started".to_owned()
        } else if known.free_slots() == 0 {
            let PoolSettings { pool_size, max_overflow, .. } = &known.template.pool;
            format!(
                "all {} slots of the pool are taken (pool_size {pool_size}, max_overflow \
                 {max_overflow})",
                known.slots()
            )
        } else {
            "no launch could begin".to_owned()
        };
        format!("no sandbox was free in time: {why}")
    }

    /// A waiting caller went away.
    pub(crate) fn checkout_abandoned(&mut self, req: RequestIx) {
        if self.flaw_leaks_for_gone_client(req) {
            return;
        }
        let waiter = self.waiter(req);
        let (pool, seq, lease) = (waiter.pool, waiter.seq, waiter.terms.lease);
        let bound = waiter.entry;
        self.leave_pool_queue(pool, seq);
        self.requests.lease_unwanted(lease);
        self.forget_request(req);
        if let Some(entry) = bound {
            // The claim continues, and the sandbox is returned when it is done.
            self.entries[entry].claim_unwanted();
        }
        self.pool_due(pool);
    }

    pub(crate) fn refuse_waiter(&mut self, req: RequestIx, refusal: Refusal) {
        let pool = self.waiter(req).pool;
        self.pools[pool].counters.refused += 1;
        self.drop_waiter(req, refusal);
    }

    fn drop_waiter(&mut self, req: RequestIx, refusal: Refusal) {
        let lease = self.waiter(req).terms.lease;
        self.requests.lease_unwanted(lease);
        self.answer(req, Err(refusal));
    }

    pub(crate) fn waiter(&mut self, req: RequestIx) -> &mut Waiter {
        match &mut self.requests[req].what {
            WaitingFor::Checkout(waiter) => waiter,
            WaitingFor::SessionUse { .. }
            | WaitingFor::Bind { .. }
            | WaitingFor::Turn { .. }
            | WaitingFor::Control { .. }
            | WaitingFor::LeaseUse { .. }
            | WaitingFor::Freeze { .. }
            | WaitingFor::Delete { .. }
            | WaitingFor::Read
            | WaitingFor::Destroy { .. } => unreachable!("those in a pool's line are checkouts"),
        }
    }
}

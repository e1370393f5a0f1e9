//! Checkouts that wait in the queue of a pool, and how they leave it without a sandbox: their
//! deadline passes, their client goes away, or nothing can come.

use model::template::PoolSettings;
use model::{ErrorCode, Refusal};

use crate::Kernel;
use crate::admission::ApplicantKind;
use crate::event::CheckoutPolicy;
use crate::pool::PoolIx;
use crate::reply::CheckoutPath;
use crate::request::{RequestIx, Waiter, WaitingFor};

impl Kernel {
    /// Refuses a checkout for which no place is free or can be evicted, unless its policy lets it
    /// wait.
    pub(crate) fn refuse_if_hopeless(&mut self, pool: PoolIx, req: RequestIx) {
        self.make_room();
        let hopeless = self.admission.applicants().next_back().is_some_and(|(seq, last)| {
            last.who == ApplicantKind::Pool(pool) && !self.is_covered(seq)
        });
        if !hopeless {
            return;
        }
        let policy = self.waiter(req).policy;
        let counters = &mut self.pools[pool].counters;
        counters.overflow -= 1;
        match policy {
            CheckoutPolicy::Wait => {
                counters.blocked += 1;
                self.waiter(req).path = CheckoutPath::Blocked;
            }
            CheckoutPolicy::FailFast | CheckoutPolicy::IdleOnly => {
                let seq = self.waiter(req).seq;
                self.pools[pool].queue.remove(&seq);
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
            self.pools[pool].queue.iter().map(|(s, r)| (*s, *r)).collect();
        for (seq, req) in line {
            if self.waiter(req).policy == CheckoutPolicy::IdleOnly {
                self.pools[pool].queue.remove(&seq);
                let refusal = Refusal::new(ErrorCode::PoolEmpty, "no sandbox is idle");
                self.refuse_waiter(req, refusal.retry_after(1_000));
            }
        }
    }

    pub(crate) fn checkout_overdue(&mut self, req: RequestIx) {
        let waiter = self.waiter(req);
        let (pool, seq, policy) = (waiter.pool, waiter.seq, waiter.policy);
        self.pools[pool].queue.remove(&seq);
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
        self.pools[pool].queue.remove(&seq);
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

//! Checkouts: the fast path takes the oldest idle sandbox that will live long enough, the overflow
//! path starts one, the blocked path waits in order of arrival until its deadline. Nobody overtakes
//! anybody, and nobody waits while a sandbox is idle.

use model::state::PoolPhase;
use model::{EndCause, ErrorCode, KeyId, Refusal, TemplateName};

use crate::Kernel;
use crate::admission::{Applicant, Who, capacity_exhausted};
use crate::disk::disk_full;
use crate::entry::{After, EntryIx, Phase, Resolve};
use crate::event::{Checkout, CheckoutPolicy};
use crate::lease::refuse_ttl;
use crate::pool::PoolIx;
use crate::reply::{CheckoutPath, Reply};
use crate::request::{RequestIx, Terms, Waiter, Waiting};

impl Kernel {
    pub(crate) fn checkout(&mut self, asked: Checkout) -> Result<Reply, Refusal> {
        self.refuse_when_stopping()?;
        if let Some(entry) = self.entries.by_lease(asked.lease) {
            return self.checkout_again(entry, asked.tenant);
        }
        if self.ends.of_lease(asked.lease).is_some() {
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
        // One that does not wait for others still waits for its own launch.
        let deadline_ms = match policy {
            CheckoutPolicy::Wait => waits_ms,
            CheckoutPolicy::FailFast | CheckoutPolicy::IdleOnly => {
                waits_ms.max(self.config.wait_ms)
            }
        };
        let idle = if self.pools[pool].queue.is_empty() { self.take_idle(pool) } else { None };
        if idle.is_none() {
            self.refuse_unserved(pool, policy, max_waiters)?;
        }
        let claim = asked.claim.filter(|claim| !claim.is_empty());
        let terms = Terms { lease: asked.lease, tenant: asked.tenant, ttl_ms, claim };
        if let Some(entry) = idle
            && self.needs_no_word(entry, &terms)
        {
            self.pools[pool].counters.fast += 1;
            return Ok(Reply::CheckedOut(self.hand_out(entry, terms, CheckoutPath::Fast)));
        }
        let seq = self.minter.place_in_line();
        let waiter = Waiter { pool, seq, terms, policy, path: CheckoutPath::Fast, entry: None };
        let deadline = self.now.mono.plus(deadline_ms);
        let req = self.wait(asked.request, deadline, Waiting::Checkout(Box::new(waiter)));
        if let Some(entry) = idle {
            self.pools[pool].counters.fast += 1;
            self.bind_to_lease(entry, req);
        } else {
            self.requests.lease_wanted(asked.lease);
            self.enqueue(pool, seq, req);
        }
        Ok(Reply::Pending)
    }

    /// The same lease was asked for again: it has its sandbox already.
    fn checkout_again(&self, entry: EntryIx, tenant: KeyId) -> Result<Reply, Refusal> {
        let sandbox = &self.entries[entry];
        match sandbox.phase {
            Phase::InUse if sandbox.tenant() != tenant => {
                Err(Refusal::new(ErrorCode::IdConflict, "this lease is another's"))
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

    /// Refuses a checkout that would have to do what its policy forbids.
    fn refuse_unserved(
        &mut self,
        pool: PoolIx,
        policy: CheckoutPolicy,
        max_waiters: u32,
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
            CheckoutPolicy::FailFast
                if known.free_slots() == 0 && known.expecting() >= known.coming() =>
            {
                let cause = format!("all {} slots of the pool are taken", known.slots());
                Refusal::new(ErrorCode::CapacityExhausted, cause).retry_after(1_000)
            }
            CheckoutPolicy::Wait | CheckoutPolicy::FailFast if known.waiters() >= max_waiters => {
                let cause = format!("{max_waiters} callers wait already");
                Refusal::new(ErrorCode::QueueFull, cause).retry_after(1_000)
            }
            CheckoutPolicy::Wait | CheckoutPolicy::FailFast => return Ok(()),
        };
        self.pools[pool].counters.refused += 1;
        Err(refusal)
    }

    /// Puts a checkout in line, and starts a sandbox for it if there is a slot.
    fn enqueue(&mut self, pool: PoolIx, seq: u64, req: RequestIx) {
        self.pools[pool].queue.insert(seq, req);
        self.arm_request(req);
        // It may have taken what the refill had begun.
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
            // There is a slot, but launches fail so often that none is started now.
            self.pools[pool].counters.blocked -= 1;
            let failure = self.pools[pool].last_failure.clone();
            let cause =
                failure.map_or_else(|| "no launch may begin now".to_owned(), |f| f.to_string());
            let wait_ms = self.pools[pool].retry_at.since(self.now.mono);
            self.pools[pool].queue.remove(&seq);
            let refusal = Refusal::new(ErrorCode::LaunchFailed, cause).retry_after(wait_ms);
            self.refuse_waiter(req, refusal);
        }
    }

    /// Asks for as many launches as there are callers with nothing on its way to them.
    pub(crate) fn launch_for_waiters(&mut self, pool: PoolIx) {
        let allowed = self.launches_allowed(pool);
        let known = &self.pools[pool];
        let wanted = known.expecting().saturating_sub(known.coming());
        for _ in 0..wanted.min(known.free_slots()).min(allowed) {
            let memory_mb = self.pools[pool].template.limits.memory_mb.into();
            self.pools[pool].occupied.applied();
            self.apply_for_place(Applicant { who: Who::Pool(pool), needs_entry: true, memory_mb });
        }
    }

    /// A place must come from what is free or can be evicted, or from waiting, if that is allowed.
    fn refuse_if_hopeless(&mut self, pool: PoolIx, req: RequestIx) {
        self.make_room();
        let hopeless = self
            .admission
            .applicants()
            .next_back()
            .is_some_and(|(seq, last)| last.who == Who::Pool(pool) && !self.is_covered(seq));
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
                self.refuse_waiter(req, capacity_exhausted());
                self.pool_due(pool);
            }
        }
    }

    /// The oldest idle sandbox that will live long enough. Those that will not are discarded, off
    /// the caller's path.
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
        self.end(entry, EndCause::NearExpiry, After::Gone, Resolve::Now);
    }

    /// Callers that want only an idle one, and did not get the next, get nothing.
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
        let cause = match &self.pools[pool].last_failure {
            Some(failure) => format!("no sandbox was free in time; launches fail: {failure}"),
            None => "no sandbox was free in time".to_owned(),
        };
        self.pools[pool].counters.timed_out += 1;
        self.drop_waiter(req, Refusal::new(code, cause).retry_after(1_000));
        self.pool_due(pool);
    }

    /// A caller went away while it waited.
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
            // The binding goes on, and the sandbox is returned as soon as it is done.
            self.entries[entry].phase = Phase::Claiming(None);
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
            Waiting::Checkout(waiter) => waiter,
            Waiting::SessionUse { .. }
            | Waiting::Bind { .. }
            | Waiting::Turn { .. }
            | Waiting::Control { .. }
            | Waiting::LeaseUse { .. }
            | Waiting::Freeze { .. }
            | Waiting::Delete { .. }
            | Waiting::Destroy { .. } => unreachable!("those in a pool's line are checkouts"),
        }
    }

    pub(crate) fn pool_named(&self, template: &TemplateName) -> Result<PoolIx, Refusal> {
        self.pools.named(template).ok_or_else(|| {
            Refusal::new(ErrorCode::TemplateUnknown, format!("no template {template} is served"))
        })
    }

    /// The same, for who wants a sandbox of it.
    pub(crate) fn served_pool(&self, template: &TemplateName) -> Result<PoolIx, Refusal> {
        let pool = self.pool_named(template)?;
        if self.is_served(template) {
            return Ok(pool);
        }
        let cause = format!(
            "the template {template} is not among those this server was started for \
             (node.templates, --templates)"
        );
        Err(Refusal::new(ErrorCode::TemplateUnknown, cause))
    }

    /// Whether this node was started for a template.
    pub(crate) fn is_served(&self, template: &TemplateName) -> bool {
        self.config.templates.is_empty() || self.config.templates.contains(template)
    }

    pub(crate) fn refuse_when_closed(&self, pool: PoolIx) -> Result<(), Refusal> {
        match self.pools[pool].phase {
            PoolPhase::Active => Ok(()),
            PoolPhase::Draining => {
                Err(Refusal::new(ErrorCode::PoolClosed, "the pool is being drained"))
            }
            PoolPhase::Destroying => {
                Err(Refusal::new(ErrorCode::TemplateUnknown, "the pool is being destroyed"))
            }
        }
    }
}

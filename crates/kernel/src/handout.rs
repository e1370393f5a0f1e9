//! Handing out an idle sandbox to a lease or a session. A sandbox that answered lately, and to
//! which nothing must be bound, is handed out in the same decision. Any other is claimed first: its
//! guest binds the settings and answers. A sandbox that was not probed within `probe_fresh_ms` is
//! never handed out unprobed.

use std::sync::Arc;

use model::lifecycle::ActiveCause;
use model::{EndCause, ErrorCode, LifecycleEvent, Refusal, Retry};

use crate::Kernel;
use crate::effect::Action;
use crate::entry::{EntryIx, EntryOwner, Frozen, OpKind, Phase, Step};
use crate::event::{CheckoutPolicy, Failure, FailureKind, Outcome};
use crate::reply::{CheckedOut, CheckoutPath, Reply};
use crate::request::{RequestIx, Terms};

/// How many sandboxes a caller tries to claim before it is refused with the cause.
const CLAIMS_MAX: u32 = 2;

impl Kernel {
    /// Hands out an idle sandbox to a waiting caller: at once, or as soon as the claim is
    /// confirmed.
    pub(crate) fn serve(&mut self, entry: EntryIx, req: RequestIx) {
        let waiter = self.waiter(req);
        let (terms, path) = (waiter.terms.clone(), waiter.path);
        self.requests.lease_unwanted(terms.lease);
        if self.can_hand_out_without_probe(entry, &terms) {
            let checked_out = self.hand_out(entry, terms, path);
            self.answer(req, Ok(Reply::CheckedOut(checked_out)));
        } else {
            self.bind_to_lease(entry, req);
        }
    }

    /// Whether a sandbox can be handed out without a probe: nothing must be bound, nothing may
    /// still be bound, and it answered within `probe_fresh_ms`.
    pub(crate) fn can_hand_out_without_probe(&self, entry: EntryIx, terms: &Terms) -> bool {
        let sandbox = &self.entries[entry];
        let fresh = self.now.mono.since(sandbox.proven_at) < self.config.probe_fresh_ms
            || self.flaws.trusts_stale_proof();
        let as_it_is = terms.claim.is_none() && !sandbox.clean.may_be_bound();
        as_it_is && fresh && sandbox.frozen == Frozen::No && sandbox.ops.is_free()
    }

    /// Hands out an idle sandbox in this decision. It was not probed, so this proves nothing.
    pub(crate) fn hand_out(
        &mut self,
        entry: EntryIx,
        terms: Terms,
        path: CheckoutPath,
    ) -> CheckedOut {
        self.assign_to_lease(entry, terms);
        self.mark_in_use(entry, Step::HandOut);
        self.active_lease(entry, path)
    }

    /// Claims an idle sandbox for the lease of a caller; its guest must answer.
    pub(crate) fn bind_to_lease(&mut self, entry: EntryIx, req: RequestIx) {
        let waiter = self.waiter(req);
        waiter.entry = Some(entry);
        let terms = waiter.terms.clone();
        let settings = terms.claim.clone();
        self.assign_to_lease(entry, terms);
        let sandbox = &mut self.entries[entry];
        sandbox.take(Step::Claim(Some(req)));
        let action = Action::Claim {
            instance: sandbox.instance,
            settings,
            expires_at: sandbox.life.expires_at(),
        };
        let timeout_ms = self.claim_timeout_ms(entry);
        self.begin(entry, OpKind::Claim, timeout_ms, action);
        self.settle(entry);
    }

    /// Takes an idle sandbox out of its pool for a lease. The new expiry is set first, so it cannot
    /// expire during the claim.
    fn assign_to_lease(&mut self, entry: EntryIx, terms: Terms) {
        self.leave_pool_line(entry);
        self.entries.lease_began(terms.lease, entry);
        let sandbox = &mut self.entries[entry];
        sandbox.ownership.assigned_to_lease(terms.lease, terms.tenant);
        sandbox.uses += 1;
        sandbox.clean.assigned_to_lease(terms.claim.is_some());
        sandbox.settings = terms.claim;
        sandbox.life.limit_to(self.now.wall.plus(terms.ttl_ms));
        if let Some(pool) = sandbox.slot {
            self.pools[pool].occupied.lease_began();
        }
        self.mark(entry);
    }

    pub(crate) fn claim_ended(&mut self, entry: EntryIx, outcome: Outcome) {
        let Phase::Claiming(req) = self.entries[entry].phase() else { return };
        let (detail, refusal) = match outcome {
            Outcome::Done => {
                self.claimed(entry, req);
                return;
            }
            Outcome::Failed(Failure { kind: FailureKind::Refused(code), detail }) => {
                let refusal = refused(code, &detail);
                (detail, Some(refusal))
            }
            Outcome::Failed(failure) => (failure.detail, None),
            Outcome::TimedOut => (Arc::from("the sandbox did not answer in time"), None),
        };
        if let Some(session) = self.entries[entry].session() {
            let failed = &mut self.sessions[session].failed_claims;
            if let Some(refusal) = last_straw(failed, &detail, refusal) {
                self.fail_wants(session, &refusal);
            }
        } else if let Some(req) = req {
            let failed = &mut self.waiter(req).failed_claims;
            if let Some(refusal) = last_straw(failed, &detail, refusal) {
                self.entries[entry].claim_unwanted();
                self.refuse_waiter(req, refusal);
            }
        }
        self.died(entry, EndCause::ClaimFailed, Some(detail));
    }

    fn claimed(&mut self, entry: EntryIx, req: Option<RequestIx>) {
        let sandbox = &mut self.entries[entry];
        sandbox.proven_at = self.now.mono;
        sandbox.clean.confirmed(sandbox.settings.is_some());
        self.mark_in_use(entry, Step::Bind);
        if let Some(session) = self.entries[entry].session() {
            self.session_due(session);
            return;
        }
        let Some(req) = req else {
            // Its caller went away during the claim.
            self.recycle(entry, EndCause::ClientGone);
            return;
        };
        let path = self.waiter(req).path;
        let checked_out = self.active_lease(entry, path);
        self.answer(req, Ok(Reply::CheckedOut(checked_out)));
    }

    /// A sandbox is in use from now on, by a lease or a session.
    fn mark_in_use(&mut self, entry: EntryIx, step: Step) {
        let sandbox = &mut self.entries[entry];
        sandbox.came_into_use(step);
        sandbox.last_used = self.now;
        self.settle(entry);
        self.arm_freeze_and_sweep(entry);
        self.arm_expiry(entry);
    }

    /// Publishes that a lease has its sandbox.
    fn active_lease(&mut self, entry: EntryIx, path: CheckoutPath) -> CheckedOut {
        let checked_out = self.checked_out(entry, path);
        let event = LifecycleEvent::SandboxActive {
            session: None,
            lease: Some(checked_out.lease),
            sandbox_id: checked_out.sandbox,
            generation: checked_out.generation,
            cause: ActiveCause::Created,
            previous_id: None,
            state_lost: false,
            expires_at: Some(checked_out.expires_at),
        };
        self.publish(self.entries[entry].tenant(), event);
        checked_out
    }

    pub(crate) fn checked_out(&self, entry: EntryIx, path: CheckoutPath) -> CheckedOut {
        let sandbox = &self.entries[entry];
        let EntryOwner::Lease(lease) = sandbox.owner() else {
            unreachable!("a lease leads to its sandbox")
        };
        CheckedOut {
            lease,
            sandbox: sandbox.id,
            generation: sandbox.generation,
            instance: sandbox.instance,
            expires_at: sandbox.life.expires_at().unwrap_or_default(),
            path,
            uses: sandbox.uses - 1,
        }
    }

    /// A sandbox was lost during its claim: the caller goes back to its old position in the queue.
    pub(crate) fn claim_lost(&mut self, entry: EntryIx, req: Option<RequestIx>) {
        match self.entries[entry].owner() {
            EntryOwner::Lease(lease) => {
                self.entries.lease_ended(lease);
                self.entries[entry].ownership.returned_to_pool();
                let Some(req) = req else { return };
                self.requests.lease_wanted(lease);
                let waiter = self.waiter(req);
                waiter.entry = None;
                let (pool, policy) = (waiter.pool, waiter.policy);
                if self.requests[req].deadline <= self.now.mono {
                    // Its deadline has passed: it does not get another attempt.
                    self.checkout_overdue(req);
                    return;
                }
                // It gets the next idle sandbox in its turn, and waits for nothing else.
                self.pools[pool].idle_only_in_line |= policy == CheckoutPolicy::IdleOnly;
                self.join_pool_queue(req);
                self.arm_request(req);
                self.pool_due(pool);
            }
            EntryOwner::Session(session) => self.claim_lost_by_session(session, entry),
            EntryOwner::Unowned => {}
        }
    }
}

/// That a caller is refused for a reason that is not its sandbox.
pub(crate) fn refused(code: ErrorCode, detail: &str) -> Refusal {
    let refusal = Refusal::new(code, detail.to_owned());
    match code.retry() {
        Retry::Later => refusal.retry_after(1_000),
        Retry::Never => refusal,
    }
}

/// Whether a caller whose claim failed gets no further one. Claims that fail with one sandbox after
/// another are not the sandboxes' fault: a caller must not use up the whole pool.
fn last_straw(failed: &mut u32, detail: &str, refusal: Option<Refusal>) -> Option<Refusal> {
    *failed += 1;
    let too_many = || {
        let refusal = Refusal::new(ErrorCode::LaunchFailed, detail.to_owned());
        (*failed >= CLAIMS_MAX).then(|| refusal.retry_after(1_000))
    };
    let refusal = refusal.or_else(too_many)?;
    *failed = 0;
    Some(refusal)
}

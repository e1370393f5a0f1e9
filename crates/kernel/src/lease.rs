//! Leases: exclusive use of a sandbox until it is returned or expires. A return never waits for
//! anything; `recycle` decides what becomes of the sandbox.

use model::{EndCause, ErrorCode, LeaseId, Refusal, TerminatedReason, Wall};

use crate::Kernel;
use crate::entry::{AfterEnd, EntryIx, EntryOwner, Firmness, Phase};
use crate::reply::Reply;
use crate::tombstones::LeaseTombstone;

impl Kernel {
    pub(crate) fn lease_returned(&mut self, lease: LeaseId) -> Result<Reply, Refusal> {
        let entry = match (self.leased(lease), self.tombstones.of_lease(lease)) {
            (Ok(entry), _) => entry,
            // There is nothing left to return, and its user wanted that.
            (Err(_), Some(end)) if is_settled(end.cause) => return Ok(Reply::Noted),
            (Err(refusal), _) => return Err(refusal),
        };
        match self.entries[entry].phase() {
            Phase::InUse => self.recycle(entry, EndCause::Returned),
            Phase::Claiming(req) => {
                // Returned before it was handed out: the caller no longer wants it.
                if let Some(req) = req {
                    self.entries[entry].claim_unwanted();
                    self.lease_ended(entry, lease, EndCause::Returned);
                    let cause = "the lease was returned before it was handed out";
                    self.answer(req, Err(Refusal::new(ErrorCode::Aborted, cause)));
                }
            }
            Phase::Cold
            | Phase::Launching
            | Phase::Idle
            | Phase::Wiping
            | Phase::Proving
            | Phase::Killing => unreachable!("a lease leads to a sandbox that is in use"),
        }
        Ok(Reply::Noted)
    }

    pub(crate) fn lease_renewed(
        &mut self,
        lease: LeaseId,
        ttl_ms: Option<u64>,
    ) -> Result<Reply, Refusal> {
        let entry = self.leased(lease)?;
        let sandbox = &mut self.entries[entry];
        if let Some(termination) = &sandbox.termination {
            return Err(lost(termination.cause));
        }
        let ttl_ms = ttl_ms.unwrap_or(sandbox.template.pool.lease_ttl_ms);
        refuse_ttl(ttl_ms)?;
        let expires_at = sandbox.life.renew(self.now.wall.plus(ttl_ms));
        self.mark(entry);
        self.arm_expiry(entry);
        Ok(Reply::Renewed { expires_at })
    }

    fn leased(&self, lease: LeaseId) -> Result<EntryIx, Refusal> {
        self.entries.by_lease(lease).ok_or_else(|| match self.tombstones.of_lease(lease) {
            Some(end) => lost(end.cause),
            None => Refusal::new(ErrorCode::LeaseUnknown, format!("no lease {lease} is known")),
        })
    }

    /// A lease ended. Until the end of the sandbox is published it is still recorded as the
    /// lease's.
    pub(crate) fn forget_lease(&mut self, entry: EntryIx, cause: EndCause) {
        let EntryOwner::Lease(lease) = self.entries[entry].owner() else { return };
        self.entries.lease_ended(lease);
        self.lease_ended(entry, lease, cause);
    }

    /// Makes the tombstone of a lease; what happens to its sandbox later does not change it.
    fn lease_ended(&mut self, entry: EntryIx, lease: LeaseId, cause: EndCause) {
        let sandbox = &mut self.entries[entry];
        let cause = sandbox.ownership.lease_ended(cause);
        self.tombstones.remember_lease(lease, LeaseTombstone { cause, tenant: sandbox.tenant() });
    }

    /// Sets the alarm for when a sandbox expires.
    pub(crate) fn arm_expiry(&mut self, entry: EntryIx) {
        let sandbox = &self.entries[entry];
        let Some(end) = sandbox.life.expires_at() else { return };
        if sandbox.termination.is_some() {
            return;
        }
        let margin_ms = match sandbox.phase() {
            Phase::Idle => sandbox.template.pool.acquire_margin_ms(),
            // Activity is not cut off: the kernel looks again when it ends.
            Phase::InUse if sandbox.session().is_some() && !sandbox.is_inactive() => {
                return;
            }
            Phase::InUse => 0,
            Phase::Cold
            | Phase::Launching
            | Phase::Claiming(_)
            | Phase::Wiping
            | Phase::Proving
            | Phase::Killing => return,
        };
        let at = self.now.mono_at(Wall(end.0.saturating_sub(margin_ms)));
        self.arm(entry, at);
    }

    /// Ends a sandbox that has expired.
    pub(crate) fn expire(&mut self, entry: EntryIx) {
        let sandbox = &self.entries[entry];
        match sandbox.phase() {
            Phase::Idle => {
                if let Some(pool) = sandbox.slot {
                    let margin_ms = sandbox.template.pool.acquire_margin_ms();
                    if !sandbox.life.outlives(self.now.wall, margin_ms) {
                        self.discard_near_expiry(entry, pool);
                    }
                }
            }
            Phase::InUse if !sandbox.life.outlives(self.now.wall, 0) => match sandbox.owner() {
                EntryOwner::Lease(_) => {
                    let over = sandbox.life.has_ended(self.now.wall);
                    let cause = if over { EndCause::LifetimeOver } else { EndCause::LeaseExpired };
                    self.end(entry, cause, AfterEnd::Gone, Firmness::Now);
                }
                EntryOwner::Session(_) if sandbox.is_inactive() => {
                    self.end(entry, EndCause::LifetimeOver, AfterEnd::Cold, Firmness::Firm);
                }
                EntryOwner::Session(_) | EntryOwner::Unowned => {}
            },
            Phase::InUse
            | Phase::Cold
            | Phase::Launching
            | Phase::Claiming(_)
            | Phase::Wiping
            | Phase::Proving
            | Phase::Killing => {}
        }
    }
}

/// The longest lease, unless the template allows less: a year.
const LEASE_TTL_MS_MAX: u64 = 365 * 86_400_000;

pub(crate) fn refuse_ttl(ttl_ms: u64) -> Result<(), Refusal> {
    if ttl_ms == 0 || ttl_ms > LEASE_TTL_MS_MAX {
        let cause = "ttl_s: must be above 0 and at most a year";
        return Err(Refusal::new(ErrorCode::InvalidArgument, cause));
    }
    Ok(())
}

/// Whether a late return of a lease that ended like this succeeds: it was returned before, its
/// sandbox failed by itself, or its user deleted it. A lease that was taken away is lost, and a
/// late return is refused.
fn is_settled(cause: EndCause) -> bool {
    match cause.reason() {
        TerminatedReason::Crash
        | TerminatedReason::Oom
        | TerminatedReason::DiskLimit
        | TerminatedReason::Replaced => true,
        TerminatedReason::Deleted => cause != EndCause::PoolClosed,
        TerminatedReason::UserAbort
        | TerminatedReason::Idle
        | TerminatedReason::Expired
        | TerminatedReason::Evicted
        | TerminatedReason::Shutdown
        | TerminatedReason::Policy => false,
    }
}

/// The refusal of a caller whose lease is gone.
pub(crate) fn lost(cause: EndCause) -> Refusal {
    let reason = cause.reason();
    let cause = format!("the lease is gone: {}", cause.in_words());
    Refusal::new(ErrorCode::LeaseLost, cause).because(reason)
}

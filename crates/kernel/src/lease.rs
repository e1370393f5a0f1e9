//! Leases: exclusive use of a sandbox until it is returned or expires. A return never waits for
//! anything; what becomes of the sandbox is decided in `recycle`.

use model::{EndCause, ErrorCode, LeaseId, Refusal, TerminatedReason, Wall};

use crate::Kernel;
use crate::ends::LeaseEnd;
use crate::entry::{After, Own, Phase, Resolve};
use crate::reply::Reply;
use crate::slab::Ix;

impl Kernel {
    pub(crate) fn lease_returned(&mut self, lease: LeaseId) -> Result<Reply, Refusal> {
        let ix = match (self.leased(lease), self.ends.of_lease(lease)) {
            (Ok(ix), _) => ix,
            // There is nothing left to give back, and that is how its user wants it.
            (Err(_), Some(end)) if is_settled(end.cause) => return Ok(Reply::Noted),
            (Err(refusal), _) => return Err(refusal),
        };
        match self.entries[ix].phase {
            Phase::InUse => self.recycle(ix, EndCause::Returned),
            Phase::Claiming(req) => {
                // Returned before it was handed out: nobody wants it any more.
                if let Some(req) = req {
                    self.entries[ix].phase = Phase::Claiming(None);
                    self.lease_over(ix, lease, EndCause::Returned);
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
        let ix = self.leased(lease)?;
        let entry = &mut self.entries[ix];
        if let Some(ending) = &entry.ending {
            return Err(lost(ending.cause));
        }
        let ttl_ms = ttl_ms.unwrap_or(entry.template.pool.lease_ttl_ms);
        refuse_ttl(ttl_ms)?;
        // A renewal gives time and never takes any, and none gives more than a whole life.
        let wanted = self.now.wall.plus(ttl_ms);
        let kept = entry.expires_at.map_or(wanted, |current| current.max(wanted));
        let expires_at = entry.hard_expires_at.map_or(kept, |hard| hard.min(kept));
        entry.expires_at = Some(expires_at);
        self.mark(ix);
        self.arm_expiry(ix);
        Ok(Reply::Renewed { expires_at })
    }

    fn leased(&self, lease: LeaseId) -> Result<Ix, Refusal> {
        self.lease_index.get(lease.as_u128()).ok_or_else(|| match self.ends.of_lease(lease) {
            Some(end) => lost(end.cause),
            None => Refusal::new(ErrorCode::LeaseUnknown, format!("no lease {lease} is known")),
        })
    }

    /// A lease is over. Until its end is announced the sandbox is still known as the lease's.
    pub(crate) fn forget_lease(&mut self, ix: Ix, cause: EndCause) {
        let Own::Lease(lease) = self.entries[ix].owner else { return };
        self.lease_index.remove(lease.as_u128());
        self.lease_over(ix, lease, cause);
    }

    /// Remembers how a lease ended; what happens to its sandbox afterwards changes nothing of it.
    fn lease_over(&mut self, ix: Ix, lease: LeaseId, cause: EndCause) {
        let entry = &mut self.entries[ix];
        let cause = *entry.lease_end.get_or_insert(cause);
        self.ends.remember_lease(lease, LeaseEnd { cause, tenant: entry.tenant });
    }

    /// Sees to it that a sandbox is looked at when its time is over.
    pub(crate) fn arm_expiry(&mut self, ix: Ix) {
        let entry = &self.entries[ix];
        let Some(end) = entry.expires_at else { return };
        if entry.ending.is_some() {
            return;
        }
        let margin_ms = match entry.phase {
            Phase::Idle => entry.template.pool.acquire_margin_ms(),
            // What is in progress is not cut off: it is looked at when that ends.
            Phase::InUse if matches!(entry.owner, Own::Session(_)) && !entry.may_rest() => return,
            Phase::InUse => 0,
            Phase::Cold
            | Phase::Launching
            | Phase::Claiming(_)
            | Phase::Wiping
            | Phase::Proving
            | Phase::Killing => return,
        };
        let at = self.now.mono_at(Wall(end.0.saturating_sub(margin_ms)));
        self.arm(ix, at);
    }

    /// Ends a sandbox whose time is over.
    pub(crate) fn expire(&mut self, ix: Ix) {
        let entry = &self.entries[ix];
        match entry.phase {
            Phase::Idle => {
                if let Some(pool) = entry.slot {
                    let margin_ms = entry.template.pool.acquire_margin_ms();
                    if !entry.outlives(self.now.wall, margin_ms) {
                        self.discard_near_expiry(ix, pool);
                    }
                }
            }
            Phase::InUse if !entry.outlives(self.now.wall, 0) => match entry.owner {
                Own::Lease(_) => {
                    let over = entry.hard_expires_at.is_some_and(|hard| hard <= self.now.wall);
                    let cause = if over { EndCause::LifetimeOver } else { EndCause::LeaseExpired };
                    self.end(ix, cause, After::Gone, Resolve::Now);
                }
                Own::Session(_) if entry.may_rest() => {
                    self.end(ix, EndCause::LifetimeOver, After::Cold, Resolve::Firm);
                }
                Own::Session(_) | Own::Nobody => {}
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

/// Whether a return of a lease that ended like this is the same as one that came in time: it was
/// returned before, or its sandbox is gone by its own fault or its user's wish. A lease that was
/// taken away is lost, and whoever returns it late should know.
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

/// The refusal of whoever comes with a lease that is gone.
pub(crate) fn lost(cause: EndCause) -> Refusal {
    let reason = cause.reason();
    let cause = format!("the lease is gone: {} ({})", reason.as_str(), cause.as_str());
    Refusal::new(ErrorCode::LeaseLost, cause).because(reason)
}

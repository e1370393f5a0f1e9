//! Leases: they work while they last and never after, and no client uses what belongs to another.

use kernel::{Reply, UseTarget};
use model::record::Owner;
use model::{EndCause, ErrorCode, LeaseId, Refusal, SandboxId, TerminatedReason};

use super::{Judged, Promise, broken, holds};
use crate::ledger::LeasePhase;
use crate::runtime::Phase;
use crate::world::World;

/// Who may use a sandbox by its id; a use was granted there.
pub(crate) fn user_of(world: &World, sandbox: SandboxId, granted: SandboxId) -> Judged<Owner> {
    let lease = world
        .ledger
        .leases
        .iter()
        .find(|(_, lease)| lease.sandbox == sandbox && lease.phase == LeasePhase::Held);
    if let Some((lease, _)) = lease
        && granted == sandbox
    {
        return Ok(Owner::Lease(*lease));
    }
    // A session's use goes on in the sandbox that took the place of the one it named.
    match world.store.sandboxes.get(&granted).map(|record| record.owner) {
        Some(Owner::Session(session)) => Ok(Owner::Session(session)),
        other => broken(Promise::LeaseHonoured, || {
            format!("a use of {sandbox:?} was granted, which belongs to {other:?}")
        }),
    }
}

/// A use of a sandbox was refused. While the lease lasts and the sandbox works, the refusal must
/// not say that it is gone.
pub(crate) fn refused(world: &World, target: UseTarget, refusal: &Refusal) -> Judged {
    let UseTarget::Sandbox(sandbox) = target else { return Ok(()) };
    let gone = matches!(
        refusal.code,
        ErrorCode::SandboxGone
            | ErrorCode::SandboxUnknown
            | ErrorCode::LeaseLost
            | ErrorCode::LeaseUnknown
            | ErrorCode::NotLeased
    );
    let held = world.ledger.leases.values().find(|lease| {
        lease.sandbox == sandbox
            && lease.phase == LeasePhase::Held
            && lease.expires_at > world.run_wall()
    });
    let works = held.is_some_and(|lease| {
        world
            .runtime
            .instances
            .get(&lease.instance)
            .is_some_and(|one| one.phase == Phase::Up && !one.kill_asked && !one.troubled)
    });
    let ending = world.store.sandboxes.get(&sandbox).is_none_or(|one| one.ending.is_some());
    holds(Promise::LeaseHonoured, !(gone && works && !ending), || {
        format!("{sandbox:?} works and is leased, but: {refusal}")
    })
}

/// A return was answered. A late return succeeds if the lease was returned before or its sandbox
/// failed; a lease that was taken away is lost.
pub(crate) fn returned(
    world: &World,
    lease: LeaseId,
    held: bool,
    direct: Option<&Result<Reply, Refusal>>,
) -> Judged {
    let end = world.watch.lease_ends.get(&lease).copied();
    let fits = match direct {
        Some(Ok(_)) => held || end.is_some_and(is_settled),
        Some(Err(refusal)) if refusal.code == ErrorCode::LeaseLost => {
            end.is_some_and(|end| !is_settled(end))
        }
        Some(Err(_)) | None => true,
    };
    holds(Promise::LeaseHonoured, fits, || {
        format!("{lease:?} ended by {end:?}, and its return was answered {direct:?}")
    })
}

fn is_settled(end: EndCause) -> bool {
    match end.reason() {
        TerminatedReason::Crash | TerminatedReason::Oom | TerminatedReason::DiskLimit => true,
        TerminatedReason::Deleted => end != EndCause::PoolClosed,
        TerminatedReason::UserAbort
        | TerminatedReason::Idle
        | TerminatedReason::Expired
        | TerminatedReason::Evicted
        | TerminatedReason::Shutdown
        | TerminatedReason::Replaced
        | TerminatedReason::Policy => false,
    }
}

/// The recorded end of a lease never changes.
pub(crate) fn written(world: &mut World, lease: LeaseId, end: Option<EndCause>) -> Judged {
    let before = world.watch.lease_ends.get(&lease).copied();
    if let Some(end) = end {
        world.watch.lease_ends.entry(lease).or_insert(end);
    }
    holds(Promise::LeaseHonoured, before.is_none() || before == end, || {
        format!("{lease:?} ended by {before:?}, and then by {end:?}")
    })
}

/// Time passed: expired leases have ended.
pub(crate) fn ticked(world: &World) -> Judged {
    // A small difference of the clocks is drift, which is ignored.
    let drift_ms = if world.watch.clock_jumped { 1_000 } else { 0 };
    for (id, lease) in &world.ledger.leases {
        if lease.phase != LeasePhase::Held || lease.expires_at.plus(drift_ms) > world.run_wall() {
            continue;
        }
        let lives = world.store.of_lease.contains_key(id);
        holds(Promise::LeaseEnds, !lives, || {
            format!("{id:?} ended at {:?} and it is {:?}", lease.expires_at, world.run_wall())
        })?;
    }
    Ok(())
}

//! Waiting requests: served in order, not past a deadline, and not while a sandbox is available.

use model::record::Owner;
use model::state::{PoolPhase, SandboxState};
use model::{EndCause, LeaseId, Mono, TemplateName};

use super::{Judged, Promise, holds};
use crate::ledger::{Ask, LeasePhase, Pending};
use crate::world::World;
use kernel::CheckoutPolicy;

/// A sandbox was assigned to a lease: every earlier waiter of the same key must have one.
pub(crate) fn assigned(world: &World, lease: LeaseId, template: &TemplateName) -> Judged {
    let Some(queue) = world.ledger.queues.get(template) else { return Ok(()) };
    let Some(place) = queue.iter().position(|(_, other)| *other == lease) else { return Ok(()) };
    let key = |lease: &LeaseId| world.ledger.leases.get(lease).map(|lease| lease.tenant);
    let earlier = queue[..place].iter().find(|(_, earlier)| {
        key(earlier) == key(&lease) && !world.store.of_lease.contains_key(earlier)
    });
    holds(Promise::FirstServed, earlier.is_none(), || {
        format!("{lease:?} is served before {earlier:?}")
    })
}

/// When a request must have its answer. A checkout whose sandbox is being claimed waits for that.
fn patience(world: &World, pending: &Pending) -> Mono {
    match &pending.ask {
        Ask::Checkout { lease, .. } if world.store.of_lease.contains_key(lease) => {
            pending.deadline.plus(world.scenario.config.deadlines.claim_ms)
        }
        Ask::Checkout { .. }
        | Ask::Use { .. }
        | Ask::Freeze { .. }
        | Ask::Thaw { .. }
        | Ask::Delete { .. }
        | Ask::Create { .. }
        | Ask::Turn { .. }
        | Ask::Abort { .. }
        | Ask::Pause { .. }
        | Ask::Resume { .. }
        | Ask::Stop { .. }
        | Ask::End { .. }
        | Ask::Fork { .. }
        | Ask::Read { .. }
        | Ask::Destroy { .. } => pending.deadline,
    }
}

/// After every event: no waiter could be served, and every deadline has an alarm.
pub(crate) fn settled(world: &World) -> Judged {
    let mut first_deadline = None;
    for pending in world.ledger.pending.values() {
        let deadline = patience(world, pending);
        if first_deadline.is_none_or(|first| deadline < first) {
            first_deadline = Some(deadline);
        }
    }
    if let Some(deadline) = first_deadline {
        let wake = world.kernel.next_wake();
        holds(Promise::DeadlineKept, wake.is_some_and(|wake| wake <= deadline), || {
            format!("a request waits until {deadline:?}, the kernel sleeps until {wake:?}")
        })?;
    }
    for (template, queue) in &world.ledger.queues {
        if !queue.is_empty() {
            in_vain(world, template, queue)?;
        }
    }
    Ok(())
}

fn in_vain(
    world: &World,
    template: &TemplateName,
    queue: &[(model::RequestId, LeaseId)],
) -> Judged {
    let Some(pool) = world.store.pools.get(template) else { return Ok(()) };
    if pool.phase != PoolPhase::Active || world.stopping {
        return Ok(());
    }
    let without = queue.iter().filter(|(_, lease)| !world.store.of_lease.contains_key(lease));
    let waiters = without.clone().count();
    let Some((first, _)) = without.clone().next() else { return Ok(()) };
    let margin_ms = pool.template.pool.acquire_margin_ms();
    let enough = world.now.wall.plus(margin_ms);
    let idle = world.store.idle.get(template).into_iter().flatten().find(|id| {
        let record = world.store.sandboxes.get(id);
        record.is_some_and(|record| record.expires_at.is_none_or(|end| end > enough))
    });
    holds(Promise::NoWaitInVain, idle.is_none(), || {
        format!("{first:?} waits while {idle:?} is idle")
    })?;
    room(world, template, waiters)
}

/// If slots, places, memory and entries are free, a sandbox is being launched for each waiter.
fn room(world: &World, template: &TemplateName, waiters: usize) -> Judged {
    let Some(stats) = world.kernel.pool_stats(template) else { return Ok(()) };
    let Some(pool) = world.store.pools.get(template) else { return Ok(()) };
    let config = &world.scenario.config;
    // With a memory budget, a large applicant holds up the small ones behind it.
    let no_disk = world.disk_short && pool.traits.disk.is_some();
    if config.memory_budget_mb.is_some() || pool.phase != PoolPhase::Active || no_disk {
        return Ok(());
    }
    let unnamed =
        world.runtime.instances.keys().filter(|id| !world.store.by_instance.contains_key(id));
    let live = (world.store.by_instance.len() + unnamed.count()) as u32;
    let free = stats.slots_used < stats.slots
        && live < config.max_live
        && (world.store.sandboxes.len() as u32) < config.max_sandboxes;
    if !free || stats.degraded || stats.last_failure.is_some() {
        return Ok(());
    }
    let starting = world
        .store
        .sandboxes
        .values()
        .filter(|record| record.template == *template && record.state != SandboxState::Warm)
        .filter(|record| match record.ending {
            None => !is_taken(world, record.owner),
            // Its waiter is refused when the slot of the failed launch is free.
            Some(cause) => matches!(cause, EndCause::LaunchFailed | EndCause::ReadyTimeout),
        })
        .filter(|record| record.instance.is_some())
        .count();
    holds(Promise::NoWaitInVain, starting >= waiters, || {
        format!("{waiters} wait for {template}, {starting} are starting, and there is room")
    })
}

/// Whether a sandbox has an owner or is being claimed; one that is being cleaned has none.
fn is_taken(world: &World, owner: Owner) -> bool {
    let asked = match owner {
        Owner::Unowned | Owner::Session(_) => false,
        Owner::Lease(lease) => {
            world.ledger.leases.get(&lease).is_some_and(|lease| lease.phase == LeasePhase::Asked)
        }
    };
    asked || world.ledger.has(owner)
}

/// Time passed: every request past its deadline is answered.
pub(crate) fn ticked(world: &World) -> Judged {
    for (request, pending) in &world.ledger.pending {
        let over = patience(world, pending) <= world.now.mono;
        holds(Promise::DeadlineKept, !over, || {
            format!("{request:?} ({:?}) waits past {:?}", pending.ask, pending.deadline)
        })?;
    }
    Ok(())
}

/// A checkout that must not wait does not wait.
pub(crate) fn impatient(world: &World) -> Judged {
    for (request, pending) in &world.ledger.pending {
        if let Ask::Checkout { lease, policy: CheckoutPolicy::IdleOnly, .. } = &pending.ask {
            let has = world.store.of_lease.contains_key(lease);
            holds(Promise::NoWaitInVain, has, || {
                format!("{request:?} wanted an idle one or nothing, and waits")
            })?;
        }
    }
    Ok(())
}

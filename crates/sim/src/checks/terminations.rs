//! Terminations: why a sandbox is removed or wiped, and whether that is allowed. A cause must fit
//! the facts of the world, and some causes must never end a sandbox that is in use or held.

use model::record::{Owner, SandboxRecord};
use model::state::PoolPhase;
use model::{EndCause, InstanceId};

use super::{Judged, Promise, broken, deadlines, holds};
use crate::ledger::{LeasePhase, Session};
use crate::runtime::{Instance, Saved};
use crate::world::World;

/// The shortest idle timeout of any template or node in the worlds.
const LEAST_IDLE_TIMEOUT_MS: u64 = 2_000;

/// A removal was decided.
pub(crate) fn kill(world: &mut World, id: InstanceId) -> Judged {
    let Some(instance) = world.runtime.instances.get(&id) else { return Ok(()) };
    if instance.kill_asked {
        return Ok(());
    }
    if let Some(record) = world.store.record_of(id) {
        let Some(cause) = record.ending else {
            return broken(Promise::EndJustified, || format!("{id:?} is killed without a cause"));
        };
        world.coverage.count("kills", cause.as_str());
        judge(world, id, instance, record, cause)?;
        if cause == EndCause::Evicted
            && let Err(violation) = saved(world, id, instance, record, cause)
        {
            world.watch.unsaved.insert(id, violation);
        }
    } else if !instance.left_over {
        return broken(Promise::EndJustified, || format!("{id:?} is killed and in no record"));
    }
    if let Some(instance) = world.runtime.instances.get_mut(&id) {
        instance.kill_asked = true;
    }
    Ok(())
}

fn judge(
    world: &World,
    id: InstanceId,
    instance: &Instance,
    record: &SandboxRecord,
    cause: EndCause,
) -> Judged {
    let asked = |found: bool| {
        holds(Promise::EndJustified, found, || {
            format!("{id:?} ({:?}) ends by {cause:?}", record.owner)
        })
    };
    let session = match record.owner {
        Owner::Session(session) => world.ledger.sessions.get(&session),
        Owner::Unowned | Owner::Lease(_) => None,
    };
    match cause {
        EndCause::Idle | EndCause::Evicted => {
            spare(world, id, instance, record, cause)?;
            asked(!matches!(record.owner, Owner::Lease(_)))?;
            // A sandbox that is deleted at once needs no save; whether this one is, shows when it
            // is gone.
            if cause == EndCause::Evicted {
                return Ok(());
            }
            let quiet_ms = world.now.mono.since(instance.active_at);
            asked(instance.left_over || quiet_ms >= patience_ms(world, record))?;
            saved(world, id, instance, record, cause)
        }
        EndCause::NearExpiry
        | EndCause::Surplus
        | EndCause::TemplateReplaced
        | EndCause::MaxUses
        | EndCause::NotClean => {
            let leased = matches!(record.owner, Owner::Lease(lease) if is_held(world, lease));
            asked(!leased && !matches!(record.owner, Owner::Session(_)))
        }
        EndCause::PoolClosed => {
            let pool = world.store.pools.get(&record.template);
            let closed = pool.is_none_or(|pool| pool.phase != PoolPhase::Active);
            asked(closed || world.stopping)?;
            let forced = world.watch.forced.contains(&record.template);
            let leased = matches!(record.owner, Owner::Lease(lease) if is_held(world, lease));
            asked(forced || !(leased || matches!(record.owner, Owner::Session(_))))
        }
        EndCause::LeaseExpired => match record.owner {
            Owner::Lease(lease) => asked(world.ledger.leases.get(&lease).is_none_or(|lease| {
                lease.phase != LeasePhase::Held || lease.expires_at <= world.run_wall()
            })),
            Owner::Unowned | Owner::Session(_) => asked(false),
        },
        EndCause::LifetimeOver => asked(record.expires_at.is_some() || instance.left_over),
        EndCause::DeadlineReached => {
            let session = match record.owner {
                Owner::Session(session) => Some(session),
                Owner::Unowned | Owner::Lease(_) => None,
            };
            let due = instance.left_over || deadlines::is_due(world, session);
            holds(Promise::SessionDeadlineKept, due, || {
                format!("{id:?} of {session:?} ends at {:?}", world.now.wall)
            })
        }
        EndCause::UserAbort => {
            let called_off = |one: &Session| one.abort_asked || one.stop_asked || one.end_asked;
            asked(session.is_none_or(called_off) && !matches!(record.owner, Owner::Lease(_)))?;
            saved(world, id, instance, record, cause)
        }
        EndCause::SessionStopped => {
            asked(session.is_none_or(|one| one.stop_asked))?;
            saved(world, id, instance, record, cause)
        }
        EndCause::SessionEnded => asked(session.is_none_or(|one| one.end_asked)),
        EndCause::TurnTimeout => {
            let limit_ms = world
                .store
                .pools
                .get(&record.template)
                .map_or(0, |pool| pool.template.turn_timeout_ms.min(3_000));
            let long = |since: model::Mono| world.now.mono.since(since) >= limit_ms;
            asked(instance.turn.is_none_or(|(_, since)| long(since)))
        }
        EndCause::Crash | EndCause::Oom => asked(instance.died || instance.troubled),
        EndCause::DiskLimit => asked(instance.disk_reported),
        EndCause::FilesGone => asked(world.watch.vanished.contains(&record.workspace)),
        // Deleted files have no instance that could end.
        EndCause::Pruned => asked(false),
        EndCause::LaunchFailed
        | EndCause::ReadyTimeout
        | EndCause::ClaimFailed
        | EndCause::ProbeFailed
        | EndCause::FreezeFailed
        | EndCause::TurnFailed => asked(instance.troubled || instance.died),
        EndCause::Shutdown => asked(world.stopping || instance.left_over),
        EndCause::Restart => asked(instance.left_over),
        EndCause::Deleted => asked(world.ledger.deletes.contains(&record.id)),
        EndCause::Returned | EndCause::ClientGone => {
            let leased = matches!(record.owner, Owner::Lease(lease) if is_held(world, lease));
            asked(!leased)
        }
    }
}

/// How long the idle sweep waits at least: the session's value, or the least of any template.
fn patience_ms(world: &World, record: &SandboxRecord) -> u64 {
    let Owner::Session(session) = record.owner else { return u64::MAX };
    let own = world.store.sessions.get(&session).and_then(|session| session.idle_timeout_ms);
    own.unwrap_or(LEAST_IDLE_TIMEOUT_MS)
}

fn is_held(world: &World, lease: model::LeaseId) -> bool {
    world
        .ledger
        .leases
        .get(&lease)
        .is_some_and(|lease| lease.phase == LeasePhase::Held && lease.expires_at > world.run_wall())
}

/// A sandbox that is in use, wanted or held must not be swept or evicted.
fn spare(
    world: &World,
    id: InstanceId,
    instance: &Instance,
    record: &SandboxRecord,
    cause: EndCause,
) -> Judged {
    let execs = world.ledger.runs_exec(&instance.uses) || instance.is_restarting();
    let running = instance.turn.is_some() || execs;
    holds(Promise::RunningSafe, !running, || format!("{id:?} is in use, and ends by {cause:?}"))?;
    if let Owner::Session(session) = record.owner {
        holds(
            Promise::RunningSafe,
            !world.ledger.is_wanted(session, &world.watch.answered),
            || format!("{id:?} is wanted by {session:?}, and ends by {cause:?}"),
        )?;
    }
    let held = instance.is_held(world.now.mono);
    holds(Promise::HoldsKept, !held, || format!("{id:?} is kept alive, and ends by {cause:?}"))
}

/// Files of a session are saved before its sandbox ends.
fn saved(
    world: &World,
    id: InstanceId,
    instance: &Instance,
    record: &SandboxRecord,
    cause: EndCause,
) -> Judged {
    let spared = instance.died || instance.left_over || instance.unstoppable;
    if !matches!(record.owner, Owner::Session(_)) || spared {
        return Ok(());
    }
    holds(Promise::FilesSaved, instance.saved != Saved::No, || {
        format!("saving {id:?} failed, and it ends by {cause:?}")
    })?;
    let workspace = world.runtime.workspaces.get(&instance.workspace);
    let safe = workspace.is_none_or(|workspace| workspace.live == workspace.durable);
    holds(Promise::FilesSaved, safe, || format!("{id:?} has unsaved files, and ends by {cause:?}"))
}

/// A death was reported: its sandbox is ending.
pub(crate) fn death_reported(world: &World, id: InstanceId) -> Judged {
    let record = world.store.record_of(id);
    let over = record.is_none_or(|record| record.ending.is_some());
    holds(Promise::DeathHeard, over, || format!("{id:?} died, and is recorded as {record:?}"))
}

/// A wipe was decided.
pub(crate) fn wipe(world: &World, id: InstanceId) -> Judged {
    let Some(instance) = world.runtime.instances.get(&id) else { return Ok(()) };
    let in_use = match instance.holder {
        Owner::Unowned => false,
        Owner::Lease(lease) => is_held(world, lease),
        Owner::Session(_) => true,
    };
    holds(Promise::RunningSafe, !in_use, || format!("{id:?} of {:?} is wiped", instance.holder))
}

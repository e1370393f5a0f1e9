//! The moment at which an owner gets a sandbox: it is exclusive, clean, alive, thawed, bound to the
//! owner's settings, and has enough time left.

use std::collections::BTreeMap;
use std::sync::Arc;

use kernel::{CheckedOut, Grant};
use model::record::{Owner, SandboxRecord};
use model::state::SandboxState;
use model::{ClaimSettings, Generation, InstanceId, SandboxId, Wall};

use super::{Judged, Promise, broken, holds};
use crate::ledger::LeasePhase;
use crate::runtime::Phase;
use crate::world::World;

/// An owner was given a sandbox, or the use of it.
pub(crate) fn judge(
    world: &mut World,
    owner: Owner,
    sandbox: SandboxId,
    generation: Generation,
    id: InstanceId,
) -> Judged {
    given(world, sandbox, owner)?;
    let record = world.store.sandboxes.get(&sandbox);
    let written = record.is_some_and(|record| {
        record.owner == owner && record.generation == generation && record.instance == Some(id)
    });
    holds(Promise::HandedOutAlive, written, || {
        format!("{sandbox:?} {generation} {id:?} for {owner:?} is recorded as {record:?}")
    })?;
    let claim = claim_of(world, owner);
    let leases = &world.ledger.leases;
    let Some(instance) = world.runtime.instances.get_mut(&id) else {
        return broken(Promise::HandedOutAlive, || format!("{id:?} does not exist"));
    };
    let unreported = instance.phase == Phase::Dead && !instance.death_reported;
    if unreported {
        return Ok(());
    }
    holds(Promise::HandedOutAlive, instance.phase == Phase::Up, || {
        format!("{id:?} is {:?}", instance.phase)
    })?;
    holds(Promise::FrozenUnused, !instance.frozen, || format!("{id:?} is handed out frozen"))?;
    let taken = match instance.holder {
        Owner::Unowned => false,
        Owner::Lease(lease) => {
            instance.holder != owner
                && leases.get(&lease).is_some_and(|lease| lease.phase == LeasePhase::Held)
        }
        Owner::Session(_) => instance.holder != owner,
    };
    let before = std::mem::replace(&mut instance.holder, owner);
    holds(Promise::OneOwner, !taken, || format!("{id:?} of {before:?} is given to {owner:?}"))?;
    let foreign = instance.marks.iter().find(|mark| **mark != owner);
    holds(Promise::Clean, foreign.is_none(), || {
        format!("{id:?} given to {owner:?} has files of {foreign:?}")
    })?;
    holds(Promise::Clean, same(instance.bound.as_ref(), claim.as_ref()), || {
        format!("{id:?} of {owner:?} is bound to {:?}", instance.bound)
    })?;
    reaches(world, owner, id)
}

/// What an instance may reach is what its owner asked for, and never more than its template allows.
fn reaches(world: &World, owner: Owner, id: InstanceId) -> Judged {
    let Some(view) = world.kernel.network_of(id) else { return Ok(()) };
    let asked = match owner {
        Owner::Unowned => return Ok(()),
        Owner::Lease(lease) => {
            let claim = world.ledger.leases.get(&lease).and_then(|lease| lease.claim.as_ref());
            vec![claim.and_then(|claim| claim.network.clone())]
        }
        Owner::Session(session) => match world.ledger.sessions.get(&session) {
            Some(session) => session.networks.clone(),
            None => return Ok(()),
        },
    };
    let template = &view.template.network;
    let fits = asked.iter().any(|asked| template.within(asked.as_ref()) == view.policy);
    holds(Promise::Clean, fits, || {
        format!("{id:?} of {owner:?} may reach {:?}, and {asked:?} was asked for", view.policy)
    })
}

/// A sandbox was handed out to a lease: it was probed, or it answered within `probe_fresh_ms`. A
/// sandbox that died since can only be handed out in the second case.
pub(crate) fn proven(world: &mut World, out: &CheckedOut) -> Judged {
    let fresh_ms = world.scenario.config.probe_fresh_ms;
    let Some(one) = world.runtime.instances.get_mut(&out.instance) else { return Ok(()) };
    let asked = std::mem::take(&mut one.asked);
    let (alive, age_ms) = (one.phase == Phase::Up, world.now.mono.since(one.answered_at));
    world.coverage.count("handouts", if asked { "asked" } else { "at_once" });
    holds(Promise::HandedOutAlive, !one.guest_lost, || {
        format!("the guest of {:?} is known to be lost", out.instance)
    })?;
    if !alive {
        world.coverage.count("handouts", "dead");
    }
    holds(Promise::RecentlyProven, (asked && alive) || age_ms < fresh_ms, || {
        format!("{:?} (alive: {alive}) answered {age_ms} ms ago, of {fresh_ms}", out.instance)
    })
}

/// A sandbox id is given to an owner.
pub(crate) fn given(world: &mut World, sandbox: SandboxId, owner: Owner) -> Judged {
    let first = *world.ledger.given.entry(sandbox).or_insert(owner);
    holds(Promise::IdNeverReused, first == owner, || {
        format!("{sandbox:?} was given to {first:?} and to {owner:?}")
    })
}

fn claim_of(world: &World, owner: Owner) -> Option<Arc<ClaimSettings>> {
    match owner {
        Owner::Unowned => None,
        Owner::Lease(lease) => world.ledger.leases.get(&lease)?.claim.clone(),
        Owner::Session(session) => world.ledger.sessions.get(&session)?.claim.clone(),
    }
}

/// Whether they bind the same. Labels may change while a session has a sandbox, and what it may reach
/// is judged by itself.
fn same(one: Option<&Arc<ClaimSettings>>, other: Option<&Arc<ClaimSettings>>) -> bool {
    let bound = |settings: Option<&Arc<ClaimSettings>>| {
        let settings = settings.map_or_else(ClaimSettings::default, |all| all.as_ref().clone());
        ClaimSettings { labels: BTreeMap::new(), config: None, network: None, ..settings }
    };
    bound(one) == bound(other)
}

/// A use gets the settings of its owner.
pub(crate) fn settings(world: &World, owner: Owner, grant: &Grant) -> Judged {
    let claim = claim_of(world, owner);
    holds(Promise::Clean, same(grant.settings.as_ref(), claim.as_ref()), || {
        format!("{owner:?} gets {:?}", grant.settings)
    })
}

/// A lease ends when its sandbox does, and not before it begins.
pub(crate) fn lifetime(world: &World, out: &CheckedOut) -> Judged {
    let record = world.store.sandboxes.get(&out.sandbox);
    let same = record.is_some_and(|record| record.expires_at == Some(out.expires_at));
    holds(Promise::LeaseHonoured, same, || {
        format!("{:?} ends at {:?}, and is recorded as {record:?}", out.lease, out.expires_at)
    })?;
    lasts(world, out.instance, out.expires_at)
}

/// A lease lasts no longer than its sandbox may live.
pub(crate) fn lasts(world: &World, id: InstanceId, expires_at: Wall) -> Judged {
    let end = world.runtime.instances.get(&id).and_then(|one| one.lives_until);
    holds(Promise::LeaseEnds, end.is_none_or(|end| expires_at <= end), || {
        format!("{id:?} may live until {end:?}, and is leased until {expires_at:?}")
    })
}

/// An idle sandbox was taken: it had more than the margin left.
pub(crate) fn taken(world: &World, before: &SandboxRecord) -> Judged {
    if before.owner != Owner::Unowned || before.state != SandboxState::Warm {
        return Ok(());
    }
    let Some(pool) = world.store.pools.get(&before.template) else { return Ok(()) };
    let margin_ms = pool.template.pool.acquire_margin_ms();
    let enough =
        before.expires_at.is_none_or(|expires_at| expires_at > world.now.wall.plus(margin_ms));
    holds(Promise::Margin, enough, || {
        format!(
            "{:?} ends at {:?}, taken at {:?} with a margin of {margin_ms} ms",
            before.id, before.expires_at, world.now.wall
        )
    })
}

//! The journal: each transaction leaves records that follow from those before, stay within the
//! limits, and name everything that exists.

use model::EndCause;
use model::record::Owner;
use model::state::SandboxState;

use super::{Judged, Promise, eviction, handout, holds, leases, shares, tenants, waiters};
use crate::store::Change;
use crate::world::World;

/// Judges what one transaction changed.
pub(crate) fn judge(world: &mut World, changes: &[Change]) -> Judged {
    if changes.is_empty() {
        return Ok(());
    }
    let entries = world.store.sandboxes.len() as u32;
    let grew = changes
        .iter()
        .any(|change| change.before.is_none() && world.store.sandboxes.contains_key(&change.id));
    let most = world.scenario.config.max_sandboxes;
    holds(Promise::EntryLimit, !grew || entries <= most, || format!("{entries} of {most}"))?;
    for change in changes {
        one(world, change)?;
    }
    Ok(())
}

fn one(world: &mut World, change: &Change) -> Judged {
    let before = change.before.as_ref();
    if let Some(instance) = before.and_then(|before| before.instance) {
        let named = world.store.by_instance.contains_key(&instance);
        let exists = world.runtime.instances.contains_key(&instance);
        holds(Promise::NothingForgotten, named || !exists, || {
            format!("{instance:?} exists, but {:?} no longer names it", change.id)
        })?;
    }
    let unsaved = before
        .and_then(|before| before.instance)
        .filter(|instance| !world.store.by_instance.contains_key(instance))
        .and_then(|instance| world.watch.unsaved.remove(&instance));
    let Some(after) = world.store.sandboxes.get(&change.id) else {
        removed(world, change);
        return Ok(());
    };
    if let Some(violation) = unsaved {
        return Err(violation);
    }
    if let Some(before) = before {
        // One transaction may contain two transitions, such as to cold and at once to warming.
        let (from, to) = (before.state, after.state);
        let by = |between: &SandboxState| from.may_become(*between) && between.may_become(to);
        let follows = from == to || from.may_become(to) || SandboxState::ALL.iter().any(by);
        holds(Promise::StatesFollow, follows, || {
            format!("{:?} was {:?} and is {:?}", after.id, before.state, after.state)
        })?;
        holds(Promise::GenerationsGrow, before.generation <= after.generation, || {
            format!("{:?} was {} and is {}", after.id, before.generation, after.generation)
        })?;
        if before.owner != after.owner && after.owner != Owner::Unowned {
            handout::taken(world, before)?;
        }
        if before.ending.is_none() && after.ending == Some(EndCause::Evicted) {
            eviction::chosen(world, before)?;
            shares::chosen(world, before)?;
        }
    }
    tenants::written(world, after)?;
    let counted = before
        .is_some_and(|before| before.tenant == after.tenant && before.instance == after.instance);
    if after.instance.is_some() && !counted {
        shares::live_for_key(world, after)?;
    }
    let (owner, lease_end) = (after.owner, after.lease_end);
    match after.owner {
        Owner::Unowned => {}
        Owner::Lease(lease) => {
            let new = before.is_none_or(|before| before.owner != after.owner);
            if new && after.ending.is_none() {
                waiters::assigned(world, lease, &after.template)?;
                shares::assigned(world, lease, &after.template)?;
            }
        }
        Owner::Session(session) => {
            let own = world.store.of_session.get(&session).map_or(0, Vec::len);
            holds(Promise::OneSandboxEach, own <= 1, || format!("{session:?} has {own}"))?;
        }
    }
    // A generation that no client saw ends together with the next one.
    if let Some(before) = before
        && before.generation < after.generation
        && before.instance == after.instance
    {
        world.watch.announced.remove(&(before.id, before.generation));
    }
    if let Some(instance) = after.instance
        && after.announced
        && !before.is_some_and(|before| before.announced && before.generation == after.generation)
    {
        world.watch.announced.insert((after.id, after.generation), instance);
    }
    match owner {
        Owner::Lease(lease) => leases::written(world, lease, lease_end),
        Owner::Unowned | Owner::Session(_) => Ok(()),
    }
}

fn removed(world: &mut World, change: &Change) {
    let Some(before) = &change.before else { return };
    // The same instance continues under another id: the old id ends without a removal.
    if let Some(instance) = before.instance
        && world.store.by_instance.contains_key(&instance)
    {
        world.watch.renamed.push((before.id, before.generation));
    }
    if before.state == SandboxState::Cold && before.ending.is_none() {
        world.coverage.count("records", "cold_removed");
    }
}

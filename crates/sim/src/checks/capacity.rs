//! Limits: instances, memory, entries, slots of a pool. Checked before a launch and after a commit,
//! by what exists, so that leftovers of a crash count too.

use kernel::Launch;
use model::record::Owner;

use super::{Judged, Promise, holds};
use crate::world::World;

/// A launch is about to begin, after `ahead` others of the same decision.
pub(crate) fn launch(world: &World, launch: &Launch, ahead: &Ahead) -> Judged {
    let config = &world.scenario.config;
    let live = world.runtime.instances.len() as u32 + ahead.instances + 1;
    holds(Promise::LiveLimit, live <= config.max_live, || {
        format!("{live} instances with max_live {}", config.max_live)
    })?;
    let memory_mb =
        world.runtime.memory_mb + ahead.memory_mb + u64::from(launch.template.limits.memory_mb);
    if let Some(budget_mb) = config.memory_budget_mb {
        holds(Promise::MemoryLimit, memory_mb <= budget_mb, || {
            format!("{memory_mb} MB with a budget of {budget_mb} MB")
        })?;
    }
    slots(world, launch)
}

/// What the launches before this one in the same decision will take.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct Ahead {
    /// Instances.
    pub instances: u32,
    /// Their memory.
    pub memory_mb: u64,
}

fn slots(world: &World, launch: &Launch) -> Judged {
    let name = &launch.template.name;
    let Some(pool) = world.store.pools.get(name) else { return Ok(()) };
    let is_of_session = world
        .store
        .sandboxes
        .get(&launch.sandbox)
        .is_some_and(|record| matches!(record.owner, Owner::Session(_)));
    if is_of_session {
        return Ok(());
    }
    let used = world
        .store
        .sandboxes
        .values()
        .filter(|record| record.template == *name && record.instance.is_some())
        .filter(|record| record.ending.is_none() && !matches!(record.owner, Owner::Session(_)))
        .count() as u32;
    let slots = pool.template.pool.slots();
    holds(Promise::SlotLimit, used <= slots, || format!("{name}: {used} of {slots} slots"))
}

//! What must hold after every event, when the kernel has made its decision.

use super::{Judged, Promise, deadlines, holds, leases, processes, quiesce, uses, waiters};
use crate::coverage::event_name;
use crate::world::World;

/// Judges the world after an event of that kind.
pub(crate) fn judge(world: &mut World, kind: usize) -> Judged {
    let stats = world.kernel.stats();
    let sum = stats.cold + stats.warming + stats.warm + stats.waiting + stats.running;
    let entries = world.store.sandboxes.len() as u32;
    holds(Promise::StatsAddUp, stats.total == sum && stats.total == entries, || {
        format!("{stats:?} with {entries} entries")
    })?;
    for (sandbox, generation) in std::mem::take(&mut world.watch.renamed) {
        world.watch.announced.remove(&(sandbox, generation));
    }
    uses::settled(world)?;
    deadlines::settled(world);
    waiters::settled(world)?;
    waiters::impatient(world)?;
    if event_name(kind) == "ticked" {
        waiters::ticked(world)?;
        leases::ticked(world)?;
        holds::ticked(world)?;
        processes::ticked(world)?;
        quiesce::ticked(world)?;
    }
    Ok(())
}

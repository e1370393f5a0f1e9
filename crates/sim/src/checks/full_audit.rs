//! The whole world at once: too slow for every step, done regularly and at the end.

use model::state::SandboxState;

use super::{Judged, Promise, broken, holds};
use crate::world::World;

/// Compares all records, views and counts.
pub(crate) fn judge(world: &World) -> Judged {
    if let Err(problem) = world.kernel.audit() {
        return broken(Promise::AuditPasses, || problem);
    }
    let views = world.kernel.sandboxes();
    let entries = world.store.sandboxes.len();
    holds(Promise::StatsAddUp, views.len() == entries, || {
        format!("{} sandboxes are shown and {entries} are journalled", views.len())
    })?;
    for view in &views {
        let record = world.store.sandboxes.get(&view.id);
        let same = record.is_some_and(|record| {
            record.generation == view.generation
                && record.instance == view.instance
                && record.owner == view.owner
                && record.tenant == view.tenant
                && record.ending == view.ending
        });
        holds(Promise::StatsAddUp, same, || format!("{view:?} is recorded as {record:?}"))?;
    }
    let stats = world.kernel.stats();
    let count = |state| views.iter().filter(|view| view.state == state).count() as u32;
    let shown = [stats.cold, stats.warming, stats.warm, stats.waiting, stats.running];
    holds(Promise::StatsAddUp, SandboxState::ALL.map(count) == shown, || {
        format!("{stats:?} for {views:?}")
    })?;
    for instance in world.runtime.instances.keys() {
        let named = world.store.by_instance.contains_key(instance);
        let left_over = world.runtime.instances[instance].left_over;
        holds(Promise::NothingForgotten, named || left_over, || {
            format!("{instance:?} is in no record")
        })?;
    }
    Ok(())
}

/// The kernel reports that the shutdown is complete.
pub(crate) fn shut_down(world: &mut World) -> Judged {
    world.coverage.count("faults", "shutdown_complete");
    world.stopped = true;
    let left = world.runtime.instances.len();
    holds(Promise::ShutdownFinal, left == 0 && world.stopping, || {
        format!("{left} instances are left: {:?}", world.runtime.instances.keys())
    })
}

//! The whole world at once: too much for every step, done now and then and at the end.

use model::state::SandboxState;

use super::{Judged, Promise, broken, holds};
use crate::world::World;

/// Compares everything with everything.
pub(crate) fn judge(world: &World) -> Judged {
    if let Err(problem) = world.kernel.audit() {
        return broken(Promise::AuditPasses, || problem);
    }
    let views = world.kernel.sandboxes();
    let entries = world.store.sandboxes.len();
    holds(Promise::StatsAddUp, views.len() == entries, || {
        format!("{} sandboxes are shown and {entries} are written down", views.len())
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
        holds(Promise::StatsAddUp, same, || format!("{view:?} is written as {record:?}"))?;
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
            format!("{instance:?} is nowhere written")
        })?;
    }
    Ok(())
}

/// The server says that nothing is left.
pub(crate) fn shut_down(world: &mut World) -> Judged {
    world.coverage.count("faults", "shutdown_complete");
    world.stopped = true;
    let left = world.runtime.instances.len();
    holds(Promise::ShutdownFinal, left == 0 && world.stopping, || {
        format!("{left} instances are left: {:?}", world.runtime.instances.keys())
    })
}

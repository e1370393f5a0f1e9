//! Workspaces on disk: a sandbox that wrote too much ends, and nothing is launched while the disk
//! is short.

use kernel::Launch;
use model::template::WorkspaceLimit;
use model::{InstanceId, SandboxState};

use super::{Judged, Promise, holds};
use crate::world::World;

/// A launch was decided.
pub(crate) fn launch(world: &World, launch: &Launch) -> Judged {
    let on_disk =
        world.scenario.recipes.iter().any(|recipe| {
            recipe.template.name == launch.template.name && recipe.traits.disk.is_some()
        });
    holds(Promise::DiskSpared, !(world.disk_short && on_disk), || {
        format!("{:?} is launched on a disk that is short", launch.instance)
    })
}

/// The kernel heard that a workspace is too large.
pub(crate) fn measured(world: &World, id: InstanceId) -> Judged {
    let Some(instance) = world.runtime.instances.get(&id) else { return Ok(()) };
    let Some(record) = world.store.record_of(id) else { return Ok(()) };
    let up = match record.state {
        SandboxState::Warm | SandboxState::Waiting | SandboxState::Running => true,
        SandboxState::Cold | SandboxState::Warming => false,
    };
    let over = instance.traits.disk != Some(WorkspaceLimit::Soft) || record.ending.is_some();
    holds(Promise::DiskLimitKept, over || !up, || format!("{id:?} holds too much: {record:?}"))
}

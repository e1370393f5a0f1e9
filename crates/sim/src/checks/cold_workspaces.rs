//! Files that no client wants: archived and deleted by the rules, and only then.

use model::record::{Owner, SandboxRecord};
use model::why::Ended;
use model::{EndCause, SandboxState, WorkspaceId};

use super::{Judged, Promise, holds};
use crate::world::World;

/// It was decided that a workspace goes into an archive.
pub(crate) fn archive(world: &World, workspace: WorkspaceId) -> Judged {
    let in_use = world.runtime.instances.values().any(|one| one.workspace == workspace);
    let record = world.store.sandboxes.values().find(|record| record.workspace == workspace);
    let cold = record.is_some_and(|record| {
        let old = is_old(world, record.last_used_at.0, world.scenario.config.archive_after_ms);
        record.state == SandboxState::Cold && record.has_files && old && !wanted(world, record)
    });
    let shelved = world
        .store
        .sessions
        .values()
        .any(|session| session.files.is_some_and(|files| files.workspace == workspace));
    holds(Promise::ColdUnwanted, (cold || shelved) && !in_use && !world.stopping, || {
        format!("{workspace:?} is archived: {record:?}, in use: {in_use}")
    })
}

/// A sandbox ended; perhaps its files were deleted by a setting.
pub(crate) fn ended(world: &World, ended: &Ended) -> Judged {
    if ended.cause != EndCause::Pruned {
        return Ok(());
    }
    let allowed = world.scenario.gives_up_files() && !world.stopping;
    let wanted =
        ended.session.is_some_and(|session| world.ledger.is_wanted(session, &world.watch.answered));
    holds(Promise::ColdUnwanted, allowed && !wanted, || format!("{ended:?} while it is wanted"))
}

fn wanted(world: &World, record: &SandboxRecord) -> bool {
    match record.owner {
        Owner::Session(session) => world.ledger.is_wanted(session, &world.watch.answered),
        Owner::Unowned | Owner::Lease(_) => true,
    }
}

/// Checked only if the clocks never jumped.
fn is_old(world: &World, used_at: u64, after_ms: Option<u64>) -> bool {
    let Some(after_ms) = after_ms else { return false };
    world.watch.clock_jumped || world.now.wall.0.saturating_sub(used_at) >= after_ms
}

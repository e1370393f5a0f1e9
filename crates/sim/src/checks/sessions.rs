//! Sessions: a client finds its files, or an answer reported the loss.

use model::record::{Owner, SandboxRecord};
use model::{InstanceId, SessionId, SessionStatus, WorkspaceId};

use super::{Judged, Promise, broken, holds};
use crate::ledger::Expect;
use crate::world::World;

/// A session looks into its workspace.
pub(crate) fn look(world: &mut World, id: SessionId, instance: InstanceId) -> Judged {
    // A sandbox that died unnoticed shows no files.
    if world.runtime.up(instance).is_none() {
        return Ok(());
    }
    let Some(found) = world.runtime.contents(instance) else { return Ok(()) };
    let Some(session) = world.ledger.sessions.get_mut(&id) else { return Ok(()) };
    let as_left = match session.expect {
        Expect::Exactly(expected) => found == expected,
        Expect::AtLeast(floor) => found >= floor,
    };
    let (expected, reported) = (session.expect, session.loss_reported);
    session.expect = Expect::Exactly(found);
    session.loss_reported = false;
    holds(Promise::FilesKept, as_left || reported, || {
        format!("{id:?} left {expected:?} and finds {found} in {instance:?}, unreported")
    })
}

/// The removal of an instance together with its files was decided.
pub(crate) fn kill(world: &World, instance: InstanceId) -> Judged {
    let Some(record) = world.store.record_of(instance) else { return Ok(()) };
    let kept = record.has_files && !record.doomed && matches!(record.owner, Owner::Session(_));
    holds(Promise::FilesKept, !kept, || {
        format!("{instance:?} goes with the files of {:?}", record.owner)
    })
}

/// The end of a session was answered: no record names its files, except to delete them.
pub(crate) fn over(world: &World, id: SessionId) -> Judged {
    let own = |record: &&SandboxRecord| record.owner == Owner::Session(id) && !record.doomed;
    let sandbox = world.store.sandboxes.values().find(own);
    holds(Promise::EndedGone, sandbox.is_none(), || format!("{sandbox:?} is still there"))?;
    let files = world.store.sessions.get(&id).and_then(|session| session.files);
    holds(Promise::EndedGone, files.is_none(), || format!("{files:?} are still there"))
}

/// The deletion of a workspace was decided.
pub(crate) fn delete(world: &World, workspace: WorkspaceId) -> Judged {
    let copy = world.store.sandboxes.values().find(|record| record.copying_from == Some(workspace));
    holds(Promise::FilesKept, copy.is_none(), || {
        format!("{workspace:?} is deleted while it is copied for {copy:?}")
    })?;
    let used = world.runtime.instances.iter().find(|(_, one)| one.workspace == workspace);
    holds(Promise::FilesKept, used.is_none(), || {
        format!("{workspace:?} is deleted while it is in use")
    })?;
    for (session, sandboxes) in &world.store.of_session {
        let ended = world
            .store
            .sessions
            .get(session)
            .is_none_or(|session| session.status == SessionStatus::Ended);
        let own = sandboxes.iter().filter_map(|id| world.store.sandboxes.get(id));
        let own = own.into_iter().any(|record| record.workspace == workspace);
        if !ended && own {
            return broken(Promise::FilesKept, || {
                format!("{workspace:?} of {session:?} is deleted")
            });
        }
    }
    Ok(())
}

//! Uses: each ends once, by its client or because its sandbox is gone.

use kernel::use_broken;
use model::record::Owner;
use model::{EndCause, InstanceId, SandboxId, UseId};

use super::{Judged, Promise, broken, holds};
use crate::runtime::{Instance, Phase};
use crate::world::World;

/// The kernel says that an instance is over: so is all that is in progress in it.
pub(crate) fn over(world: &mut World, instance: InstanceId, cause: EndCause) -> Judged {
    let code = use_broken(cause).code.as_str();
    world.coverage.count("over", cause.as_str());
    for (use_id, _) in world.ledger.uses.extract_if(.., |_, open| open.instance == instance) {
        world.coverage.count("broken_uses", code);
        if let Some(one) = world.runtime.instances.get_mut(&instance) {
            one.uses.retain(|other| *other != use_id);
        }
    }
    let first = world.watch.end_notified.insert(instance);
    holds(Promise::EndNotified, first, || format!("{instance:?} is over again, by {cause:?}"))
}

/// The kernel publishes the end of the sandbox that an instance was of.
pub(crate) fn ended(world: &mut World, instance: InstanceId, renamed: bool) {
    if renamed {
        // It goes on in its pool, and its next user hears of the next end.
        world.watch.end_notified.remove(&instance);
    } else {
        world.watch.ended_now.push(instance);
    }
}

/// A decision is judged: the users of what it says to have ended have heard that by now.
pub(crate) fn all_notified(world: &mut World) -> Judged {
    for instance in std::mem::take(&mut world.watch.ended_now) {
        let notified = world.watch.end_notified.remove(&instance);
        holds(Promise::EndNotified, notified, || {
            format!("the sandbox of {instance:?} ended, and its user did not hear that it is over")
        })?;
    }
    Ok(())
}

/// Somebody holds a harness from now on: no turn has it, and nobody else.
pub(crate) fn harness_granted(world: &World, owner: Owner, instance: InstanceId) -> Judged {
    let has_turn = match owner {
        Owner::Session(session) => world.ledger.turns.values().any(|(of, _)| *of == session),
        Owner::Lease(_) | Owner::Nobody => false,
    };
    let alone = !has_turn && !world.ledger.is_held(instance);
    holds(Promise::OneSpeaker, alone, || format!("the harness of {instance:?} is given to two"))
}

/// A turn is given to a harness: nobody holds that.
pub(crate) fn turn(world: &World, instance: InstanceId) -> Judged {
    holds(Promise::OneSpeaker, !world.ledger.is_held(instance), || {
        format!("a turn is given to {instance:?}, whose harness is held")
    })
}

/// A use went on in a frozen sandbox.
pub(crate) fn frozen(use_id: UseId) -> Judged {
    broken(Promise::FrozenUnused, || format!("{use_id:?} ended in a frozen sandbox"))
}

/// A sandbox is said to be frozen, or not to be.
pub(crate) fn frozen_as_answered(world: &World, sandbox: SandboxId, frozen: bool) -> Judged {
    let instance = world.store.sandboxes.get(&sandbox).and_then(|record| record.instance);
    let Some(one) = instance.and_then(|id| world.runtime.instances.get(&id)) else { return Ok(()) };
    holds(Promise::AnswerTrue, one.frozen == frozen || one.phase != Phase::Up, || {
        format!("{sandbox:?} is said to be frozen: {frozen}")
    })
}

/// An instance was removed; whoever still works in it must hear of it before anything else does.
pub(crate) fn removed(world: &mut World, id: InstanceId, instance: &Instance) {
    if !instance.uses.is_empty() {
        world.watch.removed_in_use.push((id, instance.uses.clone()));
    }
}

/// After a removal was reported, nobody may still believe to work there.
pub(crate) fn settled(world: &mut World) -> Judged {
    for (id, uses) in std::mem::take(&mut world.watch.removed_in_use) {
        // Only a removal that is confirmed is known to the kernel.
        if world.store.by_instance.contains_key(&id) {
            world.watch.removed_in_use.push((id, uses));
            continue;
        }
        if let Some(left) = uses.iter().find(|use_id| world.ledger.uses.contains_key(use_id)) {
            return broken(Promise::UsesEndOnce, || format!("{left:?} goes on in removed {id:?}"));
        }
    }
    Ok(())
}

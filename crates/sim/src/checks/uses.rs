//! Uses: each ends once, by its client or because its sandbox is gone.

use kernel::interrupted_use_refusal;
use model::record::Owner;
use model::{EndCause, InstanceId, SandboxId, UseId};

use super::{Judged, Promise, broken, holds};
use crate::runtime::{Instance, Phase};
use crate::world::World;

/// The kernel notifies the end of an instance: its uses end.
pub(crate) fn over(world: &mut World, instance: InstanceId, cause: EndCause) -> Judged {
    let code = interrupted_use_refusal(cause).code.as_str();
    world.coverage.count("over", cause.as_str());
    for (use_id, _) in world.ledger.uses.extract_if(.., |_, open| open.instance == instance) {
        world.coverage.count("broken_uses", code);
        if let Some(one) = world.runtime.instances.get_mut(&instance) {
            one.uses.retain(|other| *other != use_id);
        }
    }
    let first = world.watch.end_notified.insert(instance);
    holds(Promise::EndNotified, first, || {
        format!("the end of {instance:?} is notified again, by {cause:?}")
    })
}

/// The kernel publishes the end of the sandbox that an instance was of.
pub(crate) fn ended(world: &mut World, instance: InstanceId, renamed: bool) {
    if renamed {
        // It continues in its pool, and its next user is notified of the next end.
        world.watch.end_notified.remove(&instance);
    } else {
        world.watch.ended_now.push(instance);
    }
}

/// At the end of a decision: the users of ended sandboxes were notified.
pub(crate) fn all_notified(world: &mut World) -> Judged {
    for instance in std::mem::take(&mut world.watch.ended_now) {
        let notified = world.watch.end_notified.remove(&instance);
        holds(Promise::EndNotified, notified, || {
            format!("the sandbox of {instance:?} ended, and its user was not notified")
        })?;
    }
    Ok(())
}

/// A caller got the harness: no turn and no other caller has it.
pub(crate) fn harness_granted(world: &World, owner: Owner, instance: InstanceId) -> Judged {
    let has_turn = match owner {
        Owner::Session(session) => world.ledger.turns.values().any(|(of, _)| *of == session),
        Owner::Lease(_) | Owner::Unowned => false,
    };
    let alone = !has_turn && !world.ledger.is_held(instance);
    holds(Promise::OneSpeaker, alone, || format!("the harness of {instance:?} is given to two"))
}

/// A turn is given to a harness: no caller holds it.
pub(crate) fn turn(world: &World, instance: InstanceId) -> Judged {
    holds(Promise::OneSpeaker, !world.ledger.is_held(instance), || {
        format!("a turn is given to {instance:?}, whose harness is held")
    })
}

/// A use went on in a frozen sandbox.
pub(crate) fn frozen(use_id: UseId) -> Judged {
    broken(Promise::FrozenUnused, || format!("{use_id:?} ended in a frozen sandbox"))
}

/// An answer says that a sandbox is frozen or thawed.
pub(crate) fn frozen_as_answered(world: &World, sandbox: SandboxId, frozen: bool) -> Judged {
    let instance = world.store.sandboxes.get(&sandbox).and_then(|record| record.instance);
    let Some(one) = instance.and_then(|id| world.runtime.instances.get(&id)) else { return Ok(()) };
    holds(Promise::AnswerTrue, one.frozen == frozen || one.phase != Phase::Up, || {
        format!("{sandbox:?} is said to be frozen: {frozen}")
    })
}

/// An instance was removed: its open uses must end.
pub(crate) fn removed(world: &mut World, id: InstanceId, instance: &Instance) {
    if !instance.uses.is_empty() {
        world.watch.removed_in_use.push((id, instance.uses.clone()));
    }
}

/// After a confirmed removal no use of the instance may be open.
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

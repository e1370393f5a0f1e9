//! Keys: what a caller owns carries that caller's key in every record and event; what has no owner
//! carries none.

use kernel::Transition;
use model::lifecycle::LifecycleEvent;
use model::record::{Owner, SandboxRecord};
use model::why::Ended;
use model::{KeyId, LeaseId, SessionId};

use super::{Judged, Promise, holds};
use crate::world::World;

fn of_owner(world: &World, owner: Owner) -> Option<KeyId> {
    match owner {
        Owner::Unowned => Some(KeyId::NIL),
        Owner::Lease(lease) => world.ledger.leases.get(&lease).map(|lease| lease.tenant),
        Owner::Session(session) => {
            world.ledger.sessions.get(&session).map(|session| session.tenant)
        }
    }
}

fn owner(lease: Option<LeaseId>, session: Option<SessionId>) -> Owner {
    match (lease, session) {
        (Some(lease), _) => Owner::Lease(lease),
        (None, Some(session)) => Owner::Session(session),
        (None, None) => Owner::Unowned,
    }
}

/// Checks the key of something that an owner has. Clients forget old leases.
fn fits(world: &World, owner: Owner, tenant: KeyId, what: &str) -> Judged {
    let expected = of_owner(world, owner);
    holds(Promise::TenantKept, expected.is_none_or(|expected| expected == tenant), || {
        format!("{what} of {owner:?} is {tenant:?}'s, not {expected:?}'s")
    })
}

/// A sandbox was journalled.
pub(crate) fn written(world: &World, record: &SandboxRecord) -> Judged {
    fits(world, record.owner, record.tenant, "a record")
}

/// The end of a sandbox was journalled.
pub(crate) fn ended(world: &World, ended: &Ended) -> Judged {
    fits(world, owner(ended.lease, ended.session), ended.tenant, "an end")
}

/// A transition was published.
pub(crate) fn transition(world: &World, change: &Transition) -> Judged {
    match world.store.sandboxes.get(&change.sandbox) {
        Some(record) => fits(world, record.owner, change.tenant, "a change of state"),
        None => Ok(()),
    }
}

/// An event was published.
pub(crate) fn published(world: &World, tenant: KeyId, event: &LifecycleEvent) -> Judged {
    let owner = match event {
        LifecycleEvent::SandboxActive { lease, session, .. }
        | LifecycleEvent::SandboxTerminated { lease, session, .. } => owner(*lease, *session),
        LifecycleEvent::StateLost { session, .. }
        | LifecycleEvent::WorkspaceDurable { session, .. }
        | LifecycleEvent::SessionChanged { session, .. }
        | LifecycleEvent::TurnStarted { session, .. }
        | LifecycleEvent::TurnEnded { session, .. } => Owner::Session(*session),
        LifecycleEvent::PoolHealth { .. } => Owner::Unowned,
        LifecycleEvent::SandboxFrozen { sandbox_id, .. }
        | LifecycleEvent::SandboxState { sandbox_id, .. }
        | LifecycleEvent::SandboxWakefulness { sandbox_id, .. } => {
            match world.store.sandboxes.get(sandbox_id) {
                Some(record) => record.owner,
                None => return Ok(()),
            }
        }
    };
    fits(world, owner, tenant, "an event")
}

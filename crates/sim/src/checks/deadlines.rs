//! Deadlines of sessions: none is met early, and none is forgotten. When a session was last in use
//! is what its clients know.

use std::collections::BTreeSet;

use model::record::{Owner, SessionRecord};
use model::why::Ended;
use model::{DeadlineAction, EndCause, InstanceId, SessionId, SessionStatus};

use super::{Judged, Promise, broken, holds};
use crate::world::World;

/// After an event: remembers which sessions are in use.
pub(crate) fn settled(world: &mut World) {
    // What is left of an ended sandbox is no use.
    let lives = |instance: InstanceId| {
        world.store.record_of(instance).is_some_and(|record| record.ending.is_none())
    };
    let owner =
        |owner: Owner| if let Owner::Session(session) = owner { Some(session) } else { None };
    let mut busy: BTreeSet<SessionId> =
        (world.ledger.uses.values().filter(|open| lives(open.instance)))
            .filter_map(|open| owner(open.owner))
            .collect();
    let turns = world.ledger.turns.values().map(|(session, _)| *session);
    let has_sandbox = |session: &SessionId| {
        world.store.live_of_session(*session).is_some_and(|record| record.ending.is_none())
    };
    busy.extend(turns.filter(has_sandbox));
    for (id, instance) in &world.runtime.instances {
        if instance.is_held(world.now.mono)
            && lives(*id)
            && let Some(record) = world.store.record_of(*id)
        {
            busy.extend(owner(record.owner));
        }
    }
    for one in world.ledger.sessions.values_mut() {
        // The clock may have been set back.
        one.busy_at = one.busy_at.min(world.now.wall);
    }
    for session in busy {
        if let Some(one) = world.ledger.sessions.get_mut(&session) {
            one.busy_at = world.now.wall;
        }
    }
}

/// Whether the deadline of a session may have come.
pub(crate) fn is_due(world: &World, session: Option<SessionId>) -> bool {
    if world.now.wall < world.watch.latest_wall {
        // The clock was set back after the decision.
        return true;
    }
    let known = session.and_then(|session| world.ledger.sessions.get(&session));
    known.is_some_and(|one| one.may_be_due(world.now.wall))
}

/// The end of a sandbox was journalled.
pub(crate) fn ended(world: &World, ended: &Ended) -> Judged {
    let early = ended.cause == EndCause::DeadlineReached && !is_due(world, ended.session);
    holds(Promise::SessionDeadlineKept, !early, || {
        let known = ended.session.and_then(|session| world.ledger.sessions.get(&session));
        format!("{:?} ends at {:?}, and its session is {known:?}", ended.sandbox, world.now.wall)
    })
}

/// Nothing happens any more: every deadline that came was met.
pub(crate) fn rested(world: &World) -> Judged {
    for record in world.store.sessions.values() {
        if record.status != SessionStatus::Ended && is_late(world, record) {
            return broken(Promise::SessionDeadlineKept, || {
                format!("{:?} at {:?}", record, world.now.wall)
            });
        }
    }
    Ok(())
}

fn is_late(world: &World, record: &SessionRecord) -> bool {
    let Some(deadline) = record.deadline else { return false };
    let now = world.now.wall;
    let idle_ms = now.since(record.idle_from.max(record.last_active_at));
    let idle = deadline.idle_ms.is_some_and(|ms| idle_ms > 2 * ms);
    let may_pause = record.status == SessionStatus::Active;
    let acts_on_idle = deadline.action == DeadlineAction::End || may_pause;
    deadline.at.is_some_and(|at| at < now) || (idle && acts_on_idle)
}

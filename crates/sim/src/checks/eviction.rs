//! Evictions: the right tier for what is short, and of the sandboxes of a key the least recently
//! used. The order is checked only between sandboxes that are clearly comparable, by clocks that
//! never went back. `shares` checks the order between keys.

use model::record::{Owner, SandboxRecord};
use model::state::SandboxState;
use model::why::{Ended, Shortage, Tier};
use model::{KeyId, Mono, SandboxId, SessionId};

use super::{Judged, Promise, broken, holds, quiesce};
use crate::world::World;

/// A live sandbox was chosen as a victim.
pub(crate) fn chosen(world: &World, victim: &SandboxRecord) -> Judged {
    if world.watch.clock_went_back {
        return Ok(());
    }
    match victim.owner {
        Owner::Unowned if victim.state == SandboxState::Warm => {
            let idle = world.store.idle.values().flatten();
            let older = idle
                .filter_map(|id| world.store.sandboxes.get(id))
                .find(|other| other.last_used_at < victim.last_used_at);
            holds(Promise::LeastRecentFirst, older.is_none(), || {
                format!("{victim:?} is evicted before {older:?}")
            })
        }
        Owner::Session(session) => waiting(world, victim, session),
        Owner::Unowned | Owner::Lease(_) => Ok(()),
    }
}

fn waiting(world: &World, victim: &SandboxRecord, session: SessionId) -> Judged {
    let Some((victim_used, _)) = used(world, victim) else { return Ok(()) };
    for other in world.store.of_session.keys().filter(|other| **other != session) {
        let older = candidates(world, *other)
            .filter(|record| record.tenant == victim.tenant)
            .find(|record| used(world, record).is_some_and(|(_, stirred)| stirred < victim_used));
        if let Some(older) = older {
            return broken(Promise::LeastRecentFirst, || {
                format!("{:?} used at {victim_used:?} is evicted before {:?}", victim.id, older.id)
            });
        }
    }
    Ok(())
}

/// When a sandbox was used last, at least and at most, if it is clear that nothing keeps it.
fn used(world: &World, record: &SandboxRecord) -> Option<(Mono, Mono)> {
    let instance = world.runtime.instances.get(&record.instance?)?;
    let plain = instance.uses.is_empty()
        && instance.turn.is_none()
        && instance.processes.is_empty()
        && instance.scale == 0
        && instance.effects == 0
        && !instance.died
        && !instance.troubled
        && !instance.marks.is_empty();
    plain.then_some((instance.active_at, instance.stirred_at))
}

/// The waiting sandboxes of a session that eviction may take, as far as that is clear.
fn candidates(world: &World, session: SessionId) -> impl Iterator<Item = &SandboxRecord> {
    let busy = world.ledger.is_wanted(session, &[]) || world.ledger.is_asked(session);
    let all = world.store.of_session.get(&session).into_iter().flatten();
    all.filter(move |_| !busy)
        .filter_map(|id| world.store.sandboxes.get(id))
        .filter(|record| record.state == SandboxState::Waiting && record.ending.is_none())
        .filter(|record| !is_copied(world, record) && used(world, record).is_some())
}

/// A waiting sandbox of a key that eviction may take.
pub(super) fn candidate_of(world: &World, key: KeyId) -> Option<SandboxId> {
    let mut sessions = world.ledger.sessions.iter().filter(|(_, session)| session.tenant == key);
    sessions.find_map(|(id, _)| candidates(world, *id).next().map(|record| record.id))
}

/// Whether the files of a sandbox may be being copied.
fn is_copied(world: &World, record: &SandboxRecord) -> bool {
    let mut copies = world.watch.copies.iter();
    copies.any(|(from, until)| *from == record.workspace && *until >= world.now.mono)
        || quiesce::is_read(world, record.workspace)
}

/// A sandbox ended; if it was evicted, the decision is recorded and was right.
pub(crate) fn ended(world: &mut World, ended: &Ended) -> Judged {
    let Some(eviction) = &ended.eviction else { return Ok(()) };
    let name = match eviction.tier {
        Tier::Cold => "cold",
        Tier::Warm => "warm",
        Tier::Waiting => "waiting",
    };
    world.coverage.count("evictions", name);
    let first = |tier| eviction.candidates.iter().find(|candidate| candidate.tier == tier);
    let own = first(eviction.tier);
    holds(
        Promise::LeastRecentFirst,
        own.is_some_and(|candidate| candidate.sandbox == ended.sandbox),
        || format!("{:?} was evicted as {:?}, but first was {own:?}", ended.sandbox, eviction.tier),
    )?;
    let before = match (eviction.shortage, eviction.tier) {
        (Shortage::Processes | Shortage::Memory, Tier::Cold) => {
            return broken(Promise::TiersInOrder, || "a cold sandbox has no process".to_owned());
        }
        (Shortage::KeyLimit, Tier::Cold | Tier::Warm) => {
            return broken(Promise::TiersInOrder, || "a limit of a key ends its own".to_owned());
        }
        (Shortage::Processes | Shortage::Memory, Tier::Warm)
        | (Shortage::Entries, Tier::Cold)
        | (Shortage::KeyLimit, Tier::Waiting) => None,
        (Shortage::Processes | Shortage::Memory | Shortage::Entries, Tier::Waiting) => {
            first(Tier::Warm)
        }
        (Shortage::Entries, Tier::Warm) => first(Tier::Cold),
    };
    holds(Promise::TiersInOrder, before.is_none(), || {
        format!("{:?} was evicted before {before:?}", ended.sandbox)
    })
}

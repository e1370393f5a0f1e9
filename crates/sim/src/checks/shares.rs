//! Sharing between keys: the order in which they are served, whom eviction takes from, and their
//! limits. What each key has is counted in the journal. One decision may change several counts, so
//! a difference of one proves nothing.

use std::collections::BTreeMap;

use model::record::SandboxRecord;
use model::{KeyId, LeaseId, TemplateName};

use super::{Judged, Promise, eviction, holds};
use crate::world::World;

/// What decisions within one event may change.
const SLACK: u32 = 1;

/// How many live sandboxes a key has that are not ending.
fn live(world: &World, key: KeyId) -> u32 {
    let live = |record: &&SandboxRecord| {
        record.tenant == key && record.instance.is_some() && record.ending.is_none()
    };
    world.store.sandboxes.values().filter(live).count() as u32
}

/// A sandbox was assigned to a waiting lease: no other key in the same queue has clearly fewer.
pub(crate) fn assigned(world: &World, lease: LeaseId, template: &TemplateName) -> Judged {
    let Some(queue) = world.ledger.queues.get(template) else { return Ok(()) };
    if !queue.iter().any(|(_, waiting)| *waiting == lease) {
        return Ok(());
    }
    let Some(key) = world.ledger.leases.get(&lease).map(|lease| lease.tenant) else {
        return Ok(());
    };
    let had = live(world, key).saturating_sub(1);
    for (_, other) in queue {
        let Some(waiting) = world.ledger.leases.get(other) else { continue };
        if waiting.tenant == key || world.store.of_lease.contains_key(other) {
            continue;
        }
        let has = live(world, waiting.tenant);
        holds(Promise::FairShare, had <= has + SLACK, || {
            format!("{lease:?} of a key with {had} is served before {other:?} of one with {has}")
        })?;
    }
    Ok(())
}

/// The waiting sandbox of a session was chosen as a victim: no key that is clearly above its share
/// had one to give, or the victim's key is above its own.
pub(crate) fn chosen(world: &World, victim: &SandboxRecord) -> Judged {
    let config = &world.scenario.config;
    if victim.tenant == KeyId::NIL {
        return Ok(());
    }
    let mut wanted = wanted(world);
    // Each that waits may need an entry, and so may those that decisions within one event add.
    let all_live: u32 = wanted.keys().map(|key| live(world, *key)).sum();
    let waiting = wanted.values().sum::<u32>() - all_live;
    let entries = world.store.sandboxes.len() as u32 + waiting.max(1) + SLACK;
    let entries_are_short = entries > config.max_sandboxes;
    let limited = world.scenario.limit_of(victim.tenant).is_some();
    // Memory, entries and limits of keys have shares of their own.
    if config.memory_budget_mb.is_some() || entries_are_short || limited {
        return Ok(());
    }
    *wanted.entry(victim.tenant).or_default() += 1;
    let level = level(config.max_live, &wanted);
    let had = live(world, victim.tenant) + 1;
    if had > level {
        return Ok(());
    }
    for key in wanted.into_keys().filter(|key| *key != victim.tenant) {
        let has = live(world, key);
        let spare = (has > level).then(|| eviction::candidate_of(world, key)).flatten();
        holds(Promise::FairShare, spare.is_none(), || {
            format!(
                "{:?} of a key with {had} is evicted, and {spare:?} of one with {has} is not",
                victim.id
            )
        })?;
    }
    Ok(())
}

/// What each key has and waits for.
fn wanted(world: &World) -> BTreeMap<KeyId, u32> {
    let mut wanted: BTreeMap<KeyId, u32> = BTreeMap::new();
    for record in world.store.sandboxes.values().filter(|record| record.tenant != KeyId::NIL) {
        let live = record.instance.is_some() && record.ending.is_none();
        *wanted.entry(record.tenant).or_default() += u32::from(live);
    }
    for (_, lease) in world.ledger.queues.values().flatten() {
        if !world.store.of_lease.contains_key(lease)
            && let Some(lease) = world.ledger.leases.get(lease)
        {
            *wanted.entry(lease.tenant).or_default() += 1;
        }
    }
    for (id, session) in &world.ledger.sessions {
        if world.ledger.is_wanted(*id, &[]) && world.store.live_of_session(*id).is_none() {
            *wanted.entry(session.tenant).or_default() += 1;
        }
    }
    wanted
}

/// The most that a key gets if places are shared max-min, rounded up.
fn level(places: u32, wanted: &BTreeMap<KeyId, u32>) -> u32 {
    let given = |level: u32| wanted.values().map(|wants| (*wants).min(level)).sum::<u32>();
    (0..=places).find(|level| given(*level) >= places).unwrap_or(u32::MAX)
}

/// A sandbox is live for a key: within the limit of that key.
pub(crate) fn live_for_key(world: &World, after: &SandboxRecord) -> Judged {
    let Some(limit) = world.scenario.limit_of(after.tenant) else { return Ok(()) };
    let all = |record: &&SandboxRecord| record.tenant == after.tenant && record.instance.is_some();
    let live = world.store.sandboxes.values().filter(all).count() as u32;
    holds(Promise::KeyLimitKept, live <= limit, || {
        format!("{:?} is live for a key with {live} of {limit}", after.id)
    })
}

//! Whose events are stored, and which go first: the oldest of the key that has the most. So no key
//! can displace the events of others, and what is deleted of a key is always older than what stays
//! of it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use model::KeyId;

/// Up to which number events were deleted. Known before a deletion is committed, and also after one
/// that was rolled back: a reader may hear of a deletion too early, never too late.
#[derive(Debug, Clone, Default)]
pub(crate) struct DeletedEvents(Arc<Mutex<Deleted>>);

#[derive(Debug, Default)]
struct Deleted {
    /// Of any key.
    last: u64,
    of: BTreeMap<KeyId, u64>,
    /// Before which place a key has no events, so that its readers need not search all of them.
    from: BTreeMap<KeyId, i64>,
    /// A key that is not in `from` has none.
    has_all: bool,
}

/// Where the events of a key are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Where {
    /// It is not known.
    Anywhere,
    /// Not before this place.
    From(i64),
    /// There are none.
    Nowhere,
}

impl DeletedEvents {
    /// The last deleted event that a reader of this key, or of all, would have seen.
    pub(crate) fn last(&self, tenant: Option<KeyId>) -> u64 {
        let deleted = self.locked();
        tenant.and_then(|tenant| deleted.of.get(&tenant)).copied().unwrap_or(deleted.last)
    }

    /// Where events of a key are. Those of a batch count before it is committed, and those that it
    /// deletes count until then.
    pub(crate) fn place(&self, tenant: KeyId) -> Where {
        let deleted = self.locked();
        match deleted.from.get(&tenant) {
            Some(from) => Where::From(*from),
            None if deleted.has_all => Where::Nowhere,
            None => Where::Anywhere,
        }
    }

    fn added(&self, tenant: KeyId, place: i64) {
        self.locked()
            .from
            .entry(tenant)
            .and_modify(|from| *from = place.min(*from))
            .or_insert(place);
    }

    /// This is committed.
    fn committed(&self, tenant: KeyId, from: Option<i64>) {
        let mut deleted = self.locked();
        match from {
            Some(from) => drop(deleted.from.insert(tenant, from)),
            None => drop(deleted.from.remove(&tenant)),
        }
    }

    /// Of a key without events nothing is known, so its first one may be after any deletion.
    fn begins(&self, tenant: KeyId) {
        let mut deleted = self.locked();
        let last = deleted.last;
        deleted.of.entry(tenant).or_insert(last);
    }

    fn deleted(&self, tenant: KeyId, number: u64) {
        let mut deleted = self.locked();
        deleted.last = deleted.last.max(number);
        let last = deleted.of.entry(tenant).or_default();
        *last = (*last).max(number);
    }

    /// Events are missing, and it is not known whose.
    fn missing(&self, number: u64) {
        let mut deleted = self.locked();
        deleted.last = deleted.last.max(number);
    }

    fn locked(&self) -> MutexGuard<'_, Deleted> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// How many events a key has, and from where on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Share {
    count: u64,
    /// No earlier place has events of it.
    from: i64,
}

/// The share of each key in the events.
#[derive(Debug, Default)]
pub(crate) struct EventShares {
    of: BTreeMap<KeyId, Share>,
    by_count: BTreeSet<(u64, KeyId)>,
    limits: BTreeMap<KeyId, u64>,
    deleted: DeletedEvents,
    /// The last number while what is stored is found.
    found: u64,
    /// The shares before changes that are not committed yet.
    before: BTreeMap<KeyId, Option<Share>>,
}

impl EventShares {
    /// What is known of deletions.
    pub(crate) fn deleted_events(&self) -> DeletedEvents {
        self.deleted.clone()
    }

    /// An event that is stored already, in the order of numbers.
    pub(crate) fn found(&mut self, tenant: KeyId, number: u64, place: i64) {
        if number > self.found + 1 {
            self.deleted.missing(number - 1);
        }
        self.found = number;
        self.add(tenant, place);
    }

    /// One more event of a key.
    pub(crate) fn add(&mut self, tenant: KeyId, place: i64) {
        let had = self.of.get(&tenant).copied();
        if had.is_none() {
            self.deleted.begins(tenant);
        }
        self.deleted.added(tenant, place);
        let Share { count, from } = had.unwrap_or(Share { count: 0, from: place });
        self.set(tenant, Some(Share { count: count + 1, from }));
    }

    /// Events of a key are deleted, up to this number; the rest begins at a place.
    pub(crate) fn remove(&mut self, tenant: KeyId, count: u64, number: u64, from: i64) {
        if count > 0 {
            self.deleted.deleted(tenant, number);
        }
        let had = self.of.get(&tenant).map_or(0, |share| share.count);
        let count = had.saturating_sub(count);
        self.set(tenant, (count > 0).then_some(Share { count, from }));
    }

    /// The place before which a key has no events.
    pub(crate) fn from(&self, tenant: KeyId) -> i64 {
        self.of.get(&tenant).map_or(0, |share| share.from)
    }

    /// The key that loses some of so many, and how many at least until another has as many.
    pub(crate) fn largest(&self) -> Option<(KeyId, u64)> {
        let mut by_count = self.by_count.iter().rev();
        let (count, tenant) = by_count.next()?;
        let next = by_count.next().map_or(0, |(count, _)| *count);
        Some((*tenant, (count - next).max(1)))
    }

    /// How many events a key has above its own limit.
    pub(crate) fn above_limit(&self, tenant: KeyId) -> u64 {
        let count = self.of.get(&tenant).map_or(0, |share| share.count);
        self.limits.get(&tenant).map_or(0, |limit| count.saturating_sub((*limit).max(1)))
    }

    /// How many events a key may have, if it has a limit of its own.
    pub(crate) fn limit(&mut self, tenant: KeyId, most: Option<u64>) {
        match most {
            Some(most) => drop(self.limits.insert(tenant, most)),
            None => drop(self.limits.remove(&tenant)),
        }
    }

    /// How many events each key has.
    pub(crate) fn counts(&self) -> BTreeMap<KeyId, u64> {
        self.of.iter().map(|(tenant, share)| (*tenant, share.count)).collect()
    }

    /// The changes are committed.
    pub(crate) fn settle(&mut self) {
        for tenant in std::mem::take(&mut self.before).into_keys() {
            self.deleted.committed(tenant, self.of.get(&tenant).map(|share| share.from));
        }
    }

    /// All that is stored was found.
    pub(crate) fn found_all(&mut self) {
        self.settle();
        self.deleted.locked().has_all = true;
    }

    /// The changes are rolled back.
    pub(crate) fn take_back(&mut self) {
        for (tenant, had) in std::mem::take(&mut self.before) {
            self.set(tenant, had);
        }
        self.settle();
    }

    fn set(&mut self, tenant: KeyId, has: Option<Share>) {
        let had = match has {
            Some(share) => self.of.insert(tenant, share),
            None => self.of.remove(&tenant),
        };
        self.before.entry(tenant).or_insert(had);
        if let Some(had) = had {
            self.by_count.remove(&(had.count, tenant));
        }
        if let Some(share) = has {
            self.by_count.insert((share.count, tenant));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ADA: KeyId = KeyId::from_u128(1);
    const EVE: KeyId = KeyId::from_u128(2);
    const NEW: KeyId = KeyId::from_u128(3);

    fn count(shares: &EventShares, tenant: KeyId) -> u64 {
        shares.counts().get(&tenant).copied().unwrap_or_default()
    }

    #[test]
    fn key_with_the_most_events_loses_first_down_to_the_next() {
        let mut shares = EventShares::default();
        assert_eq!(shares.largest(), None);
        for number in 1..=10 {
            shares.found(if number <= 3 { ADA } else { EVE }, number, 1);
        }
        assert_eq!(shares.largest(), Some((EVE, 4)));
        shares.remove(EVE, 4, 7, 5);
        assert_eq!((count(&shares, EVE), shares.from(EVE), count(&shares, ADA)), (3, 5, 3));
        assert_eq!(shares.largest().map(|(_, count)| count), Some(1));
        shares.take_back();
        shares.settle();
        assert_eq!((count(&shares, EVE), count(&shares, ADA)), (0, 0), "nothing was committed");
    }

    #[test]
    fn deletions_are_known_per_key_and_of_all() {
        let mut shares = EventShares::default();
        let deleted = shares.deleted_events();
        for (number, tenant) in [(1, ADA), (2, EVE), (3, EVE), (4, EVE)] {
            shares.found(tenant, number, 1);
        }
        assert_eq!(
            (deleted.last(None), deleted.last(Some(ADA)), deleted.last(Some(NEW))),
            (0, 0, 0)
        );
        shares.remove(EVE, 2, 3, 1);
        assert_eq!(
            (deleted.last(None), deleted.last(Some(EVE)), deleted.last(Some(ADA))),
            (3, 3, 0)
        );
        assert_eq!(deleted.last(Some(NEW)), 3, "a key without events may have had some");
        // What another run deleted shows as a gap.
        let mut shares = EventShares::default();
        let deleted = shares.deleted_events();
        for (number, tenant) in [(1, ADA), (4, EVE), (5, ADA)] {
            shares.found(tenant, number, 1);
        }
        assert_eq!(
            (deleted.last(Some(ADA)), deleted.last(Some(EVE)), deleted.last(None)),
            (0, 3, 3)
        );
    }

    #[test]
    fn limit_of_a_key_counts_only_its_own_events() {
        let mut shares = EventShares::default();
        (1..=5).for_each(|number| shares.found(EVE, number, 1));
        assert_eq!(shares.above_limit(EVE), 0);
        shares.limit(EVE, Some(2));
        assert_eq!((shares.above_limit(EVE), shares.above_limit(ADA)), (3, 0));
        shares.limit(EVE, None);
        assert_eq!(shares.above_limit(EVE), 0);
    }

    #[test]
    fn readers_search_where_events_of_their_key_can_be() {
        let mut shares = EventShares::default();
        let known = shares.deleted_events();
        assert_eq!(known.place(ADA), Where::Anywhere);
        shares.found(ADA, 1, 1);
        shares.found(EVE, 2, 2);
        shares.found_all();
        assert_eq!((known.place(EVE), known.place(NEW)), (Where::From(2), Where::Nowhere));
        shares.add(NEW, 3);
        assert_eq!(known.place(NEW), Where::From(3), "before the commit");
        shares.take_back();
        assert_eq!(known.place(NEW), Where::Nowhere);
        shares.remove(ADA, 1, 1, 2);
        shares.add(ADA, 9);
        assert_eq!(known.place(ADA), Where::From(1), "its old event is there until the commit");
        shares.take_back();
        assert_eq!(known.place(ADA), Where::From(1));
        shares.remove(ADA, 1, 1, 2);
        shares.add(ADA, 9);
        shares.settle();
        assert_eq!(known.place(ADA), Where::From(9));
    }
}

//! Which ended turns and processes retention deletes: those that are too old, and above a limit of
//! count or bytes the oldest of the key with the largest share. So no key can displace the history
//! of others.

use std::collections::{BTreeMap, BTreeSet};

use model::{KeyId, Wall};

use crate::retention::Bounds;

/// How many may be deleted in one commit, besides twice as many as ended in it.
const DELETED_AT_ONCE: u64 = 16;

/// A number of ended turns or processes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Tally {
    /// How many.
    pub(crate) count: u64,
    /// Their bytes.
    pub(crate) bytes: u64,
}

impl Tally {
    /// One of so many bytes.
    pub(crate) const fn one(bytes: u64) -> Self {
        Self { count: 1, bytes }
    }

    const fn plus(self, more: Self) -> Self {
        Self { count: self.count + more.count, bytes: self.bytes + more.bytes }
    }

    const fn minus(self, less: Self) -> Self {
        Self {
            count: self.count.saturating_sub(less.count),
            bytes: self.bytes.saturating_sub(less.bytes),
        }
    }
}

/// The share of each key in the ended ones.
#[derive(Debug, Default)]
pub(crate) struct Shares {
    of: BTreeMap<KeyId, Tally>,
    by_count: BTreeSet<(u64, KeyId)>,
    by_bytes: BTreeSet<(u64, KeyId)>,
    all: Tally,
    /// The shares before changes that are not committed yet.
    before: BTreeMap<KeyId, Tally>,
}

impl Shares {
    /// A key has more.
    pub(crate) fn add(&mut self, tenant: KeyId, more: Tally) {
        let had = self.had(tenant);
        self.set(tenant, had.plus(more));
    }

    /// A key has less.
    pub(crate) fn remove(&mut self, tenant: KeyId, less: Tally) {
        let had = self.had(tenant);
        self.set(tenant, had.minus(less));
    }

    /// The bytes of all keys together.
    pub(crate) const fn bytes(&self) -> u64 {
        self.all.bytes
    }

    /// The key with the most bytes.
    pub(crate) fn largest(&self) -> Option<KeyId> {
        self.by_bytes.last().map(|(_, tenant)| *tenant)
    }

    /// The changes are committed.
    pub(crate) fn settle(&mut self) {
        self.before.clear();
    }

    /// The changes are rolled back.
    pub(crate) fn take_back(&mut self) {
        for (tenant, had) in std::mem::take(&mut self.before) {
            self.set(tenant, had);
        }
        self.settle();
    }

    fn had(&self, tenant: KeyId) -> Tally {
        self.of.get(&tenant).copied().unwrap_or_default()
    }

    fn set(&mut self, tenant: KeyId, has: Tally) {
        let had = self.had(tenant);
        self.before.entry(tenant).or_insert(had);
        self.by_count.remove(&(had.count, tenant));
        self.by_bytes.remove(&(had.bytes, tenant));
        self.all = self.all.minus(had).plus(has);
        if has.count == 0 {
            self.of.remove(&tenant);
            return;
        }
        self.by_count.insert((has.count, tenant));
        self.by_bytes.insert((has.bytes, tenant));
        self.of.insert(tenant, has);
    }
}

/// Which one is deleted next: the one that ended first,
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Next {
    /// of this key.
    Of(KeyId),
    /// of all, if it ended before this.
    EndedBefore(Wall),
}

/// Decides what is deleted at the end of a commit.
#[derive(Debug)]
pub(crate) struct RetentionSelection {
    bounds: Bounds,
    now: Wall,
    left: u64,
}

impl RetentionSelection {
    /// After a commit in which so many ended.
    pub(crate) const fn new(bounds: Bounds, now: Wall, ended: u64) -> Self {
        Self { bounds, now, left: DELETED_AT_ONCE + 2 * ended }
    }

    /// Which one goes next; none when it is enough. The caller deletes it, or stops asking.
    pub(crate) fn next(&mut self, kept: &Shares) -> Option<Next> {
        self.left = self.left.checked_sub(1)?;
        let most = |by: &BTreeSet<(u64, KeyId)>| by.last().map(|(_, tenant)| Next::Of(*tenant));
        if kept.all.count > self.bounds.count {
            return most(&kept.by_count);
        }
        if kept.all.bytes > self.bounds.bytes {
            return most(&kept.by_bytes);
        }
        let age = u64::try_from(self.bounds.age.as_millis()).unwrap_or(u64::MAX);
        self.now.0.checked_sub(age).map(|moment| Next::EndedBefore(Wall(moment)))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn key(id: u128) -> KeyId {
        KeyId::from_u128(id)
    }

    fn shares(of: &[(u128, u64, u64)]) -> Shares {
        let mut shares = Shares::default();
        for &(id, count, bytes) in of {
            shares.add(key(id), Tally { count, bytes });
        }
        shares.settle();
        shares
    }

    #[test]
    fn retention_selects_what_is_too_many_too_large_or_too_old() {
        let bounds = Bounds { count: 10, bytes: 1_000, age: Duration::from_millis(100) };
        let old = Some(Next::EndedBefore(Wall(900)));
        for (of, goes) in [
            (&[][..], old),
            (&[(1, 10, 1_000)], old),
            (&[(1, 11, 0)], Some(Next::Of(key(1)))),
            (&[(1, 5, 900), (2, 6, 10)], Some(Next::Of(key(2)))),
            (&[(1, 2, 600), (2, 8, 401)], Some(Next::Of(key(1)))),
            (&[(1, 2, 600), (2, 9, 401)], Some(Next::Of(key(2)))),
        ] {
            let mut selection = RetentionSelection::new(bounds, Wall(1_000), 0);
            assert_eq!(selection.next(&shares(of)), goes, "{of:?}");
        }
        let mut early = RetentionSelection::new(bounds, Wall(99), 0);
        assert_eq!(early.next(&shares(&[])), None, "no turn can be so old");
    }

    #[test]
    fn retention_deletes_a_bounded_number_at_once() {
        let bounds = Bounds { count: 0, bytes: 0, age: Duration::MAX };
        let mut selection = RetentionSelection::new(bounds, Wall(0), 3);
        let kept = shares(&[(1, 1_000, 0)]);
        assert_eq!((0..100).filter(|_| selection.next(&kept).is_some()).count(), 22);
    }

    #[test]
    fn retention_shares_can_be_rolled_back() {
        let mut kept = shares(&[(1, 3, 30), (2, 1, 50)]);
        kept.remove(key(2), Tally::one(50));
        kept.add(key(1), Tally::one(5));
        kept.add(key(1), Tally::one(5));
        kept.add(key(3), Tally::one(500));
        assert_eq!((kept.all, kept.of.len()), (Tally { count: 6, bytes: 540 }, 2));
        kept.take_back();
        let expected = shares(&[(1, 3, 30), (2, 1, 50)]);
        assert_eq!((&kept.of, kept.all), (&expected.of, expected.all));
        assert_eq!((&kept.by_count, &kept.by_bytes), (&expected.by_count, &expected.by_bytes));
        assert!(kept.before.is_empty());
    }
}

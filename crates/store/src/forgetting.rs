//! Which turns are forgotten: those that are too old, and what is too many or too much, which is
//! taken from whoever has most of it. So nobody can make a store forget what others said.

use std::collections::{BTreeMap, BTreeSet};

use model::{KeyId, Wall};

use crate::retention::Retention;

/// How many turns may be forgotten in one commit, besides twice as many as ended in it.
const FORGOTTEN_AT_ONCE: u64 = 16;

/// Turns that are over.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Tally {
    /// How many.
    pub(crate) turns: u64,
    /// How much they take.
    pub(crate) bytes: u64,
}

impl Tally {
    /// One that takes so much.
    pub(crate) const fn one(bytes: u64) -> Self {
        Self { turns: 1, bytes }
    }

    const fn plus(self, more: Self) -> Self {
        Self { turns: self.turns + more.turns, bytes: self.bytes + more.bytes }
    }

    const fn minus(self, less: Self) -> Self {
        Self {
            turns: self.turns.saturating_sub(less.turns),
            bytes: self.bytes.saturating_sub(less.bytes),
        }
    }
}

/// What each key has of the turns that are over.
#[derive(Debug, Default)]
pub(crate) struct Shares {
    of: BTreeMap<KeyId, Tally>,
    by_turns: BTreeSet<(u64, KeyId)>,
    by_bytes: BTreeSet<(u64, KeyId)>,
    all: Tally,
    /// What those had that changed since it was settled.
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

    /// What was changed is so for good.
    pub(crate) fn settle(&mut self) {
        self.before.clear();
    }

    /// What was changed since it was settled is not so.
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
        self.by_turns.remove(&(had.turns, tenant));
        self.by_bytes.remove(&(had.bytes, tenant));
        self.all = self.all.minus(had).plus(has);
        if has.turns == 0 {
            self.of.remove(&tenant);
            return;
        }
        self.by_turns.insert((has.turns, tenant));
        self.by_bytes.insert((has.bytes, tenant));
        self.of.insert(tenant, has);
    }
}

/// Which turn is forgotten next: the one that ended first,
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Next {
    /// of this key.
    Of(KeyId),
    /// of all, if it ended before this.
    EndedBefore(Wall),
}

/// Says which turns are forgotten at the end of a commit.
#[derive(Debug)]
pub(crate) struct Forgetting {
    retention: Retention,
    now: Wall,
    left: u64,
}

impl Forgetting {
    /// After a commit in which so many turns came to their end.
    pub(crate) const fn new(retention: Retention, now: Wall, ended: u64) -> Self {
        Self { retention, now, left: FORGOTTEN_AT_ONCE + 2 * ended }
    }

    /// Which one goes next, unless it was enough. Whoever asks takes it away or asks no more.
    pub(crate) fn next(&mut self, kept: &Shares) -> Option<Next> {
        self.left = self.left.checked_sub(1)?;
        let most = |by: &BTreeSet<(u64, KeyId)>| by.last().map(|(_, tenant)| Next::Of(*tenant));
        if kept.all.turns > u64::from(self.retention.turns) {
            return most(&kept.by_turns);
        }
        if kept.all.bytes > self.retention.turn_bytes {
            return most(&kept.by_bytes);
        }
        let age = u64::try_from(self.retention.turns_age.as_millis()).unwrap_or(u64::MAX);
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
        for &(id, turns, bytes) in of {
            shares.add(key(id), Tally { turns, bytes });
        }
        shares.settle();
        shares
    }

    #[test]
    fn what_is_too_many_too_much_or_too_old_goes() {
        let retention = Retention {
            turns: 10,
            turns_age: Duration::from_millis(100),
            turn_bytes: 1_000,
            ..Retention::default()
        };
        let old = Some(Next::EndedBefore(Wall(900)));
        for (of, goes) in [
            (&[][..], old),
            (&[(1, 10, 1_000)], old),
            (&[(1, 11, 0)], Some(Next::Of(key(1)))),
            (&[(1, 5, 900), (2, 6, 10)], Some(Next::Of(key(2)))),
            (&[(1, 2, 600), (2, 8, 401)], Some(Next::Of(key(1)))),
            (&[(1, 2, 600), (2, 9, 401)], Some(Next::Of(key(2)))),
        ] {
            let mut forgetting = Forgetting::new(retention, Wall(1_000), 0);
            assert_eq!(forgetting.next(&shares(of)), goes, "{of:?}");
        }
        let mut early = Forgetting::new(retention, Wall(99), 0);
        assert_eq!(early.next(&shares(&[])), None, "nothing can be so old");
    }

    #[test]
    fn so_many_go_at_once_and_no_more() {
        let retention = Retention { turns: 0, ..Retention::default() };
        let mut forgetting = Forgetting::new(retention, Wall(0), 3);
        let kept = shares(&[(1, 1_000, 0)]);
        assert_eq!((0..100).filter(|_| forgetting.next(&kept).is_some()).count(), 22);
    }

    #[test]
    fn what_is_taken_back_never_was() {
        let mut kept = shares(&[(1, 3, 30), (2, 1, 50)]);
        kept.remove(key(2), Tally::one(50));
        kept.add(key(1), Tally::one(5));
        kept.add(key(1), Tally::one(5));
        kept.add(key(3), Tally::one(500));
        assert_eq!((kept.all, kept.of.len()), (Tally { turns: 6, bytes: 540 }, 2));
        kept.take_back();
        let expected = shares(&[(1, 3, 30), (2, 1, 50)]);
        assert_eq!((&kept.of, kept.all), (&expected.of, expected.all));
        assert_eq!((&kept.by_turns, &kept.by_bytes), (&expected.by_turns, &expected.by_bytes));
        assert!(kept.before.is_empty());
    }
}

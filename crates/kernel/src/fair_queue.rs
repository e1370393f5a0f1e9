//! A queue that is fair between keys. Within a key it is first come, first served. Between keys the
//! next is always of the key that has the fewest live sandboxes: places are shared max-min.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap, btree_set};

use model::KeyId;

/// A position in the queue: lower is served earlier.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Rank {
    /// How many live sandboxes the key has when this one is served.
    pub(crate) live: u32,
    /// Its number in the order of arrival.
    pub(crate) seq: u64,
}

impl Rank {
    /// Behind all others.
    pub(crate) const LAST: Self = Self { live: u32::MAX, seq: u64::MAX };
}

/// The queue.
#[derive(Debug)]
pub(crate) struct FairQueue<T> {
    waiting: BTreeMap<u64, (KeyId, T)>,
    by_key: BTreeMap<KeyId, BTreeSet<u64>>,
}

impl<T> Default for FairQueue<T> {
    fn default() -> Self {
        Self { waiting: BTreeMap::new(), by_key: BTreeMap::new() }
    }
}

impl<T> FairQueue<T> {
    pub(crate) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    pub(crate) fn len(&self) -> usize {
        self.waiting.len()
    }

    pub(crate) fn insert(&mut self, seq: u64, key: KeyId, item: T) {
        self.waiting.insert(seq, (key, item));
        self.by_key.entry(key).or_default().insert(seq);
    }

    pub(crate) fn remove(&mut self, seq: u64) -> Option<(KeyId, T)> {
        let (key, item) = self.waiting.remove(&seq)?;
        if let Some(own) = self.by_key.get_mut(&key) {
            own.remove(&seq);
            if own.is_empty() {
                self.by_key.remove(&key);
            }
        }
        Some((key, item))
    }

    pub(crate) fn get(&self, seq: u64) -> Option<&T> {
        self.waiting.get(&seq).map(|(_, item)| item)
    }

    /// All items, in order of arrival.
    pub(crate) fn iter(&self) -> impl DoubleEndedIterator<Item = (u64, KeyId, &T)> {
        self.waiting.iter().map(|(seq, (key, item))| (*seq, *key, item))
    }

    /// The keys that have items.
    pub(crate) fn keys(&self) -> impl Iterator<Item = KeyId> {
        self.by_key.keys().copied()
    }

    /// The first item of each key.
    pub(crate) fn first_of_keys(&self) -> impl Iterator<Item = (KeyId, u64, &T)> {
        self.by_key.iter().filter_map(|(key, own)| {
            let seq = *own.first()?;
            Some((*key, seq, self.get(seq)?))
        })
    }

    /// The last item of a key.
    pub(crate) fn last_of_key(&self, key: KeyId) -> Option<&T> {
        self.get(*self.by_key.get(&key)?.last()?)
    }

    /// The position of the item that is served next.
    pub(crate) fn first(&self, live: impl Fn(KeyId) -> u32) -> Option<Rank> {
        self.first_of_keys().map(|(key, seq, _)| Rank { live: live(key), seq }).min()
    }

    /// The positions of all items, in the order in which they are served if nothing else changes.
    pub(crate) fn order(&self, live: impl Fn(KeyId) -> u32) -> Order<'_> {
        let mut next = BinaryHeap::with_capacity(self.by_key.len());
        let mut rest = Vec::with_capacity(self.by_key.len());
        for (key, own) in &self.by_key {
            let mut own = own.iter();
            if let Some(seq) = own.next() {
                next.push(Reverse((Rank { live: live(*key), seq: *seq }, rest.len())));
                rest.push(own);
            }
        }
        Order { next, rest }
    }

    /// The key with the most items, how many it has, and its latest.
    pub(crate) fn busiest(&self) -> Option<(KeyId, usize, u64)> {
        let all = self.by_key.iter().filter_map(|(key, own)| Some((*key, own.len(), *own.last()?)));
        all.max_by_key(|(_, count, seq)| (*count, *seq))
    }

    /// How many items a key has.
    pub(crate) fn of_key(&self, key: KeyId) -> usize {
        self.by_key.get(&key).map_or(0, BTreeSet::len)
    }
}

/// The order in which items are served: each one that is served counts for its key.
pub(crate) struct Order<'a> {
    next: BinaryHeap<Reverse<(Rank, usize)>>,
    rest: Vec<btree_set::Iter<'a, u64>>,
}

impl Iterator for Order<'_> {
    type Item = Rank;

    fn next(&mut self) -> Option<Rank> {
        let Reverse((rank, at)) = self.next.pop()?;
        if let Some(seq) = self.rest[at].next() {
            self.next.push(Reverse((Rank { live: rank.live + 1, seq: *seq }, at)));
        }
        Some(rank)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ADA: KeyId = KeyId::from_u128(1);
    const EVE: KeyId = KeyId::from_u128(2);

    fn queue(items: &[(u64, KeyId)]) -> FairQueue<()> {
        let mut queue = FairQueue::default();
        for (seq, key) in items {
            queue.insert(*seq, *key, ());
        }
        queue
    }

    fn seqs(queue: &FairQueue<()>, live: impl Fn(KeyId) -> u32) -> Vec<u64> {
        queue.order(live).map(|rank| rank.seq).collect()
    }

    #[test]
    fn keys_take_turns_and_each_keeps_its_order() {
        let queue = queue(&[(1, EVE), (2, EVE), (3, EVE), (4, ADA), (5, ADA)]);
        assert_eq!(seqs(&queue, |_| 0), [1, 4, 2, 5, 3]);
        assert_eq!(seqs(&queue, |key| if key == EVE { 2 } else { 0 }), [4, 5, 1, 2, 3]);
        assert_eq!(queue.first(|key| u32::from(key == EVE)).map(|rank| rank.seq), Some(4));
    }

    #[test]
    fn key_that_has_nothing_left_is_forgotten() {
        let mut queue = queue(&[(1, EVE), (2, ADA), (3, EVE)]);
        assert_eq!(queue.busiest(), Some((EVE, 2, 3)));
        assert_eq!(queue.remove(2), Some((ADA, ())));
        assert_eq!(queue.remove(2), None);
        assert_eq!((queue.of_key(ADA), queue.of_key(EVE), queue.len()), (0, 2, 2));
        assert_eq!(seqs(&queue, |_| 0), [1, 3]);
        assert!(queue.by_key.len() == 1 && queue.get(1).is_some());
    }
}

//! Finds a slab index by an id. This is the one hash map of the kernel, and it cannot be iterated,
//! so its order can never leak into a decision.

#![expect(clippy::disallowed_types, reason = "the map is private and never iterated")]

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

/// Maps ids to values, without an order.
#[derive(Debug)]
pub(crate) struct IdIndex<V> {
    map: HashMap<u128, V, BuildHasherDefault<IdHasher>>,
}

impl<V> Default for IdIndex<V> {
    fn default() -> Self {
        Self { map: HashMap::default() }
    }
}

impl<V: Copy> IdIndex<V> {
    pub(crate) fn get(&self, id: u128) -> Option<V> {
        self.map.get(&id).copied()
    }

    pub(crate) fn contains(&self, id: u128) -> bool {
        self.map.contains_key(&id)
    }

    pub(crate) fn insert(&mut self, id: u128, value: V) -> Option<V> {
        self.map.insert(id, value)
    }

    pub(crate) fn remove(&mut self, id: u128) -> Option<V> {
        self.map.remove(&id)
    }

    pub(crate) fn len(&self) -> usize {
        self.map.len()
    }
}

/// Mixes the two halves of an id. Clients could choose colliding ids; the API accepts ids only from
/// callers with a key, and limits how many.
#[derive(Debug, Default)]
pub(crate) struct IdHasher(u64);

impl Hasher for IdHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, _: &[u8]) {
        unreachable!("ids are hashed whole")
    }

    fn write_u128(&mut self, id: u128) {
        self.0 = mix((id as u64) ^ mix((id >> 64) as u64));
    }
}

/// A bijective scramble of 64 bits (the finaliser of splitmix64).
pub(crate) const fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Ids of one moment differ in a few bits only, and must not collide in the table, which uses
    /// the lowest and the highest bits of a hash.
    #[test]
    fn ids_that_differ_little_are_spread_widely() {
        let hash = |id: u128| {
            let mut hasher = IdHasher::default();
            hasher.write_u128(id);
            hasher.finish()
        };
        for shift in [0, 8, 40, 64, 80, 104] {
            let hashes: Vec<u64> = (0..1000_u128).map(|id| hash(id << shift)).collect();
            let distinct = |part: fn(u64) -> u64| {
                hashes
                    .iter()
                    .map(|hash| part(*hash))
                    .collect::<std::collections::BTreeSet<_>>()
                    .len()
            };
            assert!(distinct(|hash| hash & 0xffff) > 980, "low bits, ids shifted by {shift}");
            assert!(distinct(|hash| hash >> 48) > 980, "high bits, ids shifted by {shift}");
        }
    }

    #[test]
    fn index_finds_an_id_until_it_is_removed() {
        let mut index = IdIndex::default();
        for id in 0..1000_u128 {
            assert_eq!(index.insert(id << 60, id), None);
        }
        assert_eq!(index.len(), 1000);
        assert_eq!(index.get(7 << 60), Some(7));
        assert!(index.contains(7 << 60));
        assert_eq!(index.remove(7 << 60), Some(7));
        assert_eq!((index.get(7 << 60), index.contains(7 << 60), index.len()), (None, false, 999));
    }
}

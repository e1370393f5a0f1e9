//! The eviction tiers: which sandboxes may be evicted, by key, least recently used first. A sandbox
//! is in the tier that follows from its facts, or in none; `settle` keeps that so.

use std::collections::BTreeMap;

use model::KeyId;
use model::why::Tier;

use crate::entries::Entries;
use crate::entry::EntryIx;
use crate::lru_lists::{LinkSet, LruList};

/// The eviction tiers.
#[derive(Debug, Default)]
pub(crate) struct Tiers {
    /// No list is empty.
    lists: [BTreeMap<KeyId, LruList>; Tier::ALL.len()],
}

impl Tiers {
    /// The candidates of a tier, by key; nil is the key of those without an owner.
    pub(crate) fn of(&self, tier: Tier) -> impl Iterator<Item = (KeyId, &LruList)> {
        self.lists[tier as usize].iter().map(|(key, list)| (*key, list))
    }

    /// The candidates of one key in a tier.
    pub(crate) fn of_key(&self, tier: Tier, key: KeyId) -> Option<&LruList> {
        self.lists[tier as usize].get(&key)
    }

    pub(crate) fn is_empty(&self, tier: Tier) -> bool {
        self.lists[tier as usize].is_empty()
    }

    /// How many candidates a tier has.
    pub(crate) fn len(&self, tier: Tier) -> u32 {
        self.of(tier).map(|(_, list)| list.len()).sum()
    }

    pub(crate) fn join(&mut self, tier: Tier, key: KeyId, entries: &mut Entries, entry: EntryIx) {
        let new = LruList::new(LinkSet::Tier);
        self.lists[tier as usize].entry(key).or_insert(new).push(entries, entry);
    }

    pub(crate) fn leave(&mut self, tier: Tier, key: KeyId, entries: &mut Entries, entry: EntryIx) {
        let lists = &mut self.lists[tier as usize];
        if let Some(list) = lists.get_mut(&key) {
            list.remove(entries, entry);
            if list.len() == 0 {
                lists.remove(&key);
            }
        }
    }
}

//! The eviction tiers: which sandboxes may be evicted, least recently used first. A sandbox is in
//! the tier that follows from its facts, or in none; `settle` keeps that so.

use model::why::Tier;

use crate::entries::Entries;
use crate::entry::EntryIx;
use crate::lru_lists::{LinkSet, LruList};

/// The eviction tiers.
#[derive(Debug)]
pub(crate) struct Tiers {
    lists: [LruList; Tier::ALL.len()],
}

impl Default for Tiers {
    fn default() -> Self {
        Self { lists: [LruList::new(LinkSet::Tier); Tier::ALL.len()] }
    }
}

impl Tiers {
    pub(crate) const fn of(&self, tier: Tier) -> &LruList {
        &self.lists[tier as usize]
    }

    pub(crate) fn join(&mut self, tier: Tier, entries: &mut Entries, entry: EntryIx) {
        self.lists[tier as usize].push(entries, entry);
    }

    pub(crate) fn leave(&mut self, tier: Tier, entries: &mut Entries, entry: EntryIx) {
        self.lists[tier as usize].remove(entries, entry);
    }
}

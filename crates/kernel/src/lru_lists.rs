//! Lists of sandboxes, least recently used first: the idle ones of each pool, and the candidates of
//! each eviction tier. The links live in the sandboxes, so joining, leaving and finding the first
//! cost the same for any number.

use crate::entries::Entries;
use crate::entry::EntryIx;

/// Which of its two sets of links a list uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LinkSet {
    /// The idle sandboxes of a pool.
    Idle,
    /// An eviction tier.
    Tier,
}

/// The neighbours of a sandbox in one list.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Links {
    before: Option<EntryIx>,
    after: Option<EntryIx>,
}

/// One list.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LruList {
    set: LinkSet,
    first: Option<EntryIx>,
    last: Option<EntryIx>,
    len: u32,
}

impl LruList {
    pub(crate) const fn new(set: LinkSet) -> Self {
        Self { set, first: None, last: None, len: 0 }
    }

    pub(crate) const fn len(&self) -> u32 {
        self.len
    }

    pub(crate) const fn first(&self) -> Option<EntryIx> {
        self.first
    }

    pub(crate) const fn last(&self) -> Option<EntryIx> {
        self.last
    }

    /// Joins the list behind all that were used before it. It is nearly always the latest, so the
    /// search from the end costs nothing.
    pub(crate) fn push(&mut self, entries: &mut Entries, entry: EntryIx) {
        let used = entries[entry].last_used.mono;
        let mut before = self.last;
        while let Some(earlier) = before
            && entries[earlier].last_used.mono > used
        {
            before = entries[earlier].links_ref(self.set).before;
        }
        let after = match before {
            Some(before) => entries[before].links(self.set).after.replace(entry),
            None => self.first.replace(entry),
        };
        match after {
            Some(after) => entries[after].links(self.set).before = Some(entry),
            None => self.last = Some(entry),
        }
        *entries[entry].links(self.set) = Links { before, after };
        self.len += 1;
    }

    pub(crate) fn remove(&mut self, entries: &mut Entries, entry: EntryIx) {
        let Links { before, after } = std::mem::take(entries[entry].links(self.set));
        match before {
            Some(before) => entries[before].links(self.set).after = after,
            None => self.first = after,
        }
        match after {
            Some(after) => entries[after].links(self.set).before = before,
            None => self.last = before,
        }
        self.len -= 1;
    }

    /// All members, for audits.
    pub(crate) fn list(&self, entries: &Entries) -> Vec<EntryIx> {
        let mut list = Vec::with_capacity(self.len as usize);
        let mut next = self.first;
        while let Some(entry) = next
            && list.len() <= self.len as usize
        {
            list.push(entry);
            next = entries[entry].links_ref(self.set).after;
        }
        list
    }
}

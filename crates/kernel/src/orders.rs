//! Queues of sandboxes, least recently used first: the idle ones of each pool, and the candidates
//! of each eviction tier. The links live in the sandboxes, so that joining, leaving and asking for
//! the first cost the same whatever the number.

use crate::entry::Entry;
use crate::slab::{Ix, Slab};

/// No neighbour.
const NONE: Ix = Ix::MAX;

/// Which of its two sets of links an order uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Line {
    /// The idle sandboxes of a pool.
    Idle,
    /// An eviction tier.
    Tier,
}

/// The neighbours of a sandbox in one order.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Links {
    before: Ix,
    after: Ix,
}

impl Default for Links {
    fn default() -> Self {
        Self { before: NONE, after: NONE }
    }
}

/// One order.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Order {
    line: Line,
    first: Ix,
    last: Ix,
    len: u32,
}

impl Order {
    pub(crate) const fn new(line: Line) -> Self {
        Self { line, first: NONE, last: NONE, len: 0 }
    }

    pub(crate) const fn len(&self) -> u32 {
        self.len
    }

    pub(crate) const fn first(&self) -> Option<Ix> {
        if self.first == NONE { None } else { Some(self.first) }
    }

    #[cfg_attr(not(feature = "flaws"), expect(dead_code, reason = "only a flaw asks for it"))]
    pub(crate) const fn last(&self) -> Option<Ix> {
        if self.last == NONE { None } else { Some(self.last) }
    }

    /// Joins the order behind all that were used before it. It is nearly always the latest, so the
    /// search from the end costs nothing.
    pub(crate) fn push(&mut self, entries: &mut Slab<Entry>, ix: Ix) {
        let used = entries[ix].last_used.mono;
        let mut before = self.last;
        while before != NONE && entries[before].last_used.mono > used {
            before = entries[before].links_ref(self.line).before;
        }
        let after = if before == NONE {
            std::mem::replace(&mut self.first, ix)
        } else {
            std::mem::replace(&mut entries[before].links(self.line).after, ix)
        };
        if after == NONE {
            self.last = ix;
        } else {
            entries[after].links(self.line).before = ix;
        }
        *entries[ix].links(self.line) = Links { before, after };
        self.len += 1;
    }

    pub(crate) fn remove(&mut self, entries: &mut Slab<Entry>, ix: Ix) {
        let Links { before, after } = std::mem::take(entries[ix].links(self.line));
        if before == NONE {
            self.first = after;
        } else {
            entries[before].links(self.line).after = after;
        }
        if after == NONE {
            self.last = before;
        } else {
            entries[after].links(self.line).before = before;
        }
        self.len -= 1;
    }

    /// The order as a list, for audits.
    pub(crate) fn list(&self, entries: &Slab<Entry>) -> Vec<Ix> {
        let mut list = Vec::with_capacity(self.len as usize);
        let mut at = self.first;
        while at != NONE && list.len() <= self.len as usize {
            list.push(at);
            at = entries[at].links_ref(self.line).after;
        }
        list
    }
}

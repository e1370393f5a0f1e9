//! Writes the journal of a decision: the record of each thing that changed in it, once.

use model::record::{JournalEntry, Owner};
use model::{LeaseId, SessionId};

use crate::Kernel;
use crate::entry::{EntryIx, EntryOwner};
use crate::pool::PoolIx;
use crate::session::SessionIx;

/// What changed in this decision and must be journalled. A flag on each thing makes it appear once.
#[derive(Debug, Default)]
pub(crate) struct Marks {
    entries: Vec<EntryIx>,
    sessions: Vec<SessionIx>,
    pools: Vec<PoolIx>,
}

impl Kernel {
    /// The record of a sandbox changed.
    pub(crate) fn mark(&mut self, entry: EntryIx) {
        if self.entries[entry].marked.raise() {
            self.marks.entries.push(entry);
        }
    }

    /// The record of a session changed.
    pub(crate) fn mark_session(&mut self, session: SessionIx) {
        if self.sessions[session].marked.raise() {
            self.marks.sessions.push(session);
        }
    }

    /// The record of a pool changed.
    pub(crate) fn mark_pool(&mut self, pool: PoolIx) {
        if self.pools[pool].marked.raise() {
            self.marks.pools.push(pool);
        }
    }

    /// Journals the records of what changed. An index that was freed and reused in the same
    /// decision is journalled once, as what it is now.
    pub(crate) fn flush_journal(&mut self) {
        // By number: nothing is marked meanwhile, and the lists keep their capacity.
        for at in 0..self.marks.pools.len() {
            if let Some(known) = self.pools.get_mut(self.marks.pools[at])
                && known.marked.lower()
            {
                self.out.journal.push(JournalEntry::PoolPut(known.record()));
            }
        }
        self.marks.pools.clear();
        for at in 0..self.marks.sessions.len() {
            if let Some(known) = self.sessions.get_mut(self.marks.sessions[at])
                && known.marked.lower()
            {
                let sandbox = known.entry.map(|entry| self.entries[entry].id);
                self.out.journal.push(JournalEntry::SessionPut(known.record(sandbox)));
            }
        }
        self.marks.sessions.clear();
        for at in 0..self.marks.entries.len() {
            let entry = self.marks.entries[at];
            if let Some(sandbox) = self.entries.get_mut(entry)
                && sandbox.marked.lower()
            {
                let record = self.entries[entry].record(self.owner(entry));
                self.out.journal.push(JournalEntry::SandboxPut(record));
            }
        }
        self.marks.entries.clear();
    }

    pub(crate) fn owner(&self, entry: EntryIx) -> Owner {
        match self.entries[entry].owner() {
            EntryOwner::Unowned => Owner::Unowned,
            EntryOwner::Lease(lease) => Owner::Lease(lease),
            EntryOwner::Session(session) => Owner::Session(self.sessions[session].id),
        }
    }

    pub(crate) fn owner_ids(&self, entry: EntryIx) -> (Option<SessionId>, Option<LeaseId>) {
        match self.owner(entry) {
            Owner::Unowned => (None, None),
            Owner::Lease(lease) => (None, Some(lease)),
            Owner::Session(session) => (Some(session), None),
        }
    }
}

//! What is written down after each decision: the records of whatever changed in it, once each.

use model::record::{JournalEntry, Owner};
use model::{LeaseId, SessionId};

use crate::Kernel;
use crate::entry::{EntryIx, Own};
use crate::pool::PoolIx;
use crate::session::SessionIx;

impl Kernel {
    /// The durable facts of a sandbox changed.
    pub(crate) fn mark(&mut self, entry: EntryIx) {
        if self.entries[entry].mark() {
            self.marked_entries.push(entry);
        }
    }

    /// The durable facts of a session changed.
    pub(crate) fn mark_session(&mut self, session: SessionIx) {
        let known = &mut self.sessions[session];
        if !known.marked {
            known.marked = true;
            self.marked_sessions.push(session);
        }
    }

    /// The durable facts of a pool changed.
    pub(crate) fn mark_pool(&mut self, pool: PoolIx) {
        let known = &mut self.pools[pool];
        if !known.marked {
            known.marked = true;
            self.marked_pools.push(pool);
        }
    }

    /// Writes the records of what changed. A place that was given up and taken again in the same
    /// decision is written once, as what it is now.
    pub(crate) fn flush_journal(&mut self) {
        for at in 0..self.marked_pools.len() {
            if let Some(pool) = self.pools.get_mut(self.marked_pools[at])
                && std::mem::take(&mut pool.marked)
            {
                self.out.journal.push(JournalEntry::PoolPut(pool.record()));
            }
        }
        self.marked_pools.clear();
        for at in 0..self.marked_sessions.len() {
            let session = self.marked_sessions[at];
            if let Some(known) = self.sessions.get_mut(session)
                && std::mem::take(&mut known.marked)
            {
                let sandbox = known.entry.map(|entry| self.entries[entry].id);
                let record = self.sessions[session].record(sandbox);
                self.out.journal.push(JournalEntry::SessionPut(record));
            }
        }
        self.marked_sessions.clear();
        for at in 0..self.marked_entries.len() {
            let entry = self.marked_entries[at];
            if let Some(known) = self.entries.get_mut(entry)
                && known.unmark()
            {
                let record = self.entries[entry].record(self.owner(entry));
                self.out.journal.push(JournalEntry::SandboxPut(record));
            }
        }
        self.marked_entries.clear();
    }

    pub(crate) fn owner(&self, entry: EntryIx) -> Owner {
        match self.entries[entry].owner() {
            Own::Nobody => Owner::Nobody,
            Own::Lease(lease) => Owner::Lease(lease),
            Own::Session(session) => Owner::Session(self.sessions[session].id),
        }
    }

    pub(crate) fn owner_ids(&self, entry: EntryIx) -> (Option<SessionId>, Option<LeaseId>) {
        match self.owner(entry) {
            Owner::Nobody => (None, None),
            Owner::Lease(lease) => (None, Some(lease)),
            Owner::Session(session) => (Some(session), None),
        }
    }
}

//! What is written down after each decision: the records of whatever changed in it, once each.

use model::record::{JournalEntry, Owner};
use model::{LeaseId, SessionId};

use crate::Kernel;
use crate::entry::Own;
use crate::slab::Ix;

impl Kernel {
    /// The durable facts of a sandbox changed.
    pub(crate) fn mark(&mut self, ix: Ix) {
        let entry = &mut self.entries[ix];
        if !entry.marked {
            entry.marked = true;
            self.marked_entries.push(ix);
        }
    }

    /// The durable facts of a session changed.
    pub(crate) fn mark_session(&mut self, session: Ix) {
        let known = &mut self.sessions[session];
        if !known.marked {
            known.marked = true;
            self.marked_sessions.push(session);
        }
    }

    /// The durable facts of a pool changed.
    pub(crate) fn mark_pool(&mut self, pool: Ix) {
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
            let ix = self.marked_sessions[at];
            if let Some(session) = self.sessions.get_mut(ix)
                && std::mem::take(&mut session.marked)
            {
                let sandbox = session.entry.map(|entry| self.entries[entry].id);
                let record = self.sessions[ix].record(sandbox);
                self.out.journal.push(JournalEntry::SessionPut(record));
            }
        }
        self.marked_sessions.clear();
        for at in 0..self.marked_entries.len() {
            let ix = self.marked_entries[at];
            if let Some(entry) = self.entries.get_mut(ix)
                && std::mem::take(&mut entry.marked)
            {
                let record = self.entries[ix].record(self.owner(ix));
                self.out.journal.push(JournalEntry::SandboxPut(record));
            }
        }
        self.marked_entries.clear();
    }

    pub(crate) fn owner(&self, ix: Ix) -> Owner {
        match self.entries[ix].owner {
            Own::Nobody => Owner::Nobody,
            Own::Lease(lease) => Owner::Lease(lease),
            Own::Session(session) => Owner::Session(self.sessions[session].id),
        }
    }

    pub(crate) fn owner_ids(&self, ix: Ix) -> (Option<SessionId>, Option<LeaseId>) {
        match self.owner(ix) {
            Owner::Nobody => (None, None),
            Owner::Lease(lease) => (None, Some(lease)),
            Owner::Session(session) => (Some(session), None),
        }
    }
}

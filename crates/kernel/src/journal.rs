//! What is written down after each decision: the records of whatever changed in it, once each.

use model::record::{JournalEntry, Owner};
use model::{LeaseId, SessionId};

use crate::Kernel;
use crate::entry::{EntryIx, Own};
use crate::pool::PoolIx;
use crate::session::SessionIx;

/// What changed in this decision and is to be written down. Each has a flag of its own that says so,
/// and is here once.
#[derive(Debug, Default)]
pub(crate) struct Marks {
    entries: Vec<EntryIx>,
    sessions: Vec<SessionIx>,
    pools: Vec<PoolIx>,
}

impl Kernel {
    /// The durable facts of a sandbox changed.
    pub(crate) fn mark(&mut self, entry: EntryIx) {
        if self.entries[entry].mark() {
            self.marks.entries.push(entry);
        }
    }

    /// The durable facts of a session changed.
    pub(crate) fn mark_session(&mut self, session: SessionIx) {
        let known = &mut self.sessions[session];
        if !known.marked {
            known.marked = true;
            self.marks.sessions.push(session);
        }
    }

    /// The durable facts of a pool changed.
    pub(crate) fn mark_pool(&mut self, pool: PoolIx) {
        let known = &mut self.pools[pool];
        if !known.marked {
            known.marked = true;
            self.marks.pools.push(pool);
        }
    }

    /// Writes the records of what changed. A place that was given up and taken again in the same
    /// decision is written once, as what it is now.
    pub(crate) fn flush_journal(&mut self) {
        // The lists are put back empty: the next decision needs the room.
        let mut marks = std::mem::take(&mut self.marks);
        for pool in marks.pools.drain(..) {
            if let Some(known) = self.pools.get_mut(pool)
                && std::mem::take(&mut known.marked)
            {
                self.out.journal.push(JournalEntry::PoolPut(known.record()));
            }
        }
        for session in marks.sessions.drain(..) {
            if let Some(known) = self.sessions.get_mut(session)
                && std::mem::take(&mut known.marked)
            {
                let sandbox = known.entry.map(|entry| self.entries[entry].id);
                let record = known.record(sandbox);
                self.out.journal.push(JournalEntry::SessionPut(record));
            }
        }
        for entry in marks.entries.drain(..) {
            if let Some(sandbox) = self.entries.get_mut(entry)
                && sandbox.unmark()
            {
                let record = self.entries[entry].record(self.owner(entry));
                self.out.journal.push(JournalEntry::SandboxPut(record));
            }
        }
        self.marks = marks;
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

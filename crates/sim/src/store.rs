//! The simulated store: what was committed, which is all that a restarted kernel gets. It keeps the
//! indexes that checks need, changes only by whole transactions, and checks nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Deref;

use model::record::{JournalEntry, Owner, SandboxRecord};
use model::state::SandboxState;
use model::why::Ended;
use model::{InstanceId, LeaseId, Records, SandboxId, SessionId, TemplateName};

/// How many ended sandboxes are given to a restarted kernel.
const REMEMBERED_ENDS: usize = 64;

/// A change of one sandbox by one transaction, with its record before.
#[derive(Debug)]
pub(crate) struct Change {
    /// The sandbox.
    pub id: SandboxId,
    /// Its record before, if there was one.
    pub before: Option<SandboxRecord>,
}

/// What is committed. It reads like the records that it keeps.
#[derive(Debug)]
pub(crate) struct Store {
    records: Records,
    /// The sandbox that names an instance.
    pub by_instance: BTreeMap<InstanceId, SandboxId>,
    /// Which sandbox a lease has, unless that is being ended.
    pub of_lease: BTreeMap<LeaseId, SandboxId>,
    /// Sandboxes of a session that are not being ended; there should be at most one.
    pub of_session: BTreeMap<SessionId, Vec<SandboxId>>,
    /// Sandboxes that could be handed out.
    pub idle: BTreeMap<TemplateName, BTreeSet<SandboxId>>,
}

impl Default for Store {
    fn default() -> Self {
        Self {
            records: Records::new(REMEMBERED_ENDS),
            by_instance: BTreeMap::new(),
            of_lease: BTreeMap::new(),
            of_session: BTreeMap::new(),
            idle: BTreeMap::new(),
        }
    }
}

impl Deref for Store {
    type Target = Records;

    fn deref(&self) -> &Records {
        &self.records
    }
}

impl Store {
    /// Commits one transaction. Returns the changes and the ended sandboxes for the checks.
    pub(crate) fn commit(
        &mut self,
        entries: &mut Vec<JournalEntry>,
        changes: &mut Vec<Change>,
        ends: &mut Vec<Ended>,
    ) {
        for entry in entries.drain(..) {
            match &entry {
                JournalEntry::SandboxPut(record) => {
                    let before = self.sandboxes.get(&record.id).cloned();
                    if let Some(before) = &before {
                        self.unindex(before);
                    }
                    self.index(record);
                    changes.push(Change { id: record.id, before });
                }
                JournalEntry::SandboxRemoved(id) => {
                    if let Some(before) = self.sandboxes.get(id).cloned() {
                        self.unindex(&before);
                        changes.push(Change { id: *id, before: Some(before) });
                    }
                }
                JournalEntry::Ended(ended) => ends.push(ended.clone()),
                JournalEntry::SessionPut(_)
                | JournalEntry::SessionRemoved(_)
                | JournalEntry::PoolPut(_)
                | JournalEntry::PoolRemoved(_)
                | JournalEntry::WorkspaceDoomed(_)
                | JournalEntry::WorkspaceDeleted(_) => {}
            }
            self.records.write(entry);
        }
    }

    fn index(&mut self, record: &SandboxRecord) {
        if let Some(instance) = record.instance {
            self.by_instance.insert(instance, record.id);
        }
        if record.ending.is_some() {
            return;
        }
        match record.owner {
            Owner::Unowned => {
                if record.state == SandboxState::Warm {
                    self.idle.entry(record.template.clone()).or_default().insert(record.id);
                }
            }
            Owner::Lease(lease) => {
                self.of_lease.insert(lease, record.id);
            }
            Owner::Session(session) => self.of_session.entry(session).or_default().push(record.id),
        }
    }

    fn unindex(&mut self, record: &SandboxRecord) {
        if let Some(instance) = record.instance
            && self.by_instance.get(&instance) == Some(&record.id)
        {
            self.by_instance.remove(&instance);
        }
        match record.owner {
            Owner::Unowned => {
                if let Some(idle) = self.idle.get_mut(&record.template) {
                    idle.remove(&record.id);
                }
            }
            Owner::Lease(lease) => {
                if self.of_lease.get(&lease) == Some(&record.id) {
                    self.of_lease.remove(&lease);
                }
            }
            Owner::Session(session) => {
                if let Some(all) = self.of_session.get_mut(&session) {
                    all.retain(|id| *id != record.id);
                    if all.is_empty() {
                        self.of_session.remove(&session);
                    }
                }
            }
        }
    }

    /// The record that names an instance.
    pub(crate) fn record_of(&self, instance: InstanceId) -> Option<&SandboxRecord> {
        self.sandboxes.get(self.by_instance.get(&instance)?)
    }

    /// The live sandbox of a session, if it has one that is not being ended.
    pub(crate) fn live_of_session(&self, session: SessionId) -> Option<&SandboxRecord> {
        self.of_session
            .get(&session)?
            .iter()
            .filter_map(|id| self.sandboxes.get(id))
            .find(|record| record.instance.is_some())
    }
}

//! What was written down, as a store would keep it.

use std::collections::{BTreeMap, BTreeSet};

use model::record::{Journal, JournalEntry, PoolRecord, SandboxRecord, SessionRecord};
use model::why::Ended;
use model::{SandboxId, SessionId, TemplateName, WorkspaceId};

/// What was written down.
#[derive(Clone, Default)]
pub(super) struct Store {
    pub(super) pools: BTreeMap<TemplateName, PoolRecord>,
    pub(super) sandboxes: BTreeMap<SandboxId, SandboxRecord>,
    pub(super) sessions: BTreeMap<SessionId, SessionRecord>,
    pub(super) doomed: BTreeSet<WorkspaceId>,
    pub(super) ended: Vec<Ended>,
}

impl Store {
    pub(super) fn write(&mut self, entry: JournalEntry) {
        match entry {
            JournalEntry::SandboxPut(record) => {
                self.sandboxes.insert(record.id, record);
            }
            JournalEntry::SandboxRemoved(id) => {
                self.sandboxes.remove(&id);
            }
            JournalEntry::SessionPut(record) => {
                self.sessions.insert(record.id, record);
            }
            JournalEntry::SessionRemoved(id) => {
                self.sessions.remove(&id);
            }
            JournalEntry::PoolPut(record) => {
                self.pools.insert(record.template.name.clone(), record);
            }
            JournalEntry::PoolRemoved(name) => {
                self.pools.remove(&name);
            }
            JournalEntry::WorkspaceDoomed(id) => {
                self.doomed.insert(id);
            }
            JournalEntry::WorkspaceDeleted(id) => {
                self.doomed.remove(&id);
            }
            JournalEntry::Ended(ended) => self.ended.push(ended),
        }
    }

    pub(super) fn journal(&self) -> Journal {
        Journal {
            pools: self.pools.values().cloned().collect(),
            sandboxes: self.sandboxes.values().cloned().collect(),
            sessions: self.sessions.values().cloned().collect(),
            doomed_workspaces: self.doomed.iter().copied().collect(),
            ended: self.ended.clone(),
        }
    }
}

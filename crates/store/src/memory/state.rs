//! What would be on a disk. It changes by whole batches.

use std::collections::{BTreeMap, VecDeque};

use model::record::JournalEntry;
use model::why::Ended;
use model::{
    Document, DocumentChange, KeyId, KeyRecord, Records, SecretName, SecretOwner, SecretRecord,
    StoredEvent, UsageRecord,
};

use super::processes::Processes;
use super::turns::Turns;
use crate::contract::{Batch, EventPage, EventQuery, Loaded};
use crate::event_shares::EventShares;
use crate::retention::Retention;

#[derive(Debug)]
pub(super) struct StoredState {
    retention: Retention,
    pub(super) records: Records,
    /// In the order of their numbers.
    events: VecDeque<StoredEvent>,
    pub(super) event_shares: EventShares,
    last_event: u64,
    /// Those of the last batch that had some.
    last_ends: Vec<Ended>,
    pub(super) keys: BTreeMap<KeyId, KeyRecord>,
    pub(super) usage: BTreeMap<KeyId, UsageRecord>,
    /// By kind, key and name.
    pub(super) documents: BTreeMap<(String, KeyId, String), Document>,
    pub(super) secrets: BTreeMap<(SecretOwner, SecretName), SecretRecord>,
    pub(super) turns: Turns,
    pub(super) processes: Processes,
    pub(super) commits: u64,
}

impl StoredState {
    pub(super) fn new(retention: Retention) -> Self {
        Self {
            retention,
            records: Records::new(retention.ends as usize),
            events: VecDeque::new(),
            event_shares: EventShares::default(),
            last_event: 0,
            last_ends: Vec::new(),
            keys: BTreeMap::new(),
            usage: BTreeMap::new(),
            documents: BTreeMap::new(),
            secrets: BTreeMap::new(),
            turns: Turns::new(retention),
            processes: Processes::new(retention),
            commits: 0,
        }
    }

    pub(super) fn write(&mut self, batch: &Batch) {
        let has_ends = self.has_ends_of(batch);
        for entry in &batch.entries {
            if !(has_ends && matches!(entry, JournalEntry::Ended(_))) {
                self.records.write(entry.clone());
            }
        }
        if !has_ends && ends(batch).next().is_some() {
            self.last_ends = ends(batch).cloned().collect();
        }
        for stored in &batch.events {
            if stored.number > self.last_event {
                self.last_event = stored.number;
                self.events.push_back(stored.clone());
                self.event_shares.add(stored.tenant, 0);
                self.remove_events(stored.tenant, self.event_shares.above_limit(stored.tenant));
            }
        }
        while self.events.len() > self.retention.events_kept()
            && let Some((tenant, count)) = self.event_shares.largest()
        {
            let surplus = self.events.len() - self.retention.events_kept();
            self.remove_events(tenant, count.min(surplus as u64));
        }
        self.event_shares.settle();
        self.turns.write(&batch.turns);
        self.processes.write(&batch.processes);
        for change in &batch.documents {
            self.write_document(change.clone());
        }
        self.commits += 1;
    }

    /// Deletes the oldest events of a key.
    fn remove_events(&mut self, tenant: KeyId, count: u64) {
        let (mut left, mut number) = (count, 0);
        self.events.retain(|stored| {
            let goes = left > 0 && stored.tenant == tenant;
            if goes {
                left -= 1;
                number = stored.number;
            }
            !goes
        });
        self.event_shares.remove(tenant, count - left, number, 0);
    }

    pub(super) fn write_document(&mut self, change: DocumentChange) {
        match change {
            DocumentChange::Put(document) => {
                let Document { kind, tenant, name, .. } = document.clone();
                self.documents.insert((kind, tenant, name), document);
            }
            DocumentChange::Removed { kind, tenant, name } => {
                self.documents.remove(&(kind, tenant, name));
            }
        }
    }

    /// Whether all tombstones of the batch were stored when it was committed before.
    fn has_ends_of(&self, batch: &Batch) -> bool {
        match batch.events.last() {
            Some(last) => last.number <= self.last_event,
            None => ends(batch).eq(&self.last_ends),
        }
    }

    pub(super) fn load(&self) -> Loaded {
        let mut journal = self.records.journal();
        let surplus = journal.ended.len().saturating_sub(self.retention.remembered_ends as usize);
        journal.ended.drain(..surplus);
        Loaded { journal, last_event: self.last_event }
    }

    pub(super) fn events(&self, query: &EventQuery) -> EventPage {
        let deleted = self.event_shares.deleted_events().last(query.tenant);
        let oldest = self.events.front().map_or(self.last_event + 1, |kept| kept.number);
        let from = self.events.partition_point(|kept| kept.number <= query.after);
        let taken = self.events.range(from..).filter(|kept| query.takes(kept));
        EventPage {
            events: taken.take(query.limit as usize).cloned().collect(),
            oldest: query.tenant.map_or(oldest, |_| oldest.max(deleted + 1)),
            deleted,
            last: self.last_event,
        }
    }
}

fn ends(batch: &Batch) -> impl Iterator<Item = &Ended> {
    batch.entries.iter().filter_map(|entry| match entry {
        JournalEntry::Ended(ended) => Some(ended),
        JournalEntry::SandboxPut(_)
        | JournalEntry::SandboxRemoved(_)
        | JournalEntry::SessionPut(_)
        | JournalEntry::SessionRemoved(_)
        | JournalEntry::PoolPut(_)
        | JournalEntry::PoolRemoved(_)
        | JournalEntry::WorkspaceDoomed(_)
        | JournalEntry::WorkspaceDeleted(_) => None,
    })
}

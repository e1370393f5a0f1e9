//! What would be on a disk. It changes by whole batches.

use std::collections::{BTreeMap, VecDeque};

use model::{KeyId, KeyRecord, Records, StoredEvent};

use crate::contract::{Batch, EventPage, EventQuery, Loaded};
use crate::retention::Retention;

#[derive(Debug)]
pub(super) struct Kept {
    retention: Retention,
    pub(super) records: Records,
    /// In the order of their numbers.
    events: VecDeque<StoredEvent>,
    last_event: u64,
    pub(super) keys: BTreeMap<KeyId, KeyRecord>,
    pub(super) commits: u64,
}

impl Kept {
    pub(super) fn new(retention: Retention) -> Self {
        Self {
            retention,
            records: Records::new(retention.ends as usize),
            events: VecDeque::new(),
            last_event: 0,
            keys: BTreeMap::new(),
            commits: 0,
        }
    }

    pub(super) fn write(&mut self, batch: &Batch) {
        for entry in &batch.entries {
            self.records.write(entry.clone());
        }
        for stored in &batch.events {
            self.append(stored.clone());
        }
        let surplus = self.events.len().saturating_sub(self.retention.events_kept());
        self.events.drain(..surplus);
        self.commits += 1;
    }

    fn append(&mut self, stored: StoredEvent) {
        if stored.number > self.last_event {
            self.last_event = stored.number;
            self.events.push_back(stored);
            return;
        }
        match self.events.binary_search_by_key(&stored.number, |kept| kept.number) {
            Ok(at) => self.events[at] = stored,
            Err(at) => self.events.insert(at, stored),
        }
    }

    pub(super) fn load(&self) -> Loaded {
        let mut journal = self.records.journal();
        let surplus = journal.ended.len().saturating_sub(self.retention.remembered_ends as usize);
        journal.ended.drain(..surplus);
        Loaded { journal, last_event: self.last_event }
    }

    pub(super) fn events(&self, query: &EventQuery) -> EventPage {
        let from = self.events.partition_point(|kept| kept.number <= query.after);
        let taken = self.events.range(from..).filter(|kept| query.takes(kept));
        EventPage {
            events: taken.take(query.limit as usize).cloned().collect(),
            oldest: self.events.front().map_or(self.last_event + 1, |kept| kept.number),
            last: self.last_event,
        }
    }
}

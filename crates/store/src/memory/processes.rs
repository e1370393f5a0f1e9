//! Processes in memory: by sandbox and number, and by the time of their end.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use model::process::{ProcessChange, ProcessRecord};
use model::{KeyId, SandboxId, Wall};

use crate::contract::{ProcessKey, ProcessesQuery};
use crate::processes::{latest, process_bytes};
use crate::retention::Retention;
use crate::retention_selection::{Next, RetentionSelection, Shares, Tally};
use crate::turns::{PAGE_BYTES, text_bytes};

/// A process by its sandbox and its number there.
type Place = (SandboxId, u64);

/// All stored processes.
#[derive(Debug)]
pub(crate) struct Processes {
    retention: Retention,
    all: BTreeMap<Place, StoredProcess>,
    unfinished: BTreeSet<Place>,
    /// Ended ones, in the order of their ends.
    over: BTreeSet<(Wall, Place)>,
    over_of: BTreeMap<KeyId, BTreeSet<(Wall, Place)>>,
    shares: Shares,
}

#[derive(Debug)]
struct StoredProcess {
    record: ProcessRecord,
    log: Option<Arc<[u8]>>,
}

impl StoredProcess {
    fn share(&self) -> Tally {
        let log_bytes = self.log.as_ref().map_or(0, |log| log.len() as u64);
        Tally::one(process_bytes(&self.record, log_bytes))
    }
}

impl Processes {
    pub(crate) fn new(retention: Retention) -> Self {
        Self {
            retention,
            all: BTreeMap::new(),
            unfinished: BTreeSet::new(),
            over: BTreeSet::new(),
            over_of: BTreeMap::new(),
            shares: Shares::default(),
        }
    }

    pub(crate) fn write(&mut self, changes: &[ProcessChange]) {
        if changes.is_empty() {
            return;
        }
        let mut ended = 0;
        for change in changes {
            match change {
                ProcessChange::Put { record, log } => {
                    ended += u64::from(record.end.is_some());
                    self.put(ProcessRecord::clone(record), log.clone());
                }
                ProcessChange::Removed { sandbox, number } => {
                    self.remove((*sandbox, *number));
                }
            }
        }
        self.delete_surplus(RetentionSelection::new(
            self.retention.process_bounds(),
            latest(changes),
            ended,
        ));
        self.shares.settle();
    }

    fn put(&mut self, record: ProcessRecord, log: Option<Arc<[u8]>>) {
        let place = (record.sandbox, record.number);
        let before = self.remove(place);
        let log = log.or_else(|| before.and_then(|kept| kept.log));
        let kept = StoredProcess { record, log };
        match &kept.record.end {
            Some(end) => {
                let (at, tenant) = (end.at, kept.record.tenant);
                self.over.insert((at, place));
                self.over_of.entry(tenant).or_default().insert((at, place));
                self.shares.add(tenant, kept.share());
            }
            None => drop(self.unfinished.insert(place)),
        }
        self.all.insert(place, kept);
    }

    fn remove(&mut self, place: Place) -> Option<StoredProcess> {
        let kept = self.all.remove(&place)?;
        self.unfinished.remove(&place);
        if let Some(end) = &kept.record.end {
            let tenant = kept.record.tenant;
            self.over.remove(&(end.at, place));
            if let Some(left) = self.over_of.get_mut(&tenant) {
                left.remove(&(end.at, place));
                if left.is_empty() {
                    self.over_of.remove(&tenant);
                }
            }
            self.shares.remove(tenant, kept.share());
        }
        Some(kept)
    }

    fn delete_surplus(&mut self, mut selection: RetentionSelection) {
        while let Some(next) = selection.next(&self.shares) {
            let first = match next {
                Next::Of(tenant) => self.over_of.get(&tenant).and_then(BTreeSet::first),
                Next::EndedBefore(moment) => self.over.first().filter(|(at, _)| *at < moment),
            };
            let Some(&(_, place)) = first else { return };
            self.remove(place);
        }
    }

    pub(crate) fn process(&self, key: &ProcessKey) -> Option<ProcessRecord> {
        let of_sandbox = self.all.range((key.sandbox, 0)..=(key.sandbox, u64::MAX));
        let mut found = of_sandbox.rev().map(|(_, kept)| &kept.record);
        found.find(|record| key.takes(record)).cloned()
    }

    pub(crate) fn processes(&self, query: &ProcessesQuery) -> Vec<ProcessRecord> {
        let before = (query.sandbox, query.before.unwrap_or(u64::MAX));
        let of_sandbox = self.all.range((query.sandbox, 0)..before);
        let mut bytes = 0;
        let fits = of_sandbox.rev().take(query.limit as usize).take_while(|(_, kept)| {
            let room = bytes < PAGE_BYTES as u64;
            bytes += text_bytes(&kept.record);
            room
        });
        fits.map(|(_, kept)| kept.record.clone()).collect()
    }

    pub(crate) fn log(&self, sandbox: SandboxId, number: u64) -> Option<Vec<u8>> {
        self.all.get(&(sandbox, number))?.log.as_ref().map(|log| log.to_vec())
    }

    pub(crate) fn unfinished(&self, limit: u32) -> Vec<ProcessRecord> {
        let places = self.unfinished.iter().take(limit as usize);
        places.filter_map(|place| self.all.get(place)).map(|kept| kept.record.clone()).collect()
    }
}

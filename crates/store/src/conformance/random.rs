//! Random batches, restarts in between: after every step a store has what the model has.

use std::sync::Arc;

use model::record::JournalEntry;
use model::{Records, StoredEvent};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};

use super::material::{
    self, ended, event, key_id, name, pool, sandbox, sandbox_id, session, session_id, workspace_id,
};
use super::{RETENTION, Subject, block_on, loaded, page};
use crate::contract::{Batch, EventQuery, Store};

/// Few enough that they meet again.
const IDS: u8 = 6;

/// Of events in one batch.
const MOST_EVENTS: usize = 7;

#[derive(Debug, Clone)]
enum Step {
    /// A batch: changes, and events by whose they are.
    Commit(Vec<JournalEntry>, Vec<u8>),
    /// The last batch once more.
    Again,
    /// A key.
    Key(u8, u8),
    /// A restart, in order or not.
    Restart { in_order: bool },
}

fn entry() -> impl Strategy<Value = JournalEntry> {
    (0..14_u8, 0..IDS, 0..1_000_u32).prop_map(|(kind, id, n)| match kind {
        0..=3 => JournalEntry::SandboxPut(sandbox(id, n)),
        4..=5 => JournalEntry::SandboxRemoved(sandbox_id(id)),
        6 => JournalEntry::SessionPut(session(id, n)),
        7 => JournalEntry::SessionRemoved(session_id(id)),
        8 => JournalEntry::PoolPut(pool(id, n)),
        9 => JournalEntry::PoolRemoved(name(id)),
        10 => JournalEntry::WorkspaceDoomed(workspace_id(id)),
        11 => JournalEntry::WorkspaceDeleted(workspace_id(id)),
        _ => JournalEntry::Ended(ended(id, n)),
    })
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        12 => (vec(entry(), 0..12), vec(0..IDS, 0..=MOST_EVENTS))
            .prop_map(|(entries, events)| Step::Commit(entries, events)),
        1 => Just(Step::Again),
        1 => (0..3_u8, any::<u8>()).prop_map(|(id, n)| Step::Key(id, n)),
        2 => any::<bool>().prop_map(|in_order| Step::Restart { in_order }),
    ]
}

struct Model {
    records: Records,
    events: Vec<StoredEvent>,
    keys: std::collections::BTreeMap<model::KeyId, model::KeyRecord>,
    last_batch: Batch,
}

impl Model {
    fn write(&mut self, batch: &Batch) {
        for entry in &batch.entries {
            self.records.write(entry.clone());
        }
        for stored in &batch.events {
            self.events.push(stored.clone());
        }
        self.last_batch = batch.clone();
    }

    async fn agrees_with(&self, store: &dyn Store) {
        let loaded = loaded(store).await;
        let mut expected = self.records.journal();
        let surplus = expected.ended.len().saturating_sub(RETENTION.remembered_ends as usize);
        expected.ended.drain(..surplus);
        assert_eq!(loaded.journal, expected);
        assert_eq!(loaded.last_event, self.events.len() as u64);

        let all = page(store, EventQuery::after(0, u32::MAX)).await;
        let forgotten = all.oldest as usize - 1;
        assert_eq!(all.events, self.events[forgotten..]);
        assert!(all.events.len() >= self.events.len().min(RETENTION.events as usize));
        let most = u64::from(RETENTION.events) + RETENTION.slack_events() + MOST_EVENTS as u64;
        assert!(all.events.len() as u64 <= most, "{} events are kept", all.events.len());
        for id in 0..IDS {
            for query in [
                EventQuery { sandbox: Some(sandbox_id(id)), ..EventQuery::after(0, 5) },
                EventQuery { session: Some(session_id(id)), ..EventQuery::after(0, 5) },
                EventQuery { tenant: Some(key_id(id)), ..EventQuery::after(all.last / 2, 5) },
            ] {
                let taken = self.events[forgotten..].iter().filter(|stored| query.takes(stored));
                let expected: Vec<_> = taken.take(5).cloned().collect();
                assert_eq!(page(store, query).await.events, expected, "{query:?}");
            }
            let of = |ended: &&model::why::Ended| ended.sandbox == sandbox_id(id);
            if let Some(expected) = self.records.ended.iter().rev().find(of) {
                let found = store.ended(sandbox_id(id)).await.expect("read");
                assert_eq!(found.as_ref(), Some(expected));
            }
        }
        let keys: Vec<_> = self.keys.values().cloned().collect();
        assert_eq!(store.keys().await, Ok(keys));
    }
}

async fn play(on: &dyn Subject, steps: Vec<Step>) {
    let mut store: Arc<dyn Store> = on.open(RETENTION);
    let mut model = Model {
        records: Records::new(RETENTION.ends as usize),
        events: Vec::new(),
        keys: std::collections::BTreeMap::new(),
        last_batch: Batch::default(),
    };
    for step in steps {
        match step {
            Step::Commit(entries, events) => {
                let number = model.events.len() as u64 + 1;
                let events = (number..).zip(events).map(|(number, id)| event(number, id));
                let batch = Batch { entries, events: events.collect() };
                store.commit(&batch).await.expect("written");
                model.write(&batch);
            }
            // It was written: nothing changes.
            Step::Again => store.commit(&model.last_batch).await.expect("written"),
            Step::Key(id, n) => {
                let key = material::key(id, n);
                store.put_key(&key).await.expect("written");
                model.keys.insert(key.id, key);
            }
            Step::Restart { in_order } => {
                if in_order {
                    store.close().await.expect("closed");
                }
                drop(store);
                store = on.open(RETENTION);
            }
        }
        model.agrees_with(&*store).await;
    }
}

pub(super) fn random_batches_agree_with_the_model(fresh: &dyn Fn() -> Box<dyn Subject>) {
    let config = Config { cases: 40, failure_persistence: None, ..Config::default() };
    let played = TestRunner::new(config).run(&vec(step(), 1..25), |steps| {
        block_on(play(&*fresh(), steps));
        Ok(())
    });
    if let Err(failure) = played {
        panic!("{failure}");
    }
}

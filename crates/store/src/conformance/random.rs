//! Random batches with restarts in between: after every step a store has what the model has.

use std::sync::Arc;

use model::record::JournalEntry;
use model::turn::TurnChange;
use model::{Records, StoredEvent};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};

use super::fixtures::{
    self, ended, event, key_id, name, pieces, pool, sandbox, sandbox_id, session, session_id,
    turn_end, turn_id, turn_start, workspace_id,
};
use super::{RETENTION, Subject, block_on, loaded, page};
use crate::contract::{Batch, EventPage, EventQuery, Store, TurnQuery};
use crate::memory::turns::Turns;
use crate::retention::Retention;

/// Few enough that ids repeat.
const IDS: u8 = 6;

/// Turns come and go, and some come again.
const TURNS: u8 = 60;

/// So little that turns are deleted for their size, too.
const LIMITS: Retention = Retention { turn_bytes: 6_000, ..RETENTION };

/// Events in one batch.
const MOST_EVENTS: usize = 7;

#[derive(Debug, Clone)]
enum Step {
    /// A batch: changes, events by owner, and changes of turns.
    Commit(Vec<JournalEntry>, Vec<u8>, Vec<Talk>),
    /// The last batch once more.
    Again,
    /// A key.
    Key(u8, u8),
    /// A restart, in order or not.
    Restart { in_order: bool },
}

/// A change of a turn: which, and what is open until it is known when it comes.
#[derive(Debug, Clone, Copy)]
struct Talk {
    kind: u8,
    turn: u8,
    of: u8,
    many: u8,
}

fn talk() -> impl Strategy<Value = Talk> {
    (0..16_u8, 0..TURNS, 0..IDS, 0..5_u8).prop_map(|(kind, turn, of, many)| Talk {
        kind,
        turn,
        of,
        many,
    })
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
        12 => (vec(entry(), 0..12), vec(0..IDS, 0..=MOST_EVENTS), vec(talk(), 0..8))
            .prop_map(|(entries, events, turns)| Step::Commit(entries, events, turns)),
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
    /// As the store in memory has them: the other store is compared with it.
    turns: Turns,
    moment: u64,
}

impl Model {
    fn write(&mut self, batch: &Batch) {
        for entry in &batch.entries {
            self.records.write(entry.clone());
        }
        for stored in &batch.events {
            self.events.push(stored.clone());
        }
        self.turns.write(&batch.turns);
        self.last_batch = batch.clone();
    }

    /// A change of a turn, at a moment after all others.
    fn talk(&mut self, talk: Talk) -> TurnChange {
        self.moment += 1;
        let Talk { kind, turn, of, many } = talk;
        let (turn, at) = (turn_id(turn.into()), self.moment);
        match kind {
            0..=4 => TurnChange::Put(fixtures::turn(talk.turn.into(), of)),
            5..=7 => {
                let from = u64::from(of) + 1;
                TurnChange::Pieces { turn, pieces: pieces(from..=from + u64::from(many)) }
            }
            8 => TurnChange::Started { turn, start: turn_start(at) },
            9..=14 => TurnChange::Ended { turn, end: turn_end(at, u64::from(many) * 7) },
            _ => TurnChange::Forked { from: session_id(of), to: session_id(many) },
        }
    }

    fn keeps_the_newest_of_each_key(&self, all: &EventPage) {
        assert!(all.events.is_sorted_by_key(|stored| stored.number));
        for id in 0..IDS {
            let of = |stored: &&StoredEvent| stored.tenant == key_id(id);
            let kept: Vec<_> = all.events.iter().filter(of).collect();
            let written: Vec<_> = self.events.iter().filter(of).collect();
            assert_eq!(kept, written[written.len() - kept.len()..]);
        }
        let gone = |stored: &&StoredEvent| !all.events.contains(stored);
        let gone = self.events.iter().rev().find(gone).map_or(0, |stored| stored.number);
        assert!(all.deleted >= gone, "{} of {gone}", all.deleted);
    }

    async fn agrees_with(&self, store: &dyn Store) {
        let loaded = loaded(store).await;
        let mut expected = self.records.journal();
        let surplus = expected.ended.len().saturating_sub(RETENTION.remembered_ends as usize);
        expected.ended.drain(..surplus);
        assert_eq!(loaded.journal, expected);
        assert_eq!(loaded.last_event, self.events.len() as u64);

        let all = page(store, EventQuery::after(0, u32::MAX)).await;
        self.keeps_the_newest_of_each_key(&all);
        assert!(all.events.len() >= self.events.len().min(RETENTION.events as usize));
        let most = u64::from(RETENTION.events) + RETENTION.slack_events() + MOST_EVENTS as u64;
        assert!(all.events.len() as u64 <= most, "{} events are kept", all.events.len());
        for id in 0..IDS {
            for query in [
                EventQuery { sandbox: Some(sandbox_id(id)), ..EventQuery::after(0, 5) },
                EventQuery { session: Some(session_id(id)), ..EventQuery::after(0, 5) },
                EventQuery { tenant: Some(key_id(id)), ..EventQuery::after(all.last / 2, 5) },
            ] {
                let taken = all.events.iter().filter(|stored| query.takes(stored));
                let expected: Vec<_> = taken.take(5).cloned().collect();
                assert_eq!(page(store, query).await.events, expected, "{query:?}");
            }
            let query = TurnQuery { session: session_id(id), after: 0, limit: u32::MAX };
            let turns = self.turns.turns(&query);
            assert_eq!(store.turns(&query).await.as_ref(), Ok(&turns));
            for turn in turns {
                let given = store.pieces(turn.id, 1, 3).await;
                assert_eq!(given, Ok(self.turns.pieces(turn.id, 1, 3)), "{turn:?}");
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
    let mut store: Arc<dyn Store> = on.open(LIMITS);
    let mut model = Model {
        records: Records::new(RETENTION.ends as usize),
        events: Vec::new(),
        keys: std::collections::BTreeMap::new(),
        last_batch: Batch::default(),
        turns: Turns::new(LIMITS),
        moment: 0,
    };
    for step in steps {
        match step {
            Step::Commit(entries, events, turns) => {
                let number = model.events.len() as u64 + 1;
                let events = (number..).zip(events).map(|(number, id)| event(number, id));
                let turns = turns.into_iter().map(|talk| model.talk(talk)).collect();
                let batch = Batch { entries, events: events.collect(), turns, ..Batch::default() };
                store.commit(&batch).await.expect("written");
                model.write(&batch);
            }
            // It was written: nothing changes, except turns that retention deleted since.
            Step::Again => {
                store.commit(&model.last_batch).await.expect("written");
                model.turns.write(&model.last_batch.turns);
            }
            Step::Key(id, n) => {
                let key = fixtures::key(id, n);
                store.put_key(&key).await.expect("written");
                model.keys.insert(key.id, key);
            }
            Step::Restart { in_order } => {
                if in_order {
                    store.close().await.expect("closed");
                }
                drop(store);
                store = on.open(LIMITS);
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

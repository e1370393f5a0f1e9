//! The history: in order, by owner, and bounded.

use std::collections::BTreeSet;

use model::StoredEvent;
use model::record::JournalEntry;

use super::fixtures::{changes, ended, event, events, key_id, sandbox_id, session_id, whole};
use super::{RETENTION, Subject, loaded, page, reopened};
use crate::contract::{Batch, EventPage, EventQuery};

fn numbers(page: &EventPage) -> Vec<u64> {
    page.events.iter().map(|stored| stored.number).collect()
}

pub(super) async fn events_are_read_in_pages(on: &dyn Subject) {
    let store = on.open(RETENTION);
    let nothing = EventPage { events: Vec::new(), oldest: 1, deleted: 0, last: 0 };
    assert_eq!(page(&*store, EventQuery::after(0, 10)).await, nothing);
    assert!(!nothing.missed_events_since(0), "a reader of nothing missed nothing");
    store.commit(&events(1..=7)).await.expect("written");
    store.commit(&events(8..=20)).await.expect("written");
    for (after, limit, expected) in [
        (0, 100, (1..=20).collect()),
        (0, 3, vec![1, 2, 3]),
        (6, 3, vec![7, 8, 9]),
        (19, 3, vec![20]),
        (20, 3, vec![]),
        (u64::MAX, 3, vec![]),
        (0, 0, vec![]),
    ] {
        let page = page(&*store, EventQuery::after(after, limit)).await;
        assert_eq!((numbers(&page), page.oldest, page.last), (expected, 1, 20), "{after} {limit}");
    }
    let all = page(&*store, EventQuery::after(0, u32::MAX)).await;
    assert_eq!([&events(1..=7).events[..], &events(8..=20).events].concat(), all.events);
    assert_eq!(page(&*reopened(on, store).await, EventQuery::after(0, 100)).await, all);
}

pub(super) async fn events_are_found_by_owner(on: &dyn Subject) {
    let store = on.open(RETENTION);
    let written = events(1..=40);
    store.commit(&written).await.expect("written");
    let ids = [None, Some(0), Some(1), Some(2), Some(3), Some(4), Some(5), Some(9)];
    let mut answers = BTreeSet::new();
    for (sandbox, session) in ids.iter().flat_map(|a| ids.iter().map(move |b| (*a, *b))) {
        for tenant in [None, Some(0), Some(1), Some(2), Some(9)] {
            for (after, limit) in [(0, 100), (17, 100), (0, 2)] {
                let query = EventQuery {
                    sandbox: sandbox.map(sandbox_id),
                    session: session.map(session_id),
                    tenant: tenant.map(key_id),
                    ..EventQuery::after(after, limit)
                };
                let taken = written.events.iter().filter(|stored| query.takes(stored));
                let expected: Vec<_> = taken.take(limit as usize).cloned().collect();
                let page = page(&*store, query).await;
                assert_eq!(page.events, expected, "{query:?}");
                assert_eq!((page.oldest, page.last), (1, 40), "of all keys");
                answers.insert(expected.len());
            }
        }
    }
    assert!(answers.len() > 5, "the queries differ: {answers:?}");
}

pub(super) async fn old_events_are_deleted(on: &dyn Subject) {
    let store = on.open(RETENTION);
    let kept = u64::from(RETENTION.events);
    for last in 1..=300 {
        store.commit(&events(last..=last)).await.expect("written");
        let page = page(&*store, EventQuery::after(0, 1_000)).await;
        let there = page.events.len() as u64;
        assert!(there >= kept.min(last), "deleted too early: {there} of {last}");
        assert!(there <= kept + RETENTION.slack_events(), "{there} are kept");
        assert_eq!((page.oldest, page.last), (page.events[0].number, last));
        assert!(!page.missed_events_since(last));
        assert_eq!(page.missed_events_since(0), there < last);
        assert!(page.deleted + kept / 2 <= last.max(kept / 2), "what is new stays: {page:?}");
    }
    // Far more than the limit, in one batch.
    store.commit(&events(301..=600)).await.expect("written");
    // Events of the last batch stay until another one comes.
    for last in 601..=600 + kept {
        store.commit(&events(last..=last)).await.expect("written");
    }
    let page = page(&*reopened(on, store).await, EventQuery::after(0, 1_000)).await;
    assert!(page.events.len() as u64 <= kept + RETENTION.slack_events(), "{}", page.events.len());
    assert_eq!(page.last, 600 + kept);
}

fn of_key(number: u64, key: u8) -> StoredEvent {
    StoredEvent { tenant: key_id(key), ..event(number, 1) }
}

pub(super) async fn events_of_one_key_do_not_displace_those_of_another(on: &dyn Subject) {
    const QUIET: u8 = 1;
    const LOUD: u8 = 2;
    let store = on.open(RETENTION);
    let kept = u64::from(RETENTION.events);
    let batch = |events: Vec<StoredEvent>| Batch { events, ..Batch::default() };
    let mut number = 0;
    let mut next = |key| {
        number += 1;
        of_key(number, key)
    };
    let quiet = [next(QUIET), next(LOUD), next(QUIET), next(LOUD)];
    store.commit(&batch(quiet.to_vec())).await.expect("written");
    for _ in 0..5 * kept {
        store.commit(&batch(vec![next(LOUD), next(LOUD)])).await.expect("written");
    }
    let late = next(QUIET);
    store.commit(&batch(vec![late.clone()])).await.expect("written");
    let of = |key| EventQuery { tenant: Some(key_id(key)), ..EventQuery::after(0, 1_000) };
    let mut store = store;
    for _ in 0..2 {
        let page_of_quiet = page(&*store, of(QUIET)).await;
        assert_eq!(page_of_quiet.events, [quiet[0].clone(), quiet[2].clone(), late.clone()]);
        assert!(!page_of_quiet.missed_events_since(0), "nothing of it was deleted");
        let loud = page(&*store, of(LOUD)).await;
        assert!(loud.missed_events_since(0) && loud.missed_events_since(loud.oldest - 2));
        assert!(!loud.missed_events_since(loud.events[0].number), "what is left has no gap");
        let all = page(&*store, EventQuery::after(0, 1_000)).await;
        assert!(all.events.len() as u64 <= kept + RETENTION.slack_events() + 2);
        assert!(all.events.is_sorted_by_key(|stored| stored.number));
        assert_eq!((all.oldest, all.deleted), (1, loud.deleted), "older ones of others are there");
        let counts = store.event_counts().await.expect("read");
        assert_eq!(counts[&key_id(QUIET)], 3);
        assert_eq!(counts[&key_id(LOUD)], loud.events.len() as u64);
        store = reopened(on, store).await;
    }
}

pub(super) async fn events_of_a_key_have_a_limit(on: &dyn Subject) {
    let store = on.open(RETENTION);
    store.limit_events(key_id(2), Some(5)).await.expect("limited");
    for number in 1..=20 {
        let events = vec![of_key(number, 1 + (number % 2) as u8)];
        store.commit(&Batch { events, ..Batch::default() }).await.expect("written");
    }
    let counts = store.event_counts().await.expect("read");
    assert_eq!(counts[&key_id(1)], 10);
    assert!((5..=7).contains(&counts[&key_id(2)]), "{counts:?}");
    store.limit_events(key_id(2), None).await.expect("unlimited");
    for number in 21..=40 {
        let events = vec![of_key(number, 2)];
        store.commit(&Batch { events, ..Batch::default() }).await.expect("written");
    }
    assert!(store.event_counts().await.expect("read")[&key_id(2)] >= 20);
}

pub(super) async fn batch_may_be_committed_again(on: &dyn Subject) {
    let store = on.open(RETENTION);
    store.commit(&whole(1)).await.expect("written");
    store.commit(&whole(2)).await.expect("written");
    let once = loaded(&*store).await;
    store.commit(&whole(2)).await.expect("written again");
    assert_eq!(loaded(&*store).await, once);
    let all = page(&*store, EventQuery::after(0, 10)).await;
    assert_eq!(all.events, [event(1, 1), event(2, 1)]);
    let store = reopened(on, store).await;
    store.commit(&whole(2)).await.expect("written again");
    assert_eq!(loaded(&*store).await, once);
    assert_eq!(page(&*store, EventQuery::after(0, 10)).await, all);
    // Tombstones have no numbers of their own.
    let ends = changes([JournalEntry::Ended(ended(3, 3)), JournalEntry::Ended(ended(4, 4))]);
    store.commit(&ends).await.expect("written");
    let once = loaded(&*store).await;
    assert_eq!(once.journal.ended, [ended(2, 1), ended(2, 2), ended(3, 3), ended(4, 4)]);
    store.commit(&ends).await.expect("written again");
    assert_eq!(loaded(&*store).await, once);
}

pub(super) async fn event_numbers_continue_after_a_restart(on: &dyn Subject) {
    let mut store = on.open(RETENTION);
    for last in [5, 60, 61, 200] {
        let first = loaded(&*store).await.last_event + 1;
        store.commit(&events(first..=last)).await.expect("written");
        store = reopened(on, store).await;
        assert_eq!(loaded(&*store).await.last_event, last);
    }
}

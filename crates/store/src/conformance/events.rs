//! The history: in order, by owner, and bounded.

use std::collections::BTreeSet;

use model::record::JournalEntry;

use super::fixtures::{changes, ended, event, events, key_id, sandbox_id, session_id, whole};
use super::{RETENTION, Subject, loaded, page, reopened};
use crate::contract::{EventPage, EventQuery};

fn numbers(page: &EventPage) -> Vec<u64> {
    page.events.iter().map(|stored| stored.number).collect()
}

pub(super) async fn events_are_read_in_pages(on: &dyn Subject) {
    let store = on.open(RETENTION);
    let nothing = EventPage { events: Vec::new(), oldest: 1, last: 0 };
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
        assert!(numbers(&page).into_iter().eq(last + 1 - there..=last), "{page:?}");
        assert_eq!((page.oldest, page.last), (last + 1 - there, last));
        assert!(!page.missed_events_since(page.oldest - 1));
        assert_eq!(page.missed_events_since(0), page.oldest > 1);
    }
    // Far more than the limit, in one batch.
    store.commit(&events(301..=600)).await.expect("written");
    // Events of one batch may go together, once that leaves enough.
    for last in 601..=600 + kept {
        store.commit(&events(last..=last)).await.expect("written");
    }
    let page = page(&*reopened(on, store).await, EventQuery::after(0, 1_000)).await;
    assert!(page.events.len() as u64 <= kept + RETENTION.slack_events(), "{}", page.events.len());
    assert_eq!(page.last, 600 + kept);
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

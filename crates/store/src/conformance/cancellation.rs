//! Any future may be dropped at any await: what it was writing is stored completely or not at all,
//! and never appears after later writes.

use std::future::poll_fn;
use std::pin::pin;
use std::task::Poll;

use super::fixtures::{document, ended, sandbox, session, turn_end, turn_id, whole};
use super::{RETENTION, Subject, loaded, page, reopened};
use crate::contract::{DocumentQuery, EventQuery, Loaded, Store};

/// Polls a future so many times, then drops it.
pub(super) async fn cut<T>(polls: u32, future: impl Future<Output = T>) -> Option<T> {
    let mut future = pin!(future);
    for _ in 0..polls {
        let polled = poll_fn(|context| Poll::Ready(future.as_mut().poll(context))).await;
        if let Poll::Ready(done) = polled {
            return Some(done);
        }
        tokio::task::yield_now().await;
    }
    None
}

/// All of what is stored is of one batch. Returns its number.
async fn whole_one(store: &dyn Store) -> u64 {
    let Loaded { journal, last_event } = loaded(store).await;
    let n = last_event as u32;
    if n > 0 {
        assert_eq!(journal.sandboxes, [sandbox(1, n)]);
        assert_eq!(journal.sessions, [session(1, n)]);
        assert_eq!(journal.ended.last(), Some(&ended(2, n)));
        let page = page(store, EventQuery::after(last_event - 1, 1)).await;
        assert_eq!(page.events, whole(last_event).events);
        let turn = store.turn(turn_id(last_event)).await.expect("read").expect("a turn");
        assert_eq!(turn.end, Some(turn_end(last_event, 1)));
        let documents = store.documents(&DocumentQuery::default()).await;
        assert_eq!(documents, Ok(vec![document(last_event)]));
    }
    assert_eq!(store.turn(turn_id(last_event + 1)).await, Ok(None));
    last_event
}

pub(super) async fn dropped_commits_are_whole_or_absent(on: &dyn Subject) {
    let store = on.open(RETENTION);
    for polls in 0..20 {
        let number = whole_one(&*store).await + 1;
        let done = cut(polls, store.commit(&whole(number))).await;
        let there = whole_one(&*store).await;
        match done {
            Some(done) => {
                done.expect("written");
                assert_eq!(there, number);
            }
            None => assert!(there == number || there == number - 1),
        }
    }
    let there = whole_one(&*store).await;
    assert_eq!(whole_one(&*reopened(on, store).await).await, there);
}

pub(super) async fn dropped_commits_never_come_later(on: &dyn Subject) {
    let store = on.open(RETENTION);
    for round in 1..=50 {
        let number = round * 2;
        let _ = cut((round % 3) as u32, store.commit(&whole(number - 1))).await;
        store.commit(&whole(number)).await.expect("written");
        assert_eq!(whole_one(&*store).await, number);
    }
    assert_eq!(whole_one(&*reopened(on, store).await).await, 100);
}

//! Injected faults happen as requested. The conformance suite tests what every store does.

use std::future::Future as _;
use std::pin::pin;
use std::task::{Context, Waker};

use model::lifecycle::SessionChange;
use model::{KeyId, LifecycleEvent, SessionId, StoredEvent, Wall};

use super::*;

fn batch(number: u64) -> Batch {
    let event = LifecycleEvent::SessionChanged {
        session: SessionId::from_u128(1),
        change: SessionChange::Created,
    };
    let stored = StoredEvent { number, at: Wall(number), tenant: KeyId::NIL, event };
    Batch { events: vec![stored], ..Batch::default() }
}

async fn last(store: &MemoryStore) -> u64 {
    store.load().await.expect("loaded").last_event
}

#[tokio::test]
async fn injected_faults_fail_as_many_commits_as_requested() {
    let store = MemoryStore::new(Retention::default());
    store.fail_commits(2, StoreErrorCode::DiskFull);
    store.fail_commits(0, StoreErrorCode::Corrupt);
    store.fail_commits(1, StoreErrorCode::Io);
    for code in [StoreErrorCode::DiskFull, StoreErrorCode::DiskFull, StoreErrorCode::Io] {
        assert_eq!(store.commit(&batch(1)).await.expect_err("a failure").code, code);
        assert_eq!((last(&store).await, store.commits()), (0, 0));
    }
    store.commit(&batch(1)).await.expect("the same batch, later");
    assert_eq!((last(&store).await, store.commits()), (1, 1));
}

#[tokio::test(start_paused = true)]
async fn injected_hang_holds_commits_until_they_are_released() {
    let store = MemoryStore::new(Retention::default());
    store.hang_commits();
    let (first, dropped) = (batch(1), batch(2));
    let mut commit = pin!(store.commit(&first));
    {
        let mut never = store.commit(&dropped);
        assert!(never.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
    }
    assert!(commit.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
    assert_eq!(last(&store).await, 0, "reading goes on");
    store.release_commits();
    commit.await.expect("written after the release");
    assert_eq!((last(&store).await, store.commits()), (1, 1), "a dropped commit is not stored");
}

#[tokio::test(start_paused = true)]
async fn injected_crash_loses_nothing_that_was_committed() {
    let store = MemoryStore::new(Retention::default());
    store.commit(&batch(1)).await.expect("written");
    store.hang_commits();
    let late = batch(2);
    let mut commit = pin!(store.commit(&late));
    assert!(commit.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
    let next = store.crash();
    assert_eq!(commit.await, Err(StoreError::closed()));
    store.release_commits();
    assert_eq!(store.load().await, Err(StoreError::closed()));
    assert_eq!(last(&next).await, 1);
    next.commit(&late).await.expect("the next store does not hang");
    assert_eq!(last(&next).await, 2);
}

#[tokio::test(start_paused = true)]
async fn injected_hang_lets_as_many_writes_pass_as_requested() {
    let store = MemoryStore::new(Retention::default());
    store.hang_after(2);
    let (first, second) = (batch(1), batch(2));
    store.commit(&first).await.expect("written");
    assert_eq!(store.remove_documents(&DocumentQuery::default()).await, Ok(0));
    let mut commit = pin!(store.commit(&second));
    assert!(commit.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
    assert_eq!(last(&store).await, 1);
    store.release_commits();
    commit.await.expect("written after the release");
    assert_eq!(last(&store).await, 2);
}

//! Tombstones of sandboxes: some for the kernel, more for queries.

use model::record::JournalEntry;
use model::why::Ended;

use super::fixtures::{changes, ended, sandbox_id};
use super::{RETENTION, Subject, loaded, reopened};

pub(super) async fn tombstones_are_stored_and_the_latest_loaded(on: &dyn Subject) {
    let mut store = on.open(RETENTION);
    for n in 0..30 {
        let end = JournalEntry::Ended(ended(n, n.into()));
        store.commit(&changes([end])).await.expect("written");
        let first = (n + 1).saturating_sub(RETENTION.remembered_ends as u8);
        let expected: Vec<_> = (first..=n).map(|n| ended(n, n.into())).collect();
        assert_eq!(loaded(&*store).await.journal.ended, expected);
        if n % 10 == 0 {
            store = reopened(on, store).await;
        }
        let kept = n.saturating_sub(RETENTION.ends as u8 - 1);
        for asked in kept..=n {
            let found = store.ended(sandbox_id(asked)).await.expect("read");
            assert_eq!(found, Some(ended(asked, asked.into())), "{asked} of {n}");
        }
    }
    for forgotten in 0..10 {
        assert_eq!(store.ended(sandbox_id(forgotten)).await, Ok(None), "{forgotten}");
    }
    let many: Vec<_> = (0..200).map(|n| JournalEntry::Ended(ended(n, n.into()))).collect();
    store.commit(&changes(many)).await.expect("written");
    assert_eq!(loaded(&*store).await.journal.ended[4], ended(199, 199));
    // Tombstones of one batch may go together, once that leaves enough.
    for n in 0..RETENTION.ends as u8 {
        let end = JournalEntry::Ended(ended(n, n.into()));
        store.commit(&changes([end])).await.expect("written");
    }
    assert_eq!(store.ended(sandbox_id(100)).await, Ok(None));
}

pub(super) async fn tombstone_of_the_last_end_counts(on: &dyn Subject) {
    let store = on.open(RETENTION);
    assert_eq!(store.ended(sandbox_id(1)).await, Ok(None));
    let ends = [ended(1, 1), ended(2, 1), ended(1, 2)].map(JournalEntry::Ended);
    store.commit(&changes(ends)).await.expect("written");
    assert_eq!(store.ended(sandbox_id(1)).await, Ok(Some(ended(1, 2))));
    assert_eq!(store.ended(sandbox_id(2)).await, Ok(Some(ended(2, 1))));
    assert_eq!(store.ended(sandbox_id(3)).await, Ok(None));
    // The tombstone of another sandbox may mention it.
    let other = Ended { detail: Some(sandbox_id(1).to_string().into()), ..ended(4, 1) };
    store.commit(&changes([JournalEntry::Ended(other)])).await.expect("written");
    assert_eq!(store.ended(sandbox_id(1)).await, Ok(Some(ended(1, 2))));
}

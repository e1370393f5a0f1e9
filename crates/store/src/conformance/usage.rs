//! What keys have used: totals that replace the ones before, and that nothing deletes.

use model::{KeyId, UsageRecord, Wall};

use super::{RETENTION, Subject, reopened};
use crate::contract::Store;

/// Totals of a key that differ in every number.
fn totals(key: u128, factor: u64) -> UsageRecord {
    UsageRecord {
        key: KeyId::from_u128(key),
        measured_at: Wall(factor),
        sandbox_ms: factor * 2,
        memory_mb_ms: factor * 3,
        cpu_us: factor.is_multiple_of(2).then_some(factor * 4),
        cpu_incomplete: factor.is_multiple_of(3),
        // More than any integer of SQLite.
        stored_byte_ms: u128::from(u64::MAX) * u128::from(factor),
    }
}

async fn stored(store: &dyn Store) -> Vec<UsageRecord> {
    store.usage().await.expect("usage")
}

pub(super) async fn usage_is_put_replaced_and_kept(on: &dyn Subject) {
    let store = on.open(RETENTION);
    assert_eq!(stored(&*store).await, []);
    store.put_usage(&[]).await.expect("nothing");
    store.put_usage(&[totals(2, 20), totals(1, 11)]).await.expect("put");
    assert_eq!(stored(&*store).await, [totals(1, 11), totals(2, 20)], "in the order of keys");
    for _ in 0..2 {
        // The same call twice counts nothing twice.
        store.put_usage(&[totals(1, 12), totals(9, 5)]).await.expect("replaced");
    }
    let all = [totals(1, 12), totals(2, 20), totals(9, 5)];
    assert_eq!(stored(&*store).await, all);
    let store = reopened(on, store).await;
    assert_eq!(stored(&*store).await, all);
    store.close().await.expect("closed");
    assert!(store.usage().await.is_err(), "a closed store");
    assert!(store.put_usage(&[totals(1, 13)]).await.is_err(), "a closed store");
}

pub(super) async fn usage_survives_a_crash(on: &dyn Subject) {
    let store = on.open(RETENTION);
    store.put_usage(&[totals(1, 6)]).await.expect("put");
    // It is not closed: the next opener counts as a start after `kill -9`.
    drop(store);
    let again = on.open(RETENTION);
    assert_eq!(stored(&*again).await, [totals(1, 6)]);
}

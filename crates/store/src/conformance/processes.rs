//! Processes: stored and replaced, found by their keys, and deleted by retention once they have
//! ended.

use std::sync::Arc;

use model::process::{ProcessChange, ProcessRecord};

use super::fixtures::{key_id, process, process_id, sandbox_id};
use super::{RETENTION, Subject, reopened};
use crate::contract::{Batch, ProcessBy, ProcessKey, ProcessesQuery, Store};
use crate::processes::process_bytes;
use crate::retention::Retention;

fn batch(processes: impl IntoIterator<Item = ProcessChange>) -> Batch {
    Batch { processes: processes.into_iter().collect(), ..Batch::default() }
}

fn put(record: ProcessRecord) -> ProcessChange {
    ProcessChange::Put { record: Arc::new(record), log: None }
}

fn removed(of: u8, number: u64) -> ProcessChange {
    ProcessChange::Removed { sandbox: sandbox_id(of), number }
}

async fn write(store: &dyn Store, changes: impl IntoIterator<Item = ProcessChange>) {
    store.commit(&batch(changes)).await.expect("written");
}

async fn all(store: &dyn Store, of: u8) -> Vec<ProcessRecord> {
    let query = ProcessesQuery { sandbox: sandbox_id(of), before: None, limit: u32::MAX };
    store.processes(&query).await.expect("processes")
}

async fn numbers(store: &dyn Store, of: u8) -> Vec<u64> {
    all(store, of).await.iter().map(|record| record.number).collect()
}

pub(super) async fn processes_are_put_replaced_and_found(on: &dyn Subject) {
    let store = on.open(RETENTION);
    assert_eq!(all(&*store, 1).await, []);
    let runs = process(1, 1, None);
    write(&*store, [put(runs.clone()), put(process(1, 2, Some(5))), put(process(2, 1, None))])
        .await;
    let later = ProcessRecord { name: runs.name.clone(), pid: runs.pid, ..process(1, 3, None) };
    write(&*store, [put(later.clone())]).await;
    let store = reopened(on, store).await;
    for (by, expected) in [
        (ProcessBy::Id(process_id(1, 1)), Some(runs.clone())),
        (ProcessBy::Id(process_id(2, 1)), None),
        (ProcessBy::Name(runs.name.to_string()), Some(later.clone())),
        (ProcessBy::Pid(runs.pid), Some(later.clone())),
        (ProcessBy::Name("nobody".to_owned()), None),
        (ProcessBy::Pid(9_999), None),
    ] {
        let key = ProcessKey { sandbox: sandbox_id(1), by };
        assert_eq!(store.process(&key).await, Ok(expected), "{key:?}");
    }
    let mut unfinished = store.unfinished_processes(100).await.expect("processes");
    unfinished.sort_by_key(|record| (record.sandbox, record.number));
    assert_eq!(unfinished, [runs, later.clone(), process(2, 1, None)]);
    assert_eq!(store.unfinished_processes(2).await.expect("processes").len(), 2);
    let over = process(1, 1, Some(7));
    write(&*store, [put(over.clone()), removed(1, 2), removed(3, 9)]).await;
    assert_eq!(all(&*store, 1).await, [later, over]);
    assert_eq!(store.unfinished_processes(100).await.expect("processes").len(), 2);
}

pub(super) async fn processes_are_read_in_pages(on: &dyn Subject) {
    let store = on.open(RETENTION);
    write(&*store, (1..=9).map(|number| put(process(1, number, None)))).await;
    write(&*store, [put(process(0, 4, None)), put(process(2, 5, None))]).await;
    for (before, limit, expected) in [
        (None, 3, &[9, 8, 7][..]),
        (Some(7), 3, &[6, 5, 4]),
        (Some(3), 9, &[2, 1]),
        (Some(1), 9, &[]),
        (Some(u64::MAX), 1, &[9]),
        (None, 0, &[]),
    ] {
        let query = ProcessesQuery { sandbox: sandbox_id(1), before, limit };
        let page = store.processes(&query).await.expect("processes");
        let found: Vec<_> = page.iter().map(|record| record.number).collect();
        assert_eq!(found, expected, "{query:?}");
    }
}

pub(super) async fn process_output_is_stored_beside_its_record(on: &dyn Subject) {
    let store = on.open(RETENTION);
    let log: Arc<[u8]> = Arc::from(&b"\x00said\xff"[..]);
    let with =
        |record| ProcessChange::Put { record: Arc::new(record), log: Some(Arc::clone(&log)) };
    write(&*store, [with(process(1, 1, Some(1))), put(process(1, 2, Some(1)))]).await;
    let read = async |store: &dyn Store, number| store.process_log(sandbox_id(1), number).await;
    assert_eq!(read(&*store, 1).await, Ok(Some(log.to_vec())));
    assert_eq!(read(&*store, 2).await, Ok(None));
    assert_eq!(read(&*store, 3).await, Ok(None));
    // A change of the record leaves it.
    write(&*store, [put(process(1, 1, Some(2)))]).await;
    let store = reopened(on, store).await;
    assert_eq!(read(&*store, 1).await, Ok(Some(log.to_vec())));
    write(&*store, [removed(1, 1)]).await;
    assert_eq!(read(&*store, 1).await, Ok(None));
    write(&*store, [put(process(1, 1, Some(2)))]).await;
    assert_eq!(read(&*store, 1).await, Ok(None), "it is not the output of the one before");
}

pub(super) async fn processes_that_run_are_never_deleted(on: &dyn Subject) {
    let store = on.open(Retention { processes: 0, process_bytes: 0, ..RETENTION });
    for number in 1..=40 {
        write(&*store, [put(process(1, number, None))]).await;
    }
    write(&*store, [put(process(2, 1, Some(1_000_000)))]).await;
    assert_eq!(numbers(&*store, 1).await.len(), 40);
    assert!(numbers(&*store, 2).await.is_empty());
}

fn of(key: u8, number: u64, at: u64) -> ProcessChange {
    put(ProcessRecord { tenant: key_id(key), ..process(key, number, Some(at)) })
}

pub(super) async fn processes_above_the_count_limit_are_deleted(on: &dyn Subject) {
    // Of two keys the one with more loses, those that ended first first.
    let store = on.open(RETENTION);
    write(&*store, (1..=5).map(|number| of(1, number, 1))).await;
    let store = reopened(on, store).await;
    for number in 1..=40 {
        write(&*store, [of(2, number, 1_000 - number)]).await;
    }
    assert_eq!(numbers(&*store, 1).await.len(), 5, "the key with less loses nothing");
    assert_eq!(numbers(&*store, 2).await, (1..=25).rev().collect::<Vec<_>>());
}

pub(super) async fn processes_above_the_byte_limit_are_deleted(on: &dyn Subject) {
    let each = process_bytes(&process(1, 1, Some(1)), 100);
    let store = on.open(Retention { process_bytes: each * 8, ..RETENTION });
    let log: Arc<[u8]> = vec![0; 100].into();
    for number in 1..=9 {
        let record = Arc::new(process(1, number, Some(number)));
        let log = Some(Arc::clone(&log));
        write(&*store, [ProcessChange::Put { record, log }]).await;
    }
    let left = numbers(&*store, 1).await;
    assert!((7..=8).contains(&left.len()) && left[0] == 9, "{left:?}");
}

pub(super) async fn processes_that_are_too_old_are_deleted(on: &dyn Subject) {
    let store = on.open(RETENTION);
    write(&*store, [of(1, 1, 1_000), of(1, 2, 3_000), put(process(1, 3, None))]).await;
    write(&*store, [of(2, 1, 102_000)]).await;
    assert_eq!(numbers(&*store, 1).await, [3, 2]);
    assert_eq!(numbers(&*store, 2).await, [1]);
}

pub(super) async fn processes_may_be_committed_again(on: &dyn Subject) {
    let store = on.open(RETENTION);
    let log: Arc<[u8]> = Arc::from(&b"said"[..]);
    let both = batch([
        ProcessChange::Put { record: Arc::new(process(1, 1, Some(1))), log: Some(log) },
        put(process(1, 2, None)),
        removed(1, 3),
    ]);
    for _ in 0..100 {
        store.commit(&both).await.expect("written");
    }
    assert_eq!(numbers(&*store, 1).await, [2, 1], "each counts once");
}

//! Keys, documents, closing, crashes, and parallel commits.

use std::sync::Arc;

use model::record::JournalEntry;
use model::{Document, DocumentChange, KeyId, SeedId};

use super::fixtures::{changes, key, sandbox, sandbox_id, session_id, turn_id, whole};
use super::{RETENTION, Subject, loaded, page, reopened};
use crate::contract::{Batch, DocumentQuery, DocumentsSize, EventQuery, Store, TurnQuery};
use crate::error::{StoreError, StoreErrorCode};

fn code<T>(result: Result<T, StoreError>) -> Option<StoreErrorCode> {
    result.err().map(|error| error.code)
}

pub(super) async fn keys_are_put_and_replaced(on: &dyn Subject) {
    let store = on.open(RETENTION);
    assert_eq!(store.keys().await, Ok(Vec::new()));
    for (id, n) in [(1, 1), (3, 2), (2, 3), (1, 4)] {
        store.put_key(&key(id, n)).await.expect("written");
    }
    // Keys with higher ids were given lower numbers.
    let expected = vec![key(3, 2), key(2, 3), key(1, 4)];
    assert_eq!(store.keys().await.as_ref(), Ok(&expected));
    assert_eq!(reopened(on, store).await.keys().await, Ok(expected));
}

fn document(kind: &str, key: u8, name: &str, said: u8) -> Document {
    Document {
        kind: kind.to_owned(),
        tenant: KeyId::from_u128(key.into()),
        name: name.to_owned(),
        seed: said.is_multiple_of(2).then(|| SeedId::from_bytes([said; 32])),
        body: said.to_string().into(),
    }
}

pub(super) async fn documents_are_put_replaced_found_and_removed(on: &dyn Subject) {
    let store = on.open(RETENTION);
    let all = DocumentQuery::default();
    assert_eq!(store.documents(&all).await, Ok(Vec::new()));
    for one in [
        document("b", 1, "x", 1),
        document("a", 2, "y", 2),
        document("a", 2, "X", 3),
        document("a", 1, "y", 4),
        document("b", 1, "x", 6),
    ] {
        store.put_document(&one).await.expect("written");
    }
    let expected = [
        document("a", 1, "y", 4),
        document("a", 2, "X", 3),
        document("a", 2, "y", 2),
        document("b", 1, "x", 6),
    ];
    assert_eq!(store.documents(&all).await.as_deref(), Ok(&expected[..]));
    let store = reopened(on, store).await;
    let of = |kind: Option<&str>, key: Option<u8>, name: Option<&str>| DocumentQuery {
        kind: kind.map(str::to_owned),
        tenant: key.map(|key| KeyId::from_u128(key.into())),
        name: name.map(str::to_owned),
    };
    for (query, places) in [
        (all.clone(), &[0, 1, 2, 3][..]),
        (of(Some("a"), None, None), &[0, 1, 2]),
        (of(Some("a"), Some(2), None), &[1, 2]),
        (of(Some("a"), Some(2), Some("y")), &[2]),
        (of(None, Some(1), None), &[0, 3]),
        (of(None, None, Some("y")), &[0, 2]),
        (of(Some("c"), None, None), &[]),
    ] {
        let found: Vec<_> = places.iter().map(|place| expected[*place].clone()).collect();
        let bytes = found.iter().map(|document| document.body.len() as u64).sum();
        let size = DocumentsSize { count: found.len() as u64, bytes };
        assert_eq!(store.documents_size(&query).await, Ok(size), "{query:?}");
        assert_eq!(store.documents(&query).await, Ok(found), "{query:?}");
    }
    let seeds = [2, 4, 6].map(|said| SeedId::from_bytes([said; 32]));
    assert_eq!(store.document_seeds().await, Ok(seeds.into()));
    let said = Document { body: "ü".into(), ..document("a", 1, "y", 4) };
    store.put_document(&said).await.expect("written");
    let size = store.documents_size(&of(Some("a"), Some(1), None)).await;
    assert_eq!(size, Ok(DocumentsSize { count: 1, bytes: 2 }), "bytes, not characters");
    let one = of(Some("a"), Some(2), Some("y"));
    assert_eq!(store.remove_documents(&one).await, Ok(1));
    assert_eq!(store.remove_documents(&one).await, Ok(0));
    assert_eq!(store.remove_documents(&of(None, Some(1), None)).await, Ok(2));
    let left = vec![document("a", 2, "X", 3)];
    assert_eq!(reopened(on, store).await.documents(&all).await, Ok(left));
}

fn removed(of: &Document) -> DocumentChange {
    let Document { kind, tenant, name, .. } = of.clone();
    DocumentChange::Removed { kind, tenant, name }
}

pub(super) async fn documents_of_a_batch_are_written_with_it_in_order(on: &dyn Subject) {
    let store = on.open(RETENTION);
    let (one, two) = (document("a", 1, "x", 1), document("a", 1, "y", 2));
    let (other, later) = (document("b", 1, "x", 4), document("a", 1, "x", 6));
    store.put_document(&two).await.expect("written");
    let changes = vec![
        DocumentChange::Put(one.clone()),
        removed(&two),
        DocumentChange::Put(other.clone()),
        removed(&other),
        removed(&document("c", 1, "never", 1)),
        DocumentChange::Put(later.clone()),
    ];
    let batch = Batch { documents: changes, ..whole(1) };
    assert!(!Batch { documents: batch.documents.clone(), ..Batch::default() }.is_empty());
    store.commit(&batch).await.expect("written");
    let all = DocumentQuery::default();
    let store = reopened(on, store).await;
    assert_eq!(store.documents(&all).await, Ok(vec![later.clone()]));
    assert_eq!(loaded(&*store).await.last_event, 1);
    assert_eq!(store.document_seeds().await, Ok(later.seed.into_iter().collect()));
    // A batch with only a document is a batch too.
    let alone = Batch { documents: vec![removed(&later)], ..Batch::default() };
    store.commit(&alone).await.expect("written");
    assert_eq!(reopened(on, store).await.documents(&all).await, Ok(Vec::new()));
}

pub(super) async fn documents_of_a_batch_may_be_committed_again(on: &dyn Subject) {
    let store = on.open(RETENTION);
    let (one, two) = (document("a", 1, "x", 1), document("a", 1, "y", 2));
    let changes = vec![DocumentChange::Put(one.clone()), DocumentChange::Put(two.clone())];
    let batch = Batch { documents: [changes, vec![removed(&two)]].concat(), ..whole(1) };
    for _ in 0..3 {
        store.commit(&batch).await.expect("written");
        assert_eq!(store.documents(&DocumentQuery::default()).await, Ok(vec![one.clone()]));
    }
}

pub(super) async fn closed_store_refuses_everything(on: &dyn Subject) {
    let store = on.open(RETENTION);
    store.commit(&whole(1)).await.expect("written");
    store.close().await.expect("closed");
    let closed = Some(StoreErrorCode::Closed);
    assert_eq!(code(store.load().await), closed);
    assert_eq!(code(store.commit(&whole(2)).await), closed);
    assert_eq!(code(store.events(&EventQuery::after(0, 1)).await), closed);
    assert_eq!(code(store.keys().await), closed);
    assert_eq!(code(store.put_key(&key(1, 1)).await), closed);
    let all = DocumentQuery::default();
    assert_eq!(code(store.documents(&all).await), closed);
    assert_eq!(code(store.put_document(&document("a", 1, "x", 1)).await), closed);
    assert_eq!(code(store.documents_size(&all).await), closed);
    assert_eq!(code(store.document_seeds().await), closed);
    assert_eq!(code(store.remove_documents(&all).await), closed);
    assert_eq!(code(store.ended(sandbox_id(1)).await), closed);
    let query = TurnQuery { session: session_id(1), after: 0, limit: 1 };
    assert_eq!(code(store.turns(&query).await), closed);
    assert_eq!(code(store.turn(turn_id(1)).await), closed);
    assert_eq!(code(store.pieces(turn_id(1), 0, 1).await), closed);
    store.close().await.expect("closed already");
    let store = on.open(RETENTION);
    assert_eq!(loaded(&*store).await.last_event, 1);
    assert_eq!(store.keys().await, Ok(Vec::new()));
}

pub(super) async fn crash_loses_nothing_committed(on: &dyn Subject) {
    for number in 1..=10 {
        let store = on.open(RETENTION);
        assert_eq!(loaded(&*store).await.last_event, number - 1);
        store.commit(&whole(number)).await.expect("written");
        store.put_key(&key(number as u8, 1)).await.expect("written");
        drop(store);
    }
    let store = on.open(RETENTION);
    assert_eq!(loaded(&*store).await.journal.sandboxes, [sandbox(1, 10)]);
    assert_eq!(page(&*store, EventQuery::after(0, 100)).await.events.len(), 10);
    assert_eq!(store.keys().await.map(|keys| keys.len()), Ok(10));
}

pub(super) async fn parallel_commits_all_arrive(on: &dyn Subject) {
    let store: Arc<dyn Store> = on.open(RETENTION);
    let mut tasks = tokio::task::JoinSet::new();
    for id in 0..50 {
        let store = Arc::clone(&store);
        tasks.spawn(async move {
            let put = changes([JournalEntry::SandboxPut(sandbox(id, id.into()))]);
            store.commit(&put).await.expect("written");
            store.load().await.expect("loaded");
        });
    }
    while let Some(ended) = tasks.join_next().await {
        ended.expect("no panic");
    }
    let expected: Vec<_> = (0..50).map(|id| sandbox(id, id.into())).collect();
    assert_eq!(loaded(&*store).await.journal.sandboxes, expected);
    assert_eq!(loaded(&*reopened(on, store).await).await.journal.sandboxes, expected);
}

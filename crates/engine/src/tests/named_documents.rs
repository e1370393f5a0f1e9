//! Named documents, and documents of ended sessions: changed one at a time, bounded per key, and
//! whole whatever is killed or dropped.

use std::sync::Arc;
use std::time::Duration;

use model::{SeedId, SessionId};
use tokio::time::timeout;
use workspaces::Seeds;

use super::node::{ALICE, BOB, Node, Place, config};
use super::session_names::cut;
use crate::{NAMED_BYTES_MAX, NAMED_MAX, NamedError, SeedFile, SessionRequest, seed_archives};

const KIND: &str = "test.agent";

async fn put(node: &Node, name: &str, body: &str) -> Result<(), NamedError> {
    node.engine.lock_named_documents(KIND, ALICE).await?.put(name, None, body.to_owned()).await
}

async fn found(node: &Node, name: &str) -> Option<String> {
    let found = node.engine.named(KIND, ALICE.key, name).await.unwrap();
    found.map(|document| document.body.to_string())
}

async fn remove(node: &Node, name: &str) -> bool {
    node.engine.lock_named_documents(KIND, ALICE).await.unwrap().remove(name).await.unwrap()
}

/// Stores files, and puts the next version under a name, with these files.
async fn deploy(node: &Node) -> (u64, SeedId) {
    let version = found(node, "a").await.map_or(0, |body| body.parse::<u64>().unwrap());
    let text = format!("files of {}", version + 1);
    let file = SeedFile { path: "f".to_owned(), bytes: text.into(), mode: 0o644 };
    let seed = node.engine.put_seed(ALICE, vec![file]).await.unwrap();
    let change = node.engine.lock_named_documents(KIND, ALICE).await.unwrap();
    let version = found(node, "a").await.map_or(0, |body| body.parse::<u64>().unwrap()) + 1;
    change.put("a", Some(seed), version.to_string()).await.unwrap();
    (version, seed)
}

#[tokio::test(start_paused = true)]
async fn named_document_is_found_until_it_is_removed_and_belongs_to_its_key() {
    let node = Node::start(config()).await;
    assert_eq!(found(&node, "a").await, None);
    for body in ["1", "2"] {
        put(&node, "a", body).await.unwrap();
        for _ in 0..2 {
            assert_eq!(found(&node, "a").await.as_deref(), Some(body));
        }
    }
    assert!(node.engine.named(KIND, BOB.key, "a").await.unwrap().is_none());
    assert!(node.engine.named("other", ALICE.key, "a").await.unwrap().is_none());
    assert_eq!(node.engine.named_documents(KIND, ALICE.key).await.unwrap().len(), 1);
    assert!(remove(&node, "a").await && !remove(&node, "a").await);
    assert_eq!(found(&node, "a").await, None);
}

#[tokio::test(start_paused = true)]
async fn named_documents_of_a_key_are_bounded_and_can_still_be_changed() {
    let node = Node::start(config()).await;
    for n in 0..NAMED_MAX {
        put(&node, &format!("n{n}"), "1").await.unwrap();
    }
    assert_eq!(put(&node, "more", "1").await, Err(NamedError::TooMany(NAMED_MAX)));
    put(&node, "n0", "2").await.unwrap();
    let large = "x".repeat(4 << 20);
    for n in 0..7 {
        put(&node, &format!("n{n}"), &large).await.unwrap();
    }
    assert_eq!(put(&node, "n7", &large).await, Err(NamedError::TooLarge(NAMED_BYTES_MAX)));
    put(&node, "n6", &large).await.unwrap();
    assert!(matches!(put(&node, "n6", &"x".repeat(5 << 20)).await, Err(NamedError::Refused(_))));
    assert!(remove(&node, "n6").await);
    put(&node, "n7", &large).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn named_document_after_a_crash_is_the_old_or_the_new_version_with_its_files() {
    for writes in 0.. {
        let place = Place::new();
        let mut config = config();
        config.seeds = Some(Seeds::open(place.0.join("seeds")).unwrap());
        let node = Node::start(config).await;
        node.settle().await;
        assert_eq!(deploy(&node).await.0, 1);
        node.store.hang_after(writes);
        let done = timeout(Duration::from_secs(1), deploy(&node)).await;
        let node = node.kill_and_start().await;
        let kept = node.engine.named(KIND, ALICE.key, "a").await.unwrap().unwrap();
        let version: u64 = kept.body.parse().unwrap();
        assert!(version == 2 || (version == 1 && done.is_err()));
        let all = node.engine.core.disk.seeds.clone().unwrap();
        seed_archives::sweep(&node.engine.core, &all).await;
        let files = node.engine.seed_files(kept.seed.unwrap()).await.unwrap();
        assert_eq!(files[0].bytes, format!("files of {version}").into_bytes());
        assert_eq!(deploy(&node).await.0, version + 1);
        if done.is_ok() {
            assert!(writes > 0, "there was something to interrupt");
            return;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn named_document_changes_at_once_get_separate_versions_also_if_clients_leave() {
    let place = Place::new();
    let mut config = config();
    config.seeds = Some(Seeds::open(place.0.join("seeds")).unwrap());
    let node = Arc::new(Node::start(config).await);
    let mut deploying = tokio::task::JoinSet::new();
    for n in 0..24 {
        let node = Arc::clone(&node);
        let polls = if n % 2 == 0 { u32::MAX } else { n };
        deploying.spawn(async move { cut(polls, deploy(&node)).await });
    }
    let received: Vec<_> = deploying.join_all().await.into_iter().flatten().collect();
    assert!(received.len() >= 12, "{}", received.len());
    let mut versions: Vec<_> = received.iter().map(|(version, _)| *version).collect();
    versions.sort_unstable();
    versions.dedup();
    assert_eq!(versions.len(), received.len(), "none was given twice");
    node.settle().await;
    let last = found(&node, "a").await.unwrap().parse::<u64>().unwrap();
    assert!(last >= *versions.last().unwrap());
}

#[tokio::test(start_paused = true)]
async fn ended_sessions_keep_the_latest_of_a_key() {
    let node = Node::start(config()).await;
    let of = |n: u128| SessionId::from_u128(n);
    for n in 1..=1_200_u128 {
        let kept = node.engine.store_ended_session(KIND, ALICE.key, of(n), n.to_string());
        kept.await.unwrap();
    }
    let all = node.engine.ended_sessions(KIND, ALICE).await.unwrap();
    assert!((1_000..=1_064).contains(&all.len()), "{}", all.len());
    let past = async |n: u128| node.engine.ended_session(KIND, ALICE.key, of(n)).await.unwrap();
    assert_eq!(past(1_200).await.as_deref(), Some("1200"));
    assert!(past(201).await.is_some() && past(1).await.is_none());
    assert!(node.engine.ended_sessions(KIND, BOB).await.unwrap().is_empty());
}

#[tokio::test(start_paused = true)]
async fn ended_sessions_do_not_list_a_live_session() {
    let node = Node::start(config()).await;
    let asked = SessionRequest::of(super::node::name("default"));
    let id = node.engine.create_session(ALICE, asked).await.unwrap().id;
    node.engine.store_ended_session(KIND, ALICE.key, id, "1".to_owned()).await.unwrap();
    assert!(node.engine.ended_sessions(KIND, ALICE).await.unwrap().is_empty());
    node.engine.end_session(ALICE, id).await.unwrap();
    node.settle().await;
    assert_eq!(node.engine.ended_sessions(KIND, ALICE).await.unwrap().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn ended_sessions_that_go_leave_what_is_stored_of_live_ones() {
    let node = Node::start(config()).await;
    let asked = SessionRequest::of(super::node::name("default"));
    let live = node.engine.create_session(ALICE, asked).await.unwrap().id;
    node.engine.store_ended_session(KIND, ALICE.key, live, "live".to_owned()).await.unwrap();
    // These ids are later than that of any session of this world.
    for n in 0..1_200_u128 {
        let id = SessionId::from_u128(u128::MAX - n);
        node.engine.store_ended_session(KIND, ALICE.key, id, n.to_string()).await.unwrap();
    }
    let all = node.engine.ended_sessions(KIND, ALICE).await.unwrap();
    assert!((1_000..=1_065).contains(&all.len()), "{}", all.len());
    let stored = node.engine.ended_session(KIND, ALICE.key, live).await.unwrap();
    assert_eq!(stored.as_deref(), Some("live"));
}

//! Sessions with names: a name and its session come and go together, whatever is killed, dropped or
//! requested at once.

use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use model::{Document, ErrorCode, SessionId, SessionStatus};
use runtime::fake::{Fault, Operation};
use serde_json::{Value, json};
use store::memory::MemoryStore;
use store::{DocumentQuery, Store as _};
use tokio::time::{sleep, timeout};

use super::node::{ALICE, BOB, Node, config, name};
use crate::session_names::ENDING;
use crate::{Caller, NAMED_MAX, NamedError, NamedSession, SessionQuery, SessionRequest, UseKind};

const KIND: &str = "test.named";
/// The label of a session that was created under a name.
const LABEL: &str = "name";

type Made = Result<(Arc<NamedSession>, bool), NamedError>;

async fn make_as(node: &Node, caller: Caller, word: &str) -> Made {
    let mut asked = SessionRequest::of(name("default"));
    asked.metadata.insert(LABEL.to_owned(), word.to_owned());
    node.engine.create_named_session(KIND, caller, word, json!({"n": 1}), asked).await
}

async fn make(node: &Node, word: &str) -> Made {
    make_as(node, ALICE, word).await
}

async fn end(node: &Node, word: &str) -> Result<Option<Arc<NamedSession>>, NamedError> {
    node.engine.end_named_session(KIND, ALICE, word).await
}

async fn find(node: &Node, word: &str) -> Option<Arc<NamedSession>> {
    node.engine.named_session(KIND, ALICE.key, word).await.unwrap()
}

fn lives(node: &Node, session: SessionId) -> bool {
    node.engine.is_session_alive(ALICE, session)
}

async fn notes(store: &MemoryStore) -> usize {
    let query = DocumentQuery { kind: Some(ENDING.to_owned()), ..DocumentQuery::default() };
    store.documents(&query).await.unwrap().len()
}

/// Live sessions that were created under a name, with that name.
fn made_and_alive(node: &Node) -> Vec<(String, SessionId)> {
    let query = SessionQuery { limit: 1_000, ..SessionQuery::default() };
    let all = node.engine.sessions(ALICE, &query).sessions;
    let alive = all.into_iter().filter(|view| view.status != SessionStatus::Ended);
    let named = alive.map(|view| (view.claim.unwrap().labels[LABEL].clone(), view.id));
    named.collect()
}

/// What must hold whenever nothing is in progress.
async fn check(node: &Node) {
    for (word, session) in made_and_alive(node) {
        let found = find(node, &word).await.map(|named| named.session);
        assert_eq!(found, Some(session), "a session without its name");
    }
    assert_eq!(notes(&node.store).await, 0, "no session is being ended");
}

/// A name can be used: it has a session or one can be created, and that can be ended.
async fn check_usable(node: &Node, word: &str) {
    let (named, _) = make(node, word).await.unwrap();
    assert!(lives(node, named.session));
    check(node).await;
    assert_eq!(end(node, word).await.unwrap().unwrap().session, named.session);
    assert!(find(node, word).await.is_none() && !lives(node, named.session));
    assert!(make(node, word).await.unwrap().1, "the name is free");
    check(node).await;
}

#[tokio::test(start_paused = true)]
async fn session_name_goes_with_an_end_by_name_and_stays_otherwise() {
    let node = Node::start(config()).await;
    let (named, is_new) = make(&node, "a").await.unwrap();
    assert!(is_new && lives(&node, named.session) && named.sandboxes.len() == 1);
    assert_eq!(find(&node, "a").await.as_ref(), Some(&named));
    assert_eq!(make(&node, "a").await.unwrap(), (Arc::clone(&named), false));
    assert!(node.engine.named_session(KIND, BOB.key, "a").await.unwrap().is_none());
    assert!(make_as(&node, BOB, "a").await.unwrap().1, "names belong to keys");

    node.engine.end_session(ALICE, named.session).await.unwrap();
    assert_eq!(
        find(&node, "a").await.as_ref(),
        Some(&named),
        "the name leads to the ended session"
    );
    let (again, is_new) = make(&node, "a").await.unwrap();
    assert!(is_new && again.session != named.session);

    assert_eq!(end(&node, "a").await.unwrap().unwrap().session, again.session);
    assert!(find(&node, "a").await.is_none() && end(&node, "a").await.unwrap().is_none());
    let (last, _) = make(&node, "a").await.unwrap();
    node.engine.end_session(ALICE, last.session).await.unwrap();
    end(&node, "a").await.unwrap().unwrap();
    assert!(find(&node, "a").await.is_none(), "also a name whose session had ended");
    check(&node).await;
}

/// Lets a server be killed after each of its writes in turn, and checks what the next one finds.
async fn kill_after_each_write(
    prepare: impl AsyncFn(&Node),
    what: impl AsyncFn(&Node),
    found: impl AsyncFn(&Node, bool),
) {
    for writes in 0.. {
        let node = Node::start(config()).await;
        node.settle().await;
        prepare(&node).await;
        node.settle().await;
        node.store.hang_after(writes);
        let is_done = timeout(Duration::from_secs(1), what(&node)).await.is_ok();
        let was_noted = notes(&node.store).await > 0;
        let node = node.kill_and_start().await;
        node.settle().await;
        check(&node).await;
        found(&node, was_noted).await;
        check_usable(&node, "a").await;
        if is_done {
            assert!(writes > 1, "there was something to interrupt");
            return;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn named_session_creation_that_crashes_leaves_nothing_or_both() {
    let made = async |node: &Node| drop(make(node, "a").await.unwrap());
    let found = async |node: &Node, _| {
        let named = find(node, "a").await;
        assert_eq!(named.is_some(), !made_and_alive(node).is_empty());
        assert!(named.is_none_or(|named| lives(node, named.session)));
    };
    kill_after_each_write(async |_| (), made, found).await;
}

#[tokio::test(start_paused = true)]
async fn named_session_end_that_crashes_leaves_both_or_neither() {
    let made = async |node: &Node| drop(make(node, "a").await.unwrap());
    let ended = async |node: &Node| drop(end(node, "a").await.unwrap());
    let found = async |node: &Node, was_noted: bool| {
        let named = find(node, "a").await;
        assert!(named.as_ref().is_none_or(|named| lives(node, named.session)));
        assert_eq!(named.is_some(), !made_and_alive(node).is_empty());
        assert!(!was_noted || named.is_none(), "a noted end is finished");
    };
    kill_after_each_write(made, ended, found).await;
}

#[tokio::test(start_paused = true)]
async fn named_session_end_during_a_turn_that_crashes_leaves_both_or_neither() {
    let busy = async |node: &Node| {
        let (named, _) = make(node, "a").await.unwrap();
        drop(node.send(named.session, "sleep 1000").await.unwrap());
    };
    let ended = async |node: &Node| drop(end(node, "a").await.unwrap());
    let found = async |node: &Node, was_noted: bool| {
        let named = find(node, "a").await;
        assert!(named.as_ref().is_none_or(|named| lives(node, named.session)));
        assert!(!was_noted || named.is_none(), "a noted end is finished");
    };
    kill_after_each_write(busy, ended, found).await;
}

#[tokio::test(start_paused = true)]
async fn named_session_recreation_that_crashes_leaves_the_old_name_or_the_new_session() {
    let over = async |node: &Node| {
        let (named, _) = make(node, "a").await.unwrap();
        node.engine.end_session(ALICE, named.session).await.unwrap();
    };
    let made = async |node: &Node| drop(make(node, "a").await.unwrap());
    let found = async |node: &Node, _| {
        let named = find(node, "a").await.expect("one or the other");
        assert_eq!(lives(node, named.session), !made_and_alive(node).is_empty());
    };
    kill_after_each_write(over, made, found).await;
}

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

#[tokio::test(start_paused = true)]
async fn named_session_requests_that_are_dropped_leave_both_or_neither() {
    let node = Node::start(config()).await;
    node.settle().await;
    let mut finished = 0;
    for polls in 0..40 {
        let made = cut(polls, make(&node, "a")).await;
        sleep(Duration::from_secs(5)).await;
        check(&node).await;
        assert_eq!(find(&node, "a").await.is_some(), made_and_alive(&node).len() == 1);
        make(&node, "a").await.unwrap();
        let ended = cut(polls, end(&node, "a")).await;
        sleep(Duration::from_secs(5)).await;
        check(&node).await;
        assert_eq!(find(&node, "a").await.is_some(), made_and_alive(&node).len() == 1);
        finished += u32::from(made.is_some() && ended.is_some());
        end(&node, "a").await.unwrap();
        assert_eq!(made_and_alive(&node), []);
    }
    assert!((1..40).contains(&finished), "some were cut: {finished}");
}

#[tokio::test(start_paused = true)]
async fn named_session_requests_at_once_create_one_session() {
    let node = Node::start(config()).await;
    let mut asking = tokio::task::JoinSet::new();
    let node = Arc::new(node);
    for _ in 0..20 {
        let node = Arc::clone(&node);
        asking.spawn(async move { make(&node, "a").await.unwrap() });
    }
    let all = asking.join_all().await;
    assert_eq!(all.iter().filter(|(_, is_new)| *is_new).count(), 1);
    assert!(all.iter().all(|(named, _)| named.session == all[0].0.session));
    assert_eq!(made_and_alive(&node).len(), 1);
}

async fn put(node: &Node, word: &str, body: &str) {
    let (kind, tenant, name) = (KIND.to_owned(), ALICE.key, word.to_owned());
    let document = Document { kind, tenant, name, seed: None, body: body.into() };
    node.store.put_document(&document).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn session_names_of_a_key_are_bounded_also_for_requests_at_once() {
    let node = Arc::new(Node::start(config()).await);
    let (named, _) = make(&node, "a").await.unwrap();
    let body = serde_json::to_string(&*named).unwrap();
    for n in 0..NAMED_MAX - 3 {
        put(&node, &format!("n{n}"), &body).await;
    }
    let mut asking = tokio::task::JoinSet::new();
    for word in ["b", "c", "d", "e", "f"] {
        let node = Arc::clone(&node);
        asking.spawn(async move { make(&node, word).await });
    }
    let all = asking.join_all().await;
    assert_eq!(all.iter().filter(|made| made.is_ok()).count(), 2);
    let refused: Vec<_> = all.into_iter().filter_map(Result::err).collect();
    assert_eq!(refused, vec![NamedError::TooMany(NAMED_MAX); 3]);
    assert!(make_as(&node, BOB, "b").await.is_ok(), "every key has its own");
    assert_eq!(made_and_alive(&node).len(), 3, "none was made for those that were refused");
    make(&node, "a").await.unwrap();
    end(&node, "a").await.unwrap();
    make(&node, "g").await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn names_of_sessions_that_ended_otherwise_give_way_when_there_is_no_room() {
    let node = Node::start(config()).await;
    let (lives, _) = make(&node, "a").await.unwrap();
    let (ended, _) = make(&node, "b").await.unwrap();
    node.engine.end_session(ALICE, ended.session).await.unwrap();
    let found = node.engine.named_session(KIND, ALICE.key, "b").await.unwrap();
    assert!(found.is_some(), "it is shown as ended while there is room");
    let body = serde_json::to_string(&*ended).unwrap();
    for n in 0..NAMED_MAX - 2 {
        put(&node, &format!("n{n}"), &body).await;
    }
    let (_, is_new) = make(&node, "c").await.unwrap();
    assert!(is_new);
    let left = node.engine.named_sessions(KIND, ALICE.key).await.unwrap();
    let names: Vec<_> = left.iter().map(|named| named.name.as_str()).collect();
    assert_eq!(names, ["a", "c"]);
    assert_eq!(left[0].session, lives.session);
}

#[tokio::test(start_paused = true)]
async fn session_names_are_bounded_in_bytes_each_and_per_key() {
    let node = Node::start(config()).await;
    let (named, _) = make(&node, "a").await.unwrap();
    for n in 0..8 {
        let long = NamedSession { object: "x".repeat(4_000_000).into(), ..(*named).clone() };
        put(&node, &format!("n{n}"), &serde_json::to_string(&long).unwrap()).await;
    }
    let long = |bytes: usize| Value::from("x".repeat(bytes));
    let ask = |word: &'static str, object: Value| {
        let asked = SessionRequest::of(name("default"));
        node.engine.create_named_session(KIND, ALICE, word, object, asked)
    };
    assert!(matches!(ask("b", long(2 << 20)).await, Err(NamedError::TooLarge(_))));
    let changed = node.engine.update_named_session(KIND, ALICE, "a", long(2 << 20)).await;
    assert!(matches!(changed, Err(NamedError::TooLarge(_))));
    let refused = ask("b", long(5 << 20)).await.unwrap_err();
    assert!(matches!(&refused, NamedError::Refused(it) if it.code == ErrorCode::TooLarge));
    let long_name: &'static str = "n".repeat(2_000).leak();
    let refused = ask(long_name, json!({})).await.unwrap_err();
    assert!(matches!(&refused, NamedError::Refused(it) if it.code == ErrorCode::TooLarge));
    assert!(ask("b", json!({})).await.is_ok());
}

/// A node without warm sandboxes, so that every session waits for a launch.
async fn cold_node() -> Node {
    let mut config = config();
    config.templates[0].pool.pool_size = 0;
    Node::start(config).await
}

#[tokio::test(start_paused = true)]
async fn named_session_is_not_visible_before_it_is_created() {
    let node = Arc::new(cold_node().await);
    for is_again in [false, true] {
        node.runtime.inject(Operation::Launch, Fault::Delay(Duration::from_secs(5)));
        let before = find(&node, "a").await;
        assert_eq!(before.is_some(), is_again);
        let asking = Arc::clone(&node);
        let making = tokio::spawn(async move { make(&asking, "a").await });
        sleep(Duration::from_secs(1)).await;
        assert_eq!(made_and_alive(&node).len(), 1, "it is being created");
        assert_eq!(find(&node, "a").await, before);
        let listed = node.engine.named_sessions(KIND, ALICE.key).await.unwrap();
        assert_eq!(listed.first(), before.as_deref());
        let (named, is_new) = making.await.unwrap().unwrap();
        assert!(is_new && find(&node, "a").await.as_ref() == Some(&named));
        node.engine.end_session(ALICE, named.session).await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn named_session_whose_creation_fails_restores_the_previous_name() {
    let node = cold_node().await;
    for is_again in [false, true] {
        let before = find(&node, "a").await;
        assert_eq!(before.is_some(), is_again);
        node.runtime.inject(Operation::Launch, Fault::Die { out_of_memory: false });
        make(&node, "a").await.unwrap_err();
        assert_eq!(find(&node, "a").await, before);
        check(&node).await;
        let (named, is_new) = make(&node, "a").await.unwrap();
        assert!(is_new);
        node.engine.end_session(ALICE, named.session).await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn session_name_that_is_removed_during_a_change_does_not_come_back() {
    let node = Arc::new(Node::start(config()).await);
    for polls in 0..20 {
        make(&node, "a").await.unwrap();
        let changing = Arc::clone(&node);
        let object = json!({"n": 2});
        let change =
            async move { changing.engine.update_named_session(KIND, ALICE, "a", object).await };
        let ended = async {
            for _ in 0..polls {
                tokio::task::yield_now().await;
            }
            end(&node, "a").await
        };
        let (changed, ended) = tokio::join!(change, ended);
        ended.unwrap().expect("the name existed");
        if let Some(changed) = changed.unwrap() {
            assert_eq!(changed.object, json!({"n": 2}));
        }
        assert!(find(&node, "a").await.is_none());
    }
}

#[tokio::test(start_paused = true)]
async fn failing_store_loses_neither_session_nor_name() {
    let node = Node::start(config()).await;
    node.settle().await;
    node.store.fail_commits(8, store::StoreErrorCode::DiskFull);
    let made = make(&node, "a").await;
    sleep(Duration::from_mins(1)).await;
    check(&node).await;
    assert_eq!(find(&node, "a").await.is_some(), made_and_alive(&node).len() == 1);
    assert!(made.is_err() || find(&node, "a").await.is_some());
    check_usable(&node, "a").await;
}

#[tokio::test(start_paused = true)]
async fn sandboxes_of_a_named_session_are_recorded_and_found_after_a_restart() {
    let node = Node::start(config()).await;
    let (named, _) = make(&node, "a").await.unwrap();
    let node = node.kill_and_start().await;
    let found = find(&node, "a").await.unwrap();
    assert_eq!(found, named);
    let used = node.engine.use_named_session(KIND, ALICE, &found, UseKind::Exec).await;
    let now = used.ok().unwrap().sandbox();
    let found = find(&node, "a").await.unwrap();
    assert!(found.sandboxes.contains(&now) && found.sandboxes.contains(&named.sandboxes[0]));
    assert_eq!(found.object, named.object);
}

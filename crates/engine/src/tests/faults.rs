//! Faults around sessions that users must not feel: a slow or failing store, clients that leave at
//! the worst moment, callers with other keys, and a server that stops.

use std::sync::Arc;
use std::time::Duration;

use model::lifecycle::TurnOutcome;
use model::record::OnDisconnect;
use model::template::{Harness, HarnessProgram};
use model::{ErrorCode, Generation, LifecycleEvent, SessionId};
use store::Retention;
use store::memory::MemoryStore;
use tokio::time::{sleep, timeout};

use super::node::{ALICE, BOB, Node, config, name};
use super::sessions::{outcome, rest};
use crate::{SessionQuery, SessionRequest, TurnRequest, WhenBusy};

fn say(line: &str) -> TurnRequest {
    let input = serde_json::to_string(line).unwrap().into();
    TurnRequest { input, when_busy: WhenBusy::Refuse, turn: None, wait_ms: None }
}

async fn whole(node: &Node, session: SessionId, line: &str) {
    let mut started = node.engine.start_turn(ALICE, session, say(line)).await.unwrap();
    while started.follow.next().await.unwrap().is_some() {}
}

async fn one_turn(node: &Node) -> SessionId {
    let asked = SessionRequest::of(name("default"));
    let id = node.engine.create_session(ALICE, asked).await.unwrap().id;
    whole(node, id, "echo hi").await;
    id
}

#[tokio::test(start_paused = true)]
async fn session_of_another_key_looks_like_an_unknown_one() {
    let node = Node::start(config()).await;
    let id = one_turn(&node).await;
    for session in [id, SessionId::from_u128(77)] {
        let refused = node.engine.turns(BOB, session, 0, 10).await.unwrap_err();
        assert_eq!(refused.code, ErrorCode::SessionUnknown);
    }
}

#[tokio::test(start_paused = true)]
async fn history_of_a_long_ended_session_is_paged_to_its_end() {
    let mut config = config();
    config.node.remembered_ends = 1;
    let node = Node::start(config).await;
    let mut ids = Vec::new();
    for _ in 0..3 {
        let id = one_turn(&node).await;
        let sandbox = node.engine.session(ALICE, id).unwrap().sandbox_id.unwrap();
        node.engine.end_session(ALICE, id).await.unwrap();
        node.engine.delete_sandbox(ALICE, sandbox).await.unwrap();
        ids.push(id);
    }
    node.settle().await;
    assert!(node.engine.session(ALICE, ids[0]).is_err(), "the record of the session is gone");
    let page = node.engine.turns(ALICE, ids[0], 0, 10).await.unwrap();
    let rest = node.engine.turns(ALICE, ids[0], page[0].number, 1).await.unwrap();
    assert_eq!(rest, []);
}

#[tokio::test(start_paused = true)]
async fn session_whose_client_vanished_before_the_answer_is_ended() {
    let mut config = config();
    let command = vec!["sleep".to_owned(), "1000".to_owned()];
    config.templates[0].harness = Harness::Jsonl(HarnessProgram { command, prewarm: false });
    let node = Node::start(config).await;
    node.settle().await;
    let creating = node.engine.create_session(ALICE, SessionRequest::of(name("default")));
    assert!(timeout(Duration::from_secs(5), creating).await.is_err());
    sleep(Duration::from_mins(2)).await;
    let query = SessionQuery { limit: 10, ..SessionQuery::default() };
    let left = node.engine.sessions(ALICE, &query).sessions;
    let open = left.iter().filter(|view| view.status != model::SessionStatus::Ended);
    assert_eq!(open.count(), 0, "{left:?}");
}

#[tokio::test(start_paused = true)]
async fn turn_whose_client_left_at_the_last_moment_is_aborted_if_configured() {
    let node = Node::start(config()).await;
    let on_disconnect = OnDisconnect::Abort;
    let asked = SessionRequest { on_disconnect, ..SessionRequest::of(name("default")) };
    let id = node.engine.create_session(ALICE, asked).await.unwrap().id;
    let engine = node.engine.clone();
    let mut starting =
        Box::pin(async move { engine.start_turn(ALICE, id, say("sleep 100")).await.map(|_| ()) });
    // Polled once, and dropped when the answer is there but not taken.
    let mut cx = std::task::Context::from_waker(std::task::Waker::noop());
    assert!(starting.as_mut().poll(&mut cx).is_pending());
    sleep(Duration::from_secs(1)).await;
    drop(starting);
    sleep(Duration::from_secs(10)).await;
    assert_eq!(node.engine.session(ALICE, id).unwrap().turn, None);
}

/// A queued turn ends with its client too, whether the client learned that it is queued or not.
#[tokio::test(start_paused = true)]
async fn queued_turn_ends_with_its_client_if_configured() {
    for on_disconnect in [OnDisconnect::Abort, OnDisconnect::Continue] {
        let node = Node::start(config()).await;
        let asked = SessionRequest { on_disconnect, ..SessionRequest::of(name("default")) };
        let id = node.engine.create_session(ALICE, asked).await.unwrap().id;
        let mut first = node.engine.start_turn(ALICE, id, say("sleep 20")).await.unwrap();
        let queue = || TurnRequest { when_busy: WhenBusy::Queue, ..say("echo late") };
        let received = node.engine.start_turn(ALICE, id, queue()).await.unwrap();
        assert!(received.queued);
        let engine = node.engine.clone();
        let mut untold =
            Box::pin(async move { engine.start_turn(ALICE, id, queue()).await.map(|_| ()) });
        let mut cx = std::task::Context::from_waker(std::task::Waker::noop());
        assert!(untold.as_mut().poll(&mut cx).is_pending());
        sleep(Duration::from_secs(1)).await;
        assert_eq!(node.engine.session(ALICE, id).unwrap().queued_turns, 2);
        let turn = received.turn;
        drop((received, untold));
        sleep(Duration::from_secs(1)).await;
        let session = node.engine.session(ALICE, id).unwrap();
        assert_eq!(session.turn, Some(first.turn), "the turn before goes on");
        let (waiting, ends) = match on_disconnect {
            OnDisconnect::Abort => (0, "aborted"),
            OnDisconnect::Continue => (2, "completed"),
        };
        assert_eq!(session.queued_turns, waiting);
        assert_eq!(outcome(&rest(&mut first.follow).await), "completed");
        let mut follow = node.engine.follow_turn(ALICE, id, turn, 0).await.unwrap();
        assert_eq!(outcome(&rest(&mut follow).await), ends);
    }
}

#[tokio::test(start_paused = true)]
async fn turn_end_can_follow_the_highest_piece_number() {
    let node = Node::start(config()).await;
    let id = one_turn(&node).await;
    let turn = node.engine.turns(ALICE, id, 0, 1).await.unwrap()[0].id;
    let mut follow = node.engine.follow_turn(ALICE, id, turn, u64::MAX).await.unwrap();
    assert_eq!(&*follow.next().await.unwrap().unwrap().name, "turn_ended");
}

/// A session that was sent a message while the store stood still.
async fn stalled(idle_s: u64, stall_ms: u64) -> (Generation, Generation, bool) {
    let node = Node::start(config()).await;
    let id = one_turn(&node).await;
    let before = node.engine.session(ALICE, id).unwrap().generation;
    sleep(Duration::from_secs(idle_s)).await;
    node.store.hang_commits();
    let engine = node.engine.clone();
    let sending =
        tokio::spawn(
            async move { engine.start_turn(ALICE, id, say("echo again")).await.map(|_| ()) },
        );
    sleep(Duration::from_millis(stall_ms)).await;
    node.store.release_commits();
    // It may have been refused for now.
    let _ = sending.await.unwrap();
    sleep(Duration::from_secs(5)).await;
    whole(&node, id, "echo on").await;
    let query = store::EventQuery { session: Some(id), ..store::EventQuery::after(0, 1_000) };
    let events = node.engine.events(ALICE, query).await.unwrap().events;
    let lost = events.iter().any(|one| matches!(one.event, LifecycleEvent::StateLost { .. }));
    (before, node.engine.session(ALICE, id).unwrap().generation, lost)
}

#[tokio::test(start_paused = true)]
async fn slow_store_ends_no_healthy_sandbox() {
    for (idle_s, stall_ms) in [(0, 900), (0, 5_500), (0, 20_000), (7, 4_500), (20, 4_500)] {
        let (before, after, lost) = stalled(idle_s, stall_ms).await;
        assert_eq!((after, lost), (before, false), "idle {idle_s} s, stalled {stall_ms} ms");
    }
}

#[tokio::test(start_paused = true)]
async fn refused_message_starts_no_turn() {
    let node = Node::start(config()).await;
    let id = one_turn(&node).await;
    node.store.fail_commits(7, store::StoreErrorCode::Io);
    let refused = node.engine.start_turn(ALICE, id, say("sleep 20")).await.map(|_| ());
    assert_eq!(refused.unwrap_err().code, ErrorCode::StoreUnavailable);
    sleep(Duration::from_secs(10)).await;
    let turns = node.engine.turns(ALICE, id, 0, 10).await.unwrap();
    let outcomes: Vec<_> = turns.iter().map(|t| t.end.as_ref().map(|e| e.outcome)).collect();
    assert!(outcomes[1..].iter().all(|one| *one == Some(TurnOutcome::Aborted)), "{outcomes:?}");
    assert_eq!(node.engine.session(ALICE, id).unwrap().turn, None);
}

#[tokio::test(start_paused = true)]
async fn turn_follower_gets_the_end_when_the_server_stops() {
    for _ in 0..20 {
        let node = Node::start(config()).await;
        let id = one_turn(&node).await;
        let mut started = node.engine.start_turn(ALICE, id, say("sleep 100")).await.unwrap();
        let asked = TurnRequest { when_busy: WhenBusy::Queue, ..say("echo later") };
        let mut queued = node.engine.start_turn(ALICE, id, asked).await.unwrap();
        let follower = tokio::spawn(async move {
            let mut last = None;
            while let Ok(Some(piece)) = started.follow.next().await {
                last = Some(piece);
            }
            last.unwrap()
        });
        node.settle().await;
        node.engine.shutdown_now().await.unwrap();
        let last = follower.await.unwrap();
        assert_eq!(&*last.name, "turn_ended");
        assert!(last.data.contains("interrupted"), "{}", last.data);
        let last = queued.follow.next().await.unwrap().unwrap();
        assert!(last.data.contains("interrupted"), "queued ones too: {}", last.data);
    }
}

#[tokio::test(start_paused = true)]
async fn session_id_of_another_key_shows_none_of_its_history() {
    let mut config = config();
    config.node.remembered_ends = 1;
    let node = Node::start(config).await;
    let id = one_turn(&node).await;
    let sandbox = node.engine.session(ALICE, id).unwrap().sandbox_id.unwrap();
    node.engine.end_session(ALICE, id).await.unwrap();
    node.engine.delete_sandbox(ALICE, sandbox).await.unwrap();
    for _ in 0..3 {
        let other = one_turn(&node).await;
        let sandbox = node.engine.session(ALICE, other).unwrap().sandbox_id.unwrap();
        node.engine.end_session(ALICE, other).await.unwrap();
        node.engine.delete_sandbox(ALICE, sandbox).await.unwrap();
    }
    let asked = SessionRequest { session: Some(id), ..SessionRequest::of(name("default")) };
    let taken = node.engine.create_session(BOB, asked).await.unwrap_err();
    assert_eq!(taken.code, ErrorCode::IdConflict);
    let hidden = node.engine.turns(BOB, id, 0, 10).await.unwrap_err();
    assert_eq!(hidden.code, ErrorCode::SessionUnknown);
}

#[tokio::test(start_paused = true)]
async fn start_without_disk_space_serves_when_there_is_some() {
    let store = Arc::new(MemoryStore::new(Retention::default()));
    store.fail_commits(40, store::StoreErrorCode::DiskFull);
    let node = Node::on(Arc::clone(&store), config()).await;
    let degraded = node.engine.health().degraded;
    assert!(degraded.iter().any(|one| one.cause.contains("disk_full")), "{degraded:?}");
    let refusal = node.checkout(ALICE).await.err().unwrap();
    assert_eq!(refusal.code, ErrorCode::StoreUnavailable, "{refusal}");
    sleep(Duration::from_mins(2)).await;
    assert_eq!(node.engine.health().degraded, []);
    assert!(node.engine.template(&name("default")).is_some());
    drop(node.checkout(ALICE).await.unwrap());
}

#[tokio::test(start_paused = true)]
async fn shutdown_without_disk_space_ends_within_its_grace() {
    let node = Node::start(config()).await;
    node.settle().await;
    let lease = node.checkout(ALICE).await.unwrap().keep();
    node.store.fail_commits(u32::MAX, store::StoreErrorCode::DiskFull);
    let refused = node.checkout(BOB).await.err().unwrap();
    assert_eq!(refused.code, ErrorCode::StoreUnavailable);
    let began = tokio::time::Instant::now();
    let stopped = node.engine.shutdown().await;
    let refusal = stopped.expect_err("the shutdown could not be orderly");
    assert!(refusal.to_string().contains("disk_full"), "{refusal}");
    // On paused time: this is what the shutdown waited for, not what it took.
    assert!(began.elapsed() <= Duration::from_secs(10), "{:?}", began.elapsed());
    assert_eq!(node.runtime.alive().sandboxes, 0, "{lease:?}");
}

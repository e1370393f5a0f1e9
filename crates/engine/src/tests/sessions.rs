//! Conversations over a runtime with injected faults: what a turn sends, what is stored afterwards,
//! and that nothing hangs whatever dies.

use std::sync::Arc;
use std::time::Duration;

use model::lifecycle::TurnOutcome;
use model::record::OnDisconnect;
use model::{ErrorCode, LifecycleEvent, Refusal, SessionId, SessionStatus, TurnId, TurnPiece};
use serde_json::Value;
use store::EventQuery;
use tokio::time::timeout;

use super::node::{ADMIN, ALICE, BOB, Node, config, name};
use crate::{
    SessionQuery, SessionRequest, SessionUpdate, StartedTurn, TurnFollow, TurnRequest, UseKind,
    WhenBusy,
};

const PATIENCE: Duration = Duration::from_secs(30);

fn say(line: &str) -> TurnRequest {
    let input = serde_json::to_string(line).unwrap().into();
    TurnRequest { input, when_busy: WhenBusy::Refuse, turn: None, wait_ms: None }
}

pub(super) async fn rest(follow: &mut TurnFollow) -> Vec<TurnPiece> {
    let mut pieces = Vec::new();
    while let Some(piece) = timeout(PATIENCE, follow.next()).await.expect("in time").unwrap() {
        pieces.push(piece);
    }
    pieces
}

fn names(pieces: &[TurnPiece]) -> Vec<&str> {
    pieces.iter().map(|piece| &*piece.name).collect()
}

fn data(piece: &TurnPiece) -> Value {
    serde_json::from_str(&piece.data).unwrap()
}

pub(super) fn outcome(pieces: &[TurnPiece]) -> String {
    let last = pieces.last().expect("an end");
    assert_eq!(&*last.name, "turn_ended");
    data(last)["outcome"].as_str().unwrap().to_owned()
}

impl Node {
    async fn session(&self) -> SessionId {
        let asked = SessionRequest::of(name("default"));
        self.engine.create_session(ALICE, asked).await.unwrap().id
    }

    pub(super) async fn send(
        &self,
        session: SessionId,
        line: &str,
    ) -> Result<StartedTurn, Refusal> {
        self.engine.start_turn(ALICE, session, say(line)).await
    }

    pub(super) async fn whole(&self, session: SessionId, line: &str) -> Vec<TurnPiece> {
        rest(&mut self.send(session, line).await.unwrap().follow).await
    }

    pub(super) async fn happened(&self, session: SessionId) -> Vec<LifecycleEvent> {
        let query = EventQuery { session: Some(session), ..EventQuery::after(0, 1_000) };
        let page = self.engine.events(ALICE, query).await.unwrap();
        page.events.into_iter().map(|stored| stored.event).collect()
    }
}

#[tokio::test(start_paused = true)]
async fn turn_pieces_are_sent_to_the_end_and_read_again_from_the_store() {
    let node = Node::start(config()).await;
    node.settle().await;
    let session = node.session().await;
    let mut started = node.send(session, "echo hi").await.unwrap();
    let received = rest(&mut started.follow).await;
    let expected = ["sandbox_active", "turn_started", "output", "result", "turn_ended"];
    assert_eq!(names(&received), expected);
    assert_eq!(data(&received[2])["text"], "hi\n");
    let end = data(&received[4]);
    assert_eq!((&end["outcome"], &end["error"]), (&"completed".into(), &Value::Null));
    assert_eq!(end["result"]["exit_code"], 0);
    let seqs: Vec<_> = received.iter().map(|piece| piece.seq).collect();
    assert_eq!(seqs, [1, 2, 3, 4, 5]);
    for after in 0..=4 {
        let follow = node.engine.follow_turn(ALICE, session, started.turn, after).await;
        let again = rest(&mut follow.unwrap()).await;
        assert_eq!(again, received[after as usize..], "after {after}");
    }
    let turns = node.engine.turns(ALICE, session, 0, 10).await.unwrap();
    assert_eq!(turns.len(), 1);
    assert_eq!(&*turns[0].input, "\"echo hi\"");
    assert_eq!(turns[0].end.as_ref().unwrap().outcome, TurnOutcome::Completed);
    assert!(turns[0].started.is_some());
}

#[tokio::test(start_paused = true)]
async fn turns_run_one_at_a_time_and_queued_ones_in_order() {
    let node = Node::start(config()).await;
    let session = node.session().await;
    let mut first = node.send(session, "sleep 5; echo one").await.unwrap();
    let refused = node.send(session, "echo two").await.err().unwrap();
    assert_eq!(refused.code, ErrorCode::TurnInProgress);
    let queue = |line: &str| TurnRequest { when_busy: WhenBusy::Queue, ..say(line) };
    let mut later = Vec::new();
    for line in ["echo two", "echo three"] {
        let started = node.engine.start_turn(ALICE, session, queue(line)).await.unwrap();
        assert!(started.queued);
        later.push(started);
    }
    let received = rest(&mut first.follow).await;
    assert_eq!(data(&received[2])["text"], "one\n");
    let mut previous = received.last().unwrap().at;
    for (mut started, text) in later.into_iter().zip(["two\n", "three\n"]) {
        let received = rest(&mut started.follow).await;
        assert_eq!(names(&received)[..2], ["sandbox_active", "turn_started"], "{received:?}");
        assert_eq!(data(&received[2])["text"], text);
        assert!(received[0].at >= previous, "it began after the end of the one before");
        previous = received.last().unwrap().at;
    }
}

#[tokio::test(start_paused = true)]
async fn abort_answers_after_the_turn_has_ended_and_the_next_message_gets_another_sandbox() {
    let node = Node::start(config()).await;
    let session = node.session().await;
    let before = node.engine.session(ALICE, session).unwrap();
    let mut started = node.send(session, "sleep 1000").await.unwrap();
    let aborted = node.engine.abort_session(ALICE, session, false).await.unwrap();
    assert_eq!((aborted.turn, aborted.sandbox_kept), (Some(started.turn), false));
    assert_eq!(outcome(&rest(&mut started.follow).await), "aborted");
    let terminated =
        |event: &&LifecycleEvent| matches!(event, LifecycleEvent::SandboxTerminated { .. });
    let happened = node.happened(session).await;
    assert_eq!(happened.iter().filter(terminated).count(), 1, "{happened:?}");
    let received = node.whole(session, "echo again").await;
    assert_eq!(outcome(&received), "completed");
    let after = node.engine.session(ALICE, session).unwrap();
    assert!(after.generation > before.generation);
}

#[tokio::test(start_paused = true)]
async fn a_sandbox_that_dies_in_the_middle_ends_the_turn_at_once_and_is_replaced() {
    for oom in [false, true] {
        let node = Node::start(config()).await;
        let session = node.session().await;
        let mut started = node.send(session, "sleep 1000").await.unwrap();
        let sandbox = node.engine.session(ALICE, session).unwrap().sandbox_id.unwrap();
        let view = node.engine.sandbox(ALICE, sandbox).unwrap();
        node.runtime.crash(view.instance.unwrap(), oom);
        let ended = timeout(Duration::from_secs(1), rest(&mut started.follow)).await;
        let expected = if oom { "oom" } else { "sandbox_crashed" };
        assert_eq!(outcome(&ended.expect("within a second")), expected);
        assert_eq!(outcome(&node.whole(session, "echo on").await), "completed");
    }
}

#[tokio::test(start_paused = true)]
async fn turn_continues_without_its_client_unless_configured_otherwise() {
    let node = Node::start(config()).await;
    let session = node.session().await;
    let started = node.send(session, "sleep 5; echo done").await.unwrap();
    let turn = started.turn;
    drop(started);
    let mut follow = node.engine.follow_turn(ALICE, session, turn, 2).await.unwrap();
    let received = rest(&mut follow).await;
    assert_eq!((names(&received)[0], &*outcome(&received)), ("output", "completed"));

    let asked = SessionRequest {
        on_disconnect: OnDisconnect::Abort,
        ..SessionRequest::of(name("default"))
    };
    let session = node.engine.create_session(ALICE, asked).await.unwrap().id;
    let started = node.send(session, "sleep 5; echo done").await.unwrap();
    let turn = started.turn;
    drop(started);
    let mut follow = node.engine.follow_turn(ALICE, session, turn, 0).await.unwrap();
    assert_eq!(outcome(&rest(&mut follow).await), "aborted");
}

#[tokio::test(start_paused = true)]
async fn turn_that_a_server_crash_interrupts_has_one_clear_end() {
    let node = Node::start(config()).await;
    let session = node.session().await;
    let mut started = node.send(session, "echo begun; sleep 1000").await.unwrap();
    let turn = started.turn;
    let mut seen = 0;
    while seen < 3 {
        seen = started.follow.next().await.unwrap().unwrap().seq;
    }
    let node = node.kill_and_start().await;
    for after in [0, 1, seen] {
        let mut follow = node.engine.follow_turn(ALICE, session, turn, after).await.unwrap();
        let received = rest(&mut follow).await;
        assert_eq!(outcome(&received), "interrupted");
        let ends = received.iter().filter(|piece| &*piece.name == "turn_ended").count();
        assert_eq!(ends, 1);
        assert!(received.iter().all(|piece| piece.seq > after), "{received:?}");
        assert_eq!(data(received.last().unwrap())["error"]["code"], "interrupted");
    }
    assert_eq!(node.engine.session(ALICE, session).unwrap().status, SessionStatus::Paused);
    assert_eq!(outcome(&node.whole(session, "echo on").await), "completed");
    drop(started);
}

#[tokio::test(start_paused = true)]
async fn fork_begins_with_the_history_of_its_parent() {
    let node = Node::start(config()).await;
    let session = node.session().await;
    node.whole(session, "echo one").await;
    let fork = node.engine.fork_session(ALICE, session).await;
    let fork = fork.unwrap();
    assert_eq!((fork.parent, fork.status), (Some(session), SessionStatus::Paused));
    node.whole(fork.id, "echo two").await;
    let inputs = |turns: Vec<model::TurnRecord>| -> Vec<Arc<str>> {
        turns.into_iter().map(|turn| turn.input).collect()
    };
    let of_fork = inputs(node.engine.turns(ALICE, fork.id, 0, 10).await.unwrap());
    assert_eq!(of_fork, [Arc::from("\"echo one\""), Arc::from("\"echo two\"")]);
    assert_eq!(node.engine.turns(ALICE, session, 0, 10).await.unwrap().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn sessions_of_one_key_do_not_exist_for_another() {
    let node = Node::start(config()).await;
    let session = node.session().await;
    let started = node.send(session, "echo hi").await.unwrap();
    let engine = &node.engine;
    let unknown = ErrorCode::SessionUnknown;
    assert_eq!(engine.session(BOB, session).unwrap_err().code, unknown);
    assert_eq!(engine.start_turn(BOB, session, say("id")).await.err().unwrap().code, unknown);
    assert_eq!(engine.abort_session(BOB, session, true).await.unwrap_err().code, unknown);
    assert_eq!(engine.pause_session(BOB, session).await.unwrap_err().code, unknown);
    assert_eq!(engine.resume_session(BOB, session).await.unwrap_err().code, unknown);
    assert_eq!(engine.stop_session(BOB, session).await.unwrap_err().code, unknown);
    assert_eq!(engine.end_session(BOB, session).await.unwrap_err().code, unknown);
    assert_eq!(engine.fork_session(BOB, session).await.unwrap_err().code, unknown);
    let update = engine.update_session(BOB, session, SessionUpdate::default()).await;
    assert_eq!(update.unwrap_err().code, unknown);
    let used = engine.use_session(BOB, session, UseKind::Exec, None).await;
    assert_eq!(used.err().unwrap().code, unknown);
    assert_eq!(engine.session_logs(BOB, session, None).unwrap_err().code, unknown);
    assert_eq!(engine.turns(BOB, session, 0, 10).await.unwrap_err().code, unknown);
    let turn = engine.turn(BOB, session, started.turn).await.unwrap_err();
    assert_eq!(turn.code, ErrorCode::TurnUnknown);
    let follow = engine.follow_turn(BOB, session, started.turn, 0).await;
    assert_eq!(follow.err().unwrap().code, ErrorCode::TurnUnknown);
    let query = SessionQuery { limit: 10, ..SessionQuery::default() };
    assert_eq!(engine.sessions(BOB, &query).sessions.len(), 0);
    assert_eq!(engine.sessions(ALICE, &query).sessions.len(), 1);
    assert_eq!(engine.sessions(ADMIN, &query).sessions.len(), 1);
}

/// Pages go on where they were, whatever ids there are and whatever was removed in between.
#[tokio::test(start_paused = true)]
async fn session_pages_go_on_after_a_session_that_is_gone() {
    let node = Node::start(config()).await;
    let ids = [u128::MAX - 9, 5, 1 << 90, 3, u128::MAX / 3, 4].map(SessionId::from_u128);
    for id in ids {
        let asked = SessionRequest { session: Some(id), ..SessionRequest::of(name("default")) };
        node.engine.create_session(ALICE, asked).await.unwrap();
        tokio::time::advance(Duration::from_secs(1)).await;
    }
    let mut query = SessionQuery { limit: 2, ..SessionQuery::default() };
    let mut seen = Vec::new();
    loop {
        let page = node.engine.sessions(ALICE, &query);
        seen.extend(page.sessions.iter().map(|view| view.id));
        for view in page.sessions {
            node.engine.end_session(ALICE, view.id).await.unwrap();
            // Without its files nothing is left of it.
            node.engine.delete_sandbox(ALICE, view.sandbox_id.unwrap()).await.unwrap();
        }
        query.after = page.next;
        if query.after.is_none() || seen.len() > ids.len() {
            break;
        }
    }
    assert!(seen.iter().eq(ids.iter().rev()), "{seen:?}");
    assert_eq!(node.engine.sessions(ALICE, &SessionQuery::default()).sessions.len(), 0);
}

#[tokio::test(start_paused = true)]
async fn ended_session_stays_known_and_accepts_nothing() {
    let node = Node::start(config()).await;
    let session = node.session().await;
    node.whole(session, "echo hi").await;
    let ended = node.engine.end_session(ALICE, session).await.unwrap().unwrap();
    assert_eq!((ended.status, ended.sandbox_id), (SessionStatus::Ended, None));
    assert!(node.engine.end_session(ALICE, session).await.is_ok(), "and again");
    let refused = node.send(session, "echo hi").await.err().unwrap();
    assert_eq!(refused.code, ErrorCode::SessionEnded);
    assert_eq!(node.engine.turns(ALICE, session, 0, 10).await.unwrap().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn message_with_a_known_turn_id_is_not_sent_again() {
    let node = Node::start(config()).await;
    let session = node.session().await;
    let turn = Some(TurnId::from_u128(7));
    let asked = || TurnRequest { turn, ..say("sleep 1") };
    let mut started = node.engine.start_turn(ALICE, session, asked()).await.unwrap();
    let again = node.engine.start_turn(ALICE, session, asked()).await.err().unwrap();
    assert_eq!(again.code, ErrorCode::IdConflict);
    rest(&mut started.follow).await;
    let again = node.engine.start_turn(ALICE, session, asked()).await.err().unwrap();
    assert_eq!(again.code, ErrorCode::IdConflict);
}

#[tokio::test(start_paused = true)]
async fn turn_output_is_complete_however_slowly_it_is_followed() {
    let node = Node::start(config()).await;
    let session = node.session().await;
    let line = "echo 0123456789; ".repeat(3_000);
    let started = node.send(session, &line).await.unwrap();
    let mut follow = node.engine.follow_turn(ALICE, session, started.turn, 0).await.unwrap();
    let mut text = String::new();
    while let Some(piece) = timeout(PATIENCE, follow.next()).await.expect("in time").unwrap() {
        if &*piece.name == "output" {
            text.push_str(data(&piece)["text"].as_str().unwrap());
            if piece.seq % 500 == 0 {
                node.settle().await;
            }
        }
    }
    assert_eq!(text.len(), 3_000 * 11);
}

//! Random conversations: clients create sessions, talk, vanish, come back, abort, pause, stop, fork
//! and end, with the same faults as in the other random worlds. In every world each accepted turn
//! has exactly one end, sent in order, in bounded time, and after a restart too.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use harness::scripted::ScriptedJsonl;
use model::template::{Harness, HarnessProgram};
use model::{ErrorCode, Refusal, SessionId, SessionStatus, TurnId};
use store::memory::MemoryStore;
use store::{Retention, Store as _, TurnQuery};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use super::node::{ALICE, Node, config, name, template};
use super::random_worlds::{Dice, is_clear, trouble};
use crate::{
    EngineConfig, SessionQuery, SessionRequest, TurnFollow, TurnRequest, UseKind, WhenBusy,
};

const WORLDS: u64 = 30;
const CLIENTS: u64 = 6;
/// Everything that is awaited has a deadline below this.
const PATIENCE: Duration = Duration::from_mins(6);

/// Accepted turns and their sessions.
type Accepted = Arc<Mutex<BTreeMap<TurnId, SessionId>>>;

fn small() -> EngineConfig {
    let mut config = config();
    config.node.max_live = 6;
    config.node.max_sandboxes = 24;
    config.shutdown_grace_ms = 2_000;
    let mut talker = template("talker");
    let command = vec!["jsonl".to_owned()];
    talker.harness = Harness::Jsonl(HarnessProgram { command, prewarm: false });
    config.templates.push(talker);
    for template in &mut config.templates {
        template.ready_timeout_ms = 2_000;
        template.turn_timeout_ms = 20_000;
        template.idle_timeout_ms = Some(30_000);
    }
    config
}

async fn start(store: Arc<MemoryStore>) -> Arc<Node> {
    let node = Node::on(store, small()).await;
    node.runtime.add_program("jsonl", Arc::new(ScriptedJsonl));
    Arc::new(node)
}

#[tokio::test(start_paused = true)]
async fn random_world_gives_every_turn_one_end() {
    let number = |name| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    let first = number("ENGINE_SEED").unwrap_or(0);
    for seed in first..first + number("ENGINE_WORLDS").unwrap_or(WORLDS) {
        world(seed).await;
    }
}

async fn world(seed: u64) {
    let mut dice = Dice(seed);
    let accepted = Accepted::default();
    let mut store = Arc::new(MemoryStore::new(Retention::default()));
    for _ in 0..=dice.below(3) {
        let node = start(Arc::clone(&store)).await;
        let mut clients = JoinSet::new();
        for _ in 0..CLIENTS {
            let dice = Dice(dice.roll());
            clients.spawn(client(Arc::clone(&node), Arc::clone(&accepted), dice));
        }
        tokio::select! {
            () = trouble(&node, Dice(dice.roll())) => {}
            result = clients.join_next() => panic!("seed {seed}: a client ended: {result:?}"),
        }
        if dice.below(2) == 0 {
            node.store.release_commits();
            if let Err(refusal) = node.engine.shutdown().await {
                // And so may a store that fails again and again.
                let expected = [ErrorCode::DeadlineExceeded, ErrorCode::StoreUnavailable];
                assert!(expected.contains(&refusal.code), "seed {seed}: {refusal}");
            }
        }
        clients.shutdown().await;
        node.engine.core.halt();
        store = Arc::new(node.store.crash());
    }
    peace(seed, store, &accepted).await;
}

/// When nothing fails any more, everything has ended, and every client can go on.
async fn peace(seed: u64, store: Arc<MemoryStore>, accepted: &Accepted) {
    let node = start(store).await;
    sleep(Duration::from_mins(5)).await;
    assert!(node.engine.core.turns.is_empty(), "seed {seed}");
    assert!(
        node.engine.core.instance_ends.is_empty(),
        "seed {seed}: something is still in a sandbox"
    );
    let accepted = accepted.lock().unwrap().clone();
    for (turn, session) in &accepted {
        let record = node.store.turn(*turn).await.unwrap();
        let record = record.unwrap_or_else(|| panic!("seed {seed}: {turn} was lost"));
        assert_eq!(record.session, *session);
        let end = record.end.unwrap_or_else(|| panic!("seed {seed}: {turn} has no end"));
        let pieces = node.store.pieces(*turn, 0, 10_000).await.unwrap();
        let mut last = 0;
        for piece in &pieces {
            assert!(piece.seq > last, "seed {seed}: {piece:?} after {last}");
            last = piece.seq;
        }
        let names: Vec<_> = pieces.iter().map(|piece| &*piece.name).collect();
        let starts = names.iter().filter(|name| **name == "turn_started").count();
        let given = usize::from(record.started.is_some());
        assert_eq!(starts, given, "seed {seed}: {names:?}");
        let start = names.iter().position(|name| *name == "turn_started");
        let said = names.iter().position(|name| matches!(*name, "output" | "message" | "result"));
        assert!(said.is_none() || start < said && start.is_some(), "seed {seed}: {names:?}");
        assert!(end.seq > last, "seed {seed}: {end:?} after {last}");
    }
    let query = SessionQuery { limit: 1_000, ..SessionQuery::default() };
    for view in node.engine.sessions(ALICE, &query).sessions {
        assert_ne!(view.status, SessionStatus::Starting, "seed {seed}: {view:?}");
        assert_eq!((view.turn, view.queued_turns), (None, 0), "seed {seed}: {view:?}");
        let turns = TurnQuery { session: view.id, after: 0, limit: 1_000 };
        let open = node.store.turns(&turns).await.unwrap();
        assert!(open.iter().all(|turn| turn.end.is_some()), "seed {seed}: {open:?}");
        match view.status {
            SessionStatus::Active | SessionStatus::Paused => {
                let asked = TurnRequest {
                    input: r#""echo on""#.into(),
                    when_busy: WhenBusy::Refuse,
                    turn: None,
                    wait_ms: None,
                };
                let started = node.engine.start_turn(ALICE, view.id, asked).await;
                let started = started.unwrap_or_else(|refusal| panic!("seed {seed}: {refusal}"));
                assert!(to_the_end(started.follow).await, "seed {seed}: a stream without an end");
            }
            SessionStatus::Starting | SessionStatus::Stopped | SessionStatus::Ended => {}
        }
    }
}

/// A client that goes on for ever, with a few sessions of its own.
async fn client(node: Arc<Node>, accepted: Accepted, mut dice: Dice) {
    let mut sessions: Vec<SessionId> = Vec::new();
    loop {
        sleep(dice.millis(500)).await;
        let of = sessions.len() as u64;
        if of == 0 || of < 3 && dice.below(4) == 0 {
            let asked = SessionRequest::of(name(dice.pick(&["default", "talker"])));
            let creating = node.engine.create_session(ALICE, asked);
            if dice.below(6) == 0 {
                // It vanishes at some await: no client knows of the session.
                let _ = timeout(dice.millis(50), creating).await;
                continue;
            }
            match timeout(PATIENCE, creating).await.expect("a session is answered in time") {
                Ok(view) => sessions.push(view.id),
                Err(refusal) => assert!(is_clear(&refusal), "{refusal}"),
            }
            continue;
        }
        let at = dice.below(of) as usize;
        let session = sessions[at];
        let what = dice.below(16);
        let acting = act(&node, &accepted, session, what, &mut dice);
        let over = timeout(PATIENCE, acting).await.expect("everything is answered in time");
        match over {
            Ok(()) if what == 0 => {
                sessions.swap_remove(at);
            }
            Ok(()) => {}
            Err(refusal) if refusal.code == ErrorCode::SessionEnded => {
                sessions.swap_remove(at);
            }
            Err(refusal) => assert!(is_clear(&refusal), "{refusal}"),
        }
    }
}

async fn act(
    node: &Node,
    accepted: &Accepted,
    session: SessionId,
    what: u64,
    dice: &mut Dice,
) -> Result<(), Refusal> {
    let engine = &node.engine;
    match what {
        0 => engine.end_session(ALICE, session).await.map(|_| ()),
        1 => engine.stop_session(ALICE, session).await.map(|_| ()),
        2 => engine.pause_session(ALICE, session).await.map(|_| ()),
        3 | 4 => engine.resume_session(ALICE, session).await.map(|_| ()),
        5 | 6 => engine.abort_session(ALICE, session, dice.below(2) == 0).await.map(|_| ()),
        7 => {
            let used = engine.use_session(ALICE, session, UseKind::Exec, None).await?;
            let limits = runtime::RunLimits::from(&used.limits());
            used.run(runtime::ExecSpec::shell("sleep 0.1"), limits).await.map(|_| ())
        }
        8 => engine.fork_session(ALICE, session).await.map(|_| ()),
        _ => talk(node, accepted, session, dice).await,
    }
}

/// Sends a message, and stays, leaves, or leaves and comes back.
async fn talk(
    node: &Node,
    accepted: &Accepted,
    session: SessionId,
    dice: &mut Dice,
) -> Result<(), Refusal> {
    // Each harness takes both scripts: what one does not know is an error of the other.
    let script = dice.pick(&["echo hi", "sleep 1; echo hi", "say a; sleep 300; say b", "hang"]);
    let asked = TurnRequest {
        input: serde_json::to_string(script).unwrap().into(),
        when_busy: dice.pick(&[WhenBusy::Refuse, WhenBusy::Queue]),
        turn: None,
        wait_ms: None,
    };
    let starting = node.engine.start_turn(ALICE, session, asked);
    if dice.below(8) == 0 {
        let _ = timeout(dice.millis(50), starting).await;
        return Ok(());
    }
    let started = starting.await?;
    let turn = started.turn;
    accepted.lock().unwrap().insert(turn, session);
    match dice.below(4) {
        0 => Ok(()),
        1 => {
            drop(started);
            sleep(dice.millis(2_000)).await;
            let after = dice.below(4);
            let ended = to_the_end(node.engine.follow_turn(ALICE, session, turn, after).await?);
            assert!(ended.await || *node.engine.core.stopped.borrow(), "a stream without an end");
            Ok(())
        }
        _ => {
            let ended = to_the_end(started.follow).await;
            assert!(ended || *node.engine.core.stopped.borrow(), "a stream without an end");
            Ok(())
        }
    }
}

/// Follows a turn to its end, and checks that the end is the last piece and the only one.
async fn to_the_end(mut follow: TurnFollow) -> bool {
    let mut last = 0;
    let mut ended = false;
    // A store that cannot be read ends the stream, and the client comes back later.
    while let Ok(Some(piece)) = timeout(PATIENCE, follow.next()).await.expect("in time") {
        assert!(piece.seq > last, "{piece:?} after {last}");
        assert!(!ended, "{piece:?} after the end");
        last = piece.seq;
        ended = &*piece.name == "turn_ended";
    }
    ended
}

//! The server is killed at a random moment of a turn, again and again. The session goes on with its
//! files, a client that follows the turn again gets its rest or one clear end, and the end of each
//! sandbox is published once.

use std::collections::BTreeMap;
use std::time::Duration;

use client::{Client, ClientError, Conversation, EventUpdate, TurnStream};
use model::lifecycle::TurnOutcome;
use model::{ErrorCode, Generation, TurnId};
use tokio::time::{sleep, timeout};
use wire::{EventBody, SessionRequest, TurnRequest};

use crate::storm::node::Server;

/// How often the server is killed if `KILLS` does not say; `scripts/long.sh` says 200.
const KILLS: u32 = 15;
const PATIENCE: Duration = Duration::from_secs(30);

const CONFIG: &str = r#"
[[templates]]
name = "default"
pool = { pool_size = 1, max_overflow = 4 }
workspace = { kind = "disk", limit = "soft" }
"#;

/// What became of one turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Became {
    /// The turn had ended before the server was killed, or ran to its end anyway.
    Completed,
    Interrupted,
    /// The server was killed before it had taken the message.
    NeverTaken,
}

#[test]
fn a_session_survives_kills_in_the_middle_of_its_turns() {
    let Some(mut server) = Server::start("crashes", CONFIG) else { return };
    let kills = std::env::var("KILLS").ok().and_then(|text| text.parse().ok()).unwrap_or(KILLS);
    let tokio = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    tokio.block_on(async {
        let template = "default".to_owned().try_into().unwrap();
        let made = server.client().create_session(&SessionRequest::of(template)).await.unwrap();
        let mut became = BTreeMap::new();
        let mut begun = Vec::new();
        let mut moment = 0x2545_f491_4f6c_dd1d_u64;
        for round in 0..kills {
            moment = moment.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let pause = Duration::from_micros((moment >> 33) % 40_000);
            let session = server.client().session(made.id);
            let turn = TurnId::from_u128((u128::from(round) << 64) | 0x00c0_ffee);
            let talk = tokio::spawn(talk(session, round, turn));
            sleep(pause).await;
            tokio::task::block_in_place(|| {
                server.kill();
                server.start_again();
            });
            let seen = timeout(PATIENCE, talk).await.expect("a broken stream ends").unwrap();
            let session = server.client().session(made.id);
            let what = come_back(&session, turn, &seen).await;
            *became.entry(what).or_insert(0) += 1;
            if seen.begun {
                begun.push(round);
            }
            check_files(&session, &begun).await;
        }
        println!("{became:?}, {} seen to begin", begun.len());
        let enough = kills as usize / 10;
        assert!(begun.len() > enough && became[&Became::Interrupted] > enough, "{became:?}");
        check_events(&server.client(), &server.client().session(made.id), kills).await;
    });
    assert_eq!(server.stop(), Some(0), "{}", server.log());
    assert_eq!(server.leftovers(), Vec::<std::path::PathBuf>::new());
}

#[derive(Debug, Default)]
struct SeenTurn {
    last: u64,
    begun: bool,
    ended: bool,
}

/// Sends a message and listens to the end, over the death of the server.
async fn talk(session: Conversation, round: u32, turn: TurnId) -> SeenTurn {
    let line = format!("echo {round} >> begun; echo begun; sleep 0.02; echo {round} >> done");
    let request = TurnRequest { id: Some(turn), ..TurnRequest::text(line) };
    let mut seen = SeenTurn::default();
    // Killed before it answered, it may have taken the message or not.
    let Ok(mut stream) = session.send(request).await else { return seen };
    loop {
        let event = match stream.next().await {
            Ok(Some(event)) => event,
            Ok(None) => break,
            // It looked for a message that had not been taken.
            Err(error) if error.code() == Some(ErrorCode::TurnUnknown) && seen.last == 0 => {
                return seen;
            }
            Err(error) => panic!("{error:?}"),
        };
        assert!(event.id > seen.last, "{event:?} after {}", seen.last);
        assert!(!seen.ended, "{event:?} after the end");
        seen.last = event.id;
        seen.begun |= event.event == "output";
        seen.ended = event.event == "turn_ended";
    }
    assert!(seen.ended, "the stream has the end");
    seen
}

/// A client that follows again gets the rest of the turn, or one clear end.
async fn come_back(session: &Conversation, turn: TurnId, seen: &SeenTurn) -> Became {
    let last = seen.last;
    let mut stream: TurnStream = session.follow(turn, last);
    let mut ends = Vec::new();
    loop {
        match timeout(PATIENCE, stream.next()).await.expect("no client waits for ever") {
            Ok(Some(event)) => {
                assert!(event.id > last, "{event:?} was sent before");
                if event.event == "turn_ended" {
                    ends.push(event.data["outcome"].clone());
                }
            }
            Ok(None) => break,
            Err(error) if code(&error) == Some(ErrorCode::TurnUnknown) => {
                assert_eq!(last, 0, "its start had been sent");
                return Became::NeverTaken;
            }
            Err(error) => panic!("{error:?}"),
        }
    }
    let outcome = session.turn(turn).await.unwrap().outcome.expect("the turn has ended");
    // A client that has seen the end gets nothing else.
    assert_eq!(ends.len(), usize::from(!seen.ended), "{ends:?} after {seen:?}");
    match outcome {
        TurnOutcome::Completed => Became::Completed,
        TurnOutcome::Interrupted => Became::Interrupted,
        TurnOutcome::Failed
        | TurnOutcome::Aborted
        | TurnOutcome::TimedOut
        | TurnOutcome::SandboxCrashed
        | TurnOutcome::Oom
        | TurnOutcome::DiskLimit
        | TurnOutcome::Expired
        | TurnOutcome::NotStarted => panic!("{outcome:?}"),
    }
}

fn code(error: &ClientError) -> Option<ErrorCode> {
    error.code()
}

/// Everything that was seen to be written is there, in a sandbox of another generation.
async fn check_files(session: &Conversation, begun: &[u32]) {
    let answer = session.ask(&TurnRequest::text("cat begun 2>/dev/null || true")).await.unwrap();
    assert_eq!(answer.outcome, TurnOutcome::Completed, "{answer:?}");
    let output = answer.output;
    let there: Vec<u32> = output.lines().map(|line| line.parse().unwrap()).collect();
    for round in begun {
        assert!(there.contains(round), "{round} of {begun:?} is missing: {there:?}");
    }
}

/// Each generation that was published as active is published as terminated once, except the last.
async fn check_events(client: &Client, session: &Conversation, kills: u32) {
    let now = session.get().await.unwrap().generation;
    let mut stream = session.events(Some(0));
    let mut active: BTreeMap<Generation, u32> = BTreeMap::new();
    let mut terminated: BTreeMap<Generation, u32> = BTreeMap::new();
    let last = client.events(client::EventsQuery::default()).await.unwrap();
    assert!(last.oldest <= 1, "everything is remembered");
    let mut id = 0;
    while let Ok(seen) = timeout(Duration::from_secs(2), stream.next()).await {
        let EventUpdate::Event(event) = seen.unwrap() else { panic!("events were forgotten") };
        // It comes beside the history, with the number of the event before it.
        let beside = matches!(event.body, EventBody::SandboxState { .. });
        let follows = event.id > id || (beside && event.id == id);
        assert!(follows, "in order");
        id = event.id;
        match event.body {
            EventBody::SandboxActive { generation, .. } => {
                *active.entry(generation).or_default() += 1;
            }
            EventBody::SandboxTerminated { generation, .. } => {
                *terminated.entry(generation).or_default() += 1;
            }
            EventBody::StateLost { .. } => panic!("files were given up: {event:?}"),
            EventBody::WorkspaceDurable { .. }
            | EventBody::SessionChanged { .. }
            | EventBody::TurnStarted { .. }
            | EventBody::TurnEnded { .. }
            | EventBody::SandboxFrozen { .. }
            | EventBody::SandboxWakefulness { .. }
            | EventBody::SandboxState { .. }
            | EventBody::PoolHealth { .. } => {}
        }
    }
    assert!(terminated.values().all(|count| *count == 1), "{terminated:?}");
    for generation in active.keys().filter(|generation| **generation < now) {
        assert!(terminated.contains_key(generation), "{generation} of {active:?} has no end");
    }
    assert!(!terminated.contains_key(&now), "the present one lives");
    assert!(active.len() > kills as usize / 2, "{} generations", active.len());
}

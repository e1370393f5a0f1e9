//! Processes in random worlds: started, followed, fed, stopped and given up at any moment, while
//! sandboxes die, the store fails and the server is killed. In every world each request is
//! answered, the output that is read is the output that was written, every process ends with a
//! reason, and nothing of it is left.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use model::process::RestartPolicy;
use model::{ErrorCode, ProcessRecord, Refusal, SandboxId};
use store::memory::MemoryStore;
use store::{Retention, Store as _};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use super::node::{ALICE, Node, config};
use super::processes::{query, shell, text};
use super::random_worlds::{Dice, is_clear, trouble};
use crate::{OutputSelection, ProcessInput, ProcessQuery, ProcessRef, ProcessRequest, UseKind};

const WORLDS: u64 = 15;
const CLIENTS: u64 = 5;
/// The longest time that anything with a deadline may take.
const PATIENCE: Duration = Duration::from_mins(5);

/// What programs do, and what they write then.
const PROGRAMS: [(&str, &str); 7] = [
    ("echo one; sleep 0.1; echo two; sleep 0.3; echo three", "one\ntwo\nthree\n"),
    ("sleep 0.05; echo out; sleep 5; echo late", "out\nlate\n"),
    ("echo short", "short\n"),
    ("exit 3", ""),
    ("sleep 1000", ""),
    ("echo a; crash", "a\n"),
    ("cat", "fed\n"),
];

#[tokio::test(start_paused = true)]
async fn random_world_ends_processes_with_a_reason() {
    let number = |name| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    let first = number("ENGINE_SEED").unwrap_or(0);
    for seed in first..first + number("ENGINE_WORLDS").unwrap_or(WORLDS) {
        world(seed).await;
    }
}

async fn world(seed: u64) {
    let mut dice = Dice(seed);
    let mut node = Node::on(Arc::new(MemoryStore::new(Retention::default())), config()).await;
    for _ in 0..=dice.below(2) {
        let running = Arc::new(node);
        let mut clients = JoinSet::new();
        for _ in 0..CLIENTS {
            clients.spawn(client(Arc::clone(&running), Dice(dice.roll())));
        }
        tokio::select! {
            () = trouble(&running, Dice(dice.roll())) => {}
            result = clients.join_next() => panic!("seed {seed}: a client ended: {result:?}"),
        }
        running.store.release_commits();
        if dice.below(2) == 0 {
            // A shutdown may report that it was late; that it ended is what counts.
            let _ = running.engine.shutdown().await;
            assert_eq!(running.runtime.alive().tasks, 0, "seed {seed}: after an orderly stop");
        }
        clients.shutdown().await;
        sleep(dice.millis(200)).await;
        let Some(left) = Arc::into_inner(running) else {
            panic!("seed {seed}: a client still has the node")
        };
        node = left.kill_and_start().await;
        let unfinished = node.store.unfinished_processes(10).await.unwrap();
        assert!(unfinished.is_empty(), "seed {seed}: {unfinished:?}");
    }
    sleep(Duration::from_mins(5)).await;
    let alive = node.runtime.alive();
    assert_eq!((alive.tasks, alive.streams), (0, 0), "seed {seed}: {alive:?}");
    assert!(node.engine.core.processes.are_idle(), "seed {seed}");
}

/// A client that goes on for ever.
async fn client(node: Arc<Node>, mut dice: Dice) {
    loop {
        sleep(dice.millis(300)).await;
        let Ok(lease) = node.checkout(ALICE).await else { continue };
        let lease = lease.keep();
        for _ in 0..dice.below(4) {
            check(with_process(&node, lease.sandbox, &mut dice).await);
        }
        let over = node.engine.return_lease(ALICE, lease.lease);
        let _ = timeout(PATIENCE, over).await.expect("a return is answered");
    }
}

fn check(done: Result<(), Refusal>) {
    let Err(refusal) = done else { return };
    let expected = [ErrorCode::ProcessOver, ErrorCode::StdinClosed];
    assert!(is_clear(&refusal) || expected.contains(&refusal.code), "{refusal}");
}

async fn with_process(node: &Node, sandbox: SandboxId, dice: &mut Dice) -> Result<(), Refusal> {
    let (line, written) = dice.pick(&PROGRAMS);
    let asked = ProcessRequest {
        stdin: if line == "cat" { ProcessInput::Open } else { ProcessInput::Null },
        keep_alive: dice.below(3) == 0,
        timeout_ms: (dice.below(3) == 0).then(|| dice.below(4_000)),
        restart: (dice.below(3) == 0).then_some(RestartPolicy { max_restarts: Some(2) }),
        ..shell(line)
    };
    let again = asked.restart.is_some();
    let starting = async {
        let used = node.engine.use_sandbox(ALICE, sandbox, UseKind::Exec).await?;
        used.start_process(asked).await
    };
    let patience = if dice.below(8) == 0 { dice.millis(20) } else { PATIENCE };
    let Ok(started) = timeout(patience, starting).await else { return Ok(()) };
    let record = started?;
    for _ in 0..dice.below(4) {
        let act = act(node, &record, (written, again), dice.below(7));
        let patience = if dice.below(4) == 0 { dice.millis(500) } else { Duration::from_secs(40) };
        // Some are given up in the middle, as clients do.
        if let Ok(done) = timeout(patience, act).await {
            done?;
        }
    }
    Ok(())
}

async fn act(
    node: &Node,
    record: &ProcessRecord,
    (written, again): (&str, bool),
    what: u64,
) -> Result<(), Refusal> {
    let (engine, sandbox) = (&node.engine, record.sandbox);
    let of = ProcessRef::Id(record.id);
    let is_right = |seen: &str| again || written.starts_with(seen);
    match what {
        0 => {
            let over = engine.wait_process(ALICE, sandbox, &of).await?;
            assert!(over.end.is_some(), "{over:?}");
        }
        1 => {
            let over = engine.stop_process(ALICE, sandbox, &of, 500).await?;
            assert!(over.end.is_some(), "{over:?}");
        }
        2 => drop(engine.kill_process(ALICE, sandbox, &of).await?),
        3 => {
            engine.write_stdin(ALICE, sandbox, &of, Bytes::from_static(b"fed\n")).await?;
            engine.close_stdin(ALICE, sandbox, &of).await?;
        }
        4 => {
            let mut follow =
                engine.follow_log(ALICE, sandbox, &of, OutputSelection::Both, 0).await?;
            let mut seen = String::new();
            while let Some(piece) = follow.next().await? {
                assert_eq!(piece.offset, seen.len() as u64);
                seen.push_str(std::str::from_utf8(&piece.bytes).unwrap());
                assert!(is_right(&seen), "{seen:?} of {written:?}");
            }
        }
        5 => {
            let asked = query(OutputSelection::Stdout, Some(0), 1_000);
            let page = engine.process_log(ALICE, sandbox, &of, asked).await?;
            assert!(is_right(&text(&page)), "{page:?} of {written:?}");
        }
        _ => {
            let all = ProcessQuery { before: None, limit: 100, running: false };
            let page = engine.processes(ALICE, sandbox, &all).await?;
            assert!(page.processes.iter().any(|one| one.id == record.id));
        }
    }
    Ok(())
}

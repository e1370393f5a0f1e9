//! Nothing of one use reaches the next, whatever the first did to leave something: files, shared
//! memory, queues, sockets, processes that cannot be signalled, settings. A process that does not
//! end is killed at its timeout.

use std::collections::BTreeMap;

use client::Lease;
use serde_json::{Value, json};
use wire::{CheckoutRequest, ExecRequest, ExecResult};

use super::stage::{Kind, Stage};
use crate::shell::skipped;

on_every_runtime!(wipe_leaves_nothing_for_the_next_use);

const MISCHIEF: &str = include_str!("mischief.py");
const LOOK: &str = include_str!("inspect.py");
const ROUNDS: u32 = 3;

fn wipe_leaves_nothing_for_the_next_use(kind: Kind) {
    if !std::path::Path::new("/usr/bin/python3").exists() {
        return skipped("no /usr/bin/python3");
    }
    let Some(stage) = Stage::start(kind, "remains") else { return };
    stage.act(async {
        stage.pool(json!({ "pool_size": 1, "max_overflow": 0 })).await;
        let first = stage.checkout().await;
        let untouched = look(&first).await;
        first.give_back().await.unwrap();
        for round in 0..ROUNDS {
            let before = stage.stats().await.counters.recycled;
            let env = BTreeMap::from([("TOKEN".to_owned(), "hunter2".to_owned())]);
            let asked = CheckoutRequest { env, ..Stage::wish() };
            let theirs = stage.client().checkout(asked).await.unwrap();
            let container = stage.container_of(theirs.sandbox().id);
            let done = misbehave(&theirs).await;
            // The next user would find it; what it started is killed with it at its timeout.
            let found = look(&theirs).await;
            for what in ["files", "scale", "environment"] {
                assert_ne!(found[what], untouched[what], "{what}: {done:?}");
            }
            theirs.give_back().await.unwrap();
            let mine = stage.checkout().await;
            assert_eq!(mine.sandbox().labels, BTreeMap::new());
            assert!(!mine.get().await.unwrap().awake, "kept awake by what was before");
            assert_eq!(look(&mine).await, untouched, "round {round}, after: {done:?}");
            // The runtime decides whether to wipe; the id of the container shows that it did.
            let wiped = stage.stats().await.counters.recycled > before;
            if let Some(container) = container {
                let same = stage.container_of(mine.sandbox().id) == Some(container);
                assert_eq!(same, wiped, "round {round}");
            }
            mine.give_back().await.unwrap();
        }
        stage.full().await;
        assert_eq!(stage.found(), 1);
    });
    stage.end();
}

/// Does what it can, until its timeout.
async fn misbehave(lease: &Lease) -> ExecResult {
    let limited = ExecRequest { timeout_ms: Some(3_000), ..ExecRequest::argv(python(MISCHIEF)) };
    let done = lease.exec(limited).await.unwrap();
    assert!(done.timed_out, "{done:?}");
    let managed = done.stdout.as_deref().unwrap_or_default();
    for what in ["managed", " /workspace", " /tmp", " /dev/shm", " sockets"] {
        assert!(managed.contains(what), "it should have managed more: {done:?}");
    }
    done
}

/// What a program finds in a sandbox.
async fn look(lease: &Lease) -> Value {
    let seen = lease.exec(ExecRequest::argv(python(LOOK))).await.unwrap();
    assert_eq!(seen.exit_code, 0, "{seen:?}");
    serde_json::from_str(&seen.stdout.unwrap()).unwrap()
}

fn python(text: &str) -> [&str; 4] {
    ["/usr/bin/python3", "-I", "-c", text]
}

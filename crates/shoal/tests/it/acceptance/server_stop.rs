//! The end of the server: a signal to stop leaves nothing, whatever the server was doing; a kill
//! leaves what the next start removes before it fills the pool again.

use std::time::Duration;

use serde_json::json;
use tokio::task::JoinSet;
use tokio::time::sleep;
use wire::ExecRequest;

use super::machine;
use super::stage::{Kind, PATIENCE, Stage};

on_every_runtime!(
    server_stopped_at_any_moment_leaves_nothing,
    server_start_removes_what_a_killed_server_left
);

const POOL_SIZE: u32 = 2;

/// Moments after the beginning of a run, from before the first launch to after the last.
const MOMENTS_MS: [u64; 6] = [0, 15, 60, 200, 600, 1_500];

/// Starts everything that a server can be in the middle of: launches of the pool and of those who
/// wait, checkouts, programs that do not want to end.
fn begin(stage: &Stage) -> JoinSet<()> {
    let mut busy = JoinSet::new();
    for _ in 0..=2 * POOL_SIZE {
        let client = stage.client();
        busy.spawn(async move {
            let Ok(lease) = client.checkout(Stage::wish()).await else { return };
            let line = "trap '' TERM INT HUP; (trap '' TERM; sleep 1000) & sleep 1000; sleep 1000";
            // How it ends depends on when: that it ends is what counts.
            let _ = lease.exec(ExecRequest::shell(line)).await;
            let _ = lease.give_back().await;
        });
    }
    busy
}

/// Every request is answered.
async fn answered(busy: &mut JoinSet<()>) {
    while let Some(one) = busy.join_next().await {
        one.unwrap();
    }
}

fn server_stopped_at_any_moment_leaves_nothing(kind: Kind) {
    let Some(mut stage) = Stage::start(kind, "stopped") else { return };
    stage.act(stage.pool(json!({ "pool_size": POOL_SIZE, "max_overflow": POOL_SIZE })));
    assert_eq!(stage.server.stop(), Some(0));
    for moment_ms in MOMENTS_MS {
        stage.server.start_again();
        let mut busy = stage.act(async {
            let busy = begin(&stage);
            sleep(Duration::from_millis(moment_ms)).await;
            busy
        });
        let beneath = machine::beneath(stage.server.pid());
        assert_eq!(stage.server.stop(), Some(0), "{moment_ms} ms\n{}", stage.server.log());
        stage.act(answered(&mut busy));
        stage.nothing_is_left(&beneath);
    }
}

fn server_start_removes_what_a_killed_server_left(kind: Kind) {
    let Some(mut stage) = Stage::start(kind, "orphans") else { return };
    stage.act(stage.pool(json!({ "pool_size": POOL_SIZE, "max_overflow": POOL_SIZE })));
    for moment_ms in MOMENTS_MS {
        let mut busy = stage.act(async {
            let busy = begin(&stage);
            sleep(Duration::from_millis(moment_ms)).await;
            busy
        });
        let beneath = machine::beneath(stage.server.pid());
        let containers = stage.labelled().map(|labelled| labelled.containers()).unwrap_or_default();
        stage.server.kill();
        stage.act(answered(&mut busy));
        stage.server.start_again();
        stage.act(async {
            stage.full().await;
            assert_eq!(stage.found(), POOL_SIZE as usize, "{moment_ms} ms");
            let now = stage.labelled().map(|labelled| labelled.containers()).unwrap_or_default();
            assert!(now.iter().all(|one| !containers.contains(one)), "{containers:?} {now:?}");
            gone(&beneath).await;
        });
    }
    stage.end();
}

/// Native sandboxes end with their launcher, which ends when it notices.
async fn gone(processes: &[machine::Process]) {
    let left = || processes.iter().filter(|process| process.lives()).collect::<Vec<_>>();
    let all = async {
        while !left().is_empty() {
            sleep(Duration::from_millis(20)).await;
        }
    };
    let waited = tokio::time::timeout(PATIENCE / 2, all).await;
    assert!(waited.is_ok(), "{:?}", left());
}

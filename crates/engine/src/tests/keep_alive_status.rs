//! What keeps a sandbox awake, as callers see it, and what thaws it again.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use kernel::FreezeStatus;
use model::state::Wakefulness;
use model::{LifecycleEvent, ProcessRecord, SandboxId};
use runtime::Command;
use store::{EventQuery, Store as _};

use super::node::{ALICE, BOB, Node, config};
use crate::{KeepAliveChange, ProcessRequest, SandboxStatusReport, UseKind};

async fn scene() -> (Node, SandboxId) {
    let node = Node::start(config()).await;
    node.settle().await;
    let sandbox = node.checkout(ALICE).await.unwrap().keep().sandbox;
    (node, sandbox)
}

async fn start(node: &Node, sandbox: SandboxId, name: &str, timeout_ms: u64) -> ProcessRecord {
    let used = node.engine.use_sandbox(ALICE, sandbox, UseKind::Exec).await.unwrap();
    let mut asked = ProcessRequest::new(Command::Shell("sleep 100000".into()));
    asked.name = Some(name.into());
    asked.keep_alive = true;
    asked.timeout_ms = Some(timeout_ms);
    used.start_process(asked).await.unwrap()
}

async fn status(node: &Node, sandbox: SandboxId) -> SandboxStatusReport {
    node.engine.sandbox_status(ALICE, sandbox).await.unwrap()
}

fn names(report: &SandboxStatusReport) -> Vec<&str> {
    report.keep_alive.iter().map(|record| &*record.name).collect()
}

#[tokio::test(start_paused = true)]
async fn keep_alive_process_holds_its_sandbox_until_a_stop_and_then_it_freezes() {
    let (node, sandbox) = scene().await;
    start(&node, sandbox, "dev", 0).await;
    tokio::time::sleep(Duration::from_mins(5)).await;
    let report = status(&node, sandbox).await;
    assert_eq!((report.wake.wakefulness, names(&report)), (Wakefulness::Awake, vec!["dev"]));
    assert_eq!((report.frozen, report.wake.because), (false, FreezeStatus::KeptAwake));
    let report = node.engine.stop_keeping_awake(ALICE, sandbox, 0).await.unwrap();
    assert_eq!((report.wake.wakefulness, names(&report)), (Wakefulness::Auto, vec![]));
    assert!(report.freezes_at.is_some());
    tokio::time::sleep(Duration::from_secs(11)).await;
    assert!(status(&node, sandbox).await.frozen, "and reading the status thaws nothing");
    let running = node.engine.process(ALICE, sandbox, &crate::ProcessRef::parse("dev")).await;
    assert_eq!(running.unwrap().end, None, "nothing was killed");
    node.run(ALICE, sandbox, "echo hi").await.unwrap();
    let report = status(&node, sandbox).await;
    assert_eq!((report.frozen, report.wake.because), (false, FreezeStatus::Quiet));
}

#[tokio::test(start_paused = true)]
async fn keep_alive_stop_counts_from_the_latest_call_and_for_its_processes_only() {
    for (first, second) in [(300_000, 200_000), (200_000, 300_000)] {
        let (node, sandbox) = scene().await;
        start(&node, sandbox, "one", 0).await;
        node.engine.stop_keeping_awake(ALICE, sandbox, first).await.unwrap();
        let report = node.engine.stop_keeping_awake(ALICE, sandbox, second).await.unwrap();
        let at = report.wake.scheduled_stop_at.unwrap();
        let left_ms = at.0 - node.engine.now().wall.0;
        assert!(second - 1_000 < left_ms && left_ms <= second, "{left_ms}");
        start(&node, sandbox, "two", 0).await;
        tokio::time::sleep(Duration::from_millis(second - 1_000)).await;
        assert_eq!(names(&status(&node, sandbox).await), ["one", "two"]);
        tokio::time::sleep(Duration::from_secs(2)).await;
        let report = status(&node, sandbox).await;
        assert_eq!((names(&report), report.wake.scheduled_stop_at), (vec!["two"], None));
    }
}

#[tokio::test(start_paused = true)]
async fn scale_file_writes_count_and_are_shown_with_the_processes() {
    let (node, sandbox) = scene().await;
    node.run(ALICE, sandbox, "echo + > $SHOAL_SCALE_FILE").await.unwrap();
    node.settle().await;
    let report = status(&node, sandbox).await;
    assert_eq!((report.wake.wakefulness, report.wake.scale), (Wakefulness::Awake, 1));
    assert!(report.keep_alive.is_empty(), "awake without any process is as it should be");
    start(&node, sandbox, "dev", 0).await;
    node.settle().await;
    let shown = node.run(ALICE, sandbox, "cat $BLAXEL_SCALE_FILE").await.unwrap();
    assert_eq!(String::from_utf8_lossy(&shown.stdout).trim(), "=2");
    node.run(ALICE, sandbox, "echo =0 > $SHOAL_SCALE_FILE").await.unwrap();
    node.settle().await;
    assert_eq!(status(&node, sandbox).await.wake.wakefulness, Wakefulness::Auto);
}

#[tokio::test(start_paused = true)]
async fn keep_alive_change_is_published_with_its_reason_to_its_key_only() {
    let (node, sandbox) = scene().await;
    assert!(node.engine.sandbox_status(BOB, sandbox).await.is_err());
    assert!(node.engine.stop_keeping_awake(BOB, sandbox, 0).await.is_err());
    start(&node, sandbox, "dev", 0).await;
    node.engine.stop_keeping_awake(ALICE, sandbox, 0).await.unwrap();
    node.settle().await;
    let page = node.store.events(&EventQuery::after(0, 1_000)).await.unwrap();
    let received: Vec<_> = page
        .events
        .iter()
        .filter_map(|stored| {
            let LifecycleEvent::SandboxWakefulness { wakefulness, because, freezes_at, .. } =
                &stored.event
            else {
                return None;
            };
            Some((*wakefulness, because.as_str(), freezes_at.is_some()))
        })
        .collect();
    assert_eq!(
        received,
        [(Wakefulness::Awake, "process_started", false), (Wakefulness::Auto, "stopped", true)]
    );
}

#[tokio::test(start_paused = true)]
async fn keep_alive_observers_see_every_change() {
    let (node, sandbox) = scene().await;
    let heard = Arc::new(Mutex::new(Vec::new()));
    let hears = Arc::clone(&heard);
    node.engine.observe(move |observed| {
        let received = match observed {
            KeepAliveChange::Started(record) => format!("started {}", record.name),
            KeepAliveChange::Ended(record) => {
                format!("ended {}: {}", record.name, record.end.is_some())
            }
            KeepAliveChange::Released { processes, after_ms, .. } => {
                format!("released {processes} after {after_ms}")
            }
            KeepAliveChange::ReleasedOne(record) => format!("released {}", record.name),
        };
        hears.lock().unwrap().push(received);
    });
    node.engine.stop_keeping_awake(ALICE, sandbox, 0).await.unwrap();
    start(&node, sandbox, "dev", 0).await;
    start(&node, sandbox, "timed", 1_000).await;
    tokio::time::sleep(Duration::from_secs(3)).await;
    node.engine.stop_keeping_awake(ALICE, sandbox, 5_000).await.unwrap();
    node.engine.stop_keeping_awake(ALICE, sandbox, 0).await.unwrap();
    let expected = [
        "released 0 after 0",
        "started dev",
        "started timed",
        "ended timed: true",
        "released 1 after 5000",
        "released 1 after 0",
        "released dev",
    ];
    assert_eq!(*heard.lock().unwrap(), expected);
}

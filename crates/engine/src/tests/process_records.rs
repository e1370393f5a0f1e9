//! What stays of processes: their output on the disk and in the store, within bounds, and their
//! records after their sandbox and after the server.

use std::time::Duration;

use model::process::{ProcessEndReason as Reason, ProcessStatus as Status};
use model::{ErrorCode, ProcessRecord, SandboxId};
use store::StoreErrorCode;
use tokio::time::{sleep, timeout};

use super::node::{ADMIN, ALICE, BOB, Node, config};
use super::processes::{ALL, end, output, query, shell, start, text};
use crate::{OutputSelection, ProcessQuery, ProcessRef};

const MIB: u64 = 1 << 20;

async fn sandbox(node: &Node) -> SandboxId {
    node.checkout(ALICE).await.unwrap().keep().sandbox
}

fn by(record: &ProcessRecord) -> ProcessRef {
    ProcessRef::Id(record.id)
}

/// What a follower sees, and how many bytes it missed by the offsets.
async fn followed(node: &Node, record: &ProcessRecord, pause: Duration) -> (Vec<u8>, u64) {
    let of = by(record);
    let follow = node.engine.follow_log(ALICE, record.sandbox, &of, OutputSelection::Both, 0).await;
    let mut follow = follow.unwrap();
    let (mut seen, mut missed, mut next) = (Vec::new(), 0, 0);
    while let Some(piece) = follow.next().await.unwrap() {
        assert!(piece.offset >= next, "in order");
        missed += piece.offset - next;
        next = piece.offset + piece.bytes.len() as u64;
        seen.extend_from_slice(&piece.bytes);
        sleep(pause).await;
    }
    (seen, missed)
}

#[tokio::test]
async fn process_log_keeps_the_tail_of_a_large_output_and_holds_up_no_reader() {
    let node = Node::start(config()).await;
    let sandbox = sandbox(&node).await;
    let count = 30 * MIB;
    let line = format!("head -c {count} /dev/zero; echo the end");
    let record = start(&node, sandbox, shell(&line)).await.unwrap();
    let slow = followed(&node, &record, Duration::from_millis(20));
    let quick = followed(&node, &record, Duration::ZERO);
    let ((slow, slow_missed), (quick, quick_missed), over) =
        timeout(Duration::from_mins(2), async { tokio::join!(slow, quick, end(&node, &record)) })
            .await
            .unwrap();
    assert_eq!(over.log.end, count + 8);
    assert_eq!(slow.len() as u64 + slow_missed, count + 8);
    assert_eq!(quick.len() as u64 + quick_missed, count + 8);
    assert!(slow.ends_with(b"\0the end\n") && quick.ends_with(b"\0the end\n"));
    // Before it is stored, and after that.
    for _ in 0..2 {
        let of = by(&record);
        let tail = query(OutputSelection::Both, None, 8);
        let page = node.engine.process_log(ALICE, sandbox, &of, tail).await.unwrap();
        assert_eq!(text(&page), "the end\n");
        let whole = query(OutputSelection::Both, Some(0), u64::MAX);
        let page = node.engine.process_log(ALICE, sandbox, &of, whole).await.unwrap();
        let kept: u64 = page.pieces.iter().map(|piece| piece.bytes.len() as u64).sum();
        assert!((2 * MIB..=5 * MIB).contains(&kept), "{kept}");
        assert_eq!((page.next_offset, page.first), (count + 8, count + 8 - kept));
        while !node.engine.core.processes.are_idle() {
            sleep(Duration::from_millis(5)).await;
        }
    }
    let shown = node.engine.process(ALICE, sandbox, &by(&record)).await.unwrap();
    assert_eq!(shown.log.end, count + 8);
    assert!(shown.log.first > count - 5 * MIB);
}

#[tokio::test(start_paused = true)]
async fn process_records_outlive_their_sandbox() {
    let node = Node::start(config()).await;
    let lease = node.checkout(ALICE).await.unwrap().keep();
    let little = start(&node, lease.sandbox, shell("echo a little; echo error >&2")).await.unwrap();
    let much = start(&node, lease.sandbox, shell("head -c 100000 /dev/zero; echo end")).await;
    let much = much.unwrap();
    let runs = start(&node, lease.sandbox, shell("echo started; sleep 1000")).await.unwrap();
    end(&node, &little).await;
    end(&node, &much).await;
    node.engine.return_lease(ALICE, lease.lease).await.unwrap();
    // Long enough for its table to be dropped.
    sleep(Duration::from_mins(1)).await;
    let page = node.engine.processes(ALICE, lease.sandbox, &ALL).await.unwrap();
    assert_eq!(page.processes.iter().map(|one| one.number).collect::<Vec<_>>(), [3, 2, 1]);
    let ended = page.processes[0].end.clone().unwrap();
    assert_eq!((ended.status, ended.reason), (Status::Killed, Reason::SandboxEnded));
    assert_eq!(output(&node, &little).await, "a little\nerror\n");
    assert_eq!(output(&node, &runs).await, "started\n");
    let written = output(&node, &much).await;
    assert!(written.len() == 100_004 && written.ends_with("\0end\n"));
    let first = ProcessQuery { limit: 2, ..ALL };
    let page = node.engine.processes(ALICE, lease.sandbox, &first).await.unwrap();
    assert!(page.more && page.processes.len() == 2);
    let rest = ProcessQuery { before: Some(2), ..first };
    let page = node.engine.processes(ALICE, lease.sandbox, &rest).await.unwrap();
    assert!(!page.more && page.processes[0].id == little.id);
    let foreign = node.engine.processes(BOB, lease.sandbox, &ALL).await.unwrap_err();
    assert_eq!(foreign.code, ErrorCode::SandboxUnknown);
    let over = node.engine.stop_process(ALICE, lease.sandbox, &by(&runs), 1).await.unwrap_err();
    assert_eq!(over.code, ErrorCode::ProcessOver);
    let unknown = ProcessRef::Name("nobody".to_owned());
    let refused = node.engine.process(ALICE, lease.sandbox, &unknown).await.unwrap_err();
    assert_eq!(refused.code, ErrorCode::ProcessUnknown);
}

#[tokio::test(start_paused = true)]
async fn after_a_crash_of_the_server_processes_say_so_and_their_output_is_there() {
    let node = Node::start(config()).await;
    let sandbox = sandbox(&node).await;
    let done = start(&node, sandbox, shell("echo done")).await.unwrap();
    let runs = start(&node, sandbox, shell("echo one; sleep 3; echo two >&2; sleep 1000")).await;
    let runs = runs.unwrap();
    end(&node, &done).await;
    sleep(Duration::from_secs(5)).await;
    let node = node.kill_and_start().await;
    for caller in [ALICE, ADMIN] {
        let of = by(&runs);
        let left = node.engine.process(caller, sandbox, &of).await.unwrap();
        let ended = left.end.clone().unwrap();
        assert_eq!((ended.status, ended.reason), (Status::Killed, Reason::ServerEnded));
        assert_eq!((left.log.stdout_bytes, left.log.stderr_bytes), (4, 4));
    }
    assert_eq!(output(&node, &runs).await, "one\ntwo\n");
    assert_eq!(output(&node, &done).await, "done\n");
    assert_eq!(end(&node, &done).await.status(), Status::Completed);
    let (seen, missed) = followed(&node, &runs, Duration::ZERO).await;
    assert_eq!((&*seen, missed), (&b"one\ntwo\n"[..], 0));
}

#[tokio::test(start_paused = true)]
async fn an_orderly_stop_ends_processes_with_their_sandboxes() {
    let node = Node::start(config()).await;
    let sandbox = sandbox(&node).await;
    let runs = start(&node, sandbox, shell("echo hi; sleep 1000")).await.unwrap();
    node.settle().await;
    node.engine.shutdown().await.unwrap();
    let node = node.kill_and_start().await;
    let left = node.engine.process(ALICE, sandbox, &by(&runs)).await.unwrap();
    let ended = left.end.unwrap();
    assert_eq!((ended.status, ended.reason), (Status::Killed, Reason::SandboxEnded));
    assert!(ended.detail.as_deref().unwrap().contains("the server stopped"), "{ended:?}");
    assert_eq!(output(&node, &runs).await, "hi\n");
}

#[tokio::test(start_paused = true)]
async fn process_records_of_a_sandbox_are_bounded_at_two_thousand() {
    let node = Node::start(config()).await;
    let sandbox = sandbox(&node).await;
    let mut last = None;
    for _ in 0..100 {
        let started = (0..100).map(|_| start(&node, sandbox, shell("echo hi")));
        let mut records = Vec::new();
        for started in started {
            records.push(started.await.unwrap());
        }
        for record in &records {
            end(&node, record).await;
        }
        last = records.pop();
    }
    sleep(Duration::from_secs(1)).await;
    let most = ProcessQuery { limit: 5_000, ..ALL };
    let page = node.engine.processes(ALICE, sandbox, &most).await.unwrap();
    assert_eq!((page.processes.len(), page.more), (2_000, false));
    assert_eq!(page.processes[0].number, 10_000);
    let stored = store::ProcessesQuery { sandbox, before: None, limit: 5_000 };
    let stored = store::Store::processes(&*node.store, &stored).await.unwrap();
    assert_eq!(stored.len(), 2_000);
    assert_eq!(output(&node, &last.unwrap()).await, "hi\n");
    assert!(node.engine.core.processes.are_idle(), "no output is in memory");
}

#[tokio::test(start_paused = true)]
async fn failing_store_loses_no_process_record() {
    let node = Node::start(config()).await;
    let sandbox = sandbox(&node).await;
    let one = start(&node, sandbox, shell("echo one")).await.unwrap();
    node.store.fail_commits(5, StoreErrorCode::DiskFull);
    end(&node, &one).await;
    assert_eq!(output(&node, &one).await, "one\n", "read from memory first");
    sleep(Duration::from_secs(30)).await;
    let node = node.kill_and_start().await;
    assert_eq!(end(&node, &one).await.status(), Status::Completed, "stored behind");
    assert_eq!(output(&node, &one).await, "one\n");
}

#[tokio::test(start_paused = true)]
async fn process_numbers_go_on_when_a_sandbox_comes_back() {
    let node = Node::start(config()).await;
    let asked = crate::SessionRequest::of(super::node::name("default"));
    let session = node.engine.create_session(ALICE, asked).await.unwrap();
    let used =
        node.engine.use_session(ALICE, session.id, crate::UseKind::Exec, None).await.unwrap();
    let first = used.start_process(shell("echo one")).await.unwrap();
    drop(used);
    end(&node, &first).await;
    node.engine.pause_session(ALICE, session.id).await.unwrap();
    sleep(Duration::from_millis(200)).await;
    let node = node.kill_and_start().await;
    let used =
        node.engine.use_session(ALICE, session.id, crate::UseKind::Exec, None).await.unwrap();
    let second = used.start_process(shell("echo two")).await.unwrap();
    assert_eq!((second.sandbox, second.number), (first.sandbox, 2));
    let page = node.engine.processes(ALICE, first.sandbox, &ALL).await.unwrap();
    assert_eq!(page.processes.iter().map(|one| one.number).collect::<Vec<_>>(), [2, 1]);
    assert_eq!(output(&node, &first).await, "one\n");
}

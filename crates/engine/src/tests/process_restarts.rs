//! Restarted programs, at the seams: requests between two programs, a start that is slow, hangs or
//! fails, and sandboxes that die or freeze meanwhile. Whatever happens, the process ends once, and
//! nothing of it runs on.

use std::time::Duration;

use model::process::{ProcessEndReason as Reason, ProcessStatus as Status, RestartPolicy};
use model::{ErrorCode, ProcessRecord};
use runtime::fake::{Fault, Operation};
use runtime::{RuntimeError, RuntimeErrorCode};
use tokio::time::{Instant, sleep, timeout};

use super::node::{ALICE, Node, config};
use super::processes::{end, output, shell, start};
use crate::{CheckedOut, ProcessRef, ProcessRequest};

/// Longer than any start may take.
const LONG: Duration = Duration::from_mins(10);
const FAILS: &str = "echo run; exit 3";
const RUN: &str = "run\n\n[Process failed with exit code 3. Attempting restart 1/unlimited...]\n";

/// A process whose program fails at once, and is restarted without end.
fn always(line: &str) -> ProcessRequest {
    ProcessRequest { restart: Some(RestartPolicy { max_restarts: None }), ..shell(line) }
}

/// Such a process, in the middle of its first pause.
async fn in_pause(node: &Node, asked: ProcessRequest) -> (CheckedOut, ProcessRecord) {
    let lease = node.checkout(ALICE).await.unwrap().keep();
    let record = start(node, lease.sandbox, asked).await.unwrap();
    sleep(Duration::from_millis(500)).await;
    (lease, record)
}

fn by(record: &ProcessRecord) -> ProcessRef {
    ProcessRef::Id(record.id)
}

#[track_caller]
fn ended(record: &ProcessRecord) -> (Status, Reason, u32) {
    let end = record.end.as_ref().expect("an ended process");
    (end.status, end.reason, record.restarts)
}

#[tokio::test(start_paused = true)]
async fn process_stop_or_kill_in_the_restart_pause_ends_it_at_once() {
    let node = Node::start(config()).await;
    for kills in [false, true] {
        let (lease, record) = in_pause(&node, always(FAILS)).await;
        let began = Instant::now();
        let over = if kills {
            node.engine.kill_process(ALICE, lease.sandbox, &by(&record)).await.unwrap()
        } else {
            node.engine.stop_process(ALICE, lease.sandbox, &by(&record), 60_000).await.unwrap()
        };
        assert!(began.elapsed() < Duration::from_millis(100), "{:?}", began.elapsed());
        let expected = if kills {
            (Status::Killed, Reason::Killed)
        } else {
            (Status::Stopped, Reason::Stopped)
        };
        assert_eq!(ended(&over), (expected.0, expected.1, 0));
        assert_eq!(over.end.as_ref().unwrap().exit_code, Some(3));
        sleep(Duration::from_secs(5)).await;
        assert_eq!(output(&node, &over).await, RUN, "it was not restarted");
        assert_eq!(node.runtime.alive().tasks, 0);
    }
}

#[tokio::test(start_paused = true)]
async fn process_kill_during_a_restart_kills_the_program_as_soon_as_it_runs() {
    let node = Node::start(config()).await;
    let (lease, record) = in_pause(&node, always("sleep 0.1; exit 3")).await;
    node.runtime.inject(Operation::Exec, Fault::Delay(Duration::from_secs(2)));
    // Its second program is being started, and would run for ever.
    sleep(Duration::from_secs(1)).await;
    let over = node.engine.kill_process(ALICE, lease.sandbox, &by(&record)).await.unwrap();
    assert_eq!(ended(&over), (Status::Killed, Reason::Killed, 1));
    sleep(Duration::from_secs(5)).await;
    assert_eq!(node.runtime.alive().tasks, 0);
}

#[tokio::test(start_paused = true)]
async fn process_restart_that_hangs_ends_the_process_at_its_deadline() {
    let node = Node::start(config()).await;
    for asked in [false, true] {
        let (lease, record) = in_pause(&node, always(FAILS)).await;
        node.runtime.inject(Operation::Exec, Fault::Delay(LONG));
        sleep(Duration::from_secs(1)).await;
        if asked {
            let stop = node.engine.stop_process(ALICE, lease.sandbox, &by(&record), 500).await;
            assert_eq!(
                stop.unwrap_err().code,
                ErrorCode::DeadlineExceeded,
                "the process has not ended yet"
            );
        }
        let over = end(&node, &record).await;
        let expected = if asked {
            (Status::Killed, Reason::Stopped)
        } else {
            (Status::Failed, Reason::RestartFailed)
        };
        assert_eq!(ended(&over), (expected.0, expected.1, 0));
        sleep(Duration::from_secs(5)).await;
        assert_eq!(node.runtime.alive().tasks, 0);
    }
}

#[tokio::test(start_paused = true)]
async fn process_restart_that_fails_is_in_the_log_and_in_the_end() {
    let node = Node::start(config()).await;
    let (_, record) = in_pause(&node, always(FAILS)).await;
    let denied = RuntimeError::new(RuntimeErrorCode::Denied, "exec", "not here");
    node.runtime.inject(Operation::Exec, Fault::Fail(denied));
    let over = end(&node, &record).await;
    assert_eq!(ended(&over), (Status::Failed, Reason::RestartFailed, 0));
    let words = over.end.as_ref().unwrap().detail.as_deref().unwrap();
    assert_eq!(words, "could not exec: not here");
    let log = format!("{RUN}\n[Failed to restart process: {words}]\n");
    assert_eq!(output(&node, &over).await, log);
}

#[tokio::test(start_paused = true)]
async fn sandbox_end_ends_processes_that_pause_or_restart() {
    let node = Node::start(config()).await;
    for how in ["crash", "delete", "return"] {
        for starts in [false, true] {
            let (lease, record) = in_pause(&node, always(FAILS)).await;
            if starts {
                node.runtime.inject(Operation::Exec, Fault::Delay(LONG));
                sleep(Duration::from_secs(1)).await;
            }
            match how {
                "crash" => node.runtime.crash(lease.instance, false),
                "delete" => node.engine.delete_sandbox(ALICE, lease.sandbox).await.unwrap(),
                _ => node.engine.return_lease(ALICE, lease.lease).await.unwrap(),
            }
            let waiting = end(&node, &record);
            let over = timeout(Duration::from_secs(1), waiting).await.expect("at once");
            assert_eq!(ended(&over), (Status::Killed, Reason::SandboxEnded, 0), "{how}");
            sleep(Duration::from_secs(90)).await;
            assert_eq!(output(&node, &over).await, RUN, "{how}: it was not restarted");
            assert_eq!(node.runtime.alive().tasks, 0, "{how}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn frozen_sandbox_is_thawed_for_a_process_restart() {
    let node = Node::start(config()).await;
    let (lease, record) = in_pause(&node, always("sleep 0.2; echo run; exit 3")).await;
    assert!(node.engine.freeze(ALICE, lease.sandbox).await.unwrap().frozen);
    sleep(Duration::from_millis(800)).await;
    let view = node.engine.sandbox(ALICE, lease.sandbox).unwrap();
    let runs = node.engine.process(ALICE, lease.sandbox, &by(&record)).await.unwrap();
    assert!(!view.frozen && runs.restarts == 1 && runs.end.is_none(), "{view:?} {runs:?}");
}

#[tokio::test(start_paused = true)]
async fn keep_alive_process_keeps_awake_between_its_programs() {
    let node = Node::start(config()).await;
    let restart = Some(RestartPolicy { max_restarts: Some(1) });
    let asked = ProcessRequest { keep_alive: true, restart, ..shell(FAILS) };
    let (lease, record) = in_pause(&node, asked).await;
    let rests = node.engine.process(ALICE, lease.sandbox, &by(&record)).await.unwrap();
    assert!(rests.keep_alive && rests.end.is_none());
    let busy = node.engine.freeze(ALICE, lease.sandbox).await.unwrap_err();
    assert_eq!(busy.code, ErrorCode::SandboxBusy);
    let over = end(&node, &record).await;
    assert_eq!(ended(&over), (Status::Failed, Reason::Exited, 1));
    assert!(over.keep_alive, "it ended by itself");
    assert!(node.engine.freeze(ALICE, lease.sandbox).await.unwrap().frozen);
}

#[tokio::test(start_paused = true)]
async fn process_whose_program_exits_after_the_halt_ends_with_the_server() {
    let node = Node::start(config()).await;
    let lease = node.checkout(ALICE).await.unwrap().keep();
    // The store would have to record that it keeps nothing awake any more.
    let asked = ProcessRequest { keep_alive: true, ..shell("sleep 5") };
    let record = start(&node, lease.sandbox, asked).await.unwrap();
    node.engine.core.halt();
    let waiting = end(&node, &record);
    let over = timeout(Duration::from_secs(20), waiting).await.expect("nothing waits for ever");
    assert_eq!(ended(&over), (Status::Killed, Reason::ServerEnded, 0));
}

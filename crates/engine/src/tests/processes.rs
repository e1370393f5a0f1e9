//! Processes: started, found, followed, fed, stopped, restarted, and stored with the reason of
//! their end.

use std::task::{Context, Waker};
use std::time::Duration;

use bytes::Bytes;
use model::process::{ProcessEndReason as Reason, ProcessStatus as Status, RestartPolicy};
use model::{ErrorCode, ProcessRecord, Refusal, SandboxId};
use runtime::{Command, TerminalSize};
use tokio::time::timeout;

use super::node::{ALICE, BOB, Node, config};
use crate::{
    LogPage, LogQuery, OutputSelection, ProcessInput, ProcessQuery, ProcessRef, ProcessRequest,
    UseKind,
};

pub(super) fn shell(line: &str) -> ProcessRequest {
    ProcessRequest::new(Command::Shell(line.to_owned()))
}

fn named(line: &str, name: &str) -> ProcessRequest {
    ProcessRequest { name: Some(name.to_owned()), ..shell(line) }
}

pub(super) const ALL: ProcessQuery = ProcessQuery { before: None, limit: 1_000, running: false };

pub(super) fn query(wanted: OutputSelection, offset: Option<u64>, max_bytes: u64) -> LogQuery {
    LogQuery { wanted, offset, max_bytes }
}

pub(super) fn text(page: &LogPage) -> String {
    let bytes: Vec<u8> = page.pieces.iter().flat_map(|piece| piece.bytes.to_vec()).collect();
    String::from_utf8(bytes).unwrap()
}

pub(super) async fn start(
    node: &Node,
    sandbox: SandboxId,
    asked: ProcessRequest,
) -> Result<ProcessRecord, Refusal> {
    let used = node.engine.use_sandbox(ALICE, sandbox, UseKind::Exec).await?;
    used.start_process(asked).await
}

fn by(record: &ProcessRecord) -> ProcessRef {
    ProcessRef::Id(record.id)
}

pub(super) async fn end(node: &Node, record: &ProcessRecord) -> ProcessRecord {
    let of = by(record);
    let waiting = node.engine.wait_process(ALICE, record.sandbox, &of);
    timeout(Duration::from_mins(5), waiting).await.unwrap().unwrap()
}

pub(super) async fn output(node: &Node, record: &ProcessRecord) -> String {
    let query = query(OutputSelection::Both, Some(0), u64::MAX);
    text(&node.engine.process_log(ALICE, record.sandbox, &by(record), query).await.unwrap())
}

#[tokio::test(start_paused = true)]
async fn a_process_runs_on_after_the_use_that_started_it() {
    let node = Node::start(config()).await;
    let lease = node.checkout(ALICE).await.unwrap().keep();
    let sandbox = lease.sandbox;
    let record = start(&node, sandbox, named("sleep 5; echo out; echo err >&2", "web")).await;
    let record = record.unwrap();
    assert_eq!((record.number, record.status(), &*record.name), (1, Status::Running, "web"));
    assert_eq!(&*record.command, "sleep 5; echo out; echo err >&2");
    for of in [by(&record), ProcessRef::Pid(record.pid), ProcessRef::Name("web".into())] {
        assert_eq!(node.engine.process(ALICE, sandbox, &of).await.unwrap().id, record.id);
        let foreign = node.engine.process(BOB, sandbox, &of).await.unwrap_err();
        assert_eq!(foreign.code, ErrorCode::SandboxUnknown);
    }
    let taken = start(&node, sandbox, named("true", "web")).await.unwrap_err();
    assert_eq!(taken.code, ErrorCode::ProcessNameTaken);
    let over = end(&node, &record).await;
    let ended = over.end.clone().unwrap();
    assert_eq!(
        (over.status(), ended.exit_code, ended.reason),
        (Status::Completed, Some(0), Reason::Exited)
    );
    assert_eq!(output(&node, &over).await, "out\nerr\n");
    assert_eq!((over.log.stdout_bytes, over.log.stderr_bytes, over.log.end), (4, 4, 8));
    let again = start(&node, sandbox, named("true", "web")).await.unwrap();
    assert_eq!(again.number, 2, "the name is free again");
    let found = node.engine.process(ALICE, sandbox, &ProcessRef::Name("web".into())).await;
    assert_eq!(found.unwrap().id, again.id, "the latest is found");
    let page = node.engine.processes(ALICE, sandbox, &ALL).await.unwrap();
    assert_eq!(page.processes.iter().map(|one| one.number).collect::<Vec<_>>(), [2, 1]);
    assert!(!page.more);
    let unknown = node.engine.process(ALICE, sandbox, &ProcessRef::Name("db".into())).await;
    assert_eq!(unknown.unwrap_err().code, ErrorCode::ProcessUnknown);
}

#[tokio::test(start_paused = true)]
async fn process_that_cannot_start_leaves_nothing() {
    let node = Node::start(config()).await;
    let sandbox = node.checkout(ALICE).await.unwrap().keep().sandbox;
    for asked in [
        named("true", "12"),
        named("true", "a/b"),
        ProcessRequest::new(Command::Argv(vec!["no-such-program".to_owned()])),
    ] {
        assert!(start(&node, sandbox, asked).await.is_err());
    }
    let page = node.engine.processes(ALICE, sandbox, &ALL).await.unwrap();
    assert!(page.processes.is_empty());
    assert_eq!(node.runtime.alive().tasks, 0);
}

#[tokio::test(start_paused = true)]
async fn process_logs_are_read_by_output_offset_and_tail() {
    let node = Node::start(config()).await;
    let sandbox = node.checkout(ALICE).await.unwrap().keep().sandbox;
    let line = "echo one; sleep 1; echo two >&2; sleep 1; echo three";
    let record = start(&node, sandbox, shell(line)).await.unwrap();
    end(&node, &record).await;
    for (wanted, offset, max_bytes, expected, next, more) in [
        (OutputSelection::Both, Some(0), 100, "one\ntwo\nthree\n", 14, false),
        (OutputSelection::Both, Some(2), 4, "e\ntw", 6, true),
        (OutputSelection::Both, None, 6, "three\n", 14, false),
        (OutputSelection::Both, Some(14), 6, "", 14, false),
        (OutputSelection::Both, Some(99), 6, "", 99, false),
        (OutputSelection::Stdout, Some(0), 6, "one\nth", 10, true),
        (OutputSelection::Stdout, None, 8, "e\nthree\n", 14, false),
        (OutputSelection::Stderr, Some(0), 100, "two\n", 14, false),
        (OutputSelection::Stderr, None, 2, "o\n", 14, false),
    ] {
        let asked = query(wanted, offset, max_bytes);
        let page = node.engine.process_log(ALICE, sandbox, &by(&record), asked).await.unwrap();
        assert_eq!(
            (&*text(&page), page.next_offset, page.more),
            (expected, next, more),
            "{asked:?}"
        );
        assert!(page.over && page.first == 0);
    }
}

#[tokio::test(start_paused = true)]
async fn process_log_follower_gets_earlier_and_new_output() {
    let node = Node::start(config()).await;
    let sandbox = node.checkout(ALICE).await.unwrap().keep().sandbox;
    let line = "echo a; echo b >&2; sleep 1; echo c; sleep 1; echo d >&2";
    let record = start(&node, sandbox, shell(line)).await.unwrap();
    for (wanted, offset, expected) in [
        (OutputSelection::Both, 0, "a\nb\nc\nd\n"),
        (OutputSelection::Both, 3, "\nc\nd\n"),
        (OutputSelection::Stdout, 0, "a\nc\n"),
        (OutputSelection::Stderr, 0, "b\nd\n"),
    ] {
        let of = by(&record);
        let mut follow = node.engine.follow_log(ALICE, sandbox, &of, wanted, offset).await.unwrap();
        let mut seen = Vec::new();
        while let Some(piece) = follow.next().await.unwrap() {
            seen.extend_from_slice(&piece.bytes);
        }
        assert_eq!(String::from_utf8(seen).unwrap(), expected, "{wanted:?} {offset}");
    }
}

#[tokio::test(start_paused = true)]
async fn process_input_is_written_whole_and_ends() {
    let node = Node::start(config()).await;
    let sandbox = node.checkout(ALICE).await.unwrap().keep().sandbox;
    let asked = ProcessRequest { stdin: ProcessInput::Open, ..shell("cat") };
    let record = start(&node, sandbox, asked).await.unwrap();
    let of = by(&record);
    let write = |text: &'static str| {
        node.engine.write_stdin(ALICE, sandbox, &of, Bytes::from_static(text.as_bytes()))
    };
    write("hello ").await.unwrap();
    write("world").await.unwrap();
    node.engine.close_stdin(ALICE, sandbox, &of).await.unwrap();
    assert_eq!(end(&node, &record).await.status(), Status::Completed);
    assert_eq!(output(&node, &record).await, "hello world");
    assert_eq!(write("late").await.unwrap_err().code, ErrorCode::ProcessOver);

    let record = start(&node, sandbox, shell("sleep 100")).await.unwrap();
    let none =
        node.engine.write_stdin(ALICE, sandbox, &by(&record), Bytes::from_static(b"x")).await;
    assert_eq!(none.unwrap_err().code, ErrorCode::StdinClosed);
    node.engine.close_stdin(ALICE, sandbox, &by(&record)).await.unwrap();
    let size = TerminalSize { rows: 10, columns: 20 };
    let no_terminal = node.engine.resize_process(ALICE, sandbox, &by(&record), size).await;
    assert!(no_terminal.is_err());

    let asked = ProcessRequest { stdin: ProcessInput::Bytes(b"given".to_vec()), ..shell("cat") };
    let record = start(&node, sandbox, asked).await.unwrap();
    end(&node, &record).await;
    assert_eq!(output(&node, &record).await, "given");

    let asked = ProcessRequest { terminal: Some(size), ..shell("sleep 1; stty size") };
    let record = start(&node, sandbox, asked).await.unwrap();
    assert!(record.terminal && record.stdin);
    let size = TerminalSize { rows: 30, columns: 90 };
    node.engine.resize_process(ALICE, sandbox, &by(&record), size).await.unwrap();
    end(&node, &record).await;
    assert_eq!(output(&node, &record).await, "30 90\n");
}

#[tokio::test(start_paused = true)]
async fn process_in_memory_is_invisible_to_other_keys_after_the_kernel_dropped_its_sandbox() {
    let mut config = config();
    config.node.remembered_ends = 1;
    let node = Node::start(config).await;
    let lease = node.checkout(ALICE).await.unwrap().keep();
    let record = start(&node, lease.sandbox, named("echo secret", "job")).await.unwrap();
    end(&node, &record).await;
    node.engine.return_lease(ALICE, lease.lease).await.unwrap();
    for _ in 0..3 {
        let other = node.checkout(ALICE).await.unwrap().keep();
        node.run(ALICE, other.sandbox, "true").await.unwrap();
        node.engine.return_lease(ALICE, other.lease).await.unwrap();
    }
    let (engine, sandbox) = (&node.engine, lease.sandbox);
    assert!(engine.check_sandbox(ALICE, sandbox).is_err(), "the kernel no longer knows it");
    for of in [by(&record), ProcessRef::Pid(record.pid), ProcessRef::Name("job".to_owned())] {
        let foreign = engine.process(BOB, sandbox, &of).await.unwrap_err();
        assert_eq!(foreign.code, ErrorCode::SandboxUnknown);
        let asked = query(OutputSelection::Both, Some(0), 100);
        assert!(engine.process_log(BOB, sandbox, &of, asked).await.is_err());
        assert_eq!(engine.process(ALICE, sandbox, &of).await.unwrap().id, record.id);
    }
    let foreign = engine.processes(BOB, sandbox, &ALL).await.unwrap_err();
    assert_eq!(foreign.code, ErrorCode::SandboxUnknown);
    assert_eq!(engine.processes(ALICE, sandbox, &ALL).await.unwrap().processes.len(), 1);
}

#[tokio::test(start_paused = true)]
async fn process_input_that_is_not_read_is_bounded() {
    let node = Node::start(config()).await;
    let sandbox = node.checkout(ALICE).await.unwrap().keep().sandbox;
    let given = |bytes: usize, again: bool| ProcessRequest {
        stdin: ProcessInput::Bytes(vec![0; bytes]),
        restart: again.then_some(RestartPolicy { max_restarts: Some(1) }),
        ..shell("sleep 1000")
    };
    for (bytes, again, fits) in [
        (1 << 20, false, true),
        (1 << 21, false, false),
        (1 << 16, true, true),
        (1 << 17, true, false),
    ] {
        let started = start(&node, sandbox, given(bytes, again)).await;
        assert_eq!(started.as_ref().err().map(|refusal| refusal.code).is_none(), fits);
        let code = started.err().map(|refusal| refusal.code);
        assert!(code.is_none_or(|code| code == ErrorCode::TooLarge));
    }
    let asked = ProcessRequest { stdin: ProcessInput::Open, ..shell("sleep 1000") };
    let record = start(&node, sandbox, asked).await.unwrap();
    let of = by(&record);
    // A client that leaves leaves at most so much behind, and large input goes with it.
    for bytes in [10, 100_000, 100_000, 100_000, 10_000_000] {
        let bytes = Bytes::from(vec![b'x'; bytes]);
        let write = node.engine.write_stdin(ALICE, sandbox, &of, bytes);
        let _ = timeout(Duration::from_millis(1), write).await;
    }
    let late = node.engine.write_stdin(ALICE, sandbox, &of, Bytes::from(vec![b'x'; 100_000]));
    assert_eq!(late.await.unwrap_err().code, ErrorCode::DeadlineExceeded);
    node.engine.kill_process(ALICE, sandbox, &of).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn process_signal_between_two_programs_harms_nothing() {
    let node = Node::start(config()).await;
    let sandbox = node.checkout(ALICE).await.unwrap().keep().sandbox;
    let restart = Some(RestartPolicy { max_restarts: Some(3) });
    let asked = ProcessRequest { restart, ..shell("sleep 1; exit 1") };
    let record = start(&node, sandbox, asked).await.unwrap();
    let engine = &node.engine;
    tokio::time::sleep(Duration::from_millis(1_500)).await;
    let refused = engine.signal_process(ALICE, sandbox, &by(&record), 10, false).await;
    assert_eq!(refused.unwrap_err().code, ErrorCode::SandboxBusy);
    tokio::time::sleep(Duration::from_secs(1)).await;
    let runs = engine.process(ALICE, sandbox, &by(&record)).await.unwrap();
    assert_eq!((runs.status(), runs.restarts), (Status::Running, 1), "it goes on");
    tokio::time::sleep(Duration::from_secs(1)).await;
    engine.signal_process(ALICE, sandbox, &by(&record), 15, false).await.unwrap();
    assert_eq!(end(&node, &record).await.status(), Status::Stopped, "a stop is one");
}

#[tokio::test(start_paused = true)]
async fn process_signal_that_the_kernel_knows_of_reaches_the_program_though_its_client_leaves() {
    let (mut sent, mut not_sent) = (0, 0);
    for polls in 0..8 {
        let node = Node::start(config()).await;
        let engine = &node.engine;
        let sandbox = node.checkout(ALICE).await.unwrap().keep().sandbox;
        let restart = Some(RestartPolicy { max_restarts: Some(1) });
        let keep_alive = true;
        let asked = ProcessRequest { keep_alive, restart, ..shell("sleep 100; kill -15 $$") };
        let record = start(&node, sandbox, asked).await.unwrap();
        let of = by(&record);
        let mut signalling = Box::pin(engine.signal_process(ALICE, sandbox, &of, 15, false));
        for _ in 0..polls {
            let mut context = Context::from_waker(Waker::noop());
            if signalling.as_mut().poll(&mut context).is_ready() {
                break;
            }
            tokio::task::yield_now().await;
        }
        drop(signalling);
        tokio::time::sleep(Duration::from_secs(1)).await;
        let shown = engine.process(ALICE, sandbox, &of).await.unwrap();
        if shown.status() == Status::Running {
            not_sent += 1;
            // The kernel did not learn of it either: a program that a signal ends is restarted.
            tokio::time::sleep(Duration::from_secs(150)).await;
            let shown = engine.process(ALICE, sandbox, &of).await.unwrap();
            assert_eq!((shown.status(), shown.restarts), (Status::Running, 1), "{polls} polls");
        } else {
            sent += 1;
            assert_eq!(shown.status(), Status::Stopped, "{polls} polls");
        }
    }
    assert!(sent > 0 && not_sent > 0, "{sent} sent, {not_sent} not");
}

#[tokio::test(start_paused = true)]
async fn process_end_says_who_wanted_it() {
    let node = Node::start(config()).await;
    let sandbox = node.checkout(ALICE).await.unwrap().keep().sandbox;
    let engine = &node.engine;
    let record = start(&node, sandbox, shell("sleep 100")).await.unwrap();
    let stopped = engine.stop_process(ALICE, sandbox, &by(&record), 1_000).await.unwrap();
    let ended = stopped.end.unwrap();
    assert_eq!(
        (ended.status, ended.reason, ended.signal),
        (Status::Stopped, Reason::Stopped, Some(15))
    );
    let again = engine.stop_process(ALICE, sandbox, &by(&record), 1_000).await.unwrap_err();
    assert_eq!(again.code, ErrorCode::ProcessOver);
    assert_eq!(
        engine.kill_process(ALICE, sandbox, &by(&record)).await.unwrap_err().code,
        ErrorCode::ProcessOver
    );

    let record = start(&node, sandbox, shell("sleep 100")).await.unwrap();
    let killed = engine.kill_process(ALICE, sandbox, &by(&record)).await.unwrap();
    assert_eq!(killed.end.unwrap().reason, Reason::Killed);

    let record = start(&node, sandbox, shell("sleep 100")).await.unwrap();
    engine.signal_process(ALICE, sandbox, &by(&record), 1, false).await.unwrap();
    let ended = end(&node, &record).await.end.unwrap();
    assert_eq!((ended.status, ended.signal), (Status::Killed, Some(1)));

    for (line, status, reason, code) in [
        ("exit 7", Status::Failed, Reason::Exited, Some(7)),
        ("kill -11 $$", Status::Failed, Reason::Exited, None),
        ("oom", Status::Failed, Reason::Oom, None),
    ] {
        let record = start(&node, sandbox, shell(line)).await.unwrap();
        let ended = end(&node, &record).await.end.unwrap();
        assert_eq!((ended.status, ended.reason, ended.exit_code), (status, reason, code), "{line}");
    }
}

#[tokio::test(start_paused = true)]
async fn keep_alive_process_is_killed_at_its_timeout() {
    let node = Node::start(config()).await;
    let sandbox = node.checkout(ALICE).await.unwrap().keep().sandbox;
    let asked = ProcessRequest { keep_alive: true, timeout_ms: Some(2_000), ..shell("sleep 1000") };
    let record = start(&node, sandbox, asked).await.unwrap();
    assert!(record.keep_alive && record.timeout_ms == 2_000);
    let over = end(&node, &record).await;
    let ended = over.end.clone().unwrap();
    assert_eq!((ended.status, ended.reason), (Status::Killed, Reason::Timeout));
    assert!(!over.keep_alive);
    let asked = ProcessRequest { keep_alive: true, ..shell("sleep 1000") };
    assert_eq!(start(&node, sandbox, asked).await.unwrap().timeout_ms, 600_000);
}

#[tokio::test(start_paused = true)]
async fn a_process_ends_with_its_sandbox_and_says_why() {
    let node = Node::start(config()).await;
    for (how, words) in [("crash", "crash"), ("delete", "deleted"), ("return", "returned")] {
        let lease = node.checkout(ALICE).await.unwrap().keep();
        let record = start(&node, lease.sandbox, shell("sleep 1000")).await.unwrap();
        let of = by(&record);
        let waiting = node.engine.wait_process(ALICE, lease.sandbox, &of);
        tokio::pin!(waiting);
        assert!(timeout(Duration::from_millis(10), &mut waiting).await.is_err());
        match how {
            "crash" => node.runtime.crash(lease.instance, false),
            "delete" => node.engine.delete_sandbox(ALICE, lease.sandbox).await.unwrap(),
            _ => node.engine.return_lease(ALICE, lease.lease).await.unwrap(),
        }
        let ended = timeout(Duration::from_secs(2), waiting).await.unwrap().unwrap().end.unwrap();
        assert_eq!((ended.status, ended.reason), (Status::Killed, Reason::SandboxEnded), "{how}");
        assert!(ended.detail.as_deref().unwrap().contains(words), "{how}: {ended:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn failed_process_is_restarted_as_often_as_configured() {
    let node = Node::start(config()).await;
    let sandbox = node.checkout(ALICE).await.unwrap().keep().sandbox;
    let restart = |max_restarts| Some(RestartPolicy { max_restarts });
    let asked = ProcessRequest { restart: restart(Some(2)), ..named("echo run; exit 3", "job") };
    let record = start(&node, sandbox, asked).await.unwrap();
    let over = end(&node, &record).await;
    assert_eq!((over.status(), over.restarts, over.pid), (Status::Failed, 2, record.pid));
    let expected = "run\n\n[Process failed with exit code 3. Attempting restart 1/2...]\n\
                    run\n\n[Process failed with exit code 3. Attempting restart 2/2...]\nrun\n";
    assert_eq!(output(&node, &over).await, expected);

    let asked = ProcessRequest { restart: restart(None), ..named("false", "loop") };
    let record = start(&node, sandbox, asked).await.unwrap();
    tokio::time::sleep(Duration::from_millis(5_500)).await;
    let taken = start(&node, sandbox, named("true", "loop")).await.unwrap_err();
    assert_eq!(taken.code, ErrorCode::ProcessNameTaken, "also between two programs");
    let stopped = node.engine.stop_process(ALICE, sandbox, &by(&record), 1_000).await.unwrap();
    assert_eq!((stopped.status(), stopped.restarts), (Status::Stopped, 5));
    assert!(output(&node, &stopped).await.contains("Attempting restart 5/unlimited..."));
}

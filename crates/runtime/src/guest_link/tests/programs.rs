//! Programs: descriptors that are passed, streams on lanes, exits, kills.

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use guest_protocol::Incoming;
use guest_protocol::message::{
    ExitStatus, Exited, Fault, FaultCode, Pipe, Reply, Request, Spawn, Stdio, TerminalSize,
    VERSION, lane,
};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::time::{Instant, timeout};

use super::peer::{Peer, Scenery, pair, ready_pair};
use crate::collect::{RunLimits, collect};
use crate::contract::Inside as _;
use crate::error::RuntimeErrorCode;
use crate::exec::{ExecSpec, Stdin};
use crate::guest_link::LinkSettings;

const LIMITS: RunLimits = RunLimits { output_bytes: 1 << 20, timeout: Duration::from_secs(5) };

fn exited(status: ExitStatus) -> Reply {
    Reply::Exited(Exited { status, user_us: 1, system_us: 2, max_rss_kb: 3 })
}

async fn spawn(peer: &mut Peer) -> (u32, Spawn) {
    match peer.request().await {
        (channel, Request::Spawn(spawn)) => (channel, *spawn),
        other => panic!("not a spawn: {other:?}"),
    }
}

fn file(peer: &mut Peer) -> File {
    let descriptor: OwnedFd = peer.descriptors.pop_front().expect("a descriptor came along");
    File::from(descriptor)
}

#[tokio::test]
async fn streams_are_passed_in_their_order_and_read_to_the_end() {
    let (link, mut peer) = ready_pair().await;
    let spec = ExecSpec::argv(["x"]).stdin(Stdin::Bytes(b"in".to_vec()));
    let process = link.exec(spec).await.unwrap();
    let (channel, spawn) = spawn(&mut peer).await;
    let passed = Pipe::Passed;
    assert_eq!(spawn.stdio, Stdio::Pipes { stdin: passed, stdout: passed, stderr: passed });
    assert!(!spawn.announce);
    let (mut stdin, mut stdout, mut stderr) = (file(&mut peer), file(&mut peer), file(&mut peer));
    let mut input = String::new();
    stdin.read_to_string(&mut input).unwrap();
    assert_eq!(input, "in");
    stdout.write_all(b"out").unwrap();
    stderr.write_all(b"err").unwrap();
    drop((stdout, stderr));
    peer.say(channel, &exited(ExitStatus::Code(3))).await;
    let collected = collect(process, LIMITS, Instant::now()).await.unwrap();
    assert_eq!(collected.exit.status, ExitStatus::Code(3));
    assert_eq!((collected.exit.user_us, collected.exit.max_rss_kb), (1, 3));
    assert_eq!(
        (collected.stdout.as_slice(), collected.stderr.as_slice()),
        (&b"out"[..], &b"err"[..])
    );
    assert_eq!(link.connection.lock().open_calls(), 0);
    peer.hears_nothing().await;
}

#[tokio::test]
async fn output_ends_with_the_program_even_if_a_child_keeps_the_pipe() {
    let (link, mut peer) = ready_pair().await;
    let process = link.exec(ExecSpec::argv(["x"])).await.unwrap();
    let (channel, _) = spawn(&mut peer).await;
    let (mut stdout, stderr) = (file(&mut peer), file(&mut peer));
    stdout.write_all(&vec![7; 50_000]).unwrap();
    peer.say(channel, &exited(ExitStatus::Code(0))).await;
    let collected = collect(process, LIMITS, Instant::now()).await.unwrap();
    assert_eq!(collected.stdout, vec![7; 50_000]);
    drop((stdout, stderr));
}

#[tokio::test]
async fn output_flood_after_the_exit_does_not_block_the_reader() {
    let (link, mut peer) = ready_pair().await;
    let mut process = link.exec(ExecSpec::argv(["x"])).await.unwrap();
    let (channel, _) = spawn(&mut peer).await;
    let (mut stdout, _stderr) = (file(&mut peer), file(&mut peer));
    stdout.write_all(&[7; 100]).unwrap();
    peer.say(channel, &exited(ExitStatus::Code(0))).await;
    process.wait().await.unwrap();
    let mut reader = process.stdout.take().unwrap();
    let mut some = [0; 10];
    reader.read_exact(&mut some).await.unwrap();
    stdout.write_all(&[8; 1000]).unwrap();
    let mut rest = Vec::new();
    reader.read_to_end(&mut rest).await.unwrap();
    assert_eq!(rest, [7; 90], "what came after the end is not output of the program");
}

#[tokio::test]
async fn streams_use_lanes_where_descriptors_cannot_be_passed() {
    let settings = LinkSettings { pass_descriptors: false, ..LinkSettings::default() };
    let (link, mut peer) = pair(settings, Scenery::default());
    peer.say(0, &Reply::Ready { version: VERSION }).await;
    let spec = ExecSpec::argv(["x"]).stdin(Stdin::Bytes(vec![5; 300_000]));
    let process = link.exec(spec).await.unwrap();
    let running = tokio::spawn(collect(process, LIMITS, Instant::now()));
    let (channel, spawn) = spawn(&mut peer).await;
    let on_lane = Pipe::Lane;
    assert_eq!(spawn.stdio, Stdio::Pipes { stdin: on_lane, stdout: on_lane, stderr: on_lane });
    assert_eq!(peer.data(300_000).await, vec![5; 300_000]);
    assert_eq!(peer.next().await, Incoming::End { channel, lane: lane::MAIN });
    peer.endpoint.send_data(channel, lane::STDOUT, b"out");
    peer.endpoint.send_data(channel, lane::STDERR, b"err");
    peer.endpoint.end(channel, lane::STDOUT);
    peer.endpoint.end(channel, lane::STDERR);
    peer.say(channel, &exited(ExitStatus::Code(0))).await;
    let collected = running.await.unwrap().unwrap();
    assert_eq!(
        (collected.stdout.as_slice(), collected.stderr.as_slice()),
        (&b"out"[..], &b"err"[..])
    );
}

#[tokio::test]
async fn terminals_go_both_ways_on_one_lane() {
    let (link, mut peer) = ready_pair().await;
    let size = TerminalSize { rows: 2, columns: 3 };
    let spec = ExecSpec { terminal: Some(size), ..ExecSpec::argv(["x"]) };
    let mut process = link.exec(spec).await.unwrap();
    let (channel, spawn) = spawn(&mut peer).await;
    assert_eq!(spawn.stdio, Stdio::Terminal(size));
    let mut stdin = process.stdin.take().unwrap();
    stdin.write_all(b"ls\n").await.unwrap();
    assert_eq!(peer.data(3).await, b"ls\n");
    let handle = process.handle();
    let resizing = tokio::spawn(async move { handle.resize(size).await });
    let (resize, request) = peer.request().await;
    assert_eq!(request, Request::Resize { process: channel, size });
    peer.say(resize, &Reply::Done).await;
    resizing.await.unwrap().unwrap();
    // The terminal has no reader any more, but it is still written to.
    drop(process.stdout.take());
    peer.endpoint.send_data(channel, lane::MAIN, &vec![0; 200_000]);
    peer.flush().await;
    stdin.write_all(b"x").await.unwrap();
    assert_eq!(peer.data(1).await, b"x");
    while peer.endpoint.window(channel, lane::MAIN) < 150_000 {
        peer.hears_nothing().await;
    }
}

#[tokio::test]
async fn a_program_that_cannot_be_started_says_why() {
    let (link, mut peer) = ready_pair().await;
    let fault = Fault { code: FaultCode::NotFound, errno: 2, message: "x".to_owned() };
    let mut process = link.exec(ExecSpec::argv(["x"])).await.unwrap();
    let (channel, _) = spawn(&mut peer).await;
    peer.say(channel, &Reply::Failed(fault.clone())).await;
    for _ in 0..2 {
        assert_eq!(process.wait().await.unwrap_err().code, RuntimeErrorCode::NotFound);
    }
    drop(process);
    let starter = Arc::clone(&link);
    let spec = ExecSpec { confirm_start: true, ..ExecSpec::argv(["x"]) };
    let starting = tokio::spawn(async move { starter.exec(spec).await.map(|_| ()) });
    let (channel, spawn) = spawn(&mut peer).await;
    assert!(spawn.announce);
    peer.say(channel, &Reply::Failed(fault)).await;
    assert_eq!(starting.await.unwrap().unwrap_err().code, RuntimeErrorCode::NotFound);
    peer.hears_nothing().await;
}

#[tokio::test]
async fn a_program_that_is_dropped_is_killed_with_its_tree() {
    let (link, mut peer) = ready_pair().await;
    let process = link.exec(ExecSpec::argv(["x"])).await.unwrap();
    let (channel, _) = spawn(&mut peer).await;
    drop(process);
    let (kill, request) = peer.request().await;
    assert_eq!(request, Request::Signal { process: channel, signal: 9, tree: true });
    peer.say(channel, &exited(ExitStatus::Signal(9))).await;
    peer.say(kill, &Reply::Done).await;
    while link.connection.lock().open_calls() > 0 {
        tokio::task::yield_now().await;
    }
    peer.hears_nothing().await;
}

#[tokio::test]
async fn a_program_over_its_time_is_killed_and_its_output_is_kept() {
    let (link, mut peer) = ready_pair().await;
    let process = link.exec(ExecSpec::argv(["x"])).await.unwrap();
    let limits = RunLimits { timeout: Duration::from_millis(50), ..LIMITS };
    let running = tokio::spawn(collect(process, limits, Instant::now()));
    let (channel, _) = spawn(&mut peer).await;
    let (mut stdout, stderr) = (file(&mut peer), file(&mut peer));
    stdout.write_all(b"early").unwrap();
    let (kill, request) = peer.request().await;
    assert_eq!(request, Request::Signal { process: channel, signal: 9, tree: true });
    drop((stdout, stderr));
    peer.say(channel, &exited(ExitStatus::Signal(9))).await;
    peer.say(kill, &Reply::Done).await;
    let collected = running.await.unwrap().unwrap();
    assert!(collected.timed_out);
    assert_eq!(collected.stdout, b"early");
}

#[tokio::test]
async fn oom_kills_are_reported_as_out_of_memory() {
    for (status, counted, expected) in [
        (ExitStatus::Signal(9), true, true),
        (ExitStatus::Code(137), true, true),
        (ExitStatus::Signal(9), false, false),
        (ExitStatus::Signal(15), true, false),
        (ExitStatus::Code(1), true, false),
    ] {
        let scenery = Scenery { out_of_memory: AtomicBool::new(counted), died: None };
        let (link, mut peer) = pair(LinkSettings::default(), scenery);
        let mut process = link.exec(ExecSpec::argv(["x"])).await.unwrap();
        let (channel, _) = spawn(&mut peer).await;
        peer.say(channel, &exited(status)).await;
        let exit = process.wait().await.unwrap();
        assert_eq!(exit.out_of_memory, expected, "{status:?}");
        assert_eq!(process.wait().await.unwrap(), exit, "the same when asked again");
    }
}

#[tokio::test]
async fn descriptors_stay_with_their_requests_when_the_socket_is_full() {
    let (link, mut peer) = ready_pair().await;
    let mut processes = Vec::new();
    for n in 0..40_u8 {
        // Large enough that the socket takes only a few.
        let spec = ExecSpec::argv(["x"])
            .env("N", n.to_string().repeat(1000))
            .stdin(Stdin::Bytes(vec![n; 10]));
        processes.push(link.exec(spec).await.unwrap());
    }
    for n in 0..40_u8 {
        let (channel, spawn) = spawn(&mut peer).await;
        assert!(spawn.env.0[0].1.starts_with(&n.to_string()));
        let mut stdin = file(&mut peer);
        let mut got = Vec::new();
        stdin.read_to_end(&mut got).unwrap();
        assert_eq!(got, [n; 10]);
        drop((file(&mut peer), file(&mut peer)));
        peer.say(channel, &exited(ExitStatus::Code(i32::from(n)))).await;
    }
    for (n, mut process) in processes.into_iter().enumerate() {
        let exit = timeout(Duration::from_secs(5), process.wait()).await.unwrap().unwrap();
        assert_eq!(exit.status, ExitStatus::Code(i32::try_from(n).unwrap()));
    }
}

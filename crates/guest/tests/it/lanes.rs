//! Bytes of programs on lanes: complete, in order, and no lane waits for the reader of another.

use std::time::Duration;

use guest_protocol::message::{ExitStatus, Reply, Request, lane};

use crate::host::{Host, LANES, Seen, is_alive, now, shell, shell_on};

/// Bytes that show when one is lost, doubled or moved. The shell line below makes the same.
fn numbers(count: usize) -> Vec<u8> {
    (1..=count).flat_map(|n| format!("{n}\n").into_bytes()).collect()
}

#[test]
fn big_output_arrives_whole() {
    let mut host = Host::start();
    let channel = host.ask(&shell("seq 1 1000000; seq 1 500000 >&2"));
    assert_eq!(host.exited(channel).status, ExitStatus::Code(0));
    assert!(host.data(channel, lane::STDOUT) == numbers(1_000_000));
    assert!(host.data(channel, lane::STDERR) == numbers(500_000));
}

#[test]
fn binary_output_is_not_touched() {
    let mut host = Host::start();
    let bytes: Vec<u8> = (0..3_000_000_u32).map(|n| (n ^ (n >> 8)) as u8).collect();
    std::fs::write(host.path("binary"), &bytes).unwrap();
    let channel = host.ask(&shell("cat binary"));
    assert_eq!(host.exited(channel).status, ExitStatus::Code(0));
    assert!(host.data(channel, lane::STDOUT) == bytes);
}

#[test]
fn input_arrives_whole_and_ends() {
    let mut host = Host::start();
    let bytes: Vec<u8> = (0..5_000_000_u32).map(|n| (n ^ (n >> 9)) as u8).collect();
    let channel = host.ask(&shell_on("cat; exit 6", LANES));
    host.send(channel, lane::MAIN, &bytes);
    host.end(channel, lane::MAIN);
    assert_eq!(host.exited(channel).status, ExitStatus::Code(6));
    assert!(host.data(channel, lane::STDOUT) == bytes);
}

#[test]
fn a_slow_reader_blocks_no_other() {
    let mut host = Host::start();
    let slow = host.ask(&shell("seq 1 1000000"));
    host.unread.insert((slow, lane::STDOUT));
    host.until("it is stuck", |host| host.data(slow, lane::STDOUT).len() >= 256 * 1024);
    let fast = host.ask(&shell("seq 1 1000000"));
    assert_eq!(host.exited(fast).status, ExitStatus::Code(0));
    assert!(host.data(fast, lane::STDOUT) == numbers(1_000_000));
    assert_eq!(host.call(&Request::Ping), Reply::Done);
    assert_eq!(host.data(slow, lane::STDOUT).len(), 256 * 1024, "a window and not a byte more");
    assert!(!host.has_reply(slow));
    host.read_again(slow, lane::STDOUT);
    assert_eq!(host.exited(slow).status, ExitStatus::Code(0));
    assert!(host.data(slow, lane::STDOUT) == numbers(1_000_000));
}

#[test]
fn one_lane_of_a_program_does_not_hold_up_the_other() {
    let mut host = Host::start();
    let channel = host.ask(&shell("seq 1 10000 >&2 & exec seq 1 200000"));
    host.unread.insert((channel, lane::STDOUT));
    host.until("all of the other", |host| host.data(channel, lane::STDERR).len() >= 48_894);
    host.read_again(channel, lane::STDOUT);
    host.exited(channel);
    assert!(host.data(channel, lane::STDOUT) == numbers(200_000));
    assert!(host.data(channel, lane::STDERR) == numbers(10_000));
}

#[test]
fn unread_input_delays_no_other_program() {
    let mut host = Host::start();
    let stuck = host.ask(&shell_on("sleep 1000", LANES));
    let window = host.endpoint.window(stuck, lane::MAIN);
    let taken = host.endpoint.send_data(stuck, lane::MAIN, &vec![0; window]);
    assert_eq!(taken, window);
    host.flush();
    let channel = host.ask(&shell_on("cat", LANES));
    host.send(channel, lane::MAIN, b"hello");
    host.end(channel, lane::MAIN);
    host.exited(channel);
    assert_eq!(host.text(channel, lane::STDOUT), "hello");
    assert_eq!(host.endpoint.window(stuck, lane::MAIN), 0, "it is stuck");
    let kill = Request::Signal { process: stuck, signal: 9, tree: false };
    assert_eq!(host.call(&kill), Reply::Done);
    assert_eq!(host.exited(stuck).status, ExitStatus::Signal(9));
}

#[test]
fn a_program_that_closes_its_input_says_so() {
    let mut host = Host::start();
    let channel = host.ask(&shell_on("exec <&-; sleep 0.3; echo done", LANES));
    host.until("the input is refused", |host| {
        host.endpoint.send_data(channel, lane::MAIN, b"x");
        host.seen.get(&channel).is_some_and(|seen| seen.contains(&Seen::Reset(lane::MAIN)))
    });
    assert_eq!(host.exited(channel).status, ExitStatus::Code(0));
    assert_eq!(host.text(channel, lane::STDOUT), "done\n");
}

#[test]
fn a_reset_lane_is_a_broken_pipe_for_the_program() {
    let mut host = Host::start();
    let channel = host.ask(&shell("exec yes"));
    host.until("its output", |host| !host.data(channel, lane::STDOUT).is_empty());
    host.endpoint.reset(channel, lane::STDOUT);
    host.flush();
    assert_eq!(host.exited(channel).status, ExitStatus::Signal(13));
}

#[test]
fn grandchildren_do_not_hold_up_the_exit() {
    let mut host = Host::start();
    let start = now();
    let channel = host.ask(&shell("sleep 1000 & echo $!"));
    assert_eq!(host.exited(channel).status, ExitStatus::Code(0));
    assert!(start.elapsed() < Duration::from_secs(10));
    let child: i32 = host.text(channel, lane::STDOUT).trim().parse().unwrap();
    assert!(is_alive(child));

    let channel = host.ask(&shell("seq 1 20000; yes & sleep 0.1"));
    assert_eq!(host.exited(channel).status, ExitStatus::Code(0), "nor does one that never stops");
    assert!(host.data(channel, lane::STDOUT).starts_with(&numbers(20_000)));
    host.until("the broken pipe ends it", |host| host.run("pgrep -x yes").stdout.is_empty());
    let kill = Request::Signal { process: channel - 1, signal: 9, tree: true };
    host.call(&kill);
}

#[test]
fn the_last_output_of_a_program_is_not_lost() {
    let mut host = Host::start();
    for _ in 0..100 {
        let ran = host.run("seq 1 5000; echo last >&2");
        assert!(ran.stdout.as_bytes() == numbers(5000));
        assert_eq!(ran.stderr, "last\n");
    }
}

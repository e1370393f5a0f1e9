//! Signals to everything that descends from a program, however it tried to get away.

use std::time::Duration;

use guest_protocol::message::{Command, ExitStatus, Reply, Request, Stdio, TerminalSize, lane};

use crate::host::{Host, is_alive, now, program, shell, spawn};

const SIGTERM: i32 = 15;
const SIGKILL: i32 = 9;

fn tree(process: u32, signal: i32) -> Request {
    Request::Signal { process, signal, tree: true }
}

/// The process ids a program has printed so far.
fn pids(host: &Host, channel: u32) -> Vec<i32> {
    host.text(channel, lane::STDOUT).lines().map(|line| line.trim().parse().unwrap()).collect()
}

#[test]
fn nothing_of_a_killed_tree_is_left() {
    let mut host = Host::start();
    let line = "
        echo $$
        sleep 1000 & echo $!
        (sleep 1000 & echo $!) &
        setsid sh -c 'echo $$; sleep 1000 & echo $!; wait' &
        (setsid sh -c '(sh -c \"echo \\$\\$; exec sleep 1000\" &)' &) &
        env -i setsid sh -c 'echo $$; exec sleep 1000' &
        wait";
    let channel = host.ask(&shell(line));
    let bystander = host.ask(&shell("echo $$; exec sleep 1000"));
    host.until("all are up", |host| {
        pids(host, channel).len() == 7 && pids(host, bystander).len() == 1
    });
    // By now the double-forked process has no parent but the guest.
    host.until("orphaned", |host| host.run("true").status == ExitStatus::Code(0));
    let family = pids(&host, channel);
    assert!(family.iter().all(|&pid| is_alive(pid)), "{family:?}");
    assert_eq!(host.call(&tree(channel, SIGKILL)), Reply::Done);
    let left: Vec<_> = family.iter().filter(|&&pid| is_alive(pid)).collect();
    assert!(left.is_empty(), "still there after `Done`: {left:?}");
    assert_eq!(host.exited(channel).status, ExitStatus::Signal(SIGKILL));
    assert!(is_alive(pids(&host, bystander)[0]), "others are not touched");
    assert!(!host.has_reply(bystander));
    assert_eq!(host.call(&tree(bystander, SIGKILL)), Reply::Done);
}

#[test]
fn signals_reach_every_process_of_a_tree_once() {
    let mut host = Host::start();
    let line = "
        trap 'echo caught >> caught; exit 0' TERM
        sh -c 'trap \"echo caught >> caught; exit 0\" TERM; echo $$; sleep 1000 & wait' &
        setsid sh -c 'trap \"echo caught >> caught; exit 0\" TERM; echo $$; sleep 1000 & wait' &
        echo $$
        wait";
    let channel = host.ask(&shell(line));
    host.until("all are up", |host| pids(host, channel).len() == 3);
    assert_eq!(host.call(&tree(channel, SIGTERM)), Reply::Done);
    assert_eq!(host.exited(channel).status, ExitStatus::Code(0));
    let caught = host.path("caught");
    host.until("all have caught it", |_| {
        std::fs::read_to_string(&caught).is_ok_and(|text| text.lines().count() == 3)
    });
    let family = pids(&host, channel);
    host.until("all are gone", |_| !family.iter().any(|&pid| is_alive(pid)));
}

#[test]
fn a_tree_that_keeps_forking_is_killed() {
    let mut host = Host::start();
    // One process at a time, each of which starts the next and goes.
    let line = "echo $$; f() { sleep 0.001; f & }; f; exec sleep 1000";
    let channel = host.ask(&shell(line));
    host.until("it is up", |host| pids(host, channel).len() == 1);
    let start = now();
    assert_eq!(host.call(&tree(channel, SIGKILL)), Reply::Done);
    assert!(start.elapsed() < Duration::from_secs(10));
    let session = pids(&host, channel)[0];
    host.exited(channel);
    let left = host.run(&format!("ps -s {session} -o stat= | grep -v Z"));
    assert_eq!(left.stdout, "");
}

#[test]
fn the_guest_answers_while_it_kills() {
    let mut host = Host::start();
    let line = "i=0; while [ $i -lt 50 ]; do setsid sleep 1000 & i=$((i+1)); done; echo up; wait";
    let channel = host.ask(&shell(line));
    host.until("it is up", |host| !host.data(channel, lane::STDOUT).is_empty());
    let kill = host.ask(&tree(channel, SIGKILL));
    assert_eq!(host.call(&Request::Ping), Reply::Done);
    assert_eq!(host.run("echo fine").stdout, "fine\n");
    assert_eq!(host.reply(kill), Reply::Done);
    assert_eq!(host.exited(channel).status, ExitStatus::Signal(SIGKILL));
}

#[test]
fn a_tree_on_a_terminal_is_killed() {
    let mut host = Host::start();
    let size = TerminalSize { rows: 24, columns: 80 };
    let command = Command::Shell("setsid sleep 1000 & sleep 1000".into());
    let channel = host.ask(&spawn(program(command, Stdio::Terminal(size))));
    assert_eq!(host.call(&tree(channel, SIGKILL)), Reply::Done);
    assert_eq!(host.exited(channel).status, ExitStatus::Signal(SIGKILL));
}

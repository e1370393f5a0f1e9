//! The end of a use and the start of the next, in the same process: nothing that ran is left, and
//! the guest has forgotten everything.

use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::net::UnixStream;

use guest_protocol::message::{FaultCode, Reply, Request, VERSION, lane};

use crate::container::on_stdin;
use crate::host::{Host, shell};

/// Hands over another connection, and returns the guest's first message on it.
fn begin_again(host: &mut Host) -> Reply {
    let (ours, theirs) = UnixStream::pair().unwrap();
    let theirs = OwnedFd::from(theirs);
    host.ask_with(&Request::BeginAgain, &[theirs.as_fd()]);
    drop(theirs);
    host.switch(ours)
}

const READY: Reply = Reply::Ready { version: VERSION };

/// Programs that try to stay, each of which prints `up` and never ends by itself.
const STUBBORN: &[&str] = &[
    "trap '' HUP INT TERM QUIT; echo up; while :; do sleep 1; done",
    "(setsid sh -c 'trap \"\" TERM; while :; do sleep 1; done' &) ; echo up; exec sleep 1000",
    "(env -i setsid setsid sleep 1000 &); (sleep 1000 & sleep 1000 & kill -STOP $!); echo up; wait; sleep 1000",
    "i=0; while [ $i -lt 60 ]; do sleep 1000 & i=$((i + 1)); done; echo up; wait",
    // It replaces itself for ever, and is never more than two processes.
    "again() { (again) & exit; }; echo up; ulimit -u 200; f=$(mktemp); echo 'sleep 0.01; sh $0 & exit' > $f; sh $f & sleep 1000",
    "kill -STOP $$ & echo up; sleep 1000",
];

#[test]
fn end_all_leaves_nothing_of_a_use() {
    let Some(mut host) = on_stdin() else { return };
    let env = [("SECRET", "of the first use")].into_iter().collect();
    assert_eq!(host.call(&Request::Claim { env }), Reply::Done);
    let filters = host.run("grep Seccomp_filters /proc/self/status").stdout;
    let limits = host.run("cat /proc/1/limits").stdout;
    for _ in 0..3 {
        let mut channels = Vec::new();
        for line in STUBBORN {
            let channel = host.ask(&shell(line));
            host.until("it is up", |host| !host.data(channel, lane::STDOUT).is_empty());
            channels.push(channel);
        }
        let end = host.ask(&Request::EndAll);
        assert_eq!(host.reply(end), Reply::Done);
        for channel in channels {
            match host.reply(channel) {
                Reply::Failed(fault) => assert_eq!(fault.code, FaultCode::System),
                other => panic!("{other:?}"),
            }
        }
        assert_eq!(begin_again(&mut host), READY);
        let seen = host.run("for p in /proc/[0-9]*; do echo ${p#/proc/}; done; echo me $$").stdout;
        let mut lines = seen.lines();
        assert_eq!(lines.next(), Some("1"));
        let me = lines.next().unwrap();
        assert_eq!(lines.next(), Some(format!("me {me}").as_str()), "{seen}");
        assert_eq!(host.run("echo \"[$SECRET]\"").stdout, "[]\n");
        assert_eq!(host.run("grep Seccomp_filters /proc/self/status").stdout, filters);
        assert_eq!(host.run("cat /proc/1/limits").stdout, limits);
        assert!(host.run("ls /proc/1/fd/").stderr.contains("Permission denied"));
        assert_eq!(host.call(&Request::Processes), Reply::Processes(Vec::new()));
    }
}

#[test]
fn a_restarted_guest_inherits_one_descriptor() {
    let Some(mut host) = on_stdin() else { return };
    let pid = std::fs::read_to_string(format!("/proc/{0}/task/{0}/children", host.guest.id()));
    let pid = pid.unwrap().trim().to_owned();
    let descriptors = || {
        let list = std::fs::read_dir(format!("/proc/{pid}/fd")).unwrap().flatten();
        let kind = |link: String| link.split(':').next().unwrap().to_owned();
        let mut found: Vec<_> = list
            .map(|entry| std::fs::read_link(entry.path()).unwrap())
            .map(|link| kind(link.to_string_lossy().into_owned()))
            .collect();
        found.sort();
        found
    };
    assert_eq!(host.call(&Request::Ping), Reply::Done);
    let before = descriptors();
    let channel = host.ask(&shell("echo up; exec sleep 1000"));
    host.until("it is up", |host| !host.data(channel, lane::STDOUT).is_empty());
    let write = Request::WriteFile { path: "half".to_owned(), mode: None, parents: false };
    host.ask(&write);
    for _ in 0..3 {
        assert_eq!(host.call(&Request::EndAll), Reply::Done);
        assert_eq!(begin_again(&mut host), READY);
        assert_eq!(host.call(&Request::Ping), Reply::Done);
    }
    assert_eq!(descriptors(), before);
    let expected =
        ["/dev/null", "/dev/null", "/dev/null", "/run/shoal", "/run/shoal/scale", "anon_inode"];
    assert_eq!(before[..6], expected);
    assert_eq!(before[6..], ["anon_inode", "socket"]);
}

#[test]
fn end_all_is_refused_outside_of_a_container() {
    let mut host = Host::start();
    assert_eq!(host.code(&Request::EndAll), FaultCode::Invalid);
    assert_eq!(host.code(&Request::BeginAgain), FaultCode::Invalid);
    let (ours, theirs) = UnixStream::pair().unwrap();
    let theirs = OwnedFd::from(theirs);
    let channel = host.ask_with(&Request::BeginAgain, &[theirs.as_fd()]);
    assert!(matches!(host.reply(channel), Reply::Failed(_)));
    drop(ours);
    assert_eq!(host.call(&Request::Ping), Reply::Done);
}

#[test]
fn a_guest_restarts_only_after_end_all() {
    let Some(mut host) = on_stdin() else { return };
    assert_eq!(host.code(&Request::BeginAgain), FaultCode::Invalid, "without a descriptor");
    host.run("(setsid sleep 1000 &)");
    match begin_again(&mut host) {
        Reply::SetupFailed { errno, .. } => assert_eq!(errno, 16),
        other => panic!("{other:?}"),
    }
    // The end of a guest ends its container.
    assert_eq!(host.ended().code(), Some(4));
}

//! The guest as process 1 of a process namespace, with programs as an ordinary user: as in a
//! sandbox.

use guest_protocol::message::{ExitStatus, Reply, Request, lane};

use crate::host::{Host, is_root, shell};

const SIGKILL: i32 = 9;

/// `None` where this user may not make namespaces.
fn start() -> Option<Host> {
    if !is_root() {
        return None;
    }
    let unshare =
        ["/usr/bin/unshare", "--pid", "--mount", "--fork", "--mount-proc", "--kill-child"];
    Some(Host::start_under(&unshare, &["1000", "1000"]))
}

#[test]
fn the_guest_is_process_one_and_out_of_reach() {
    let Some(mut host) = start() else {
        super::host::skip("this user may not make namespaces");
        return;
    };
    assert_eq!(host.run("ps -o pid=,comm= -p 1").stdout.trim(), "1 guest");
    for signal in ["KILL", "TERM", "STOP", "CHLD", "SEGV"] {
        assert_ne!(host.run(&format!("kill -{signal} 1 2>&1")).status, ExitStatus::Code(0));
    }
    assert_ne!(host.run("cat /proc/1/environ").status, ExitStatus::Code(0));
    assert_ne!(host.run("ls /proc/1/fd").status, ExitStatus::Code(0));
    let other = host.ask(&shell("exec sleep 1000"));
    // Every process this user can reach.
    host.run("kill -9 -1");
    assert_eq!(host.exited(other).status, ExitStatus::Signal(SIGKILL));
    assert_eq!(host.run("exit 5").status, ExitStatus::Code(5));
}

#[test]
fn orphans_are_collected_and_trees_found() {
    let Some(mut host) = start() else {
        super::host::skip("this user may not make namespaces");
        return;
    };
    host.run("for i in 1 2 3 4 5 6; do (sh -c 'exit 3' &) ; done");
    let daemon = host.ask(&shell("setsid sh -c 'sleep 1000 & sleep 1000' & echo up; wait"));
    host.until("it is up", |host| !host.data(daemon, lane::STDOUT).is_empty());
    let channel = host.ask(&shell("(setsid sleep 1000 &); (env -i setsid sleep 1000 &); exit 0"));
    assert_eq!(host.exited(channel).status, ExitStatus::Code(0));
    assert_eq!(host.run("ps -e -o stat= | grep -c Z").stdout, "0\n");
    let tree = |process| Request::Signal { process, signal: SIGKILL, tree: true };
    assert_eq!(host.call(&tree(daemon)), Reply::Done);
    host.exited(daemon);
    assert_eq!(host.run("pgrep -c sleep").stdout, "2\n", "those of the other program");
    assert_eq!(host.call(&tree(channel)), Reply::Done);
    assert_eq!(host.run("pgrep -c sleep").stdout, "1\n", "one has neither mark nor parent left");
}

#[test]
fn no_program_outlives_the_guest() {
    let Some(mut host) = start() else {
        super::host::skip("this user may not make namespaces");
        return;
    };
    let channel = host.ask(&shell("readlink /proc/self/ns/pid; setsid sleep 1000 & wait"));
    host.until("it is up", |host| !host.data(channel, lane::STDOUT).is_empty());
    let namespace = host.text(channel, lane::STDOUT).trim().to_owned();
    host.socket.shutdown(std::net::Shutdown::Both).unwrap();
    host.ended();
    let left = std::fs::read_dir("/proc").unwrap().flatten().filter(|process| {
        std::fs::read_link(process.path().join("ns/pid"))
            .is_ok_and(|link| link.to_str() == Some(&namespace))
    });
    assert_eq!(left.count(), 0);
}

//! The guest in a container that an external runtime made: every kind of connection, and what
//! programs, which run as the same user, can do to it.

use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::process::Stdio;

use guest_protocol::message::{ExitStatus, Reply, Request, lane};

use crate::container::{on_stdin, start};
use crate::host::{Host, is_root, new_directory, shell, skip};

/// What every connection must be able to do.
fn check(host: &mut Host) {
    assert_eq!(host.call(&Request::Ping), Reply::Done);
    assert_eq!(
        host.run("pwd; id -u; echo $SHOAL_SCALE_FILE").stdout,
        "/workspace\n1000\n/run/shoal/scale\n"
    );
    // More than any pipe or socket holds at once, out of a program and into another.
    let line = "head -c 3000000 /dev/zero | tr '\\0' x";
    assert_eq!(host.run(line).stdout.len(), 3_000_000);
    let channel = host.ask(&crate::host::shell_on("wc -c", crate::host::LANES));
    host.send(channel, lane::MAIN, &vec![b'y'; 3_000_000]);
    host.end(channel, lane::MAIN);
    assert_eq!(host.exited(channel).status, ExitStatus::Code(0));
    assert_eq!(host.text(channel, lane::STDOUT), "3000000\n");
}

#[test]
fn a_contained_guest_takes_standard_input_as_its_connection() {
    let Some(mut host) = on_stdin() else { return };
    check(&mut host);
    let (reader, writer) = crate::host::pipe();
    let passed = guest_protocol::message::Stdio::Pipes {
        stdin: guest_protocol::message::Pipe::Null,
        stdout: guest_protocol::message::Pipe::Passed,
        stderr: guest_protocol::message::Pipe::Null,
    };
    let request = crate::host::shell_on("echo through a pipe", passed);
    let channel = host.ask_with(&request, &crate::host::borrow(&[writer]));
    assert_eq!(host.exited(channel).status, ExitStatus::Code(0));
    assert_eq!(crate::host::read_all(reader), b"through a pipe\n");
    drop(host.socket.shutdown(std::net::Shutdown::Both));
    assert!(host.ended().success());
}

/// Not `io::copy`: it lets the kernel move the bytes, which keeps a pipe locked while it waits.
fn relay(from: &mut impl Read, to: &mut impl Write) {
    let mut buffer = vec![0; 65536];
    while let Ok(count @ 1..) = from.read(&mut buffer) {
        if to.write_all(&buffer[..count]).is_err() {
            return;
        }
    }
}

#[test]
fn a_contained_guest_takes_two_pipes_as_its_connection() {
    let (to_guest, mut into_guest) = std::io::pipe().unwrap();
    let (mut from_guest, out_of_guest) = std::io::pipe().unwrap();
    let (ours, theirs) = UnixStream::pair().unwrap();
    let (mut inward, mut outward) = (theirs.try_clone().unwrap(), theirs);
    std::thread::spawn(move || relay(&mut inward, &mut into_guest));
    std::thread::spawn(move || relay(&mut from_guest, &mut outward));
    let Some(mut host) = start("stdio", to_guest.into(), out_of_guest.into(), ours) else { return };
    check(&mut host);
    let descriptors =
        "for fd in 0 1 2; do readlink /proc/self/fd/$fd; done; ls /proc/self/fd | wc -l";
    let channel = host.ask(&crate::host::shell_on(descriptors, crate::host::OUTPUT));
    assert_eq!(host.exited(channel).status, ExitStatus::Code(0));
    let seen = host.text(channel, lane::STDOUT);
    assert!(seen.starts_with("/dev/null\npipe:") && seen.ends_with("\n4\n"), "{seen}");
    host.socket.shutdown(std::net::Shutdown::Write).unwrap();
    assert!(host.ended().success(), "the end of its input is its end");
}

#[test]
fn a_contained_guest_inherits_or_dials_its_connection() {
    if !is_root() {
        skip("only root can make a container");
        return;
    }
    // Also beneath a directory that the container has.
    let directory = new_directory();
    let path = directory.join("guest.sock");
    let listener = UnixListener::bind(&path).unwrap();
    std::fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o666)).unwrap();
    let root = new_directory();
    let link = format!("unix:/proc/self/fd/9/{}", "guest.sock");
    let line = format!("exec 9<{}; exec \"$@\"", directory.display());
    let command = ["/bin/sh", "-c", "exec /.shoal/guest contained \"$0\"", &link];
    let inner = crate::container::line(&root.to_string_lossy(), &command);
    let child = std::process::Command::new("/bin/sh")
        .args(["-c", &line, "sh"])
        .arg(inner.get_program())
        .args(inner.get_args())
        .env_clear()
        .env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")
        .stdin(Stdio::null())
        .spawn()
        .unwrap();
    let (socket, _) = listener.accept().unwrap();
    check(&mut Host::greeted(child, socket, root));

    let (ours, theirs) = UnixStream::pair().unwrap();
    let stdin = Stdio::from(std::os::fd::OwnedFd::from(theirs));
    if let Some(mut host) = start("fd:0", stdin, Stdio::null(), ours) {
        check(&mut host);
    }
    std::fs::remove_dir_all(directory).unwrap();
}

#[test]
fn a_contained_guest_refuses_an_invalid_connection() {
    if !is_root() {
        skip("only root can make a container");
        return;
    }
    for link in ["", "nonsense", "fd:", "fd:77", "fd:x", "unix:", "unix:/nowhere"] {
        let status = crate::container::run(&["/.shoal/guest", "contained", link]);
        assert_eq!(status.code(), Some(2), "{link}");
    }
}

#[test]
fn programs_are_under_both_filters() {
    let Some(mut host) = on_stdin() else { return };
    assert_eq!(host.run("id -u; id -G").stdout, "1000\n1000\n");
    let status =
        host.run("grep -E '^(NoNewPrivs|CapEff|CapBnd|Seccomp):' /proc/self/status").stdout;
    for line in
        ["NoNewPrivs:\t1", "CapEff:\t0000000000000000", "CapBnd:\t0000000000000000", "Seccomp:\t2"]
    {
        assert!(status.contains(line), "{status}");
    }
    assert_eq!(host.run("grep Seccomp_filters /proc/self/status").stdout, "Seccomp_filters:\t2\n");
    for (line, refusal) in [
        ("unshare -U true", "Operation not permitted"),
        ("prlimit --pid 1 --nofile=10:10", "Operation not permitted"),
        ("taskset -p 1 1", "Operation not permitted"),
        ("renice -n 5 -p 1", "Operation not permitted"),
        ("renice -n 5 -g 1", "Operation not permitted"),
        ("renice -n 5 -u 1000", "Operation not permitted"),
        ("chrt -b -p 0 1", "Operation not permitted"),
        ("ionice -c 3 -p 1", "Operation not permitted"),
        ("ionice -c 3 -P 1", "Operation not permitted"),
        ("ionice -c 3 -u 1000", "Operation not permitted"),
        ("cat /proc/1/environ", "Permission denied"),
        ("ls /proc/1/fd/", "Permission denied"),
        ("cat /proc/1/maps", "Permission denied"),
        ("echo 500 > /proc/1/oom_score_adj", "Permission denied"),
        ("echo x > /proc/1/comm", "Permission denied"),
    ] {
        let ran = host.run(&format!("export LC_ALL=C; {line}"));
        assert!(ran.stderr.contains(refusal), "{line}: {ran:?}");
        assert_ne!(ran.status, ExitStatus::Code(0), "{line}");
    }
    // To themselves they may do it.
    let own =
        "prlimit --nofile=64:64 --pid $$ && renice -n 19 -p $$ && taskset -p 1 $$ && ulimit -n";
    assert!(host.run(own).stdout.ends_with("64\n"));
}

#[test]
fn a_contained_guest_survives_signals_of_programs() {
    let Some(mut host) = on_stdin() else { return };
    let before = host
        .run("grep -E 'Max open files' /proc/1/limits; cat /proc/1/stat | cut -d' ' -f 18-19")
        .stdout;
    host.run("for s in $(seq 1 64); do kill -$s 1; done 2>/dev/null");
    host.run("for i in $(seq 1 200); do kill -CHLD 1; kill -IO 1; kill -PIPE 1; done");
    let other = host.ask(&shell("exec sleep 1000"));
    host.run("kill -9 -1");
    assert_eq!(host.exited(other).status, ExitStatus::Signal(9));
    let after = host
        .run("grep -E 'Max open files' /proc/1/limits; cat /proc/1/stat | cut -d' ' -f 18-19")
        .stdout;
    assert_eq!(before, after);
    assert_eq!(host.run("exit 5").status, ExitStatus::Code(5));
}

/// A link that fails after it was opened gets the reason.
#[test]
fn a_contained_guest_never_serves_without_its_filter() {
    if !is_root() {
        skip("only root can make a container");
        return;
    }
    // Without /dev/null it fails before the filter.
    let (mut ours, theirs) = UnixStream::pair().unwrap();
    let empty = new_directory();
    let mut child = std::process::Command::new("/usr/bin/unshare")
        .args(["--mount", "--fork", "--propagation", "private", "/bin/sh", "-c"])
        .arg(format!(
            "mount --bind {0} /dev && exec {1} contained stdin",
            empty.display(),
            env!("CARGO_BIN_EXE_guest")
        ))
        .stdin(Stdio::from(std::os::fd::OwnedFd::from(theirs)))
        .spawn()
        .unwrap();
    let mut said = Vec::new();
    ours.write_all(b"").unwrap();
    ours.read_to_end(&mut said).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(5));
    assert!(String::from_utf8_lossy(&said).contains("/dev/null"), "{said:?}");
    std::fs::remove_dir_all(empty).unwrap();
}

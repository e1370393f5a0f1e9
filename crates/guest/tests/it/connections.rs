//! The connection itself: its end, a broken protocol, a full connection, and how much memory an
//! idle guest keeps.

use std::fs;
use std::io::Write as _;
use std::time::Duration;

use guest_protocol::message::{FaultCode, Reply, Request, lane};

use crate::host::{Host, LANES, shell, shell_on};

#[test]
fn the_guest_ends_with_its_connection() {
    let mut host = Host::start();
    host.ask(&shell("sleep 1000"));
    assert_eq!(host.call(&Request::Ping), Reply::Done);
    host.socket.shutdown(std::net::Shutdown::Both).unwrap();
    assert_eq!(host.ended().code(), Some(0));
}

#[test]
fn a_broken_protocol_ends_the_guest() {
    for garbage in
        [&b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff"[..], b"\x07\0\0\0\x01\0\0\0\0\0\xff"]
    {
        let mut host = Host::start();
        host.socket.write_all(garbage).unwrap();
        assert_eq!(host.ended().code(), Some(3));
    }
}

#[test]
fn too_many_unused_descriptors_end_the_guest() {
    use std::os::fd::AsFd as _;
    let mut host = Host::start();
    let null = fs::File::open("/dev/null").unwrap();
    for _ in 0..100 {
        let passed = [null.as_fd(), null.as_fd(), null.as_fd()];
        let ping = Request::Ping;
        if host.guest.try_wait().unwrap().is_some() {
            break;
        }
        let channel = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            host.ask_with(&ping, &passed)
        }));
        if channel.is_err() {
            break;
        }
    }
    assert_eq!(host.ended().code(), Some(4));
}

#[test]
fn a_second_request_on_a_channel_breaks_the_protocol() {
    let mut host = Host::start();
    let channel = host.ask(&shell("sleep 1000"));
    host.endpoint.send(channel, &Request::Ping).unwrap();
    host.flush();
    assert_eq!(host.ended().code(), Some(3));
}

#[test]
fn many_requests_are_served_before_answers_are_read() {
    let mut host = Host::start();
    let mut channels = Vec::new();
    for _ in 0..3000 {
        channels.push(host.ask(&Request::Stat { path: "/".into() }));
    }
    for channel in channels {
        assert!(matches!(host.reply(channel), Reply::Entry(_)));
        host.endpoint.close(channel);
    }
}

#[test]
fn activities_beyond_the_limit_are_refused() {
    let mut host = Host::start();
    let mut channels = Vec::new();
    let mut refused = 0;
    for _ in 0..2100 {
        channels.push(host.ask(&Request::WriteFile {
            path: "f".into(),
            mode: None,
            parents: false,
        }));
    }
    assert_eq!(host.call(&Request::Ping), Reply::Done);
    for &channel in &channels {
        if host.has_reply(channel) {
            let Reply::Failed(fault) = host.reply(channel) else { panic!() };
            assert_eq!(fault.code, FaultCode::Limit);
            refused += 1;
        }
    }
    assert!(refused >= 52, "{refused}");
    let fault = host.fault(&shell("true"));
    assert_eq!(fault.code, FaultCode::Limit);
    for channel in channels {
        host.endpoint.reset(channel, lane::MAIN);
    }
    host.flush();
    host.until("there is room again", |host| {
        let channel = host.ask(&shell("true"));
        matches!(host.reply(channel), Reply::Exited(_))
    });
}

/// Private memory of the guest, without files.
fn private_kb(host: &Host) -> u64 {
    let rollup = fs::read_to_string(format!("/proc/{}/smaps_rollup", host.guest.id())).unwrap();
    let line = rollup.lines().find(|line| line.starts_with("Anonymous:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

#[test]
fn guest_memory_goes_back_after_a_busy_time() {
    let mut host = Host::start();
    assert_eq!(host.run("echo warm").stdout, "warm\n");
    std::thread::sleep(Duration::from_millis(1500));
    let before = private_kb(&host);
    let count =
        |host: &Host| fs::read_dir(format!("/proc/{}/fd", host.guest.id())).unwrap().count();
    let descriptors = count(&host);
    let stuck: Vec<_> = (0..8)
        .map(|_| {
            let channel = host.ask(&shell_on("sleep 1000", LANES));
            let window = host.endpoint.window(channel, lane::MAIN);
            host.endpoint.send_data(channel, lane::MAIN, &vec![1; window]);
            channel
        })
        .collect();
    host.flush();
    let channel = host.ask(&shell("head -c 50000000 /dev/zero"));
    host.exited(channel);
    let busy = private_kb(&host);
    for process in stuck {
        assert_eq!(host.call(&Request::Signal { process, signal: 9, tree: false }), Reply::Done);
        host.exited(process);
    }
    std::thread::sleep(Duration::from_millis(1500));
    let after = private_kb(&host);
    assert!(busy > before + 1000, "the test does not test: {before} {busy}");
    assert!(after < before + 100, "{before} kB before, {busy} busy, {after} after");
    assert_eq!(count(&host), descriptors);
}

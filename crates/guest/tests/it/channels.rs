//! Programs with a channel of their own, and sockets with a path.

use std::fs;
use std::io::{Read as _, Write as _};
use std::os::unix::net::{UnixDatagram, UnixListener};
use std::thread;

use guest_protocol::message::{
    Command, ExitStatus, FaultCode, Pipe, Reply, Request, Stdio, TerminalSize, lane,
};

use crate::host::{Host, Seen, program, spawn};

fn with_channel(line: &str) -> Request {
    let stdio = Stdio::Channel { stdout: Pipe::Lane, stderr: Pipe::Lane };
    spawn(program(Command::Shell(line.into()), stdio))
}

fn dial(path: &str) -> Request {
    Request::DialUnix { path: path.to_owned() }
}

#[test]
fn a_channel_is_apart_from_output() {
    let mut host = Host::start();
    let line = "read line <&3; echo to the channel: $line >&3; echo out; echo err >&2; cat; exit 5";
    let channel = host.ask(&with_channel(line));
    host.send(channel, lane::MAIN, b"hello\n");
    assert_eq!(host.exited(channel).status, ExitStatus::Code(5));
    assert_eq!(host.text(channel, lane::MAIN), "to the channel: hello\n");
    assert_eq!(host.text(channel, lane::STDOUT), "out\n");
    assert_eq!(host.text(channel, lane::STDERR), "err\n");
}

#[test]
fn each_direction_of_a_channel_ends_by_itself() {
    let mut host = Host::start();
    let channel = host.ask(&with_channel("cat <&3 | tr a-z A-Z >&3"));
    host.send(channel, lane::MAIN, b"hello");
    host.end(channel, lane::MAIN);
    assert_eq!(host.exited(channel).status, ExitStatus::Code(0));
    assert_eq!(host.text(channel, lane::MAIN), "HELLO");
    assert!(host.seen[&channel].contains(&Seen::End(lane::MAIN)));
}

#[test]
fn a_held_channel_does_not_keep_its_program_alive() {
    let mut host = Host::start();
    let line = "(while :; do echo more; done) >&3 2>/dev/null & echo last >&3";
    let channel = host.ask(&with_channel(line));
    assert_eq!(host.exited(channel).status, ExitStatus::Code(0));
    assert!(host.text(channel, lane::MAIN).contains("last\n"));
    let kill = Request::Signal { process: channel, signal: 9, tree: true };
    assert_eq!(host.call(&kill), Reply::Done);
}

#[test]
fn a_channel_is_no_terminal() {
    let mut host = Host::start();
    let channel = host.ask(&with_channel("cat <&3"));
    let size = TerminalSize { rows: 1, columns: 1 };
    assert_eq!(host.code(&Request::Resize { process: channel, size }), FaultCode::NotFound);
    host.endpoint.reset(channel, lane::MAIN);
    host.flush();
    assert_eq!(host.exited(channel).status, ExitStatus::Code(0), "it sees the end");
}

#[test]
fn sockets_are_dialled_by_path() {
    let mut host = Host::start();
    let listener = UnixListener::bind(host.path("echo.sock")).unwrap();
    let echo = thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut all = Vec::new();
        stream.read_to_end(&mut all).unwrap();
        stream.write_all(&all).unwrap();
    });
    // Relative to the workspace, as with every path.
    let channel = host.ask(&dial("echo.sock"));
    assert_eq!(host.reply(channel), Reply::Started { pid: None });
    let bytes: Vec<u8> = (0..2_000_000_u32).map(|n| (n ^ (n >> 8)) as u8).collect();
    host.send(channel, lane::MAIN, &bytes);
    host.end(channel, lane::MAIN);
    assert_eq!(host.reply(channel), Reply::Done);
    assert!(host.data(channel, lane::MAIN) == bytes);
    echo.join().unwrap();
}

#[test]
fn a_failed_dial_reports_why() {
    let mut host = Host::start();
    drop(UnixListener::bind(host.path("deaf.sock")).unwrap());
    let _datagrams = UnixDatagram::bind(host.path("datagrams.sock")).unwrap();
    fs::write(host.path("file"), "").unwrap();
    let long = format!("/{}", "x".repeat(200));
    let cases = [
        ("nowhere.sock", FaultCode::NotFound),
        ("deaf.sock", FaultCode::NotFound),
        ("file", FaultCode::NotFound),
        ("file/deeper", FaultCode::NotFound),
        ("datagrams.sock", FaultCode::WrongKind),
        (&long, FaultCode::Invalid),
        ("a\0b", FaultCode::Invalid),
    ];
    for (path, code) in cases {
        assert_eq!(host.code(&dial(path)), code, "{path:?}");
    }
}

//! A connection to a real guest outside of a sandbox, with descriptors passed and without: what
//! crosses the connection must not depend on it.

use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use runtime::Inside as _;
use runtime::guest_link::{GuestLink, LinkSettings, Surroundings};
use runtime::{Died, ExecSpec, ExitStatus, Process, RuntimeErrorCode, Stdin, TerminalSize};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::time::timeout;

struct Nothing;

#[async_trait]
impl Surroundings for Nothing {
    fn memory_ran_out(&self) -> bool {
        false
    }

    async fn death(&self) -> Died {
        std::future::pending().await
    }
}

/// A guest that serves a directory, and goes when this goes.
struct Guest {
    link: GuestLink,
    place: PathBuf,
    process: Child,
}

impl Guest {
    async fn start(name: &str, pass_descriptors: bool) -> Self {
        let place = std::env::temp_dir()
            .join(format!("link-{}-{name}-{pass_descriptors}", std::process::id()));
        std::fs::create_dir_all(place.join("workspace")).expect("a place");
        let program = place.join("guest");
        std::fs::write(&program, guest_image::bytes().expect("unpacked")).expect("written");
        let executable = std::fs::Permissions::from_mode(0o755);
        std::fs::set_permissions(&program, executable).expect("executable");
        let (ours, theirs) = UnixStream::pair().expect("a pair");
        let process = Command::new(&program)
            .arg("serve")
            .arg(place.join("workspace"))
            .stdin(Stdio::from(OwnedFd::from(theirs)))
            .spawn()
            .expect("a guest");
        let settings = LinkSettings { pass_descriptors, ..LinkSettings::default() };
        let link = GuestLink::new(ours.into(), settings, Arc::new(Nothing)).expect("a link");
        link.ready().await.expect("ready");
        Self { link, place, process }
    }

    async fn start_program(&self, spec: ExecSpec) -> Process {
        self.link.exec(spec).await.expect("started")
    }

    /// Runs a program to its end, with all it says.
    async fn run(&self, spec: ExecSpec) -> (ExitStatus, Vec<u8>, Vec<u8>) {
        let mut process = self.start_program(spec).await;
        let mut stdout = process.stdout.take().expect("its output");
        let mut stderr = process.stderr.take().expect("its errors");
        let (mut out, mut err) = (Vec::new(), Vec::new());
        let all = async {
            tokio::join!(process.wait(), stdout.read_to_end(&mut out), stderr.read_to_end(&mut err))
        };
        let (exit, read_out, read_err) =
            timeout(Duration::from_secs(20), all).await.expect("in time");
        read_out.and(read_err).expect("read");
        (exit.expect("an exit").status, out, err)
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
        let _ = std::fs::remove_dir_all(&self.place);
    }
}

const BOTH: [bool; 2] = [true, false];

#[tokio::test]
async fn program_output_and_exit_are_the_same_by_pipes_and_lanes() {
    for pass in BOTH {
        let guest = Guest::start("output", pass).await;
        let (status, out, err) = guest.run(ExecSpec::shell("echo out; echo err >&2; exit 7")).await;
        assert_eq!(
            (status, out.as_slice(), err.as_slice()),
            (ExitStatus::Code(7), &b"out\n"[..], &b"err\n"[..])
        );
        let (status, out, _) = guest.run(ExecSpec::shell("head -c 3000000 /dev/zero")).await;
        assert_eq!((status, out.len()), (ExitStatus::Code(0), 3_000_000));
        let (status, ..) = guest.run(ExecSpec::shell("kill -9 $$")).await;
        assert_eq!(status, ExitStatus::Signal(9));
        let (_, out, _) = guest.run(ExecSpec::shell("sleep 2 & echo done")).await;
        assert_eq!(out, b"done\n", "a child that keeps the pipe is not waited for");
    }
}

#[tokio::test]
async fn program_input_is_the_same_by_pipes_and_lanes() {
    for pass in BOTH {
        let guest = Guest::start("input", pass).await;
        for size in [0, 10, 65_536, 1_000_000_u32] {
            let bytes: Vec<u8> = (0..size).map(|n| (n % 251) as u8).collect();
            let spec = ExecSpec::argv(["cat"]).stdin(Stdin::Bytes(bytes.clone()));
            let (status, out, _) = guest.run(spec).await;
            assert_eq!(status, ExitStatus::Code(0));
            assert!(out == bytes, "{size} bytes, passed: {pass}");
        }
        let (status, ..) =
            guest.run(ExecSpec::argv(["true"]).stdin(Stdin::Bytes(vec![0; 1_000_000]))).await;
        assert_eq!(status, ExitStatus::Code(0), "unread input does not block the program");
    }
}

#[tokio::test]
async fn dropped_programs_are_killed_by_pipes_and_lanes() {
    for pass in BOTH {
        let guest = Guest::start("drop", pass).await;
        let spec = ExecSpec { confirm_start: true, ..ExecSpec::shell("sleep 1000 & sleep 1000") };
        drop(guest.start_program(spec).await);
        let mut left = guest.link.processes().await.expect("listed");
        while !left.is_empty() {
            tokio::time::sleep(Duration::from_millis(5)).await;
            left = guest.link.processes().await.expect("listed");
        }
        let (_, out, _) = guest.run(ExecSpec::shell("echo on")).await;
        assert_eq!(out, b"on\n");
    }
}

#[tokio::test]
async fn unread_output_holds_up_only_its_writer_by_pipes_and_lanes() {
    for pass in BOTH {
        let guest = Guest::start("held", pass).await;
        let flood = ExecSpec::shell("head -c 10000000 /dev/zero; echo end >&2");
        let mut process = guest.start_program(flood).await;
        let (_, out, _) = guest.run(ExecSpec::shell("echo on")).await;
        assert_eq!(out, b"on\n");
        let early = timeout(Duration::from_millis(100), process.wait()).await;
        assert!(early.is_err(), "it is held up");
        let mut stdout = process.stdout.take().expect("its output");
        let mut all = Vec::new();
        stdout.read_to_end(&mut all).await.expect("read");
        assert_eq!(all.len(), 10_000_000);
        assert!(process.wait().await.expect("an exit").success());
    }
}

#[tokio::test]
async fn terminal_input_and_output_work() {
    let guest = Guest::start("terminal", true).await;
    let size = TerminalSize { rows: 10, columns: 20 };
    let spec = ExecSpec { terminal: Some(size), ..ExecSpec::shell("read line; echo got $line") };
    let mut process = guest.start_program(spec).await;
    let mut stdin = process.stdin.take().expect("its input");
    let mut stdout = process.stdout.take().expect("its output");
    stdin.write_all(b"hello\n").await.expect("written");
    let mut said = Vec::new();
    let read = timeout(Duration::from_secs(10), stdout.read_to_end(&mut said)).await;
    read.expect("in time").expect("read");
    let said = String::from_utf8_lossy(&said).into_owned();
    assert!(said.contains("got hello"), "{said:?}");
    assert!(process.wait().await.expect("an exit").success());
}

#[tokio::test]
async fn a_killed_guest_fails_every_waiting_caller() {
    let mut guest = Guest::start("killed", true).await;
    let mut process = guest.start_program(ExecSpec::shell("sleep 1000")).await;
    guest.process.kill().expect("killed");
    let exit = timeout(Duration::from_secs(1), process.wait()).await.expect("within a second");
    assert_eq!(exit.unwrap_err().code, RuntimeErrorCode::SandboxGone);
    assert_eq!(guest.link.ping().await.unwrap_err().code, RuntimeErrorCode::SandboxGone);
}

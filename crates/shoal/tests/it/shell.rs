//! Starts the program under test and waits for it, never for long.

use std::io::Write as _;
use std::process::{Child, Command, Output, Stdio};
use std::sync::OnceLock;
use std::thread::sleep;
use std::time::Duration;

/// No test waits longer for one command.
const PATIENCE: Duration = Duration::from_secs(40);
const LOOK_EVERY: Duration = Duration::from_millis(10);

pub(crate) fn shoal(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_shoal"));
    command.args(arguments).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// Whether sandboxes can run here.
pub(crate) fn able() -> bool {
    static ABLE: OnceLock<bool> = OnceLock::new();
    let able = *ABLE.get_or_init(|| {
        let looked = finish(shoal(&["doctor", "--no-trial"]).spawn().unwrap(), &[]);
        looked.status.success()
    });
    if !able {
        println!("not tried: `shoal doctor` says that sandboxes cannot run here");
    }
    able
}

/// Prints that a test is skipped. In CI that is a failure.
pub(crate) fn skipped(reason: &str) {
    assert!(std::env::var_os("CI").is_none(), "{reason}: in CI nothing may be skipped");
    println!("!!!! skipped: {reason} !!!!");
}

/// Writes input, waits for the end, and gives the output. Kills the process if that takes too long.
pub(crate) fn finish(mut child: Child, input: &[u8]) -> Output {
    let stdin = child.stdin.take();
    let pid = rustix::process::Pid::from_child(&child);
    let (done, watched) = std::sync::mpsc::channel::<()>();
    let watch = std::thread::spawn(move || {
        if watched.recv_timeout(PATIENCE) == Err(std::sync::mpsc::RecvTimeoutError::Timeout) {
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
            return false;
        }
        true
    });
    let input = input.to_vec();
    let feed = std::thread::spawn(move || stdin.map(|mut stdin| stdin.write_all(&input)));
    let output = child.wait_with_output().unwrap();
    drop(done);
    let _ = feed.join().unwrap();
    assert!(watch.join().unwrap(), "the command did not end in {PATIENCE:?}: {output:?}");
    output
}

/// Runs a command to its end.
pub(crate) fn run_shoal(arguments: &[&str]) -> CommandOutput {
    shoal_with_input(arguments, None)
}

/// Runs a command to its end, with this input.
pub(crate) fn shoal_with_input(arguments: &[&str], input: Option<&[u8]>) -> CommandOutput {
    let mut command = shoal(arguments);
    if input.is_some() {
        command.stdin(Stdio::piped());
    }
    let output = finish(command.spawn().unwrap(), input.unwrap_or_default());
    CommandOutput {
        code: output.status.code(),
        stdout: output.stdout,
        stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
    }
}

/// Exit code and output of a command.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct CommandOutput {
    pub(crate) code: Option<i32>,
    pub(crate) stdout: Vec<u8>,
    pub(crate) stderr: String,
}

impl CommandOutput {
    pub(crate) fn text(&self) -> &str {
        std::str::from_utf8(&self.stdout).unwrap()
    }
}

/// Waits until something holds.
pub(crate) fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    for _ in 0..(PATIENCE.as_millis() / LOOK_EVERY.as_millis()) {
        if holds() {
            return;
        }
        sleep(LOOK_EVERY);
    }
    panic!("{what} did not come true");
}

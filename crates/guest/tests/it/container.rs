//! The guest as the first process of a container that a script makes.

use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::process::{Command, ExitStatus, Stdio};

use crate::host::{Host, is_root, new_directory, skip};

const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/it/container.sh");

/// Starts a guest in a container; `None` where containers cannot be made.
pub(crate) fn start(link: &str, stdin: Stdio, stdout: Stdio, socket: UnixStream) -> Option<Host> {
    if !is_root() {
        skip("only root can make a container");
        return None;
    }
    if !["/usr/bin/ip", "/usr/sbin/ip"].iter().any(|path| std::path::Path::new(path).exists()) {
        skip("no ip");
        return None;
    }
    let directory = new_directory();
    let guest = line(&directory.to_string_lossy(), &["/.shoal/guest", "contained", link])
        .stdin(stdin)
        .stdout(stdout)
        .spawn()
        .unwrap();
    Some(Host::greeted(guest, socket, directory))
}

/// Starts one whose connection is its standard input.
pub(crate) fn on_stdin() -> Option<Host> {
    let (ours, theirs) = UnixStream::pair().unwrap();
    start("stdin", Stdio::from(OwnedFd::from(theirs)), Stdio::inherit(), ours)
}

/// The command that starts something as the first process of a container.
pub(crate) fn line(directory: &str, command: &[&str]) -> Command {
    let mut line = Command::new("/usr/bin/unshare");
    line.args(["--mount", "--pid", "--ipc", "--net", "--fork", "--kill-child"])
        .args(["--propagation", "private", "/bin/sh", SCRIPT, directory])
        .arg(env!("CARGO_BIN_EXE_guest"))
        .args(command)
        .env_clear()
        .env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin");
    line
}

/// Runs something that ends by itself.
pub(crate) fn run(command: &[&str]) -> ExitStatus {
    let directory = new_directory();
    let status = line(&directory.to_string_lossy(), command).stdin(Stdio::null()).status().unwrap();
    std::fs::remove_dir(directory).unwrap();
    status
}

//! Running a program once, with an end: whatever it is, it is given its time and then killed with all
//! it has started. What it says goes to a file that nobody waits for, because what it leaves running
//! keeps it open.

use std::fs::{File, OpenOptions};
use std::io::{self, Read as _, Seek as _, SeekFrom};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process_group};
use tokio::process::Command;
use tokio::time::timeout;

use crate::error::{RuntimeError, RuntimeErrorCode};

/// So much of what a program said is told.
const SAID_BYTES_MAX: u64 = 1024;
/// How long one that was killed may take to be gone.
const COLLECT_PATIENCE: Duration = Duration::from_secs(2);

/// Where a program's standard streams lead.
#[derive(Debug, Default)]
pub(super) struct Streams<'a> {
    /// What it reads; nothing if not given.
    pub(super) input: Option<OwnedFd>,
    /// The file that what it says is appended to; nowhere if not given.
    pub(super) said: Option<&'a Path>,
}

/// Runs a program to its end. That it did not succeed is a failure, with what it said.
pub(super) async fn run(
    mut command: Command,
    streams: Streams<'_>,
    step: &'static str,
    patience: Duration,
) -> Result<(), RuntimeError> {
    let failed = |error: &io::Error| RuntimeError::system(step, error);
    command.stdin(streams.input.map_or_else(Stdio::null, Stdio::from));
    match streams.said {
        Some(path) => {
            let said = open_said(path).map_err(|error| failed(&error))?;
            let again = said.try_clone().map_err(|error| failed(&error))?;
            command.stdout(said).stderr(again);
        }
        None => {
            command.stdout(Stdio::null()).stderr(Stdio::null());
        }
    }
    // What it starts must not hear what is typed at our terminal, and can be ended with it.
    command.process_group(0).kill_on_drop(true);
    let mut child = command.spawn().map_err(|error| failed(&error))?;
    // Our ends of its streams would keep them open.
    drop(command);
    let group = child.id().and_then(|id| Pid::from_raw(id.cast_signed()));
    let Ok(ended) = timeout(patience, child.wait()).await else {
        if let Some(group) = group {
            // It may have ended just now.
            let _ = kill_process_group(group, Signal::KILL);
        }
        // What the kernel does not let go is nobody's to wait for; it is collected when it ends.
        let _ = timeout(COLLECT_PATIENCE, child.wait()).await;
        return Err(RuntimeError::deadline(step));
    };
    let status = ended.map_err(|error| failed(&error))?;
    if status.success() {
        return Ok(());
    }
    let said = streams.said.and_then(|path| last_said(path).ok()).unwrap_or_default();
    let cause = if said.is_empty() { status.to_string() } else { said };
    Err(RuntimeError::new(RuntimeErrorCode::LaunchFailed, step, cause))
}

fn open_said(path: &Path) -> io::Result<File> {
    OpenOptions::new().create(true).append(true).open(path)
}

/// The end of what was said, in one line.
fn last_said(path: &Path) -> io::Result<String> {
    let mut file = File::open(path)?;
    let length = file.metadata()?.len();
    file.seek(SeekFrom::Start(length.saturating_sub(SAID_BYTES_MAX)))?;
    let mut bytes = Vec::new();
    file.take(SAID_BYTES_MAX).read_to_end(&mut bytes)?;
    let text = String::from_utf8_lossy(&bytes);
    let lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
    Ok(lines.collect::<Vec<_>>().join("; "))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(line: &str) -> Command {
        let mut command = Command::new("/bin/sh");
        command.args(["-c", line]);
        command
    }

    #[tokio::test]
    async fn what_fails_says_why_and_what_hangs_is_ended() {
        let place = std::env::temp_dir().join(format!("oci-command-{}", std::process::id()));
        let patience = Duration::from_secs(20);
        let said = || Streams { input: None, said: Some(&place) };
        run(shell("echo fine"), said(), "try", patience).await.unwrap();
        let error = run(shell("echo not so; exit 3"), said(), "try", patience).await.unwrap_err();
        assert_eq!(error.code, RuntimeErrorCode::LaunchFailed);
        assert_eq!(error.cause, "fine; not so");
        let error = run(shell("exit 3"), Streams::default(), "try", patience).await.unwrap_err();
        assert!(error.cause.contains('3'), "{error:?}");
        let many = format!(
            "i=0; while [ $i -lt 999 ]; do echo {}; i=$((i+1)); done; exit 1",
            "x".repeat(99)
        );
        let error = run(shell(&many), said(), "try", patience).await.unwrap_err();
        assert!(error.cause.len() < 2000, "{} bytes", error.cause.len());
        let brief = Duration::from_millis(50);
        let error = run(shell("sleep 60 & wait"), said(), "try", brief).await.unwrap_err();
        assert_eq!(error.code, RuntimeErrorCode::DeadlineExceeded);
        std::fs::remove_file(place).unwrap();
    }
}

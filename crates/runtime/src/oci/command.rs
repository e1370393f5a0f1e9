//! Runs a program once, with a deadline: after it, the program is killed with all it has started.
//! Its output goes to a file and not to a pipe, because the container that it leaves running keeps
//! the output open.

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

/// How much of a program's output an error shows.
const OUTPUT_BYTES_MAX: u64 = 1024;
/// How long a killed program may take to be gone.
const COLLECT_PATIENCE: Duration = Duration::from_secs(2);

/// Where a program's standard streams lead.
#[derive(Debug, Default)]
pub(super) struct Streams<'a> {
    /// What it reads; nothing if not given.
    pub(super) input: Option<OwnedFd>,
    /// The file that its output is appended to; discarded if not given.
    pub(super) output: Option<&'a Path>,
}

/// Runs a program to its end. An exit status other than 0 is a failure, with the end of its output.
pub(super) async fn run(
    mut command: Command,
    streams: Streams<'_>,
    step: &'static str,
    patience: Duration,
) -> Result<(), RuntimeError> {
    let failed = |error: &io::Error| RuntimeError::system(step, error);
    command.stdin(streams.input.map_or_else(Stdio::null, Stdio::from));
    match streams.output {
        Some(path) => {
            let output = open_output(path).map_err(|error| failed(&error))?;
            let again = output.try_clone().map_err(|error| failed(&error))?;
            command.stdout(output).stderr(again);
        }
        None => {
            command.stdout(Stdio::null()).stderr(Stdio::null());
        }
    }
    // A process group of its own: no signals from our terminal, and one kill for all it starts.
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
        // A process that cannot be killed at once is not waited for; tokio reaps it when it ends.
        let _ = timeout(COLLECT_PATIENCE, child.wait()).await;
        return Err(RuntimeError::deadline(step));
    };
    let status = ended.map_err(|error| failed(&error))?;
    if status.success() {
        return Ok(());
    }
    let text = streams.output.and_then(|path| end_of_output(path).ok()).unwrap_or_default();
    let cause = if text.is_empty() { status.to_string() } else { text };
    Err(RuntimeError::new(RuntimeErrorCode::LaunchFailed, step, cause))
}

fn open_output(path: &Path) -> io::Result<File> {
    OpenOptions::new().create(true).append(true).open(path)
}

/// The end of the output, in one line.
fn end_of_output(path: &Path) -> io::Result<String> {
    let mut file = File::open(path)?;
    let length = file.metadata()?.len();
    file.seek(SeekFrom::Start(length.saturating_sub(OUTPUT_BYTES_MAX)))?;
    let mut bytes = Vec::new();
    file.take(OUTPUT_BYTES_MAX).read_to_end(&mut bytes)?;
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
    async fn oci_command_failures_show_output_and_hangs_are_killed() {
        let place = std::env::temp_dir().join(format!("oci-command-{}", std::process::id()));
        let patience = Duration::from_secs(20);
        let streams = || Streams { input: None, output: Some(&place) };
        run(shell("echo fine"), streams(), "try", patience).await.unwrap();
        let error =
            run(shell("echo not so; exit 3"), streams(), "try", patience).await.unwrap_err();
        assert_eq!(error.code, RuntimeErrorCode::LaunchFailed);
        assert_eq!(error.cause, "fine; not so");
        let error = run(shell("exit 3"), Streams::default(), "try", patience).await.unwrap_err();
        assert!(error.cause.contains('3'), "{error:?}");
        let many = format!(
            "i=0; while [ $i -lt 999 ]; do echo {}; i=$((i+1)); done; exit 1",
            "x".repeat(99)
        );
        let error = run(shell(&many), streams(), "try", patience).await.unwrap_err();
        assert!(error.cause.len() < 2000, "{} bytes", error.cause.len());
        let brief = Duration::from_millis(50);
        let error = run(shell("sleep 60 & wait"), streams(), "try", brief).await.unwrap_err();
        assert_eq!(error.code, RuntimeErrorCode::DeadlineExceeded);
        std::fs::remove_file(place).unwrap();
    }
}

//! Reaping of child processes of the server: the launcher and the keeper. A child that died must be
//! reaped, or it stays a zombie until the server ends.

use std::fmt;

use guest_protocol::message::ExitStatus;
use rustix::io::Errno;
use rustix::process::{Pid, WaitOptions, WaitStatus, waitpid};

/// How a child process exited, for logs.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ChildExit(Option<WaitStatus>);

impl ChildExit {
    /// Waits until the child has exited, and reaps it. Blocks.
    pub(crate) fn reap(pid: Pid) -> Self {
        loop {
            match waitpid(Some(pid), WaitOptions::empty()) {
                Err(Errno::INTR) => {}
                // An error means that the child was reaped elsewhere.
                waited => return Self(waited.ok().flatten().map(|(_, status)| status)),
            }
        }
    }

    /// The exit as sandboxes report theirs; none if it is unknown.
    pub(crate) fn status(self) -> Option<ExitStatus> {
        let status = self.0?;
        let signal = status.terminating_signal().map(ExitStatus::Signal);
        signal.or_else(|| status.exit_status().map(ExitStatus::Code))
    }
}

impl fmt::Display for ChildExit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let signal = self.0.and_then(WaitStatus::terminating_signal);
        let code = self.0.and_then(WaitStatus::exit_status);
        match (signal, code) {
            (Some(signal), _) => write!(f, "signal {signal}"),
            (None, Some(code)) => write!(f, "exit code {code}"),
            (None, None) => f.write_str("unknown"),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    #[expect(clippy::zombie_processes, reason = "reaping by pid is what this tests")]
    fn child_exit_names_the_code_or_the_signal() {
        for (line, expected) in [("exit 3", "exit code 3"), ("kill -9 $$", "signal 9")] {
            let child = Command::new("/bin/sh").args(["-c", line]).spawn().unwrap();
            let pid = Pid::from_raw(child.id().cast_signed()).unwrap();
            assert_eq!(ChildExit::reap(pid).to_string(), expected);
            assert_eq!(ChildExit::reap(pid).to_string(), "unknown", "it is reaped");
        }
    }
}

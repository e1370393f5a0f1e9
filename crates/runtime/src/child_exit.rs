//! Reaping of child processes of the server: the launcher and the keeper. A child that died must be
//! reaped, or it stays a zombie until the server ends.

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
        let signal = self.signal().map(ExitStatus::Signal);
        signal.or_else(|| self.code().map(ExitStatus::Code))
    }

    /// The signal that ended it, if one did.
    pub(crate) fn signal(self) -> Option<i32> {
        self.0.and_then(WaitStatus::terminating_signal)
    }

    /// The code with which it exited, if it did.
    pub(crate) fn code(self) -> Option<i32> {
        self.0.and_then(WaitStatus::exit_status)
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    #[expect(clippy::zombie_processes, reason = "reaping by pid is what this tests")]
    fn child_exit_names_the_code_or_the_signal() {
        for (line, signal, code) in [("exit 3", None, Some(3)), ("kill -9 $$", Some(9), None)] {
            let child = Command::new("/bin/sh").args(["-c", line]).spawn().unwrap();
            let pid = Pid::from_raw(child.id().cast_signed()).unwrap();
            let exit = ChildExit::reap(pid);
            assert_eq!((exit.signal(), exit.code()), (signal, code));
            let again = ChildExit::reap(pid);
            assert_eq!((again.signal(), again.code()), (None, None), "it is reaped");
        }
    }
}

//! The outcome of a program: as text, as JSON, and as an exit code.

use std::process::ExitCode;
use std::time::Duration;

use runtime::{Collected, Exit, ExitStatus};
use serde_json::{Value, json};

use crate::duration;
use crate::output::Output;

/// Added to the number of the signal that ended a program, as shells do.
const SIGNAL_BASE: i32 = 128;

/// How a program ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ProgramOutcome {
    status: ExitStatus,
    out_of_memory: bool,
    took: Duration,
    /// The time limit, if the program exceeded it.
    timed_out_after: Option<Duration>,
    memory_mb: u32,
    /// Whether it was printed already.
    reported: bool,
}

impl ProgramOutcome {
    pub(crate) fn of(
        exit: Exit,
        took: Duration,
        timed_out_after: Option<Duration>,
        memory_mb: u32,
    ) -> Self {
        let (status, out_of_memory) = (exit.status, exit.out_of_memory);
        Self { status, out_of_memory, took, timed_out_after, memory_mb, reported: false }
    }

    /// A signal ended us before the program ended.
    pub(crate) fn interrupted(number: i32) -> Self {
        Self {
            status: ExitStatus::Signal(number),
            out_of_memory: false,
            took: Duration::ZERO,
            timed_out_after: None,
            memory_mb: 0,
            reported: false,
        }
    }

    #[must_use]
    pub(crate) fn reported(mut self) -> Self {
        self.reported = true;
        self
    }

    pub(crate) fn exit_code(&self) -> ExitCode {
        ExitCode::from(self.code())
    }

    pub(crate) fn code(&self) -> u8 {
        let code = match self.status {
            ExitStatus::Code(code) => code & 0xff,
            ExitStatus::Signal(number) => (SIGNAL_BASE + number).clamp(SIGNAL_BASE, 255),
        };
        u8::try_from(code).unwrap_or(u8::MAX)
    }

    /// What the exit code alone does not say.
    pub(crate) fn words(&self) -> Option<String> {
        if self.out_of_memory {
            let memory_mb = self.memory_mb;
            return Some(format!(
                "out of memory: the kernel killed the program when it used more than {memory_mb} MB; \
                 --memory gives it more"
            ));
        }
        self.timed_out_after.map(|limit| {
            format!("timed out: killed after {}; --timeout gives it more", duration::words(limit))
        })
    }

    pub(crate) fn report(&self, output: &Output) {
        if let Some(words) = self.words().filter(|_| !self.reported) {
            output.note(&words);
        }
    }

    pub(crate) fn json(&self, collected: &Collected) -> Value {
        let (exit_code, signal) = match self.status {
            ExitStatus::Code(code) => (Some(code), None),
            ExitStatus::Signal(number) => (None, Some(number)),
        };
        json!({
            "exit_code": exit_code,
            "signal": signal,
            "stdout": String::from_utf8_lossy(&collected.stdout),
            "stderr": String::from_utf8_lossy(&collected.stderr),
            "truncated": collected.stdout_truncated || collected.stderr_truncated,
            "oom": self.out_of_memory,
            "timed_out": self.timed_out_after.is_some(),
            "duration_ms": self.took.as_secs_f64() * 1000.0,
            "user_us": collected.exit.user_us,
            "system_us": collected.exit.system_us,
            "max_rss_kb": collected.exit.max_rss_kb,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outcome(status: ExitStatus) -> ProgramOutcome {
        let exit = Exit { status, out_of_memory: false, user_us: 0, system_us: 0, max_rss_kb: 0 };
        ProgramOutcome::of(exit, Duration::from_millis(3), None, 64)
    }

    #[test]
    fn run_exit_code_is_that_of_the_program_or_of_its_signal() {
        let cases = [
            (ExitStatus::Code(0), 0),
            (ExitStatus::Code(7), 7),
            (ExitStatus::Code(255), 255),
            (ExitStatus::Code(256), 0),
            (ExitStatus::Code(-1), 255),
            (ExitStatus::Signal(9), 137),
            (ExitStatus::Signal(15), 143),
            (ExitStatus::Signal(64), 192),
        ];
        for (status, expected) in cases {
            assert_eq!(outcome(status).code(), expected, "{status:?}");
        }
    }

    #[test]
    fn run_reports_out_of_memory_and_timeouts() {
        let plain = outcome(ExitStatus::Signal(9));
        assert_eq!(plain.words(), None);
        let hungry = ProgramOutcome { out_of_memory: true, ..plain };
        assert!(hungry.words().unwrap().starts_with("out of memory"));
        let slow = ProgramOutcome { timed_out_after: Some(Duration::from_secs(2)), ..plain };
        assert_eq!(slow.words().unwrap(), "timed out: killed after 2.0 s; --timeout gives it more");
    }
}

//! Why a command did not do its work: what it was about, the cause, and what can be done about it.

use std::fmt;
use std::process::ExitCode;

use runtime::{RuntimeError, RuntimeErrorCode};

use crate::output::Output;

/// We failed, not the program.
pub(crate) const OWN_FAILURE: u8 = 125;
/// The program is there but cannot be executed.
const CANNOT_EXECUTE: u8 = 126;
/// There is no such program.
const NOT_FOUND: u8 = 127;
/// What was typed or configured cannot be used.
const UNUSABLE: u8 = 2;
/// Killed: what a program that ran out of memory gets.
const KILLED: u8 = 128 + 9;

/// A failure, ready to be told.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Failure {
    /// What could not be done.
    what: String,
    /// Why.
    cause: String,
    /// What to do about it.
    remedy: Option<String>,
    exit: u8,
}

impl Failure {
    pub(crate) fn new(what: impl Into<String>, cause: impl fmt::Display) -> Self {
        let (what, cause) = (what.into(), cause.to_string());
        Self { what, cause, remedy: None, exit: OWN_FAILURE }
    }

    #[must_use]
    pub(crate) fn remedy(mut self, remedy: impl Into<String>) -> Self {
        self.remedy = Some(remedy.into());
        self
    }

    /// The same failure, of what was typed or configured.
    #[must_use]
    pub(crate) fn usage(self) -> Self {
        Self { exit: UNUSABLE, ..self }
    }

    /// A sandbox could not be used.
    pub(crate) fn of_runtime(what: impl Into<String>, error: &RuntimeError) -> Self {
        let killed = error.code == RuntimeErrorCode::OutOfMemory;
        let exit = if killed { KILLED } else { OWN_FAILURE };
        Self { exit, ..Self::new(what, error).remedy(error.code.remedy()) }
    }

    /// A program could not be started.
    pub(crate) fn of_start(program: &str, error: &RuntimeError) -> Self {
        let what = format!("cannot run {program}");
        let cannot = [RuntimeErrorCode::Denied, RuntimeErrorCode::WrongKind];
        if error.code == RuntimeErrorCode::NotFound {
            let failure = Self::new(what, &error.cause);
            let remedy = "check the name; sandboxes have the programs of this machine's /usr";
            Self { exit: NOT_FOUND, ..failure.remedy(remedy) }
        } else if cannot.contains(&error.code) {
            let failure = Self::new(what, &error.cause);
            Self { exit: CANNOT_EXECUTE, ..failure.remedy("check that it is an executable file") }
        } else {
            Self::of_runtime(what, error)
        }
    }

    /// Says it on stderr and gives the exit code.
    pub(crate) fn report(&self, output: &Output) -> ExitCode {
        output.complain(&format!("{}: {}", self.what, self.cause));
        if let Some(remedy) = &self.remedy {
            output.hint(remedy);
        }
        ExitCode::from(self.exit)
    }

    #[cfg(test)]
    pub(crate) const fn exit(&self) -> u8 {
        self.exit
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.what, self.cause)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exit_codes_say_whose_failure_it_is() {
        let cases = [
            (RuntimeErrorCode::NotFound, 127),
            (RuntimeErrorCode::Denied, 126),
            (RuntimeErrorCode::WrongKind, 126),
            (RuntimeErrorCode::OutOfMemory, 137),
            (RuntimeErrorCode::LauncherLost, 125),
            (RuntimeErrorCode::System, 125),
        ];
        for (code, expected) in cases {
            let error = RuntimeError::new(code, "start", "because");
            assert_eq!(Failure::of_start("x", &error).exit(), expected, "{code}");
        }
        let missing = RuntimeError::new(RuntimeErrorCode::NotFound, "launch", "because");
        assert_eq!(Failure::of_runtime("x", &missing).exit(), 125, "not a program");
    }
}

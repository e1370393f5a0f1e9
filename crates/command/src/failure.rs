//! Why a command did not do its work: what it was about, the cause, and what can be done about it.

use std::fmt;
use std::process::ExitCode;

use client::ClientError;
use images::{ImageError, ImageErrorCode};
use model::ErrorCode;
use runtime::{RuntimeError, RuntimeErrorCode};

use crate::output::Output;

/// Shoal itself failed, not the program that it ran.
pub const OWN_FAILURE: u8 = 125;
/// The program exists but cannot be executed.
const CANNOT_EXECUTE: u8 = 126;
/// There is no such program.
const NOT_FOUND: u8 = 127;
/// The server refused, or did not answer.
const REFUSED: u8 = 1;
/// There is no server.
const NO_SERVER: u8 = 3;
/// The command line or the configuration cannot be used.
const UNUSABLE: u8 = 2;
/// The program was killed, because it ran out of memory.
const KILLED: u8 = 128 + 9;

/// Why a command failed, with its exit code.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    /// What could not be done.
    what: String,
    /// Why.
    cause: String,
    /// What to do about it.
    remedy: Option<String>,
    exit: u8,
}

impl Failure {
    /// A failure of Shoal itself, without a remedy.
    pub fn new(what: impl Into<String>, cause: impl fmt::Display) -> Self {
        let (what, cause) = (what.into(), cause.to_string());
        Self { what, cause, remedy: None, exit: OWN_FAILURE }
    }

    /// The same failure, with a remedy.
    #[must_use]
    pub fn remedy(mut self, remedy: impl Into<String>) -> Self {
        self.remedy = Some(remedy.into());
        self
    }

    /// The same failure, caused by the command line or the configuration.
    #[must_use]
    pub fn usage(self) -> Self {
        Self { exit: UNUSABLE, ..self }
    }

    /// The same failure, because there is no server.
    #[must_use]
    pub fn no_server(self) -> Self {
        Self { exit: NO_SERVER, ..self }
    }

    /// A sandbox could not be used.
    pub fn of_runtime(what: impl Into<String>, error: &RuntimeError) -> Self {
        let killed = error.code == RuntimeErrorCode::OutOfMemory;
        let exit = if killed { KILLED } else { OWN_FAILURE };
        Self { exit, ..Self::new(what, error).remedy(error.code.remedy()) }
    }

    /// A program could not be started.
    pub fn of_start(program: &str, error: &RuntimeError) -> Self {
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

    /// Something could not be done with an image.
    pub fn of_image(what: impl Into<String>, error: &ImageError) -> Self {
        let exit = match error.code {
            ImageErrorCode::Store | ImageErrorCode::NoSpace | ImageErrorCode::Busy => OWN_FAILURE,
            ImageErrorCode::SourceUnreadable | ImageErrorCode::Unrecognised => UNUSABLE,
            ImageErrorCode::Unknown
            | ImageErrorCode::InUse
            | ImageErrorCode::Broken
            | ImageErrorCode::Unsafe
            | ImageErrorCode::Unsupported
            | ImageErrorCode::DigestMismatch
            | ImageErrorCode::WrongPlatform
            | ImageErrorCode::Ambiguous
            | ImageErrorCode::TooLarge
            | ImageErrorCode::TooManyLayers
            | ImageErrorCode::NotTaken
            | ImageErrorCode::Cancelled => REFUSED,
        };
        Self { exit, ..Self::new(what, error).remedy(error.code.remedy()) }
    }

    /// A server refused the request, or could not be reached.
    pub fn of_client(what: impl Into<String>, error: &ClientError) -> Self {
        let failure = Self { exit: REFUSED, ..Self::new(what, error) };
        match error {
            ClientError::Connect { address, cause } => {
                let failure = Self::new(format!("no server at {address}"), cause);
                let remedy = "start one with `shoal serve`, or name another with --server";
                Self { exit: NO_SERVER, ..failure.remedy(remedy) }
            }
            ClientError::Problem(problem) if error.code() == Some(ErrorCode::Unauthorized) => {
                Self { cause: problem.detail.clone(), ..failure }.remedy(
                    "set SHOAL_KEY, or run the command as the user who runs the server: the key is in \
                     its data directory",
                )
            }
            ClientError::Problem(problem) => failure.remedy(problem.remedy.clone()),
            ClientError::Cut { .. } | ClientError::Timeout { .. } => {
                failure.remedy("check whether the server has done it, then try again")
            }
            ClientError::Unexpected { .. } => {
                failure.remedy("check that the address is that of a Shoal server of this version")
            }
            ClientError::Invalid { .. } => failure.usage(),
        }
    }

    /// A server could not start a program. The program owns the low exit codes, so these are the
    /// ones that programs do not use.
    pub fn of_exec(what: impl Into<String>, error: &ClientError) -> Self {
        let exit = match error.code() {
            Some(ErrorCode::PathNotFound) => NOT_FOUND,
            Some(ErrorCode::PathDenied | ErrorCode::PathWrongKind) => CANNOT_EXECUTE,
            Some(ErrorCode::Oom) => KILLED,
            Some(_) | None => OWN_FAILURE,
        };
        Self { exit, ..Self::of_client(what, error) }
    }

    /// The same failure with exit code 125, for commands that run programs.
    #[must_use]
    pub fn as_own_failure(self) -> Self {
        Self { exit: OWN_FAILURE, ..self }
    }

    /// Prints the failure to stderr and gives the exit code.
    pub fn report(&self, output: &Output) -> ExitCode {
        output.complain(&format!("{}: {}", self.what, self.cause));
        if let Some(remedy) = &self.remedy {
            output.hint(remedy);
        }
        ExitCode::from(self.exit)
    }

    /// The exit code.
    pub const fn exit(&self) -> u8 {
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
    fn exit_codes_tell_our_failures_from_the_programs() {
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

    #[test]
    fn exit_codes_tell_a_refusal_from_a_missing_server() {
        let refused = |code: ErrorCode| {
            let refusal = model::Refusal::new(code, "because");
            ClientError::Problem(Box::new(wire::Problem::new(&refusal, None, "r")))
        };
        let gone = ClientError::Connect { address: "http://x".into(), cause: "refused".into() };
        let cases = [
            (gone.clone(), 3, 125),
            (refused(ErrorCode::CapacityExhausted), 1, 125),
            (refused(ErrorCode::PathNotFound), 1, 127),
            (refused(ErrorCode::PathDenied), 1, 126),
            (refused(ErrorCode::Oom), 1, 137),
            (ClientError::Cut { cause: "x".into() }, 1, 125),
            (ClientError::Invalid { cause: "x".into() }, 2, 125),
        ];
        for (error, of_client, of_exec) in cases {
            assert_eq!(Failure::of_client("x", &error).exit(), of_client, "{error}");
            assert_eq!(Failure::of_exec("x", &error).exit(), of_exec, "{error}");
        }
        let failure = Failure::of_client("cannot list", &gone);
        assert_eq!(failure.to_string(), "no server at http://x: refused");
        assert!(failure.remedy.unwrap().contains("shoal serve"));
    }
}

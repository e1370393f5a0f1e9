//! Why a harness could not be started or given a turn, and why a turn failed. Codes never change
//! their meaning; causes are for people, and contain neither environments nor configurations.
//! Output of the program is for its session alone, and never part of a log of the server.

use std::fmt;
use std::sync::Arc;

use model::{ErrorCode, Refusal, TerminatedReason, error_codes};
use runtime::{RuntimeError, RuntimeErrorCode};

use crate::link::HarnessEnd;

/// The longest error code of a harness.
const CODE_BYTES_MAX: usize = 64;

error_codes! {
    /// Why a call to a harness failed.
    pub enum HarnessErrorCode {
    }
    /// The harness was not ready in time.
    ReadyTimeout, "harness_ready_timeout";
    /// The harness could not be started.
    NotStarted, "harness_not_started";
    /// The harness has ended.
    Died, "harness_died";
    /// The sandbox ran out of memory.
    OutOfMemory, "oom";
    /// The harness broke its protocol.
    Protocol, "harness_protocol";
    /// The harness sent more at once than allowed.
    TooLarge, "harness_too_large";
    /// The harness has a turn already.
    Busy, "harness_busy";
    /// This harness does not take such an input.
    Input, "harness_input";
    /// The sandbox has ended.
    SandboxGone, "sandbox_gone";
}

/// Why a turn failed: a code of ours, or the harness's own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FailureCode {
    /// A code of ours.
    Ours(HarnessErrorCode),
    /// The harness reported an error, perhaps with a code.
    Said(Option<Arc<str>>),
}

impl FailureCode {
    /// The word on the wire.
    pub fn as_str(&self) -> &str {
        match self {
            Self::Ours(code) => code.as_str(),
            Self::Said(None) => "harness_error",
            Self::Said(Some(word)) => word,
        }
    }

    /// The code of a harness, if it is valid.
    pub(crate) fn said(word: Option<&str>) -> Self {
        let is_plain =
            |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-' | b'.');
        let fits =
            |word: &&str| (1..=CODE_BYTES_MAX).contains(&word.len()) && word.bytes().all(is_plain);
        Self::Said(word.filter(fits).map(Arc::from))
    }
}

impl fmt::Display for FailureCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Why a harness could not be started, bound or given a turn.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HarnessError {
    /// The code to branch on.
    pub code: HarnessErrorCode,
    /// What happened, perhaps with output of the program.
    pub cause: String,
    /// The cause without the output of the program, if there is some.
    plain: Option<String>,
    /// The error of the runtime, if it was the runtime.
    runtime: Option<RuntimeError>,
}

impl HarnessError {
    pub(crate) fn new(code: HarnessErrorCode, cause: impl Into<String>) -> Self {
        Self { code, cause: cause.into(), plain: None, runtime: None }
    }

    /// With output of the program.
    pub(crate) fn with_program_text(
        code: HarnessErrorCode,
        plain: impl Into<String>,
        words: &str,
    ) -> Self {
        let plain = plain.into();
        if words.is_empty() {
            return Self::new(code, plain);
        }
        Self { code, cause: format!("{plain}: {words}"), plain: Some(plain), runtime: None }
    }

    /// The sandbox has ended.
    pub fn sandbox_gone() -> Self {
        Self::new(HarnessErrorCode::SandboxGone, "the sandbox is gone")
    }

    /// The end of a turn that could not begin because of this.
    pub fn into_end(self) -> HarnessEnd {
        if self.code == HarnessErrorCode::SandboxGone {
            return HarnessEnd::SandboxGone;
        }
        HarnessEnd::Failed { code: FailureCode::Ours(self.code), message: self.cause }
    }

    /// This error as a failure to launch a sandbox with this harness. Launch failures are in logs
    /// and events, which must never contain output of a program.
    pub fn into_runtime_error(self) -> RuntimeError {
        if let Some(error) = self.runtime {
            return error;
        }
        let code = match self.code {
            HarnessErrorCode::ReadyTimeout => RuntimeErrorCode::ReadyTimeout,
            HarnessErrorCode::SandboxGone => RuntimeErrorCode::SandboxGone,
            HarnessErrorCode::OutOfMemory => RuntimeErrorCode::OutOfMemory,
            HarnessErrorCode::Input => RuntimeErrorCode::Invalid,
            HarnessErrorCode::NotStarted
            | HarnessErrorCode::Died
            | HarnessErrorCode::Protocol
            | HarnessErrorCode::TooLarge
            | HarnessErrorCode::Busy => RuntimeErrorCode::LaunchFailed,
        };
        RuntimeError::new(code, "start the harness", self.plain.unwrap_or(self.cause))
    }
}

/// Whether an error says that the sandbox has ended.
pub(crate) fn is_gone(code: RuntimeErrorCode) -> bool {
    matches!(
        code,
        RuntimeErrorCode::SandboxGone
            | RuntimeErrorCode::SandboxUnknown
            | RuntimeErrorCode::OutOfMemory
            | RuntimeErrorCode::LauncherLost
            | RuntimeErrorCode::ShuttingDown
            | RuntimeErrorCode::Protocol
    )
}

impl From<RuntimeError> for HarnessError {
    fn from(error: RuntimeError) -> Self {
        let code = if is_gone(error.code) {
            HarnessErrorCode::SandboxGone
        } else {
            HarnessErrorCode::NotStarted
        };
        Self { code, cause: error.to_string(), plain: None, runtime: Some(error) }
    }
}

impl fmt::Display for HarnessError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.code.as_str(), self.cause)
    }
}

impl std::error::Error for HarnessError {}

impl From<HarnessError> for Refusal {
    fn from(error: HarnessError) -> Self {
        let code = match error.code {
            HarnessErrorCode::ReadyTimeout => ErrorCode::ReadyTimeout,
            HarnessErrorCode::SandboxGone => ErrorCode::SandboxGone,
            HarnessErrorCode::OutOfMemory => ErrorCode::Oom,
            HarnessErrorCode::Busy => ErrorCode::HarnessBusy,
            HarnessErrorCode::Input => ErrorCode::InvalidArgument,
            HarnessErrorCode::NotStarted
            | HarnessErrorCode::Died
            | HarnessErrorCode::Protocol
            | HarnessErrorCode::TooLarge => ErrorCode::HarnessFailed,
        };
        let refusal = Self::new(code, error.cause);
        // An ordered end is reported as such; a harness that ended without one has died.
        let died = code == ErrorCode::SandboxGone;
        if died { refusal.because(TerminatedReason::Crash) } else { refusal }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn harness_error_codes_are_unique() {
        let mut words: Vec<_> = HarnessErrorCode::ALL.iter().map(|code| code.as_str()).collect();
        words.sort_unstable();
        words.dedup();
        assert_eq!(words.len(), HarnessErrorCode::ALL.len());
    }

    #[test]
    fn harness_error_codes_are_plain_words() {
        for (word, expected) in [
            (Some("rate_limited"), "rate_limited"),
            (Some("E-1.b"), "E-1.b"),
            (None, "harness_error"),
            (Some(""), "harness_error"),
            (Some("two words"), "harness_error"),
            (Some("line\nbreak"), "harness_error"),
            (Some(&*"x".repeat(65)), "harness_error"),
        ] {
            assert_eq!(FailureCode::said(word).as_str(), expected, "{word:?}");
        }
    }

    #[test]
    fn program_output_in_errors_is_for_its_session_alone() {
        let error = HarnessError::with_program_text(HarnessErrorCode::Died, "it exited", "hunter2");
        assert_eq!(Refusal::from(error.clone()).cause, "it exited: hunter2");
        let HarnessEnd::Failed { message, .. } = error.clone().into_end() else { panic!("failed") };
        assert_eq!(message, "it exited: hunter2");
        assert_eq!(error.into_runtime_error().cause, "it exited");
        let silent = HarnessError::with_program_text(HarnessErrorCode::Died, "it exited", "");
        assert_eq!((&*silent.cause, &silent.plain), ("it exited", &None));
    }

    #[test]
    fn a_gone_sandbox_is_never_a_harness_failure() {
        let gone = RuntimeError::new(RuntimeErrorCode::OutOfMemory, "exec", "it ended");
        let error = HarnessError::from(gone.clone());
        assert_eq!(error.clone().into_end(), HarnessEnd::SandboxGone);
        assert_eq!(error.into_runtime_error(), gone);
        let missing = RuntimeError::new(RuntimeErrorCode::NotFound, "exec", "no such program: x");
        let error = HarnessError::from(missing);
        assert_eq!(error.code, HarnessErrorCode::NotStarted);
        assert!(matches!(error.into_end(), HarnessEnd::Failed { .. }));
        assert_eq!(HarnessError::sandbox_gone().into_end(), HarnessEnd::SandboxGone);
    }
}

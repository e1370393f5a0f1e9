//! Why a runtime refused or failed. The code is for branching and never changes its meaning; the
//! step, the errno and the cause are for people. Values that may be secret, such as environments,
//! must never go in here.

use std::borrow::Cow;
use std::fmt;

use guest_protocol::launcher::{LaunchRefusal, RefusalCode};
use guest_protocol::message::{Fault, FaultCode};
use model::{ErrorCode, Refusal, Retry, TerminatedReason, error_codes};

error_codes! {
    /// What kind of failure.
    pub enum RuntimeErrorCode {
        /// The code of the API that says the same, where there is one.
        model: Option<ErrorCode>,
        /// Whether trying again helps.
        retry: Retry,
        /// What can be done about it.
        remedy: &'static str,
    }
    /// The runtime has no root filesystem of this name.
    RootUnknown, "root_unknown", Some(ErrorCode::LaunchFailed), Retry::Never, "see which images and root directories there are";
    /// No sandbox of this instance id exists.
    SandboxUnknown, "sandbox_unknown", Some(ErrorCode::SandboxUnknown), Retry::Never, "check the id";
    /// The sandbox has ended.
    SandboxGone, "sandbox_gone", Some(ErrorCode::SandboxGone), Retry::Never, "launch another sandbox";
    /// The sandbox ended because it ran out of memory.
    OutOfMemory, "oom", Some(ErrorCode::Oom), Retry::Never, "use less memory, or raise limits.memory_mb";
    /// All slots of the runtime are taken.
    Full, "capacity_exhausted", Some(ErrorCode::CapacityExhausted), Retry::Later, "retry when a sandbox has ended, or raise the number of slots";
    /// The instance id is in use.
    Duplicate, "id_conflict", Some(ErrorCode::IdConflict), Retry::Never, "use a new id";
    /// The sandbox could not be launched.
    LaunchFailed, "launch_failed", Some(ErrorCode::LaunchFailed), Retry::Later, "see the step; `shoal doctor` tells what this machine can do";
    /// The sandbox was launched but its guest did not report in time that it is ready.
    ReadyTimeout, "ready_timeout", Some(ErrorCode::ReadyTimeout), Retry::Later, "retry, or raise ready_timeout_ms";
    /// An answer did not come in time.
    DeadlineExceeded, "deadline_exceeded", Some(ErrorCode::DeadlineExceeded), Retry::Later, "retry; if the sandbox is frozen, thaw it first";
    /// The runtime, or this machine, cannot do this.
    Unsupported, "unsupported", Some(ErrorCode::Unsupported), Retry::Never, "see `shoal doctor`";
    /// The request is not valid.
    Invalid, "invalid_argument", Some(ErrorCode::InvalidArgument), Retry::Never, "correct the request";
    /// No such process.
    ProcessUnknown, "process_unknown", Some(ErrorCode::ProcessUnknown), Retry::Never, "list the sandbox's processes";
    /// No such file, program or port.
    NotFound, "path_not_found", Some(ErrorCode::PathNotFound), Retry::Never, "check the name";
    /// There is something of that name already.
    Exists, "path_exists", Some(ErrorCode::PathExists), Retry::Never, "choose another name, or ask to overwrite";
    /// Not allowed.
    Denied, "path_denied", Some(ErrorCode::PathDenied), Retry::Never, "use a path that the sandbox's user may use";
    /// It is not of the kind that was expected: a directory where a file should be, say.
    WrongKind, "path_wrong_kind", Some(ErrorCode::PathWrongKind), Retry::Never, "check what is there";
    /// A limit of the sandbox is reached: space, processes, memory, descriptors.
    LimitReached, "limit_reached", Some(ErrorCode::LimitReached), Retry::Never, "free some of it, or raise the limits of the template";
    /// There is no room on the disk.
    DiskFull, "disk_full", Some(ErrorCode::DiskFull), Retry::Later, "free disk space, then retry";
    /// More bytes than the caller was ready to take.
    TooLarge, "too_large", Some(ErrorCode::TooLarge), Retry::Never, "read it as a stream, or in parts";
    /// Too many death events are unread, so nothing is launched.
    EventsUnread, "events_unread", Some(ErrorCode::CapacityExhausted), Retry::Later, "take the events of the runtime";
    /// The guest or the launcher broke the protocol.
    Protocol, "protocol", Some(ErrorCode::SandboxCrashed), Retry::Later, "launch another sandbox, and report this";
    /// The launcher has ended, and every sandbox with it.
    LauncherLost, "launcher_lost", Some(ErrorCode::SandboxCrashed), Retry::Later, "retry if the cause says that another one is being started, else start the runtime again";
    /// The runtime is shut down.
    ShuttingDown, "shutting_down", Some(ErrorCode::ShuttingDown), Retry::Later, "start the runtime again";
    /// The Linux kernel refused a system call.
    System, "system", None, Retry::Later, "see what the kernel said";
}

/// A failure: its code, its step, the errno, and the cause in words.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RuntimeError {
    /// What to branch on.
    pub code: RuntimeErrorCode,
    /// What was being done.
    pub step: Cow<'static, str>,
    /// The errno of the Linux kernel, if a system call failed.
    pub errno: Option<i32>,
    /// What happened.
    pub cause: Cow<'static, str>,
}

impl RuntimeError {
    /// A failure of a step, with its cause.
    pub fn new(
        code: RuntimeErrorCode,
        step: impl Into<Cow<'static, str>>,
        cause: impl Into<Cow<'static, str>>,
    ) -> Self {
        Self { code, step: step.into(), errno: None, cause: cause.into() }
    }

    /// The same failure with an errno; 0 stands for none.
    #[must_use]
    pub fn with_errno(mut self, errno: i32) -> Self {
        self.errno = (errno != 0).then_some(errno);
        self
    }

    /// A system call failed in a step.
    pub fn system(step: impl Into<Cow<'static, str>>, error: &std::io::Error) -> Self {
        let errno = error.raw_os_error().unwrap_or(0);
        Self::new(RuntimeErrorCode::System, step, error.to_string()).with_errno(errno)
    }

    /// An answer did not come in time.
    pub fn deadline(step: impl Into<Cow<'static, str>>) -> Self {
        Self::new(RuntimeErrorCode::DeadlineExceeded, step, "no answer in time")
    }

    /// What to branch on.
    pub const fn code(&self) -> RuntimeErrorCode {
        self.code
    }

    /// What can be done about it.
    pub const fn remedy(&self) -> &'static str {
        self.code.remedy()
    }

    /// Whether the same request may work later.
    pub fn retryable(&self) -> bool {
        self.code.retry() == Retry::Later
    }

    /// A fault that the guest reported, as a failure of a step.
    pub(crate) fn from_fault(step: impl Into<Cow<'static, str>>, fault: Fault) -> Self {
        let code = match fault.code {
            FaultCode::Invalid => RuntimeErrorCode::Invalid,
            FaultCode::NotFound => RuntimeErrorCode::NotFound,
            FaultCode::Exists => RuntimeErrorCode::Exists,
            FaultCode::Denied => RuntimeErrorCode::Denied,
            FaultCode::WrongKind => RuntimeErrorCode::WrongKind,
            FaultCode::Limit => RuntimeErrorCode::LimitReached,
            FaultCode::System => RuntimeErrorCode::System,
        };
        Self::new(code, step, fault.message).with_errno(fault.errno)
    }

    /// A refusal of the launcher.
    pub(crate) fn from_refusal(refusal: LaunchRefusal) -> Self {
        let (code, cause) = match refusal.code {
            RefusalCode::Full => (RuntimeErrorCode::Full, "all slots are taken"),
            RefusalCode::UnknownRoot => (RuntimeErrorCode::RootUnknown, "no such root filesystem"),
            RefusalCode::Unknown => {
                (RuntimeErrorCode::SandboxUnknown, "no such sandbox or workspace")
            }
            RefusalCode::Duplicate => (RuntimeErrorCode::Duplicate, "the instance id is in use"),
            RefusalCode::Unsupported => {
                (RuntimeErrorCode::Unsupported, "this machine does not support it")
            }
            RefusalCode::NoDevice => {
                (RuntimeErrorCode::LaunchFailed, "no loop device is free for the workspace")
            }
            RefusalCode::System => (RuntimeErrorCode::LaunchFailed, "the Linux kernel refused"),
        };
        Self::new(code, refusal.step, cause).with_errno(refusal.errno)
    }
}

impl RuntimeError {
    /// The cause with the errno in words.
    fn explained(&self) -> Cow<'_, str> {
        match self.errno {
            // A cause made from an io::Error names its errno already.
            Some(errno) if !self.cause.contains("os error") => {
                let errno = std::io::Error::from_raw_os_error(errno);
                Cow::Owned(format!("{} ({errno})", self.cause))
            }
            Some(_) | None => Cow::Borrowed(&self.cause),
        }
    }
}

impl fmt::Display for RuntimeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}: {}", self.code, self.step, self.explained())
    }
}

impl std::error::Error for RuntimeError {}

impl From<RuntimeError> for Refusal {
    fn from(error: RuntimeError) -> Self {
        // Errors of a sandbox's own files and programs count as invalid arguments of its user.
        let code = error.code.model().unwrap_or(match error.code.retry() {
            Retry::Never => ErrorCode::InvalidArgument,
            Retry::Later => ErrorCode::SandboxCrashed,
        });
        // The code stands beside the cause, which must not look like the name of a field.
        let refusal = Self::new(code, format!("could not {}: {}", error.step, error.explained()));
        // An orderly end carries its own reason; a sandbox that is gone without one has crashed.
        let died = code == ErrorCode::SandboxGone;
        if died { refusal.because(TerminatedReason::Crash) } else { refusal }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn error_codes_are_unique_and_agree_with_the_api() {
        let mut words: Vec<_> = RuntimeErrorCode::ALL.iter().map(|code| code.as_str()).collect();
        words.sort_unstable();
        words.dedup();
        assert_eq!(words.len(), RuntimeErrorCode::ALL.len());
        for &code in RuntimeErrorCode::ALL {
            assert!(!code.remedy().is_empty(), "{code}");
            let same_word =
                ErrorCode::ALL.iter().find(|model| model.as_str() == code.as_str()).copied();
            if let Some(same) = same_word {
                assert_eq!(code.model(), Some(same), "{code}");
                assert_eq!(code.retry(), same.retry(), "{code}");
            }
        }
    }

    #[test]
    fn refusal_names_its_code_only_once() {
        let error = RuntimeError::new(RuntimeErrorCode::Invalid, "claim", "no").with_errno(1);
        let refusal = Refusal::from(error);
        assert_eq!(refusal.code, ErrorCode::InvalidArgument);
        assert_eq!(refusal.cause, "could not claim: no (Operation not permitted (os error 1))");
    }

    #[test]
    fn error_names_its_errno_only_once() {
        let error =
            RuntimeError::system("write cgroup.freeze", &std::io::Error::from_raw_os_error(13));
        assert_eq!(
            error.to_string(),
            "system: write cgroup.freeze: Permission denied (os error 13)"
        );
        let error = RuntimeError::new(RuntimeErrorCode::LaunchFailed, "mount /proc", "refused")
            .with_errno(1);
        assert_eq!(
            error.to_string(),
            "launch_failed: mount /proc: refused (Operation not permitted (os error 1))"
        );
        assert!(error.retryable());
        assert_eq!(Refusal::from(error).code, ErrorCode::LaunchFailed);
    }
}

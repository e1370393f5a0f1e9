//! What follows when the program of a process has ended: the process ends, with a status and a
//! reason, or its program is restarted. Only a failure that no caller requested leads to a restart.
//! This is pure: `entry::process` has the facts, and `process_life` asks here.

use std::sync::Arc;

use model::process::{ProcessEndReason, ProcessStatus, RestartPolicy};
use model::{EndCause, ProcessEnd, Wall};

/// How long a failed program waits before its restart.
pub const RESTART_PAUSE_MS: u64 = 1_000;

const SIGINT: i32 = 2;
const SIGKILL: i32 = 9;
const SIGTERM: i32 = 15;

/// Which end of a process was requested before its program ended.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum EndRequest {
    /// None.
    #[default]
    Nothing,
    /// A signal.
    Signal(i32),
    /// A stop.
    Stop,
    /// A stop, which did not work, so the process was killed.
    StopForced,
    /// A kill.
    Kill,
    /// None, but its time expired.
    Timeout,
}

impl EndRequest {
    /// Whether the process ends, whatever its program does: it is never restarted.
    pub const fn is_final(self) -> bool {
        match self {
            Self::Nothing | Self::Signal(_) => false,
            Self::Stop | Self::StopForced | Self::Kill | Self::Timeout => true,
        }
    }

    /// What a request means: a signal that no program survives is a kill, and one that asks a
    /// program to end is a stop if no program runs that could ignore it.
    pub(crate) const fn meant(self, program_runs: bool) -> Self {
        match self {
            Self::Signal(SIGKILL) => Self::Kill,
            Self::Signal(SIGTERM) if !program_runs => Self::Stop,
            Self::Nothing
            | Self::Signal(_)
            | Self::Stop
            | Self::StopForced
            | Self::Kill
            | Self::Timeout => self,
        }
    }

    /// The combined request when `more` is requested too.
    pub(crate) const fn and(self, more: Self) -> Self {
        match (self, more) {
            (Self::Stop, Self::Nothing | Self::Signal(_)) => Self::Stop,
            // A signal that usually ends a program is remembered.
            (asked @ Self::Signal(SIGINT | SIGTERM), Self::Signal(_)) => asked,
            (Self::Nothing | Self::Signal(_) | Self::Stop, more) => more,
            (last @ (Self::StopForced | Self::Kill | Self::Timeout), _) => last,
        }
    }

    /// What stays requested for the next program: a signal was for the last program alone.
    pub(crate) const fn of_next_program(self) -> Self {
        match self {
            Self::Signal(_) => Self::Nothing,
            Self::Nothing | Self::Stop | Self::StopForced | Self::Kill | Self::Timeout => self,
        }
    }
}

/// How the program of a process ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ProgramEnd {
    /// It exited.
    Exited(ProgramExit),
    /// The connection to it is lost.
    Lost {
        /// Whether its sandbox is gone.
        sandbox_gone: bool,
        /// What the runtime reported, for people.
        detail: Arc<str>,
    },
    /// An internal error of the server ended it.
    GivenUp,
}

/// How the program of a process ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ProgramExit {
    /// Its exit code, if it exited.
    pub code: Option<i32>,
    /// The signal that ended it.
    pub signal: Option<i32>,
    /// Whether the operating system killed it because memory ran out.
    pub out_of_memory: bool,
}

/// What follows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum AfterExit {
    /// The process ends.
    Ended(ProcessStatus, ProcessEndReason),
    /// Its program is restarted after a pause.
    Again {
        /// From 1.
        attempt: u32,
        /// The limit on restarts, if there is one.
        of: Option<u32>,
    },
}

/// What follows from the end of a program that was restarted `restarts` times already.
pub(crate) fn after_exit(
    exit: ProgramExit,
    asked: EndRequest,
    policy: Option<RestartPolicy>,
    restarts: u32,
) -> AfterExit {
    use {ProcessEndReason as Reason, ProcessStatus as Status};
    match asked {
        EndRequest::Stop => return AfterExit::Ended(Status::Stopped, Reason::Stopped),
        EndRequest::StopForced => return AfterExit::Ended(Status::Killed, Reason::Stopped),
        EndRequest::Kill => return AfterExit::Ended(Status::Killed, Reason::Killed),
        // A process whose time expired is killed by a signal that no program survives. One that
        // exited with a code ended by itself, just before. It is not restarted.
        EndRequest::Timeout => {
            return match exit.code {
                None => AfterExit::Ended(Status::Killed, Reason::Timeout),
                Some(0) => AfterExit::Ended(Status::Completed, Reason::Exited),
                Some(_) => AfterExit::Ended(Status::Failed, Reason::Exited),
            };
        }
        EndRequest::Signal(signal) if exit.signal == Some(signal) && !exit.out_of_memory => {
            return if signal == SIGTERM {
                AfterExit::Ended(Status::Stopped, Reason::Stopped)
            } else {
                AfterExit::Ended(Status::Killed, Reason::Killed)
            };
        }
        EndRequest::Signal(_) | EndRequest::Nothing => {}
    }
    if exit.code == Some(0) {
        return AfterExit::Ended(Status::Completed, Reason::Exited);
    }
    if let Some(policy) = policy
        && policy.max_restarts.is_none_or(|most| restarts < most)
    {
        let attempt = restarts.saturating_add(1);
        return AfterExit::Again { attempt, of: policy.max_restarts };
    }
    let reason = if exit.out_of_memory { Reason::Oom } else { Reason::Exited };
    AfterExit::Ended(Status::Failed, reason)
}

impl ProgramExit {
    /// The end of a process whose program ended like this.
    pub(crate) fn end(
        self,
        at: Wall,
        status: ProcessStatus,
        reason: ProcessEndReason,
        detail: Option<Arc<str>>,
    ) -> ProcessEnd {
        ProcessEnd { at, status, exit_code: self.code, signal: self.signal, reason, detail }
    }

    /// The end of a process whose end was requested by `asked`.
    pub(crate) fn end_as_asked(self, at: Wall, asked: EndRequest) -> ProcessEnd {
        let (status, reason) = match after_exit(self, asked, None, 0) {
            AfterExit::Ended(status, reason) => (status, reason),
            AfterExit::Again { .. } => unreachable!("nothing is started again without a policy"),
        };
        self.end(at, status, reason, words_of(asked))
    }
}

/// The end of a process whose exit the kernel did not see.
pub(crate) fn end_unseen(
    at: Wall,
    status: ProcessStatus,
    reason: ProcessEndReason,
    detail: Arc<str>,
) -> ProcessEnd {
    ProcessEnd { at, status, exit_code: None, signal: None, reason, detail: Some(detail) }
}

/// The end of a process whose sandbox ended, with this text.
pub(crate) fn end_with_sandbox(at: Wall, words: Arc<str>) -> ProcessEnd {
    end_unseen(at, ProcessStatus::Killed, ProcessEndReason::SandboxEnded, words)
}

/// Why a sandbox ended, as the text of its processes' ends.
pub fn describe_sandbox_end(cause: EndCause, detail: Option<&str>) -> String {
    let words = cause.in_words();
    match detail {
        Some(detail) => format!("the sandbox is gone: {words} ({detail})"),
        None => format!("the sandbox is gone: {words}"),
    }
}

/// The text for an end that was requested.
pub(crate) fn words_of(asked: EndRequest) -> Option<Arc<str>> {
    match asked {
        EndRequest::StopForced => {
            Some("the process did not end after the stop, so it was killed".into())
        }
        EndRequest::Nothing
        | EndRequest::Signal(_)
        | EndRequest::Stop
        | EndRequest::Kill
        | EndRequest::Timeout => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn code(code: i32) -> ProgramExit {
        ProgramExit { code: Some(code), signal: None, out_of_memory: false }
    }

    fn signal(signal: i32) -> ProgramExit {
        ProgramExit { code: None, signal: Some(signal), out_of_memory: false }
    }

    #[test]
    fn process_end_follows_from_the_request_and_the_exit() {
        use {ProcessEndReason as Reason, ProcessStatus as Status};
        let oom = ProgramExit { out_of_memory: true, ..signal(9) };
        for (exit, asked, status, reason) in [
            (code(0), EndRequest::Nothing, Status::Completed, Reason::Exited),
            (code(3), EndRequest::Nothing, Status::Failed, Reason::Exited),
            (signal(11), EndRequest::Nothing, Status::Failed, Reason::Exited),
            (oom, EndRequest::Nothing, Status::Failed, Reason::Oom),
            (code(0), EndRequest::Stop, Status::Stopped, Reason::Stopped),
            (code(143), EndRequest::Stop, Status::Stopped, Reason::Stopped),
            (signal(15), EndRequest::Stop, Status::Stopped, Reason::Stopped),
            (signal(9), EndRequest::StopForced, Status::Killed, Reason::Stopped),
            (signal(9), EndRequest::Kill, Status::Killed, Reason::Killed),
            (code(0), EndRequest::Kill, Status::Killed, Reason::Killed),
            (signal(9), EndRequest::Timeout, Status::Killed, Reason::Timeout),
            (code(0), EndRequest::Timeout, Status::Completed, Reason::Exited),
            (code(5), EndRequest::Timeout, Status::Failed, Reason::Exited),
            (signal(15), EndRequest::Signal(15), Status::Stopped, Reason::Stopped),
            (signal(1), EndRequest::Signal(1), Status::Killed, Reason::Killed),
            (code(0), EndRequest::Signal(1), Status::Completed, Reason::Exited),
            (code(5), EndRequest::Signal(1), Status::Failed, Reason::Exited),
            (oom, EndRequest::Signal(9), Status::Failed, Reason::Oom),
        ] {
            let over = AfterExit::Ended(status, reason);
            assert_eq!(after_exit(exit, asked, None, 0), over, "{exit:?} {asked:?}");
        }
    }

    #[test]
    fn end_requests_combine_as_people_mean_them() {
        use EndRequest::{Kill, Nothing, Signal, Stop, StopForced, Timeout};
        for (first, more, asked) in [
            (Nothing, Signal(1), Signal(1)),
            (Signal(1), Signal(2), Signal(2)),
            (Signal(15), Signal(1), Signal(15)),
            (Signal(15), Stop, Stop),
            (Stop, Signal(1), Stop),
            (Stop, StopForced, StopForced),
            (Stop, Timeout, Timeout),
            (Kill, Stop, Kill),
            (Timeout, Kill, Timeout),
        ] {
            assert_eq!(first.and(more), asked, "{first:?} {more:?}");
        }
        assert_eq!((Signal(9).meant(true), Signal(15).meant(true)), (Kill, Signal(15)));
        assert_eq!((Signal(15).meant(false), Signal(1).meant(false)), (Stop, Signal(1)));
        assert_eq!((Signal(15).of_next_program(), Stop.of_next_program()), (Nothing, Stop));
    }

    #[test]
    fn only_a_failure_that_no_caller_requested_leads_to_a_restart() {
        let policy = |max_restarts| Some(RestartPolicy { max_restarts });
        for (exit, asked, policy, restarts, again) in [
            (code(1), EndRequest::Nothing, policy(Some(3)), 0, true),
            (code(1), EndRequest::Nothing, policy(Some(3)), 2, true),
            (code(1), EndRequest::Nothing, policy(Some(3)), 3, false),
            (code(1), EndRequest::Nothing, policy(Some(0)), 0, false),
            (code(1), EndRequest::Nothing, policy(None), u32::MAX, true),
            (signal(11), EndRequest::Nothing, policy(Some(1)), 0, true),
            (signal(11), EndRequest::Signal(1), policy(Some(1)), 0, true),
            (code(0), EndRequest::Nothing, policy(None), 0, false),
            (code(1), EndRequest::Stop, policy(None), 0, false),
            (signal(9), EndRequest::Kill, policy(None), 0, false),
            (signal(9), EndRequest::Timeout, policy(None), 0, false),
            (code(1), EndRequest::Timeout, policy(None), 0, false),
            (signal(1), EndRequest::Signal(1), policy(None), 0, false),
        ] {
            let follows = after_exit(exit, asked, policy, restarts);
            let is_again = matches!(follows, AfterExit::Again { .. });
            assert_eq!(is_again, again, "{exit:?} {asked:?} {policy:?} {restarts}: {follows:?}");
        }
        let follows = after_exit(code(1), EndRequest::Nothing, policy(Some(3)), 1);
        assert_eq!(follows, AfterExit::Again { attempt: 2, of: Some(3) });
    }
}

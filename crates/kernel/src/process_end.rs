//! What follows when the program of a process has ended: that the process is over, and how, or that
//! the program is started again. Only a failure that was not asked for leads to another start.

use model::process::{ProcessEndReason, ProcessStatus, RestartPolicy};

/// How long a failed program rests before it is started again.
pub const RESTART_PAUSE_MS: u64 = 1_000;

const SIGTERM: i32 = 15;

/// What was asked of a process before its program ended.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum EndAsked {
    /// Nothing that would have ended it.
    #[default]
    Nothing,
    /// This signal.
    Signal(i32),
    /// To stop.
    Stop,
    /// To stop, and it did not, so that it was killed.
    StopForced,
    /// To be killed.
    Kill,
    /// Nothing, but its time was over.
    Timeout,
}

/// How the program of a process ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ProgramExit {
    /// Its exit code, if it ended by itself.
    pub code: Option<i32>,
    /// The signal that ended it.
    pub signal: Option<i32>,
    /// Whether the machine's kernel killed it for want of memory.
    pub out_of_memory: bool,
}

/// What follows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AfterExit {
    /// The process is over.
    Over(ProcessStatus, ProcessEndReason),
    /// Its program is started again after a pause: for this time, of so many.
    Again {
        /// From 1.
        attempt: u32,
        /// No bound if not given.
        of: Option<u32>,
    },
}

/// What follows from the end of a program that was started again `restarts` times already.
pub fn after_exit(
    exit: ProgramExit,
    asked: EndAsked,
    policy: Option<RestartPolicy>,
    restarts: u32,
) -> AfterExit {
    use {ProcessEndReason as Reason, ProcessStatus as Status};
    match asked {
        EndAsked::Stop => return AfterExit::Over(Status::Stopped, Reason::Stopped),
        EndAsked::StopForced => return AfterExit::Over(Status::Killed, Reason::Stopped),
        EndAsked::Kill => return AfterExit::Over(Status::Killed, Reason::Killed),
        // What its time was over for is killed by a signal that no program survives: one that
        // ended with a code ended by itself, just before. It does not begin again.
        EndAsked::Timeout => {
            return match exit.code {
                None => AfterExit::Over(Status::Killed, Reason::Timeout),
                Some(0) => AfterExit::Over(Status::Completed, Reason::Exited),
                Some(_) => AfterExit::Over(Status::Failed, Reason::Exited),
            };
        }
        EndAsked::Signal(signal) if exit.signal == Some(signal) && !exit.out_of_memory => {
            return if signal == SIGTERM {
                AfterExit::Over(Status::Stopped, Reason::Stopped)
            } else {
                AfterExit::Over(Status::Killed, Reason::Killed)
            };
        }
        EndAsked::Signal(_) | EndAsked::Nothing => {}
    }
    if exit.code == Some(0) {
        return AfterExit::Over(Status::Completed, Reason::Exited);
    }
    if let Some(policy) = policy
        && policy.max_restarts.is_none_or(|most| restarts < most)
    {
        let attempt = restarts.saturating_add(1);
        return AfterExit::Again { attempt, of: policy.max_restarts };
    }
    let reason = if exit.out_of_memory { Reason::Oom } else { Reason::Exited };
    AfterExit::Over(Status::Failed, reason)
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
    fn an_end_is_told_by_what_was_asked_and_how_it_came() {
        use {ProcessEndReason as Reason, ProcessStatus as Status};
        let oom = ProgramExit { out_of_memory: true, ..signal(9) };
        for (exit, asked, status, reason) in [
            (code(0), EndAsked::Nothing, Status::Completed, Reason::Exited),
            (code(3), EndAsked::Nothing, Status::Failed, Reason::Exited),
            (signal(11), EndAsked::Nothing, Status::Failed, Reason::Exited),
            (oom, EndAsked::Nothing, Status::Failed, Reason::Oom),
            (code(0), EndAsked::Stop, Status::Stopped, Reason::Stopped),
            (code(143), EndAsked::Stop, Status::Stopped, Reason::Stopped),
            (signal(15), EndAsked::Stop, Status::Stopped, Reason::Stopped),
            (signal(9), EndAsked::StopForced, Status::Killed, Reason::Stopped),
            (signal(9), EndAsked::Kill, Status::Killed, Reason::Killed),
            (code(0), EndAsked::Kill, Status::Killed, Reason::Killed),
            (signal(9), EndAsked::Timeout, Status::Killed, Reason::Timeout),
            (code(0), EndAsked::Timeout, Status::Completed, Reason::Exited),
            (code(5), EndAsked::Timeout, Status::Failed, Reason::Exited),
            (signal(15), EndAsked::Signal(15), Status::Stopped, Reason::Stopped),
            (signal(1), EndAsked::Signal(1), Status::Killed, Reason::Killed),
            (code(0), EndAsked::Signal(1), Status::Completed, Reason::Exited),
            (code(5), EndAsked::Signal(1), Status::Failed, Reason::Exited),
            (oom, EndAsked::Signal(9), Status::Failed, Reason::Oom),
        ] {
            let over = AfterExit::Over(status, reason);
            assert_eq!(after_exit(exit, asked, None, 0), over, "{exit:?} {asked:?}");
        }
    }

    #[test]
    fn only_a_failure_that_nobody_asked_for_starts_it_again() {
        let policy = |max_restarts| Some(RestartPolicy { max_restarts });
        for (exit, asked, policy, restarts, again) in [
            (code(1), EndAsked::Nothing, policy(Some(3)), 0, true),
            (code(1), EndAsked::Nothing, policy(Some(3)), 2, true),
            (code(1), EndAsked::Nothing, policy(Some(3)), 3, false),
            (code(1), EndAsked::Nothing, policy(Some(0)), 0, false),
            (code(1), EndAsked::Nothing, policy(None), u32::MAX, true),
            (signal(11), EndAsked::Nothing, policy(Some(1)), 0, true),
            (signal(11), EndAsked::Signal(1), policy(Some(1)), 0, true),
            (code(0), EndAsked::Nothing, policy(None), 0, false),
            (code(1), EndAsked::Stop, policy(None), 0, false),
            (signal(9), EndAsked::Kill, policy(None), 0, false),
            (signal(9), EndAsked::Timeout, policy(None), 0, false),
            (code(1), EndAsked::Timeout, policy(None), 0, false),
            (signal(1), EndAsked::Signal(1), policy(None), 0, false),
        ] {
            let follows = after_exit(exit, asked, policy, restarts);
            let is_again = matches!(follows, AfterExit::Again { .. });
            assert_eq!(is_again, again, "{exit:?} {asked:?} {policy:?} {restarts}: {follows:?}");
        }
        let follows = after_exit(code(1), EndAsked::Nothing, policy(Some(3)), 1);
        assert_eq!(follows, AfterExit::Again { attempt: 2, of: Some(3) });
    }
}

//! Why a sandbox ended. [`TerminatedReason`] is the closed list that clients branch on;
//! [`EndCause`] is more exact, and each cause belongs to one reason.

use serde::{Deserialize, Serialize};

/// The reason carried by `sandbox_terminated`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub enum TerminatedReason {
    /// The user aborted the turn.
    UserAbort,
    /// The sandbox was idle for too long.
    Idle,
    /// The sandbox or its lease expired.
    Expired,
    /// The sandbox crashed, or did not answer.
    Crash,
    /// The sandbox ran out of memory.
    Oom,
    /// The workspace exceeded its limit.
    DiskLimit,
    /// Another sandbox needed the place.
    Evicted,
    /// The server stopped.
    Shutdown,
    /// The sandbox did not answer, and its session gets another one.
    Replaced,
    /// The user deleted or returned the sandbox, or ended its session.
    Deleted,
    /// A rule of the template or node ended the sandbox.
    Policy,
}

macro_rules! end_causes {
    ($($(#[$doc:meta])* $cause:ident => $reason:ident, $word:literal;)+) => {
        /// Exactly why a sandbox ended.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(rename_all = "snake_case")]
        #[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
        pub enum EndCause {
            $($(#[$doc])* $cause,)+
        }

        impl EndCause {
            /// All causes.
            pub const ALL: &'static [Self] = &[$(Self::$cause,)+];

            /// The reason this cause belongs to.
            pub const fn reason(self) -> TerminatedReason {
                match self {
                    $(Self::$cause => TerminatedReason::$reason,)+
                }
            }

            /// The cause as text: in the API, the store and the metrics.
            pub const fn as_str(self) -> &'static str {
                match self {
                    $(Self::$cause => $word,)+
                }
            }
        }
    };
}

end_causes! {
    /// The user aborted the turn.
    UserAbort => UserAbort, "user_abort";
    /// The turn took longer than its template allows.
    TurnTimeout => Policy, "turn_timeout";
    /// The sandbox was `waiting` for longer than its idle timeout.
    Idle => Idle, "idle";
    /// The lease was not renewed in time.
    LeaseExpired => Expired, "lease_expired";
    /// The sandbox reached the maximum lifetime of its template.
    LifetimeOver => Expired, "lifetime_over";
    /// The deadline of the session was reached.
    DeadlineReached => Expired, "deadline_reached";
    /// The idle sandbox had too little lifetime left to be handed out.
    NearExpiry => Expired, "near_expiry";
    /// The process of the sandbox died.
    Crash => Crash, "crash";
    /// The sandbox could not be started.
    LaunchFailed => Crash, "launch_failed";
    /// The sandbox was not ready in time.
    ReadyTimeout => Crash, "ready_timeout";
    /// The settings of the caller could not be applied to the sandbox.
    ClaimFailed => Crash, "claim_failed";
    /// The sandbox did not answer the probe when its session needed it again.
    ProbeFailed => Replaced, "probe_failed";
    /// The sandbox could not be frozen or thawed.
    FreezeFailed => Crash, "freeze_failed";
    /// A turn could not be started or stopped in the sandbox.
    TurnFailed => Crash, "turn_failed";
    /// The sandbox ran out of memory.
    Oom => Oom, "oom";
    /// The workspace exceeded its limit, or was the largest when the disk ran out of space.
    DiskLimit => DiskLimit, "disk_limit";
    /// Another sandbox needed the place.
    Evicted => Evicted, "evicted";
    /// The server shut down in order.
    Shutdown => Shutdown, "shutdown";
    /// The sandbox was left over from before a restart of the server.
    Restart => Shutdown, "restart";
    /// The user deleted the sandbox.
    Deleted => Deleted, "deleted";
    /// The lease was returned.
    Returned => Deleted, "returned";
    /// The client disconnected before it received the sandbox.
    ClientGone => Deleted, "client_gone";
    /// The session was stopped.
    SessionStopped => Deleted, "session_stopped";
    /// The session ended.
    SessionEnded => Deleted, "session_ended";
    /// The pool was drained or destroyed.
    PoolClosed => Deleted, "pool_closed";
    /// The sandbox was used as often as its template allows.
    MaxUses => Policy, "max_uses";
    /// The sandbox could not be proven clean and alive after a use.
    NotClean => Policy, "not_clean";
    /// The pool had more idle sandboxes than its size.
    Surplus => Policy, "surplus";
    /// The files were unused for longer than the node keeps them.
    Pruned => Policy, "pruned";
    /// The files that the sandbox needs are missing or cannot be read.
    FilesGone => Crash, "files_gone";
    /// The template was replaced.
    TemplateReplaced => Policy, "template_replaced";
}

impl EndCause {
    /// The cause in words, as part of a sentence whose subject is the sandbox.
    pub const fn in_words(self) -> &'static str {
        match self {
            Self::UserAbort => "ended by its user, who aborted the turn",
            Self::TurnTimeout => "ended because its turn took too long",
            Self::Idle => "ended because it was idle for too long",
            Self::LeaseExpired => "ended because its lease was not renewed in time",
            Self::LifetimeOver => "ended because it reached the maximum lifetime of its template",
            Self::DeadlineReached => "ended because the deadline of its session was reached",
            Self::NearExpiry => {
                "discarded because it had too little lifetime left to be handed out"
            }
            Self::Crash => "crashed",
            Self::LaunchFailed => "could not be started",
            Self::ReadyTimeout => "was not ready in time",
            Self::ClaimFailed => "ended because the caller's settings could not be applied to it",
            Self::ProbeFailed => "replaced because it did not answer a probe",
            Self::FreezeFailed => "ended because it could not be frozen or thawed",
            Self::TurnFailed => "ended because a turn could not be started or stopped in it",
            Self::Oom => "ran out of memory",
            Self::DiskLimit => "ended because its workspace exceeded its limit",
            Self::Evicted => "evicted because another sandbox needed the room",
            Self::Shutdown => "ended because the server stopped",
            Self::Restart => "ended because the server was restarted",
            Self::Deleted => "deleted by its user",
            Self::Returned => "returned by its user",
            Self::ClientGone => "ended because its client disconnected before receiving it",
            Self::SessionStopped => "ended because its session was stopped",
            Self::SessionEnded => "ended because its session ended",
            Self::PoolClosed => "ended because its pool was drained or destroyed",
            Self::MaxUses => "retired after as many uses as its template allows",
            Self::NotClean => "retired because it could not be proven clean and alive after a use",
            Self::Surplus => "ended because its pool had more idle sandboxes than its size",
            Self::Pruned => {
                "deleted because its files were unused for longer than the node keeps them"
            }
            Self::FilesGone => "could not start: its files are missing or cannot be read",
            Self::TemplateReplaced => "ended because its template was replaced",
        }
    }
}

impl TerminatedReason {
    /// The reason as text: in the API, the store and the metrics.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::UserAbort => "user_abort",
            Self::Idle => "idle",
            Self::Expired => "expired",
            Self::Crash => "crash",
            Self::Oom => "oom",
            Self::DiskLimit => "disk_limit",
            Self::Evicted => "evicted",
            Self::Shutdown => "shutdown",
            Self::Replaced => "replaced",
            Self::Deleted => "deleted",
            Self::Policy => "policy",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn end_causes_and_reasons_are_stored_as_their_text() {
        for cause in EndCause::ALL {
            assert_eq!(serde_json::to_string(cause).unwrap(), format!("\"{}\"", cause.as_str()));
            let reason = cause.reason();
            assert_eq!(serde_json::to_string(&reason).unwrap(), format!("\"{}\"", reason.as_str()));
        }
    }
}

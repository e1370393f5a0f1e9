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

//! Why a sandbox ended. [`TerminatedReason`] is the closed list that clients branch on;
//! [`EndCause`] says it exactly, and each cause belongs to one reason.

use serde::{Deserialize, Serialize};

/// The reason carried by `sandbox_terminated`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub enum TerminatedReason {
    /// The user aborted the turn.
    UserAbort,
    /// It was idle for too long.
    Idle,
    /// Its time was over.
    Expired,
    /// It died, or did not answer.
    Crash,
    /// It ran out of memory.
    Oom,
    /// It wrote too much to its workspace.
    DiskLimit,
    /// Another one needed its place.
    Evicted,
    /// The server stopped.
    Shutdown,
    /// It did not answer, and its session gets another one.
    Replaced,
    /// The user was done with it.
    Deleted,
    /// A rule of its template retired it.
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

            /// The word used in the API, the store and the metrics.
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
    /// It was `waiting` for longer than its idle timeout.
    Idle => Idle, "idle";
    /// Its lease was not renewed in time.
    LeaseExpired => Expired, "lease_expired";
    /// It reached the longest life its template allows.
    LifetimeOver => Expired, "lifetime_over";
    /// It was idle in the pool and had too little left to live to be handed out.
    NearExpiry => Expired, "near_expiry";
    /// Its process died.
    Crash => Crash, "crash";
    /// It could not be started.
    LaunchFailed => Crash, "launch_failed";
    /// It was not ready in time.
    ReadyTimeout => Crash, "ready_timeout";
    /// Settings could not be bound to it.
    ClaimFailed => Crash, "claim_failed";
    /// It did not answer when its session came back to it.
    ProbeFailed => Replaced, "probe_failed";
    /// It could not be frozen or thawed.
    FreezeFailed => Crash, "freeze_failed";
    /// A turn could not be started or stopped in it.
    TurnFailed => Crash, "turn_failed";
    /// It ran out of memory.
    Oom => Oom, "oom";
    /// It wrote more to its workspace than it may, or most where the disk ran short.
    DiskLimit => DiskLimit, "disk_limit";
    /// Another one needed its place.
    Evicted => Evicted, "evicted";
    /// The server stopped in order.
    Shutdown => Shutdown, "shutdown";
    /// The server was started again and found it left over.
    Restart => Shutdown, "restart";
    /// The user deleted it.
    Deleted => Deleted, "deleted";
    /// Its lease was returned.
    Returned => Deleted, "returned";
    /// The client that asked for it went away before it had it.
    ClientGone => Deleted, "client_gone";
    /// Its session was stopped.
    SessionStopped => Deleted, "session_stopped";
    /// Its session ended.
    SessionEnded => Deleted, "session_ended";
    /// Its pool was drained or destroyed.
    PoolClosed => Deleted, "pool_closed";
    /// It had been used as often as its template allows.
    MaxUses => Policy, "max_uses";
    /// It could not be proven clean and alive after a use.
    NotClean => Policy, "not_clean";
    /// Its pool had more idle sandboxes than wanted.
    Surplus => Policy, "surplus";
    /// Nobody came back for its files for longer than the node keeps them.
    Pruned => Policy, "pruned";
    /// It was to start on files that are not there any more, or cannot be read.
    FilesGone => Crash, "files_gone";
    /// Its template was replaced.
    TemplateReplaced => Policy, "template_replaced";
}

impl TerminatedReason {
    /// The word used in the API, the store and the metrics.
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
    fn words_are_those_that_are_stored() {
        for cause in EndCause::ALL {
            assert_eq!(serde_json::to_string(cause).unwrap(), format!("\"{}\"", cause.as_str()));
            let reason = cause.reason();
            assert_eq!(serde_json::to_string(&reason).unwrap(), format!("\"{}\"", reason.as_str()));
        }
    }
}

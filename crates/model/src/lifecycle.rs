//! Published events. Each event is written in the same transaction as the change it reports, gets
//! its number there, and can be replayed to a client that was away. The exception is
//! `sandbox_state`: streams show it, and it is never stored.

use serde::{Deserialize, Serialize};

use crate::ids::{Generation, KeyId, LeaseId, SandboxId, SessionId, TemplateName, TurnId};
use crate::reason::{EndCause, TerminatedReason};
use crate::state::{SandboxState, Wakefulness};
use crate::time::Wall;

/// What happened, on the global stream and on a session's own where it names one. Its times are
/// instants here and in the store; the API has the same events with times as text.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "type")]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema), schema(as = EventBody, description = "What happened."))]
pub enum LifecycleEvent<T = Wall> {
    /// A session or lease has a working sandbox.
    SandboxActive {
        /// The session, if the sandbox belongs to one.
        session: Option<SessionId>,
        /// The lease, if the sandbox belongs to one.
        lease: Option<LeaseId>,
        /// The sandbox.
        sandbox_id: SandboxId,
        /// Its generation.
        generation: Generation,
        /// How the session or lease got it.
        cause: ActiveCause,
        /// The sandbox that it replaces.
        previous_id: Option<SandboxId>,
        /// Whether files were lost since the previous sandbox.
        state_lost: bool,
        /// When it will end unless renewed.
        expires_at: Option<T>,
    },
    /// A sandbox that had been ready has ended. Sent once per generation.
    SandboxTerminated {
        /// The session, if the sandbox belonged to one.
        session: Option<SessionId>,
        /// The lease, if the sandbox belonged to one.
        lease: Option<LeaseId>,
        /// The sandbox.
        sandbox_id: SandboxId,
        /// Its generation.
        generation: Generation,
        /// Why, for branching.
        reason: TerminatedReason,
        /// Why, exactly.
        cause: EndCause,
    },
    /// Files of a session were lost.
    StateLost {
        /// The session.
        session: SessionId,
        /// The sandbox that held them.
        sandbox_id: SandboxId,
        /// Why.
        reason: TerminatedReason,
    },
    /// A session's files are safe even from a power cut.
    WorkspaceDurable {
        /// The session.
        session: SessionId,
        /// The sandbox that holds them.
        sandbox_id: SandboxId,
        /// Its generation.
        generation: Generation,
    },
    /// The status of a session changed.
    SessionChanged {
        /// The session.
        session: SessionId,
        /// How.
        change: SessionChange,
    },
    /// A turn was started in a sandbox.
    TurnStarted {
        /// The session.
        session: SessionId,
        /// The turn.
        turn: TurnId,
        /// The sandbox.
        sandbox_id: SandboxId,
        /// Its generation.
        generation: Generation,
    },
    /// A turn ended.
    TurnEnded {
        /// The session.
        session: SessionId,
        /// The turn.
        turn: TurnId,
        /// How.
        outcome: TurnOutcome,
    },
    /// A sandbox was frozen or thawed.
    SandboxFrozen {
        /// The sandbox.
        sandbox_id: SandboxId,
        /// Its generation.
        generation: Generation,
        /// Whether it is frozen now.
        frozen: bool,
    },
    /// The first keep-alive of a sandbox began, or the last one ended.
    SandboxWakefulness {
        /// The sandbox.
        sandbox_id: SandboxId,
        /// Its generation.
        generation: Generation,
        /// Whether it may hibernate now.
        wakefulness: Wakefulness,
        /// Why that changed.
        because: WakeCause,
        /// When it will be frozen, unless it is used.
        freezes_at: Option<T>,
    },
    /// The state of a sandbox changed. Streams show it as it happens, and it is not stored: it has
    /// the number of the last event before it, is in no page, and may come twice to a client that
    /// was away.
    SandboxState {
        /// The session, if the sandbox belongs to one.
        session: Option<SessionId>,
        /// The sandbox.
        sandbox_id: SandboxId,
        /// Its generation.
        generation: Generation,
        /// The state before.
        from: SandboxState,
        /// The state now. A sandbox that has ended is cold.
        to: SandboxState,
        /// Why it is cold, for branching.
        reason: Option<TerminatedReason>,
        /// Why it is cold, exactly.
        cause: Option<EndCause>,
        /// How many changes just before this one were left out, because there were too many in a
        /// second.
        skipped: u32,
    },
    /// The health of a pool changed.
    PoolHealth {
        /// The pool's template.
        template: TemplateName,
        /// Whether launches fail now.
        degraded: bool,
        /// The last failure.
        detail: String,
    },
}

impl<T> LifecycleEvent<T> {
    /// Its `type`, which is the name of the event in a stream.
    pub const fn name(&self) -> &'static str {
        match self {
            Self::SandboxActive { .. } => "sandbox_active",
            Self::SandboxTerminated { .. } => "sandbox_terminated",
            Self::StateLost { .. } => "state_lost",
            Self::WorkspaceDurable { .. } => "workspace_durable",
            Self::SessionChanged { .. } => "session_changed",
            Self::TurnStarted { .. } => "turn_started",
            Self::TurnEnded { .. } => "turn_ended",
            Self::SandboxFrozen { .. } => "sandbox_frozen",
            Self::SandboxWakefulness { .. } => "sandbox_wakefulness",
            Self::SandboxState { .. } => "sandbox_state",
            Self::PoolHealth { .. } => "pool_health",
        }
    }

    /// The same event with its times in another form.
    pub fn with_times<U>(self, convert: impl Fn(T) -> U) -> LifecycleEvent<U> {
        use LifecycleEvent as To;
        match self {
            Self::SandboxActive {
                session,
                lease,
                sandbox_id,
                generation,
                cause,
                previous_id,
                state_lost,
                expires_at,
            } => To::SandboxActive {
                session,
                lease,
                sandbox_id,
                generation,
                cause,
                previous_id,
                state_lost,
                expires_at: expires_at.map(convert),
            },
            Self::SandboxTerminated { session, lease, sandbox_id, generation, reason, cause } => {
                To::SandboxTerminated { session, lease, sandbox_id, generation, reason, cause }
            }
            Self::StateLost { session, sandbox_id, reason } => {
                To::StateLost { session, sandbox_id, reason }
            }
            Self::WorkspaceDurable { session, sandbox_id, generation } => {
                To::WorkspaceDurable { session, sandbox_id, generation }
            }
            Self::SessionChanged { session, change } => To::SessionChanged { session, change },
            Self::TurnStarted { session, turn, sandbox_id, generation } => {
                To::TurnStarted { session, turn, sandbox_id, generation }
            }
            Self::TurnEnded { session, turn, outcome } => To::TurnEnded { session, turn, outcome },
            Self::SandboxFrozen { sandbox_id, generation, frozen } => {
                To::SandboxFrozen { sandbox_id, generation, frozen }
            }
            Self::SandboxWakefulness {
                sandbox_id,
                generation,
                wakefulness,
                because,
                freezes_at,
            } => To::SandboxWakefulness {
                sandbox_id,
                generation,
                wakefulness,
                because,
                freezes_at: freezes_at.map(convert),
            },
            Self::SandboxState {
                session,
                sandbox_id,
                generation,
                from,
                to,
                reason,
                cause,
                skipped,
            } => To::SandboxState {
                session,
                sandbox_id,
                generation,
                from,
                to,
                reason,
                cause,
                skipped,
            },
            Self::PoolHealth { template, degraded, detail } => {
                To::PoolHealth { template, degraded, detail }
            }
        }
    }

    /// The sandbox that the event is about, if any.
    pub const fn sandbox(&self) -> Option<SandboxId> {
        match self {
            Self::SandboxActive { sandbox_id, .. }
            | Self::SandboxTerminated { sandbox_id, .. }
            | Self::StateLost { sandbox_id, .. }
            | Self::WorkspaceDurable { sandbox_id, .. }
            | Self::TurnStarted { sandbox_id, .. }
            | Self::SandboxFrozen { sandbox_id, .. }
            | Self::SandboxState { sandbox_id, .. }
            | Self::SandboxWakefulness { sandbox_id, .. } => Some(*sandbox_id),
            Self::SessionChanged { .. } | Self::TurnEnded { .. } | Self::PoolHealth { .. } => None,
        }
    }

    /// The session that the event is about, if any.
    pub const fn session(&self) -> Option<SessionId> {
        match self {
            Self::SandboxActive { session, .. }
            | Self::SandboxTerminated { session, .. }
            | Self::SandboxState { session, .. } => *session,
            Self::StateLost { session, .. }
            | Self::WorkspaceDurable { session, .. }
            | Self::SessionChanged { session, .. }
            | Self::TurnStarted { session, .. }
            | Self::TurnEnded { session, .. } => Some(*session),
            Self::SandboxFrozen { .. }
            | Self::SandboxWakefulness { .. }
            | Self::PoolHealth { .. } => None,
        }
    }
}

/// An event with its place in the history.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoredEvent {
    /// Its number. Numbers grow by one, and none is given twice, also over restarts.
    pub number: u64,
    /// When it happened.
    pub at: Wall,
    /// The key whose sandbox, session or lease it is about; [`KeyId::NIL`] if none.
    pub tenant: KeyId,
    /// What happened.
    pub event: LifecycleEvent,
}

/// How a session or lease got its sandbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub enum ActiveCause {
    /// It is the first sandbox.
    Created,
    /// The sandbox was alive and answered.
    Reconnected,
    /// The previous sandbox was dead.
    Replaced,
    /// The session was cold and has a new sandbox with its files.
    Resumed,
}

/// Why a sandbox's keep-alive changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub enum WakeCause {
    /// A process with keepAlive was started.
    ProcessStarted,
    /// The last process with keepAlive ended.
    ProcessEnded,
    /// The last process with keepAlive reached its timeout.
    Timeout,
    /// A caller stopped the keep-alive, at once or after a delay.
    Stopped,
    /// Programs wrote to the scale file.
    ScaleWritten,
}

impl WakeCause {
    /// The cause as text: in the API and the store.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::ProcessStarted => "process_started",
            Self::ProcessEnded => "process_ended",
            Self::Timeout => "timeout",
            Self::Stopped => "stopped",
            Self::ScaleWritten => "scale_written",
        }
    }
}

/// How a session changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub enum SessionChange {
    /// It was created.
    Created,
    /// It was forked from another session.
    Forked,
    /// It was paused.
    Paused,
    /// It was resumed.
    Resumed,
    /// It was stopped.
    Stopped,
    /// It ended.
    Ended,
}

/// How a turn ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub enum TurnOutcome {
    /// The harness completed it.
    Completed,
    /// The harness reported an error.
    Failed,
    /// It was aborted.
    Aborted,
    /// It took too long.
    TimedOut,
    /// Its sandbox died.
    SandboxCrashed,
    /// Its sandbox ran out of memory.
    Oom,
    /// The workspace of its sandbox exceeded its limit.
    DiskLimit,
    /// The server stopped.
    Interrupted,
    /// Its session reached its deadline.
    Expired,
    /// No sandbox was available for it.
    NotStarted,
}

impl TurnOutcome {
    /// The word used in the API, the store and the metrics.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Completed => "completed",
            Self::Failed => "failed",
            Self::Aborted => "aborted",
            Self::TimedOut => "timed_out",
            Self::SandboxCrashed => "sandbox_crashed",
            Self::Oom => "oom",
            Self::DiskLimit => "disk_limit",
            Self::Interrupted => "interrupted",
            Self::Expired => "expired",
            Self::NotStarted => "not_started",
        }
    }
}

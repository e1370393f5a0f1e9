//! The states that users see. Orthogonal facts (owner, frozen, holds, intent to destroy) are fields
//! beside the state, never states of their own.

use serde::{Deserialize, Serialize};

/// The five states of a sandbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub enum SandboxState {
    /// No process; a record and perhaps a persisted workspace.
    Cold,
    /// Being launched or restored.
    Warming,
    /// Alive and ready, not used yet.
    Warm,
    /// Alive, between uses.
    Waiting,
    /// A turn, or an exec under a lease or session, is in progress.
    Running,
}

impl SandboxState {
    /// All states, in the order of the statistics.
    pub const ALL: [Self; 5] =
        [Self::Cold, Self::Warming, Self::Warm, Self::Waiting, Self::Running];

    /// Whether a process exists or may exist in this state.
    pub const fn is_live(self) -> bool {
        match self {
            Self::Cold => false,
            Self::Warming | Self::Warm | Self::Waiting | Self::Running => true,
        }
    }

    /// The word used in the API, the metrics and the store.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Cold => "cold",
            Self::Warming => "warming",
            Self::Warm => "warm",
            Self::Waiting => "waiting",
            Self::Running => "running",
        }
    }

    /// Whether the life of a sandbox may go from here to `next` in one step.
    pub const fn may_become(self, next: Self) -> bool {
        match self {
            Self::Cold => matches!(next, Self::Warming),
            Self::Warming => matches!(next, Self::Warm | Self::Running | Self::Cold),
            Self::Warm => matches!(next, Self::Running | Self::Waiting | Self::Cold),
            Self::Waiting => matches!(next, Self::Running | Self::Cold | Self::Warm),
            Self::Running => matches!(next, Self::Waiting | Self::Cold),
        }
    }
}

/// The life of a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub enum SessionStatus {
    /// It waits for its first sandbox.
    Starting,
    /// Takes turns.
    Active,
    /// Paused by its user, the idle sweep, an eviction or a restart; the next message resumes it.
    Paused,
    /// Stopped by its user: files kept, no sandbox; only a resume request continues it.
    Stopped,
    /// Ended. Files may still be read until they are pruned.
    Ended,
}

impl SessionStatus {
    /// All of them, in the order of a session's life.
    pub const ALL: [Self; 5] =
        [Self::Starting, Self::Active, Self::Paused, Self::Stopped, Self::Ended];

    /// The word used in the API and the store.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Starting => "starting",
            Self::Active => "active",
            Self::Paused => "paused",
            Self::Stopped => "stopped",
            Self::Ended => "ended",
        }
    }
}

/// Whether a session has a live sandbox right now.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub enum SandboxStatus {
    /// It has one, ready.
    Connected,
    /// It has none, or one that is starting or ending.
    Disconnected,
}

/// Whether a sandbox may hibernate.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub enum Wakefulness {
    /// A process or the scale file keeps it alive.
    Awake,
    /// Nothing keeps it alive: it may be frozen, swept or evicted when idle.
    Auto,
}

/// The life of a pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub enum PoolPhase {
    /// Hands out sandboxes and refills.
    Active,
    /// Hands out no sandbox and keeps none idle; leases continue. May be resumed.
    Draining,
    /// Being destroyed; no sandbox enters it.
    Destroying,
}

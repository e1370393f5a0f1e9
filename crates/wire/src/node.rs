//! The server as a whole.

use model::stats::{NodeStats, PoolStats};
use serde::{Deserialize, Serialize};

/// Whether the server works, for whoever watches over it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Health {
    /// In a word.
    pub status: HealthStatus,
    /// Why it is not `ok`: what is wrong, and for a key of role admin the cause.
    pub reasons: Vec<String>,
    /// The version of the server.
    pub version: String,
    /// How long it has been running, in seconds.
    pub uptime_s: u64,
    /// Commits that its database lacked when it started: a power cut took them, or its operator
    /// accepted their loss.
    #[serde(default)]
    pub lost_commits: u64,
    /// Its sandboxes.
    pub pool: NodeStats,
    /// How many sessions lost files since it started because a setting of the server allowed it.
    #[serde(default)]
    pub files_given_up: u64,
}

/// Whether the server works.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub enum HealthStatus {
    /// It does.
    Ok,
    /// It does, but not everything works.
    Degraded,
    /// It finishes what it does and takes nothing new.
    Stopping,
}

/// Counts of the server.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Stats {
    /// Its sandboxes by state.
    pub pool: NodeStats,
    /// Each template's pool.
    pub pools: Vec<PoolStats>,
    /// Its sessions by status.
    #[serde(default)]
    pub sessions: SessionCounts,
    /// How long it has been running, in seconds.
    pub uptime_s: u64,
    /// The version of the server.
    pub version: String,
}

/// Sessions by status.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct SessionCounts {
    /// Those whose first sandbox is being found.
    pub starting: u32,
    /// Those that take turns.
    pub active: u32,
    /// Those that are set aside until they are used again.
    pub paused: u32,
    /// Those that were stopped.
    pub stopped: u32,
    /// Those that are over and still remembered.
    pub ended: u32,
}

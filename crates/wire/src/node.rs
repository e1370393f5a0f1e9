//! The server as a whole.

use model::stats::{NodeStats, PoolStats};
use serde::{Deserialize, Serialize};

/// The health of the server, for monitoring. Without a valid key only the status is shown.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Health {
    /// The overall status.
    pub status: HealthStatus,
    /// Why the status is not `ok`: what is wrong and, for a key of role admin, the cause.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reasons: Option<Vec<String>>,
    /// The version of the server.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
    /// How long it has been running, in seconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uptime_s: Option<u64>,
    /// Commits that its database lacked when it started: a power cut took them, or its operator
    /// accepted their loss.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lost_commits: Option<u64>,
    /// Its sandboxes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pool: Option<NodeStats>,
    /// The memory that its sandboxes may use.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory: Option<MemoryLimits>,
    /// How many sessions lost files since it started because a setting of the server allowed it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub files_given_up: Option<u64>,
}

/// The memory that sandboxes may use by their limits, beside that of the machine. Together they may
/// have more: few use all of theirs at once.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct MemoryLimits {
    /// The sum of the limits of all live sandboxes, in MiB.
    pub live_mb: u64,
    /// The memory of the machine, in MiB.
    pub machine_mb: u64,
}

/// The overall status of the server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub enum HealthStatus {
    /// The server works.
    Ok,
    /// The server works, but not everything in it.
    Degraded,
    /// The server finishes running requests and accepts no new ones.
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
    /// Sessions that wait for their first sandbox.
    pub starting: u32,
    /// Sessions that take turns.
    pub active: u32,
    /// Paused sessions, which resume on their next use.
    pub paused: u32,
    /// Stopped sessions.
    pub stopped: u32,
    /// Ended sessions that are still stored.
    pub ended: u32,
}

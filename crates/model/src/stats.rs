//! Counts, as the API and the metrics show them.

use serde::{Deserialize, Serialize};

use crate::ids::TemplateName;
use crate::state::PoolPhase;

/// The nine numbers of the node.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct NodeStats {
    /// All entries, live and cold.
    pub total: u32,
    /// Without a process.
    pub cold: u32,
    /// Starting.
    pub warming: u32,
    /// Ready, not used yet.
    pub warm: u32,
    /// Between uses.
    pub waiting: u32,
    /// In use.
    pub running: u32,
    /// The bound on `total`.
    pub max_capacity: u32,
    /// Resumes that found the sandbox alive.
    pub resume_warm_hits: u64,
    /// Resumes that needed a new sandbox.
    pub resume_cold_hits: u64,
}

/// The contents of a pool, and its counters since the server started.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct PoolStats {
    /// The pool's template.
    pub template: TemplateName,
    /// Its phase.
    pub phase: PoolPhase,
    /// Whether launches fail at the moment.
    pub degraded: bool,
    /// The last launch failure, if launches fail.
    pub last_failure: Option<String>,
    /// Which limit of the node keeps an active pool from launching what it lacks, if one does.
    #[serde(default)]
    pub held_back: Option<String>,
    /// Ready to be handed out.
    pub idle: u32,
    /// Being launched, or waiting for a place.
    pub launching: u32,
    /// Leased, or being bound to a lease.
    pub leased: u32,
    /// Callers waiting.
    pub waiters: u32,
    /// Slots taken.
    pub slots_used: u32,
    /// Slots in all.
    pub slots: u32,
    /// Warm sandboxes that are kept ready.
    pub pool_size: u32,
    /// How many more may exist while in use.
    pub max_overflow: u32,
    /// The time that a sandbox must have left to live to be handed out: the template's
    /// `acquire_min_remaining_ttl_ms`, or what it means if the template leaves it open.
    #[serde(default)]
    pub acquire_min_remaining_ttl_ms: u64,
    /// Its counters.
    pub counters: PoolCounters,
}

/// Counters of a pool.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct PoolCounters {
    /// Checkouts served from the idle ones at once.
    pub fast: u64,
    /// Checkouts for which a sandbox was started at once.
    pub overflow: u64,
    /// Checkouts that had to wait.
    pub blocked: u64,
    /// Checkouts whose deadline passed.
    pub timed_out: u64,
    /// Checkouts refused for any other reason.
    pub refused: u64,
    /// Idle sandboxes discarded because too little was left of their life.
    pub discarded_near_expiry: u64,
    /// Sandboxes made ready for another use: returned untouched, or wiped and proven.
    pub recycled: u64,
    /// Sandboxes retired after a use.
    pub retired: u64,
    /// Sandboxes that died on their own.
    pub crashed: u64,
    /// Launches that succeeded.
    pub launched: u64,
    /// Launches that failed.
    pub launch_failed: u64,
}

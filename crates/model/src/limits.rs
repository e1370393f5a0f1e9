//! What one sandbox may consume. Every field has a default that is safe on a laptop.

use serde::{Deserialize, Serialize};

/// Limits of one sandbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Limits {
    /// Memory, without swap.
    pub memory_mb: u32,
    /// Thousandths of a CPU.
    pub cpu_milli: u32,
    /// Processes and threads.
    pub pids: u32,
    /// Size of `/workspace`.
    pub workspace_mb: u32,
    /// Output kept of one exec before it is marked as truncated.
    pub exec_output_bytes: u64,
    /// How long one exec may take unless it says otherwise.
    pub exec_timeout_ms: u64,
    /// What this machine cannot enforce is left out, instead of being refused.
    pub best_effort: bool,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            memory_mb: 512,
            cpu_milli: 1000,
            pids: 128,
            workspace_mb: 512,
            exec_output_bytes: 1 << 20,
            exec_timeout_ms: 60_000,
            best_effort: false,
        }
    }
}

//! Resource limits of one sandbox. Every field has a default that is safe on a laptop.

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
    /// Whether limits that this machine cannot enforce are ignored instead of refused.
    pub best_effort: bool,
}

impl Limits {
    /// The size of `/workspace` in bytes.
    pub const fn workspace_bytes(&self) -> u64 {
        (self.workspace_mb as u64) << 20
    }

    /// How many files and directories it may have, where it is on disk.
    pub const fn workspace_files(&self) -> u64 {
        files_in(self.workspace_bytes())
    }
}

/// How many files and directories a workspace on disk may have that holds this much: enough for
/// small ones, but no workspace may use up all inodes.
pub const fn files_in(bytes: u64) -> u64 {
    bytes / 8192
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

//! Settings of one node, as far as decisions depend on them.

use serde::{Deserialize, Serialize};

use crate::ids::TemplateName;

/// Limits and timeouts of one node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct NodeConfig {
    /// Most entries, live and cold.
    pub max_sandboxes: u32,
    /// Most processes: everything but cold.
    pub max_live: u32,
    /// Most memory promised to live sandboxes, as the sum of their limits; no bound if not given.
    pub memory_budget_mb: Option<u64>,
    /// How often idle sandboxes are swept.
    pub sweep_interval_ms: u64,
    /// How long a sandbox may be `waiting` before the sweep makes it cold.
    pub idle_timeout_ms: u64,
    /// How long a sandbox must be without activity before it is frozen.
    pub freeze_after_ms: u64,
    /// How long a checkout waits unless it says otherwise.
    pub wait_ms: u64,
    /// How long a session's request waits for its sandbox.
    pub bind_timeout_ms: u64,
    /// How long any other request waits for its confirmation.
    pub control_timeout_ms: u64,
    /// How long a probe may take.
    pub probe_timeout_ms: u64,
    /// How often an unreachable sandbox is probed before it counts as dead.
    pub probe_attempts: u32,
    /// A sandbox that answered within this time is not probed before it is handed out.
    pub probe_fresh_ms: u64,
    /// How long a keepAlive process may run unless it says otherwise.
    pub keep_alive_timeout_ms: u64,
    /// How many sessions may exist, with or without a sandbox.
    pub max_sessions: u32,
    /// How many turns may queue behind the one in progress.
    pub max_queued_turns: u32,
    /// How many keepAlive processes one sandbox may have.
    pub max_processes: u32,
    /// How many tombstones of sandboxes and leases stay in memory; the store keeps more.
    pub remembered_ends: u32,
    /// How much must be free on the disk of the workspaces for anything to be launched on it.
    pub workspace_free_floor_mb: u64,
    /// How often workspaces with a soft limit are measured.
    pub workspace_scan_interval_ms: u64,
    /// How long the files of an unused session stay where they are before they are put into
    /// an archive; for ever if not given, or 0.
    pub archive_after_ms: Option<u64>,
    /// How long the files of an unused session are kept at all; for ever if not given, or 0.
    pub prune_after_ms: Option<u64>,
    /// What happens to the files of a sleeping session whose entry is evicted.
    pub cold_eviction: ColdEviction,
    /// How much the files of the sleeping sessions of one key may take. Above it, the least
    /// recently used of that key are given up; nothing is if this is not given.
    pub kept_bytes_per_key: Option<u64>,
    /// How much the files of all sleeping sessions may take. Above it, those of the key that is
    /// furthest above its share are given up, the least recently used first.
    pub kept_bytes_total: Option<u64>,
    /// Whether files of sleeping sessions are given up when the disk has less left than
    /// `workspace_free_floor_mb`, those of the key furthest above its share first.
    pub give_up_at_floor: bool,
    /// The only templates that are served; all if there are none.
    pub templates: Vec<TemplateName>,
    /// Deadlines of effects.
    pub deadlines: Deadlines,
    /// What happens when launches fail.
    pub backoff: Backoff,
}

/// What happens to the files of a sleeping session when its entry is evicted.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ColdEviction {
    /// They stay in an archive, and the session's next use restores them.
    #[default]
    KeepFiles,
    /// They are deleted with the entry, and the loss is reported to the client.
    DeleteFiles,
}

impl Default for NodeConfig {
    fn default() -> Self {
        Self {
            max_sandboxes: 1000,
            max_live: 250,
            memory_budget_mb: None,
            sweep_interval_ms: 60_000,
            idle_timeout_ms: 1_800_000,
            freeze_after_ms: 10_000,
            wait_ms: 30_000,
            bind_timeout_ms: 60_000,
            control_timeout_ms: 120_000,
            probe_timeout_ms: 2_000,
            probe_attempts: 2,
            probe_fresh_ms: 5_000,
            keep_alive_timeout_ms: 600_000,
            max_sessions: 100_000,
            max_queued_turns: 16,
            max_processes: 256,
            remembered_ends: 4_096,
            workspace_free_floor_mb: 1_024,
            workspace_scan_interval_ms: 5_000,
            archive_after_ms: Some(86_400_000),
            prune_after_ms: None,
            cold_eviction: ColdEviction::default(),
            kept_bytes_per_key: None,
            kept_bytes_total: None,
            give_up_at_floor: false,
            templates: Vec::new(),
            deadlines: Deadlines::default(),
            backoff: Backoff::default(),
        }
    }
}

/// How long each kind of effect may take. A launch has its template's `ready_timeout_ms`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Deadlines {
    /// Binding settings to a warm sandbox.
    pub claim_ms: u64,
    /// Wiping one, and proving it clean.
    pub wipe_ms: u64,
    /// Freezing or thawing one.
    pub freeze_ms: u64,
    /// Starting or stopping a turn, or killing a process.
    pub turn_ms: u64,
    /// Making a workspace durable, copying, filling or deleting one. Archiving one may take ten
    /// times as long: no caller waits for it.
    pub workspace_ms: u64,
    /// Removing a sandbox, each time it is tried.
    pub kill_ms: u64,
}

impl Default for Deadlines {
    fn default() -> Self {
        Self {
            claim_ms: 5_000,
            wipe_ms: 10_000,
            freeze_ms: 2_000,
            turn_ms: 5_000,
            workspace_ms: 60_000,
            kill_ms: 10_000,
        }
    }
}

/// How retries are spaced.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Backoff {
    /// Failures in a row after which a pool counts as degraded and launches less often.
    pub degraded_after: u32,
    /// The first pause; each further one is twice as long.
    pub first_ms: u64,
    /// The longest pause.
    pub max_ms: u64,
}

impl Default for Backoff {
    fn default() -> Self {
        Self { degraded_after: 3, first_ms: 1_000, max_ms: 60_000 }
    }
}

impl Backoff {
    /// The pause after `failures` failures in a row, without jitter.
    pub fn pause_ms(&self, failures: u32) -> u64 {
        let doublings = failures.saturating_sub(1).min(32);
        self.first_ms.saturating_mul(1 << doublings).min(self.max_ms)
    }
}

impl NodeConfig {
    /// Refuses settings that could never work, naming the field.
    pub fn validate(&self) -> Result<(), InvalidConfig> {
        let zero = |field, value: u64| {
            (value == 0).then_some(InvalidConfig { field, problem: "must be above 0" })
        };
        let wrong = [
            zero("max_sandboxes", self.max_sandboxes.into()),
            zero("max_live", self.max_live.into()),
            zero("max_sessions", self.max_sessions.into()),
            zero("sweep_interval_ms", self.sweep_interval_ms),
            zero("bind_timeout_ms", self.bind_timeout_ms),
            zero("control_timeout_ms", self.control_timeout_ms),
            zero("probe_timeout_ms", self.probe_timeout_ms),
            zero("probe_attempts", self.probe_attempts.into()),
            zero("workspace_scan_interval_ms", self.workspace_scan_interval_ms),
            zero("deadlines.claim_ms", self.deadlines.claim_ms),
            zero("deadlines.wipe_ms", self.deadlines.wipe_ms),
            zero("deadlines.freeze_ms", self.deadlines.freeze_ms),
            zero("deadlines.turn_ms", self.deadlines.turn_ms),
            zero("deadlines.workspace_ms", self.deadlines.workspace_ms),
            zero("deadlines.kill_ms", self.deadlines.kill_ms),
            zero("backoff.first_ms", self.backoff.first_ms),
        ];
        wrong.into_iter().flatten().next().map_or(Ok(()), Err)
    }
}

/// A configuration that could never work.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{field}: {problem}")]
pub struct InvalidConfig {
    /// The field, as a path.
    pub field: &'static str,
    /// What is wrong with it.
    pub problem: &'static str,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn backoff_pauses_double_up_to_the_longest() {
        let backoff = Backoff::default();
        let pauses: Vec<u64> = [0, 1, 2, 3, 6, 7, 8, 1000].map(|n| backoff.pause_ms(n)).to_vec();
        assert_eq!(pauses, [1_000, 1_000, 2_000, 4_000, 32_000, 60_000, 60_000, 60_000]);
    }

    #[test]
    fn config_defaults_are_valid_and_those_of_the_design() {
        let config = NodeConfig::default();
        assert_eq!(config.validate(), Ok(()));
        assert_eq!((config.max_sandboxes, config.max_live), (1000, 250));
        assert_eq!((config.sweep_interval_ms, config.idle_timeout_ms), (60_000, 1_800_000));
        assert_eq!((config.freeze_after_ms, config.wait_ms), (10_000, 30_000));
        assert_eq!((config.probe_timeout_ms, config.probe_attempts), (2_000, 2));
    }

    #[test]
    fn config_with_a_limit_of_zero_is_refused_by_field() {
        let config = NodeConfig { max_live: 0, ..NodeConfig::default() };
        assert_eq!(config.validate().map_err(|invalid| invalid.field), Err("max_live"));
    }
}

//! Validation of a template: refuses settings with which no sandbox could work, by the name of the
//! field, wherever the template comes from. It must not look at the machine.

use crate::mount;
use crate::secret;
use crate::template::{
    Harness, InvalidTemplate, RootFs, Template, WORKSPACE_MB_MIN, WorkspaceKind, WorkspaceLimit,
};
use std::borrow::Cow;

/// Slots of one pool, and its waiters.
const SLOTS_MAX: u64 = 100_000;
/// A year.
const YEAR_MS: u64 = 365 * 86_400_000;
/// A tebibyte.
const WORKSPACE_MB_MAX: u64 = 1 << 20;
/// What one exec may keep of its output in memory: 64 MiB.
const OUTPUT_BYTES_MAX: u64 = 64 << 20;

type Valid = Result<(), InvalidTemplate>;

fn invalid(field: &'static str, problem: impl Into<Cow<'static, str>>) -> Valid {
    Err(InvalidTemplate { field, problem: problem.into() })
}

impl Template {
    /// Refuses settings that could never work, naming the field.
    pub fn validate(&self) -> Result<(), InvalidTemplate> {
        self.validate_lifetimes()?;
        self.validate_above_zero()?;
        self.validate_root_and_harness()?;
        self.validate_workspace_and_mounts()?;
        self.validate_network_and_secrets()?;
        self.validate_maxima()
    }

    fn validate_lifetimes(&self) -> Valid {
        let pool = &self.pool;
        if pool.slots() == 0 {
            return invalid(
                "pool.pool_size",
                "pool_size and max_overflow are both 0: no sandbox could be handed out",
            );
        }
        if pool.idle_ttl_ms == 0 {
            return invalid("pool.idle_ttl_ms", "must be above 0");
        }
        if pool.acquire_margin_ms() >= pool.idle_ttl_ms {
            return invalid(
                "pool.acquire_min_remaining_ttl_ms",
                "must be below idle_ttl_ms, or every idle sandbox would be discarded",
            );
        }
        if self.max_lifetime_ms.is_some_and(|life_ms| life_ms <= pool.acquire_margin_ms()) {
            return invalid(
                "max_lifetime_ms",
                "must be above acquire_min_remaining_ttl_ms, or no sandbox could be handed out",
            );
        }
        Ok(())
    }

    fn validate_above_zero(&self) -> Valid {
        for (field, value) in [
            ("pool.max_uses", u64::from(self.pool.max_uses)),
            ("pool.lease_ttl_ms", self.pool.lease_ttl_ms),
            ("pool.refill_per_s", u64::from(self.pool.refill_per_s)),
            ("limits.memory_mb", u64::from(self.limits.memory_mb)),
            ("limits.cpu_milli", u64::from(self.limits.cpu_milli)),
            ("limits.pids", u64::from(self.limits.pids)),
            ("ready_timeout_ms", self.ready_timeout_ms),
            ("turn_timeout_ms", self.turn_timeout_ms),
        ] {
            if value == 0 {
                return invalid(field, "must be above 0");
            }
        }
        Ok(())
    }

    fn validate_root_and_harness(&self) -> Valid {
        match &self.root {
            RootFs::Directory(path)
                if path.contains('\0')
                    || path.split('/').any(|part| matches!(part, "" | "." | "..")) =>
            {
                return invalid(
                    "root",
                    "a directory must be a relative path without `.`, `..` or `//`",
                );
            }
            RootFs::Host | RootFs::Directory(_) | RootFs::Image(_) => {}
        }
        if let Some(program) = self.harness.program() {
            let nameless = program.command.first().is_none_or(String::is_empty);
            if nameless || program.command.iter().any(|word| word.contains('\0')) {
                return invalid("harness.command", "must name a program, without zero bytes");
            }
        }
        match &self.harness {
            Harness::AshBridge(program) if program.prewarm && !program.is_node_script() => invalid(
                "harness.prewarm",
                "an ash_bridge harness can be prewarmed only if its command is `node SCRIPT ...`: \
                 another program reads its settings when it starts",
            ),
            Harness::Shell | Harness::Jsonl(_) | Harness::AshBridge(_) => Ok(()),
        }
    }

    fn validate_workspace_and_mounts(&self) -> Valid {
        if let Some(problem) = self.workspace.alias_problem() {
            return invalid("workspace.aliases", problem);
        }
        if let Some(problem) = mount::problem(&self.mounts) {
            return invalid("mounts", problem);
        }
        match (self.workspace.kind, self.workspace.limit) {
            (Some(WorkspaceKind::Disk), _) if self.limits.workspace_mb < WORKSPACE_MB_MIN => {
                invalid("limits.workspace_mb", "must be at least 4 if the workspace is on disk")
            }
            (Some(WorkspaceKind::Memory), Some(WorkspaceLimit::Soft)) => {
                invalid("workspace.limit", "must be hard if the workspace is in memory")
            }
            (Some(WorkspaceKind::Memory), Some(WorkspaceLimit::Hard) | None)
            | (Some(WorkspaceKind::Disk) | None, _) => Ok(()),
        }
    }

    fn validate_network_and_secrets(&self) -> Valid {
        if let Some(problem) = self.network.problem() {
            return invalid("network", problem);
        }
        if let Some(problem) = secret::problem_of_uses(&self.secrets) {
            return invalid("secrets", problem);
        }
        let hosts = self.secrets.iter().flat_map(|one| {
            let hosts = one.boundary.iter().flat_map(|boundary| &boundary.hosts);
            hosts.map(|host| (&one.secret, host))
        });
        for (secret, host) in hosts {
            if !self.network.may_reach(host, 443) {
                let problem = format!(
                    "\"{secret}\" is for {host}, which `network` does not allow on port 443"
                );
                return invalid("secrets", problem);
            }
        }
        Ok(())
    }

    fn validate_maxima(&self) -> Valid {
        let pool = &self.pool;
        for (field, value, max) in [
            ("pool.pool_size", pool.pool_size.into(), SLOTS_MAX),
            ("pool.max_overflow", pool.max_overflow.into(), SLOTS_MAX),
            ("pool.max_waiters", pool.max_waiters.into(), SLOTS_MAX),
            ("pool.idle_ttl_ms", pool.idle_ttl_ms, YEAR_MS),
            ("pool.lease_ttl_ms", pool.lease_ttl_ms, YEAR_MS),
            ("ready_timeout_ms", self.ready_timeout_ms, YEAR_MS),
            ("turn_timeout_ms", self.turn_timeout_ms, YEAR_MS),
            ("limits.workspace_mb", self.limits.workspace_mb.into(), WORKSPACE_MB_MAX),
            ("limits.exec_timeout_ms", self.limits.exec_timeout_ms, YEAR_MS),
            ("limits.exec_output_bytes", self.limits.exec_output_bytes, OUTPUT_BYTES_MAX),
        ] {
            if value > max {
                return invalid(field, "is larger than allowed");
            }
        }
        Ok(())
    }
}

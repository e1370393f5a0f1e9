//! The health of the node. Reading it never counts as activity and changes nothing.

use std::time::Duration;

use kernel::Kernel;
use model::state::PoolPhase;
use model::stats::NodeStats;
use model::template::RuntimeKind;
use model::{DeadlineAction, Now};
use store::{Condition, StoreErrorCode};

use crate::Engine;
use crate::metrics::Metrics;

/// The health of the node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Health {
    /// What is degraded; empty if all is well.
    pub degraded: Vec<Degraded>,
    /// Whether it is stopping.
    pub stopping: bool,
    /// How long it has run.
    pub uptime: Duration,
}

/// A degraded part.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Degraded {
    /// The part, in words.
    pub what: String,
    /// What failed. It may name paths of the machine, so not every caller may see it.
    pub cause: String,
}

impl Engine {
    /// The time of the node.
    pub fn now(&self) -> Now {
        self.core.now()
    }

    /// The nine numbers.
    pub fn stats(&self) -> NodeStats {
        self.core.read(Kernel::stats)
    }

    /// The sum of the memory limits of all live sandboxes, in MiB.
    pub fn live_memory_mb(&self) -> u64 {
        self.core.read(Kernel::live_memory_mb)
    }

    /// The memory of this machine, in MiB.
    pub fn machine_memory_mb(&self) -> u64 {
        let info = rustix::system::sysinfo();
        info.totalram.saturating_mul(u64::from(info.mem_unit)) >> 20
    }

    /// How many deadlines of sessions were reached since the start, by action.
    pub fn deadlines_met(&self) -> impl Iterator<Item = (DeadlineAction, u64)> {
        DeadlineAction::ALL.into_iter().zip(self.core.read(Kernel::deadlines_met))
    }

    /// How many sessions lost files since the start because a setting allowed it.
    pub fn files_given_up(&self) -> u64 {
        self.core.read(Kernel::files_given_up)
    }

    /// Whether the node is healthy, and if not, why.
    pub fn health(&self) -> Health {
        let mut degraded = Vec::new();
        if let Some(cause) = self.core.journal_health.failure() {
            degraded.push(Degraded { what: "store".to_owned(), cause: cause.to_string() });
        } else if self.store_condition().waits_for_space {
            let code = StoreErrorCode::DiskFull;
            let cause = format!("{code}: the database cannot be written ({})", code.remedy());
            degraded.push(Degraded { what: "store".to_owned(), cause });
        }
        if let Some(cause) = self.core.templates_failed.get() {
            let what = "configuration".to_owned();
            degraded.push(Degraded { what, cause: cause.clone() });
        }
        if self.core.read(Kernel::is_disk_short) {
            let cause = "the workspace disk has less free space than node.workspace_free_floor_mb"
                .to_owned();
            degraded.push(Degraded { what: "disk".to_owned(), cause });
        }
        if let Some(cause) = self.core.disk.stuck() {
            degraded.push(Degraded { what: "removal of workspaces".to_owned(), cause });
        }
        if self.egress_counts().is_some_and(|counts| counts.overdue > 0) {
            let cause = "an egress process does not answer: sandboxes get no policy until it does, or \
                         until it is replaced, a minute after the question";
            degraded.push(Degraded { what: "egress".to_owned(), cause: cause.to_owned() });
        }
        let templates = self.templates();
        for (kind, cause) in self.runtimes() {
            let used = templates.iter().any(|template| template.runtime == kind);
            if let Some(cause) = cause.filter(|_| used) {
                degraded.push(Degraded { what: format!("runtime {}", kind.as_str()), cause });
            }
        }
        for pool in self.pools().into_iter().filter(|pool| pool.degraded) {
            let cause = pool.last_failure.unwrap_or_else(|| "launches fail".to_owned());
            let phase = match pool.phase {
                PoolPhase::Active => "",
                PoolPhase::Draining => " (draining)",
                PoolPhase::Destroying => " (being removed)",
            };
            degraded.push(Degraded { what: format!("pool {}{phase}", pool.template), cause });
        }
        let stopping = self.core.read(Kernel::is_stopping);
        Health { degraded, stopping, uptime: self.core.clock.uptime() }
    }

    /// The condition of the store, apart from its contents.
    pub fn store_condition(&self) -> Condition {
        self.core.store.condition()
    }

    /// The runtimes, each with the reason why it does not work, if there is one.
    pub fn runtimes(&self) -> Vec<(RuntimeKind, Option<String>)> {
        self.core.runtimes.failures()
    }

    /// The metrics.
    pub fn metrics(&self) -> &Metrics {
        &self.core.metrics
    }

    /// How many decisions wait for a commit.
    pub fn backlog(&self) -> usize {
        self.core.state().backlog()
    }
}

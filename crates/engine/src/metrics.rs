//! Counters and times. This module only counts: the server registers them and reads gauges from the
//! engine.

use std::sync::atomic::AtomicU64;
use std::time::Duration;

use kernel::{Action, CheckoutPath};
use model::lifecycle::TurnOutcome;
use model::template::RuntimeKind;
use model::{EndCause, ErrorCode, ProcessEndReason};
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::Registry;

use crate::effects;

/// 20 microseconds to 84 seconds, each bucket twice the one before.
fn times() -> Histogram {
    Histogram::new(exponential_buckets(0.000_02, 2.0, 22))
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ByPath {
    path: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ByOutcome {
    outcome: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ByAction {
    action: &'static str,
    runtime: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ByReason {
    reason: &'static str,
    cause: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ByEndReason {
    reason: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ByCode {
    code: &'static str,
}

/// Actions on files, or on instances that are gone, belong to no runtime.
fn runtime_name(runtime: Option<RuntimeKind>) -> &'static str {
    runtime.map_or("none", RuntimeKind::as_str)
}

type Times<L> = Family<L, Histogram, fn() -> Histogram>;

/// What an engine counts.
pub struct Metrics {
    acquire: Times<ByPath>,
    give_back: Times<ByPath>,
    exec: Times<ByOutcome>,
    effects: Times<ByAction>,
    effects_failed: Family<ByAction, Counter>,
    ended: Family<ByReason, Counter>,
    refused: Family<ByCode, Counter>,
    commit: Histogram,
    decisions: Counter<u64, AtomicU64>,
    images: Gauge,
    image_bytes: Gauge,
    imports: Family<ByOutcome, Counter>,
    workspaces: Gauge,
    workspace_bytes: Gauge,
    disk_free_bytes: Gauge,
    workspace_scan: Histogram,
    archives: Gauge,
    archive_bytes: Gauge,
    lost_found: Gauge,
    restore: Histogram,
    restores_failed: Counter<u64, AtomicU64>,
    turn: Times<ByOutcome>,
    turn_first: Histogram,
    processes_started: Counter<u64, AtomicU64>,
    processes_ended: Family<ByEndReason, Counter>,
    processes_running: Gauge,
    log_bytes: Counter<u64, AtomicU64>,
    log_lost_bytes: Counter<u64, AtomicU64>,
}

impl Default for Metrics {
    fn default() -> Self {
        Self {
            acquire: Family::new_with_constructor(times),
            give_back: Family::new_with_constructor(times),
            exec: Family::new_with_constructor(times),
            effects: Family::new_with_constructor(times),
            effects_failed: Family::default(),
            ended: Family::default(),
            refused: Family::default(),
            commit: times(),
            decisions: Counter::default(),
            images: Gauge::default(),
            image_bytes: Gauge::default(),
            imports: Family::default(),
            workspaces: Gauge::default(),
            workspace_bytes: Gauge::default(),
            disk_free_bytes: Gauge::default(),
            workspace_scan: times(),
            archives: Gauge::default(),
            archive_bytes: Gauge::default(),
            lost_found: Gauge::default(),
            restore: times(),
            restores_failed: Counter::default(),
            turn: Family::new_with_constructor(times),
            turn_first: times(),
            processes_started: Counter::default(),
            processes_ended: Family::default(),
            processes_running: Gauge::default(),
            log_bytes: Counter::default(),
            log_lost_bytes: Counter::default(),
        }
    }
}

impl Metrics {
    /// Registers all metrics under their names.
    pub fn register(&self, registry: &mut Registry) {
        let acquire = "Time from the request for a sandbox to its hand-out, by path";
        registry.register("shoal_acquire_seconds", acquire, self.acquire.clone());
        let give_back = "Time to return a sandbox, by what happens to it";
        registry.register("shoal_return_seconds", give_back, self.give_back.clone());
        let exec = "Time of a command from grant to end, by outcome";
        registry.register("shoal_exec_seconds", exec, self.exec.clone());
        let effects =
            "Time to carry out an effect, by runtime: launch, claim, wipe, prove, kill and others";
        registry.register("shoal_effect_seconds", effects, self.effects.clone());
        let failed = "Effects that failed or missed their deadline, by runtime";
        registry.register("shoal_effects_failed", failed, self.effects_failed.clone());
        let ended = "Sandboxes that ended, by reason and exact cause";
        registry.register("shoal_sandboxes_ended", ended, self.ended.clone());
        let refused = "Checkouts that were refused, by code";
        registry.register("shoal_checkouts_refused", refused, self.refused.clone());
        let commit = "Time to commit a group of decisions";
        registry.register("shoal_commit_seconds", commit, self.commit.clone());
        let decisions = "Decisions that were committed";
        registry.register("shoal_decisions", decisions, self.decisions.clone());
        let images = "Images in the store, when last counted";
        registry.register("shoal_images", images, self.images.clone());
        let bytes = "Bytes of files in all layers of the image store, when last counted";
        registry.register("shoal_image_bytes", bytes, self.image_bytes.clone());
        let imports = "Imports of images that ended, by outcome";
        registry.register("shoal_image_imports", imports, self.imports.clone());
        let workspaces = "Workspaces on disk";
        registry.register("shoal_workspaces", workspaces, self.workspaces.clone());
        let bytes = "Bytes of workspaces on disk, when last measured";
        registry.register("shoal_workspace_bytes", bytes, self.workspace_bytes.clone());
        let free = "Free bytes on the workspace disk";
        registry.register("shoal_disk_free_bytes", free, self.disk_free_bytes.clone());
        let scan = "Time to measure all workspaces on disk once";
        registry.register("shoal_workspace_scan_seconds", scan, self.workspace_scan.clone());
        let lost = "Workspaces and archives in lost+found, which no record names";
        registry.register("shoal_lost_found", lost, self.lost_found.clone());
        let archives = "Archives of workspaces";
        registry.register("shoal_archives", archives, self.archives.clone());
        let bytes = "Bytes of archives of workspaces";
        registry.register("shoal_archive_bytes", bytes, self.archive_bytes.clone());
        let restore = "Time to launch a sandbox with the saved files of a session";
        registry.register("shoal_restore_seconds", restore, self.restore.clone());
        let failed = "Launches that failed to restore the saved files of a session";
        registry.register("shoal_restores_failed", failed, self.restores_failed.clone());
        let turn = "Time from the request for a turn to its end, by outcome";
        registry.register("shoal_turn_seconds", turn, self.turn.clone());
        let first = "Time from the request for a turn to the first output of the harness";
        registry.register("shoal_turn_first_event_seconds", first, self.turn_first.clone());
        let started = "Processes that were started";
        registry.register("shoal_processes_started", started, self.processes_started.clone());
        let ended = "Processes that ended, by reason";
        registry.register("shoal_processes_ended", ended, self.processes_ended.clone());
        let running = "Running processes";
        registry.register("shoal_processes_running", running, self.processes_running.clone());
        let bytes = "Bytes of process output that were written to the disk";
        registry.register("shoal_process_log_bytes", bytes, self.log_bytes.clone());
        let lost = "Bytes of process output that could not be stored";
        registry.register("shoal_process_log_lost_bytes", lost, self.log_lost_bytes.clone());
    }

    pub(crate) fn acquired(&self, path: CheckoutPath, took: Duration) {
        let path = match path {
            CheckoutPath::Fast => "fast",
            CheckoutPath::Overflow => "overflow",
            CheckoutPath::Blocked => "blocked",
        };
        self.acquire.get_or_create(&ByPath { path }).observe(took.as_secs_f64());
    }

    pub(crate) fn returned(&self, touched: Option<bool>, took: Duration) {
        let path = match touched {
            Some(false) => "untouched",
            Some(true) => "used",
            None => "gone",
        };
        self.give_back.get_or_create(&ByPath { path }).observe(took.as_secs_f64());
    }

    pub(crate) fn turn_ended(&self, outcome: TurnOutcome, took: Duration) {
        let outcome = outcome.as_str();
        self.turn.get_or_create(&ByOutcome { outcome }).observe(took.as_secs_f64());
    }

    pub(crate) fn turn_answered(&self, took: Duration) {
        self.turn_first.observe(took.as_secs_f64());
    }

    pub(crate) fn process_started(&self) {
        self.processes_started.inc();
        self.processes_running.inc();
    }

    pub(crate) fn process_ended(&self, reason: ProcessEndReason) {
        let reason = reason.as_str();
        self.processes_ended.get_or_create(&ByEndReason { reason }).inc();
        self.processes_running.dec();
    }

    pub(crate) fn log_saved(&self, bytes: u64) {
        self.log_bytes.inc_by(bytes);
    }

    pub(crate) fn log_lost(&self, bytes: u64) {
        self.log_lost_bytes.inc_by(bytes);
    }

    pub(crate) fn executed(&self, well: bool, took: Duration) {
        let outcome = if well { "ended" } else { "failed" };
        self.exec.get_or_create(&ByOutcome { outcome }).observe(took.as_secs_f64());
    }

    pub(crate) fn effect_done(
        &self,
        action: &Action,
        runtime: Option<RuntimeKind>,
        took: Duration,
    ) {
        let by = ByAction { action: effects::action_name(action), runtime: runtime_name(runtime) };
        self.effects.get_or_create(&by).observe(took.as_secs_f64());
    }

    pub(crate) fn effect_failed(&self, action: &Action, runtime: Option<RuntimeKind>) {
        let by = ByAction { action: effects::action_name(action), runtime: runtime_name(runtime) };
        self.effects_failed.get_or_create(&by).inc();
    }

    pub(crate) fn ended(&self, cause: EndCause) {
        let (reason, cause) = (cause.reason().as_str(), cause.as_str());
        self.ended.get_or_create(&ByReason { reason, cause }).inc();
    }

    pub(crate) fn refused(&self, code: ErrorCode) {
        self.refused.get_or_create(&ByCode { code: code.as_str() }).inc();
    }

    pub(crate) fn images(&self, count: usize, bytes: u64) {
        self.images.set(i64::try_from(count).unwrap_or(i64::MAX));
        self.image_bytes.set(i64::try_from(bytes).unwrap_or(i64::MAX));
    }

    /// An import ended: well, or with a code.
    pub(crate) fn imported(&self, outcome: Result<(), &'static str>) {
        let outcome = outcome.err().unwrap_or("imported");
        self.imports.get_or_create(&ByOutcome { outcome }).inc();
    }

    pub(crate) fn committed(&self, took: Duration) {
        self.commit.observe(took.as_secs_f64());
    }

    pub(crate) fn disk_is(&self, workspaces: usize, free_bytes: u64) {
        self.workspaces.set(workspaces.cast_signed() as i64);
        self.disk_free_bytes.set(free_bytes.cast_signed());
    }

    pub(crate) fn lost_found_is(&self, count: usize) {
        self.lost_found.set(count.cast_signed() as i64);
    }

    pub(crate) fn archives_are(&self, (count, bytes): (usize, u64)) {
        self.archives.set(count.cast_signed() as i64);
        self.archive_bytes.set(bytes.cast_signed());
    }

    /// A sandbox was launched with the files of a session.
    pub(crate) fn restored(&self, took: Duration) {
        self.restore.observe(took.as_secs_f64());
    }

    /// The files of a session could not be restored.
    pub(crate) fn restore_failed(&self) {
        self.restores_failed.inc();
    }

    pub(crate) fn measured(&self, bytes: u64, took: Duration) {
        self.workspace_bytes.set(bytes.cast_signed());
        self.workspace_scan.observe(took.as_secs_f64());
    }

    pub(crate) fn decided(&self, decisions: usize) {
        self.decisions.inc_by(decisions as u64);
    }
}

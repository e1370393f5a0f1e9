//! Metrics of requests, and the page with all metrics for Prometheus.

use std::time::Duration;

use engine::Engine;
use model::SandboxState;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::text::encode;
use prometheus_client::encoding::{DescriptorEncoder, EncodeLabelSet, EncodeMetric as _};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::Registry;

use crate::egress_metrics::EgressNumbers;
use crate::secret_metrics::SecretGauges;
use crate::usage_metrics::UsageTotals;

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ByOutcome {
    route: &'static str,
    method: &'static str,
    status: u32,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ByRoute {
    route: &'static str,
}

/// 20 microseconds to 84 seconds, each bucket twice the one before.
fn times() -> Histogram {
    Histogram::new(exponential_buckets(0.000_02, 2.0, 22))
}

/// Metrics of requests.
#[derive(Debug)]
pub struct Metrics {
    registry: Registry,
    requests: Family<ByOutcome, Counter>,
    seconds: Family<ByRoute, Histogram, fn() -> Histogram>,
}

impl Metrics {
    /// With everything that the engine counts.
    pub fn new(engine: &Engine) -> Self {
        let mut registry = Registry::default();
        let requests = Family::default();
        let seconds: Family<_, _, fn() -> Histogram> = Family::new_with_constructor(times);
        registry.register("shoal_http_requests", "Requests, by their answer", requests.clone());
        let help = "Time until an answer began";
        registry.register("shoal_http_request_seconds", help, seconds.clone());
        engine.metrics().register(&mut registry);
        registry.register_collector(Box::new(Gauges(engine.clone())));
        registry.register_collector(Box::new(UsageTotals(engine.clone())));
        registry.register_collector(Box::new(SecretGauges(engine.clone())));
        registry.register_collector(Box::new(EgressNumbers(engine.clone())));
        Self { registry, requests, seconds }
    }

    /// A request was answered.
    pub fn answered(&self, route: &'static str, method: &'static str, status: u16, took: Duration) {
        let by = ByOutcome { route, method, status: status.into() };
        self.requests.get_or_create(&by).inc();
        self.seconds.get_or_create(&ByRoute { route }).observe(took.as_secs_f64());
    }

    /// Everything, as Prometheus reads it.
    pub fn page(&self) -> Result<String, std::fmt::Error> {
        let mut text = String::new();
        encode(&mut text, &self.registry)?;
        Ok(text)
    }
}

/// Metrics that are read from the engine at each scrape.
struct Gauges(Engine);

impl std::fmt::Debug for Gauges {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Gauges")
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ByState {
    state: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ByRuntime {
    runtime: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ByRest {
    rest: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ByStatus {
    status: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ByAction {
    action: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ByHit {
    hit: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ByPool {
    template: String,
    what: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ByMove {
    from: &'static str,
    to: &'static str,
}

impl Collector for Gauges {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), std::fmt::Error> {
        self.encode_sandboxes(&mut encoder)?;
        self.encode_sessions_and_health(&mut encoder)?;
        self.encode_store(&mut encoder)?;
        self.encode_runtimes_and_pools(&mut encoder)
    }
}

impl Gauges {
    fn encode_sandboxes(&self, encoder: &mut DescriptorEncoder<'_>) -> std::fmt::Result {
        let stats = self.0.stats();
        let help = "Sandboxes by state";
        let mut sandboxes =
            encoder.encode_descriptor("shoal_sandboxes", help, None, MetricType::Gauge)?;
        for state in SandboxState::ALL {
            let count = match state {
                SandboxState::Cold => stats.cold,
                SandboxState::Warming => stats.warming,
                SandboxState::Warm => stats.warm,
                SandboxState::Waiting => stats.waiting,
                SandboxState::Running => stats.running,
            };
            let by = ByState { state: state.as_str() };
            ConstGauge::new(i64::from(count)).encode(sandboxes.encode_family(&by)?)?;
        }
        let help = "Transitions of sandboxes, by the states before and after";
        let mut moves =
            encoder.encode_descriptor("shoal_sandbox_moves", help, None, MetricType::Counter)?;
        for (from, to, times) in self.0.transition_counts() {
            let by = ByMove { from: from.as_str(), to: to.as_str() };
            ConstCounter::new(times).encode(moves.encode_family(&by)?)?;
        }
        let rest = self.0.keep_alive_counts();
        let help = "Sandboxes that are frozen, and those that a keep-alive holds awake";
        let mut by_rest =
            encoder.encode_descriptor("shoal_sandboxes_rest", help, None, MetricType::Gauge)?;
        for (rest, count) in [("frozen", rest.frozen), ("awake", rest.awake)] {
            ConstGauge::new(i64::from(count)).encode(by_rest.encode_family(&ByRest { rest })?)?;
        }
        let help = "Most sandboxes that may exist";
        let most =
            encoder.encode_descriptor("shoal_sandboxes_max", help, None, MetricType::Gauge)?;
        ConstGauge::new(i64::from(stats.max_capacity)).encode(most)
    }

    fn encode_sessions_and_health(&self, encoder: &mut DescriptorEncoder<'_>) -> std::fmt::Result {
        let help = "Sessions by status";
        let mut sessions =
            encoder.encode_descriptor("shoal_sessions", help, None, MetricType::Gauge)?;
        for (status, count) in self.0.sessions_by_status() {
            let by = ByStatus { status: status.as_str() };
            ConstGauge::new(i64::from(count)).encode(sessions.encode_family(&by)?)?;
        }
        let stats = self.0.stats();
        let help = "Resumes of sessions: warm ones found the sandbox alive, cold ones launched one";
        let mut resumes =
            encoder.encode_descriptor("shoal_session_resumes", help, None, MetricType::Counter)?;
        for (hit, count) in [("warm", stats.resume_warm_hits), ("cold", stats.resume_cold_hits)] {
            ConstCounter::new(count).encode(resumes.encode_family(&ByHit { hit })?)?;
        }
        let help = "Deadlines of sessions that were reached, by what happened then";
        let mut deadlines = encoder.encode_descriptor(
            "shoal_session_deadlines",
            help,
            None,
            MetricType::Counter,
        )?;
        for (action, count) in self.0.deadlines_met() {
            let by = ByAction { action: action.as_str() };
            ConstCounter::new(count).encode(deadlines.encode_family(&by)?)?;
        }
        let help = "Sessions that lost files because a setting of the server allowed it";
        let given_up =
            encoder.encode_descriptor("shoal_files_given_up", help, None, MetricType::Counter)?;
        ConstCounter::new(self.0.files_given_up()).encode(given_up)?;
        let help = "Whether the server is healthy";
        let healthy = self.0.health().degraded.is_empty();
        let up = encoder.encode_descriptor("shoal_healthy", help, None, MetricType::Gauge)?;
        ConstGauge::new(i64::from(healthy)).encode(up)
    }

    fn encode_store(&self, encoder: &mut DescriptorEncoder<'_>) -> std::fmt::Result {
        let store = self.0.store_condition();
        for (name, help, value) in [
            (
                "shoal_store_bytes",
                "Bytes of the database on the disk, without its log",
                store.database_bytes,
            ),
            (
                "shoal_store_used_bytes",
                "Bytes of the database that are in use; the rest is written over before it grows",
                store.used_bytes,
            ),
            ("shoal_store_log_bytes", "Bytes of the log of the database", store.log_bytes),
            (
                "shoal_store_bound_bytes",
                "The size that history may make the database grow to",
                store.bound_bytes,
            ),
            (
                "shoal_store_lost_commits",
                "Commits that were missing in the database when the server started",
                store.lost_commits,
            ),
        ] {
            let gauge = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
            ConstGauge::new(i64::try_from(value).unwrap_or(i64::MAX)).encode(gauge)?;
        }
        Ok(())
    }

    fn encode_runtimes_and_pools(&self, encoder: &mut DescriptorEncoder<'_>) -> std::fmt::Result {
        let help = "Whether a runtime works, as far as is known: its engine answers";
        let mut runtimes =
            encoder.encode_descriptor("shoal_runtime_up", help, None, MetricType::Gauge)?;
        for (kind, trouble) in self.0.runtimes() {
            let by = ByRuntime { runtime: kind.as_str() };
            ConstGauge::new(i64::from(trouble.is_none())).encode(runtimes.encode_family(&by)?)?;
        }
        let help = "Sandboxes, waiters and slots of each pool";
        let mut pools = encoder.encode_descriptor("shoal_pool", help, None, MetricType::Gauge)?;
        for pool in self.0.pools() {
            for (what, count) in [
                ("idle", pool.idle),
                ("launching", pool.launching),
                ("leased", pool.leased),
                ("waiters", pool.waiters),
                ("slots_used", pool.slots_used),
                ("slots", pool.slots),
                ("degraded", u32::from(pool.degraded)),
                ("held_back", u32::from(pool.held_back.is_some())),
            ] {
                let by = ByPool { template: pool.template.to_string(), what };
                ConstGauge::new(i64::from(count)).encode(pools.encode_family(&by)?)?;
            }
        }
        Ok(())
    }
}

//! What goes out of sandboxes, for Prometheus. Names and addresses are no metrics: sandboxes choose
//! them.

use engine::Engine;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeLabelSet, EncodeMetric as _};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct By {
    kind: &'static str,
}

/// A name, its help, and the value of each kind.
type Family<'a> = (&'static str, &'static str, &'a [(&'static str, u64)]);

/// Numbers that are read from the engine at each scrape.
pub(crate) struct EgressNumbers(pub(crate) Engine);

impl std::fmt::Debug for EgressNumbers {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("EgressNumbers")
    }
}

impl Collector for EgressNumbers {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), std::fmt::Error> {
        let Some(counts) = self.0.egress_counts() else { return Ok(()) };
        let gauges = [
            ("shoal_egress_processes", "Processes of the way out", counts.processes),
            (
                "shoal_egress_overdue_processes",
                "Processes of the way out that owe an answer for more than 5 s",
                counts.overdue,
            ),
            ("shoal_egress_sandboxes", "Sandboxes that they serve", counts.sandboxes),
            (
                "shoal_egress_open_connections",
                "Connections out of sandboxes now",
                counts.connections,
            ),
        ];
        for (name, help, value) in gauges {
            let value = i64::try_from(value).unwrap_or(i64::MAX);
            let metric = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
            ConstGauge::new(value).encode(metric)?;
        }
        let connections =
            [("accepted", counts.accepted), ("refused", counts.refused), ("failed", counts.failed)];
        let names = [("allowed", counts.names_allowed), ("refused", counts.names_refused)];
        let bytes = [("sent", counts.sent), ("received", counts.received)];
        let waits = [
            ("sandbox", counts.waits_of_sandbox),
            ("key", counts.waits_of_key),
            ("process", counts.waits_of_process),
        ];
        let families: [Family<'_>; 4] = [
            (
                "shoal_egress_connections",
                "Connections that sandboxes began; refused: no rule allows them; failed: allowed, and \
                 not made",
                &connections,
            ),
            ("shoal_egress_names", "Questions of sandboxes for names", &names),
            ("shoal_egress_bytes", "Bytes out of sandboxes and into them", &bytes),
            (
                "shoal_egress_waits",
                "Times that a new connection waited for a limit: of its sandbox, of its key, or for the \
                 descriptors of its process",
                &waits,
            ),
        ];
        for (name, help, values) in families {
            let mut family = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
            for (kind, value) in values {
                ConstCounter::new(*value).encode(family.encode_family(&By { kind })?)?;
            }
        }
        for (name, help, value) in [
            (
                "shoal_egress_log_dropped",
                "Entries of the network log that were dropped because there were too many",
                counts.dropped_events,
            ),
            (
                "shoal_egress_deaths",
                "Processes of the way out that died and were replaced",
                counts.deaths,
            ),
        ] {
            let metric = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
            ConstCounter::new(value).encode(metric)?;
        }
        Ok(())
    }
}

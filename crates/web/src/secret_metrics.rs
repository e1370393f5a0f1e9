//! How many secrets are stored, for Prometheus. Names and values are no metrics.

use engine::Engine;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeLabelSet, EncodeMetric as _};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::gauge::ConstGauge;

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ByScope {
    scope: &'static str,
}

/// Numbers that are read from the engine at each scrape.
pub(crate) struct SecretGauges(pub(crate) Engine);

impl std::fmt::Debug for SecretGauges {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("SecretGauges")
    }
}

impl Collector for SecretGauges {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), std::fmt::Error> {
        let counts = self.0.secret_counts();
        let help = "Stored secrets: those of the node, and those of all keys together";
        let mut secrets =
            encoder.encode_descriptor("shoal_secrets", help, None, MetricType::Gauge)?;
        for (scope, count) in [("node", counts.node), ("key", counts.keys)] {
            let count = i64::try_from(count).unwrap_or(i64::MAX);
            ConstGauge::new(count).encode(secrets.encode_family(&ByScope { scope })?)?;
        }
        Ok(())
    }
}

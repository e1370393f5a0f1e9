//! What all keys together have used, for Prometheus. Any key may read the metrics, so no key may
//! have numbers of its own here.

use engine::Engine;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric as _};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;

/// Totals that are read from the engine at each scrape.
pub(crate) struct UsageTotals(pub(crate) Engine);

impl std::fmt::Debug for UsageTotals {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("UsageTotals")
    }
}

impl Collector for UsageTotals {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), std::fmt::Error> {
        let all = self.0.usage_of_all();
        let families = [
            (
                "shoal_usage_sandbox_seconds",
                "Seconds of live sandboxes that keys had, added up over all runs",
                Some(all.sandbox_seconds()),
            ),
            (
                "shoal_usage_memory_mb_seconds",
                "The same, multiplied by the memory limit of each in MB",
                Some(all.memory_mb_seconds()),
            ),
            (
                "shoal_usage_cpu_seconds",
                "Processor time of these sandboxes, where the machine can read it",
                all.cpu_seconds(),
            ),
            (
                "shoal_usage_stored_byte_seconds",
                "Bytes that keys stored, multiplied by the seconds that they were stored",
                Some(all.stored_byte_seconds()),
            ),
        ];
        for (name, help, value) in families {
            if let Some(value) = value {
                let counter = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
                ConstCounter::new(value).encode(counter)?;
            }
        }
        Ok(())
    }
}

//! What keys have used, for Prometheus: all together for every caller, and each key for the callers
//! that may see it.

use engine::Engine;
use model::UsageRecord;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeLabelSet, EncodeMetric as _};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;

type Read = fn(&UsageRecord) -> Option<f64>;

/// What is counted: its name, what it means, and how to read it.
const COUNTED: [(&str, &str, Read); 4] = [
    (
        "sandbox_seconds",
        "Seconds of live sandboxes that keys had, added up over all runs",
        |used| Some(used.sandbox_seconds()),
    ),
    ("memory_mb_seconds", "The same, multiplied by the memory limit of each in MB", |used| {
        Some(used.memory_mb_seconds())
    }),
    (
        "cpu_seconds",
        "Processor time of these sandboxes, where the machine can read it",
        UsageRecord::cpu_seconds,
    ),
    (
        "stored_byte_seconds",
        "Bytes that keys stored, multiplied by the seconds that they were stored",
        |used| Some(used.stored_byte_seconds()),
    ),
];

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
        for (name, help, read) in COUNTED {
            if let Some(value) = read(&all) {
                let name = format!("shoal_usage_{name}");
                let counter = encoder.encode_descriptor(&name, help, None, MetricType::Counter)?;
                ConstCounter::new(value).encode(counter)?;
            }
        }
        Ok(())
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ByKey {
    key: String,
}

/// The totals of the keys that a caller may see.
#[derive(Debug)]
pub(crate) struct KeyUsageTotals(pub(crate) Vec<UsageRecord>);

impl Collector for KeyUsageTotals {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), std::fmt::Error> {
        for (name, help, read) in COUNTED {
            let name = format!("shoal_key_usage_{name}");
            let mut counters = encoder.encode_descriptor(&name, help, None, MetricType::Counter)?;
            for one in &self.0 {
                if let Some(value) = read(one) {
                    let by = ByKey { key: one.key.to_string() };
                    ConstCounter::new(value).encode(counters.encode_family(&by)?)?;
                }
            }
        }
        Ok(())
    }
}

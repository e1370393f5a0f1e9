//! What keys use of their limits, and what they have used so far, as metrics. A caller sees the keys
//! that it may see, and a bounded number of them: each is a label.

use std::collections::BTreeMap;

use engine::Caller;
use model::{KeyId, KeyLimit, KeyRecord};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::text::encode;
use prometheus_client::encoding::{DescriptorEncoder, EncodeLabelSet, EncodeMetric as _};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Registry;

use crate::app::App;
use crate::usage_metrics::KeyUsageTotals;

/// The most keys; the oldest ones that work.
const KEYS_MAX: usize = 1_000;
/// How a page of metrics ends.
const END: &str = "# EOF\n";

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ByLimit {
    key: String,
    limit: &'static str,
}

type Values = Vec<(ByLimit, u64)>;

#[derive(Debug)]
struct KeyGauges {
    used: Values,
    limits: Values,
}

impl Collector for KeyGauges {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), std::fmt::Error> {
        for (name, help, values) in [
            ("shoal_key_used", "What a key uses of what is limited", &self.used),
            ("shoal_key_limit", "The limits that hold for a key", &self.limits),
        ] {
            let mut gauges = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
            for (by, value) in values {
                let value = i64::try_from(*value).unwrap_or(i64::MAX);
                ConstGauge::new(value).encode(gauges.encode_family(by)?)?;
            }
        }
        Ok(())
    }
}

/// The page of all metrics, with those of the keys that a caller may see.
pub fn page(
    app: &App,
    caller: Caller,
    events: &BTreeMap<KeyId, u64>,
) -> Result<String, std::fmt::Error> {
    let mut gauges = KeyGauges { used: Vec::new(), limits: Vec::new() };
    let works = |key: &KeyRecord| caller.sees(key.id) && app.engine.key_is_valid(key.id);
    for key in app.engine.keys().iter().filter(|key| works(key)).take(KEYS_MAX) {
        let used = app.used_by(key.id, events.get(&key.id).copied().unwrap_or_default());
        let limits = app.limits.of(key.id);
        for limit in KeyLimit::ALL {
            let by = || ByLimit { key: key.id.to_string(), limit: limit.as_str() };
            gauges.used.extend(used.of(limit).map(|used| (by(), used)));
            gauges.limits.extend(limits.get(limit).map(|most| (by(), most)));
        }
    }
    let mut registry = Registry::default();
    registry.register_collector(Box::new(gauges));
    let mut usage = app.engine.stored_usage(caller);
    usage.truncate(KEYS_MAX);
    registry.register_collector(Box::new(KeyUsageTotals(usage)));
    let mut text = app.metrics.page()?;
    text.truncate(text.trim_end_matches(END).len());
    encode(&mut text, &registry)?;
    Ok(text)
}

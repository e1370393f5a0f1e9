//! The processor time that each key used, from readings of the counters of instances. A counter
//! belongs to an instance, and an instance to one key after another: only differences count.

use std::collections::BTreeMap;
use std::time::Duration;

use model::{InstanceId, KeyId};

/// The processor time of one key in this run.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct CpuTotal {
    /// None if no instance of it could be read.
    pub(super) us: Option<u64>,
    /// Some instance of it could not be read.
    pub(super) incomplete: bool,
}

/// The last reading of each instance, and the totals.
#[derive(Debug, Default)]
pub(super) struct CpuMeter {
    last: BTreeMap<InstanceId, Option<Duration>>,
    totals: BTreeMap<KeyId, CpuTotal>,
}

impl CpuMeter {
    /// What an instance used until now belongs to no key.
    pub(super) fn begin(&mut self, instance: InstanceId, reading: Option<Duration>) {
        self.last.insert(instance, reading);
    }

    /// What an instance used since the last reading belongs to a key, if it has one. An instance
    /// that did not begin, or has ended, counts for no key.
    pub(super) fn read(
        &mut self,
        instance: InstanceId,
        key: Option<KeyId>,
        reading: Option<Duration>,
    ) {
        let Some(last) = self.last.get_mut(&instance) else { return };
        // Two readings may come in the wrong order.
        let used = reading.zip(*last).map(|(now, before)| now.saturating_sub(before));
        *last = (*last).max(reading);
        let Some(key) = key else { return };
        let total = self.totals.entry(key).or_default();
        match used {
            Some(used) => {
                let us = u64::try_from(used.as_micros()).unwrap_or(u64::MAX);
                total.us = Some(total.us.unwrap_or(0).saturating_add(us));
            }
            None => total.incomplete = true,
        }
    }

    pub(super) fn end(&mut self, instance: InstanceId) {
        self.last.remove(&instance);
    }

    pub(super) fn instances(&self) -> Vec<InstanceId> {
        self.last.keys().copied().collect()
    }

    pub(super) fn totals(&self) -> BTreeMap<KeyId, CpuTotal> {
        self.totals.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: KeyId = KeyId::from_u128(1);
    const TWO: KeyId = KeyId::from_u128(2);

    const fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    #[test]
    fn cpu_time_counts_once_and_for_the_key_that_used_it() {
        let instance = InstanceId::from_u128(7);
        let mut meter = CpuMeter::default();
        meter.read(instance, Some(ONE), Some(ms(9)));
        assert!(meter.totals().is_empty(), "it did not begin");
        // An earlier sandbox in the same group used 100 ms.
        meter.begin(instance, Some(ms(100)));
        meter.read(instance, None, Some(ms(110)));
        for reading in [115, 112, 115] {
            meter.read(instance, Some(ONE), Some(ms(reading)));
        }
        let total = |us| CpuTotal { us: Some(us), incomplete: false };
        assert_eq!(meter.totals()[&ONE], total(5_000));
        // The wipe belongs to no key.
        meter.begin(instance, Some(ms(150)));
        meter.read(instance, Some(TWO), Some(ms(151)));
        meter.end(instance);
        meter.read(instance, Some(TWO), Some(ms(999)));
        assert_eq!(meter.totals()[&TWO], total(1_000));
        assert_eq!(meter.totals()[&ONE], total(5_000));
        assert!(meter.instances().is_empty());
    }

    #[test]
    fn cpu_time_that_cannot_be_read_is_never_zero() {
        let instance = InstanceId::from_u128(7);
        let mut meter = CpuMeter::default();
        meter.begin(instance, None);
        meter.read(instance, Some(ONE), None);
        assert_eq!(meter.totals()[&ONE], CpuTotal { us: None, incomplete: true });
        meter.begin(instance, Some(ms(0)));
        meter.read(instance, Some(ONE), Some(ms(3)));
        assert_eq!(meter.totals()[&ONE], CpuTotal { us: Some(3_000), incomplete: true });
    }
}

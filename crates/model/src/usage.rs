//! What a key has used since it exists, as it is stored. Numbers only grow, and a revoked key keeps
//! its own.

use serde::{Deserialize, Serialize};

use crate::ids::KeyId;
use crate::time::Wall;

/// The totals of one key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct UsageRecord {
    /// The key.
    pub key: KeyId,
    /// When it was last measured.
    pub measured_at: Wall,
    /// Milliseconds of its live sandboxes, added up.
    pub sandbox_ms: u64,
    /// The same, each multiplied by the memory limit of its sandbox in MB.
    pub memory_mb_ms: u64,
    /// Microseconds of processor time; none if no sandbox of it could be read.
    pub cpu_us: Option<u64>,
    /// Some sandbox of it could not be read.
    pub cpu_incomplete: bool,
    /// Stored bytes, multiplied by the milliseconds that they were stored.
    #[serde(with = "decimal")]
    pub stored_byte_ms: u128,
}

impl UsageRecord {
    /// The totals of a key that has used nothing.
    pub const fn none(key: KeyId) -> Self {
        Self {
            key,
            measured_at: Wall(0),
            sandbox_ms: 0,
            memory_mb_ms: 0,
            cpu_us: None,
            cpu_incomplete: false,
            stored_byte_ms: 0,
        }
    }

    /// Seconds of its live sandboxes.
    pub fn sandbox_seconds(&self) -> f64 {
        parts(self.sandbox_ms.into(), 1e3)
    }

    /// Seconds, multiplied by memory in MB.
    pub fn memory_mb_seconds(&self) -> f64 {
        parts(self.memory_mb_ms.into(), 1e3)
    }

    /// Seconds of processor time; none if it had sandboxes and none of them could be read.
    pub fn cpu_seconds(&self) -> Option<f64> {
        let used_nothing = (self.sandbox_ms == 0).then_some(0);
        self.cpu_us.or(used_nothing).map(|us| parts(us.into(), 1e6))
    }

    /// Stored bytes, multiplied by seconds.
    pub fn stored_byte_seconds(&self) -> f64 {
        parts(self.stored_byte_ms, 1e3)
    }
}

#[expect(clippy::cast_precision_loss, reason = "fifteen digits are enough for a bill")]
fn parts(count: u128, of_one: f64) -> f64 {
    count as f64 / of_one
}

/// A number that JSON numbers are too short for, as text.
mod decimal {
    use serde::{Deserialize as _, Deserializer, Serializer, de};

    pub(super) fn serialize<S: Serializer>(number: &u128, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(number)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<u128, D::Error> {
        std::borrow::Cow::<'de, str>::deserialize(from)?.parse().map_err(de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn usage_is_stored_to_the_last_digit() {
        let full = UsageRecord {
            measured_at: Wall(7),
            sandbox_ms: u64::MAX,
            memory_mb_ms: u64::MAX,
            cpu_us: Some(u64::MAX),
            cpu_incomplete: true,
            stored_byte_ms: u128::MAX,
            ..UsageRecord::none(KeyId::from_u128(3))
        };
        for record in [full, UsageRecord::none(KeyId::from_u128(4))] {
            let text = serde_json::to_string(&record).unwrap();
            assert_eq!(serde_json::from_str::<UsageRecord>(&text).unwrap(), record, "{text}");
        }
    }
}

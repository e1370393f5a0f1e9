//! What keys have used since they exist. Every number was stored before it is shown, and none but
//! `stored_bytes` ever goes back.

use model::{KeyId, UsageRecord};
use serde::{Deserialize, Serialize};

use crate::time::Time;

/// What one key has used since it exists.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Usage {
    /// The id of the key. A revoked key keeps its usage.
    pub key: KeyId,
    /// Its name, for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// When these totals last changed; not given if the key has used nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub measured_at: Option<Time>,
    /// Seconds of its live sandboxes, leased or of sessions, added up.
    pub sandbox_seconds: f64,
    /// The same, each multiplied by the memory limit of its sandbox in MB.
    pub memory_mb_seconds: f64,
    /// Seconds of processor time that its sandboxes used; null if the machine could read none of
    /// them.
    pub cpu_seconds: Option<f64>,
    /// Whether `cpu_seconds` covers all its sandboxes: false if some could not be read.
    pub cpu_complete: bool,
    /// Bytes of the workspaces and archives of its sessions, as last measured.
    pub stored_bytes: u64,
    /// Stored bytes, multiplied by the seconds that they were stored.
    pub stored_byte_seconds: f64,
}

impl Usage {
    /// The totals of a key, and what it stores now.
    pub fn new(total: &UsageRecord, name: Option<String>, stored_bytes: u64) -> Self {
        Self {
            key: total.key,
            name,
            measured_at: (total.measured_at.0 > 0).then(|| total.measured_at.into()),
            sandbox_seconds: total.sandbox_seconds(),
            memory_mb_seconds: total.memory_mb_seconds(),
            cpu_seconds: total.cpu_seconds(),
            cpu_complete: !total.cpu_incomplete,
            stored_bytes,
            stored_byte_seconds: total.stored_byte_seconds(),
        }
    }
}

/// What keys have used.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct UsageList {
    /// By key.
    pub usage: Vec<Usage>,
}

#[cfg(test)]
mod tests {
    use model::Wall;

    use super::*;

    #[test]
    fn usage_is_in_seconds_and_unread_processors_are_null() {
        let mut total = UsageRecord::none(KeyId::from_u128(1));
        let none = serde_json::to_value(Usage::new(&total, None, 0)).unwrap();
        assert_eq!(none["cpu_seconds"], 0.0);
        let unread = UsageRecord { sandbox_ms: 5, ..total };
        let unread = serde_json::to_value(Usage::new(&unread, None, 0)).unwrap();
        assert_eq!(unread["cpu_seconds"], serde_json::Value::Null);
        assert!(none.get("measured_at").is_none());
        total.measured_at = Wall(1_000);
        total.sandbox_ms = 1_500;
        total.memory_mb_ms = 2_500;
        total.cpu_us = Some(250_000);
        total.cpu_incomplete = true;
        total.stored_byte_ms = 4_000;
        let some = serde_json::to_value(Usage::new(&total, Some("ci".into()), 9)).unwrap();
        assert_eq!(some["sandbox_seconds"], 1.5);
        assert_eq!(some["memory_mb_seconds"], 2.5);
        assert_eq!(some["cpu_seconds"], 0.25);
        assert_eq!(some["cpu_complete"], false);
        assert_eq!(some["stored_bytes"], 9);
        assert_eq!(some["stored_byte_seconds"], 4.0);
        assert_eq!(some["measured_at"], "1970-01-01T00:00:01.000Z");
    }
}

//! The keep-alive status of a sandbox: what keeps it from being frozen, and when it will be frozen.

use model::state::Wakefulness;
use serde::{Deserialize, Serialize};

use crate::process::Process;
use crate::time::Time;

/// What keeps a sandbox from being frozen, and when it will be frozen.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct StatusReport {
    /// Whether a process or the scale file keeps it alive.
    pub state: Wakefulness,
    /// When the keep-alive of its processes ends.
    pub scheduled_stop_at: Option<Time>,
    /// The processes that keep it alive.
    pub keep_alive_processes: Vec<Process>,
    /// The counter in the scale file, written by programs inside.
    pub scale: u32,
    /// Whether it is frozen. The next use thaws it.
    pub frozen: bool,
    /// When it will be frozen if it is not used.
    pub freezes_at: Option<Time>,
    /// When it will become cold if it is not used.
    pub sleeps_at: Option<Time>,
    /// The reason, in words.
    pub because: String,
}

/// A request to end the keep-alive of the sandbox's processes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct StopRequest {
    /// After this many seconds; at once if not given or 0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schema(maximum = 31_536_000))]
    pub after_s: Option<u64>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keep_alive_status_shows_absent_values_as_null() {
        let report = StatusReport {
            state: Wakefulness::Auto,
            scheduled_stop_at: None,
            keep_alive_processes: Vec::new(),
            scale: 0,
            frozen: false,
            freezes_at: None,
            sleeps_at: None,
            because: "nothing keeps it alive".to_owned(),
        };
        let value = serde_json::to_value(&report).unwrap();
        assert_eq!(value["state"], "auto");
        for field in ["scheduled_stop_at", "freezes_at", "sleeps_at"] {
            assert!(value.as_object().unwrap().contains_key(field), "{field}: null and not absent");
        }
    }
}

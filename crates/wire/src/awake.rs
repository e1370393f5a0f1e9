//! What keeps a sandbox awake, and when it will rest.

use model::state::Wakefulness;
use serde::{Deserialize, Serialize};

use crate::process::Process;
use crate::time::Time;

/// What keeps a sandbox awake, and when it will rest.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct StatusReport {
    /// Whether anything keeps it awake.
    pub state: Wakefulness,
    /// When its processes will no longer do so.
    pub scheduled_stop_at: Option<Time>,
    /// The processes that do.
    pub keep_alive_processes: Vec<Process>,
    /// What programs inside wrote to the scale file.
    pub scale: u32,
    /// Whether it is frozen: it wakes on the next use.
    pub frozen: bool,
    /// When it will be frozen if nothing happens.
    pub freezes_at: Option<Time>,
    /// When it will become cold if nothing happens.
    pub sleeps_at: Option<Time>,
    /// Why, in words.
    pub because: String,
}

/// Processes are to keep a sandbox awake no longer.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct StopRequest {
    /// In so many seconds; at once if not given or 0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schema(maximum = 31_536_000))]
    pub after_s: Option<u64>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_so_is_said() {
        let report = StatusReport {
            state: Wakefulness::Auto,
            scheduled_stop_at: None,
            keep_alive_processes: Vec::new(),
            scale: 0,
            frozen: false,
            freezes_at: None,
            sleeps_at: None,
            because: "nothing keeps it awake".to_owned(),
        };
        let value = serde_json::to_value(&report).unwrap();
        assert_eq!(value["state"], "auto");
        for field in ["scheduled_stop_at", "freezes_at", "sleeps_at"] {
            assert!(value.as_object().unwrap().contains_key(field), "{field}: null and not absent");
        }
    }
}

//! What all stores agree on about processes: how much one takes, and to which moment its age is
//! counted.

use model::Wall;
use model::process::{ProcessChange, ProcessRecord};

use crate::turns::text_bytes;

/// How much a process takes: its record, and what is kept of its output beside it.
pub(crate) fn process_bytes(record: &ProcessRecord, log_bytes: u64) -> u64 {
    text_bytes(record) + log_bytes
}

/// The latest moment that changes speak of.
pub(crate) fn latest(changes: &[ProcessChange]) -> Wall {
    let at = |change: &ProcessChange| match change {
        ProcessChange::Put { record, .. } => {
            Some(record.end.as_ref().map_or(record.started_at, |end| end.at))
        }
        ProcessChange::Removed { .. } => None,
    };
    changes.iter().filter_map(at).max().unwrap_or_default()
}

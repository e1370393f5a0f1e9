//! What all stores share about processes: the size of one, and the moment against which its age
//! counts.

use model::Wall;
use model::process::{ProcessChange, ProcessRecord};

use crate::turns::text_bytes;

/// The size of a process: its record, and its output beside it.
pub(crate) fn process_bytes(record: &ProcessRecord, log_bytes: u64) -> u64 {
    text_bytes(record) + log_bytes
}

/// The latest moment in the changes.
pub(crate) fn latest(changes: &[ProcessChange]) -> Wall {
    let at = |change: &ProcessChange| match change {
        ProcessChange::Put { record, .. } => {
            Some(record.end.as_ref().map_or(record.started_at, |end| end.at))
        }
        ProcessChange::Removed { .. } => None,
    };
    changes.iter().filter_map(at).max().unwrap_or_default()
}

//! Files that no record names: what the start put aside is logged and counted, and removed after a
//! configured time. Nothing else removes it.

use std::sync::Arc;
use std::time::Duration;

use model::Wall;
use tokio::time::sleep;
use workspaces::LostFound;

use crate::core::Core;
use crate::workspace_disk::StrayReport;

/// How often lost+found is counted and cleaned.
const LOOK: Duration = Duration::from_mins(10);

/// Logs what the start found.
pub(crate) fn log_strays(settled: StrayReport, lost_found: Option<&LostFound>) {
    let StrayReport { kept, removed, left } = settled;
    if kept > 0 {
        let place = lost_found.map(|lost| lost.path().display().to_string()).unwrap_or_default();
        tracing::warn!(
            kept,
            place,
            "workspaces and archives that no record names were moved to lost+found: is this an \
             older copy of the database? `shoal clean --lost-found` removes them"
        );
    }
    if removed > 0 {
        tracing::info!(removed, "workspaces and archives that no record names were removed");
    }
    if left > 0 {
        tracing::warn!(
            left,
            "workspaces and archives that no record names stay in place: lost+found is on \
             another file system"
        );
    }
}

/// Counts what is there, and removes what is too old, for as long as the engine lives.
pub(crate) async fn run(core: Arc<Core>, keep: Option<Duration>) {
    loop {
        if let Some(keep) = keep {
            remove_older(&core, keep).await;
        }
        core.metrics.lost_found_is(core.disk.lost().await);
        sleep(LOOK).await;
    }
}

async fn remove_older(core: &Core, keep: Duration) {
    let keep_ms = u64::try_from(keep.as_millis()).unwrap_or(u64::MAX);
    let before = Wall(core.now().wall.0.saturating_sub(keep_ms));
    match core.disk.remove_lost(before).await {
        Ok(0) => {}
        Ok(removed) => {
            tracing::info!(
                removed,
                "files older than the configured time were removed from lost+found"
            );
        }
        Err(error) => tracing::warn!(%error, "old files in lost+found could not be removed"),
    }
}

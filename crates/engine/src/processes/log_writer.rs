//! Brings logs to the disk, behind what happens: where much waits, and once a second what waits at
//! all, so that a crash of the server takes no more than that. A disk that is full or slow costs a
//! log its middle, never its process.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::{sleep, timeout};

use super::live::Live;
use crate::core::Core;

/// How often everything that waits is brought to the disk.
const PAUSE: Duration = Duration::from_secs(1);
/// How long a program is kept waiting for a disk that does not keep up.
const DISK_PATIENCE: Duration = Duration::from_secs(1);

/// Brings everything to the disk, again and again.
pub(crate) async fn run(core: Arc<Core>) {
    if core.processes.shelf().is_none() {
        return;
    }
    loop {
        sleep(PAUSE).await;
        for live in core.processes.running() {
            save(&core, &live, true);
        }
    }
}

/// Begins to save what waits, if it is enough or `all` is wanted, and if nobody does it already.
pub(super) fn save(core: &Arc<Core>, live: &Arc<Live>, all: bool) {
    if live.log.begin_saving(all) {
        let (core, live) = (Arc::clone(core), Arc::clone(live));
        tasks::spawn_blocking(move || write(&core, &live, all));
    }
}

/// Saves everything, and waits until that is done.
pub(super) async fn save_all(core: &Arc<Core>, live: &Arc<Live>) {
    live.log.settled().await;
    save(core, live, true);
    live.log.settled().await;
}

/// Whatever happens, somebody else may save it afterwards.
struct Saving<'l>(&'l Live);

impl Drop for Saving<'_> {
    fn drop(&mut self) {
        self.0.log.end_saving();
    }
}

fn write(core: &Core, live: &Live, all: bool) {
    let _saving = Saving(live);
    while let Some(unsaved) = live.log.take_unsaved(all) {
        let kept = match core.processes.shelf() {
            // What is written after the end belongs to whoever started next.
            Some(shelf) if !core.is_halted() => live.write_log(shelf, &unsaved),
            Some(_) | None => None,
        };
        let bytes = unsaved.pieces.iter().map(|piece| piece.bytes.len() as u64).sum();
        match kept {
            Some(_) => core.metrics.log_saved(bytes),
            None => core.metrics.log_lost(bytes),
        }
        live.log.saved(&unsaved, kept);
    }
}

/// Waits for the disk where a program writes more than it takes, but not for long.
pub(super) async fn keep_pace(core: &Arc<Core>, live: &Arc<Live>) {
    save(core, live, false);
    if live.log.is_ahead() && timeout(DISK_PATIENCE, live.log.room()).await.is_err() {
        core.metrics.log_lost(live.log.lose());
    }
}

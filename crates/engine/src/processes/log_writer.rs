//! Writes logs to the disk, behind the processes: at once where much waits, and once a second
//! everything, so that a crash of the server loses at most that. A full or slow disk costs a log
//! its middle, never its process.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::{sleep, timeout};

use super::live::Live;
use crate::core::Core;

/// How often everything that waits is written.
const PAUSE: Duration = Duration::from_secs(1);
/// How long a program waits for a disk that does not keep up.
const DISK_PATIENCE: Duration = Duration::from_secs(1);

/// Runs for as long as the engine lives.
pub(crate) async fn run(core: Arc<Core>) {
    if core.processes.log_directory().is_none() {
        return;
    }
    loop {
        sleep(PAUSE).await;
        for live in core.processes.running() {
            save(&core, &live, true);
        }
    }
}

/// Begins to write what waits, if it is enough or `all` is given, and no other task does it
/// already.
pub(super) fn save(core: &Arc<Core>, live: &Arc<Live>, all: bool) {
    if live.log.begin_saving(all) {
        let (core, live) = (Arc::clone(core), Arc::clone(live));
        tasks::spawn_blocking(move || write(&core, &live, all));
    }
}

/// Writes everything, and waits until that is done.
pub(super) async fn save_all(core: &Arc<Core>, live: &Arc<Live>) {
    live.log.settled().await;
    save(core, live, true);
    live.log.settled().await;
}

/// Lets another task write afterwards, whatever happens.
struct Saving<'l>(&'l Live);

impl Drop for Saving<'_> {
    fn drop(&mut self) {
        self.0.log.end_saving();
    }
}

fn write(core: &Core, live: &Live, all: bool) {
    let _saving = Saving(live);
    while let Some(unsaved) = live.log.take_unsaved(all) {
        let kept = match core.processes.log_directory() {
            // After the end of this server, the logs belong to the next one.
            Some(log_directory) if !core.is_halted() => live.write_log(log_directory, &unsaved),
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

/// Waits a moment for the disk where a program writes faster than the disk.
pub(super) async fn keep_pace(core: &Arc<Core>, live: &Arc<Live>) {
    save(core, live, false);
    if live.log.is_ahead() && timeout(DISK_PATIENCE, live.log.room()).await.is_err() {
        core.metrics.log_lost(live.log.lose());
    }
}

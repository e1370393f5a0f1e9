//! Stores the records of processes, behind the processes: many at once, soon after they changed. A
//! process that ends before it was stored is stored once. What is not stored yet is in memory, with
//! its output; no request waits for the store.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use model::process::ProcessChange;
use model::{ProcessRecord, SandboxId};
use store::Batch;
use tokio::sync::Notify;
use tokio::time::{sleep, timeout};

use super::live::Live;
use super::log::frames;
use super::log_writer;
use crate::core::Core;

/// How long to wait for more changes before a commit.
const PAUSE: Duration = Duration::from_millis(50);
/// How many are stored at once: few enough that no decision waits for them long.
const GROUP_MAX: usize = 64;
/// The pause before another try.
const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);
/// How much output is stored with a record, where a disk has more, and where there is none.
const INLINE_BYTES: u64 = 16 * 1024;
const INLINE_BYTES_WITHOUT_DISK: u64 = 64 * 1024;
/// How long the rest of an output may take to reach the disk.
const DISK_PATIENCE: Duration = Duration::from_secs(30);

/// Changes that wait for the store.
#[derive(Default)]
pub(super) struct UnstoredChanges {
    waiting: Mutex<BTreeMap<(SandboxId, u64), Unstored>>,
    /// Something waits.
    more: Notify,
}

/// A change of a process.
enum Unstored {
    /// Its record as it is when it is stored.
    Process(Arc<Live>),
    /// Its removal.
    Removed,
}

impl UnstoredChanges {
    fn waiting(&self) -> MutexGuard<'_, BTreeMap<(SandboxId, u64), Unstored>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A process changed.
    pub(super) fn changed(&self, sandbox: SandboxId, number: u64, live: &Arc<Live>) {
        self.waiting().insert((sandbox, number), Unstored::Process(Arc::clone(live)));
        self.more.notify_one();
    }

    /// A process is removed.
    pub(super) fn removed(&self, sandbox: SandboxId, number: u64) {
        self.waiting().insert((sandbox, number), Unstored::Removed);
        self.more.notify_one();
    }

    pub(super) fn is_empty(&self) -> bool {
        self.waiting().is_empty()
    }

    fn take(&self) -> Vec<((SandboxId, u64), Unstored)> {
        let mut waiting = self.waiting();
        let mut taken = Vec::new();
        while taken.len() < GROUP_MAX
            && let Some(next) = waiting.pop_first()
        {
            taken.push(next);
        }
        taken
    }
}

/// Runs for as long as the engine lives.
pub(crate) async fn run(core: Arc<Core>) {
    loop {
        core.processes.unstored.more.notified().await;
        sleep(PAUSE).await;
        loop {
            let taken = core.processes.unstored.take();
            if taken.is_empty() {
                break;
            }
            store(&core, taken).await;
        }
    }
}

async fn store(core: &Arc<Core>, taken: Vec<((SandboxId, u64), Unstored)>) {
    let mut processes = Vec::with_capacity(taken.len());
    let mut ended = Vec::new();
    let mut removed = Vec::new();
    for ((sandbox, number), unstored) in taken {
        match unstored {
            Unstored::Removed => {
                processes.push(ProcessChange::Removed { sandbox, number });
                removed.push((sandbox, number));
            }
            Unstored::Process(live) => {
                let (record, log, whole) = as_stored(core, &live);
                let record = Arc::new(record);
                if record.end.is_some() && whole {
                    ended.push(Arc::clone(&record));
                }
                processes.push(ProcessChange::Put { record, log });
            }
        }
    }
    let batch = Batch { processes, ..Batch::default() };
    let mut pause = FIRST_PAUSE;
    // It needs no order with decisions, so that no decision waits for it.
    while let Err(error) = core.store.commit(&batch).await {
        tracing::debug!(%error, "the records of some processes cannot be stored now; trying again");
        sleep(pause).await;
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
    for record in ended {
        core.processes.stored(record);
    }
    if let Some(log_directory) =
        core.processes.shared_log_directory().filter(|_| !removed.is_empty())
    {
        let removing = tasks::spawn_blocking(move || {
            for (sandbox, number) in removed {
                log_directory.remove(sandbox, number);
            }
        });
        // A log that could not be removed is found by the next sweep.
        let _ = removing.await;
    }
}

/// The record to store, with its output where that is small, and whether that is final. The rest of
/// a log is written to the disk elsewhere, and then the record is stored once more.
fn as_stored(core: &Arc<Core>, live: &Arc<Live>) -> (ProcessRecord, Option<Arc<[u8]>>, bool) {
    let mut record = live.record();
    let Some(end) = &mut record.end else { return (record, None, false) };
    let has_disk = core.processes.log_directory().is_some();
    let saved_bytes = record.log.end - record.log.first;
    let mut whole = true;
    let log = if has_disk && (live.log.is_on_disk() || saved_bytes > INLINE_BYTES) {
        if live.begins_to_finish() {
            tasks::spawn(finish_log(Arc::clone(core), Arc::clone(live)));
        }
        whole = live.log.is_saved();
        None
    } else {
        let most = if has_disk { INLINE_BYTES } else { INLINE_BYTES_WITHOUT_DISK };
        let last = live.log.last_pieces(most);
        record.log.first = last.pieces.first().map_or(record.log.end, |piece| piece.offset);
        let mut bytes = Vec::new();
        frames::encode(&last.pieces, last.stdout_bytes, &mut bytes);
        (!bytes.is_empty()).then(|| bytes.into())
    };
    let lost = live.log.lost_bytes();
    if lost > 0 && end.detail.is_none() {
        end.detail = Some(format!("{lost} bytes of the output could not be stored").into());
    }
    (record, log, whole)
}

/// Writes the rest of a log to the disk, and has its record stored again. What the disk does not
/// take in time is lost.
async fn finish_log(core: Arc<Core>, live: Arc<Live>) {
    while timeout(DISK_PATIENCE, log_writer::save_all(&core, &live)).await.is_err() {
        core.metrics.log_lost(live.log.lose());
        if live.log.is_saved() || core.is_halted() {
            break;
        }
    }
    let record = live.record();
    if let Some(log_directory) = core.processes.shared_log_directory() {
        let ended = record.clone();
        let counted = tasks::spawn_blocking(move || log_directory.ended(&ended));
        // If that fails, it stays until the next start.
        let _ = counted.await;
    }
    core.processes.changed(&record, &live);
}

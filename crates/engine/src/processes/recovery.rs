//! Ends the processes that ran when an earlier run of the server ended, with the reason; of their
//! output stays what was on the disk. Also removes tables of ended sandboxes, and logs of processes
//! without a record.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::Arc;
use std::time::Duration;

use kernel::describe_sandbox_end;
use model::process::ProcessChange;
use model::{ProcessEnd, ProcessEndReason, ProcessRecord, ProcessStatus, Wall};
use store::{Batch, ProcessesQuery, Store, StoreError};
use tokio::time::sleep;

use super::log::files::LogDirectory;
use crate::core::Core;

/// How many ends are stored at once.
const GROUP: u32 = 256;
/// How often tables are swept, and after how many sweeps logs are.
const PAUSE: Duration = Duration::from_secs(30);
const LOGS_EVERY: u32 = 20;
/// The pause before another try to store ends.
const STORE_PAUSE: Duration = Duration::from_secs(1);

const SERVER_ENDED: &str = "the server stopped, and its sandboxes with it";

/// What happened to processes that an earlier run left running.
#[derive(Debug, Default)]
pub(crate) struct LeftOver {
    /// How many were ended.
    pub(crate) ended: usize,
    /// Those whose ends could not be stored.
    pub(crate) unstored: Vec<Arc<ProcessRecord>>,
    /// Why not.
    pub(crate) why: Option<StoreError>,
}

/// Ends the processes that an earlier run left running. Returns the ends that cannot be stored now.
pub(crate) async fn end_left_over(
    store: &dyn Store,
    log_directory: Option<&Arc<LogDirectory>>,
    now: Wall,
) -> Result<LeftOver, StoreError> {
    let mut done = LeftOver::default();
    let mut causes = BTreeMap::new();
    loop {
        // If nothing can be stored, all are read at once: the same ones would come again.
        let limit = if done.why.is_some() { u32::MAX } else { GROUP };
        let left = store.unfinished_processes(limit).await?;
        if left.is_empty() {
            return Ok(done);
        }
        let mut records = Vec::with_capacity(left.len());
        for record in left {
            if let Entry::Vacant(unknown) = causes.entry(record.sandbox) {
                let ended = store.ended(record.sandbox).await?;
                unknown.insert(ended.map(|ended| describe_sandbox_end(ended.cause, None)));
            }
            let cause = causes.get(&record.sandbox).cloned().flatten();
            records.push(Arc::new(end(log_directory, now, record, cause).await));
        }
        if done.why.is_some() {
            done.unstored = records;
            return Ok(done);
        }
        match store.commit(&batch(&records)).await {
            Ok(()) => done.ended += records.len(),
            Err(error) if error.retryable() => done.why = Some(error),
            Err(error) => return Err(error),
        }
    }
}

/// Stores ends that could not be stored at the start, once that is possible.
pub(crate) async fn store_left_over(core: Arc<Core>, unstored: Vec<Arc<ProcessRecord>>) {
    for group in unstored.chunks(GROUP as usize) {
        while core.store.commit(&batch(group)).await.is_err() {
            sleep(STORE_PAUSE).await;
        }
    }
    tracing::info!(processes = unstored.len(), "processes of the run before were marked as ended");
}

fn batch(records: &[Arc<ProcessRecord>]) -> Batch {
    let put =
        |record: &Arc<ProcessRecord>| ProcessChange::Put { record: Arc::clone(record), log: None };
    Batch { processes: records.iter().map(put).collect(), ..Batch::default() }
}

/// The end of a process that ended with the server.
pub(super) fn ended_with_server(at: Wall) -> ProcessEnd {
    ProcessEnd {
        at,
        status: ProcessStatus::Killed,
        exit_code: None,
        signal: None,
        reason: ProcessEndReason::ServerEnded,
        detail: Some(SERVER_ENDED.into()),
    }
}

async fn end(
    log_directory: Option<&Arc<LogDirectory>>,
    at: Wall,
    record: ProcessRecord,
    cause: Option<String>,
) -> ProcessRecord {
    let mut end = ended_with_server(at);
    if let Some(cause) = cause {
        (end.reason, end.detail) = (ProcessEndReason::SandboxEnded, Some(cause.into()));
    }
    let mut record = ProcessRecord { end: Some(end), keep_alive: false, ..record };
    if let Some(log_directory) = log_directory {
        let (log_directory, sandbox, number) =
            (Arc::clone(log_directory), record.sandbox, record.number);
        let found = tasks::spawn_blocking(move || log_directory.extent(sandbox, number)).await;
        if let Ok(Some(extent)) = found {
            record.log = extent;
        }
    }
    record
}

/// Sweeps for as long as the engine lives. Logs are removed only if this store is authoritative.
pub(crate) async fn sweep(core: Arc<Core>, remove_logs: bool) {
    for round in 0_u32.. {
        if remove_logs && round.is_multiple_of(LOGS_EVERY) {
            remove_strays(&core).await;
        }
        sleep(PAUSE).await;
        core.processes.forget_gone(|sandbox| {
            core.read(|kernel| kernel.sandbox(sandbox)).and_then(|view| view.instance)
        });
    }
}

async fn remove_strays(core: &Arc<Core>) {
    let Some(log_directory) = core.processes.shared_log_directory() else { return };
    let places = {
        let log_directory = Arc::clone(&log_directory);
        tasks::spawn_blocking(move || log_directory.places().unwrap_or_default()).await
    };
    for (sandbox, number) in places.unwrap_or_default() {
        if core.processes.knows(sandbox, number) {
            continue;
        }
        let query = ProcessesQuery { sandbox, before: Some(number.saturating_add(1)), limit: 1 };
        let Ok(found) = core.store.processes(&query).await else { return };
        // It may have been started and stored since the look in memory.
        if found.iter().any(|record| record.number == number)
            || core.processes.knows(sandbox, number)
        {
            continue;
        }
        let log_directory = Arc::clone(&log_directory);
        let removed = tasks::spawn_blocking(move || log_directory.remove(sandbox, number)).await;
        if removed.is_err() {
            return;
        }
    }
}

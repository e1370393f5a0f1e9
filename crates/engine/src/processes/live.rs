//! A process that runs, or is about to be started again: what is known of it, what was asked of it,
//! and the ways in. It ends once, and whoever waits is told then.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use kernel::EndAsked;
use model::{ErrorCode, InstanceId, KeyId, ProcessEnd, ProcessId, ProcessRecord, Refusal};
use runtime::{ByteWriter, Process, ProcessHandle};
use tokio::io::AsyncWriteExt as _;
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore, watch};
use tokio::time::timeout;

use super::log::files::{LogWriter, Shelf};
use super::log::{Log, Unsaved};
use super::table::Processes;
use super::{SIGINT, SIGTERM};
use crate::core::Core;

/// What may be written for those who left: what is larger is written while they wait.
const LEFT_BYTES_MAX: usize = 256 * 1024;
/// How long somebody waits for a program to read its input.
const INPUT_PATIENCE: Duration = Duration::from_secs(30);

/// A process that is not over.
pub(crate) struct Live {
    pub(super) id: ProcessId,
    /// The key that it belongs to.
    pub(super) tenant: KeyId,
    pub(super) instance: InstanceId,
    pub(super) log: Log,
    /// Where its log goes on the disk.
    writer: Mutex<Option<LogWriter>>,
    state: Mutex<State>,
    /// What is asked of it changed.
    pub(super) asked_more: Notify,
    /// Which program of it runs; the last is followed by `u32::MAX`.
    run: watch::Sender<u32>,
    stdin: tokio::sync::Mutex<Option<ByteWriter>>,
    /// What may be written for those who left, of this process and of all.
    left: [Arc<Semaphore>; 2],
    /// Held for input that was given at the start.
    _given: Option<OwnedSemaphorePermit>,
    /// Somebody sees to it that it stops.
    stopping: AtomicBool,
    /// Somebody brings the rest of its log to the disk.
    finishing: AtomicBool,
}

struct State {
    record: ProcessRecord,
    asked: EndAsked,
    /// The program that runs.
    handle: Option<ProcessHandle>,
}

impl Live {
    pub(super) fn new(
        record: ProcessRecord,
        instance: InstanceId,
        processes: &Processes,
        process: &mut Process,
        given: Option<OwnedSemaphorePermit>,
    ) -> Arc<Self> {
        let (handle, stdin) = (process.handle(), process.stdin.take());
        let shelf = processes.shelf();
        let writer = shelf.map(|shelf| shelf.writer(&record));
        Arc::new(Self {
            id: record.id,
            tenant: record.tenant,
            instance,
            log: Log::new(shelf.is_some(), processes.unsaved_bytes()),
            writer: Mutex::new(writer),
            state: Mutex::new(State { record, asked: EndAsked::Nothing, handle: Some(handle) }),
            asked_more: Notify::new(),
            run: watch::Sender::new(0),
            stdin: tokio::sync::Mutex::new(stdin),
            left: [Arc::new(Semaphore::new(LEFT_BYTES_MAX)), processes.input()],
            _given: given,
            stopping: AtomicBool::new(false),
            finishing: AtomicBool::new(false),
        })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// As it is now.
    pub(super) fn record(&self) -> ProcessRecord {
        let record = self.state().record.clone();
        ProcessRecord { log: self.log.extent(), ..record }
    }

    /// Writes part of its log to the disk: the first byte that is kept there then, unless it could
    /// not be written. Blocks.
    pub(super) fn write_log(&self, shelf: &Shelf, unsaved: &Unsaved) -> Option<u64> {
        let mut writer = self.writer.lock().unwrap_or_else(PoisonError::into_inner);
        let writer = writer.as_mut()?;
        let failed_before = writer.has_failed();
        match writer.append(shelf, unsaved) {
            Ok(first) => Some(first),
            Err(error) => {
                if !failed_before {
                    tracing::warn!(process = %self.id, %error, "output of a process cannot be kept");
                }
                None
            }
        }
    }

    /// Whether it keeps its sandbox awake.
    pub(super) fn holds(&self, core: &Core) -> bool {
        core.read(|kernel| kernel.process_holds(self.instance, self.id))
    }

    /// Changes what is known of it.
    pub(super) fn change(&self, change: impl FnOnce(&mut ProcessRecord)) {
        change(&mut self.state().record);
    }

    /// A program of it runs.
    pub(super) fn runs(&self, handle: ProcessHandle) {
        self.state().handle = Some(handle);
    }

    /// Its program is over. Gives back what was asked of the process before.
    pub(super) fn program_ended(&self) -> EndAsked {
        let asked = {
            let mut state = self.state();
            state.handle = None;
            state.asked
        };
        self.run.send_modify(|run| *run = run.saturating_add(1));
        asked
    }

    /// Whether its end was asked for.
    pub(super) fn is_to_end(&self) -> bool {
        match self.asked() {
            EndAsked::Nothing | EndAsked::Signal(_) => false,
            EndAsked::Stop | EndAsked::StopForced | EndAsked::Kill | EndAsked::Timeout => true,
        }
    }

    /// True for the first one who sees to it that it stops.
    pub(super) fn begins_to_stop(&self) -> bool {
        !self.stopping.swap(true, Ordering::Relaxed)
    }

    /// True for the first one who brings the rest of its log to the disk.
    pub(super) fn begins_to_finish(&self) -> bool {
        !self.finishing.swap(true, Ordering::Relaxed)
    }

    /// What was asked of it.
    pub(super) fn asked(&self) -> EndAsked {
        self.state().asked
    }

    /// Something that may end it is asked. Gives back the program to tell; none if it is between two.
    /// That it is over already is refused.
    pub(super) fn ask(&self, more: EndAsked) -> Result<Option<ProcessHandle>, Refusal> {
        let mut state = self.state();
        if state.record.end.is_some() {
            return Err(over());
        }
        if state.handle.is_none() && matches!(more, EndAsked::Signal(_)) {
            let cause = "it is about to be started again, and nothing runs that could be told";
            return Err(Refusal::new(ErrorCode::SandboxBusy, cause).retry_after(1_000));
        }
        state.asked = match (state.asked, more) {
            (EndAsked::Stop, EndAsked::Nothing | EndAsked::Signal(_)) => EndAsked::Stop,
            // A signal that ends what hears it is remembered.
            (asked @ EndAsked::Signal(SIGINT | SIGTERM), EndAsked::Signal(_)) => asked,
            (EndAsked::Nothing | EndAsked::Signal(_) | EndAsked::Stop, more) => more,
            (last @ (EndAsked::StopForced | EndAsked::Kill | EndAsked::Timeout), _) => last,
        };
        let handle = state.handle.clone();
        drop(state);
        self.asked_more.notify_one();
        Ok(handle)
    }

    /// What was asked of the program before is not asked of the next one.
    pub(super) fn begins_anew(&self) {
        let mut state = self.state();
        if let EndAsked::Signal(_) = state.asked {
            state.asked = EndAsked::Nothing;
        }
    }

    /// The program that runs, if one does.
    pub(super) fn handle(&self) -> Result<Option<ProcessHandle>, Refusal> {
        let state = self.state();
        if state.record.end.is_some() {
            return Err(over());
        }
        Ok(state.handle.clone())
    }

    /// It is over for good. Gives back how it is remembered; nothing if it was over before.
    pub(super) fn finish(&self, end: ProcessEnd, keep_alive: bool) -> Option<ProcessRecord> {
        let record = {
            let mut state = self.state();
            if state.record.end.is_some() {
                return None;
            }
            state.handle = None;
            state.record.end = Some(end);
            state.record.keep_alive = keep_alive;
            state.record.log = self.log.extent();
            state.record.clone()
        };
        Some(record)
    }

    /// Whoever waits for its end, or for the end of its log, is told.
    pub(super) fn tell_over(&self) {
        self.log.close();
        self.run.send_replace(u32::MAX);
    }

    /// Waits until it is over for good.
    pub(super) async fn over(&self) {
        // The sender lives as long as this.
        let _ = self.run.subscribe().wait_for(|run| *run == u32::MAX).await;
    }

    /// The input of a program that was started again, or is over.
    pub(super) async fn give_input(&self, stdin: Option<ByteWriter>) {
        *self.stdin.lock().await = stdin;
    }

    /// Writes to its input: all of it, and what is not large also if whoever asked goes away
    /// meanwhile.
    pub(super) async fn write(self: &Arc<Self>, bytes: Bytes) -> Result<(), Refusal> {
        let held = self.may_be_left(bytes.len());
        let live = Arc::clone(self);
        let write = async move {
            let written = live.write_whole(&bytes).await;
            drop(held.1);
            written
        };
        let waited = if held.0 {
            let write = tasks::spawn(write);
            timeout(INPUT_PATIENCE, async { write.await.unwrap_or_else(|_| Err(closed())) }).await
        } else {
            timeout(INPUT_PATIENCE, write).await
        };
        waited.unwrap_or_else(|_| {
            let cause = "the program does not read its input";
            Err(Refusal::new(ErrorCode::DeadlineExceeded, cause))
        })
    }

    /// Whether so much may be written for somebody who left, and what is held for that.
    fn may_be_left(&self, bytes: usize) -> (bool, Vec<OwnedSemaphorePermit>) {
        let Ok(bytes) = u32::try_from(bytes) else { return (false, Vec::new()) };
        let take = |from: &Arc<Semaphore>| Arc::clone(from).try_acquire_many_owned(bytes).ok();
        let held: Vec<_> = self.left.iter().filter_map(take).collect();
        (held.len() == self.left.len(), held)
    }

    async fn write_whole(&self, bytes: &[u8]) -> Result<(), Refusal> {
        let mut run = self.run.subscribe();
        let mut stdin = self.stdin.lock().await;
        run.mark_unchanged();
        if *run.borrow() == u32::MAX {
            return Err(over());
        }
        let Some(writer) = &mut *stdin else { return Err(closed()) };
        let written = tokio::select! {
            written = async { writer.write_all(bytes).await?; writer.flush().await } => written,
            _ = run.changed() => return Err(over()),
        };
        if written.is_err() {
            *stdin = None;
            return Err(closed());
        }
        Ok(())
    }

    /// Ends its input, after all that was written to it before.
    pub(super) async fn close_input(&self) -> Result<(), Refusal> {
        let closing = async {
            if let Some(mut writer) = self.stdin.lock().await.take() {
                // Whoever does not read it any more needs no end of it.
                let _ = writer.shutdown().await;
            }
        };
        timeout(INPUT_PATIENCE, closing).await.map_err(|_| {
            let cause = "the program does not read its input";
            Refusal::new(ErrorCode::DeadlineExceeded, cause)
        })?;
        self.change(|record| record.stdin = false);
        Ok(())
    }
}

pub(super) fn over() -> Refusal {
    Refusal::new(ErrorCode::ProcessOver, "the process is over")
}

fn closed() -> Refusal {
    Refusal::new(ErrorCode::StdinClosed, "the input of the process is closed, or it has none")
}

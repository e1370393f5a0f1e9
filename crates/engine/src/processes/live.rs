//! A process that runs, or is about to be restarted: its record, its running program, what the
//! kernel decided about it, and its input. It decides nothing. It ends once, and then wakes all
//! that wait for its end.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use model::{ErrorCode, InstanceId, KeyId, ProcessEnd, ProcessId, ProcessRecord, Refusal, Wall};
use runtime::{ByteWriter, ExecSpec, Process, ProcessHandle};
use tokio::io::AsyncWriteExt as _;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::time::timeout;

use super::log::files::{LogDirectory, LogWriter};
use super::log::{Log, Unsaved};
use super::table::Processes;
use crate::core::Core;

/// Input that is written also if its client goes away; larger input is not.
const LEFT_BYTES_MAX: usize = 256 * 1024;
/// How long a caller waits for a program to read its input.
const INPUT_PATIENCE: Duration = Duration::from_secs(30);

/// A process that has not ended.
pub(crate) struct Live {
    pub(super) id: ProcessId,
    /// The key that it belongs to.
    pub(super) tenant: KeyId,
    pub(super) instance: InstanceId,
    pub(super) log: Log,
    /// Writes its log to the disk.
    writer: Mutex<Option<LogWriter>>,
    state: Mutex<State>,
    /// What is run when its program is restarted.
    again: Option<ExecSpec>,
    /// Grows with every change that its task waits for.
    news: watch::Sender<u64>,
    /// Which program of it runs; the last is followed by `u32::MAX`.
    run: watch::Sender<u32>,
    stdin: tokio::sync::Mutex<Option<ByteWriter>>,
    /// The room for input whose clients went away, of this process and of all.
    left: [Arc<Semaphore>; 2],
    /// Held for input that was given at the start.
    _given: Option<OwnedSemaphorePermit>,
    /// A caller is stopping it.
    stopping: AtomicBool,
    /// A task is bringing the rest of its log to the disk.
    finishing: AtomicBool,
}

struct State {
    record: ProcessRecord,
    /// The running program.
    handle: Option<ProcessHandle>,
    /// A restarted program that the task of the process has not taken yet.
    next: Option<Process>,
    /// The kernel decided that it has ended.
    end: Option<DecidedEnd>,
}

/// How a process ended, as the kernel decided.
#[derive(Debug, Clone)]
pub(super) struct DecidedEnd {
    pub(super) end: ProcessEnd,
    /// Whether it kept its sandbox awake until it ended by itself.
    pub(super) keeps_alive: bool,
}

/// What follows when a program of a process has exited.
pub(super) enum Next {
    /// It was restarted.
    Program(Process),
    /// The process has ended.
    Ended(DecidedEnd),
}

impl Live {
    pub(super) fn new(
        record: ProcessRecord,
        instance: InstanceId,
        processes: &Processes,
        process: &mut Process,
        again: Option<ExecSpec>,
        given: Option<OwnedSemaphorePermit>,
    ) -> Arc<Self> {
        let (handle, stdin) = (process.handle(), process.stdin.take());
        let log_directory = processes.log_directory();
        let writer = log_directory.map(|log_directory| log_directory.writer(&record));
        Arc::new(Self {
            id: record.id,
            tenant: record.tenant,
            instance,
            log: Log::new(log_directory.is_some(), processes.unsaved_bytes()),
            writer: Mutex::new(writer),
            state: Mutex::new(State { record, handle: Some(handle), next: None, end: None }),
            again,
            news: watch::Sender::new(0),
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

    /// Its record now.
    pub(super) fn record(&self) -> ProcessRecord {
        let record = self.state().record.clone();
        ProcessRecord { log: self.log.extent(), ..record }
    }

    /// Writes part of its log to the disk. Returns the first byte that is kept there, or none if
    /// the write failed. Blocks.
    pub(super) fn write_log(&self, log_directory: &LogDirectory, unsaved: &Unsaved) -> Option<u64> {
        let mut writer = self.writer.lock().unwrap_or_else(PoisonError::into_inner);
        let writer = writer.as_mut()?;
        let failed_before = writer.has_failed();
        match writer.append(log_directory, unsaved) {
            Ok(first) => Some(first),
            Err(error) => {
                if !failed_before {
                    tracing::warn!(
                        process = %self.id,
                        instance = %self.instance,
                        %error,
                        "the output of a process could not be written to the disk"
                    );
                }
                None
            }
        }
    }

    /// Whether it keeps its sandbox awake.
    pub(super) fn holds(&self, core: &Core) -> bool {
        core.read(|kernel| kernel.process_keeps_alive(self.instance, self.id))
    }

    /// Changes its record.
    pub(super) fn change(&self, change: impl FnOnce(&mut ProcessRecord)) {
        change(&mut self.state().record);
    }

    /// What is run when its program is restarted.
    pub(super) fn again(&self) -> Option<ExecSpec> {
        self.again.clone()
    }

    /// Its program was restarted. If the process has ended by now, the program is killed at once.
    pub(super) fn hand(&self, program: Process, attempt: u32, now: Wall) {
        let refused = {
            let mut state = self.state();
            if state.end.is_some() {
                Some(program)
            } else {
                state.record.restarts = attempt;
                state.record.started_at = now;
                state.handle = Some(program.handle());
                state.next.replace(program)
            }
        };
        drop(refused);
        self.notify_task();
    }

    /// The kernel decided that it has ended. Its task ends what still runs of it.
    pub(super) fn set_decided_end(&self, end: DecidedEnd) {
        let untaken = {
            let mut state = self.state();
            state.end.get_or_insert(end);
            state.next.take()
        };
        drop(untaken);
        self.notify_task();
    }

    fn notify_task(&self) {
        self.news.send_modify(|news| *news = news.wrapping_add(1));
    }

    /// Waits until `look` finds something. Dropping the future loses nothing.
    async fn until<T>(&self, mut look: impl FnMut(&mut State) -> Option<T>) -> T {
        let mut news = self.news.subscribe();
        loop {
            if let Some(found) = look(&mut self.state()) {
                return found;
            }
            // The sender lives as long as this.
            let _ = news.changed().await;
        }
    }

    /// Waits until the kernel has decided that it has ended.
    pub(super) async fn decided_end(&self) -> DecidedEnd {
        self.until(|state| state.end.clone()).await
    }

    /// Waits for what follows when its program has exited.
    pub(super) async fn next(&self) -> Next {
        self.until(|state| match (&state.end, state.next.take()) {
            (Some(end), _) => Some(Next::Ended(end.clone())),
            (None, Some(program)) => Some(Next::Program(program)),
            (None, None) => None,
        })
        .await
    }

    /// Its program has exited.
    pub(super) fn program_ended(&self) {
        self.state().handle = None;
        self.run.send_modify(|run| *run = run.saturating_add(1));
    }

    /// True for the first caller that stops it.
    pub(super) fn begins_to_stop(&self) -> bool {
        !self.stopping.swap(true, Ordering::Relaxed)
    }

    /// True for the first task that brings the rest of its log to the disk.
    pub(super) fn begins_to_finish(&self) -> bool {
        !self.finishing.swap(true, Ordering::Relaxed)
    }

    /// The running program, if there is one.
    pub(super) fn handle(&self) -> Result<Option<ProcessHandle>, Refusal> {
        let state = self.state();
        if state.record.end.is_some() {
            return Err(ended_refusal());
        }
        Ok(state.handle.clone())
    }

    /// It has ended for good. Returns its last record; none if it had ended before.
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

    /// Wakes all that wait for its end, or for the end of its log.
    pub(super) fn wake_waiters(&self) {
        self.log.close();
        self.run.send_replace(u32::MAX);
    }

    /// Waits until it has ended for good.
    pub(super) async fn ended(&self) {
        // The sender lives as long as this.
        let _ = self.run.subscribe().wait_for(|run| *run == u32::MAX).await;
    }

    /// The input of a restarted program; none after the end.
    pub(super) async fn give_input(&self, stdin: Option<ByteWriter>) {
        *self.stdin.lock().await = stdin;
    }

    /// Writes all bytes to its input; if they are few, also when the caller goes away meanwhile.
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

    /// Whether so much may be written for a caller that went away, and the room that is held for
    /// it.
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
            return Err(ended_refusal());
        }
        let Some(writer) = &mut *stdin else { return Err(closed()) };
        let written = tokio::select! {
            written = async { writer.write_all(bytes).await?; writer.flush().await } => written,
            _ = run.changed() => return Err(ended_refusal()),
        };
        if written.is_err() {
            *stdin = None;
            return Err(closed());
        }
        Ok(())
    }

    /// Ends its input, after all earlier writes.
    pub(super) async fn close_input(&self) -> Result<(), Refusal> {
        let closing = async {
            if let Some(mut writer) = self.stdin.lock().await.take() {
                // A program that no longer reads its input needs no end of it.
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

pub(super) fn ended_refusal() -> Refusal {
    Refusal::new(ErrorCode::ProcessOver, "the process has ended")
}

fn closed() -> Refusal {
    Refusal::new(ErrorCode::StdinClosed, "the process has no input, or it is closed")
}

//! A process that runs, or is about to be started again: what is known of it, the program that runs,
//! what the kernel decided about it, and the ways in. It decides nothing. It ends once, and those who
//! wait hear of it then.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use model::{ErrorCode, InstanceId, KeyId, ProcessEnd, ProcessId, ProcessRecord, Refusal, Wall};
use runtime::{ByteWriter, ExecSpec, Process, ProcessHandle};
use tokio::io::AsyncWriteExt as _;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::time::timeout;

use super::log::files::{LogWriter, Shelf};
use super::log::{Log, Unsaved};
use super::table::Processes;
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
    /// What is started when its program is to be started again.
    again: Option<ExecSpec>,
    /// Grows when there is something new for those who look after it.
    news: watch::Sender<u64>,
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
    /// The program that runs.
    handle: Option<ProcessHandle>,
    /// A program that was started again and that the task of the process has not taken yet.
    next: Option<Process>,
    /// The kernel decided that it is over.
    over: Option<Over>,
}

/// How a process is over, as the kernel decided.
#[derive(Debug, Clone)]
pub(super) struct Over {
    pub(super) end: ProcessEnd,
    /// Whether it kept its sandbox awake until it ended by itself.
    pub(super) keeps_alive: bool,
}

/// What follows when a program of a process has ended.
pub(super) enum Next {
    /// It was started again.
    Program(Process),
    /// The process is over.
    Over(Over),
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
        let shelf = processes.shelf();
        let writer = shelf.map(|shelf| shelf.writer(&record));
        Arc::new(Self {
            id: record.id,
            tenant: record.tenant,
            instance,
            log: Log::new(shelf.is_some(), processes.unsaved_bytes()),
            writer: Mutex::new(writer),
            state: Mutex::new(State { record, handle: Some(handle), next: None, over: None }),
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

    /// What is started when its program is to be started again.
    pub(super) fn again(&self) -> Option<ExecSpec> {
        self.again.clone()
    }

    /// Its program was started again. One whose process is over by now is ended at once.
    pub(super) fn hand(&self, program: Process, attempt: u32, now: Wall) {
        let refused = {
            let mut state = self.state();
            if state.over.is_some() {
                Some(program)
            } else {
                state.record.restarts = attempt;
                state.record.started_at = now;
                state.handle = Some(program.handle());
                state.next.replace(program)
            }
        };
        drop(refused);
        self.tell_news();
    }

    /// The kernel decided that it is over. What still runs of it is ended by its task.
    pub(super) fn is_over(&self, over: Over) {
        let untaken = {
            let mut state = self.state();
            state.over.get_or_insert(over);
            state.next.take()
        };
        drop(untaken);
        self.tell_news();
    }

    fn tell_news(&self) {
        self.news.send_modify(|news| *news = news.wrapping_add(1));
    }

    /// Waits until there is what is looked for. Dropping the future loses nothing.
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

    /// Waits until the kernel has decided that it is over.
    pub(super) async fn decided_over(&self) -> Over {
        self.until(|state| state.over.clone()).await
    }

    /// Waits for what follows when its program has ended.
    pub(super) async fn next(&self) -> Next {
        self.until(|state| match (&state.over, state.next.take()) {
            (Some(over), _) => Some(Next::Over(over.clone())),
            (None, Some(program)) => Some(Next::Program(program)),
            (None, None) => None,
        })
        .await
    }

    /// Its program is over.
    pub(super) fn program_ended(&self) {
        self.state().handle = None;
        self.run.send_modify(|run| *run = run.saturating_add(1));
    }

    /// True for the first one who sees to it that it stops.
    pub(super) fn begins_to_stop(&self) -> bool {
        !self.stopping.swap(true, Ordering::Relaxed)
    }

    /// True for the first one who brings the rest of its log to the disk.
    pub(super) fn begins_to_finish(&self) -> bool {
        !self.finishing.swap(true, Ordering::Relaxed)
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

//! A process that runs, or is about to be started again: what is known of it, what was asked of it,
//! and the ways in. It ends once, and whoever waits is told then.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use kernel::EndAsked;
use model::{ErrorCode, InstanceId, ProcessEnd, ProcessId, ProcessRecord, Refusal};
use runtime::{ByteWriter, ProcessHandle};
use tokio::io::AsyncWriteExt as _;
use tokio::sync::{Notify, Semaphore, watch};
use tokio::time::timeout;

use super::log::files::{LogWriter, Shelf};
use super::log::{Log, Unsaved};
use crate::core::Core;

/// How many writes may wait for a program that does not read its input.
const WRITES_MAX: usize = 16;
/// How long somebody waits for a program to read its input.
const INPUT_PATIENCE: Duration = Duration::from_secs(30);

/// A process that is not over.
pub(crate) struct Live {
    pub(super) id: ProcessId,
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
    writes: Semaphore,
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
        shelf: Option<&Shelf>,
    ) -> Arc<Self> {
        let writer = shelf.map(|shelf| shelf.writer(record.sandbox, record.number));
        Arc::new(Self {
            id: record.id,
            instance,
            log: Log::new(shelf.is_some()),
            writer: Mutex::new(writer),
            state: Mutex::new(State { record, asked: EndAsked::Nothing, handle: None }),
            asked_more: Notify::new(),
            run: watch::Sender::new(0),
            stdin: tokio::sync::Mutex::default(),
            writes: Semaphore::new(WRITES_MAX),
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
        match writer.as_mut()?.append(shelf, unsaved) {
            Ok(first) => Some(first),
            Err(error) => {
                tracing::warn!(process = %self.id, %error, "output of a process cannot be kept");
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

    /// A program of it runs. Gives back what was asked of the process meanwhile.
    pub(super) fn runs(&self, handle: ProcessHandle) -> EndAsked {
        let mut state = self.state();
        state.handle = Some(handle);
        state.asked
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
        state.asked = match (state.asked, more) {
            (EndAsked::Stop, EndAsked::Nothing | EndAsked::Signal(_)) => EndAsked::Stop,
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
        // Whoever has read all of it finds it over.
        self.log.close();
        Some(record)
    }

    /// Whoever waits for its end is told.
    pub(super) fn tell_over(&self) {
        self.run.send_replace(u32::MAX);
    }

    /// Waits until it is over for good.
    pub(super) async fn over(&self) {
        // The sender lives as long as this.
        let _ = self.run.subscribe().wait_for(|run| *run == u32::MAX).await;
    }

    /// The input of a program that was just started.
    pub(super) async fn give_input(&self, stdin: Option<ByteWriter>) {
        *self.stdin.lock().await = stdin;
    }

    /// Writes to its input: all of it, also if whoever asked goes away meanwhile.
    pub(super) async fn write(self: &Arc<Self>, bytes: Bytes) -> Result<(), Refusal> {
        let live = Arc::clone(self);
        let waited = timeout(INPUT_PATIENCE, async move {
            let Ok(permit) = self.writes.acquire().await else { return Err(closed()) };
            permit.forget();
            let write = tokio::spawn(async move {
                let written = live.write_whole(&bytes).await;
                live.writes.add_permits(1);
                written
            });
            write.await.unwrap_or_else(|_| Err(closed()))
        });
        waited.await.unwrap_or_else(|_| {
            let cause = "the program does not read its input; the rest is written when it does";
            Err(Refusal::new(ErrorCode::DeadlineExceeded, cause))
        })
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

//! A program of the fake runtime: a task, perhaps with more in the background, that can be waited
//! for and killed. What is killed is gone for good once its tasks are dropped; that is counted.

use std::io;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use async_trait::async_trait;
use guest_protocol::message::{ExitStatus, TerminalSize};
use tokio::io::{AsyncRead, DuplexStream, ReadBuf};
use tokio::task::AbortHandle;

use crate::error::{RuntimeError, RuntimeErrorCode};
use crate::exec::{Exit, ProcessControl};

/// Counts something while it exists.
#[derive(Debug)]
pub(crate) struct Counted(Vec<Arc<AtomicUsize>>);

impl Counted {
    pub(crate) fn in_each(counters: &[&Arc<AtomicUsize>]) -> Self {
        for counter in counters {
            counter.fetch_add(1, Ordering::SeqCst);
        }
        Self(counters.iter().map(|counter| Arc::clone(counter)).collect())
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        for counter in &self.0 {
            counter.fetch_sub(1, Ordering::SeqCst);
        }
    }
}

/// A program.
pub(crate) struct FakeProcess {
    pub pid: u32,
    /// Tasks of it that exist.
    tasks: Arc<AtomicUsize>,
    /// Tasks of all programs that exist.
    all_tasks: Arc<AtomicUsize>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    exit: Option<Result<Exit, RuntimeError>>,
    waiting: Vec<Waker>,
    first: Option<AbortHandle>,
    background: Vec<AbortHandle>,
    terminal: Option<TerminalSize>,
}

/// The exit of a program, without resource usage.
pub(crate) fn exit(status: ExitStatus) -> Exit {
    Exit { status, out_of_memory: false, user_us: 0, system_us: 0, max_rss_kb: 0 }
}

impl FakeProcess {
    pub(crate) fn new(
        pid: u32,
        all_tasks: &Arc<AtomicUsize>,
        terminal: Option<TerminalSize>,
    ) -> Self {
        Self {
            pid,
            tasks: Arc::default(),
            all_tasks: Arc::clone(all_tasks),
            state: Mutex::new(State { terminal, ..State::default() }),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs the program's own task. Its end is the end of the program.
    pub(crate) fn start(
        self: &Arc<Self>,
        program: impl Future<Output = ExitStatus> + Send + 'static,
    ) {
        let counted = Counted::in_each(&[&self.tasks, &self.all_tasks]);
        let process = Arc::clone(self);
        let task = tokio::spawn(async move {
            let status = program.await;
            drop(counted);
            process.finish(Ok(exit(status)));
        });
        self.keep(task.abort_handle(), true);
    }

    /// Runs something of it beside the program's own task, also after that has ended.
    pub(crate) fn start_background(
        self: &Arc<Self>,
        program: impl Future<Output = ()> + Send + 'static,
    ) {
        let counted = Counted::in_each(&[&self.tasks, &self.all_tasks]);
        let task = tokio::spawn(async move {
            program.await;
            drop(counted);
        });
        self.keep(task.abort_handle(), false);
    }

    fn keep(&self, task: AbortHandle, first: bool) {
        let mut state = self.state();
        state.background.retain(|one| !one.is_finished());
        if first {
            // It may have been killed before it began.
            if state.exit.is_some() {
                task.abort();
            }
            state.first = Some(task);
        } else {
            state.background.push(task);
        }
    }

    pub(crate) fn terminal(&self) -> Option<TerminalSize> {
        self.state().terminal
    }

    /// Whether anything of it runs.
    pub(crate) fn lives(&self) -> bool {
        self.tasks.load(Ordering::SeqCst) > 0
    }

    /// It exits. The first status counts.
    pub(crate) fn finish(&self, how: Result<Exit, RuntimeError>) {
        let waiting = {
            let mut state = self.state();
            state.exit.get_or_insert(how);
            if let Some(first) = &state.first {
                first.abort();
            }
            std::mem::take(&mut state.waiting)
        };
        waiting.into_iter().for_each(Waker::wake);
    }

    /// It exits, with all its background tasks.
    pub(crate) fn finish_tree(&self, how: Result<Exit, RuntimeError>) {
        self.finish(how);
        self.state().background.drain(..).for_each(|task| task.abort());
    }

    /// Waits until nothing of it runs.
    pub(crate) async fn vanished(&self) {
        while self.lives() {
            tokio::task::yield_now().await;
        }
    }

    fn has_exited(&self) -> bool {
        self.state().exit.is_some()
    }

    fn poll_over(&self, cx: &mut Context<'_>) -> Poll<Result<Exit, RuntimeError>> {
        let mut state = self.state();
        if let Some(exit) = &state.exit {
            return Poll::Ready(exit.clone());
        }
        if !state.waiting.iter().any(|waker| waker.will_wake(cx.waker())) {
            state.waiting.push(cx.waker().clone());
        }
        Poll::Pending
    }
}

#[async_trait]
impl ProcessControl for FakeProcess {
    fn poll_exit(&self, cx: &mut Context<'_>) -> Poll<Result<Exit, RuntimeError>> {
        self.poll_over(cx)
    }

    async fn signal(&self, signal: i32, tree: bool) -> Result<(), RuntimeError> {
        tokio::task::yield_now().await;
        let how = Ok(exit(ExitStatus::Signal(signal)));
        if tree {
            self.finish_tree(how);
            self.vanished().await;
        } else {
            self.finish(how);
        }
        Ok(())
    }

    async fn resize(&self, size: TerminalSize) -> Result<(), RuntimeError> {
        tokio::task::yield_now().await;
        let mut state = self.state();
        if state.terminal.is_none() {
            return Err(RuntimeError::new(
                RuntimeErrorCode::Invalid,
                "resize a terminal",
                "the program has no terminal",
            ));
        }
        state.terminal = Some(size);
        Ok(())
    }

    fn abandon(&self) {
        self.finish_tree(Ok(exit(ExitStatus::Signal(9))));
    }
}

/// One output stream of a program. It ends when the program does, once all that was written until
/// then is read.
pub(crate) struct OutputReader {
    pub pipe: DuplexStream,
    pub process: Arc<FakeProcess>,
}

impl AsyncRead for OutputReader {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let had_exited = self.process.has_exited();
        match Pin::new(&mut self.pipe).poll_read(cx, buf) {
            Poll::Pending if had_exited => Poll::Ready(Ok(())),
            Poll::Pending => {
                if self.process.poll_over(cx).is_ready() {
                    // It ended in between: look again.
                    cx.waker().wake_by_ref();
                }
                Poll::Pending
            }
            ready @ Poll::Ready(_) => ready,
        }
    }
}

//! A program that answers turns, while it runs: its outputs go to the logs, its end is known to all
//! holders, and when it is dropped it is killed with all its descendants.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use model::signals;
use runtime::{Duplex, ExecSpec, Exit, ExitStatus, Process, ProcessHandle, RuntimeError, Sandbox};
use tokio::sync::{oneshot, watch};
use tokio::task::JoinHandle;
use tokio::time::timeout;

use crate::error::{FailureCode, HarnessError, HarnessErrorCode, is_gone};
use crate::link::HarnessEnd;
use crate::logs::{ErrorTail, LogStream, Logs, Output};

/// How long the outputs of a program that has ended may take to be read.
const DRAIN_TIMEOUT: Duration = Duration::from_millis(300);

/// How long a kill may take.
const KILL_TIMEOUT: Duration = Duration::from_secs(5);

/// How a program ended.
#[derive(Debug, Clone)]
pub(crate) enum Ended {
    /// It exited, and this was the end of its standard error.
    Exited(Exit, String),
    /// It could not be started.
    NotStarted(RuntimeError),
    /// Its sandbox has ended.
    Gone,
    /// Its user was dropped in the middle, or does not trust it any more.
    Abandoned,
}

/// A program that was started.
pub(crate) struct Program {
    handle: ProcessHandle,
    ended: watch::Receiver<Option<Ended>>,
    task: JoinHandle<()>,
    is_abandoned: AtomicBool,
    error_tail: ErrorTail,
    logs: Arc<dyn Logs>,
}

/// A program that was just started.
pub(crate) struct Started {
    pub program: Program,
    /// The other end of its channel, if it has one.
    pub channel: Option<Box<dyn Duplex>>,
    /// Completes when the program writes its ready byte.
    pub ready: oneshot::Receiver<()>,
}

impl Program {
    /// Starts a program. A byte at the beginning of a line of its output may say that it is ready.
    pub(crate) async fn start(
        sandbox: &dyn Sandbox,
        spec: ExecSpec,
        ready_byte: Option<u8>,
        logs: Arc<dyn Logs>,
    ) -> Result<Started, HarnessError> {
        let mut process = sandbox.inside().exec(spec).await?;
        let (tell_ready, ready) = oneshot::channel();
        let (tell_ended, ended) = watch::channel(None);
        let channel = process.channel.take();
        let handle = process.handle();
        let ready_byte = ready_byte.map(|byte| (byte, tell_ready));
        let error_tail = ErrorTail::default();
        let watched =
            supervise(process, ready_byte, Arc::clone(&logs), error_tail.clone(), tell_ended);
        let task = tasks::spawn(watched);
        let is_abandoned = AtomicBool::new(false);
        let program = Self { handle, ended, task, is_abandoned, error_tail, logs };
        Ok(Started { program, channel, ready })
    }

    /// Whether it runs, as far as is known.
    pub(crate) fn is_running(&self) -> bool {
        !self.is_abandoned.load(Ordering::Relaxed) && self.ended.borrow().is_none()
    }

    /// A watch for its end.
    pub(crate) fn end(&self) -> End {
        End(self.ended.clone())
    }

    /// The end of what it wrote to standard error.
    pub(crate) fn error_tail(&self) -> ErrorTail {
        self.error_tail.clone()
    }

    /// Writes a line about it to its logs.
    pub(crate) fn log(&self, text: &str) {
        self.logs.line(LogStream::System, text);
    }

    /// Kills it with all its descendants. Returns when nothing of it is left, or when that takes
    /// too long.
    pub(crate) async fn kill(&self) {
        // A failed kill means that its sandbox has ended, or soon will.
        let _ = timeout(KILL_TIMEOUT, self.handle.kill()).await;
    }

    /// Kills it without waiting.
    pub(crate) fn abandon(&self) {
        self.is_abandoned.store(true, Ordering::Relaxed);
        // The process is dropped with its task, which kills all its descendants.
        self.task.abort();
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        self.abandon();
    }
}

/// Waits for the end of a program.
#[derive(Debug, Clone)]
pub(crate) struct End(watch::Receiver<Option<Ended>>);

impl End {
    /// How it ended, once it has. An abandoned program has ended with its task.
    pub(crate) async fn wait(&mut self) -> Ended {
        match self.0.wait_for(Option::is_some).await {
            Ok(ended) => ended.clone().unwrap_or(Ended::Abandoned),
            Err(_) => Ended::Abandoned,
        }
    }
}

/// Reads the outputs of a program and waits for its end.
async fn supervise(
    mut process: Process,
    ready: Option<(u8, oneshot::Sender<()>)>,
    logs: Arc<dyn Logs>,
    error_tail: ErrorTail,
    ended: watch::Sender<Option<Ended>>,
) {
    let output = |stream, ready| Output {
        stream,
        logs: Arc::clone(&logs),
        error_tail: error_tail.clone(),
        ready,
    };
    let (out, err) = (process.stdout.take(), process.stderr.take());
    let outputs = async {
        tokio::join!(
            output(LogStream::Stdout, ready).drain(out),
            output(LogStream::Stderr, None).drain(err)
        )
    };
    let mut outputs = std::pin::pin!(outputs);
    let mut are_drained = false;
    let exit = loop {
        tokio::select! {
            exit = process.wait() => break exit,
            _ = &mut outputs, if !are_drained => are_drained = true,
        }
    };
    if !are_drained {
        let _ = timeout(DRAIN_TIMEOUT, outputs).await;
    }
    let how = match exit {
        Ok(exit) => Ended::Exited(exit, error_tail.get()),
        Err(error) if is_gone(error.code) => Ended::Gone,
        Err(error) => Ended::NotStarted(error),
    };
    // What it wrote is in the logs already.
    logs.line(LogStream::System, &how.to_string());
    ended.send_replace(Some(how));
}

impl Ended {
    /// As the reason why it cannot be used.
    pub(crate) fn into_error(self) -> HarnessError {
        match self {
            Self::Exited(exit, error_tail) => {
                let code = if exit.out_of_memory {
                    HarnessErrorCode::OutOfMemory
                } else {
                    HarnessErrorCode::Died
                };
                let exited = Self::Exited(exit, String::new());
                HarnessError::with_program_text(code, exited.to_string(), &error_tail)
            }
            Self::Abandoned => HarnessError::new(HarnessErrorCode::Died, self.to_string()),
            Self::NotStarted(error) => error.into(),
            Self::Gone => HarnessError::sandbox_gone(),
        }
    }

    /// As the end of a turn.
    pub(crate) fn into_end(self) -> HarnessEnd {
        self.into_error().into_end()
    }
}

impl std::fmt::Display for Ended {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Exited(exit, _) => {
                match exit.status {
                    ExitStatus::Code(code) => write!(f, "the harness exited with code {code}")?,
                    ExitStatus::Signal(signal) => {
                        write!(f, "the harness was ended by {}", signals::name(signal))?;
                    }
                }
                if exit.out_of_memory {
                    f.write_str(", because the sandbox ran out of memory")?;
                }
                Ok(())
            }
            Self::NotStarted(error) => write!(f, "the harness could not be started: {error}"),
            Self::Gone => f.write_str("the sandbox is gone"),
            Self::Abandoned => f.write_str("the harness was killed because its last turn failed"),
        }
    }
}

/// The end of a turn in which the program broke its protocol.
pub(crate) fn broken(code: HarnessErrorCode, message: impl Into<String>) -> HarnessEnd {
    HarnessEnd::Failed { code: FailureCode::Ours(code), message: message.into() }
}

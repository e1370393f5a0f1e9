//! The life of one process, in a task of its own: reads what its program writes, waits for its end,
//! starts it again where that is wished, and ends it once, with the reason. Whatever goes wrong here
//! ends this process and nothing else.

use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use kernel::{
    AfterExit, EndAsked, Event, ProgramExit, RESTART_PAUSE_MS, UseKind, UseTarget, after_exit,
};
use model::why::Why;
use model::{
    EndCause, ProcessEnd, ProcessEndReason, ProcessRecord, ProcessStatus, Refusal, SandboxId,
};
use runtime::{ByteReader, ExecSpec, Exit, ExitStatus, Process, RuntimeError, RuntimeErrorCode};
use tokio::io::AsyncReadExt as _;
use tokio::time::{Instant, sleep, timeout};

use super::live::Live;
use super::log::Log;
use super::saving;
use crate::core::Core;
use crate::observing::Observed;
use crate::uses;

/// What is read at once, first and at most: it grows with what flows.
const FIRST_READ_BYTES: usize = 4 * 1024;
const LARGEST_READ_BYTES: usize = 256 * 1024;
/// How long the outputs of a program that is over may take to end.
const REST_PATIENCE: Duration = Duration::from_secs(5);
/// How long the kernel may take to say why a sandbox is gone, and how often it is asked.
const REASON_PATIENCE: Duration = Duration::from_secs(1);
const REASON_PAUSE: Duration = Duration::from_millis(5);
/// How long starting a program again may take.
const RESTART_PATIENCE: Duration = Duration::from_mins(1);

/// Lets a process run. It goes on by itself; `again` is what to start when it fails.
pub(super) fn begin(core: &Arc<Core>, live: Arc<Live>, process: Process, again: Option<ExecSpec>) {
    let core = Arc::clone(core);
    tasks::spawn(async move {
        // In a task of its own: also a mistake of ours ends the process.
        let running = {
            let (core, live) = (Arc::clone(&core), Arc::clone(&live));
            tasks::spawn(async move { run(&core, &live, process, again).await })
        };
        let end = running.await.unwrap_or_else(|error| mistaken(&core, &error));
        finish(&core, &live, end);
    });
}

/// Runs the programs of a process until it is over.
async fn run(
    core: &Arc<Core>,
    live: &Arc<Live>,
    mut process: Process,
    again: Option<ExecSpec>,
) -> ProcessEnd {
    loop {
        let exit = drive(core, live, &mut process).await;
        let asked = live.program_ended();
        live.give_input(None).await;
        drop(process);
        let exit = match exit {
            Ok(exit) => program_exit(&exit),
            Err(error) => return lost(core, live, &error).await,
        };
        let record = live.record();
        let attempt = match after_exit(exit, asked, record.restart, record.restarts) {
            AfterExit::Over(status, reason) => {
                let detail = match asked {
                    EndAsked::StopForced => Some("it did not stop when it was asked to".into()),
                    EndAsked::Nothing
                    | EndAsked::Signal(_)
                    | EndAsked::Stop
                    | EndAsked::Kill
                    | EndAsked::Timeout => None,
                };
                let (exit_code, signal) = (exit.code, exit.signal);
                let at = core.now().wall;
                return ProcessEnd { at, status, exit_code, signal, reason, detail };
            }
            AfterExit::Again { attempt, of } => {
                let of = of.map_or_else(|| "unlimited".to_owned(), |most| most.to_string());
                let text = format!(
                    "\n[Process failed with exit code {}. Attempting restart {attempt}/{of}...]\n",
                    exit.code.unwrap_or(-1),
                );
                say(core, &live.log, text);
                attempt
            }
        };
        live.begins_anew();
        if let Err(asked) = pause(live).await {
            return called_off(core, exit, asked);
        }
        let Some(spec) = &again else {
            return failed_again(core, live, exit, "what was started is not known any more");
        };
        process = match start_again(core, live, &record, spec.clone()).await {
            Ok(process) => process,
            Err(_) if live.is_to_end() => {
                return called_off(core, exit, live.asked());
            }
            Err(refusal) => match end_of_sandbox(core, &record, live) {
                Some(cause) => return ended_with_sandbox(core, &cause),
                None => return failed_again(core, live, exit, &refusal.cause),
            },
        };
        let handle = process.handle();
        live.change(|record| {
            record.restarts = attempt;
            record.started_at = core.now().wall;
        });
        tell_started(core, &live.record(), live);
        core.processes.changed(&live.record(), live);
        live.give_input(process.stdin.take()).await;
        live.runs(handle.clone());
        if live.is_to_end() {
            // Whoever asked while it was being started had no program to tell.
            let _ = handle.kill().await;
        }
    }
}

/// Rests before the next start, unless an end is asked for.
async fn pause(live: &Live) -> Result<(), EndAsked> {
    let until = Instant::now() + Duration::from_millis(RESTART_PAUSE_MS);
    loop {
        if live.is_to_end() {
            return Err(live.asked());
        }
        tokio::select! {
            () = tokio::time::sleep_until(until) => return Ok(()),
            () = live.asked_more.notified() => {}
        }
    }
}

async fn start_again(
    core: &Arc<Core>,
    live: &Live,
    record: &ProcessRecord,
    spec: ExecSpec,
) -> Result<Process, Refusal> {
    let starting = async {
        // A sandbox that was frozen meanwhile is thawed.
        let used = uses::begin(core, UseTarget::Sandbox(record.sandbox), UseKind::Exec).await?;
        if used.grant().instance != live.instance {
            let cause = "its sandbox is another one now";
            return Err(Refusal::new(model::ErrorCode::SandboxGone, cause));
        }
        used.exec(spec).await
    };
    timeout(RESTART_PATIENCE, starting).await.unwrap_or_else(|_| {
        let cause = "it was not started in time";
        Err(Refusal::new(model::ErrorCode::DeadlineExceeded, cause))
    })
}

/// Reads both outputs and waits for the end of a program.
async fn drive(
    core: &Arc<Core>,
    live: &Arc<Live>,
    process: &mut Process,
) -> Result<Exit, RuntimeError> {
    let mut stdout = Output::new(false, process.stdout.take());
    let mut stderr = Output::new(true, process.stderr.take());
    // Each in its turn where both have something, so that neither keeps the other waiting.
    let (mut first, mut second) = (&mut stdout, &mut stderr);
    let mut exit = None;
    let rest = sleep(Duration::MAX);
    tokio::pin!(rest);
    while exit.is_none() || !(first.is_over() && second.is_over()) {
        let bytes = tokio::select! {
            biased;
            bytes = first.next(), if !first.is_over() => bytes,
            bytes = second.next(), if !second.is_over() => {
                std::mem::swap(&mut first, &mut second);
                bytes
            }
            ended = process.wait(), if exit.is_none() => {
                exit = Some(ended?);
                rest.as_mut().reset(Instant::now() + REST_PATIENCE);
                continue;
            }
            () = &mut rest, if exit.is_some() => break,
        };
        if let Some(bytes) = bytes
            && live.log.add(core.now().wall, first.stderr, bytes)
        {
            saving::keep_pace(core, live).await;
        }
        std::mem::swap(&mut first, &mut second);
    }
    exit.ok_or_else(|| RuntimeError::deadline("wait for a program"))
}

/// One output of a program.
struct Output {
    stderr: bool,
    reader: Option<ByteReader>,
    buffer: BytesMut,
    read_bytes: usize,
}

impl Output {
    fn new(stderr: bool, reader: Option<ByteReader>) -> Self {
        Self { stderr, reader, buffer: BytesMut::new(), read_bytes: FIRST_READ_BYTES }
    }

    const fn is_over(&self) -> bool {
        self.reader.is_none()
    }

    /// What comes next; nothing at its end. Dropping the future loses nothing.
    async fn next(&mut self) -> Option<Bytes> {
        let reader = self.reader.as_mut()?;
        self.buffer.reserve(self.read_bytes);
        let room = self.buffer.capacity();
        // What cannot be read any more is at its end.
        if !matches!(reader.read_buf(&mut self.buffer).await, Ok(1..)) {
            self.reader = None;
            return None;
        }
        let read = self.buffer.len();
        if read == room {
            self.read_bytes = (self.read_bytes * 4).min(LARGEST_READ_BYTES);
        }
        // What is small is copied, so that it does not hold on to a buffer that is large.
        if read * 4 < room {
            let bytes = Bytes::copy_from_slice(&self.buffer);
            self.buffer.clear();
            return Some(bytes);
        }
        Some(self.buffer.split().freeze())
    }
}

fn program_exit(exit: &Exit) -> ProgramExit {
    let (code, signal) = match exit.status {
        ExitStatus::Code(code) => (Some(code), None),
        ExitStatus::Signal(signal) => (None, Some(signal)),
    };
    ProgramExit { code, signal, out_of_memory: exit.out_of_memory }
}

fn say(core: &Core, log: &Log, text: String) {
    log.add(core.now().wall, false, Bytes::from(text));
}

/// An end was asked for while no program ran.
fn called_off(core: &Core, exit: ProgramExit, asked: EndAsked) -> ProcessEnd {
    let at = core.now().wall;
    let (status, reason) = match after_exit(exit, asked, None, 0) {
        AfterExit::Over(status, reason) => (status, reason),
        AfterExit::Again { .. } => (ProcessStatus::Stopped, ProcessEndReason::Stopped),
    };
    ProcessEnd { at, status, exit_code: exit.code, signal: exit.signal, reason, detail: None }
}

/// The end of a process whose task ended by a mistake of ours; its program ended with that.
fn mistaken(core: &Core, error: &tokio::task::JoinError) -> ProcessEnd {
    tracing::error!(%error, "the life of a process was given up");
    ProcessEnd {
        at: core.now().wall,
        status: ProcessStatus::Failed,
        exit_code: None,
        signal: None,
        reason: ProcessEndReason::Killed,
        detail: Some("a mistake of the server ended it".into()),
    }
}

fn failed_again(core: &Core, live: &Live, exit: ProgramExit, cause: &str) -> ProcessEnd {
    say(core, &live.log, format!("\n[Failed to restart process: {cause}]\n"));
    ProcessEnd {
        at: core.now().wall,
        status: ProcessStatus::Failed,
        exit_code: exit.code,
        signal: exit.signal,
        reason: ProcessEndReason::RestartFailed,
        detail: Some(cause.into()),
    }
}

/// How a program was lost: with its sandbox, most likely, and the kernel is about to say why.
async fn lost(core: &Arc<Core>, live: &Live, error: &RuntimeError) -> ProcessEnd {
    use RuntimeErrorCode as Code;
    let gone = matches!(
        error.code(),
        Code::SandboxGone
            | Code::SandboxUnknown
            | Code::OutOfMemory
            | Code::LauncherLost
            | Code::ShuttingDown
    );
    let record = live.record();
    let deadline = Instant::now() + REASON_PATIENCE;
    loop {
        if let Some(cause) = end_of_sandbox(core, &record, live) {
            return ended_with_sandbox(core, &cause);
        }
        if Instant::now() >= deadline {
            break;
        }
        sleep(REASON_PAUSE).await;
    }
    if gone {
        return ended_with_sandbox(core, &error.to_string());
    }
    ProcessEnd {
        at: core.now().wall,
        status: ProcessStatus::Failed,
        exit_code: None,
        signal: None,
        reason: ProcessEndReason::Exited,
        detail: Some(error.to_string().into()),
    }
}

fn ended_with_sandbox(core: &Core, cause: &str) -> ProcessEnd {
    ProcessEnd {
        at: core.now().wall,
        status: ProcessStatus::Killed,
        exit_code: None,
        signal: None,
        reason: ProcessEndReason::SandboxEnded,
        detail: Some(cause.into()),
    }
}

/// Why the sandbox of a process is gone, or about to be, in words.
fn end_of_sandbox(core: &Core, record: &ProcessRecord, live: &Live) -> Option<String> {
    let now = core.now();
    let sandbox: SandboxId = record.sandbox;
    core.read(|kernel| match kernel.why(now, sandbox)? {
        Why::Ended(ended) => {
            let mut text = cause_in_words(ended.cause);
            if let Some(detail) = &ended.detail {
                text.push_str(": ");
                text.push_str(detail);
            }
            Some(text)
        }
        Why::Alive(alive) => {
            let instance = kernel.sandbox(sandbox).and_then(|view| view.instance);
            let cause = alive.ending.or(alive.slept);
            match cause {
                Some(cause) => Some(cause_in_words(cause)),
                None if instance != Some(live.instance) => Some("its sandbox was replaced".into()),
                None => None,
            }
        }
    })
}

/// The cause of an end in the words that everything else uses.
pub(super) fn cause_in_words(cause: EndCause) -> String {
    format!("its sandbox ended: {} ({})", cause.reason().as_str(), cause.as_str())
}

/// Tells the kernel and the log of the server.
pub(super) fn tell_started(core: &Arc<Core>, record: &ProcessRecord, live: &Live) {
    core.tell(Event::ProcessStarted {
        instance: live.instance,
        process: live.id,
        keep_alive: record.keep_alive,
        timeout_ms: record.timeout_ms,
    });
}

/// A process is over: remembers it and tells everyone.
fn finish(core: &Arc<Core>, live: &Arc<Live>, end: ProcessEnd) {
    let (status, reason) = (end.status, end.reason);
    let before = live.record();
    // Those that end by themselves leave it as it was.
    let keeps = match reason {
        ProcessEndReason::Exited | ProcessEndReason::Oom | ProcessEndReason::RestartFailed => {
            before.keep_alive && live.holds(core)
        }
        ProcessEndReason::Stopped
        | ProcessEndReason::Killed
        | ProcessEndReason::Timeout
        | ProcessEndReason::SandboxEnded
        | ProcessEndReason::ServerEnded => false,
    };
    let Some(record) = live.finish(end, keeps) else { return };
    core.tell(Event::ProcessEnded { instance: live.instance, process: live.id });
    if before.keep_alive {
        core.observers.tell(Observed::Ended(&record));
    }
    tracing::debug!(process = %live.id, status = status.as_str(), reason = reason.as_str(), "a process ended");
    core.metrics.process_ended(reason);
    core.processes.ended(&record, live);
    live.tell_over();
}

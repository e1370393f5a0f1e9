//! The task of a process: reads the output of its program, waits until the program exits and
//! reports that to the kernel, which decides what follows; and ends the process once, when the
//! kernel says so. It has no policy. A failure here ends this process and nothing else.

use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use kernel::{Event, ProgramEnd, ProgramExit, StartedProcess};
use model::{ProcessEndReason, ProcessRecord};
use runtime::{ByteReader, Exit, ExitStatus, Process, RuntimeError, RuntimeErrorCode};
use tokio::io::AsyncReadExt as _;
use tokio::time::{Instant, sleep, timeout};

use super::live::{DecidedEnd, Live, Next};
use super::log_writer;
use super::recovery::ended_with_server;
use crate::core::Core;
use crate::instance_ends::REASON_PATIENCE;
use crate::keep_alive_observers::KeepAliveChange;

/// How much is read at once, first and at most: it grows with the output.
const FIRST_READ_BYTES: usize = 4 * 1024;
const LARGEST_READ_BYTES: usize = 256 * 1024;
/// How long the outputs of an exited program may take to end, and a program of a sandbox that is
/// being removed to exit.
const OUTPUT_PATIENCE: Duration = Duration::from_secs(5);

/// Runs a process in a task of its own.
pub(super) fn begin(core: &Arc<Core>, live: Arc<Live>, program: Process) {
    let core = Arc::clone(core);
    tasks::spawn(async move {
        // In another task: also a panic must end the process.
        let running = {
            let (core, live) = (Arc::clone(&core), Arc::clone(&live));
            tasks::spawn(async move { run(&core, &live, program).await })
        };
        let decided = match running.await {
            Ok(decided) => decided,
            Err(error) => {
                tracing::error!(
                    process = %live.id,
                    instance = %live.instance,
                    %error,
                    "the task of a process panicked; the process is ended"
                );
                give_up(&core, &live).await
            }
        };
        finish(&core, &live, decided);
    });
}

/// Runs the programs of a process until the process has ended.
async fn run(core: &Arc<Core>, live: &Arc<Live>, mut program: Process) -> DecidedEnd {
    loop {
        let exit = drive(core, live, &mut program).await;
        live.program_ended();
        live.give_input(None).await;
        drop(program);
        if let Some(how) = exit_report(live, exit).await {
            report_exit(core, live, how);
        }
        program = match follows(core, live).await {
            Next::Program(program) => program,
            Next::Ended(decided) => return decided,
        };
        live.give_input(program.stdin.take()).await;
    }
}

/// A panic ended the task of a process, and its program with that.
async fn give_up(core: &Arc<Core>, live: &Live) -> DecidedEnd {
    loop {
        live.program_ended();
        report_exit(core, live, ProgramEnd::GivenUp);
        match follows(core, live).await {
            // It was about to be restarted.
            Next::Program(program) => drop(program),
            Next::Ended(decided) => return decided,
        }
    }
}

/// Waits for the kernel's decision after a program exited. A halted engine decides nothing: its
/// processes end with it.
async fn follows(core: &Core, live: &Live) -> Next {
    tokio::select! {
        biased;
        next = live.next() => next,
        () = core.until_halted() => {
            let end = ended_with_server(core.now().wall);
            Next::Ended(DecidedEnd { end, keeps_alive: false })
        }
    }
}

/// What to report to the kernel about the exit of a program; nothing if the kernel has decided
/// already.
async fn exit_report(live: &Live, exit: Result<Exit, RuntimeError>) -> Option<ProgramEnd> {
    use RuntimeErrorCode as Code;
    let error = match exit {
        Ok(exit) => return Some(ProgramEnd::Exited(program_exit(&exit))),
        Err(error) => error,
    };
    // It was lost with its sandbox, most likely.
    if reason_is_known(live).await {
        return None;
    }
    let sandbox_gone = matches!(
        error.code(),
        Code::SandboxGone
            | Code::SandboxUnknown
            | Code::OutOfMemory
            | Code::LauncherLost
            | Code::ShuttingDown
    );
    Some(ProgramEnd::Lost { sandbox_gone, detail: error.to_string().into() })
}

/// Waits until the kernel has said why the sandbox of a process ended; false if it does not in
/// time.
async fn reason_is_known(live: &Live) -> bool {
    timeout(REASON_PATIENCE, live.decided_end()).await.is_ok()
}

/// Reads both outputs and waits until a program exits. If the process ends before, its sandbox ends
/// the program; else the program ends with this.
async fn drive(
    core: &Arc<Core>,
    live: &Arc<Live>,
    program: &mut Process,
) -> Result<Exit, RuntimeError> {
    let mut stdout = Output::new(false, program.stdout.take());
    let mut stderr = Output::new(true, program.stderr.take());
    // Alternately where both have something, so that neither starves the other.
    let (mut first, mut second) = (&mut stdout, &mut stderr);
    let mut exit = None;
    let mut patient = true;
    let rest = sleep(Duration::MAX);
    let decided = live.decided_end();
    tokio::pin!(rest, decided);
    while exit.is_none() || !(first.has_ended() && second.has_ended()) {
        let bytes = tokio::select! {
            biased;
            decided = &mut decided, if patient => {
                patient = false;
                if decided.end.reason != ProcessEndReason::SandboxEnded {
                    break;
                }
                rest.as_mut().reset(Instant::now() + OUTPUT_PATIENCE);
                continue;
            }
            bytes = first.next(), if !first.has_ended() => bytes,
            bytes = second.next(), if !second.has_ended() => {
                std::mem::swap(&mut first, &mut second);
                bytes
            }
            ended = program.wait(), if exit.is_none() => {
                exit = Some(ended?);
                patient = false;
                rest.as_mut().reset(Instant::now() + OUTPUT_PATIENCE);
                continue;
            }
            () = &mut rest, if !patient => break,
        };
        if let Some(bytes) = bytes
            && live.log.add(core.now().wall, first.stderr, bytes)
        {
            log_writer::keep_pace(core, live).await;
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

    const fn has_ended(&self) -> bool {
        self.reader.is_none()
    }

    /// The next bytes; none at its end. Dropping the future loses nothing.
    async fn next(&mut self) -> Option<Bytes> {
        let reader = self.reader.as_mut()?;
        self.buffer.reserve(self.read_bytes);
        let room = self.buffer.capacity();
        // An output that cannot be read has ended.
        if !matches!(reader.read_buf(&mut self.buffer).await, Ok(1..)) {
            self.reader = None;
            return None;
        }
        let read = self.buffer.len();
        if read == room {
            self.read_bytes = (self.read_bytes * 4).min(LARGEST_READ_BYTES);
        }
        // Few bytes are copied, so that they do not keep a large buffer alive.
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

/// Reports a started process to the kernel.
pub(super) fn report_started(core: &Arc<Core>, record: &ProcessRecord, live: &Live) {
    core.notify(Event::ProcessStarted(StartedProcess {
        sandbox: record.sandbox,
        instance: live.instance,
        process: live.id,
        keep_alive: record.keep_alive,
        timeout_ms: record.timeout_ms,
        restart: record.restart,
    }));
}

fn report_exit(core: &Arc<Core>, live: &Live, how: ProgramEnd) {
    core.notify(Event::ProgramEnded { instance: live.instance, process: live.id, how });
}

/// A process has ended: stores its record and wakes all that wait.
fn finish(core: &Arc<Core>, live: &Arc<Live>, decided: DecidedEnd) {
    let DecidedEnd { end, keeps_alive } = decided;
    let (status, reason) = (end.status, end.reason);
    if reason == ProcessEndReason::RestartFailed
        && let Some(cause) = &end.detail
    {
        let text = format!("\n[Failed to restart process: {cause}]\n");
        live.log.add(core.now().wall, false, Bytes::from(text));
    }
    let before = live.record();
    let Some(record) = live.finish(end, keeps_alive) else { return };
    if before.keep_alive {
        core.observers.notify(KeepAliveChange::Ended(&record));
    }
    tracing::debug!(
        process = %live.id,
        instance = %live.instance,
        status = status.as_str(),
        reason = reason.as_str(),
        "a process ended"
    );
    core.metrics.process_ended(reason);
    core.processes.ended(&record, live);
    live.wake_waiters();
}

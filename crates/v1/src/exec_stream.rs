//! The streamed output of a program. It is read only as fast as the client takes it; if the client
//! disconnects, the program is killed. The timeout does not depend on the client: this stream is
//! not polled while the connection is full, so a separate task enforces it.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use engine::{Caller, ExecSpec, Exit, Process, Use};
use tokio::io::{AsyncRead, AsyncReadExt as _};
use tokio::task::AbortHandle;
use tokio::time::{Instant, sleep, sleep_until, timeout};
use wire::ExecEvent;

use web::app::App;
use web::body_memory::Share;
use web::exec_exit::exit;
use web::key_watch::{KeyWatch, revoked};
use web::long_lived::LongLivedSlot;
use web::refused::Refused;
use web::stream::{BodySource, Format, HEARTBEAT};
use web::utf8_chunks::Utf8Chunks;

const READ_BYTES: usize = 64 * 1024;
/// How long a program that was killed may take to be gone.
const KILL_GRACE: Duration = Duration::from_secs(5);

/// A program and what was read of it.
pub(crate) struct ExecStream {
    process: Process,
    stdout: Side,
    stderr: Side,
    began: Instant,
    deadline: Deadline,
    exit: Option<Exit>,
    over: bool,
    events: VecDeque<ExecEvent>,
    format: Format,
    request_id: String,
    app: App,
    key: KeyWatch,
    /// Of the memory for bodies: its input may still be held.
    _share: Share,
    _slot: LongLivedSlot,
    /// Last: the sandbox must stay until the program is gone.
    used: Use,
}

/// The timeout of a program. Dropped, it no longer applies.
struct Deadline {
    passed: Arc<AtomicBool>,
    keeping: AbortHandle,
    /// When the program must have ended, even if it had to be killed.
    gone_by: Instant,
}

impl Deadline {
    /// Kills the program at its timeout.
    fn start(process: &Process, at: Instant) -> Self {
        let passed = Arc::new(AtomicBool::new(false));
        let (handle, seen) = (process.handle(), Arc::clone(&passed));
        let keeping = tasks::spawn(async move {
            sleep_until(at).await;
            seen.store(true, Ordering::Relaxed);
            // If the kill fails, the end of the program does not come, which is noticed elsewhere.
            let _ = timeout(KILL_GRACE, handle.kill()).await;
        });
        Self { passed, keeping: keeping.abort_handle(), gone_by: at + 2 * KILL_GRACE }
    }

    /// Whether it was this that ended the program. One that ended by itself may be looked at late.
    fn ended(&self, exit: &Exit) -> bool {
        exit.timed_out(self.passed.load(Ordering::Relaxed))
    }
}

impl Drop for Deadline {
    fn drop(&mut self) {
        self.keeping.abort();
    }
}

/// One of its two outputs.
struct Side {
    reader: Option<Box<dyn AsyncRead + Send + Unpin>>,
    pieces: Utf8Chunks,
    buffer: BytesMut,
    /// How much more may be passed on.
    room: Option<u64>,
    truncated: bool,
}

impl Side {
    fn new(reader: Option<Box<dyn AsyncRead + Send + Unpin>>, room: Option<u64>) -> Self {
        let pieces = Utf8Chunks::default();
        Self { reader, pieces, buffer: BytesMut::new(), room, truncated: false }
    }

    /// Reads something, or to the end. Dropped, nothing is lost.
    async fn read(&mut self) -> std::io::Result<usize> {
        match &mut self.reader {
            None => std::future::pending().await,
            Some(reader) => {
                self.buffer.reserve(READ_BYTES);
                let mut limited = reader.take(READ_BYTES as u64);
                limited.read_buf(&mut self.buffer).await
            }
        }
    }

    /// The part of the read bytes that may be sent.
    fn take(&mut self) -> Option<wire::Output> {
        let mut read = self.buffer.split();
        if let Some(room) = &mut self.room {
            let fits = usize::try_from(*room).unwrap_or(usize::MAX).min(read.len());
            self.truncated |= fits < read.len();
            read.truncate(fits);
            *room -= fits as u64;
        }
        if read.is_empty() { None } else { self.pieces.push(&read) }
    }
}

/// How the output is streamed, and for which caller.
pub(crate) struct StreamOptions<'a> {
    pub(crate) app: App,
    pub(crate) caller: Caller,
    pub(crate) patience: Duration,
    /// Of each output at most so much.
    pub(crate) output_bytes: Option<u64>,
    pub(crate) format: Format,
    pub(crate) request_id: &'a str,
    /// The share of the request body in the memory for bodies.
    pub(crate) share: Share,
    pub(crate) slot: LongLivedSlot,
}

impl ExecStream {
    pub(crate) async fn start(
        used: Use,
        mut spec: ExecSpec,
        watching: StreamOptions<'_>,
    ) -> Result<Self, Refused> {
        let StreamOptions { app, caller, patience, output_bytes, format, request_id, share, slot } =
            watching;
        // A failed start is a refusal, not an event.
        spec.confirm_start = true;
        let began = Instant::now();
        let mut process = match used.exec(spec).await {
            Ok(process) => process,
            Err(refusal) => {
                used.executed(false, began.elapsed());
                return Err(refusal.into());
            }
        };
        Ok(Self {
            stdout: Side::new(process.stdout.take(), output_bytes),
            stderr: Side::new(process.stderr.take(), output_bytes),
            deadline: Deadline::start(&process, began + patience),
            process,
            began,
            exit: None,
            over: false,
            events: VecDeque::from([ExecEvent::Started]),
            format,
            request_id: request_id.to_owned(),
            app,
            key: KeyWatch::new(caller.key),
            _share: share,
            _slot: slot,
            used,
        })
    }

    fn fail(&mut self, refused: &Refused) {
        let problem = Box::new(refused.problem(&self.request_id));
        self.events.push_back(ExecEvent::Error { problem });
        self.end(false);
    }

    /// Ends the stream once the program has ended and all its output was read.
    fn end_if_over(&mut self) {
        let Some(ended) = self.exit else { return };
        if self.over || self.stdout.reader.is_some() || self.stderr.reader.is_some() {
            return;
        }
        self.events.extend(self.stdout.pieces.finish().map(ExecEvent::Stdout));
        self.events.extend(self.stderr.pieces.finish().map(ExecEvent::Stderr));
        let (out, err) = (self.stdout.truncated, self.stderr.truncated);
        self.events.push_back(ExecEvent::Exit(wire::ExecExit {
            truncated: out || err,
            stdout_truncated: out,
            stderr_truncated: err,
            timed_out: self.deadline.ended(&ended),
            ..exit(&ended, self.began.elapsed())
        }));
        self.end(true);
    }

    fn end(&mut self, well: bool) {
        self.over = true;
        self.used.executed(well, self.began.elapsed());
    }

    /// Waits for something to happen; false if nothing did for a while.
    async fn step(&mut self) -> bool {
        let ended = self.exit.is_some();
        // A poll long after the deadline must see an end that came before it.
        let gone_by = self.deadline.gone_by.max(Instant::now() + KILL_GRACE);
        let happened = tokio::select! {
            read = self.stdout.read() => Happened::Out(read),
            read = self.stderr.read() => Happened::Err(read),
            exit = self.used.exit_of(&mut self.process), if !ended => Happened::Exit(exit),
            () = sleep_until(gone_by), if !ended => Happened::Late,
            () = self.key.ended(&self.app) => Happened::Revoked,
            () = sleep(HEARTBEAT) => return false,
        };
        match happened {
            Happened::Out(Ok(0)) => self.stdout.reader = None,
            Happened::Err(Ok(0)) => self.stderr.reader = None,
            Happened::Out(Ok(_)) => self.events.extend(self.stdout.take().map(ExecEvent::Stdout)),
            Happened::Err(Ok(_)) => self.events.extend(self.stderr.take().map(ExecEvent::Stderr)),
            Happened::Out(Err(error)) | Happened::Err(Err(error)) => {
                let refusal = self.used.explain(error).await;
                self.fail(&refusal.into());
            }
            Happened::Exit(Ok(exit)) => self.exit = Some(exit),
            Happened::Exit(Err(refusal)) => self.fail(&refusal.into()),
            // The program ends with the stream.
            Happened::Revoked => self.fail(&revoked()),
            Happened::Late => {
                let cause = "the program was killed at its timeout and did not end";
                self.fail(&Refused::new(model::ErrorCode::DeadlineExceeded, cause));
            }
        }
        self.end_if_over();
        true
    }
}

enum Happened {
    Out(std::io::Result<usize>),
    Err(std::io::Result<usize>),
    Exit(Result<Exit, model::Refusal>),
    Revoked,
    Late,
}

impl BodySource for ExecStream {
    async fn next(&mut self) -> Option<Bytes> {
        loop {
            if let Some(event) = self.events.pop_front() {
                return Some(self.format.event(None, event.name(), &event));
            }
            if self.over {
                return None;
            }
            if !self.step().await
                && let Some(heartbeat) = self.format.heartbeat()
            {
                return Some(heartbeat);
            }
        }
    }
}

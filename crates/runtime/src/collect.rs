//! Runs a program to its end and keeps what it says, within limits: output over the limit, or for
//! which there is no memory, is read and dropped, so that the program goes on, and marked; a program over its time is killed with
//! everything that descends from it.

use std::future::poll_fn;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, ReadBuf};
use tokio::time::{Instant, timeout};

use crate::error::{RuntimeError, RuntimeErrorCode};
use crate::exec::{Exit, Process};
use crate::files::ByteReader;
use crate::output_room;

/// How long a program that was killed may take to be gone.
const KILL_GRACE: Duration = Duration::from_secs(5);

const FIRST_READ_BYTES: usize = 4 * 1024;
const LARGEST_READ_BYTES: usize = 256 * 1024;

/// What a run may take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RunLimits {
    /// Bytes kept of each of the two streams.
    pub output_bytes: u64,
    /// When it is killed.
    pub timeout: Duration,
}

impl From<&model::Limits> for RunLimits {
    fn from(limits: &model::Limits) -> Self {
        Self {
            output_bytes: limits.exec_output_bytes,
            timeout: Duration::from_millis(limits.exec_timeout_ms),
        }
    }
}

/// The result of a run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Collected {
    /// How it exited.
    pub exit: Exit,
    /// What it wrote.
    pub stdout: Vec<u8>,
    /// What it wrote as errors.
    pub stderr: Vec<u8>,
    /// Whether there was more of `stdout`.
    pub stdout_truncated: bool,
    /// Whether there was more of `stderr`.
    pub stderr_truncated: bool,
    /// Whether it was killed because its time was up.
    pub timed_out: bool,
    /// How long it took.
    pub duration: Duration,
}

/// Waits for the end of a program and keeps its output.
pub(crate) async fn collect(
    mut process: Process,
    limits: RunLimits,
    started_at: Instant,
) -> Result<Collected, RuntimeError> {
    let mut stdout = CollectedStream::new(process.stdout.take(), limits.output_bytes);
    let mut stderr = CollectedStream::new(process.stderr.take(), limits.output_bytes);
    let end = poll_fn(|cx| poll_end(cx, &mut process, &mut stdout, &mut stderr));
    let in_time = timeout(limits.timeout, end).await;
    let deadline_passed = in_time.is_err();
    let exit = if let Ok(exit) = in_time {
        exit?
    } else {
        let handle = process.handle();
        let mut end = poll_fn(|cx| poll_end(cx, &mut process, &mut stdout, &mut stderr));
        let killed = async { tokio::join!(handle.kill(), &mut end) };
        match timeout(KILL_GRACE, killed).await {
            Ok((Err(error), _) | (Ok(()), Err(error))) => return Err(error),
            Ok((Ok(()), Ok(exit))) => exit,
            Err(_) => return Err(RuntimeError::deadline("kill a program that ran too long")),
        }
    };
    Ok(Collected {
        timed_out: exit.timed_out(deadline_passed),
        exit,
        stdout: stdout.bytes,
        stderr: stderr.bytes,
        stdout_truncated: stdout.truncated,
        stderr_truncated: stderr.truncated,
        duration: started_at.elapsed(),
    })
}

/// Ready when the program has ended and both streams are at their end.
fn poll_end(
    cx: &mut Context<'_>,
    process: &mut Process,
    stdout: &mut CollectedStream,
    stderr: &mut CollectedStream,
) -> Poll<Result<Exit, RuntimeError>> {
    // The exit first: once it is known, the streams know that what they hold is all.
    let exit = process.poll_wait(cx);
    if let Poll::Ready(Err(error)) = exit {
        return Poll::Ready(Err(error));
    }
    let out = stdout.poll_to_end(cx)?;
    let err = stderr.poll_to_end(cx)?;
    if out.is_pending() || err.is_pending() { Poll::Pending } else { exit }
}

/// One stream and what is kept of it.
struct CollectedStream {
    reader: Option<ByteReader>,
    bytes: Vec<u8>,
    limit: usize,
    truncated: bool,
    scratch: Vec<u8>,
}

impl CollectedStream {
    fn new(reader: Option<ByteReader>, limit: u64) -> Self {
        let limit = usize::try_from(limit).unwrap_or(usize::MAX);
        Self { reader, bytes: Vec::new(), limit, truncated: false, scratch: Vec::new() }
    }

    /// Reads until the end, or until there is nothing to read now.
    fn poll_to_end(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), RuntimeError>> {
        while let Some(reader) = &mut self.reader {
            // Reads land in a scratch buffer that grows with what flows: a program that says
            // nothing costs none, one that says much is read in large pieces.
            if self.scratch.is_empty() {
                self.scratch.resize(FIRST_READ_BYTES, 0);
            }
            let mut buf = ReadBuf::new(&mut self.scratch);
            match Pin::new(reader).poll_read(cx, &mut buf) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(Err(error)) => {
                    return Poll::Ready(Err(RuntimeError::from_io("read output", error)));
                }
                Poll::Ready(Ok(())) => {}
            }
            let (read, was_full) = (buf.filled().len(), buf.remaining() == 0);
            if read == 0 {
                self.reader = None;
                break;
            }
            let room = self.limit.saturating_sub(self.bytes.len());
            let kept = &self.scratch[..read.min(room)];
            if kept.is_empty() || output_room::take(kept) {
                self.bytes.extend_from_slice(kept);
                self.truncated |= read > room;
            } else {
                // The output must have no gap, so nothing after this is kept either.
                self.limit = self.bytes.len();
                self.truncated = true;
            }
            if was_full && read < LARGEST_READ_BYTES {
                self.scratch.resize(read * 4, 0);
            }
        }
        Poll::Ready(Ok(()))
    }
}

impl RunLimits {
    /// Refuses limits under which nothing could run.
    pub(crate) fn check(&self) -> Result<(), RuntimeError> {
        if self.timeout.is_zero() {
            return Err(RuntimeError::new(
                RuntimeErrorCode::Invalid,
                "run",
                "a timeout of 0 would kill the program before it starts",
            ));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};
    use std::task::Waker;

    use async_trait::async_trait;
    use guest_protocol::message::{ExitStatus, TerminalSize};

    use super::*;
    use crate::exec::ProcessControl;

    /// A program that ends like this when it is killed, and not before.
    struct AtTheKill {
        status: ExitStatus,
        killed: Mutex<(bool, Option<Waker>)>,
    }

    #[async_trait]
    impl ProcessControl for AtTheKill {
        fn poll_exit(&self, cx: &mut Context<'_>) -> Poll<Result<Exit, RuntimeError>> {
            let mut killed = self.killed.lock().unwrap();
            if !killed.0 {
                killed.1 = Some(cx.waker().clone());
                return Poll::Pending;
            }
            let (status, out_of_memory) = (self.status, false);
            Poll::Ready(Ok(Exit { status, out_of_memory, user_us: 0, system_us: 0, max_rss_kb: 0 }))
        }

        async fn signal(&self, _signal: i32, _tree: bool) -> Result<(), RuntimeError> {
            let mut killed = self.killed.lock().unwrap();
            killed.0 = true;
            if let Some(waiting) = killed.1.take() {
                waiting.wake();
            }
            Ok(())
        }

        async fn resize(&self, _size: TerminalSize) -> Result<(), RuntimeError> {
            Ok(())
        }

        fn abandon(&self) {}
    }

    #[tokio::test(start_paused = true)]
    async fn a_program_that_ended_by_itself_just_before_it_was_killed_did_not_time_out() {
        for (status, timed_out) in [
            (ExitStatus::Code(0), false),
            (ExitStatus::Code(3), false),
            (ExitStatus::Signal(11), false),
            (ExitStatus::Signal(9), true),
        ] {
            let program = AtTheKill { status, killed: Mutex::default() };
            let limits = RunLimits { output_bytes: 1, timeout: Duration::from_secs(1) };
            let ran = collect(Process::new(Arc::new(program)), limits, Instant::now()).await;
            let ran = ran.unwrap();
            assert_eq!((ran.exit.status, ran.timed_out), (status, timed_out));
        }
    }
}

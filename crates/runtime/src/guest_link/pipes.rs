//! Streams of a program that bypass the connection: pipes whose other ends were passed to it. The
//! output of a program ends with the program, even if something that descends from it keeps the
//! pipe: what is in the pipe at that moment is all there is.

use std::io;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use rustix::io::Errno;
use rustix::pipe::PipeFlags;
use tokio::io::{AsyncRead, ReadBuf};
use tokio::net::unix::pipe::{Receiver, Sender};

use super::call::Call;
use super::channel::remember;
use crate::error::RuntimeError;

/// A pipe of which this much came out at once is made larger.
const BUSY_READ_BYTES: usize = 32 * 1024;

/// How large a busy pipe is.
const BUSY_PIPE_BYTES: usize = 1 << 20;

/// What is done to make a pipe, as the step of an error.
const STEP: &str = "make a pipe for a program";

fn system(error: impl Into<io::Error>) -> RuntimeError {
    RuntimeError::system(STEP, &error.into())
}

/// A pipe out of a program: our end, and the program's.
pub(super) fn output() -> Result<(OwnedFd, OwnedFd), RuntimeError> {
    open_to_the_program(rustix::pipe::pipe_with(PipeFlags::CLOEXEC).map_err(system)?)
}

/// Makes our end a stream. Only ours does not block then: the two ends are different open files,
/// and a program expects its own to block.
fn watch(pipe: OwnedFd) -> io::Result<Receiver> {
    rustix::io::ioctl_fionbio(&pipe, true)?;
    Receiver::from_owned_fd_unchecked(pipe)
}

/// A program may open its own streams by name, as `/dev/stderr`, although another user made them. A
/// pipe has no other name, so no other process can open it.
fn open_to_the_program(pipe: (OwnedFd, OwnedFd)) -> Result<(OwnedFd, OwnedFd), RuntimeError> {
    rustix::fs::fchmod(&pipe.0, rustix::fs::Mode::from_raw_mode(0o666)).map_err(system)?;
    Ok(pipe)
}

/// A pipe into a program: our end, which does not block, and the program's.
pub(super) fn input() -> Result<(OwnedFd, OwnedFd), RuntimeError> {
    let made = rustix::pipe::pipe_with(PipeFlags::CLOEXEC).map_err(system)?;
    let (theirs, ours) = open_to_the_program(made)?;
    rustix::io::ioctl_fionbio(&ours, true).map_err(system)?;
    Ok((ours, theirs))
}

/// Writes what fits into a pipe now, and says how much that was.
pub(super) fn fill(pipe: &OwnedFd, bytes: &[u8]) -> Result<usize, RuntimeError> {
    let mut written = 0;
    while written < bytes.len() {
        match rustix::io::write(pipe, &bytes[written..]) {
            Ok(n) => written += n,
            Err(Errno::AGAIN) => break,
            Err(Errno::INTR) => {}
            Err(error) => return Err(system(error)),
        }
    }
    Ok(written)
}

/// Our end of a pipe into a program, as a stream.
pub(super) fn sender(pipe: OwnedFd) -> Result<Sender, RuntimeError> {
    Sender::from_owned_fd_unchecked(pipe).map_err(system)
}

/// Our end of a pipe out of a program. It is watched from the first read on: that is when the
/// request is on its way already, so that making it ready takes no time.
pub(super) struct PipeReader {
    pipe: Pipe,
    call: Arc<Call>,
    /// Which of the program's streams it is.
    lane: u8,
    enlarged: bool,
    /// How much is left to read after the program has ended.
    left: Option<usize>,
}

enum Pipe {
    Unwatched(OwnedFd),
    Watched(Receiver),
    /// Watching it failed.
    Closed,
}

impl Pipe {
    /// The stream, from the first time it is asked for.
    fn watched(&mut self) -> io::Result<&mut Receiver> {
        *self = match std::mem::replace(self, Self::Closed) {
            Self::Unwatched(pipe) => Self::Watched(watch(pipe)?),
            other @ (Self::Watched(_) | Self::Closed) => other,
        };
        match self {
            Self::Watched(pipe) => Ok(pipe),
            Self::Unwatched(_) | Self::Closed => Err(io::ErrorKind::BrokenPipe.into()),
        }
    }

    fn as_fd(&self) -> Option<BorrowedFd<'_>> {
        match self {
            Self::Unwatched(pipe) => Some(pipe.as_fd()),
            Self::Watched(pipe) => Some(pipe.as_fd()),
            Self::Closed => None,
        }
    }
}

impl PipeReader {
    pub(super) fn new(pipe: OwnedFd, call: Arc<Call>, lane: u8) -> Self {
        Self { pipe: Pipe::Unwatched(pipe), call, lane, enlarged: false, left: None }
    }

    /// Whether the program has ended; if not, its end wakes the caller.
    fn poll_over(&self, cx: &mut Context<'_>) -> bool {
        let Call { connection, number, step } = &*self.call;
        let mut state = connection.lock();
        if state.refuse_if_gone(step).is_err() {
            return true;
        }
        let Some(channel) = state.channel(*number) else { return true };
        if channel.finished {
            return true;
        }
        let replaced = remember(&mut channel.lane(self.lane).reader, cx);
        drop(state);
        drop(replaced);
        false
    }

    /// Reads what the pipe held when the end of the program was noticed. There is no other reader,
    /// so that much is there and the read does not wait.
    fn read_rest(&mut self, buf: &mut ReadBuf<'_>) -> io::Result<()> {
        let Some(pipe) = self.pipe.as_fd() else { return Ok(()) };
        let left = match self.left {
            Some(left) => left,
            None => rustix::io::ioctl_fionread(pipe)?.try_into().unwrap_or(usize::MAX),
        };
        self.left = Some(left);
        let most = left.min(buf.remaining());
        if most == 0 {
            return Ok(());
        }
        let into = &mut buf.initialize_unfilled()[..most];
        let read = loop {
            match rustix::io::read(pipe, &mut *into) {
                Ok(read) => break read,
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => break 0,
                Err(error) => return Err(error.into()),
            }
        };
        self.left = Some(left - read);
        buf.advance(read);
        Ok(())
    }
}

impl AsyncRead for PipeReader {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.left.is_some() || self.poll_over(cx) {
            return Poll::Ready(self.read_rest(buf));
        }
        let Self { pipe, enlarged, .. } = &mut *self;
        let pipe = pipe.watched()?;
        let before = buf.filled().len();
        let polled = Pin::new(&mut *pipe).poll_read(cx, buf);
        if buf.filled().len() - before >= BUSY_READ_BYTES && !*enlarged {
            // It only makes things faster, so a refusal does not matter.
            let _ = rustix::pipe::fcntl_setpipe_size(&*pipe, BUSY_PIPE_BYTES);
            *enlarged = true;
        }
        polled
    }
}

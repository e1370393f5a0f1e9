//! The bytes of a call as streams. A reader that does not read must hold up only the writer of the
//! same stream.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use guest_protocol::message::{Reply, lane};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::Sleep;

use super::call::Call;
use super::channel::remember;
use super::connection::MAX_BACKLOG_BYTES;
use crate::error::RuntimeError;

/// Fails when no byte moves for too long while a caller waits.
#[derive(Default)]
pub(super) struct Stall {
    timer: Option<Pin<Box<Sleep>>>,
}

impl Stall {
    fn moved(&mut self) {
        self.timer = None;
    }

    pub(super) fn poll(&mut self, cx: &mut Context<'_>, patience: Duration) -> Poll<()> {
        let timer = self.timer.get_or_insert_with(|| Box::pin(tokio::time::sleep(patience)));
        timer.as_mut().poll(cx)
    }
}

/// Bytes from the guest.
pub(super) struct LaneReader {
    call: Arc<Call>,
    lane: u8,
    stall: Option<Stall>,
}

impl LaneReader {
    pub(super) fn new(call: Arc<Call>, lane: u8) -> Self {
        Self { call, lane, stall: None }
    }

    /// The same, but it is an error if no bytes come for too long.
    pub(super) fn impatient(mut self) -> Self {
        self.stall = Some(Stall::default());
        self
    }

    /// How many bytes were read; 0 at the end.
    fn poll_bytes(&self, cx: &mut Context<'_>, into: &mut [u8]) -> Poll<io::Result<usize>> {
        let Call { connection, number, step } = &*self.call;
        let mut state = connection.lock();
        let gone = state.refuse_if_gone(step);
        let (endpoint, Some(channel)) = state.parts(*number) else { return Poll::Ready(Ok(0)) };
        let failed = match &channel.last {
            Some(Reply::Failed(fault)) => Some(RuntimeError::from_fault(*step, fault.clone())),
            Some(_) | None => None,
        };
        let finished = channel.finished;
        let lane = channel.lane(self.lane);
        let read = lane.read(into);
        if read > 0 {
            endpoint.consumed(*number, self.lane, read);
            state.flush();
            return Poll::Ready(Ok(read));
        }
        if let Some(error) = failed {
            return Poll::Ready(Err(error.into_io()));
        }
        if lane.ended || lane.reset || finished {
            return Poll::Ready(Ok(0));
        }
        if let Err(error) = gone {
            return Poll::Ready(Err(error.into_io()));
        }
        let replaced = remember(&mut lane.reader, cx);
        drop(state);
        drop(replaced);
        Poll::Pending
    }
}

impl AsyncRead for LaneReader {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match self.poll_bytes(cx, buf.initialize_unfilled()) {
            Poll::Ready(read) => {
                buf.advance(read?);
                if let Some(stall) = &mut self.stall {
                    stall.moved();
                }
                Poll::Ready(Ok(()))
            }
            Poll::Pending => {
                let (patience, step) = (self.call.connection.settings.call_timeout, self.call.step);
                let Some(stall) = &mut self.stall else { return Poll::Pending };
                ready!(stall.poll(cx, patience));
                Poll::Ready(Err(RuntimeError::deadline(step).into_io()))
            }
        }
    }
}

impl Drop for LaneReader {
    fn drop(&mut self) {
        let Call { connection, number, .. } = &*self.call;
        let mut state = connection.lock();
        let (endpoint, Some(channel)) = state.parts(*number) else { return };
        let buffer = channel.lane(self.lane);
        if buffer.ended || buffer.reset {
            return;
        }
        if self.lane == lane::MAIN {
            // The other direction may be in use: read new bytes and discard them.
            buffer.unwanted = true;
            let dropped = buffer.clear();
            endpoint.consumed(*number, self.lane, dropped);
        } else {
            // The writer learns that the stream has no reader.
            buffer.clear();
            endpoint.reset(*number, self.lane);
        }
        state.flush();
    }
}

/// Bytes to the guest. Dropped or shut down, the other side sees their end.
pub(super) struct LaneWriter {
    call: Arc<Call>,
    lane: u8,
    stall: Option<Stall>,
    /// Dropped before its end was sent, the stream fails instead of ending.
    pub must_end: bool,
}

impl LaneWriter {
    pub(super) fn new(call: Arc<Call>, lane: u8) -> Self {
        Self { call, lane, stall: None, must_end: false }
    }

    /// The same, but it is an error if no bytes are taken for too long.
    pub(super) fn impatient(mut self) -> Self {
        self.stall = Some(Stall::default());
        self
    }

    fn poll_bytes(&self, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let Call { connection, number, step } = &*self.call;
        let mut state = connection.lock();
        if let Err(gone) = state.refuse_if_gone(step) {
            return Poll::Ready(Err(gone.into_io()));
        }
        let (endpoint, Some(channel)) = state.parts(*number) else {
            return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
        };
        if let Some(Reply::Failed(fault)) = &channel.last {
            return Poll::Ready(Err(RuntimeError::from_fault(*step, fault.clone()).into_io()));
        }
        let finished = channel.finished;
        let lane = channel.lane(self.lane);
        if lane.reset || finished {
            return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
        }
        let room = endpoint.outgoing().len() < MAX_BACKLOG_BYTES;
        let taken = if room { endpoint.send_data(*number, self.lane, bytes) } else { 0 };
        if taken > 0 || bytes.is_empty() {
            state.flush();
            return Poll::Ready(Ok(taken));
        }
        let replaced = remember(&mut lane.writer, cx);
        drop(state);
        drop(replaced);
        Poll::Pending
    }

    /// Sends the end of the stream.
    pub(super) fn end(&mut self) {
        self.must_end = false;
        let mut state = self.call.connection.lock();
        state.parts(self.call.number).0.end(self.call.number, self.lane);
        state.flush();
    }
}

impl AsyncWrite for LaneWriter {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        match self.poll_bytes(cx, buf) {
            Poll::Ready(taken) => {
                if let Some(stall) = &mut self.stall {
                    stall.moved();
                }
                Poll::Ready(taken)
            }
            Poll::Pending => {
                let (patience, step) = (self.call.connection.settings.call_timeout, self.call.step);
                let Some(stall) = &mut self.stall else { return Poll::Pending };
                ready!(stall.poll(cx, patience));
                Poll::Ready(Err(RuntimeError::deadline(step).into_io()))
            }
        }
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.end();
        Poll::Ready(Ok(()))
    }
}

impl Drop for LaneWriter {
    fn drop(&mut self) {
        if !self.must_end {
            self.end();
        }
    }
}

/// Both directions of the main lane. Dropped, the stream is cancelled.
pub(super) struct LaneDuplex {
    pub reader: LaneReader,
    pub writer: LaneWriter,
}

impl LaneDuplex {
    pub(super) fn new(call: Arc<Call>) -> Self {
        let mut writer = LaneWriter::new(Arc::clone(&call), lane::MAIN);
        writer.must_end = true;
        Self { reader: LaneReader::new(call, lane::MAIN), writer }
    }

    /// The same, but if it is dropped, the other side only sees the end of the stream.
    pub(super) fn ending(call: Arc<Call>) -> Self {
        let mut duplex = Self::new(call);
        duplex.writer.must_end = false;
        duplex
    }
}

impl AsyncRead for LaneDuplex {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.reader).poll_read(cx, buf)
    }
}

impl AsyncWrite for LaneDuplex {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.writer).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.writer).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.writer).poll_shutdown(cx)
    }
}

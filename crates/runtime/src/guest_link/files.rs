//! Files as streams over a connection, and connections to ports inside.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use guest_protocol::message::{Entry, Reply, Request, lane};
use tokio::io::AsyncWrite;

use super::GuestLink;
use super::call::Call;
use super::channel::Kind;
use super::lanes::{LaneDuplex, LaneReader, LaneWriter, Stall};
use crate::error::RuntimeError;
use crate::files::{Duplex, FileReader, FileSink, FileWriter};

impl GuestLink {
    /// Opens a file for reading.
    pub(super) async fn open_file(
        &self,
        path: &str,
        offset: u64,
        length: Option<u64>,
    ) -> Result<FileReader, RuntimeError> {
        let request = Request::ReadFile { path: path.to_owned(), offset, length };
        let call =
            Call::open(&self.connection, "read a file", Kind::Reading, &request, Vec::new())?;
        let reply = call.first().await?;
        let Reply::Entry(entry) = reply else { return Err(call.unexpected_answer(&reply)) };
        let reader = LaneReader::new(Arc::new(call), lane::MAIN).impatient();
        Ok(FileReader::new(entry, Box::new(reader)))
    }

    /// Begins to write a file. If the guest refuses, the writer fails.
    pub(super) fn new_file(
        &self,
        path: &str,
        mode: Option<u32>,
    ) -> Result<FileWriter, RuntimeError> {
        let request = Request::WriteFile { path: path.to_owned(), mode, parents: true };
        let call =
            Call::open(&self.connection, "write a file", Kind::Writing, &request, Vec::new())?;
        let call = Arc::new(call);
        let mut writer = LaneWriter::new(Arc::clone(&call), lane::MAIN).impatient();
        writer.must_end = true;
        let sink = Sink { writer, call, ended: false, stall: Stall::default() };
        Ok(FileWriter::new(Box::new(sink)))
    }

    /// Connects to a port or a Unix socket inside.
    pub(super) async fn connect(&self, request: &Request) -> Result<Box<dyn Duplex>, RuntimeError> {
        let call = Call::open(&self.connection, "dial", Kind::Connection, request, Vec::new())?;
        let reply = call.first().await?;
        let Reply::Started { .. } = reply else { return Err(call.unexpected_answer(&reply)) };
        Ok(Box::new(LaneDuplex::new(Arc::new(call))))
    }
}

/// A file that is being written.
struct Sink {
    writer: LaneWriter,
    call: Arc<Call>,
    ended: bool,
    stall: Stall,
}

impl FileSink for Sink {
    fn poll_finish(&mut self, cx: &mut Context<'_>) -> Poll<Result<Entry, RuntimeError>> {
        if !self.ended {
            self.ended = true;
            self.writer.end();
        }
        match self.call.poll_last(cx) {
            Poll::Ready(Ok(Reply::Entry(entry))) => Poll::Ready(Ok(entry)),
            Poll::Ready(Ok(other)) => Poll::Ready(Err(self.call.unexpected_answer(&other))),
            Poll::Ready(Err(error)) => Poll::Ready(Err(error)),
            Poll::Pending => {
                ready!(self.stall.poll(cx, self.call.connection.settings.call_timeout));
                Poll::Ready(Err(RuntimeError::deadline(self.call.step)))
            }
        }
    }
}

impl AsyncWrite for Sink {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.writer).poll_write(cx, buf)
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

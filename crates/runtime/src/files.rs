//! Files of a sandbox as its host handles them: as streams that never hold more than a window of
//! bytes, so that a large file costs no memory here.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use guest_protocol::message::Entry;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, ReadBuf};

use crate::error::{RuntimeError, RuntimeErrorCode};

/// Bytes that come out of a sandbox.
pub type ByteReader = Box<dyn AsyncRead + Send + Unpin>;

/// Bytes that go into a sandbox.
pub type ByteWriter = Box<dyn AsyncWrite + Send + Unpin>;

/// A connection with both directions.
pub trait Duplex: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Duplex for T {}

/// Part of a directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Page {
    /// In the order of their names.
    pub entries: Vec<Entry>,
    /// Whether there are more after the last of them.
    pub more: bool,
}

/// A file that is being read. An error in the middle is a [`RuntimeError`] inside the
/// [`io::Error`]: see [`RuntimeError::from_io`].
pub struct FileReader {
    /// What it was when it was opened.
    pub entry: Entry,
    bytes: ByteReader,
}

impl FileReader {
    pub(crate) fn new(entry: Entry, bytes: ByteReader) -> Self {
        Self { entry, bytes }
    }

    /// Everything that is left of it, unless that is more than `max_bytes`.
    pub async fn collect(mut self, max_bytes: u64) -> Result<Vec<u8>, RuntimeError> {
        let mut bytes = Vec::new();
        let mut limited = (&mut self.bytes).take(max_bytes.saturating_add(1));
        limited
            .read_to_end(&mut bytes)
            .await
            .map_err(|error| RuntimeError::from_io("read a file", error))?;
        if bytes.len() as u64 > max_bytes {
            return Err(RuntimeError::new(
                RuntimeErrorCode::TooLarge,
                "read a file",
                format!("the file has more than {max_bytes} bytes"),
            ));
        }
        Ok(bytes)
    }
}

impl AsyncRead for FileReader {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.bytes).poll_read(cx, buf)
    }
}

/// Where the bytes of a file that is being written go.
pub(crate) trait FileSink: AsyncWrite + Send + Unpin {
    /// The file is whole; done when it has its name.
    fn poll_finish(&mut self, cx: &mut Context<'_>) -> Poll<Result<Entry, RuntimeError>>;
}

/// A file that is being written. Dropped before it is finished, nothing of it stays.
pub struct FileWriter {
    sink: Box<dyn FileSink>,
}

impl FileWriter {
    pub(crate) fn new(sink: Box<dyn FileSink>) -> Self {
        Self { sink }
    }

    /// The file is whole: give it its name.
    pub async fn finish(mut self) -> Result<Entry, RuntimeError> {
        std::future::poll_fn(|cx| self.sink.poll_finish(cx)).await
    }
}

impl AsyncWrite for FileWriter {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.sink).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.sink).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.sink).poll_flush(cx)
    }
}

impl RuntimeError {
    /// As it travels through a stream of bytes.
    pub(crate) fn into_io(self) -> io::Error {
        io::Error::other(self)
    }

    /// What went wrong with a stream of bytes.
    pub fn from_io(step: &'static str, error: io::Error) -> Self {
        match error.downcast::<Self>() {
            Ok(inner) => inner,
            Err(error) => Self::system(step, &error),
        }
    }
}

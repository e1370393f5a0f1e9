//! Moves bytes between blocking code, which reads and writes files and archives, and the
//! connection, which is asynchronous; and shows progress.

use std::io::{self, Read, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use client::Download;
use tokio::sync::mpsc;

use crate::output::Output;

const CHUNK_BYTES: usize = 128 * 1024;
const PIECES: usize = 4;
const PROGRESS_INTERVAL: Duration = Duration::from_millis(250);

/// Writes into a request that is being sent.
pub(crate) struct UploadWriter {
    pieces: mpsc::Sender<io::Result<Bytes>>,
    buffer: Vec<u8>,
    count: Counter,
}

impl UploadWriter {
    pub(crate) fn new(pieces: mpsc::Sender<io::Result<Bytes>>, count: Counter) -> Self {
        Self { pieces, buffer: Vec::with_capacity(CHUNK_BYTES), count }
    }

    /// Aborts the request, so that the server does not take half of it for the whole.
    pub(crate) fn fail(&self) {
        // If the receiver is gone, the request has ended anyway.
        let _ = self.pieces.blocking_send(Err(io::Error::other("the source could not be read")));
    }

    fn send(&mut self) -> io::Result<()> {
        let full = std::mem::replace(&mut self.buffer, Vec::with_capacity(CHUNK_BYTES));
        self.count.add(full.len());
        let sent = self.pieces.blocking_send(Ok(full.into()));
        sent.map_err(|_| {
            io::Error::new(io::ErrorKind::BrokenPipe, "the server closed the connection")
        })
    }
}

impl Write for UploadWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let room = CHUNK_BYTES - self.buffer.len();
        let taken = &bytes[..bytes.len().min(room)];
        self.buffer.extend_from_slice(taken);
        if self.buffer.len() == CHUNK_BYTES {
            self.send()?;
        }
        Ok(taken.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        if self.buffer.is_empty() { Ok(()) } else { self.send() }
    }
}

/// Reads from a download.
pub(super) struct DownloadReader {
    pieces: mpsc::Receiver<io::Result<Bytes>>,
    current: Bytes,
}

impl DownloadReader {
    /// Reads from the connection only as fast as its bytes are used.
    pub(super) fn of(mut download: Download, count: Counter) -> Self {
        let (sender, pieces) = mpsc::channel(PIECES);
        tasks::spawn(async move {
            loop {
                let piece = match download.next().await {
                    Ok(None) => return,
                    Ok(Some(bytes)) => {
                        count.add(bytes.len());
                        Ok(bytes)
                    }
                    Err(error) => Err(io::Error::other(error.to_string())),
                };
                let failed = piece.is_err();
                if sender.send(piece).await.is_err() || failed {
                    return;
                }
            }
        });
        Self { pieces, current: Bytes::new() }
    }
}

impl Read for DownloadReader {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while self.current.is_empty() {
            match self.pieces.blocking_recv() {
                Some(piece) => self.current = piece?,
                None => return Ok(0),
            }
        }
        let length = self.current.len().min(buffer.len());
        buffer[..length].copy_from_slice(&self.current.split_to(length));
        Ok(length)
    }
}

/// Counts transferred bytes.
#[derive(Debug, Clone, Default)]
pub(crate) struct Counter(Arc<AtomicU64>);

impl Counter {
    fn add(&self, count: usize) {
        self.0.fetch_add(count as u64, Ordering::Relaxed);
    }

    /// Waits for `work`, and shows progress.
    pub(crate) async fn watch<T>(&self, work: impl Future<Output = T>, output: &Output) -> T {
        tokio::pin!(work);
        let mut shown = false;
        let done = loop {
            tokio::select! {
                done = &mut work => break done,
                () = tokio::time::sleep(PROGRESS_INTERVAL) => {
                    shown = true;
                    let kilobytes = self.0.load(Ordering::Relaxed) / 1000;
                    output.progress(&format!("{}.{} MB", kilobytes / 1000, kilobytes / 100 % 10));
                }
            }
        };
        if shown {
            output.progress("");
        }
        done
    }
}

//! Bodies of requests: complete ones, which can be sent again, and streams, which cannot.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use http_body_util::{Either, Full};
use tokio::io::{AsyncRead, AsyncReadExt as _};
use tokio::sync::mpsc;

const CHUNK_BYTES: usize = 64 * 1024;
/// Chunks that wait for the connection.
const PIECES: usize = 4;

/// The body of a request.
pub(crate) type Sent = Either<Full<Bytes>, Upload>;

/// A streamed body.
#[derive(Debug)]
pub struct Upload {
    pieces: mpsc::Receiver<io::Result<Bytes>>,
    length: Option<u64>,
}

impl Upload {
    /// A body and the sender of its chunks. Dropping the sender ends the body; sending an error
    /// aborts the request.
    pub fn channel() -> (mpsc::Sender<io::Result<Bytes>>, Self) {
        let (sender, pieces) = mpsc::channel(PIECES);
        (sender, Self { pieces, length: None })
    }

    /// The same body with a known length.
    #[must_use]
    pub fn of_length(mut self, length: u64) -> Self {
        self.length = Some(length);
        self
    }

    /// A body that is read from a reader.
    pub fn reader(mut reader: impl AsyncRead + Send + Unpin + 'static) -> Self {
        let (sender, upload) = Self::channel();
        tokio::spawn(async move {
            let mut buffer = vec![0; CHUNK_BYTES];
            loop {
                let piece = match reader.read(&mut buffer).await {
                    Ok(0) => return,
                    Ok(length) => Ok(Bytes::copy_from_slice(&buffer[..length])),
                    Err(error) => Err(error),
                };
                let failed = piece.is_err();
                if sender.send(piece).await.is_err() || failed {
                    return;
                }
            }
        });
        upload
    }
}

impl Body for Upload {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        self.pieces.poll_recv(cx).map(|piece| piece.map(|piece| piece.map(Frame::data)))
    }

    fn size_hint(&self) -> SizeHint {
        self.length.map_or_else(SizeHint::default, SizeHint::with_exact)
    }
}

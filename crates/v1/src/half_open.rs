//! A connection to a port inside whose client has left: it ends soon when the server inside says
//! nothing more. Otherwise a server that never closes its connections would keep the sandbox awake
//! for clients that are gone.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Sleep, sleep};

/// How long the server inside may be silent after the client has sent its end.
const SILENCE: Duration = Duration::from_secs(30);

/// A connection that ends when it is silent after its own end was sent.
pub(crate) struct HalfOpen<S> {
    inside: S,
    /// Runs since the end was sent, and since the last bytes that came after it.
    silent: Option<Pin<Box<Sleep>>>,
    /// The task of a read that waits: it must hear of the end.
    reader: Option<Waker>,
}

impl<S> HalfOpen<S> {
    pub(crate) fn new(inside: S) -> Self {
        Self { inside, silent: None, reader: None }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for HalfOpen<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if let Poll::Ready(read) = Pin::new(&mut self.inside).poll_read(cx, buf) {
            if self.silent.is_some() {
                self.silent = Some(Box::pin(sleep(SILENCE)));
            }
            return Poll::Ready(read);
        }
        if let Some(silent) = &mut self.silent {
            // Nothing was read: that is the end.
            return silent.as_mut().poll(cx).map(Ok);
        }
        self.reader = Some(cx.waker().clone());
        Poll::Pending
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for HalfOpen<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.inside).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inside).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let done = ready!(Pin::new(&mut self.inside).poll_shutdown(cx));
        if self.silent.is_none() {
            self.silent = Some(Box::pin(sleep(SILENCE)));
            if let Some(reader) = self.reader.take() {
                reader.wake();
            }
        }
        Poll::Ready(done)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, duplex, split};
    use tokio::time::Instant;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn connection_whose_client_left_ends_when_the_server_is_silent() {
        let (inside, mut program) = duplex(64);
        let (mut read, mut write) = split(HalfOpen::new(inside));
        let reading = tokio::spawn(async move {
            let mut all = Vec::new();
            read.read_to_end(&mut all).await.unwrap();
            (all, Instant::now())
        });
        sleep(SILENCE * 100).await;
        assert!(!reading.is_finished(), "a client that is there may be silent for long");
        write.shutdown().await.unwrap();
        sleep(SILENCE / 2).await;
        program.write_all(b"late").await.unwrap();
        let said = Instant::now();
        let (all, ended) = reading.await.unwrap();
        assert_eq!((all.as_slice(), ended - said), (&b"late"[..], SILENCE));
    }
}

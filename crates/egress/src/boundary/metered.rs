//! A stream whose bytes are counted and paced as they pass. It must never change them.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::Sleep;

use crate::relay::{Direction, Meter};

/// What comes from a client goes out, and what it is sent came in.
pub(super) struct Metered<S, M> {
    inner: S,
    meter: M,
    /// How long nothing more is read, and written.
    reads: Pause,
    writes: Pause,
}

#[derive(Default)]
struct Pause(Option<Pin<Box<Sleep>>>);

impl Pause {
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if let Some(sleep) = &mut self.0 {
            ready!(sleep.as_mut().poll(cx));
            self.0 = None;
        }
        Poll::Ready(())
    }

    fn begin(&mut self, time: Duration) {
        self.0 = (!time.is_zero()).then(|| Box::pin(tokio::time::sleep(time)));
    }
}

impl<S, M> Metered<S, M> {
    pub(super) fn new(inner: S, meter: M) -> Self {
        Self { inner, meter, reads: Pause::default(), writes: Pause::default() }
    }
}

impl<S: AsyncRead + Unpin, M: Meter + Unpin> AsyncRead for Metered<S, M> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        ready!(self.reads.poll(cx));
        let before = buf.filled().len();
        ready!(Pin::new(&mut self.inner).poll_read(cx, buf))?;
        let pause = self.meter.moved(Direction::Out, buf.filled().len() - before)?;
        self.reads.begin(pause);
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin, M: Meter + Unpin> AsyncWrite for Metered<S, M> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        ready!(self.writes.poll(cx));
        let written = ready!(Pin::new(&mut self.inner).poll_write(cx, buf))?;
        let pause = self.meter.moved(Direction::In, written)?;
        self.writes.begin(pause);
        Poll::Ready(Ok(written))
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, duplex};
    use tokio::time::Instant;

    use super::*;

    /// A tenth of a second for each byte that came, none for what goes.
    #[derive(Default)]
    struct Slow(Mutex<(usize, usize)>);

    impl Meter for &Slow {
        fn moved(&self, direction: Direction, bytes: usize) -> io::Result<Duration> {
            let mut both = self.0.lock().unwrap();
            match direction {
                Direction::Out => both.0 += bytes,
                Direction::In => both.1 += bytes,
            }
            let paced = direction == Direction::Out;
            Ok(if paced { Duration::from_millis(100) * bytes as u32 } else { Duration::ZERO })
        }
    }

    #[tokio::test(start_paused = true)]
    async fn bytes_are_counted_and_paced() {
        let (slow, began) = (Slow::default(), Instant::now());
        let (mut near, far) = duplex(64);
        let mut far = Metered::new(far, &slow);
        near.write_all(b"12345").await.unwrap();
        let mut byte = [0];
        for expected in b"12345" {
            far.read_exact(&mut byte).await.unwrap();
            assert_eq!(byte[0], *expected);
        }
        assert_eq!(began.elapsed().as_millis() / 100, 4, "one pause between two of five");
        far.write_all(b"123").await.unwrap();
        near.read_exact(&mut [0; 3]).await.unwrap();
        assert_eq!(began.elapsed().as_millis() / 100, 4, "nothing paces the other direction");
        assert_eq!(*slow.0.lock().unwrap(), (5, 3));
    }
}

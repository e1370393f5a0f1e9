//! A connection with timeouts: it is cut when no request comes for too long, when a request head
//! does not arrive completely, when the client does not read its answer, or when the client
//! disconnects during a request. When the server closes it while the client still sends, the bytes
//! are read and dropped for a moment; otherwise the client would see a broken connection instead of
//! its answer. Timeouts are checked a few times per limit, not per request: exact timers would cost
//! too much.

use std::convert::Infallible;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::oneshot;
use tokio::time::{Instant, Sleep, sleep_until};

use crate::serve::{ConnectionLimits, Peer};

const IDLE: u8 = 0;
const HEAD: u8 = 1;
const SERVING: u8 = 2;
/// Something else than HTTP is spoken on it.
const HANDED_OVER: u8 = 3;

/// What a connection is doing, and since when.
#[derive(Debug)]
pub(super) struct Activity {
    phase: AtomicU8,
    born: Instant,
    since_ms: AtomicU64,
}

impl Activity {
    pub(super) fn new() -> Self {
        // One that was just opened must say what it wants as soon as one that began to.
        let (phase, born) = (AtomicU8::new(HEAD), Instant::now());
        Self { phase, born, since_ms: AtomicU64::new(0) }
    }

    fn enter(&self, phase: u8) {
        let ms = self.born.elapsed().as_millis() as u64;
        self.since_ms.store(ms, Ordering::Relaxed);
        self.phase.store(phase, Ordering::Relaxed);
    }

    /// A request is being worked on.
    pub(super) fn serve(&self) {
        self.phase.store(SERVING, Ordering::Relaxed);
    }

    /// Its answer is written.
    pub(super) fn rest(&self) {
        if self.phase.load(Ordering::Relaxed) != HANDED_OVER {
            self.enter(IDLE);
        }
    }

    /// From here on the bytes are not HTTP, and may pause without a limit.
    pub(super) fn hand_over(&self) {
        self.phase.store(HANDED_OVER, Ordering::Relaxed);
    }

    /// Something was read.
    fn on_read(&self) {
        if self.phase.load(Ordering::Relaxed) == IDLE {
            self.enter(HEAD);
        }
    }

    fn is_serving(&self) -> bool {
        self.phase.load(Ordering::Relaxed) == SERVING
    }

    /// Whether a request, or something else than HTTP, would be cut off with it.
    pub(super) fn is_busy(&self) -> bool {
        matches!(self.phase.load(Ordering::Relaxed), SERVING | HANDED_OVER)
    }

    /// Whether it does too long what it does.
    fn is_overdue(&self, limits: &ConnectionLimits) -> bool {
        let limit = match self.phase.load(Ordering::Relaxed) {
            IDLE => limits.idle,
            HEAD => limits.head,
            _ => return false,
        };
        let since = Duration::from_millis(self.since_ms.load(Ordering::Relaxed));
        self.born.elapsed() >= since + limit
    }
}

/// How long, and how much, is read of what a client still sends to a connection that is closed.
const LINGER: Duration = Duration::from_secs(2);
/// How long nothing may come before it is taken for all: what was sent may not be here yet.
const GLANCE: Duration = Duration::from_millis(100);
const LINGER_BYTES: usize = 16 << 20;

/// A stream that is watched.
pub(super) struct Watched<S> {
    stream: S,
    activity: Arc<Activity>,
    limits: Arc<ConnectionLimits>,
    look: Pin<Box<Sleep>>,
    every: Duration,
    /// Since when nothing of what is to be written was taken.
    stuck_since: Option<Instant>,
    lingering: Option<Linger>,
    /// Dropped with the stream, however it is passed on.
    _there: Option<oneshot::Sender<Infallible>>,
}

/// A connection that is closed on our side only.
struct Linger {
    until: Pin<Box<Sleep>>,
    read: usize,
}

impl<S> Watched<S> {
    pub(super) fn new(stream: S, activity: Arc<Activity>, limits: Arc<ConnectionLimits>) -> Self {
        let shortest = limits.head.min(limits.idle).min(limits.write_stall);
        let every = (shortest / 4).max(Duration::from_millis(1));
        let look = Box::pin(sleep_until(Instant::now() + every));
        let (stuck_since, lingering, there) = (None, None, None);
        Self { stream, activity, limits, look, every, stuck_since, lingering, _there: there }
    }

    /// Drops `gone` together with the stream.
    pub(super) fn held(self, there: oneshot::Sender<Infallible>) -> Self {
        Self { _there: Some(there), ..self }
    }

    /// Ready with an error when the connection is to be cut.
    fn poll_overdue(&mut self, cx: &mut Context<'_>) -> Poll<io::Error> {
        loop {
            ready!(self.look.as_mut().poll(cx));
            let stuck = self.stuck_since.is_some_and(|at| at.elapsed() >= self.limits.write_stall);
            if stuck || self.activity.is_overdue(&self.limits) {
                return Poll::Ready(io::ErrorKind::TimedOut.into());
            }
            self.look.as_mut().reset(Instant::now() + self.every);
        }
    }

    fn poll_written<T>(
        &mut self,
        cx: &mut Context<'_>,
        written: Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        if written.is_ready() {
            self.stuck_since = None;
            return written;
        }
        self.stuck_since.get_or_insert_with(Instant::now);
        self.poll_overdue(cx).map(Err)
    }
}

impl<S: AsyncRead + Unpin> Watched<S> {
    /// Ready when the client sends nothing for a moment, or sent something for too long.
    fn poll_drained(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        loop {
            let mut scratch = [0; 8 * 1024];
            let mut buf = ReadBuf::new(&mut scratch);
            let read = Pin::new(&mut self.stream).poll_read(cx, &mut buf);
            let linger = self.lingering.get_or_insert_with(|| Linger {
                until: Box::pin(sleep_until(Instant::now() + GLANCE)),
                read: 0,
            });
            let read = match read {
                Poll::Ready(Ok(())) => buf.filled().len(),
                Poll::Ready(Err(_)) => 0,
                Poll::Pending => return linger.until.as_mut().poll(cx),
            };
            if linger.read == 0 {
                linger.until.as_mut().reset(Instant::now() + LINGER);
            }
            linger.read += read;
            if read == 0 || linger.read > LINGER_BYTES {
                return Poll::Ready(());
            }
        }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Watched<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let read = Pin::new(&mut self.stream).poll_read(cx, buf);
        if read.is_ready() {
            self.activity.on_read();
            return read;
        }
        self.poll_overdue(cx).map(Err)
    }
}

impl<S: Peer> Watched<S> {
    /// Ready with an error when the client of a request left. Nothing is read while the next
    /// request waits in a buffer, so that the end of the connection is not seen by reading.
    fn poll_left(&mut self, cx: &mut Context<'_>) -> Poll<io::Error> {
        if !self.activity.is_serving() {
            return Poll::Pending;
        }
        let heard = self.stream.poll_heard(cx);
        if self.stream.is_gone() {
            return Poll::Ready(io::ErrorKind::ConnectionAborted.into());
        }
        match heard {
            Poll::Pending => Poll::Pending,
            // More bytes would wake no task, so the state is checked again after a while.
            Poll::Ready(_) => self.poll_overdue(cx),
        }
    }
}

impl<S: AsyncRead + AsyncWrite + Peer + Unpin> AsyncWrite for Watched<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(cx, buf);
        self.poll_written(cx, written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(cx, bufs);
        self.poll_written(cx, written)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        // Whatever is done with a connection ends with this.
        if let Poll::Ready(error) = self.poll_left(cx) {
            return Poll::Ready(Err(error));
        }
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(Pin::new(&mut self.stream).poll_shutdown(cx))?;
        self.poll_drained(cx).map(Ok)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, duplex};
    use tokio::time::{sleep, timeout};

    use super::*;

    fn watched(
        stream: tokio::io::DuplexStream,
    ) -> (Watched<tokio::io::DuplexStream>, Arc<Activity>) {
        let activity = Arc::new(Activity::new());
        let limits = Arc::new(ConnectionLimits::default());
        (Watched::new(stream, Arc::clone(&activity), limits), activity)
    }

    #[tokio::test(start_paused = true)]
    async fn upgraded_connection_has_no_timeouts() {
        let (here, _there) = duplex(64);
        let (mut stream, activity) = watched(here);
        activity.serve();
        activity.hand_over();
        activity.rest();
        assert_eq!(given_up_after(&mut stream).await, None);
    }

    /// When a read on the connection is given up, to the second.
    async fn given_up_after(stream: &mut Watched<tokio::io::DuplexStream>) -> Option<u64> {
        let began = Instant::now();
        let mut buf = [0; 64];
        loop {
            match timeout(Duration::from_secs(1_000), stream.read(&mut buf)).await {
                Err(_) => return None,
                Ok(Ok(_)) => {}
                Ok(Err(error)) => {
                    assert_eq!(error.kind(), io::ErrorKind::TimedOut);
                    return Some(began.elapsed().as_secs());
                }
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn connection_with_a_slow_request_head_is_cut() {
        let (mut client, server) = duplex(64);
        let (mut server, _) = watched(server);
        let dribbling = async {
            while client.write_all(b"x").await.is_ok() {
                sleep(Duration::from_secs(1)).await;
            }
        };
        let cut = async { given_up_after(&mut server).await };
        let after = tokio::select! {
            () = dribbling => unreachable!("the server did not close it"),
            after = cut => after.unwrap(),
        };
        assert!((10..=13).contains(&after), "{after}");
    }

    #[tokio::test(start_paused = true)]
    async fn idle_connection_has_a_longer_timeout_and_a_busy_one_none() {
        let (_client, server) = duplex(64);
        let (mut server, activity) = watched(server);
        activity.serve();
        assert_eq!(given_up_after(&mut server).await, None);
        activity.rest();
        let after = given_up_after(&mut server).await.unwrap();
        assert!((75..=78).contains(&after), "{after}");
    }

    #[tokio::test(start_paused = true)]
    async fn connection_that_reads_nothing_is_cut_and_a_slow_one_is_not() {
        let (mut client, server) = duplex(64);
        let (mut server, activity) = watched(server);
        activity.serve();
        let slowly = async {
            let mut buf = [0; 8];
            for _ in 0..20 {
                sleep(Duration::from_secs(50)).await;
                client.read_exact(&mut buf).await.unwrap();
            }
            sleep(Duration::from_secs(1_000)).await;
        };
        let began = Instant::now();
        let writing = async {
            loop {
                if let Err(error) = server.write_all(&[0; 8]).await {
                    return error;
                }
            }
        };
        let (error, ()) = tokio::join!(writing, slowly);
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        assert!(began.elapsed() >= Duration::from_secs(1_000), "{:?}", began.elapsed());
    }

    #[tokio::test(start_paused = true)]
    async fn bytes_that_a_client_still_sends_are_read_before_the_close() {
        let (mut client, server) = duplex(64);
        let (mut server, _) = watched(server);
        let began = Instant::now();
        client.write_all(&[0; 64]).await.unwrap();
        let sending = async {
            for _ in 0..100 {
                client.write_all(&[0; 64]).await.unwrap();
            }
            client.shutdown().await.unwrap();
        };
        let (closed, ()) = tokio::join!(server.shutdown(), sending);
        closed.unwrap();
        let (_client, server) = duplex(64);
        let (mut quiet, _) = watched(server);
        quiet.shutdown().await.unwrap();
        assert!(began.elapsed() < LINGER, "who sends nothing is not waited for");
    }

    #[tokio::test(start_paused = true)]
    async fn client_that_sends_without_end_does_not_delay_the_close() {
        let (mut client, server) = duplex(64);
        let (mut server, _) = watched(server);
        client.write_all(b"x").await.unwrap();
        let began = Instant::now();
        let sending = async {
            while client.write_all(b"x").await.is_ok() {
                sleep(Duration::from_millis(100)).await;
            }
        };
        tokio::select! {
            closed = server.shutdown() => closed.unwrap(),
            () = sending => unreachable!("the server did not close it"),
        }
        assert!(began.elapsed() >= LINGER);
    }
}

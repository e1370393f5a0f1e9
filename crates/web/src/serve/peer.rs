//! Whether the other end of a connection is still there, also while bytes that it sent before it
//! left are unread: a reader sees the end only after those.

use std::io;
use std::net::IpAddr;
use std::task::{Context, Poll};

use tokio::io::Interest;
use tokio::net::{TcpStream, UnixStream};

/// The other end of a connection.
pub trait Peer {
    /// Its address; none for a socket of this machine that has none.
    fn address(&self) -> Option<IpAddr>;

    /// Whether it closed its sending side, or is gone altogether.
    fn is_gone(&self) -> bool;

    /// Ready if there is something to read, its end included; else the task is woken then.
    fn poll_heard(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>>;
}

// Priority is the one readiness that a closed peer sets and readable bytes do not. The readiness is
// only checked; no system call is made.

impl Peer for TcpStream {
    fn address(&self) -> Option<IpAddr> {
        self.peer_addr().ok().map(|address| address.ip())
    }

    fn is_gone(&self) -> bool {
        self.try_io(Interest::PRIORITY, || Ok(())).is_ok()
    }

    fn poll_heard(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.poll_read_ready(cx)
    }
}

impl Peer for UnixStream {
    fn address(&self) -> Option<IpAddr> {
        None
    }

    fn is_gone(&self) -> bool {
        self.try_io(Interest::PRIORITY, || Ok(())).is_ok()
    }

    fn poll_heard(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.poll_read_ready(cx)
    }
}

#[cfg(test)]
impl Peer for tokio::io::DuplexStream {
    fn address(&self) -> Option<IpAddr> {
        None
    }

    fn is_gone(&self) -> bool {
        false
    }

    fn poll_heard(&self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Pending
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::io::{AsyncWrite, AsyncWriteExt as _};
    use tokio::net::TcpListener;
    use tokio::time::{sleep, timeout};

    use super::*;

    async fn is_seen_to_leave(mut here: impl AsyncWrite + Unpin, there: impl Peer) {
        assert!(!there.is_gone());
        here.write_all(b"something unread").await.unwrap();
        let heard = std::future::poll_fn(|cx| there.poll_heard(cx));
        timeout(Duration::from_secs(20), heard).await.unwrap().unwrap();
        assert!(!there.is_gone(), "it only said something");
        drop(here);
        let leaving = async {
            while !there.is_gone() {
                sleep(Duration::from_millis(1)).await;
            }
        };
        timeout(Duration::from_secs(20), leaving).await.unwrap();
    }

    #[tokio::test]
    async fn peer_close_is_seen_behind_unread_bytes() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let here = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        is_seen_to_leave(here, listener.accept().await.unwrap().0).await;
        let (here, there) = UnixStream::pair().unwrap();
        is_seen_to_leave(here, there).await;
    }
}

//! The accept loop. Connections are bounded in number, and each in what it may cost: a head that
//! arrives too slowly, a client that sends nothing and one that reads nothing are cut off. When the
//! server stops, requests in progress are finished first.
//!
//! HTTP/1.1 only: one request at a time on a connection, so that the bound on connections is one
//! on requests too.

mod connection;
mod peer;
mod places;
mod watched;

use std::io;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use model::{ErrorCode, Refusal};
use rustix::net::sockopt;
use socket2::SockRef;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use wire::Problem;

use crate::serve::connection::connection;
pub use crate::serve::peer::Peer;
pub(crate) use crate::serve::places::Place;
use crate::serve::places::{NoPlace, Places};
use crate::serve::watched::Activity;

/// How long to wait when nothing can be accepted, because descriptors are short for instance.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// How long a client may be silent before it is asked whether it is there, how often, and how many
/// times it may not answer.
const KEEPALIVE_IDLE: Duration = Duration::from_secs(30);
const KEEPALIVE_EVERY: Duration = Duration::from_secs(10);
const KEEPALIVE_PROBES: u32 = 3;
/// How long what was sent may stay without an answer of the client's machine.
const USER_TIMEOUT_MS: u32 = 60_000;

/// Limits of connections.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ConnectionLimits {
    /// How many there may be.
    pub connections: usize,
    /// How many of them one address may have that showed no valid key. A reverse proxy is one
    /// address for all its clients, so connections of keys do not count.
    pub strangers_per_address: usize,
    /// How long the head of a request may take, from its first byte.
    pub head: Duration,
    /// Size of the head of a request.
    pub head_bytes: usize,
    /// How long a connection may be without a request.
    pub idle: Duration,
    /// How long a client may take nothing of its answer.
    pub write_stall: Duration,
    /// How long requests may go on after the server was asked to stop.
    pub stop_grace: Duration,
}

impl Default for ConnectionLimits {
    fn default() -> Self {
        Self {
            connections: 4096,
            strangers_per_address: 512,
            head: Duration::from_secs(10),
            head_bytes: 64 * 1024,
            idle: Duration::from_secs(75),
            write_stall: Duration::from_mins(1),
            stop_grace: Duration::from_secs(30),
        }
    }
}

/// Where connections come from.
pub trait Listen: Send + 'static {
    /// A connection.
    type Stream: AsyncRead + AsyncWrite + Peer + Unpin + Send + 'static;

    /// The next one. Dropped while it waits, none is lost.
    fn accept(&self) -> impl Future<Output = io::Result<Self::Stream>> + Send;

    /// Writes what fits at once, for a connection that is not to be served.
    fn send_away(stream: Self::Stream, text: &[u8]);
}

impl Listen for TcpListener {
    type Stream = TcpStream;

    async fn accept(&self) -> io::Result<TcpStream> {
        let (stream, _) = self.accept().await?;
        // Answers are written whole: waiting for more to send with them only costs time.
        stream.set_nodelay(true)?;
        SockRef::from(&stream).set_tcp_notsent_lowat(UNSENT_BYTES)?;
        notice_who_is_gone(&stream)?;
        Ok(stream)
    }

    fn send_away(stream: TcpStream, text: &[u8]) {
        // A client that misses this answer sees the connection close.
        let _ = stream.try_write(text);
    }
}

/// How much the kernel takes of an answer before the client's machine does. The rest stays in the
/// server, where it counts as memory of the key; without this, the kernel takes megabytes for each
/// connection.
const UNSENT_BYTES: u32 = 128 << 10;

/// A client whose machine vanished closes no connection. TCP keepalive probes find it after a while
/// of silence, and data that it does not acknowledge in time ends its connection.
fn notice_who_is_gone(stream: &TcpStream) -> io::Result<()> {
    sockopt::set_socket_keepalive(stream, true)?;
    sockopt::set_tcp_keepidle(stream, KEEPALIVE_IDLE)?;
    sockopt::set_tcp_keepintvl(stream, KEEPALIVE_EVERY)?;
    sockopt::set_tcp_keepcnt(stream, KEEPALIVE_PROBES)?;
    sockopt::set_tcp_user_timeout(stream, USER_TIMEOUT_MS)?;
    Ok(())
}

impl Listen for UnixListener {
    type Stream = UnixStream;

    async fn accept(&self) -> io::Result<UnixStream> {
        self.accept().await.map(|(stream, _)| stream)
    }

    fn send_away(stream: UnixStream, text: &[u8]) {
        // A client that misses this answer sees the connection close.
        let _ = stream.try_write(text);
    }
}

/// How serving ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Served {
    /// Connections whose requests did not end in time, and which were cut.
    pub cut: usize,
}

/// Serves until `shutdown`, then finishes what is being worked on, for as long as the limits say.
pub async fn serve<L: Listen>(
    listener: L,
    router: &Router,
    limits: ConnectionLimits,
    shutdown: impl Future<Output = ()>,
) -> Served {
    let (stop, stops) = watch::channel(false);
    let limits = Arc::new(limits);
    let too_many = send_away("the server has too many connections");
    let too_many_here =
        send_away("this address has too many connections that have shown no valid key");
    let places = Places::new(&limits);
    let mut connections = JoinSet::new();
    tokio::pin!(shutdown);
    loop {
        tokio::select! {
            biased;
            () = &mut shutdown => break,
            Some(ended) = connections.join_next() => report(ended),
            accepted = listener.accept() => match accepted {
                Ok(stream) => {
                    let activity = Arc::new(Activity::new());
                    match places.enter(stream.address(), &activity) {
                        Ok(place) => {
                            let held = (activity, place);
                            let serving =
                                connection(stream, router.clone(), held, Arc::clone(&limits), stops.clone());
                            connections.spawn(serving);
                        }
                        Err(NoPlace::Full) => L::send_away(stream, &too_many),
                        Err(NoPlace::Strangers) => L::send_away(stream, &too_many_here),
                    }
                }
                Err(error) if is_of_one_connection(&error) => {}
                Err(error) => {
                    tracing::warn!(%error, "accepting a connection failed; trying again");
                    sleep(ACCEPT_PAUSE).await;
                }
            },
        }
    }
    drop(listener);
    stop.send_replace(true);
    let finishing = async {
        while let Some(ended) = connections.join_next().await {
            report(ended);
        }
    };
    let in_time = timeout(limits.stop_grace, finishing).await.is_ok();
    let cut = if in_time { 0 } else { connections.len() };
    connections.shutdown().await;
    Served { cut }
}

/// The answer to a connection above a limit.
fn send_away(cause: &'static str) -> Vec<u8> {
    let refusal = Refusal::new(ErrorCode::Overloaded, cause);
    let problem = Problem::new(&refusal.retry_after(1000), None, "none");
    let body = serde_json::to_string(&problem).unwrap_or_default();
    let (media_type, length) = (Problem::MEDIA_TYPE, body.len());
    format!(
        "HTTP/1.1 503 Service Unavailable\r\ncontent-type: {media_type}\r\n\
         content-length: {length}\r\nretry-after: 1\r\nconnection: close\r\n\r\n{body}"
    )
    .into_bytes()
}

fn report(ended: Result<(), tokio::task::JoinError>) {
    if let Err(error) = ended
        && error.is_panic()
    {
        tracing::error!(%error, "the task of a connection panicked");
    }
}

/// Whether an error is about the connection that would have been accepted, and not about us.
fn is_of_one_connection(error: &io::Error) -> bool {
    use io::ErrorKind as Kind;
    [Kind::ConnectionAborted, Kind::ConnectionRefused, Kind::ConnectionReset, Kind::Interrupted]
        .contains(&error.kind())
}

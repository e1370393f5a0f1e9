//! Connections to the real host of one connection of a client. They are verified before the first byte
//! of a request, and never shared with another client: each sandbox has its own.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures_util::future::BoxFuture;
use hyper::body::Incoming;
use hyper::client::conn::{TrySendError, http1, http2};
use hyper::{Request, Response};
use hyper_util::rt::{TokioIo, TokioTimer};
use model::HostName;
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::Mutex;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use super::bodies::Watched;
use super::roots::{self, UpstreamRoots};
use super::tasks::Tasks;

pub(super) const HANDSHAKE: Duration = Duration::from_secs(10);
pub(super) const HEAD_BYTES_MAX: u32 = 64 * 1024;
/// How many connections that speak HTTP/1.1 are kept while no request uses them.
const IDLE_MAX: usize = 4;

/// A connection of any kind.
pub(super) trait Stream: AsyncRead + AsyncWrite + Unpin + Send {}
impl<S: AsyncRead + AsyncWrite + Unpin + Send> Stream for S {}

/// A new connection, and what to do when its host is verified.
pub(crate) struct Dialled<S> {
    pub(crate) stream: S,
    pub(crate) verified: Box<dyn FnOnce() + Send>,
}

/// Connects anew to an address that was checked.
pub(super) type Dial =
    Box<dyn Fn() -> BoxFuture<'static, io::Result<Dialled<Box<dyn Stream>>>> + Send + Sync>;

/// The connections to one host.
pub(super) struct Upstream {
    pub(super) host: HostName,
    pub(super) roots: UpstreamRoots,
    pub(super) dial: Dial,
    pub(super) tasks: Tasks,
    pub(super) known: Mutex<Known>,
    /// How often it was not reached.
    pub(super) failures: AtomicU64,
}

/// What the connections so far have shown.
#[derive(Default)]
pub(super) struct Known {
    http2: Option<http2::SendRequest<Watched>>,
    /// Those that serve no request, and those that have not ended their last answer.
    http1: Vec<http1::SendRequest<Watched>>,
    speaks_http1: bool,
    /// Why it was not reached the last time.
    failed: Option<Unreached>,
}

/// Sends requests by one connection.
pub(super) enum Sender {
    Http1(http1::SendRequest<Watched>),
    Http2(http2::SendRequest<Watched>),
}

/// Why a host was not reached, in words for the client.
#[derive(Clone)]
pub(super) enum Unreached {
    /// There was no connection. Who dialled has reported that.
    Undialled(String),
    /// There was one, and it could not be used.
    Unusable(String),
}

impl Upstream {
    /// A connection that can take a request: one that is kept, or a new one.
    pub(super) async fn sender(&self) -> Result<Sender, Unreached> {
        let failures = self.failures.load(Ordering::Relaxed);
        let mut known = self.known.lock().await;
        if failures != self.failures.load(Ordering::Relaxed)
            && let Some(unreached) = &known.failed
        {
            // It waited for another request's attempt: a hundred would else try one after the other.
            return Err(unreached.clone());
        }
        known.tidy();
        if let Some(http2) = &known.http2 {
            return Ok(Sender::Http2(http2.clone()));
        }
        if let Some(at) = known.http1.iter().position(http1::SendRequest::is_ready) {
            return Ok(Sender::Http1(known.http1.swap_remove(at)));
        }
        if known.speaks_http1 {
            // Requests at the same time need connections at the same time.
            drop(known);
            return self.connect(&self.roots.any).await;
        }
        let connected = self.connect(&self.roots.any).await;
        match &connected {
            Ok(Sender::Http1(_)) => known.speaks_http1 = true,
            Ok(Sender::Http2(http2)) => known.http2 = Some(http2.clone()),
            Err(unreached) => {
                known.failed = Some(unreached.clone());
                self.failures.fetch_add(1, Ordering::Relaxed);
            }
        }
        connected
    }

    /// A new connection that can be upgraded, and is never kept.
    pub(super) async fn upgradable(&self) -> Result<Sender, Unreached> {
        self.connect(&self.roots.http1).await
    }

    /// Keeps a connection for later requests. It may still be busy with its last answer.
    pub(super) async fn keep(&self, sender: Sender) {
        let Sender::Http1(http1) = sender else { return };
        let mut known = self.known.lock().await;
        known.http1.push(http1);
        known.tidy();
    }

    async fn connect(&self, config: &Arc<ClientConfig>) -> Result<Sender, Unreached> {
        let stream = self.verified(config).await?;
        let unreached = |error: hyper::Error| {
            Unreached::Unusable(format!("its connection was refused: {error}"))
        };
        if stream.get_ref().1.alpn_protocol() == Some(b"h2") {
            let (sender, connection) = http2::Builder::new(self.tasks.clone())
                .timer(TokioTimer::new())
                .max_header_list_size(HEAD_BYTES_MAX)
                .handshake(TokioIo::new(stream))
                .await
                .map_err(unreached)?;
            self.tasks.start(async move {
                // Each request that was on it has its own error.
                connection.await.ok();
            });
            return Ok(Sender::Http2(sender));
        }
        let (sender, connection) = http1::Builder::new()
            .max_header_size(HEAD_BYTES_MAX as usize)
            .handshake(TokioIo::new(stream))
            .await
            .map_err(unreached)?;
        self.tasks.start(async move {
            connection.with_upgrades().await.ok();
        });
        Ok(Sender::Http1(sender))
    }

    async fn verified(
        &self,
        config: &Arc<ClientConfig>,
    ) -> Result<TlsStream<Box<dyn Stream>>, Unreached> {
        let dialled = (self.dial)().await;
        let Dialled { stream, verified } =
            dialled.map_err(|error| Unreached::Undialled(error.to_string()))?;
        let name = ServerName::try_from(self.host.as_str().to_owned())
            .map_err(|_| Unreached::Unusable("no certificate can be for this name".to_owned()))?;
        let handshake = TlsConnector::from(Arc::clone(config)).connect(name, stream);
        match timeout(HANDSHAKE, handshake).await {
            Ok(Ok(stream)) => {
                verified();
                Ok(stream)
            }
            Ok(Err(error)) => Err(Unreached::Unusable(roots::problem_of(&error))),
            Err(_) => {
                Err(Unreached::Unusable("the TLS handshake took longer than 10 seconds".to_owned()))
            }
        }
    }
}

impl Known {
    /// Forgets what has ended, and what is idle beside enough others.
    fn tidy(&mut self) {
        self.http2.take_if(|one| one.is_closed());
        let mut idle = 0;
        self.http1.retain(|one| {
            idle += usize::from(one.is_ready());
            !(one.is_closed() || one.is_ready() && idle > IDLE_MAX)
        });
    }
}

impl Sender {
    /// Sends a request. One of which nothing was sent comes back with the error.
    pub(super) async fn send(
        &mut self,
        request: Request<Watched>,
    ) -> Result<Response<Incoming>, TrySendError<Request<Watched>>> {
        match self {
            Self::Http1(http1) => http1.try_send_request(request).await,
            Self::Http2(http2) => http2.try_send_request(request).await,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn requests_that_wait_for_one_attempt_share_its_failure() {
        let attempts = Arc::new(AtomicU64::new(0));
        let counted = Arc::clone(&attempts);
        let dial: Dial = Box::new(move || {
            counted.fetch_add(1, Ordering::Relaxed);
            Box::pin(async {
                // The others begin to wait here.
                tokio::task::yield_now().await;
                Err(io::Error::other("refused"))
            })
        });
        let upstream = Upstream {
            host: HostName::parse("api.shoal.test").unwrap(),
            roots: UpstreamRoots::with(rustls::RootCertStore::empty(), None).unwrap(),
            dial,
            tasks: Tasks::default(),
            known: Mutex::default(),
            failures: AtomicU64::new(0),
        };
        for attempt in 1..=2 {
            let all = futures_util::future::join_all((0..20).map(|_| upstream.sender())).await;
            assert!(all.iter().all(Result::is_err));
            assert_eq!(attempts.load(Ordering::Relaxed), attempt);
        }
    }
}

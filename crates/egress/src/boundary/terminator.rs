//! Ends the TLS of a client and serves its requests, as HTTP/1.1 or HTTP/2. It must never show the
//! certificate of one host to a client that asked for another.

use std::convert::Infallible;
use std::fmt;
use std::io;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures_util::future::BoxFuture;
use hyper::server::conn::{http1, http2};
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use model::HostName;
use rustls::ServerConfig;
use rustls::server::{ClientHello, NoServerSessionStorage, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use tokio::io::{AsyncRead, AsyncWrite, copy_bidirectional};
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

use super::exchange::Exchange;
use super::metered::Metered;
use super::tasks::{EndsTasks, Tasks};
use super::upstream::{Dial, Dialled, HANDSHAKE, HEAD_BYTES_MAX, Known, Stream, Upstream};
use super::{Authority, BoundSecret, BoundaryNote, UpstreamRoots};
use crate::relay::Meter;

const REQUEST_HEAD: Duration = Duration::from_secs(30);
const STREAMS_MAX: u32 = 100;

/// Serves the connections of sandboxes to named hosts.
pub(crate) struct Terminator {
    authority: Authority,
    roots: UpstreamRoots,
}

impl Terminator {
    pub(crate) fn new(authority: Authority, roots: UpstreamRoots) -> Self {
        Self { authority, roots }
    }

    /// Serves one connection until it ends, with the bytes of its client counted and paced. An error is
    /// a handshake that failed. `dial` resolves, checks and connects anew; dropping the future cuts
    /// everything that belongs to the connection.
    pub(crate) async fn serve<S, U, D>(
        &self,
        (client, meter): (S, impl Meter + Send + Unpin + 'static),
        host: HostName,
        secrets: Arc<[BoundSecret]>,
        dial: D,
        log: impl Fn(BoundaryNote) + Send + Sync + 'static,
    ) -> io::Result<()>
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
        U: AsyncRead + AsyncWrite + Unpin + Send + 'static,
        D: Fn() -> BoxFuture<'static, io::Result<Dialled<U>>> + Send + Sync + 'static,
    {
        let client = Metered::new(client, meter);
        let acceptor = TlsAcceptor::from(Arc::new(self.config_for(&host)?));
        let client = timeout(HANDSHAKE, acceptor.accept(client))
            .await
            .map_err(|_| io::Error::from(io::ErrorKind::TimedOut))??;

        let tasks = Tasks::default();
        let _ends = EndsTasks(tasks.clone());
        let dial: Dial = Box::new(move || {
            let connecting = dial();
            Box::pin(async move {
                let Dialled { stream, verified } = connecting.await?;
                Ok(Dialled { stream: Box::new(stream) as Box<dyn Stream>, verified })
            })
        });
        let (roots, known) = (self.roots.clone(), tokio::sync::Mutex::new(Known::default()));
        let (tasks_of, failures) = (tasks.clone(), AtomicU64::new(0));
        let upstream =
            Upstream { host: host.clone(), roots, dial, tasks: tasks_of, known, failures };
        let (log, upgraded) = (Box::new(log), Mutex::new(None));
        let exchange = Arc::new(Exchange { host, secrets, upstream, log, upgraded });
        if client.get_ref().1.alpn_protocol() == Some(b"h2") {
            serve_http2(client, exchange, tasks).await;
        } else {
            serve_http1(client, exchange).await;
        }
        Ok(())
    }

    fn config_for(&self, host: &HostName) -> io::Result<ServerConfig> {
        let certified = self.authority.leaf_for(host).map_err(io::Error::other)?;
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let mut config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(io::Error::other)?
            .with_no_client_auth()
            .with_cert_resolver(Arc::new(OneHost { host: host.clone(), certified }));
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        // A session resumed under another name would be one that was not checked.
        config.session_storage = Arc::new(NoServerSessionStorage {});
        config.send_tls13_tickets = 0;
        Ok(config)
    }
}

/// Shows the certificate of a host to clients that ask for it by name.
struct OneHost {
    host: HostName,
    certified: Arc<CertifiedKey>,
}

impl fmt::Debug for OneHost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OneHost").field("host", &self.host).finish_non_exhaustive()
    }
}

impl ResolvesServerCert for OneHost {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        let named = HostName::parse(hello.server_name()?).ok()?;
        (named == self.host).then(|| Arc::clone(&self.certified))
    }
}

async fn serve_http1<S>(client: TlsStream<S>, exchange: Arc<Exchange>)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let serving = Arc::clone(&exchange);
    let service = service_fn(move |request| {
        let exchange = Arc::clone(&serving);
        async move { Ok::<_, Infallible>(exchange.answer(request).await) }
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(REQUEST_HEAD)
        .max_header_size(HEAD_BYTES_MAX as usize)
        .auto_date_header(false)
        .serve_connection(TokioIo::new(client), service)
        .with_upgrades();
    // A client that goes away is no error of ours.
    connection.await.ok();
    let upgraded = exchange.upgraded.lock().unwrap_or_else(PoisonError::into_inner).take();
    if let Some((client, host)) = upgraded
        && let (Ok(client), Ok(host)) = (client.await, host.await)
    {
        let (mut client, mut host) = (TokioIo::new(client), TokioIo::new(host));
        copy_bidirectional(&mut client, &mut host).await.ok();
    }
}

async fn serve_http2<S>(client: TlsStream<S>, exchange: Arc<Exchange>, tasks: Tasks)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let service = service_fn(move |request| {
        let exchange = Arc::clone(&exchange);
        async move { Ok::<_, Infallible>(exchange.answer(request).await) }
    });
    let connection = http2::Builder::new(tasks)
        .timer(TokioTimer::new())
        .max_header_list_size(HEAD_BYTES_MAX)
        .max_concurrent_streams(STREAMS_MAX)
        .auto_date_header(false)
        .serve_connection(TokioIo::new(client), service);
    connection.await.ok();
}

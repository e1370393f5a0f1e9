//! A real host on loopback, a client that trusts the boundary, and what was noted between them.

use std::convert::Infallible;
use std::fmt::Write as _;
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use base64::Engine as _;
use bytes::Bytes;
use futures_util::future::BoxFuture;
use http::{Request, Response};
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper::client::conn::{http1, http2};
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use model::HostName;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore, ServerConfig};
use tokio::io::{AsyncWriteExt as _, DuplexStream};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::client::TlsStream;
use tokio_rustls::{TlsAcceptor, TlsConnector};
use zeroize::Zeroizing;

use crate::boundary::{Authority, BoundSecret, BoundaryNote, Dialled, Terminator, UpstreamRoots};
use crate::relay::{Direction, Meter};

pub(super) const HOST: &str = "api.shoal.test";
pub(super) const PLACEHOLDER: &str = "shoal-placeholder-0123456789abcdef";
pub(super) const VALUE: &str = "sk-the-real-value/of+it==";

pub(super) type Body = BoxBody<Bytes, io::Error>;

pub(super) fn host() -> HostName {
    HostName::parse(HOST).unwrap()
}

pub(super) fn secret(name: &str, header: &str, placeholder: &str, value: &str) -> BoundSecret {
    BoundSecret {
        placeholder: placeholder.to_owned(),
        value: Zeroizing::new(value.to_owned()),
        header: header.to_owned(),
        hosts: vec![host()],
        secret: name.to_owned(),
    }
}

pub(super) fn full(bytes: impl Into<Bytes>) -> Body {
    Full::new(bytes.into()).map_err(|never: Infallible| match never {}).boxed()
}

/// A request whose URI is only a path, for a client of HTTP/1.1.
pub(super) fn get(path: &str) -> http::request::Builder {
    Request::get(path).header("host", HOST)
}

/// The certificate of a real host, its key, and the PEM that vouches for it.
pub(super) struct Certified {
    config: ServerConfig,
    pub(super) pem: String,
}

pub(super) fn certified(name: &str, ended: bool, alpn: &[&str]) -> Certified {
    let ca = Authority::new().unwrap();
    let pem = ca.certificate_pem();
    let mut now = time::OffsetDateTime::now_utc();
    if ended {
        now -= time::Duration::days(30);
    }
    let leaf = ca.leaf_at(&HostName::parse(name).unwrap(), now).unwrap();
    config_of(leaf, pem, alpn)
}

pub(super) fn self_signed(alpn: &[&str]) -> Certified {
    signed_by_itself(rcgen::IsCa::NoCa, alpn)
}

/// The certificate of an authority, which its clients trust, where that of a server belongs.
pub(super) fn authority_as_server(alpn: &[&str]) -> Certified {
    signed_by_itself(rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained), alpn)
}

fn signed_by_itself(is_ca: rcgen::IsCa, alpn: &[&str]) -> Certified {
    let key = rcgen::KeyPair::generate().unwrap();
    let mut params = rcgen::CertificateParams::new(vec![HOST.to_owned()]).unwrap();
    let trusted = matches!(is_ca, rcgen::IsCa::Ca(_));
    params.is_ca = is_ca;
    let certificate = params.self_signed(&key).unwrap();
    let der = certificate.der().clone();
    let encoded = base64::engine::general_purpose::STANDARD.encode(&der);
    let pem = format!("-----BEGIN CERTIFICATE-----\n{encoded}\n-----END CERTIFICATE-----\n");
    let pem = if trusted { pem } else { String::new() };
    let key = PrivateKeyDer::from(PrivatePkcs8KeyDer::from(key));
    let provider = rustls::crypto::aws_lc_rs::default_provider();
    let leaf = rustls::sign::CertifiedKey::from_der(vec![der], key, &provider).unwrap();
    config_of(Arc::new(leaf), pem, alpn)
}

fn config_of(leaf: Arc<rustls::sign::CertifiedKey>, pem: String, alpn: &[&str]) -> Certified {
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_cert_resolver(Arc::new(rustls::sign::SingleCertAndKey::from(leaf)));
    config.alpn_protocols = alpn.iter().map(|one| one.as_bytes().to_vec()).collect();
    Certified { config, pem }
}

/// A real host, and how many connections it accepted.
pub(super) struct Real {
    pub(super) address: SocketAddr,
    pub(super) pem: String,
    pub(super) connections: Arc<AtomicUsize>,
}

/// Listens, and gives each verified connection to a task.
pub(super) async fn real_tls<F, R>(certified: Certified, serve: F) -> Real
where
    F: Fn(tokio_rustls::server::TlsStream<TcpStream>) -> R + Send + Sync + 'static,
    R: Future<Output = ()> + Send + 'static,
{
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let connections = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&connections);
    let acceptor = TlsAcceptor::from(Arc::new(certified.config));
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            count.fetch_add(1, Ordering::Relaxed);
            if let Ok(stream) = acceptor.accept(stream).await {
                tokio::spawn(serve(stream));
            }
        }
    });
    Real { address, pem: certified.pem, connections }
}

/// A real host that answers requests, in the version that was agreed.
pub(super) async fn real<F, R>(alpn: &[&str], answer: F) -> Real
where
    F: Fn(Request<Incoming>) -> R + Clone + Send + Sync + 'static,
    R: Future<Output = Response<Body>> + Send + 'static,
{
    real_tls(certified(HOST, false, alpn), move |stream| {
        let answer = answer.clone();
        let service = service_fn(move |request| {
            let answer = answer(request);
            async move { Ok::<_, Infallible>(answer.await) }
        });
        async move {
            if stream.get_ref().1.alpn_protocol() == Some(b"h2") {
                let builder = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
                builder.serve_connection(TokioIo::new(stream), service).await.ok();
            } else {
                let builder = hyper::server::conn::http1::Builder::new();
                let connection = builder.serve_connection(TokioIo::new(stream), service);
                connection.with_upgrades().await.ok();
            }
        }
    })
    .await
}

/// Answers with what it received: the request line, the headers, an empty line, the body.
pub(super) async fn tell(request: Request<Incoming>) -> Response<Body> {
    let (parts, body) = request.into_parts();
    let mut text = format!("{} {} {:?}\n", parts.method, parts.uri, parts.version);
    for (name, value) in &parts.headers {
        writeln!(text, "{name}: {}", String::from_utf8_lossy(value.as_bytes())).unwrap();
    }
    text.push('\n');
    let body = body.collect().await.map(http_body_util::Collected::to_bytes).unwrap_or_default();
    text.push_str(&String::from_utf8_lossy(&body));
    Response::new(full(text))
}

/// The boundary between one client and one real host.
pub(super) struct Between {
    terminator: Arc<Terminator>,
    trusted: String,
    address: SocketAddr,
    secrets: Arc<[BoundSecret]>,
    notes: Arc<Mutex<Vec<BoundaryNote>>>,
    /// How many connections to the real host were verified.
    pub(super) verified: Arc<AtomicUsize>,
    pub(super) moved: Arc<Moved>,
}

impl Between {
    pub(super) fn new(real: &Real, secrets: Vec<BoundSecret>) -> Self {
        let authority = Authority::new().unwrap();
        let trusted = authority.certificate_pem();
        let trusts = (!real.pem.is_empty()).then_some(&*real.pem);
        let roots = UpstreamRoots::with(RootCertStore::empty(), trusts).unwrap();
        let terminator = Arc::new(Terminator::new(authority, roots));
        let (secrets, notes, verified) = (secrets.into(), Arc::default(), Arc::default());
        let (address, moved) = (real.address, Arc::default());
        Self { terminator, trusted, address, secrets, notes, verified, moved }
    }

    /// With the secret that most tests use.
    pub(super) fn usual(real: &Real) -> Self {
        Self::new(real, vec![secret("openai", "authorization", PLACEHOLDER, VALUE)])
    }

    /// What was noted, but for requests.
    pub(super) fn notes(&self) -> Vec<BoundaryNote> {
        let notes = self.notes.lock().unwrap().clone();
        assert!(!format!("{notes:?}").contains(VALUE));
        notes.into_iter().filter(|one| !matches!(one, BoundaryNote::Request { .. })).collect()
    }

    /// Serves one end of a connection.
    fn serve(&self, far: DuplexStream) -> tokio::task::JoinHandle<io::Result<()>> {
        let (terminator, secrets) = (Arc::clone(&self.terminator), Arc::clone(&self.secrets));
        let (notes, address) = (Arc::clone(&self.notes), self.address);
        let verified = Arc::clone(&self.verified);
        let moved = Arc::clone(&self.moved);
        tokio::spawn(async move {
            let dial = move || -> BoxFuture<'static, io::Result<Dialled<TcpStream>>> {
                let counted = Arc::clone(&verified);
                Box::pin(async move {
                    let stream = TcpStream::connect(address).await?;
                    let count = move || {
                        let _ = counted.fetch_add(1, Ordering::Relaxed);
                    };
                    Ok(Dialled { stream, verified: Box::new(count) })
                })
            };
            let log = move |note| notes.lock().unwrap().push(note);
            terminator.serve((far, moved), host(), secrets, dial, log).await
        })
    }

    /// What becomes of a connection whose first bytes are these.
    pub(super) async fn plain(&self, bytes: &[u8]) -> io::Result<()> {
        let (mut near, far) = tokio::io::duplex(64 * 1024);
        near.write_all(bytes).await.unwrap();
        self.serve(far).await.unwrap()
    }

    /// A client's TLS connection to the host's name, through the boundary.
    pub(super) async fn client(&self, name: &str, alpn: &[&str]) -> io::Result<Client> {
        self.client_with(name, alpn, |_| {}).await
    }

    /// The same, of a client that is unusual.
    pub(super) async fn client_with(
        &self,
        name: &str,
        alpn: &[&str],
        change: impl FnOnce(&mut ClientConfig),
    ) -> io::Result<Client> {
        let (near, far) = tokio::io::duplex(64 * 1024);
        let serving = self.serve(far);
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_slice(self.trusted.as_bytes()).unwrap()).unwrap();
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let mut config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots)
            .with_no_client_auth();
        config.alpn_protocols = alpn.iter().map(|one| one.as_bytes().to_vec()).collect();
        change(&mut config);
        let name = ServerName::try_from(name.to_owned()).unwrap();
        let stream = TlsConnector::from(Arc::new(config)).connect(name, near).await?;
        Ok(Client { stream, serving })
    }

    pub(super) async fn http1(&self) -> http1::SendRequest<Body> {
        let Client { stream, .. } = self.client(HOST, &["http/1.1"]).await.unwrap();
        let (sender, connection) = http1::handshake(TokioIo::new(stream)).await.unwrap();
        tokio::spawn(connection.with_upgrades());
        sender
    }

    pub(super) async fn http2(&self) -> http2::SendRequest<Body> {
        let Client { stream, .. } = self.client(HOST, &["h2"]).await.unwrap();
        let (sender, connection) =
            http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await.unwrap();
        tokio::spawn(connection);
        sender
    }
}

/// Counts what came and what went, and paces nothing.
#[derive(Default)]
pub(super) struct Moved {
    pub(super) out: AtomicUsize,
    pub(super) back: AtomicUsize,
}

impl Meter for Moved {
    fn moved(&self, direction: Direction, bytes: usize) -> io::Result<Duration> {
        let count = match direction {
            Direction::Out => &self.out,
            Direction::In => &self.back,
        };
        count.fetch_add(bytes, Ordering::Relaxed);
        Ok(Duration::ZERO)
    }
}

/// A client, and what serves it.
pub(super) struct Client {
    pub(super) stream: TlsStream<DuplexStream>,
    pub(super) serving: tokio::task::JoinHandle<io::Result<()>>,
}

pub(super) async fn text(response: Response<Incoming>) -> String {
    let bytes = response.into_body().collect().await.unwrap().to_bytes();
    String::from_utf8_lossy(&bytes).into_owned()
}

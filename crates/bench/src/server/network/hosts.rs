//! The server outside: the smallest one that answers requests, with and without TLS. It has a thread
//! for each connection, and what it costs is the same for both sides of a comparison.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::sync::Arc;

use command::failure::Failure;
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
use rustls::{ServerConfig, ServerConnection, StreamOwned};

/// An address of loopback on which nothing else serves TLS, and the only port for boundary secrets.
pub(super) const TLS: &str = "127.0.0.77:443";
/// The name of the host with TLS.
pub(super) const TLS_NAME: &str = "tls.shoal.test";
/// The name of the host without.
pub(super) const NAME: &str = "bench.shoal.test";

const BUFFER_BYTES: usize = 256 << 10;

/// Where the servers are.
pub(super) struct Hosts {
    /// Its connections are only copied.
    pub(super) copied: SocketAddr,
    /// Its requests are checked.
    pub(super) checked: SocketAddr,
}

impl Hosts {
    /// Starts them, and writes the certificate of their authority. They end with this process.
    pub(super) fn start(authority: &Path) -> Result<Self, Failure> {
        let failed = |error: io::Error| Failure::new("cannot serve", error);
        let config = Arc::new(
            certified(authority)
                .map_err(|error| Failure::new("cannot make a certificate", error))?,
        );
        let copied = listen("127.0.0.1:0", None).map_err(failed)?;
        let checked = listen("127.0.0.1:0", None).map_err(failed)?;
        listen(TLS, Some(config))
            .map_err(|error| Failure::new(format!("cannot serve at {TLS}"), error))?;
        Ok(Self { copied, checked })
    }
}

fn listen(address: &str, tls: Option<Arc<ServerConfig>>) -> io::Result<SocketAddr> {
    let listener = TcpListener::bind(address)?;
    let address = listener.local_addr()?;
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let tls = tls.clone();
            std::thread::spawn(move || {
                // A client that goes away ends its thread.
                let _ = serve(stream, tls);
            });
        }
    });
    Ok(address)
}

fn serve(stream: TcpStream, tls: Option<Arc<ServerConfig>>) -> io::Result<()> {
    stream.set_nodelay(true)?;
    match tls {
        None => answer_all(stream),
        Some(config) => {
            let session = ServerConnection::new(config).map_err(io::Error::other)?;
            answer_all(StreamOwned::new(session, stream))
        }
    }
}

/// `GET /N` gets N bytes, and `POST /N` brings them.
fn answer_all<S: Read + Write>(mut stream: S) -> io::Result<()> {
    let mut buffer = vec![0; BUFFER_BYTES];
    let mut filled = 0;
    loop {
        let end = loop {
            if let Some(at) = memchr::memmem::find(&buffer[..filled], b"\r\n\r\n") {
                break at + 4;
            }
            match stream.read(&mut buffer[filled..])? {
                0 => return Ok(()),
                count => filled += count,
            }
        };
        let head = String::from_utf8_lossy(&buffer[..end]).into_owned();
        let mut words = head.split([' ', '/']);
        let is_upload = words.next() == Some("POST");
        let bytes = words.nth(1).and_then(|word| word.parse::<usize>().ok()).unwrap_or(0);
        if is_upload {
            let mut left = bytes.saturating_sub(filled - end);
            while left > 0 {
                match stream.read(&mut buffer)? {
                    0 => return Ok(()),
                    count => left = left.saturating_sub(count),
                }
            }
        }
        filled = 0;
        let mut left = if is_upload { 2 } else { bytes };
        let mut answer = format!("HTTP/1.1 200 OK\r\nContent-Length: {left}\r\n\r\n").into_bytes();
        let first = left.min(1024);
        answer.resize(answer.len() + first, 0);
        stream.write_all(&answer)?;
        left -= first;
        while left > 0 {
            let count = left.min(buffer.len());
            stream.write_all(&buffer[..count])?;
            left -= count;
        }
        stream.flush()?;
    }
}

/// An authority of our own, and a certificate of it.
fn certified(authority: &Path) -> Result<ServerConfig, Box<dyn std::error::Error>> {
    let key = KeyPair::generate()?;
    let mut params = CertificateParams::new(Vec::new())?;
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    std::fs::write(authority, pem(params.self_signed(&key)?.der()))?;
    let issuer = Issuer::new(params, key);
    let key = KeyPair::generate()?;
    let certificate =
        CertificateParams::new(vec![TLS_NAME.to_owned()])?.signed_by(&key, &issuer)?;
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let key = PrivateKeyDer::from(PrivatePkcs8KeyDer::from(key.serialize_der()));
    Ok(ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_no_client_auth()
        .with_single_cert(vec![certificate.der().clone()], key)?)
}

fn pem(bytes: &[u8]) -> String {
    use base64::Engine as _;
    let text = base64::engine::general_purpose::STANDARD.encode(bytes);
    format!("-----BEGIN CERTIFICATE-----\n{text}\n-----END CERTIFICATE-----\n")
}

//! The program whose connections are timed, in a sandbox and on the host: this benchmark again, in
//! another role. It does the same in both places, and prints one time for each thing that it did.

use std::io::{self, Read, Write};
use std::net::{TcpStream, ToSocketAddrs as _};
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};
use tokio::time::Instant;

/// The word that makes the benchmark this program.
pub(super) const ROLE: &str = "network-client";

/// The variable with the address to connect to, where no resolver knows the name.
pub(super) const ADDRESS: &str = "SHOAL_BENCH_ADDRESS";

const BUFFER_BYTES: usize = 256 << 10;
/// What a client does before it counts.
const WARM_UP: u32 = 5;

/// What is timed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// A connection, until its first request is answered.
    Connect,
    /// A request on a connection that is kept.
    Request,
    /// Many bytes to the client.
    Download,
    /// Many bytes from the client.
    Upload,
}

impl Kind {
    pub(super) const ALL: [Self; 4] = [Self::Connect, Self::Request, Self::Download, Self::Upload];

    pub(super) const fn word(self) -> &'static str {
        match self {
            Self::Connect => "connect",
            Self::Request => "request",
            Self::Download => "download",
            Self::Upload => "upload",
        }
    }
}

trait Stream: Read + Write {}
impl<S: Read + Write> Stream for S {}

/// Runs as the client if this program was started as one: `network-client KIND HOST PORT COUNT
/// BYTES [AUTHORITY]`.
pub(in super::super::super) fn main_of_client() -> Option<ExitCode> {
    let mut words = std::env::args().skip(1);
    if words.next()? != ROLE {
        return None;
    }
    let words: Vec<String> = words.collect();
    Some(match run(&words) {
        Ok(times) => {
            let lines: Vec<String> = times.iter().map(|time| time.as_nanos().to_string()).collect();
            match io::stdout().write_all(lines.join("\n").as_bytes()) {
                Ok(()) => ExitCode::SUCCESS,
                Err(_) => ExitCode::FAILURE,
            }
        }
        Err(error) => {
            let _ = writeln!(io::stderr(), "{words:?}: {error}");
            ExitCode::FAILURE
        }
    })
}

struct Client {
    host: String,
    port: u16,
    tls: Option<Arc<ClientConfig>>,
    buffer: Vec<u8>,
}

fn run(words: &[String]) -> io::Result<Vec<Duration>> {
    let wrong = || io::Error::from(io::ErrorKind::InvalidInput);
    let [kind, host, port, count, bytes, rest @ ..] = words else { return Err(wrong()) };
    let kind = Kind::ALL.into_iter().find(|one| one.word() == kind).ok_or_else(wrong)?;
    let number = |text: &String| text.parse::<u32>().map_err(|_| wrong());
    let (count, bytes) = (number(count)?, number(bytes)?);
    let mut client = Client {
        host: host.clone(),
        port: port.parse().map_err(|_| wrong())?,
        tls: rest.first().map(|path| trusting(Path::new(path))).transpose()?,
        buffer: vec![0; BUFFER_BYTES],
    };
    let mut times = Vec::new();
    match kind {
        Kind::Connect => {
            // Looked up once: this is about the connection.
            let address = (host.as_str(), client.port).to_socket_addrs()?.next();
            let address = address.ok_or_else(wrong)?;
            for round in 0..count + WARM_UP {
                let began = Instant::now();
                let stream = TcpStream::connect(address)?;
                stream.set_nodelay(true)?;
                let mut stream = client.wrapped(stream)?;
                client.ask(&mut *stream, "GET", 2)?;
                if round >= WARM_UP {
                    times.push(began.elapsed());
                }
            }
        }
        Kind::Request => {
            let mut stream = client.connect()?;
            for round in 0..count + WARM_UP {
                let began = Instant::now();
                client.ask(&mut *stream, "GET", 2)?;
                if round >= WARM_UP {
                    times.push(began.elapsed());
                }
            }
        }
        Kind::Download | Kind::Upload => {
            let method = if kind == Kind::Download { "GET" } else { "POST" };
            let mut stream = client.connect()?;
            client.ask(&mut *stream, method, 1 << 20)?;
            for _ in 0..count {
                let began = Instant::now();
                client.ask(&mut *stream, method, bytes)?;
                times.push(began.elapsed());
            }
        }
    }
    Ok(times)
}

impl Client {
    fn connect(&self) -> io::Result<Box<dyn Stream>> {
        let stream = match std::env::var(ADDRESS) {
            Ok(address) => TcpStream::connect(address)?,
            Err(_) => TcpStream::connect((self.host.as_str(), self.port))?,
        };
        stream.set_nodelay(true)?;
        self.wrapped(stream)
    }

    fn wrapped(&self, stream: TcpStream) -> io::Result<Box<dyn Stream>> {
        let Some(config) = &self.tls else { return Ok(Box::new(stream)) };
        let name = ServerName::try_from(self.host.clone()).map_err(io::Error::other)?;
        let session = ClientConnection::new(Arc::clone(config), name).map_err(io::Error::other)?;
        Ok(Box::new(StreamOwned::new(session, stream)))
    }

    /// Asks for so many bytes, or sends them, and reads the answer to its end.
    fn ask(&mut self, stream: &mut dyn Stream, method: &str, bytes: u32) -> io::Result<()> {
        let host = &self.host;
        let length = if method == "POST" { bytes } else { 0 };
        let head = format!(
            "{method} /{bytes} HTTP/1.1\r\nHost: {host}:{}\r\nContent-Length: {length}\r\n\r\n",
            self.port
        );
        // A GET with a body would be refused, and a length of nothing is none.
        let head = head.replace("Content-Length: 0\r\n", "");
        stream.write_all(head.as_bytes())?;
        let mut left = length as usize;
        while left > 0 {
            let count = left.min(self.buffer.len());
            stream.write_all(&self.buffer[..count])?;
            left -= count;
        }
        stream.flush()?;
        read_answer(stream, &mut self.buffer)
    }
}

/// Reads an answer whose length is said beforehand.
fn read_answer(stream: &mut dyn Stream, buffer: &mut [u8]) -> io::Result<()> {
    let odd = |what: &str| io::Error::new(io::ErrorKind::InvalidData, what.to_owned());
    let mut filled = 0;
    let end = loop {
        match stream.read(&mut buffer[filled..])? {
            0 => return Err(odd("no answer")),
            count => filled += count,
        }
        if let Some(at) = memchr::memmem::find(&buffer[..filled], b"\r\n\r\n") {
            break at + 4;
        }
    };
    let head = String::from_utf8_lossy(&buffer[..end]).to_ascii_lowercase();
    if !head.starts_with("http/1.1 200") {
        return Err(odd(&String::from_utf8_lossy(&buffer[..filled])));
    }
    let mut lengths = head.lines().filter_map(|line| line.strip_prefix("content-length:"));
    let length = lengths.next().and_then(|text| text.trim().parse::<usize>().ok());
    let mut left = (end + length.ok_or_else(|| odd("no length"))?).saturating_sub(filled);
    while left > 0 {
        match stream.read(buffer)? {
            0 => return Err(odd("half an answer")),
            count => left = left.saturating_sub(count),
        }
    }
    Ok(())
}

fn trusting(path: &Path) -> io::Result<Arc<ClientConfig>> {
    let mut roots = RootCertStore::empty();
    let certificate = CertificateDer::from_pem_file(path).map_err(io::Error::other)?;
    roots.add(certificate).map_err(io::Error::other)?;
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(io::Error::other)?;
    Ok(Arc::new(config.with_root_certificates(roots).with_no_client_auth()))
}

//! A sandbox without a network of its own, and hosts on loopback.

use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, SocketAddrV4};
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use model::{HostName, InstanceId, NetworkPolicy};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::mpsc;
use tokio::time::timeout;

use super::super::Shared;
use super::super::order::Order;
use super::super::sandbox::Sandbox;
use crate::control::{AttachMessage, Beginning, BoundarySecret, Sockets};
use crate::event::{EgressEvent, EventKind};
use crate::limits::EgressLimits;
use crate::node_addresses::NodeAddresses;

pub(super) const PATIENCE: Duration = Duration::from_secs(10);

/// What clients dialled, by their own ports.
static DIALLED: Mutex<BTreeMap<u16, SocketAddr>> = Mutex::new(BTreeMap::new());

fn dialled(socket: BorrowedFd<'_>) -> io::Result<SocketAddr> {
    let client = SocketAddr::try_from(rustix::net::getpeername(socket)?.unwrap()).unwrap();
    DIALLED.lock().unwrap().get(&client.port()).copied().ok_or(io::ErrorKind::NotFound.into())
}

pub(super) struct Bed {
    pub shared: Arc<Shared>,
    pub sandbox: Arc<Sandbox>,
    pub connections: SocketAddr,
    pub names: SocketAddr,
}

pub(super) fn allow(rules: &[&str]) -> NetworkPolicy {
    NetworkPolicy::Allow(rules.iter().map(|rule| rule.parse().unwrap()).collect())
}

pub(super) fn host(name: &str) -> HostName {
    HostName::parse(name).unwrap()
}

impl Bed {
    /// `one.test`, `two.test` and `up.test` are on loopback; all else is asked of `resolver`.
    pub(super) fn new(rules: &[&str], resolver: Option<SocketAddr>) -> Self {
        Self::with(rules, resolver, EgressLimits::default(), None)
    }

    pub(super) fn with(
        rules: &[&str],
        resolver: Option<SocketAddr>,
        limits: EgressLimits,
        beside: Option<&Self>,
    ) -> Self {
        Self::with_secrets(rules, resolver, limits, beside, Vec::new())
    }

    pub(super) fn with_secrets(
        rules: &[&str],
        resolver: Option<SocketAddr>,
        limits: EgressLimits,
        beside: Option<&Self>,
        secrets: Vec<BoundarySecret>,
    ) -> Self {
        let local: Vec<IpAddr> = vec![Ipv4Addr::LOCALHOST.into()];
        let hosts = ["one.test", "two.test", "up.test"].map(|name| (host(name), local.clone()));
        let beginning = Beginning {
            user: 65534,
            resolver: Some(resolver.unwrap_or(SocketAddr::from(([127, 0, 0, 1], 9)))),
            hosts: hosts.into(),
            proxy: None,
            upstream_ca_pem: None,
            authority: None,
            node: NodeAddresses::default(),
        };
        let made = || Arc::new(Shared::new(beginning, Order::default(), dialled, 20_000).unwrap());
        let shared = beside.map_or_else(made, |other| other.shared.clone());
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let datagrams = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        let (connections, names) =
            (listener.local_addr().unwrap(), datagrams.local_addr().unwrap());
        let sockets = Sockets { connections: listener.into(), names: Some(datagrams.into()) };
        let attach = AttachMessage {
            sandbox: InstanceId::from_u128(1),
            key: None,
            parts: 1,
            names_key: [7; 16],
            policy: allow(rules).into(),
            limits,
            secrets,
        };
        let sandbox = Sandbox::start(&shared, attach, sockets, None).unwrap();
        Self { shared, sandbox, connections, names }
    }

    /// A connection as if this address had been dialled in the sandbox.
    pub(super) async fn dial(&self, to: SocketAddr) -> TcpStream {
        let socket = TcpSocket::new_v4().unwrap();
        socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
        DIALLED.lock().unwrap().insert(socket.local_addr().unwrap().port(), to);
        socket.connect(self.connections).await.unwrap()
    }

    pub(super) async fn dial_name(&self, name: &str, port: u16) -> TcpStream {
        let address = self.sandbox.names.lock().unwrap().address_of(&host(name)).unwrap().address;
        self.dial(SocketAddrV4::new(address, port).into()).await
    }

    pub(super) async fn dial_proxy(&self) -> TcpStream {
        self.dial("127.0.0.1:3128".parse().unwrap()).await
    }

    /// The next event of a kind; others before it are dropped.
    pub(super) async fn event(&self, kind: EventKind) -> EgressEvent {
        timeout(PATIENCE, async {
            loop {
                if let Some(event) = self.shared.outbox.take_first(kind) {
                    return event;
                }
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        })
        .await
        .expect("an event")
    }
}

pub(super) async fn write(client: &mut TcpStream, bytes: &[u8]) {
    client.write_all(bytes).await.unwrap();
}

/// What comes next; nothing if the connection was cut.
pub(super) async fn read_some(client: &mut TcpStream) -> Vec<u8> {
    let mut buffer = vec![0; 4096];
    let count = timeout(PATIENCE, client.read(&mut buffer)).await.unwrap().unwrap_or_default();
    buffer.truncate(count);
    buffer
}

/// All that comes until the end, or until the connection is cut.
pub(super) async fn read_all(client: &mut TcpStream) -> Vec<u8> {
    let mut buffer = Vec::new();
    let _ = timeout(PATIENCE, client.read_to_end(&mut buffer)).await.unwrap();
    buffer
}

/// A host that repeats everything, and after its end says so.
pub(super) async fn echo() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            tokio::spawn(async move {
                let (mut read, mut write) = stream.into_split();
                if tokio::io::copy(&mut read, &mut write).await.is_ok() {
                    let _ = write.write_all(b" and the end").await;
                }
            });
        }
    });
    address
}

/// A host that answers each request with "ok", and says what it got when the connection has ended.
pub(super) async fn served() -> (SocketAddr, mpsc::UnboundedReceiver<String>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (tell, seen) = mpsc::unbounded_channel();
    tokio::spawn(async move {
        loop {
            let (mut stream, _) = listener.accept().await.unwrap();
            let tell = tell.clone();
            tokio::spawn(async move {
                let mut all = Vec::new();
                let mut buffer = [0; 4096];
                while let Ok(count @ 1..) = stream.read(&mut buffer).await {
                    all.extend_from_slice(&buffer[..count]);
                    let answer = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";
                    let _ = stream.write_all(answer).await;
                }
                let _ = tell.send(String::from_utf8_lossy(&all).into_owned());
            });
        }
    });
    (address, seen)
}

/// The greeting of a TLS client that names a host.
pub(super) fn hello(name: &str) -> Vec<u8> {
    let long = |bytes: &[u8]| [&(bytes.len() as u16).to_be_bytes()[..], bytes].concat();
    let names = long(&[&[0][..], &long(name.as_bytes())].concat());
    let extensions = long(&[&[0, 0][..], &long(&names)].concat());
    let mut body = [&[3, 3][..], &[9; 32], &[0], &[0, 2, 0x13, 1], &[1, 0]].concat();
    body.extend(extensions);
    let message = [&[1, 0][..], &long(&body)].concat();
    [&[22, 3, 1][..], &long(&message)].concat()
}

//! One connection of a sandbox: where it was dialled decides what it is, the policy decides whether it
//! goes on, and the rule decides what it must prove first. It must never reach a host before all of
//! that, nor report a byte of what it carries.

use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use model::{ConnectionCheck, HostName};
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::dial::{self, Denied};
use super::sandbox::{Grant, Sandbox};
use super::{bound, greeted, names, proxy, requests};
use crate::event::{EgressEvent, EventKind, Verdict};
use crate::http_head::Requests;
use crate::policy::Granted;
use crate::relay::{Direction, Meter, read_more, relay, write_all};
use crate::synthetic::Synthetic;
use crate::target::{Host, Target};

/// Where programs find the proxy and the resolver.
const PROXY_PORT: u16 = 3128;
const NAMES_PORT: u16 = 53;
/// How long an answer of ours waits for its reader.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// One connection. Dropping it takes it out of its sandbox, and reports its end.
pub(super) struct Connection {
    pub sandbox: Arc<Sandbox>,
    pub number: u64,
    sent: AtomicU64,
    received: AtomicU64,
    /// What was reported when it was connected.
    opened: Mutex<Option<EgressEvent>>,
    finished: AtomicBool,
}

/// How a program asked for its target, and so how it is answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Way {
    /// It dialled the target's address.
    Direct,
    /// It asked the HTTP proxy for a tunnel.
    Tunnel,
    /// It asked the SOCKS proxy.
    Socks,
}

impl Connection {
    pub(super) fn new(sandbox: Arc<Sandbox>, number: u64) -> Self {
        let outbox = &sandbox.shared.outbox;
        outbox.accepted.fetch_add(1, Relaxed);
        outbox.connections.fetch_add(1, Relaxed);
        Self {
            sandbox,
            number,
            sent: AtomicU64::new(0),
            received: AtomicU64::new(0),
            opened: Mutex::new(None),
            finished: AtomicBool::new(false),
        }
    }

    /// An event about this connection.
    pub(super) fn event(&self, target: &Target, verdict: Verdict) -> EgressEvent {
        let mut event = EgressEvent::of(self.sandbox.id, EventKind::Connection, verdict);
        match &target.host {
            Host::Name(name) => event.name = Some(name.clone()),
            Host::Address(address) => event.address = Some(*address),
        }
        event.port = target.port;
        event
    }

    /// Reports that it goes no further.
    pub(super) fn denied(&self, target: &Target, rule: Option<&Granted>, denied: &Denied) {
        let mut event = self.event(target, denied.verdict);
        event.rule = rule.map(|granted| granted.rule.to_string());
        event.reason = Some(denied.reason.clone());
        self.sandbox.report(event);
    }

    /// Reports that it is connected; its end is reported too.
    pub(super) fn connected(&self, target: &Target, granted: &Granted, address: Option<IpAddr>) {
        let mut event = self.event(target, Verdict::Allowed);
        event.rule = Some(granted.rule.to_string());
        event.address = address.or(event.address);
        self.sandbox.report(event.clone());
        *self.opened.lock().unwrap_or_else(PoisonError::into_inner) = Some(event);
    }
}

impl Meter for Connection {
    fn moved(&self, direction: Direction, bytes: usize) -> io::Result<Duration> {
        let outbox = &self.sandbox.shared.outbox;
        let (own, all) = match direction {
            Direction::Out => (&self.sent, &outbox.sent),
            Direction::In => (&self.received, &outbox.received),
        };
        let count = bytes as u64;
        own.fetch_add(count, Relaxed);
        all.fetch_add(count, Relaxed);
        let connection = std::ptr::from_ref(self).addr() as u64;
        self.sandbox.shared.linger.moved(connection, bytes);
        self.sandbox.moved(bytes)
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.sandbox.shared.outbox.connections.fetch_sub(1, Relaxed);
        let opened = self.opened.get_mut().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(mut event) = opened {
            event.kind = EventKind::Closed;
            event.sent = self.sent.load(Relaxed);
            event.received = self.received.load(Relaxed);
            if !self.finished.load(Relaxed) {
                event.verdict = Verdict::Refused;
                event.reason = Some("it was cut: the policy changed, or the sandbox left".into());
            }
            self.sandbox.report(event);
        }
        self.sandbox.ended(self.number);
    }
}

/// Serves a connection that was dialled to this address.
pub(super) async fn serve(connection: &Arc<Connection>, client: TcpStream, dialled: SocketAddr) {
    let (address, port) = (dialled.ip().to_canonical(), dialled.port());
    let IpAddr::V4(v4) = address else { return };
    if v4.is_loopback() {
        match port {
            NAMES_PORT if v4 == Ipv4Addr::LOCALHOST => {
                names::answer_stream(&connection.sandbox, &client).await;
            }
            PROXY_PORT if v4 == Ipv4Addr::LOCALHOST => proxy::serve(connection, client).await,
            _ => {}
        }
    } else if Synthetic::is_synthetic(v4) {
        if let Some(name) = name_of(connection, v4) {
            let target = Target { host: Host::Name(name), port };
            pass(connection, client, Vec::new(), &target, Way::Direct).await;
        } else {
            let target = Target { host: Host::Address(address), port };
            let denied = Denied::refused("no name has this address".to_owned());
            connection.denied(&target, None, &denied);
        }
    } else {
        let target = Target { host: Host::Address(address), port };
        pass(connection, client, Vec::new(), &target, Way::Direct).await;
    }
    connection.finished.store(true, Relaxed);
}

fn name_of(connection: &Connection, address: Ipv4Addr) -> Option<HostName> {
    let names = connection.sandbox.names.lock().unwrap_or_else(PoisonError::into_inner);
    names.name_of(address).cloned()
}

/// Judges a target, and if it is allowed, goes on with the connection. `buffer` is what the program
/// sent already.
pub(super) async fn pass(
    connection: &Arc<Connection>,
    client: TcpStream,
    buffer: Vec<u8>,
    target: &Target,
    way: Way,
) {
    let Some(granted) = connection.sandbox.grants(target) else {
        let denied = no_rule(target);
        connection.denied(target, None, &denied);
        return say(&client, way, target, None, &denied).await;
    };
    let grant = Grant { target: target.clone(), address: None, check: granted.check };
    connection.sandbox.granted(connection.number, &grant);
    if let Some(name) = bound::name_of(connection, target) {
        let which = (name, target);
        let served = bound::serve(connection, client, buffer, which, &granted, way).await;
        if let Err(denied) = served {
            connection.denied(target, Some(&granted), &denied);
        }
        return;
    }
    let outcome = go_on(connection, &client, buffer, target, &granted, way).await;
    if let Err(denied) = outcome {
        connection.denied(target, Some(&granted), &denied);
        say(&client, way, target, granted.check, &denied).await;
    }
}

/// That no rule allows a target, and which one would.
pub(super) fn no_rule(target: &Target) -> Denied {
    let port = target.port;
    Denied::refused(match &target.host {
        Host::Name(name) => format!("no rule allows {name}:{port}"),
        Host::Address(IpAddr::V6(address)) => format!("no rule allows [{address}]:{port}"),
        Host::Address(address) => format!("no rule allows {address}:{port}"),
    })
}

async fn go_on(
    connection: &Connection,
    client: &TcpStream,
    mut buffer: Vec<u8>,
    target: &Target,
    granted: &Granted,
    way: Way,
) -> Result<(), Denied> {
    // A program that asked a proxy waits for its answer before it greets.
    let mut host = match way {
        Way::Direct => None,
        Way::Tunnel | Way::Socks => {
            let host = dial::reach(connection, target, granted).await?;
            let answer = proxy::reached(way);
            if write_all(client, &answer).await.is_err() {
                return Ok(());
            }
            Some(host)
        }
    };
    let checked = match (granted.check, &target.host) {
        (Some(ConnectionCheck::Tls), Host::Name(name)) => {
            greeted::check(client, &mut buffer, name).await.map(|bytes| Some((name, bytes)))
        }
        (Some(ConnectionCheck::Http), Host::Name(name)) => {
            let requests = Requests::new(name.clone(), target.port);
            return requests::serve(connection, client, host, buffer, requests, target, granted)
                .await;
        }
        (Some(_), Host::Address(_)) | (None, _) => Ok(None),
    };
    // A tunnel was answered: what it refuses now, it closes.
    let greeting = match checked {
        Ok(greeting) => greeting,
        Err(denied) => {
            connection.denied(target, Some(granted), &denied);
            return Ok(());
        }
    };
    let host = match host.take() {
        Some(host) => host,
        None => dial::reach(connection, target, granted).await?,
    };
    if let Some((name, bytes)) = greeting {
        let ends = (client, &host);
        match greeted::introduce(connection, ends, &mut buffer, bytes, name).await {
            Ok(true) => {}
            Ok(false) => return Ok(()),
            Err(denied) => {
                connection.denied(target, Some(granted), &denied);
                return Ok(());
            }
        }
    }
    if write_all(&host, &buffer).await.is_err() {
        return Ok(());
    }
    if connection.moved(Direction::Out, buffer.len()).is_err() {
        return Ok(());
    }
    drop(buffer);
    // How it ends is the business of both ends.
    let _ = relay(client, &host, &connection.sandbox.shared.pipes, connection).await;
    Ok(())
}

/// Answers a program whose connection goes no further, in words that it understands.
async fn say(
    client: &TcpStream,
    way: Way,
    target: &Target,
    check: Option<ConnectionCheck>,
    denied: &Denied,
) {
    let speaks_http =
        check == Some(ConnectionCheck::Http) || (check.is_none() && target.port == 80);
    let answer = match way {
        Way::Direct if !speaks_http => return,
        Way::Direct | Way::Tunnel => proxy::refusal(denied),
        Way::Socks => proxy::socks_refusal(denied),
    };
    last_words(client, &answer).await;
}

/// Sends an answer, and waits for a moment until it is read: closing at once would destroy it.
pub(super) async fn last_words(client: &TcpStream, answer: &[u8]) {
    let _ = timeout(LAST_WORDS, async {
        write_all(client, answer).await?;
        rustix::net::shutdown(client, rustix::net::Shutdown::Write)?;
        let mut rest = Vec::new();
        while rest.len() < crate::relay::BUFFER_BYTES {
            if let crate::relay::Piece::End = read_more(client, &mut rest).await? {
                break;
            }
        }
        Ok::<_, io::Error>(())
    })
    .await;
}

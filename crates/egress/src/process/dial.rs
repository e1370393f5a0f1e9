//! Connects to a target: finds its addresses, drops those that the policy does not admit, and tries the
//! others. It must never connect to a name: only to an address that was checked a moment ago.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use tokio::net::TcpStream;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use super::connection::Connection;
use super::sandbox::Grant;
use crate::control::UpstreamProxy;
use crate::event::Verdict;
use crate::policy::Granted;
use crate::relay::{Piece, read_more, write_all};
use crate::target::{Host, Target};

/// How long all attempts together may take.
const PATIENCE: Duration = Duration::from_secs(10);
/// How long an attempt is alone before the next one begins.
const HEAD_START: Duration = Duration::from_millis(250);
/// The most bytes of the answer of a proxy of the operator.
const PROXY_ANSWER_MAX: usize = 8 << 10;

/// Why a connection goes no further.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Denied {
    pub verdict: Verdict,
    pub reason: String,
}

impl Denied {
    pub(super) const fn refused(reason: String) -> Self {
        Self { verdict: Verdict::Refused, reason }
    }

    pub(super) const fn failed(reason: String) -> Self {
        Self { verdict: Verdict::Failed, reason }
    }
}

/// Connects, and reports that. `granted` is by what the target is allowed.
pub(super) async fn reach(
    connection: &Connection,
    target: &Target,
    granted: &Granted,
) -> Result<TcpStream, Denied> {
    let (host, address) = reach_quietly(connection, target, granted).await?;
    connection.connected(target, granted, address);
    Ok(host)
}

/// Connects, and reports nothing. The address is none if a proxy of the operator knows it.
pub(super) async fn reach_quietly(
    connection: &Connection,
    target: &Target,
    granted: &Granted,
) -> Result<(TcpStream, Option<IpAddr>), Denied> {
    let late = || Denied::failed(format!("no answer from {} in time", shown(target)));
    let reached = timeout(PATIENCE, connect(connection, target)).await;
    let (host, address) = reached.unwrap_or_else(|_| Err(late()))?;
    let grant = Grant { target: target.clone(), address, check: granted.check };
    if !connection.sandbox.granted(connection.number, &grant) {
        return Err(Denied::refused("the policy changed".to_owned()));
    }
    let _ = host.set_nodelay(true);
    Ok((host, address))
}

fn shown(target: &Target) -> String {
    match &target.host {
        Host::Name(name) => name.to_string(),
        Host::Address(address) => address.to_string(),
    }
}

async fn connect(
    connection: &Connection,
    target: &Target,
) -> Result<(TcpStream, Option<IpAddr>), Denied> {
    let shared = &connection.sandbox.shared;
    let port = target.port;
    if let (Some(proxy), Host::Name(name)) = (&shared.proxy, &target.host)
        && proxy.resolves
    {
        let host = tunnel(proxy, &format!("{name}:{port}")).await;
        return host.map(|host| (host, None)).map_err(|error| unreached(target, &error));
    }
    let addresses = admitted(connection, target).await?;
    let Some(proxy) = &shared.proxy else {
        let (host, address) = first_of(&addresses, port, &shared.attempts)
            .await
            .map_err(|error| unreached(target, &error))?;
        return Ok((host, Some(address)));
    };
    let address = addresses.first().copied().ok_or_else(|| no_address(target))?;
    let host = tunnel(proxy, &SocketAddr::new(address, port).to_string()).await;
    host.map(|host| (host, Some(address))).map_err(|error| unreached(target, &error))
}

fn unreached(target: &Target, error: &io::Error) -> Denied {
    Denied::failed(format!("{} was not reached: {error}", shown(target)))
}

fn no_address(target: &Target) -> Denied {
    Denied::failed(format!("{} has no address", shown(target)))
}

/// The addresses of a target that the present policy admits, at least one, in the order to try them.
async fn admitted(connection: &Connection, target: &Target) -> Result<Vec<IpAddr>, Denied> {
    let name = match &target.host {
        Host::Address(address) => return Ok(vec![*address]),
        Host::Name(name) => name,
    };
    let shared = &connection.sandbox.shared;
    let found =
        shared.resolver.resolve(name).await.map_err(|reason| Denied::failed(reason.to_string()))?;
    let policy = connection.sandbox.policy();
    let (good, bad): (Vec<IpAddr>, Vec<IpAddr>) = shared.with_node(|node| {
        let found = found.iter().map(IpAddr::to_canonical);
        found.partition(|address| policy.admits_resolved(*address, target.port, node))
    });
    if good.is_empty() {
        let Some(address) = bad.first() else { return Err(no_address(target)) };
        return Err(Denied::refused(format!(
            "{name} leads to {address}, which is not public and which no rule allows"
        )));
    }
    Ok(in_turn(good))
}

/// The families in turn, IPv6 first.
fn in_turn(addresses: Vec<IpAddr>) -> Vec<IpAddr> {
    let (v6, v4): (Vec<_>, Vec<_>) = addresses.into_iter().partition(IpAddr::is_ipv6);
    let longest = v6.len().max(v4.len());
    (0..longest).flat_map(|at| [v6.get(at), v4.get(at)]).flatten().copied().collect()
}

/// The first that answers. Each has a head start before the next; a failure ends it. A name may have
/// many addresses that never answer: those at the same time as another need a place among `besides`,
/// or one sandbox could use up the descriptors of all.
async fn first_of(
    addresses: &[IpAddr],
    port: u16,
    besides: &Arc<Semaphore>,
) -> io::Result<(TcpStream, IpAddr)> {
    let mut attempts = JoinSet::new();
    let mut waiting = addresses.iter().copied();
    let mut last = io::Error::from(io::ErrorKind::AddrNotAvailable);
    loop {
        let place =
            if attempts.is_empty() { None } else { besides.clone().try_acquire_owned().ok() };
        let may_begin = attempts.is_empty() || place.is_some();
        if may_begin && let Some(address) = waiting.next() {
            attempts.spawn(async move {
                let _place = place;
                let host = TcpStream::connect(SocketAddr::new(address, port)).await;
                host.map(|host| (host, address))
            });
        } else if attempts.is_empty() {
            return Err(last);
        }
        let more = waiting.len() > 0;
        tokio::select! {
            ended = attempts.join_next() => match ended {
                Some(Ok(Ok(reached))) => return Ok(reached),
                Some(Ok(Err(error))) => last = error,
                Some(Err(error)) => last = io::Error::other(error),
                None => {}
            },
            () = sleep(HEAD_START), if more => {}
        }
    }
}

/// A tunnel through a proxy of the operator.
async fn tunnel(proxy: &UpstreamProxy, to: &str) -> io::Result<TcpStream> {
    let stream = TcpStream::connect(proxy.address).await?;
    let authorization = proxy.authorization.as_ref();
    let authorization =
        authorization.map(|value| format!("Proxy-Authorization: {value}\r\n")).unwrap_or_default();
    let head = format!("CONNECT {to} HTTP/1.1\r\nHost: {to}\r\n{authorization}\r\n");
    write_all(&stream, head.as_bytes()).await?;
    let mut answer = Vec::new();
    // The host speaks after we do, or what it says first would be lost here.
    while !answer.ends_with(b"\r\n\r\n") {
        if answer.len() > PROXY_ANSWER_MAX {
            return Err(io::Error::other("the upstream proxy answers without end"));
        }
        if let Piece::End = read_more(&stream, &mut answer).await? {
            return Err(io::Error::other("the upstream proxy closed the connection"));
        }
    }
    let ok = [&b"HTTP/1.1 200"[..], b"HTTP/1.0 200"].iter().any(|ok| answer.starts_with(ok));
    if ok { Ok(stream) } else { Err(io::Error::other("the upstream proxy refused")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn families_take_turns_and_ipv6_begins() {
        let all = ["1.1.1.1", "2.2.2.2", "2600::1", "3.3.3.3"].map(|one| one.parse().unwrap());
        let turns = in_turn(all.to_vec()).iter().map(IpAddr::to_string).collect::<Vec<_>>();
        assert_eq!(turns, ["2600::1", "1.1.1.1", "2.2.2.2", "3.3.3.3"]);
    }
}

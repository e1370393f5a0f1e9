//! The network of a policy in containers. It is made as in native sandboxes; here it is also taken
//! away after a use, and proven gone. It must never leave anything of one use to the next.

use std::os::fd::OwnedFd;

use guest_protocol::keeper::KeeperRefusalCode;
use guest_protocol::network::{NetworkFeature, NetworkRequest, RefusedAddress};
use jail::network::{Namespace, prepare_for_reuse};
use rustix::thread::ThreadNameSpaceType;

use super::namespaces::OwnNamespaces;
use super::process::Process;
use super::{Named as _, Refusal, Tables, leftover, refusal};
use crate::network::{self, Done, Needed};

/// Addresses and routes of IPv4 in `/proc`, and those of IPv6.
const PATHS: &str = "net/fib_trie";
const PATHS_6: &str = "net/ipv6_route";
const ADDRESSES_6: &str = "net/if_inet6";

const KIND: ThreadNameSpaceType = ThreadNameSpaceType::NETWORK;

/// What containers with a policy can have on this machine: it is tried.
pub(super) fn try_out(namespaces: &OwnNamespaces, tables: Tables) -> NetworkFeature {
    match tables {
        Tables::Tried => {
            namespaces.within_new_network(network::try_out_here).unwrap_or(NetworkFeature::None)
        }
        Tables::Unused => NetworkFeature::ProxyOnly,
    }
}

/// Does what is asked in a container; gives the sockets and the refused addresses, if there are any.
pub(super) fn carry_out(
    namespaces: &OwnNamespaces,
    feature: NetworkFeature,
    process: &Process,
    request: &NetworkRequest,
) -> Result<(Vec<OwnedFd>, Vec<RefusedAddress>), Refusal> {
    let step = network::step(request);
    if feature == NetworkFeature::None {
        return Err(refusal(KeeperRefusalCode::Powerless, step, 0));
    }
    let needed = namespaces.within(process, KIND, || {
        match request {
            NetworkRequest::Arm(_) => prepare_for_reuse(),
            NetworkRequest::Change(_) | NetworkRequest::Refused | NetworkRequest::Disarm => {}
        }
        Needed::open(feature, request)
    })?;
    match needed.and_then(|needed| needed.carry_out(request).0).named(step)? {
        Done::Nothing => Ok((Vec::new(), Vec::new())),
        Done::Armed(sockets) => Ok((sockets, Vec::new())),
        Done::Refused(addresses) => Ok((Vec::new(), addresses)),
    }
}

/// Takes the network of a policy away, if there is one. The sockets are elsewhere.
pub(super) fn take_away(
    namespaces: &OwnNamespaces,
    feature: NetworkFeature,
    process: &Process,
) -> Result<(), Refusal> {
    match feature {
        NetworkFeature::Transparent => {
            carry_out(namespaces, feature, process, &NetworkRequest::Disarm).map(drop)
        }
        // There is nothing but a listener.
        NetworkFeature::ProxyOnly | NetworkFeature::None => Ok(()),
    }
}

/// Checks that no table is left. Routes and addresses are compared with those of the launch.
pub(super) fn prove(
    namespaces: &OwnNamespaces,
    feature: NetworkFeature,
    process: &Process,
) -> Result<(), Refusal> {
    const STEP: &str = "list the tables of a container";
    match feature {
        NetworkFeature::Transparent => {}
        NetworkFeature::ProxyOnly | NetworkFeature::None => return Ok(()),
    }
    let namespace = namespaces.within(process, KIND, Namespace::open)?.named(STEP)?;
    if namespace.has_tables().named(STEP)? {
        return Err(leftover("rules of a network policy are left"));
    }
    Ok(())
}

/// Where packets of a container can go: its addresses and routes.
pub(super) fn paths(process: &Process) -> Result<String, Refusal> {
    let mut lines = leaves(&process.read_if_there(PATHS)?);
    lines.extend(process.read_if_there(PATHS_6)?.lines().map(route_6));
    lines.extend(process.read_if_there(ADDRESSES_6)?.lines().map(str::to_owned));
    Ok(lines.join("\n"))
}

/// The entries of a tree of routes, without its shape, which depends on what was in it before.
fn leaves(tree: &str) -> Vec<String> {
    let lines = tree.lines().map(str::trim);
    lines.filter(|line| !line.starts_with("+--")).map(str::to_owned).collect()
}

/// A route without the counters of its use: destination, source, next hop, metric, flags and interface.
/// The metric tells a route that refuses everything from the entry for no route, which it replaces.
fn route_6(line: &str) -> String {
    let words: Vec<_> = line.split_whitespace().collect();
    let kept = words.iter().take(6).chain(words.iter().skip(8));
    kept.copied().collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn routes_are_compared_without_what_their_use_changes() {
        let tree = "Main:\n  +-- 0.0.0.0/0 3 0 5\n     |-- 127.0.0.1\n        /32 host LOCAL\n";
        assert_eq!(leaves(tree), ["Main:", "|-- 127.0.0.1", "/32 host LOCAL"]);
        let [to, from, by] = ["01", "00", "02"];
        let line = |uses| format!("{to} 80 {from} 00 {by} 00000000 0000000{uses} 3 80200001   lo");
        assert_eq!(route_6(&line(2)), "01 80 00 00 02 00000000 80200001 lo");
        assert_eq!(route_6(&line(2)), route_6(&line(7)));
        assert_eq!(route_6(""), "");
    }
}

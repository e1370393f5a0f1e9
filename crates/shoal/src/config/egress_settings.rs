//! The settings of the way out of sandboxes.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;

use ::egress::check_authorities;
use model::HostName;
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize};

const CA_REMEDY: &str = "name a file with the certificates of authorities in PEM form";

/// The way out of sandboxes. What each may reach is set in its template.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct EgressSettings {
    /// Whether there is one. Without it, templates that allow anything are refused.
    pub(crate) enabled: bool,
    /// The DNS server to ask, on port 53 if none is given; that of the machine if not set.
    #[serde(skip_serializing_if = "Option::is_none", deserialize_with = "resolver")]
    pub(crate) resolver: Option<SocketAddr>,
    /// Addresses of names, as NAME=ADDRESS. They come before those of the resolver. A private address
    /// still needs an address rule.
    pub(crate) hosts: Vec<String>,
    /// A file with certificates (PEM) that servers outside may have, besides those of the machine.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) upstream_ca: Option<PathBuf>,
    /// An HTTP proxy through which everything goes, as host:port.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) upstream_proxy: Option<SocketAddr>,
    /// Connections of one sandbox at once.
    pub(crate) max_connections: u32,
    /// Connections of the sandboxes of one key at once.
    pub(crate) max_connections_per_key: u32,
    /// New connections of one sandbox per second, and at once.
    pub(crate) connections_per_s: u32,
    /// New connections of the sandboxes of one key per second, and at once; 0 means no limit.
    pub(crate) connections_per_s_per_key: u32,
    /// Bytes per second of one sandbox, both directions together; 0 means no limit.
    pub(crate) bytes_per_s: u64,
    /// Bytes per second of the sandboxes of one key; 0 means no limit.
    pub(crate) bytes_per_s_per_key: u64,
    /// Keys that have sandboxes with boundary secrets at the same time.
    pub(crate) max_boundary_keys: u32,
}

impl Default for EgressSettings {
    fn default() -> Self {
        Self {
            enabled: true,
            resolver: None,
            hosts: Vec::new(),
            upstream_ca: None,
            upstream_proxy: None,
            max_connections: 256,
            max_connections_per_key: 2048,
            connections_per_s: 100,
            connections_per_s_per_key: 1000,
            bytes_per_s: 0,
            bytes_per_s_per_key: 0,
            max_boundary_keys: 64,
        }
    }
}

impl EgressSettings {
    /// The addresses of names.
    pub(crate) fn known_hosts(&self) -> BTreeMap<HostName, Vec<IpAddr>> {
        let mut known: BTreeMap<_, Vec<_>> = BTreeMap::new();
        for (name, address) in self.hosts.iter().filter_map(|text| known_host(text)) {
            known.entry(name).or_default().push(address);
        }
        known
    }

    /// The certificates that servers outside may have, besides those of the machine.
    pub(crate) fn upstream_ca_pem(&self) -> Result<Option<String>, String> {
        let Some(path) = &self.upstream_ca else { return Ok(None) };
        let shown = path.display();
        let pem = std::fs::read_to_string(path)
            .map_err(|error| format!("cannot read {shown}: {error}; {CA_REMEDY}"))?;
        match check_authorities(&pem) {
            Ok(()) => Ok(Some(pem)),
            Err(problem) => Err(format!("cannot use {shown}: {problem}; {CA_REMEDY}")),
        }
    }

    /// The value that no server could use, if there is one.
    pub(super) fn invalid(&self) -> Option<(&'static str, &'static str)> {
        let numbers = [
            ("egress.max_connections", self.max_connections),
            ("egress.max_connections_per_key", self.max_connections_per_key),
            ("egress.connections_per_s", self.connections_per_s),
            ("egress.max_boundary_keys", self.max_boundary_keys),
        ];
        if let Some((key, _)) = numbers.into_iter().find(|(_, value)| *value == 0) {
            return Some((key, "must be above 0"));
        }
        if self.hosts.iter().any(|text| known_host(text).is_none()) {
            return Some(("egress.hosts", "each is NAME=ADDRESS, such as db.internal=10.0.0.5"));
        }
        let relative = self.upstream_ca.as_ref().is_some_and(|path| !path.is_absolute());
        relative.then_some(("egress.upstream_ca", "must be an absolute path"))
    }
}

/// The port of DNS servers.
const DNS: u16 = 53;

/// An address with a port, or without one for that of DNS.
fn resolver<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<SocketAddr>, D::Error> {
    let text = String::deserialize(deserializer)?;
    let alone = text.trim_start_matches('[').trim_end_matches(']');
    let address = text.parse().or_else(|_| alone.parse().map(|ip: IpAddr| (ip, DNS).into()));
    address
        .map(Some)
        .map_err(|_| D::Error::custom("must be ADDRESS or ADDRESS:PORT, such as 10.0.0.2:53"))
}

/// A name and its address, from `NAME=ADDRESS`.
fn known_host(text: &str) -> Option<(HostName, IpAddr)> {
    let (name, address) = text.split_once('=')?;
    Some((HostName::parse(name).ok()?, address.parse().ok()?))
}

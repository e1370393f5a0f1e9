//! The way out of sandboxes: this program again, as a process of its own, started by the server.

use std::net::Ipv4Addr;
use std::process::ExitCode;

use ::egress::{Egress, EgressConfig, EgressLimits, UpstreamProxy};

use crate::config::Config;
use crate::failure::Failure;

/// The word that makes this program a process of the way out. It is no command for people.
const ROLE: &str = "egress-process";

/// Runs as a process of the way out if the server started this program as one.
pub(crate) fn main_of_process() -> Option<ExitCode> {
    let mut words = std::env::args_os().skip(1);
    if words.next()? != ROLE {
        return None;
    }
    // The only descriptor that the server passed.
    Some(match jail::sys::descriptors::take(3) {
        Ok(control) => ::egress::process::main(control),
        Err(_) => ExitCode::FAILURE,
    })
}

/// Starts it, unless the configuration turns it off.
pub(super) fn start(config: &Config) -> Result<Option<Egress>, Failure> {
    let settings = &config.egress;
    if !settings.enabled {
        return Ok(None);
    }
    let upstream_ca_pem = settings
        .upstream_ca_pem()
        .map_err(|problem| Failure::new("cannot use egress.upstream_ca", problem).usage())?;
    let egress = EgressConfig {
        resolver: settings.resolver,
        hosts: settings.known_hosts(),
        upstream_ca_pem,
        upstream_proxy: settings.upstream_proxy.map(|address| UpstreamProxy {
            address,
            authorization: None,
            resolves: false,
        }),
        node_addresses: vec![config.server.listen.ip()]
            .into_iter()
            .filter(|address| *address != Ipv4Addr::UNSPECIFIED)
            .collect(),
        limits: EgressLimits {
            connections: settings.max_connections,
            connections_of_key: settings.max_connections_per_key,
            new_connections_per_second: settings.connections_per_s,
            new_connections_per_second_of_key: above_zero(settings.connections_per_s_per_key),
            bytes_per_second: above_zero(settings.bytes_per_s),
            bytes_per_second_of_key: above_zero(settings.bytes_per_s_per_key),
            ..EgressLimits::default()
        },
        boundary_keys: settings.max_boundary_keys as usize,
        ..EgressConfig::new("/proc/self/exe", &[ROLE])
    };
    Egress::start(egress).map(Some).map_err(|error| {
        Failure::new("cannot start the egress process", error)
            .remedy("set egress.enabled = false to serve sandboxes that have loopback only")
    })
}

/// A limit, for which 0 means that there is none.
fn above_zero<T: Default + PartialEq>(limit: T) -> Option<T> {
    (limit != T::default()).then_some(limit)
}

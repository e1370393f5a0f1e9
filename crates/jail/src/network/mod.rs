//! The network of a sandbox with a policy. Every address that a program dials is made local in its
//! namespace; a table of `nf_tables` hands allowed connections to one listener of ours and refuses
//! all others at once. Bytes leave the namespace only through sockets that the listener accepted.
//! It must never open a way out itself: it makes rules and sockets, and others decide what happens
//! to what arrives there.
//!
//! What is sent to the kernel is made by pure code (`routes`, `table`); `namespace` sends it, in
//! the namespace that the calling thread is in.

mod expressions;
mod message;
mod namespace;
mod refused;
mod routes;
mod settings;
mod table;
#[cfg(test)]
mod tests;

use std::net::Ipv4Addr;

pub use namespace::{Armed, Namespace, Sockets, proxy_listener};
pub use settings::prepare_for_reuse;

/// The addresses that stand for names: `198.18.0.0/15`. The kernel lets connections to them reach
/// the listener, whatever the policy is.
pub const SYNTHETIC: AddressRule =
    AddressRule { first: Ipv4Addr::new(198, 18, 0, 0), bits: 15, ports: ALL_PORTS };

/// The address of the sandbox itself, besides loopback: without one, C libraries do not look up
/// names.
pub const OWN_ADDRESS: Ipv4Addr = Ipv4Addr::new(198, 18, 0, 1);

/// Where the listener of a sandbox is. Programs cannot take this port.
pub const LISTENER: (Ipv4Addr, u16) = (Ipv4Addr::LOCALHOST, 1);

/// Where programs look up names.
pub const NAMES: (Ipv4Addr, u16) = (Ipv4Addr::LOCALHOST, 53);

/// Where programs find a proxy.
pub const PROXY: (Ipv4Addr, u16) = (Ipv4Addr::LOCALHOST, 3128);

/// Every port.
pub const ALL_PORTS: (u16, u16) = (1, u16::MAX);

/// The most refused addresses that are kept. The kernel makes room for all of them at once, in each
/// namespace: 2 KiB for these, and 8 KiB for 256.
pub const REFUSED_AT_MOST: u32 = 96;

/// What the kernel lets reach the listener, beside names, the resolver and the proxy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Rules {
    /// Connections to every address outside of loopback.
    Open,
    /// Connections to these.
    Addresses(Vec<AddressRule>),
}

/// Addresses and ports that may be dialled by number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AddressRule {
    /// The first address.
    pub first: Ipv4Addr,
    /// How many of its first bits count, at most 32.
    pub bits: u8,
    /// The first port and the last.
    pub ports: (u16, u16),
}

//! What a runtime asks about the network of a sandbox with a policy. Names of hosts are judged
//! elsewhere: here are addresses alone.

use serde::{Deserialize, Serialize};

/// Which connections the kernel lets through, beside those to names.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum NetworkRules {
    /// Those to every address outside of loopback.
    Open,
    /// Those to these addresses.
    Addresses(Vec<AddressRule>),
}

/// Addresses and ports of IPv4.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct AddressRule {
    /// The bytes of the first address.
    pub first: [u8; 4],
    /// How many of its first bits count, at most 32.
    pub bits: u8,
    /// The first port.
    pub from_port: u16,
    /// The last port.
    pub to_port: u16,
}

/// What to do with the network of a sandbox.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum NetworkRequest {
    /// Make it: routes, rules and sockets, in the place of what is there. The answer carries the
    /// sockets: that for connections and, where the kernel has tables, that for names.
    Arm(NetworkRules),
    /// Replace the rules, all at once.
    Change(NetworkRules),
    /// Tell which addresses were refused lately.
    Refused,
    /// Remove it, but for the sockets, which others have.
    Disarm,
}

/// How programs of a sandbox with a policy reach the network.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum NetworkFeature {
    /// As anywhere else: the kernel has tables.
    Transparent,
    /// By a proxy only.
    ProxyOnly,
    /// Not at all: sandboxes have no network of their own.
    None,
}

/// An address and a port that were refused.
pub type RefusedAddress = ([u8; 4], u16);

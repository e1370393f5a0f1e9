//! Ports inside a sandbox.

use serde::{Deserialize, Serialize};

/// Open ports, in ascending order.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct PortList {
    /// All of them.
    pub ports: Vec<PortEntry>,
}

/// A port on which a program listens.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct PortEntry {
    /// Its number.
    pub port: u16,
    /// Whether it listens on loopback only. The proxy reaches it all the same.
    pub loopback_only: bool,
}

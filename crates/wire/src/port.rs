//! Ports inside a sandbox.

use serde::{Deserialize, Serialize};

/// Ports on which something listens, in their order.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct PortList {
    /// All of them.
    pub ports: Vec<PortEntry>,
}

/// A port on which something listens.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct PortEntry {
    /// Its number.
    pub port: u16,
    /// Whether only programs inside could reach it by themselves. From outside it is reached all the
    /// same.
    pub loopback_only: bool,
}

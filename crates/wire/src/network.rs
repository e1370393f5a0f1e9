//! What a sandbox or session may reach on the network, and what it tried.

use model::{NetworkPolicy, SandboxId, SessionId};
use serde::{Deserialize, Serialize};

use crate::time::Time;

/// What a sandbox or session may reach, and what it tried lately.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Network {
    /// What it may reach now.
    pub policy: NetworkPolicy,
    /// False if it reaches nothing, because its policy could not be attached: the next change tries
    /// again.
    #[serde(default = "yes")]
    pub attached: bool,
    /// What its template allows: a change cannot allow more.
    pub template_policy: NetworkPolicy,
    /// Its sandbox, if it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sandbox_id: Option<SandboxId>,
    /// What it tried lately, oldest first.
    pub log: Vec<NetworkEntry>,
    /// Addresses with ports that its programs dialled by number and that no rule allows.
    pub refused_addresses: Vec<String>,
}

fn yes() -> bool {
    true
}

/// One thing that a sandbox did or tried on the network.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct NetworkEntry {
    /// Grows with each entry of the server; pass the last one as `after` to read on.
    pub seq: u64,
    /// When.
    pub at: Time,
    /// Which sandbox.
    pub sandbox_id: SandboxId,
    /// The session that had it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session_id: Option<SessionId>,
    /// What it is about.
    pub kind: NetworkEntryKind,
    /// Whether it was allowed.
    pub verdict: NetworkVerdict,
    /// The name of the host, if it was dialled by name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// The address that was connected to, or dialled.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub address: Option<String>,
    /// The port.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub port: Option<u16>,
    /// The rule that allowed it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rule: Option<String>,
    /// Why it was refused, or what happened, in words.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Bytes from the sandbox; only when it closed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sent_bytes: Option<u64>,
    /// Bytes to the sandbox; only when it closed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub received_bytes: Option<u64>,
}

/// What an entry of the network log is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub enum NetworkEntryKind {
    /// A name was asked for: the first time if it is allowed, every time if it is refused.
    Name,
    /// A connection was made, or refused.
    Connection,
    /// A connection has ended.
    Closed,
    /// A secret was put into a request at the boundary, or was not; `reason` says which and why.
    Secret,
}

/// Whether something was allowed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub enum NetworkVerdict {
    /// A rule allows it.
    Allowed,
    /// No rule allows it, or a check failed.
    Refused,
    /// It is allowed and could not be done: no such name outside, no answer, a limit.
    Failed,
    /// It passed; the reason says what to know of it: a placeholder that stayed where it was, or a
    /// value that was taken out of an answer.
    Noted,
}

/// A page of the network log of a key.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct NetworkLog {
    /// The entries, oldest first.
    pub entries: Vec<NetworkEntry>,
    /// How many entries of the key were dropped because there were too many.
    pub dropped: u64,
}

/// A change of what a sandbox or session may reach.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct NetworkChange {
    /// The new policy, within that of the template; null for the template's own.
    #[serde(deserialize_with = "Option::deserialize")]
    #[cfg_attr(feature = "schema", schema(required = true))]
    pub network: Option<NetworkPolicy>,
}

impl NetworkEntry {
    /// What was meant, for people: the name or address, with the port.
    pub fn target(&self) -> String {
        let host = self.name.as_ref().or(self.address.as_ref()).map_or("", String::as_str);
        match self.port {
            Some(port) => format!("{host}:{port}"),
            None => host.to_owned(),
        }
    }
}

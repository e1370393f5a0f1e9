//! What happened on the way out, as the server hears of it. Never a path, a header or a byte of a
//! body: those belong to the sandbox.

use std::net::IpAddr;

use model::{HostName, InstanceId};
use serde::{Deserialize, Serialize};

/// The most events of one sandbox in one second; the rest is only counted.
pub(crate) const EVENTS_PER_SECOND: u32 = 1024;

/// The most events that wait for the server.
pub(crate) const EVENTS_WAITING_MAX: usize = 16 * 1024;

/// Something that happened.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct EgressEvent {
    /// The sandbox.
    pub sandbox: InstanceId,
    /// What it is about.
    pub kind: EventKind,
    /// The name, as far as there is one.
    pub name: Option<HostName>,
    /// The address outside, or the one that was dialled.
    pub address: Option<IpAddr>,
    /// The port; 0 where there is none.
    pub port: u16,
    /// Bytes that went out.
    pub sent: u64,
    /// Bytes that came in.
    pub received: u64,
    /// Whether it was allowed.
    pub verdict: Verdict,
    /// The rule that allowed it, as written, or `open`.
    pub rule: Option<String>,
    /// Why it was refused, or ended early.
    pub reason: Option<String>,
}

/// What an event is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum EventKind {
    /// A name was asked for: the first time if it is allowed, every time if it is refused.
    Name,
    /// A connection was judged, and connected if it is allowed.
    Connection,
    /// A connection that was allowed has ended.
    Closed,
    /// A value replaced its placeholder, or did not: `reason` says which secret and why.
    Secret,
}

/// Whether something was allowed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Verdict {
    /// A rule allows it.
    Allowed,
    /// No rule allows it, or a check failed.
    Refused,
    /// It was allowed, and could not be done: no such name outside, no answer, a limit.
    Failed,
    /// It passed; the reason says what its user should know of it.
    Noted,
}

impl EgressEvent {
    /// An event that says nothing yet but whose it is.
    pub const fn of(sandbox: InstanceId, kind: EventKind, verdict: Verdict) -> Self {
        Self {
            sandbox,
            kind,
            name: None,
            address: None,
            port: 0,
            sent: 0,
            received: 0,
            verdict,
            rule: None,
            reason: None,
        }
    }
}

//! The boundary: ends the TLS of a sandbox for named hosts, puts the values of secrets where requests
//! have their placeholders, and speaks verified TLS to the real host. It must never send a value to
//! another host, in another header or without TLS, and never show one in a note, a log or an error.

mod answer;
mod authority;
mod bodies;
mod exchange;
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) mod fuzzing;
mod headers;
mod metered;
mod placeholders;
mod redaction;
mod roots;
mod target;
mod tasks;
mod terminator;
#[cfg(test)]
mod tests;
mod upstream;

use std::fmt;

use model::HostName;
use zeroize::Zeroizing;

pub use authority::{Authority, AuthorityError};
pub(crate) use roots::UpstreamRoots;
pub use roots::check_authorities;
pub(crate) use terminator::Terminator;
pub(crate) use upstream::Dialled;

/// A secret of one sandbox, and where its value may go.
pub(crate) struct BoundSecret {
    /// What the sandbox has in place of the value.
    pub(crate) placeholder: String,
    /// What goes out in its place.
    pub(crate) value: Zeroizing<String>,
    /// The header of requests, in lower case, in which the placeholder is replaced.
    pub(crate) header: String,
    /// The hosts whose requests get the value.
    pub(crate) hosts: Vec<HostName>,
    /// The name of the secret, for notes.
    pub(crate) secret: String,
}

impl BoundSecret {
    fn is_for(&self, host: &HostName) -> bool {
        !self.placeholder.is_empty() && self.hosts.contains(host)
    }
}

impl fmt::Debug for BoundSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BoundSecret")
            .field("secret", &self.secret)
            .field("header", &self.header)
            .field("hosts", &self.hosts)
            .finish_non_exhaustive()
    }
}

/// What the boundary saw or did. No note has a value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum BoundaryNote {
    /// A request was answered, by the host or here.
    Request { method: String, status: u16 },
    /// The value of a secret went out in its header, to the verified host.
    Replaced { secret: String },
    /// A placeholder went out as it is.
    PlaceholderElsewhere { secret: String, place: Place },
    /// The host sent a value back in a header, and the sandbox got the placeholder.
    EchoRedacted { secret: String },
    /// A request named another host than the connection, and was refused.
    WrongHost { named: String },
    /// A request with a method that returns or bypasses headers was refused.
    MethodRefused { method: String },
    /// The host was connected to, and could not be verified or used.
    UpstreamFailed { reason: String },
}

/// Where a placeholder was that is not replaced.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Place {
    /// The path or query of a request.
    Target,
    /// A header that is not the one of the secret, or of a host that is not one of its hosts.
    Header(String),
    /// The body of a request, or what follows it.
    Body,
}

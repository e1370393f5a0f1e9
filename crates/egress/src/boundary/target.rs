//! Which host a request names. Every name in a request must be the host of its connection: one that
//! is missing, doubled or different is refused, because a value goes where the connection goes.

use http::header::HOST;
use http::request::Parts;
use http::{Method, Version, uri::Scheme};
use model::HostName;

/// Why a request does not get past.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Refused {
    /// TRACE returns headers, CONNECT leads elsewhere.
    Method,
    /// What it named, cut.
    Host(String),
}

/// Checks the method and every host that a request names.
pub(super) fn check(parts: &Parts, host: &HostName) -> Result<(), Refused> {
    if parts.method == Method::TRACE || parts.method == Method::CONNECT {
        return Err(Refused::Method);
    }
    if parts.uri.scheme().is_some_and(|scheme| *scheme != Scheme::HTTPS) {
        return Err(refused(parts.uri.to_string().as_bytes()));
    }
    let mut names = 0;
    if let Some(authority) = parts.uri.authority() {
        is_named(authority.as_str().as_bytes(), host)?;
        names += 1;
    }
    let mut hosts = parts.headers.get_all(HOST).iter();
    if let Some(named) = hosts.next() {
        is_named(named.as_bytes(), host)?;
        names += 1;
    } else if parts.version < Version::HTTP_2 {
        return Err(refused(b""));
    }
    if names == 0 {
        return Err(refused(b""));
    }
    match hosts.next() {
        Some(second) => Err(refused(second.as_bytes())),
        None => Ok(()),
    }
}

fn is_named(written: &[u8], host: &HostName) -> Result<(), Refused> {
    let Ok(text) = std::str::from_utf8(written) else { return Err(refused(written)) };
    // The boundary is on port 443 alone. A user before the host is no letter of a name.
    let name = text.strip_suffix(":443").unwrap_or(text);
    match HostName::parse(name) {
        Ok(name) if name == *host => Ok(()),
        Ok(_) | Err(_) => Err(refused(written)),
    }
}

fn refused(named: &[u8]) -> Refused {
    Refused::Host(String::from_utf8_lossy(named).chars().take(255).collect())
}

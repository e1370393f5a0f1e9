//! Which Host headers are served. A page from elsewhere can make a browser resolve its own name to
//! this machine and call us as if we were its server; the Host header then gives it away, because
//! it carries that name. Plain addresses are not names, and cannot be used for this.

use std::net::IpAddr;

use http::header::HOST;
use http::{HeaderMap, Uri};
use model::ErrorCode;

use crate::refused::Refused;

/// The names that are served, in lower case and without a port.
#[derive(Debug)]
pub struct Hosts(Vec<String>);

impl Hosts {
    /// These names, besides loopback ones and plain addresses.
    pub fn new(hosts: &[String]) -> Self {
        Self(hosts.iter().map(|host| name_of(host).to_ascii_lowercase()).collect())
    }

    /// Refuses a request that is addressed to another name.
    pub fn check(&self, headers: &HeaderMap, uri: &Uri) -> Result<(), Refused> {
        // A proxy in front may have checked the other one.
        if headers.get_all(HOST).iter().nth(1).is_some() {
            return Err(Refused::bad("Host", "there is more than one Host header"));
        }
        // In a request in absolute form the URI names the host, and the header does not count.
        let given = match uri.authority() {
            Some(authority) => authority.as_str(),
            None => match headers.get(HOST).map(http::HeaderValue::to_str) {
                Some(Ok(host)) => host,
                Some(Err(_)) => return Err(Refused::bad("Host", "the Host header is not text")),
                None => return Err(Refused::bad("Host", "the Host header is missing")),
            },
        };
        if self.serves(given) {
            return Ok(());
        }
        let cause = format!("the server does not serve the host {given:?}");
        let mut refused = Refused::new(ErrorCode::HostRefused, cause);
        refused.field = Some("Host".into());
        Err(refused)
    }

    fn serves(&self, host: &str) -> bool {
        let name = name_of(host);
        let bare = name.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(name);
        let name = name.trim_end_matches('.');
        bare.parse::<IpAddr>().is_ok()
            || name.eq_ignore_ascii_case("localhost")
            || ends_with_ignoring_case(name, ".localhost")
            || self.0.iter().any(|known| known.eq_ignore_ascii_case(name))
    }
}

/// A host without its port.
fn name_of(host: &str) -> &str {
    match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => {
            // An address of version 6 without brackets has colons of its own.
            if name.contains(':') && !name.starts_with('[') { host } else { name }
        }
        Some(_) | None => host,
    }
}

fn ends_with_ignoring_case(text: &str, end: &str) -> bool {
    let at = text.len().checked_sub(end.len());
    at.and_then(|at| text.get(at..)).is_some_and(|tail| tail.eq_ignore_ascii_case(end))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_host_names_are_refused() {
        let hosts = Hosts::new(&["shoal.example".to_owned(), "Box:7600".to_owned()]);
        for (host, served) in [
            ("localhost", true),
            ("LocalHost:7600", true),
            ("localhost.:7600", true),
            ("a.localhost:1", true),
            ("127.0.0.1:7600", true),
            ("127.8.9.1", true),
            ("[::1]:7600", true),
            ("[::1]", true),
            ("10.1.2.3:7600", true),
            ("shoal.example", true),
            ("SHOAL.example:443", true),
            ("box", true),
            ("evil.example", false),
            ("localhost.evil.example", false),
            ("127.0.0.1.evil.example", false),
            ("evillocalhost", false),
            ("sub.shoal.example", false),
            ("", false),
            (":80", false),
            ("ä", false),
        ] {
            assert_eq!(hosts.serves(host), served, "{host:?}");
        }
    }

    #[test]
    fn host_in_an_absolute_uri_overrides_the_header() {
        let hosts = Hosts::new(&[]);
        let mut headers = HeaderMap::new();
        let relative: Uri = "/health".parse().unwrap();
        let code = |result: Result<(), Refused>| result.unwrap_err().refusal.code;
        assert_eq!(code(hosts.check(&headers, &relative)), ErrorCode::BadRequest);
        headers.insert(HOST, "localhost".parse().unwrap());
        assert!(hosts.check(&headers, &relative).is_ok());
        let absolute: Uri = "http://evil.example/health".parse().unwrap();
        assert_eq!(code(hosts.check(&headers, &absolute)), ErrorCode::HostRefused);
        headers.insert(HOST, http::HeaderValue::from_bytes(b"\xff").unwrap());
        assert_eq!(code(hosts.check(&headers, &relative)), ErrorCode::BadRequest);
    }
}

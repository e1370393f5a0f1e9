//! The address of a server: scheme, host and port, checked once.

use hyper::Uri;

use crate::error::ClientError;

/// A server's address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Address {
    /// Host and port.
    authority: String,
    /// What goes before every path.
    prefix: String,
}

impl Address {
    /// Reads `http://host:port`, or `host:port`.
    pub(crate) fn parse(text: &str) -> Result<Self, ClientError> {
        let wrong = |why: &str| {
            ClientError::invalid(format!(
                "{text:?} is not the address of a server: {why}; give one like http://127.0.0.1:7600"
            ))
        };
        let whole = if text.contains("://") { text.to_owned() } else { format!("http://{text}") };
        let uri: Uri = whole.parse().map_err(|_| wrong("it cannot be read"))?;
        match uri.scheme_str() {
            Some("http") => {}
            Some("https") => return Err(wrong("this client does not support TLS, use http://")),
            Some(_) | None => return Err(wrong("it does not begin with http://")),
        }
        let authority = uri.authority().ok_or_else(|| wrong("it names no host"))?;
        if authority.as_str().contains('@') || uri.query().is_some() {
            return Err(wrong("it must have only host, port and path"));
        }
        Ok(Self {
            authority: authority.as_str().to_owned(),
            prefix: uri.path().trim_end_matches('/').to_owned(),
        })
    }

    pub(crate) fn uri(&self, target: &str) -> Result<Uri, ClientError> {
        format!("{self}{target}")
            .parse()
            .map_err(|_| ClientError::invalid(format!("{target:?} is not a valid path")))
    }

    /// Whether it is an address of this machine.
    pub(crate) fn is_loopback(&self) -> bool {
        let host =
            self.authority.rsplit_once(':').map_or(self.authority.as_str(), |(host, _)| host);
        let host = host.trim_start_matches('[').trim_end_matches(']');
        host == "localhost"
            || host.parse::<std::net::IpAddr>().is_ok_and(|address| address.is_loopback())
    }
}

impl std::fmt::Display for Address {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "http://{}{}", self.authority, self.prefix)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn server_addresses_are_parsed_or_refused() {
        let cases = [
            ("http://127.0.0.1:7600", Some("http://127.0.0.1:7600")),
            ("http://127.0.0.1:7600/", Some("http://127.0.0.1:7600")),
            ("localhost:7600", Some("http://localhost:7600")),
            ("http://host/shoal/", Some("http://host/shoal")),
            ("[::1]:7600", Some("http://[::1]:7600")),
            ("https://host", None),
            ("ftp://host", None),
            ("http://user@host", None),
            ("http://host?a=b", None),
            ("", None),
            ("a b", None),
        ];
        for (text, expected) in cases {
            let read = Address::parse(text).ok().map(|address| address.to_string());
            assert_eq!(read.as_deref(), expected, "{text}");
        }
    }

    #[test]
    fn server_addresses_of_this_machine_are_recognised() {
        let cases = [
            ("127.0.0.1:7600", true),
            ("127.8.8.8", true),
            ("[::1]:7600", true),
            ("localhost", true),
            ("10.0.0.1:7600", false),
            ("localhost.example.org:7600", false),
            ("127.0.0.1.example.org", false),
        ];
        for (text, expected) in cases {
            assert_eq!(Address::parse(text).unwrap().is_loopback(), expected, "{text}");
        }
    }
}

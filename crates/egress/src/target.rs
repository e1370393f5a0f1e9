//! What a program asks a proxy for: a host and a port, as `CONNECT`, an absolute URL or SOCKS write it.
//! It must never guess: a text that two programs could read differently is refused.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use model::HostName;

/// A host as it was asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Host {
    /// By name.
    Name(HostName),
    /// By number, which only address rules allow.
    Address(IpAddr),
}

/// A host and a port.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Target {
    pub host: Host,
    pub port: u16,
}

impl Target {
    /// Reads `host:port`, or `host` where a port is implied.
    pub(crate) fn parse(text: &str, implied: Option<u16>) -> Result<Self, &'static str> {
        let (host, port) = split(text)?;
        let port = match (port, implied) {
            (Some(port), _) => {
                port_number(port).ok_or("the port is not a number from 1 to 65535")?
            }
            (None, Some(implied)) => implied,
            (None, None) => return Err("the port is missing"),
        };
        Ok(Self { host, port })
    }
}

/// Splits the host from the text after its colon.
fn split(text: &str) -> Result<(Host, Option<&str>), &'static str> {
    if let Some(rest) = text.strip_prefix('[') {
        let (inside, after) = rest.split_once(']').ok_or("a bracket is not closed")?;
        let address: Ipv6Addr =
            inside.parse().map_err(|_| "only an address of IPv6 stands in brackets")?;
        let host = Host::Address(address.into());
        return match after.strip_prefix(':') {
            Some(port) => Ok((host, Some(port))),
            None if after.is_empty() => Ok((host, None)),
            None => Err("something other than a port follows the bracket"),
        };
    }
    let (host, port) = match text.split_once(':') {
        Some((host, port)) => (host, Some(port)),
        None => (text, None),
    };
    if let Ok(address) = host.parse::<Ipv4Addr>() {
        return Ok((Host::Address(address.into()), port));
    }
    let name = HostName::parse(host).map_err(|_| "the host is neither a name nor an address")?;
    Ok((Host::Name(name), port))
}

/// A port as plain digits, without a sign or zeros before it.
pub(crate) fn port_number(text: &str) -> Option<u16> {
    let plain = text.bytes().all(|byte| byte.is_ascii_digit()) && !text.starts_with('0');
    if plain { text.parse().ok() } else { None }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(text: &str, implied: Option<u16>) -> Option<String> {
        let target = Target::parse(text, implied).ok()?;
        Some(match target.host {
            Host::Name(name) => format!("{name} {}", target.port),
            Host::Address(address) => format!("<{address}> {}", target.port),
        })
    }

    #[test]
    fn hosts_and_ports_are_read() {
        for (text, expected) in [
            ("api.shoal.test:443", "api.shoal.test 443"),
            ("API.shoal.TEST.:1", "api.shoal.test 1"),
            ("localhost:65535", "localhost 65535"),
            ("xn--bcher-kva.test:443", "xn--bcher-kva.test 443"),
            ("1.2.3.4:443", "<1.2.3.4> 443"),
            ("0.0.0.0:80", "<0.0.0.0> 80"),
            ("255.255.255.255:80", "<255.255.255.255> 80"),
            ("[::]:80", "<::> 80"),
            ("[::ffff:169.254.169.254]:80", "<::ffff:169.254.169.254> 80"),
            ("[64:ff9b::a9fe:a9fe]:80", "<64:ff9b::a9fe:a9fe> 80"),
            ("[2002:a9fe:a9fe::]:80", "<2002:a9fe:a9fe::> 80"),
        ] {
            assert_eq!(shown(text, None).as_deref(), Some(expected), "{text}");
        }
        assert_eq!(shown("api.shoal.test", Some(80)).as_deref(), Some("api.shoal.test 80"));
        assert_eq!(shown("[::1]", Some(80)).as_deref(), Some("<::1> 80"));
        assert_eq!(shown("api.shoal.test", None), None);
        assert_eq!(shown("[::1]", None), None);
    }

    #[test]
    fn what_two_programs_could_read_differently_is_refused() {
        for text in [
            "",
            ":",
            ":80",
            "api.shoal.test:",
            "api.shoal.test: 80",
            "api.shoal.test:80 ",
            " api.shoal.test:80",
            "api.shoal.test:-1",
            "api.shoal.test:+80",
            "api.shoal.test:0",
            "api.shoal.test:00080",
            "api.shoal.test:65536",
            "api.shoal.test:99999999999",
            "api.shoal.test:443x",
            "api.shoal.test:٤٤٣",
            "api.shoal.test:https",
            "127.1:80",
            "127.0.1:80",
            "2130706433:80",
            "0x7f000001:80",
            "0x7f.0.0.1:80",
            "0177.0.0.1:80",
            "017700000001:80",
            "1.2.3.4.:80",
            "1.2.3.256:80",
            "1.2.3.4.5:80",
            "1.2.3.:80",
            "①.2.3.4:80",
            "::1",
            "::1:80",
            "[]:80",
            "[::1:80",
            "::1]:80",
            "[[::1]]:80",
            "[::1]80",
            "[::1]:80:80",
            "[1.2.3.4]:80",
            "[api.shoal.test]:80",
            "[fe80::1%lo]:80",
            "[::1]x:80",
            "a@b:80",
            "a%2eb:80",
            "a/b:80",
            "a\\b:80",
            "a\0b:80",
            "*.shoal.test:80",
            "-a.test:80",
            "a-.test:80",
        ] {
            assert_eq!(shown(text, Some(80)), None, "{text:?}");
        }
    }
}

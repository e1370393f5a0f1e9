//! The part of SOCKS5 that programs use to reach a host by name: no password, `CONNECT`, a name. It must
//! never accept an address: a program that resolved a name itself was not given it by us.

use model::HostName;

use crate::target::{Host, Target};

/// What follows from the bytes so far.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum SocksStep {
    NeedMore,
    /// Send the reply, drop `consumed` bytes, and read on.
    Reply {
        consumed: usize,
        reply: [u8; 2],
    },
    /// What the program wants; `consumed` bytes are done with, what follows is for the host.
    Request {
        consumed: usize,
        target: Target,
    },
    /// Send the reply and close.
    Refused {
        reply: Vec<u8>,
        reason: &'static str,
    },
}

/// How a request is answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SocksReply {
    Connected,
    Failed,
    NotAllowed,
    Unreachable,
    Refused,
    WrongCommand,
    WrongAddressType,
}

const VERSION: u8 = 5;
const NO_PASSWORD: u8 = 0;
const NO_METHOD: u8 = 0xff;
const CONNECT: u8 = 1;
const BY_NAME: u8 = 3;

impl SocksReply {
    /// Its bytes.
    pub(crate) const fn bytes(self) -> [u8; 10] {
        let code = match self {
            Self::Connected => 0,
            Self::Failed => 1,
            Self::NotAllowed => 2,
            Self::Unreachable => 4,
            Self::Refused => 5,
            Self::WrongCommand => 7,
            Self::WrongAddressType => 8,
        };
        [VERSION, code, 0, 1, 0, 0, 0, 0, 0, 0]
    }
}

/// One SOCKS connection, until it is clear what it is for.
#[derive(Debug, Default)]
pub(crate) struct Socks {
    greeted: bool,
}

impl Socks {
    /// Whether a connection to the proxy begins like SOCKS5 and not like HTTP.
    pub(crate) const fn begins(first: u8) -> bool {
        first == VERSION
    }

    /// Reads on. `buffer` begins with the first byte that was not consumed.
    pub(crate) fn step(&mut self, buffer: &[u8]) -> SocksStep {
        match buffer.first() {
            None => SocksStep::NeedMore,
            Some(&VERSION) if self.greeted => request(buffer),
            Some(&VERSION) => self.greet(buffer),
            Some(_) => refused(SocksReply::Failed, "it is not SOCKS5"),
        }
    }

    fn greet(&mut self, buffer: &[u8]) -> SocksStep {
        let Some(count) = buffer.get(1) else { return SocksStep::NeedMore };
        let consumed = 2 + usize::from(*count);
        let Some(methods) = buffer.get(2..consumed) else { return SocksStep::NeedMore };
        if !methods.contains(&NO_PASSWORD) {
            let reply = vec![VERSION, NO_METHOD];
            return SocksStep::Refused { reply, reason: "SOCKS works without a password only" };
        }
        self.greeted = true;
        SocksStep::Reply { consumed, reply: [VERSION, NO_PASSWORD] }
    }
}

fn refused(reply: SocksReply, reason: &'static str) -> SocksStep {
    SocksStep::Refused { reply: reply.bytes().to_vec(), reason }
}

/// Each byte is judged as soon as it is there, so that a refusal waits for nothing.
fn request(buffer: &[u8]) -> SocksStep {
    if buffer.get(1).is_some_and(|command| *command != CONNECT) {
        return refused(SocksReply::WrongCommand, "SOCKS works with CONNECT only");
    }
    if buffer.get(2).is_some_and(|reserved| *reserved != 0) {
        return refused(SocksReply::Failed, "the reserved byte of the SOCKS request is not zero");
    }
    if buffer.get(3).is_some_and(|kind| *kind != BY_NAME) {
        return refused(SocksReply::WrongAddressType, "SOCKS works with names only, not addresses");
    }
    let Some(length) = buffer.get(4) else { return SocksStep::NeedMore };
    let end = 5 + usize::from(*length);
    let Some(name) = buffer.get(5..end) else { return SocksStep::NeedMore };
    let Some(port) = buffer.get(end..end + 2) else { return SocksStep::NeedMore };
    let name = std::str::from_utf8(name).ok().and_then(|name| HostName::parse(name).ok());
    let port = port.iter().fold(0, |sum: u16, byte| sum << 8 | u16::from(*byte));
    match name {
        None => refused(SocksReply::NotAllowed, "the SOCKS request does not name a host"),
        Some(_) if port == 0 => refused(SocksReply::NotAllowed, "port 0 is not a port"),
        Some(name) => {
            let target = Target { host: Host::Name(name), port };
            SocksStep::Request { consumed: end + 2, target }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(name: &[u8], port: u16) -> Vec<u8> {
        let mut bytes = vec![5, 1, 0, 3, name.len() as u8];
        bytes.extend_from_slice(name);
        bytes.extend_from_slice(&port.to_be_bytes());
        bytes
    }

    fn greeted() -> Socks {
        let mut socks = Socks::default();
        assert_eq!(socks.step(&[5, 1, 0]), SocksStep::Reply { consumed: 3, reply: [5, 0] });
        socks
    }

    #[test]
    fn a_request_by_name_is_read_in_any_pieces() {
        let bytes = named(b"Api.Shoal.test", 443);
        let host = Host::Name(HostName::parse("api.shoal.test").unwrap());
        let target = Target { host, port: 443 };
        let mut socks = greeted();
        for length in 0..bytes.len() {
            assert_eq!(socks.step(&bytes[..length]), SocksStep::NeedMore, "{length}");
        }
        let whole = [&bytes[..], b"for the host"].concat();
        assert_eq!(socks.step(&whole), SocksStep::Request { consumed: bytes.len(), target });
    }

    #[test]
    fn a_greeting_is_read_in_any_pieces() {
        let mut socks = Socks::default();
        let bytes = [5, 3, 2, 1, 0];
        for length in 0..bytes.len() {
            assert_eq!(socks.step(&bytes[..length]), SocksStep::NeedMore, "{length}");
        }
        assert_eq!(socks.step(&bytes), SocksStep::Reply { consumed: 5, reply: [5, 0] });
    }

    #[test]
    fn greetings_that_want_more_are_refused() {
        for (case, bytes) in [
            ("a password", &[5, 1, 2][..]),
            ("no method at all", &[5, 0]),
            ("only methods of others", &[5, 2, 1, 0x80]),
        ] {
            let SocksStep::Refused { reply, .. } = Socks::default().step(bytes) else {
                panic!("{case}");
            };
            assert_eq!(reply, [5, 0xff], "{case}");
        }
        assert!(matches!(Socks::default().step(&[4, 1, 0, 80]), SocksStep::Refused { .. }));
    }

    #[test]
    fn requests_for_anything_but_a_name_are_refused() {
        let v4 = |address: [u8; 4]| [&[5, 1, 0, 1][..], &address, &[1, 0xbb]].concat();
        let v6 = |address: &str| {
            let address: std::net::Ipv6Addr = address.parse().unwrap();
            [&[5, 1, 0, 4][..], &address.octets(), &[1, 0xbb]].concat()
        };
        for (case, bytes, code) in [
            ("a public address", v4([1, 2, 3, 4]), 8),
            ("a private address", v4([10, 0, 0, 1]), 8),
            ("metadata", v4([169, 254, 169, 254]), 8),
            ("loopback", v4([127, 0, 0, 1]), 8),
            ("a synthetic address", v4([198, 18, 5, 6]), 8),
            ("a public address of IPv6", v6("2606:4700::1111"), 8),
            ("a private address of IPv6", v6("fd00::1"), 8),
            ("a mapped address", v6("::ffff:169.254.169.254"), 8),
            ("a translated address", v6("64:ff9b::a9fe:a9fe"), 8),
            ("an unknown kind of address", vec![5, 1, 0, 2], 8),
            ("BIND", vec![5, 2, 0, 3], 7),
            ("UDP", vec![5, 3, 0, 3], 7),
            ("a reserved byte", vec![5, 1, 1, 3], 1),
            ("another version", vec![4, 1, 0, 3], 1),
            ("port 0", named(b"api.shoal.test", 0), 2),
        ] {
            let SocksStep::Refused { reply, .. } = greeted().step(&bytes) else { panic!("{case}") };
            assert_eq!(reply, [5, code, 0, 1, 0, 0, 0, 0, 0, 0], "{case}");
        }
    }

    #[test]
    fn names_that_could_be_read_differently_are_refused() {
        for name in [
            &b""[..],
            b"api.shoal.test\0.evil.test",
            b"evil.test\0api.shoal.test",
            b"\0api.shoal.test",
            b"api.shoal.test..",
            b".api.shoal.test",
            b"[api.shoal.test]",
            b"[::1]",
            b"::1",
            b"1.2.3.4",
            b"2130706433",
            b"0x7f000001",
            b"0177.0.0.1",
            b"127.1",
            b"api%2eshoal.test",
            b"user@api.shoal.test",
            b"api.shoal.test:443",
            b"api.shoal.test ",
            b"api.shoal.test\r\nX: y",
            b"fe80::1%lo",
            "аpi.shoal.test".as_bytes(),
            "api。shoal.test".as_bytes(),
            b"\xff\xfe.shoal.test",
        ] {
            let step = greeted().step(&named(name, 443));
            let SocksStep::Refused { reply, .. } = step else { panic!("{name:?}") };
            assert_eq!(reply[1], 2, "{name:?}");
        }
    }

    #[test]
    fn every_changed_byte_is_survived() {
        let bytes = named(b"api.shoal.test", 443);
        for at in 0..bytes.len() {
            for byte in 0..=255 {
                let mut changed = bytes.clone();
                changed[at] = byte;
                let _ = greeted().step(&changed);
            }
        }
    }
}

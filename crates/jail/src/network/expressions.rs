//! The expressions that rules of `nf_tables` consist of, encoded as the `nft` program does it. It
//! must never decide what a rule says.

use std::net::Ipv4Addr;

use super::message::Messages;

/// A register of 16 bytes, or the first of its four parts.
const FIRST: u32 = 1;
const SECOND: u32 = 2;
/// The second part of the first register.
const SECOND_PART: u32 = 9;
/// The register of verdicts.
const VERDICT: u32 = 0;

const NETWORK_HEADER: u32 = 1;
const TRANSPORT_HEADER: u32 = 2;
/// Where the destination address is in the header of IPv4.
const DESTINATION: u32 = 16;
/// Where the destination port is in the header of TCP.
const PORT: u32 = 2;
/// Where the flags are in the header of TCP.
const FLAGS: u32 = 13;

const SYN: u8 = 0x02;
const ACK: u8 = 0x10;

/// Protocols of IPv4.
pub(super) const ICMP: u8 = 1;
pub(super) const TCP: u8 = 6;
pub(super) const UDP: u8 = 17;
/// The type of the message that `ping` sends.
const ECHO_REQUEST: u8 = 8;

const EQUAL: u32 = 0;
const AT_MOST: u32 = 3;
const AT_LEAST: u32 = 5;

/// The expressions of one rule.
pub(super) struct Rule<'a>(pub &'a mut Messages);

/// What a mask selects. `nft` names the operation of one kind and leaves that of the other out,
/// which means the same.
#[derive(Clone, Copy)]
enum Mask {
    Prefix,
    Flags,
}

/// How a rule refuses.
#[derive(Clone, Copy)]
pub(super) enum Refusal {
    /// As a firewall does: a program sees that there is no way to the host.
    Prohibited,
    /// As a host without this port does.
    PortUnreachable,
    /// As a port on which no program listens.
    Reset,
}

impl Rule<'_> {
    fn expression(&mut self, name: &str, data: impl FnOnce(&mut Messages)) {
        self.0.nested(1, |element| {
            element.text(1, name);
            element.nested(2, data);
        });
    }

    fn load(&mut self, register: u32, header: u32, offset: u32, length: u32) {
        self.expression("payload", |data| {
            data.number(1, register);
            data.number(2, header);
            data.number(3, offset);
            data.number(4, length);
        });
    }

    fn compare(&mut self, how: u32, value: &[u8]) {
        self.expression("cmp", |data| {
            data.number(1, FIRST);
            data.number(2, how);
            data.nested(3, |whole| whole.bytes(1, value));
        });
    }

    fn mask(&mut self, mask: &[u8], kind: Mask) {
        self.expression("bitwise", |data| {
            data.number(1, FIRST);
            data.number(2, FIRST);
            match kind {
                Mask::Prefix => {}
                Mask::Flags => data.number(6, 0),
            }
            data.number(3, mask.len() as u32);
            data.nested(4, |whole| whole.bytes(1, mask));
            data.nested(5, |whole| whole.bytes(1, &[0; 4][..mask.len()]));
        });
    }

    fn immediate(&mut self, register: u32, value: &[u8]) {
        self.expression("immediate", |data| {
            data.number(1, register);
            data.nested(2, |whole| whole.bytes(1, value));
        });
    }

    fn verdict(&mut self, code: u32) {
        self.expression("immediate", |data| {
            data.number(1, VERDICT);
            data.nested(2, |whole| whole.nested(2, |verdict| verdict.number(1, code)));
        });
    }

    /// Goes on if the destination is in a range.
    pub(super) fn to(&mut self, first: Ipv4Addr, bits: u8) -> &mut Self {
        let octets = first.octets();
        let whole = usize::from(bits / 8);
        match (bits, bits % 8) {
            (0, _) => {}
            (_, 0) => {
                self.load(FIRST, NETWORK_HEADER, DESTINATION, whole as u32);
                self.compare(EQUAL, &octets[..whole]);
            }
            _ => {
                let mask = u32::MAX.checked_shl(32 - u32::from(bits)).unwrap_or(0);
                self.load(FIRST, NETWORK_HEADER, DESTINATION, 4);
                self.mask(&mask.to_be_bytes(), Mask::Prefix);
                self.compare(EQUAL, &(first.to_bits() & mask).to_be_bytes());
            }
        }
        self
    }

    /// Goes on if the destination is one of these addresses.
    pub(super) fn between(&mut self, first: Ipv4Addr, last: Ipv4Addr) -> &mut Self {
        self.load(FIRST, NETWORK_HEADER, DESTINATION, 4);
        self.compare(AT_LEAST, &first.octets());
        self.compare(AT_MOST, &last.octets());
        self
    }

    /// Goes on if the packet is of this protocol.
    pub(super) fn protocol(&mut self, protocol: u8) -> &mut Self {
        const PROTOCOL: u32 = 16;
        self.expression("meta", |data| {
            data.number(2, PROTOCOL);
            data.number(1, FIRST);
        });
        self.compare(EQUAL, &[protocol]);
        self
    }

    /// Goes on if the packet of TCP is for one of these ports.
    pub(super) fn ports(&mut self, first: u16, last: u16) -> &mut Self {
        self.load(FIRST, TRANSPORT_HEADER, PORT, 2);
        if first == last {
            self.compare(EQUAL, &first.to_be_bytes());
        } else {
            self.compare(AT_LEAST, &first.to_be_bytes());
            self.compare(AT_MOST, &last.to_be_bytes());
        }
        self
    }

    /// Goes on if the packet of TCP begins a connection. Answers have other flags; a rule without
    /// this would refuse them too, since both ends of a connection may have the same address.
    pub(super) fn begins(&mut self) -> &mut Self {
        self.load(FIRST, TRANSPORT_HEADER, FLAGS, 1);
        self.mask(&[SYN | ACK], Mask::Flags);
        self.compare(EQUAL, &[SYN]);
        self
    }

    /// Goes on if the message of ICMP asks for an echo.
    pub(super) fn asks_for_echo(&mut self) -> &mut Self {
        self.load(FIRST, TRANSPORT_HEADER, 0, 1);
        self.compare(EQUAL, &[ECHO_REQUEST]);
        self
    }

    /// Adds destination and port to a set.
    pub(super) fn record(&mut self, set: &str, id: u32) {
        self.load(FIRST, NETWORK_HEADER, DESTINATION, 4);
        self.load(SECOND_PART, TRANSPORT_HEADER, PORT, 2);
        self.expression("dynset", |data| {
            const ADD: u32 = 0;
            data.number(4, FIRST);
            data.number(3, ADD);
            data.text(1, set);
            data.number(2, id);
        });
    }

    /// Hands the connection to a listener, or goes on with the next rule if there is none.
    pub(super) fn hand_to(&mut self, (address, port): (Ipv4Addr, u16)) {
        const IPV4: u32 = 2;
        self.immediate(FIRST, &address.octets());
        self.immediate(SECOND, &port.to_be_bytes());
        self.expression("tproxy", |data| {
            data.number(1, IPV4);
            data.number(2, FIRST);
            data.number(3, SECOND);
        });
        self.accept();
    }

    pub(super) fn accept(&mut self) {
        self.verdict(1);
    }

    pub(super) fn drop(&mut self) {
        self.verdict(0);
    }

    pub(super) fn refuse(&mut self, refusal: Refusal) {
        const UNREACHABLE: u32 = 0;
        const RESET: u32 = 1;
        let (kind, code) = match refusal {
            Refusal::Prohibited => (UNREACHABLE, 13),
            Refusal::PortUnreachable => (UNREACHABLE, 3),
            Refusal::Reset => (RESET, 0),
        };
        self.expression("reject", |data| {
            data.number(1, kind);
            data.bytes(2, &[code]);
        });
    }
}

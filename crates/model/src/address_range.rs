//! Ranges of addresses, as rules write them.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

use crate::network::{InvalidRule, invalid, number};

/// A range of addresses: an address and how many of its first bits count.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct AddressRange {
    first: IpAddr,
    bits: u8,
}

impl AddressRange {
    /// All addresses whose first `bits` are those of `first`; the others must be zero.
    pub fn new(first: IpAddr, bits: u8) -> Option<Self> {
        let range = Self { first, bits };
        let most = if first.is_ipv4() { 32 } else { 128 };
        (bits <= most && range.masked(first) == first).then_some(range)
    }

    /// The first address.
    pub const fn first(&self) -> IpAddr {
        self.first
    }

    /// How many bits count.
    pub const fn bits(&self) -> u8 {
        self.bits
    }

    /// Whether an address is in it. An IPv4 address is never in a range of IPv6.
    pub fn contains(&self, address: IpAddr) -> bool {
        self.first.is_ipv4() == address.is_ipv4() && self.masked(address) == self.first
    }

    /// Whether every address of another range is in it.
    pub fn covers(&self, other: &Self) -> bool {
        other.bits >= self.bits && self.contains(other.first)
    }

    /// Whether both have an address.
    pub fn overlaps(&self, other: &Self) -> bool {
        self.covers(other) || other.covers(self)
    }

    fn masked(&self, address: IpAddr) -> IpAddr {
        match address {
            IpAddr::V4(v4) => {
                let mask = u32::MAX.checked_shl(32 - u32::from(self.bits)).unwrap_or(0);
                Ipv4Addr::from_bits(v4.to_bits() & mask).into()
            }
            IpAddr::V6(v6) => {
                let mask = u128::MAX.checked_shl(128 - u32::from(self.bits)).unwrap_or(0);
                Ipv6Addr::from_bits(v6.to_bits() & mask).into()
            }
        }
    }
}

impl fmt::Display for AddressRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let whole = if self.first.is_ipv4() { 32 } else { 128 };
        if self.bits == whole {
            write!(f, "{}", self.first)
        } else {
            write!(f, "{}/{}", self.first, self.bits)
        }
    }
}

impl FromStr for AddressRange {
    type Err = InvalidRule;

    fn from_str(text: &str) -> Result<Self, InvalidRule> {
        const PROBLEM: &str =
            "an address range is an address, or one whose last bits are zero and a number of bits";
        let (address, bits) = match text.split_once('/') {
            Some((address, bits)) => (address, Some(bits)),
            None => (text, None),
        };
        let Ok(first) = address.parse::<IpAddr>() else { return invalid(text, PROBLEM) };
        let bits = match bits {
            None if first.is_ipv4() => Some(32),
            None => Some(128),
            Some(bits) => number(bits).and_then(|bits| u8::try_from(bits).ok()),
        };
        match bits.and_then(|bits| Self::new(first, bits)) {
            Some(range) => Ok(range),
            None => invalid(text, PROBLEM),
        }
    }
}

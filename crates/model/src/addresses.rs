//! Addresses that no policy allows unless an address rule names them: everything that is not an
//! ordinary public address. The list follows the special-purpose registries of IANA for IPv4 and
//! IPv6, and adds metadata services of clouds that lie elsewhere. It must never look at the machine:
//! addresses of the node itself are added where they are known.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::address_range::AddressRange;

/// Ranges of IPv4 that are not public.
const SPECIAL_V4: &[([u8; 4], u8)] = &[
    ([0, 0, 0, 0], 8),
    ([10, 0, 0, 0], 8),
    ([100, 64, 0, 0], 10),
    ([127, 0, 0, 0], 8),
    // Metadata of one cloud, in the middle of public addresses.
    ([168, 63, 129, 16], 32),
    ([169, 254, 0, 0], 16),
    ([172, 16, 0, 0], 12),
    ([192, 0, 0, 0], 24),
    ([192, 0, 2, 0], 24),
    ([192, 31, 196, 0], 24),
    ([192, 52, 193, 0], 24),
    ([192, 88, 99, 0], 24),
    ([192, 168, 0, 0], 16),
    ([192, 175, 48, 0], 24),
    ([198, 18, 0, 0], 15),
    ([198, 51, 100, 0], 24),
    ([203, 0, 113, 0], 24),
    ([224, 0, 0, 0], 4),
    ([240, 0, 0, 0], 4),
];

/// Ranges of IPv6 that are not public. Beyond them, everything outside of `2000::/3` is not.
const SPECIAL_V6: &[([u16; 8], u8)] = &[
    ([0x2001, 0, 0, 0, 0, 0, 0, 0], 23),
    ([0x2001, 0xdb8, 0, 0, 0, 0, 0, 0], 32),
    ([0x2002, 0, 0, 0, 0, 0, 0, 0], 16),
    ([0x2620, 0x4f, 0x8000, 0, 0, 0, 0, 0], 48),
    ([0x3fff, 0, 0, 0, 0, 0, 0, 0], 20),
    // Everything that is not 2000::/3: first bits 000, 01 and 1.
    ([0, 0, 0, 0, 0, 0, 0, 0], 3),
    ([0x4000, 0, 0, 0, 0, 0, 0, 0], 2),
    ([0x8000, 0, 0, 0, 0, 0, 0, 0], 1),
];

/// Every range that is not public.
pub fn special_ranges() -> impl Iterator<Item = AddressRange> {
    let v4 = SPECIAL_V4
        .iter()
        .filter_map(|(first, bits)| AddressRange::new(Ipv4Addr::from(*first).into(), *bits));
    let v6 = SPECIAL_V6
        .iter()
        .filter_map(|(first, bits)| AddressRange::new(Ipv6Addr::from(*first).into(), *bits));
    v4.chain(v6)
}

/// The address that a connection to this one reaches: an IPv4 address inside one of IPv6 (mapped, or
/// behind a translator with the well-known prefix `64:ff9b::/96`) is taken out.
pub fn unwrapped(address: IpAddr) -> IpAddr {
    let IpAddr::V6(v6) = address else { return address };
    if let Some(v4) = v6.to_ipv4_mapped() {
        return v4.into();
    }
    match v6.segments() {
        [0x64, 0xff9b, 0, 0, 0, 0, high, low] => {
            Ipv4Addr::from_bits(u32::from(high) << 16 | u32::from(low)).into()
        }
        _ => address,
    }
}

/// Whether an address is an ordinary public one.
pub fn is_public(address: IpAddr) -> bool {
    let address = unwrapped(address);
    special_ranges().all(|special| !special.contains(address))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn special_addresses_are_not_public() {
        for text in [
            "0.0.0.0",
            "0.1.2.3",
            "10.0.0.1",
            "100.64.0.1",
            "100.100.100.200",
            "100.127.255.255",
            "127.0.0.1",
            "127.1.2.3",
            "168.63.129.16",
            "169.254.169.254",
            "172.16.0.1",
            "172.31.255.255",
            "192.0.0.1",
            "192.0.0.192",
            "192.0.2.1",
            "192.31.196.1",
            "192.52.193.1",
            "192.88.99.1",
            "192.168.0.1",
            "192.175.48.1",
            "198.18.0.1",
            "198.19.255.255",
            "198.51.100.1",
            "203.0.113.1",
            "224.0.0.1",
            "239.255.255.255",
            "240.0.0.1",
            "255.255.255.255",
            "::",
            "::1",
            "::7f00:1",
            "::ffff:127.0.0.1",
            "::ffff:169.254.169.254",
            "::ffff:0:169.254.169.254",
            "64:ff9b::169.254.169.254",
            "64:ff9b::10.0.0.1",
            "64:ff9b:1::7f00:1",
            "100::1",
            "100:0:0:1::1",
            "2001::1",
            "2001:2::1",
            "2001:10::1",
            "2001:20::1",
            "2001:db8::1",
            "2002:a9fe:a9fe::",
            "2620:4f:8000::1",
            "3fff::1",
            "5f00::1",
            "fc00::1",
            "fd00:ec2::254",
            "fe80::1",
            "fec0::1",
            "ff02::1",
        ] {
            assert!(!is_public(text.parse().unwrap()), "{text}");
        }
    }

    #[test]
    fn neighbours_of_special_ranges_are_public() {
        for text in [
            "1.0.0.0",
            "9.255.255.255",
            "11.0.0.0",
            "100.63.255.255",
            "100.128.0.0",
            "126.255.255.255",
            "128.0.0.0",
            "168.63.129.15",
            "168.63.129.17",
            "169.253.255.255",
            "169.255.0.0",
            "172.15.255.255",
            "172.32.0.0",
            "192.0.1.0",
            "192.0.3.0",
            "192.167.255.255",
            "192.169.0.0",
            "198.17.255.255",
            "198.20.0.0",
            "223.255.255.255",
            "8.8.8.8",
            "::ffff:8.8.8.8",
            "64:ff9b::8.8.8.8",
            "2001:200::1",
            "2001:4860:4860::8888",
            "2003::1",
            "2606:4700::1111",
            "2a00::1",
            "3ffe::1",
        ] {
            assert!(is_public(text.parse().unwrap()), "{text}");
        }
    }

    /// Every row of IANA's registries of special-purpose addresses, those for IPv4 and for IPv6, and
    /// multicast. Rows that IANA calls globally reachable are relays and services of the network itself,
    /// which no program needs by address.
    const REGISTERED: &[&str] = &[
        "0.0.0.0/8",
        "0.0.0.0/32",
        "10.0.0.0/8",
        "100.64.0.0/10",
        "127.0.0.0/8",
        "169.254.0.0/16",
        "172.16.0.0/12",
        "192.0.0.0/24",
        "192.0.0.0/29",
        "192.0.0.8/32",
        "192.0.0.9/32",
        "192.0.0.10/32",
        "192.0.0.170/32",
        "192.0.0.171/32",
        "192.0.2.0/24",
        "192.31.196.0/24",
        "192.52.193.0/24",
        "192.88.99.0/24",
        "192.88.99.2/32",
        "192.168.0.0/16",
        "192.175.48.0/24",
        "198.18.0.0/15",
        "198.51.100.0/24",
        "203.0.113.0/24",
        "224.0.0.0/4",
        "240.0.0.0/4",
        "255.255.255.255/32",
        "::1/128",
        "::/128",
        "64:ff9b:1::/48",
        "100::/64",
        "100:0:0:1::/64",
        "2001::/23",
        "2001::/32",
        "2001:1::1/128",
        "2001:1::2/128",
        "2001:1::3/128",
        "2001:2::/48",
        "2001:3::/32",
        "2001:4:112::/48",
        "2001:10::/28",
        "2001:20::/28",
        "2001:30::/28",
        "2001:db8::/32",
        "2002::/16",
        "2620:4f:8000::/48",
        "3fff::/20",
        "5f00::/16",
        "fc00::/7",
        "fe80::/10",
        "fec0::/10",
        "ff00::/8",
    ];

    /// The two rows that contain addresses of IPv4, which are judged instead.
    const REGISTERED_FOR_V4: [&str; 2] = ["::ffff:0:0/96", "64:ff9b::/96"];

    /// The first address, one in the middle and the last.
    fn corners(row: &str) -> [IpAddr; 3] {
        let (first, bits) = row.split_once('/').unwrap();
        let bits: u32 = bits.parse().unwrap();
        match first.parse().unwrap() {
            IpAddr::V4(first) => {
                let rest = u32::MAX.checked_shr(bits).unwrap_or(0);
                let at = |rest: u32| Ipv4Addr::from_bits(first.to_bits() | rest).into();
                [first.into(), at(rest / 2), at(rest)]
            }
            IpAddr::V6(first) => {
                let rest = u128::MAX.checked_shr(bits).unwrap_or(0);
                let at = |rest: u128| Ipv6Addr::from_bits(first.to_bits() | rest).into();
                [first.into(), at(rest / 2), at(rest)]
            }
        }
    }

    /// An address of IPv4 as it is written in ranges that stand for such addresses.
    fn forms(v4: Ipv4Addr) -> [(&'static str, Ipv6Addr); 7] {
        let low = u128::from(v4.to_bits());
        let [a, b, c, d] = v4.octets().map(u128::from);
        let of = |text: &str| text.parse::<Ipv6Addr>().unwrap().to_bits();
        [
            ("mapped", of("::ffff:0:0") | low),
            ("compatible", low),
            ("translated", of("::ffff:0:0:0") | low),
            ("NAT64", of("64:ff9b::") | low),
            ("local NAT64 of 64 bits", of("64:ff9b:1::") | a << 48 | b << 40 | c << 32 | d << 24),
            ("6to4", of("2002::") | low << 80),
            ("Teredo", of("2001::") | (low ^ 0xffff_ffff)),
        ]
        .map(|(name, bits)| (name, Ipv6Addr::from_bits(bits)))
    }

    #[test]
    fn no_row_of_the_registries_is_public() {
        for row in REGISTERED {
            for address in corners(row) {
                assert!(!is_public(address), "{address} of {row}");
                let IpAddr::V4(v4) = address else { continue };
                for (form, address) in forms(v4) {
                    assert!(!is_public(address.into()), "{v4} as {form}: {address}");
                }
            }
        }
        for row in REGISTERED_FOR_V4 {
            let [first, _, last] = corners(row);
            assert!(!is_public(first) && !is_public(last), "{row}");
        }
    }

    /// Nothing else is refused: each of our ranges is a row, or known for another reason.
    #[test]
    fn what_is_special_is_registered() {
        const OURS: [&str; 4] = ["168.63.129.16/32", "::/3", "4000::/2", "8000::/1"];
        for range in special_ranges() {
            let row = format!("{}/{}", range.first(), range.bits());
            let known = REGISTERED.contains(&row.as_str()) || OURS.contains(&row.as_str());
            assert!(known, "{row} is in no registry");
        }
    }

    #[test]
    fn of_addresses_within_addresses_only_two_forms_are_public() {
        let public = Ipv4Addr::new(8, 8, 8, 8);
        let seen = forms(public).map(|(form, address)| (form, is_public(address.into())));
        let public: Vec<&str> =
            seen.iter().filter(|(_, public)| *public).map(|(form, _)| *form).collect();
        assert_eq!(public, ["mapped", "NAT64"]);
    }
}

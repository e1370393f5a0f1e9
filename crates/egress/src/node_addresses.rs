//! The addresses of the node itself. No name and no policy `open` leads to them: only a rule that is
//! such an address alone. It must never look at the machine: the server reads the tables of the kernel.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use model::AddressRange;
use model::addresses::unwrapped;
use serde::{Deserialize, Serialize};

/// Addresses by which the node is reached, besides those of its loopback.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct NodeAddresses {
    single: BTreeSet<IpAddr>,
    ranges: Vec<(IpAddr, u8)>,
}

impl NodeAddresses {
    /// These addresses.
    pub(crate) fn new(addresses: impl IntoIterator<Item = IpAddr>) -> Self {
        let mut own = Self::default();
        addresses.into_iter().for_each(|address| own.add(address));
        own
    }

    /// What the kernel calls local: the texts of `/proc/net/fib_trie` and `/proc/net/if_inet6`.
    pub(crate) fn from_tables(fib_trie: &str, if_inet6: &str) -> Self {
        let mut own = Self::default();
        own.read_v4(fib_trie);
        own.read_v6(if_inet6);
        own
    }

    /// Adds one, such as the address behind which a cloud hides the node.
    pub(crate) fn add(&mut self, address: IpAddr) {
        self.single.insert(unwrapped(address));
    }

    /// Whether an address leads to the node. Its loopback does, whatever the address: what listens
    /// there often asks for no password.
    pub(crate) fn contains(&self, address: IpAddr) -> bool {
        let address = unwrapped(address);
        let is_zero = matches!(address, IpAddr::V4(v4) if v4.octets()[0] == 0);
        if address.is_loopback() || address.is_unspecified() || is_zero {
            return true;
        }
        let within = |(first, bits): &(IpAddr, u8)| {
            AddressRange::new(*first, *bits).is_some_and(|range| range.contains(address))
        };
        self.single.contains(&address) || self.ranges.iter().any(within)
    }

    fn read_v4(&mut self, fib_trie: &str) {
        let mut last: Option<Ipv4Addr> = None;
        for line in fib_trie.lines() {
            let line = line.trim_start();
            if let Some(address) = line.strip_prefix("|-- ") {
                last = address.trim().parse().ok();
            } else if let Some(bits) = line.strip_prefix('/')
                && let Some(bits) = bits.strip_suffix("host LOCAL")
                && let (Some(first), Ok(bits)) = (last, bits.trim().parse::<u8>())
                && !first.is_loopback()
            {
                if bits == 32 {
                    self.add(first.into());
                } else if !self.ranges.contains(&(first.into(), bits)) {
                    self.ranges.push((first.into(), bits));
                }
            }
        }
    }

    fn read_v6(&mut self, if_inet6: &str) {
        for line in if_inet6.lines() {
            let digits = line.split_whitespace().next().unwrap_or_default();
            if digits.len() != 32 {
                continue;
            }
            let Ok(bits) = u128::from_str_radix(digits, 16) else { continue };
            let address = Ipv6Addr::from_bits(bits);
            if !address.is_loopback() {
                self.add(address.into());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FIB_TRIE: &str = "\
Main:
  +-- 0.0.0.0/0 3 0 5
     |-- 0.0.0.0
        /0 universe UNICAST
     +-- 203.0.113.0/24 2 0 2
        |-- 203.0.113.0
           /24 link UNICAST
Local:
  +-- 0.0.0.0/0 3 0 5
     +-- 127.0.0.0/8 2 0 2
        +-- 127.0.0.0/31 1 0 0
           |-- 127.0.0.0
              /8 host LOCAL
           |-- 127.0.0.1
              /32 host LOCAL
        |-- 127.255.255.255
           /32 link BROADCAST
     |-- 203.0.113.9
        /32 host LOCAL
     |-- 203.0.113.255
        /32 link BROADCAST
     |-- 8.8.4.0
        /24 host LOCAL
";

    const IF_INET6: &str = "\
00000000000000000000000000000001 01 80 10 80       lo
20014860486000000000000000008844 02 40 00 80     eth0
fe80000000000000021122fffe334455 02 40 20 80     eth0
short 02 40 20 80     eth0
";

    fn contains(node: &NodeAddresses, text: &str) -> bool {
        node.contains(text.parse().unwrap())
    }

    #[test]
    fn what_the_kernel_calls_local_is_the_nodes() {
        let node = NodeAddresses::from_tables(FIB_TRIE, IF_INET6);
        for own in [
            "203.0.113.9",
            "::ffff:203.0.113.9",
            "64:ff9b::203.0.113.9",
            "8.8.4.0",
            "8.8.4.255",
            "2001:4860:4860::8844",
            "fe80::211:22ff:fe33:4455",
        ] {
            assert!(contains(&node, own), "{own}");
        }
        for other in ["203.0.113.0", "203.0.113.8", "203.0.113.255", "8.8.5.0"] {
            assert!(!contains(&node, other), "{other}");
        }
        for loopback in ["127.0.0.1", "127.9.9.9", "::1", "0.0.0.0", "0.1.2.3", "::"] {
            assert!(contains(&NodeAddresses::default(), loopback), "{loopback}");
        }
    }

    #[test]
    fn tables_that_are_not_tables_have_no_addresses() {
        for text in ["", "|-- x\n/32 host LOCAL", "/32 host LOCAL", "|-- 1.2.3.4\n/33x host LOCAL"]
        {
            assert_eq!(NodeAddresses::from_tables(text, text), NodeAddresses::default());
        }
    }

    #[test]
    fn an_address_behind_which_the_node_is_hidden_is_added() {
        let mut node = NodeAddresses::new(["10.0.0.5".parse().unwrap()]);
        assert!(!contains(&node, "9.9.9.9"));
        node.add("9.9.9.9".parse().unwrap());
        assert!(contains(&node, "9.9.9.9") && contains(&node, "10.0.0.5"));
    }
}

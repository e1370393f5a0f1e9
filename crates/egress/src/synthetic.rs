//! The addresses by which a sandbox knows names: a keyed hash of the name, so that an address that a
//! program kept leads to the same name after a restart, or to none. It must never give an address to
//! two names.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;

use model::HostName;
use sha2::{Digest as _, Sha256};

/// The most names of one sandbox.
pub(crate) const NAMES_MAX: usize = 4096;

/// `198.18.0.0/15`.
const FIRST: u32 = 0xc612_0000;
const BITS: u8 = 15;
/// The first 256 are the sandbox's own: `198.18.0.1` is on its loopback.
const KEPT: u32 = 256;
const COUNT: u32 = (1 << (32 - BITS)) - KEPT;

/// The addresses of the names of one sandbox.
pub(crate) struct Synthetic {
    key: [u8; 16],
    names: BTreeMap<Ipv4Addr, HostName>,
}

/// The address of a name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Assigned {
    pub address: Ipv4Addr,
    /// The name had none before.
    pub is_new: bool,
}

impl Synthetic {
    /// No names yet. The key belongs to the sandbox, and stays the same when the process is replaced.
    pub(crate) const fn new(key: [u8; 16]) -> Self {
        Self { key, names: BTreeMap::new() }
    }

    /// Whether an address is one that names get.
    pub(crate) const fn is_synthetic(address: Ipv4Addr) -> bool {
        let bits = address.to_bits();
        bits >= FIRST + KEPT && bits < FIRST + KEPT + COUNT
    }

    /// The address of a name; none if the sandbox has too many names already.
    pub(crate) fn address_of(&mut self, name: &HostName) -> Option<Assigned> {
        let mut attempt = 0;
        loop {
            let address = self.candidate(name, attempt);
            match self.names.get(&address) {
                Some(known) if known == name => return Some(Assigned { address, is_new: false }),
                Some(_) => attempt += 1,
                None if self.names.len() >= NAMES_MAX => return None,
                None => {
                    self.names.insert(address, name.clone());
                    return Some(Assigned { address, is_new: true });
                }
            }
        }
    }

    /// The name that has an address.
    pub(crate) fn name_of(&self, address: Ipv4Addr) -> Option<&HostName> {
        self.names.get(&address)
    }

    fn candidate(&self, name: &HostName, attempt: u32) -> Ipv4Addr {
        let mut hash = Sha256::new();
        hash.update(self.key);
        hash.update(attempt.to_be_bytes());
        hash.update(name.as_str());
        let digest = hash.finalize();
        let number = digest.iter().take(4).fold(0, |sum: u32, byte| sum << 8 | u32::from(*byte));
        Ipv4Addr::from_bits(FIRST + KEPT + number % COUNT)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(number: usize) -> HostName {
        HostName::parse(&format!("n{number}.wild.test")).unwrap()
    }

    fn filled(key: [u8; 16], count: usize) -> (Synthetic, Vec<Ipv4Addr>) {
        let mut names = Synthetic::new(key);
        let addresses = (0..count).map(|n| names.address_of(&name(n)).unwrap().address).collect();
        (names, addresses)
    }

    #[test]
    fn a_name_keeps_its_address_and_an_address_its_name() {
        let mut names = Synthetic::new([7; 16]);
        let first = names.address_of(&name(1)).unwrap();
        assert!(first.is_new);
        let again = names.address_of(&name(1)).unwrap();
        assert_eq!(again, Assigned { address: first.address, is_new: false });
        assert_eq!(names.name_of(first.address), Some(&name(1)));
    }

    #[test]
    fn no_address_has_two_names_and_none_is_the_sandboxs_own() {
        let (names, addresses) = filled([3; 16], NAMES_MAX);
        let different: std::collections::BTreeSet<_> = addresses.iter().collect();
        assert_eq!(different.len(), NAMES_MAX);
        for (number, address) in addresses.iter().enumerate() {
            assert_eq!(names.name_of(*address), Some(&name(number)));
            assert!(Synthetic::is_synthetic(*address), "{address}");
        }
    }

    #[test]
    fn the_range_is_that_of_benchmarks_without_its_first_addresses() {
        for (text, expected) in [
            ("198.17.255.255", false),
            ("198.18.0.0", false),
            ("198.18.0.1", false),
            ("198.18.0.255", false),
            ("198.18.1.0", true),
            ("198.19.255.255", true),
            ("198.20.0.0", false),
            ("127.0.0.1", false),
        ] {
            assert_eq!(Synthetic::is_synthetic(text.parse().unwrap()), expected, "{text}");
        }
    }

    #[test]
    fn a_sandbox_has_only_so_many_names() {
        let (mut names, addresses) = filled([5; 16], NAMES_MAX);
        assert_eq!(names.address_of(&name(NAMES_MAX)), None);
        let known = names.address_of(&name(17)).unwrap();
        assert_eq!(known, Assigned { address: addresses[17], is_new: false });
    }

    #[test]
    fn the_key_decides_so_that_a_restart_changes_nothing_and_no_other_sandbox_knows() {
        let (_, first) = filled([1; 16], 100);
        let (_, restarted) = filled([1; 16], 100);
        let (_, other) = filled([2; 16], 100);
        assert_eq!(first, restarted);
        let same = first.iter().zip(&other).filter(|(one, two)| one == two).count();
        assert!(same < 3, "{same}");
        // Not one after the other either.
        let neighbours = first.windows(2).filter(|two| two[1].to_bits() == two[0].to_bits() + 1);
        assert!(neighbours.count() < 3);
    }

    #[test]
    fn an_address_that_no_name_has_is_unknown() {
        let (names, addresses) = filled([9; 16], 10);
        let unknown = Ipv4Addr::new(198, 18, 1, 1);
        assert!(addresses.contains(&unknown) || names.name_of(unknown).is_none());
        assert_eq!(names.name_of(Ipv4Addr::new(198, 18, 0, 1)), None);
        assert_eq!(names.name_of(Ipv4Addr::new(1, 2, 3, 4)), None);
    }
}

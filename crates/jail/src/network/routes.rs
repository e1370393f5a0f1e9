//! Routes and addresses of a sandbox with a policy, as netlink messages. Pure.

use super::OWN_ADDRESS;
use super::message::{ACKNOWLEDGE, CREATE, Messages, REPLACE, REQUEST};

const NEW_ADDRESS: u16 = 20;
const DELETE_ADDRESS: u16 = 21;
const NEW_ROUTE: u16 = 24;
const DELETE_ROUTE: u16 = 25;

const IPV4: u8 = 2;
const IPV6: u8 = 10;

/// Loopback is the first interface of every namespace.
const LOOPBACK: u32 = 1;

/// Whether something is to be there.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Wanted {
    Yes,
    No,
}

impl Wanted {
    const fn message(self, add: u16, remove: u16) -> (u16, u16) {
        match self {
            Self::Yes => (add, REQUEST | ACKNOWLEDGE | CREATE | REPLACE),
            Self::No => (remove, REQUEST | ACKNOWLEDGE),
        }
    }
}

/// Every address of IPv4 is one of the sandbox itself: what is sent comes back, to our listener.
pub(super) fn all_local(wanted: Wanted) -> Vec<u8> {
    const LOCAL_TABLE: u8 = 255;
    const OF_HOST: u8 = 254;
    const LOCAL: u8 = 2;
    route(wanted, [IPV4, 0, 0, 0, LOCAL_TABLE, BY_BOOT, OF_HOST, LOCAL])
}

/// No address of IPv6 can be reached, and programs learn it at once.
pub(super) fn no_ipv6(wanted: Wanted) -> Vec<u8> {
    const MAIN_TABLE: u8 = 254;
    const UNREACHABLE: u8 = 7;
    route(wanted, [IPV6, 0, 0, 0, MAIN_TABLE, BY_BOOT, 0, UNREACHABLE])
}

/// Who made a route: neither the kernel nor a routing daemon.
const BY_BOOT: u8 = 3;

fn route(wanted: Wanted, first: [u8; 8]) -> Vec<u8> {
    const OUTPUT_INTERFACE: u16 = 4;
    let mut header = first.to_vec();
    header.extend([0; 4]);
    let (kind, flags) = wanted.message(NEW_ROUTE, DELETE_ROUTE);
    let mut all = Messages::default();
    all.add(kind, flags, &header, |route| {
        route.bytes(OUTPUT_INTERFACE, &LOOPBACK.to_ne_bytes());
    });
    all.into_bytes()
}

/// The address of the sandbox.
pub(super) fn own_address(wanted: Wanted) -> Vec<u8> {
    const ADDRESS: u16 = 1;
    const LOCAL: u16 = 2;
    let mut header = vec![IPV4, 32, 0, 0];
    header.extend(LOOPBACK.to_ne_bytes());
    let (kind, flags) = wanted.message(NEW_ADDRESS, DELETE_ADDRESS);
    let mut all = Messages::default();
    all.add(kind, flags, &header, |address| {
        address.bytes(LOCAL, &OWN_ADDRESS.octets());
        address.bytes(ADDRESS, &OWN_ADDRESS.octets());
    });
    all.into_bytes()
}

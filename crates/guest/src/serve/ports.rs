//! The ports that programs listen on, from the kernel's tables of TCP sockets.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufRead as _, BufReader, Read as _};

use guest_protocol::message::Port;

/// Longer tables are not read to their end: no sandbox listens on that many ports.
const MAX_TABLE_BYTES: u64 = 16 * 1024 * 1024;

/// The state of a listening socket in these tables.
const LISTENING: &str = "0A";

/// Every port with a listener, sorted.
pub(super) fn listening() -> Vec<Port> {
    let mut ports = BTreeMap::new();
    for table in ["/proc/net/tcp", "/proc/net/tcp6"] {
        // Without IPv6 there is no second table.
        if let Ok(file) = File::open(table) {
            let lines = BufReader::new(file.take(MAX_TABLE_BYTES)).lines();
            for (port, loopback) in lines.map_while(Result::ok).filter_map(|line| parse(&line)) {
                *ports.entry(port).or_insert(true) &= loopback;
            }
        }
    }
    ports.into_iter().map(|(port, loopback_only)| Port { port, loopback_only }).collect()
}

/// The port in a line and whether it is on loopback, if the socket listens.
fn parse(line: &str) -> Option<(u16, bool)> {
    let mut fields = line.split_ascii_whitespace();
    let local = fields.nth(1)?;
    if fields.nth(1)? != LISTENING {
        return None;
    }
    let (address, port) = local.split_once(':')?;
    Some((u16::from_str_radix(port, 16).ok()?, is_loopback(address)))
}

/// Addresses are 32-bit words in the byte order of the machine, which is little-endian wherever we
/// run.
fn is_loopback(address: &str) -> bool {
    const V6: &str = "00000000000000000000000001000000";
    const V4_IN_V6: &str = "0000000000000000FFFF0000";
    match address.len() {
        8 => address.ends_with("7F"),
        32 => address == V6 || (address.starts_with(V4_IN_V6) && address.ends_with("7F")),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn listening_ports_are_parsed() {
        let v4 = "   0: 0100007F:1F90 00000000:0000 0A 00000000:00000000 00:00000000 00000000";
        assert_eq!(parse(v4), Some((8080, true)));
        let any = "   1: 00000000:0016 00000000:0000 0A 00000000:00000000 00:00000000 00000000";
        assert_eq!(parse(any), Some((22, false)));
        let connected = "   2: 0100007F:1F90 0100007F:D431 01 00000000:00000000 00:00000000 0";
        assert_eq!(parse(connected), None);
        let v6 = "   0: 00000000000000000000000001000000:1F91 00000000000000000000000000000000:0000 0A 0";
        assert_eq!(parse(v6), Some((8081, true)));
        let mapped = "   0: 0000000000000000FFFF00000100007F:1F91 00000000000000000000000000000000:0000 0A 0";
        assert_eq!(parse(mapped), Some((8081, true)));
        let any6 = "   0: 00000000000000000000000000000000:1F91 00000000000000000000000000000000:0000 0A 0";
        assert_eq!(parse(any6), Some((8081, false)));
        for noise in
            ["", "  sl  local_address rem_address   st", "0: x 0 0A", "0: 0100007F:ZZ 0 0A"]
        {
            assert_eq!(parse(noise), None);
        }
    }
}

//! The sockets of a program and its descendants: rows of the kernel's socket tables, matched by the
//! inodes that the processes hold.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io::{BufRead as _, BufReader, Read as _};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use guest_protocol::look::Sighting;
use guest_protocol::message::{Fault, FaultCode};

use super::super::family::relatives;
use super::super::fault::fault;
use super::record_writer::RecordWriter;

/// Longer tables are not read to their end.
const MAX_TABLE_BYTES: u64 = 16 * 1024 * 1024;

/// The most sockets that are reported.
const MAX_SOCKETS: usize = 10_000;

const TABLES: [&str; 4] = ["tcp", "tcp6", "udp", "udp6"];

/// Reports the sockets of a program.
pub(super) fn list(
    pid: u32,
    guest: i32,
    programs: &BTreeMap<i32, u32>,
    records: &mut RecordWriter,
) -> Result<(), Fault> {
    let unknown = || fault(FaultCode::NotFound, format!("no process {pid}"));
    let first = i32::try_from(pid).map_err(|_| unknown())?;
    if first == guest {
        return Err(unknown());
    }
    let mut family = relatives(first, guest, programs);
    if family.is_empty() {
        return Err(unknown());
    }
    family.sort_unstable();
    let owners = owners(&family);
    let (mut listed, mut truncated) = (BTreeSet::new(), false);
    for table in TABLES {
        // Without IPv6 there are no such tables.
        let Ok(file) = File::open(format!("/proc/net/{table}")) else { continue };
        let lines = BufReader::new(file.take(MAX_TABLE_BYTES)).lines().map_while(Result::ok);
        for row in lines.filter_map(|line| parse(&line)) {
            let Some(&pid) = owners.get(&row.inode) else { continue };
            if listed.len() == MAX_SOCKETS {
                truncated = true;
                break;
            }
            // The kernel may write a row of its table twice when the table changes meanwhile.
            if !listed.insert(row.inode) {
                continue;
            }
            records.write(&Sighting::Socket {
                pid: pid.cast_unsigned(),
                program: name_of(pid),
                protocol: table.to_owned(),
                local_address: row.local.0.to_string(),
                local_port: row.local.1,
                remote_address: row.remote.0.to_string(),
                remote_port: row.remote.1,
                state: state_of(table, row.state).to_owned(),
            });
        }
    }
    records.write(&Sighting::Over { truncated, count: 0 });
    Ok(())
}

/// The first process of a family that holds each socket.
fn owners(family: &[i32]) -> BTreeMap<u64, i32> {
    let mut owners = BTreeMap::new();
    for &pid in family {
        let Ok(held) = fs::read_dir(format!("/proc/{pid}/fd")) else { continue };
        for one in held.map_while(Result::ok) {
            let inode = fs::read_link(one.path()).ok().and_then(|target| {
                target.to_str()?.strip_prefix("socket:[")?.strip_suffix(']')?.parse().ok()
            });
            if let Some(inode) = inode {
                owners.entry(inode).or_insert(pid);
            }
        }
    }
    owners
}

fn name_of(pid: i32) -> String {
    let name = fs::read(format!("/proc/{pid}/comm")).unwrap_or_default();
    String::from_utf8_lossy(&name).trim_end().to_owned()
}

/// A row of a table.
#[derive(Debug, PartialEq, Eq)]
struct Row {
    local: (IpAddr, u16),
    remote: (IpAddr, u16),
    state: u8,
    inode: u64,
}

fn parse(line: &str) -> Option<Row> {
    let mut fields = line.split_ascii_whitespace().skip(1);
    let (local, remote) = (end(fields.next()?)?, end(fields.next()?)?);
    let state = u8::from_str_radix(fields.next()?, 16).ok()?;
    Some(Row { local, remote, state, inode: fields.nth(5)?.parse().ok()? })
}

/// Addresses are 32-bit words in the byte order of the machine.
fn end(field: &str) -> Option<(IpAddr, u16)> {
    let (address, port) = field.split_once(':')?;
    let word = |at: usize| {
        let word = u32::from_str_radix(address.get(at * 8..at * 8 + 8)?, 16).ok()?;
        Some(word.to_ne_bytes())
    };
    let address = match address.len() {
        8 => IpAddr::V4(Ipv4Addr::from(word(0)?)),
        32 => {
            let mut bytes = [0; 16];
            for (at, four) in bytes.chunks_exact_mut(4).enumerate() {
                four.copy_from_slice(&word(at)?);
            }
            IpAddr::V6(Ipv6Addr::from(bytes))
        }
        _ => return None,
    };
    Some((address, u16::from_str_radix(port, 16).ok()?))
}

fn state_of(table: &str, state: u8) -> &'static str {
    match (table.starts_with("tcp"), state) {
        (_, 1) => "ESTABLISHED",
        (true, 2) => "SYN_SENT",
        (true, 3) => "SYN_RECV",
        (true, 4) => "FIN_WAIT1",
        (true, 5) => "FIN_WAIT2",
        (true, 6) => "TIME_WAIT",
        (true, 8) => "CLOSE_WAIT",
        (true, 9) => "LAST_ACK",
        (true, 10) => "LISTEN",
        (true, 11) => "CLOSING",
        (true, _) => "CLOSE",
        (false, _) => "UNCONNECTED",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn socket_rows_are_parsed() {
        let listening = "   0: 0100007F:1F90 00000000:0000 0A 00000000:00000000 00:00000000 00000000  1000        0 4711 1 0 100 0 0 10 0";
        let row = parse(listening).unwrap();
        assert_eq!(row.local, (Ipv4Addr::LOCALHOST.into(), 8080));
        assert_eq!(row.remote, (Ipv4Addr::UNSPECIFIED.into(), 0));
        assert_eq!((state_of("tcp", row.state), row.inode), ("LISTEN", 4711));
        let six = "   1: 00000000000000000000000001000000:1F91 0000000000000000FFFF00000100007F:0016 01 0:0 00:0 0 0 0 12";
        let row = parse(six).unwrap();
        assert_eq!(row.local, (Ipv6Addr::LOCALHOST.into(), 8081));
        assert_eq!(row.remote.0.to_string(), "::ffff:127.0.0.1");
        assert_eq!((state_of("tcp6", row.state), row.inode), ("ESTABLISHED", 12));
        assert_eq!(state_of("udp", 7), "UNCONNECTED");
        for noise in ["", "  sl  local_address rem_address   st", "0: x y 0A", "0: 01:1 01:1 0A"] {
            assert_eq!(parse(noise), None);
        }
    }
}

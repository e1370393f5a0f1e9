//! What the kernel keeps of connections that no process has any more: for a minute that a TCP
//! connection was closed, and for longer its flow labels. The next user could see both. The kernel
//! can be asked to forget connections; where it cannot, the proof fails and the container is
//! removed.

use std::os::fd::OwnedFd;

use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, netlink, recv, send, socket_with,
    sockopt,
};
use rustix::thread::ThreadNameSpaceType;

use super::namespaces::OwnNamespaces;
use super::process::Process;
use super::{Named as _, Refusal, leftover};

/// Counters of sockets in a network namespace. Reading the kernel's lists would take a thousand
/// times as long, because they are those of the whole machine; only the list of Unix sockets is
/// not.
const COUNTS: [&str; 2] = ["net/sockstat", "net/sockstat6"];
const LOCAL: &str = "net/unix";
/// Flow labels, which outlive their sockets. Only a program that wants to send something to the
/// next user sets any.
const LABELS: &str = "net/ip6_flowlabel";

/// Both kinds of addresses.
const FAMILIES: [u8; 2] = [2, 10];

/// The most connections to forget. With more, the container is removed.
const MAX_FORGOTTEN: usize = 8192;

/// Message types of the kernel's socket diagnosis.
const LIST: u16 = 20;
const DESTROY: u16 = 21;
const ERROR: u16 = 2;
const DONE: u16 = 3;
const REQUEST: u16 = 0x1;
const ACKNOWLEDGE: u16 = 0x4;
const DUMP: u16 = 0x300;
const HEADER_BYTES: usize = 16;
/// Ports, addresses, interface and cookie of one socket.
const ID_BYTES: usize = 48;
const TCP: u8 = 6;

/// Internet sockets in a network namespace.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Counts {
    /// In use, or not closed on both sides yet.
    open: u64,
    /// Closed connections that the kernel remembers.
    closed: u64,
}

impl Counts {
    fn of(process: &Process) -> Result<Self, Refusal> {
        let mut counts = Self::default();
        for file in COUNTS {
            // Without IPv6 there is no second file.
            let text = if file == COUNTS[0] {
                process.read(file)?
            } else {
                process.read_if_there(file)?
            };
            let Self { open, closed } = Self::parse(&text);
            counts.open = counts.open.saturating_add(open);
            counts.closed = counts.closed.saturating_add(closed);
        }
        Ok(counts)
    }

    /// `TCP: inuse 3 orphan 1 tw 2 alloc 40 mem 9`; the other fields count the whole machine.
    fn parse(text: &str) -> Self {
        let sum = |name: &str| {
            let words: Vec<_> = text.split_whitespace().collect();
            let counts = words.windows(2).filter(|pair| pair[0] == name);
            counts.map(|pair| pair[1].parse().unwrap_or(u64::MAX)).fold(0, u64::saturating_add)
        };
        Self { open: sum("inuse"), closed: sum("tw") }
    }
}

/// Checks that no socket is left.
pub(super) fn prove(process: &Process) -> Result<(), Refusal> {
    let Counts { open, closed } = Counts::of(process)?;
    if open > 0 || closed > 0 {
        return Err(leftover(format!(
            "{open} sockets are left, and {closed} connections remembered"
        )));
    }
    for (file, what) in [(LOCAL, "Unix sockets"), (LABELS, "flow labels")] {
        let rows = process.read_if_there(file)?.lines().skip(1).count();
        if rows > 0 {
            return Err(leftover(format!("{rows} {what} are left")));
        }
    }
    Ok(())
}

/// Makes the kernel forget closed connections.
pub(super) fn close_all(namespaces: &OwnNamespaces, process: &Process) -> Result<(), Refusal> {
    if Counts::of(process)? == Counts::default() {
        return Ok(());
    }
    let socket = namespaces.within(process, ThreadNameSpaceType::NETWORK, open)?;
    let socket = socket.named("list the sockets of a container")?;
    for family in FAMILIES {
        // What the kernel does not forget, the proof finds.
        let _ = forget(&socket, family);
    }
    Ok(())
}

fn open() -> Result<OwnedFd, Errno> {
    let socket = socket_with(
        AddressFamily::NETLINK,
        SocketType::DGRAM,
        SocketFlags::CLOEXEC,
        Some(netlink::SOCK_DIAG),
    )?;
    let patience = std::time::Duration::from_secs(1);
    sockopt::set_socket_timeout(&socket, sockopt::Timeout::Recv, Some(patience))?;
    Ok(socket)
}

fn forget(socket: &OwnedFd, family: u8) -> Result<(), Errno> {
    for id in list(socket, family)? {
        send(socket, &message(DESTROY, REQUEST | ACKNOWLEDGE, family, &id), SendFlags::empty())?;
        let mut answer = [0; 512];
        recv(socket, &mut answer[..], RecvFlags::empty())?;
    }
    Ok(())
}

fn list(socket: &OwnedFd, family: u8) -> Result<Vec<[u8; ID_BYTES]>, Errno> {
    send(socket, &message(LIST, REQUEST | DUMP, family, &[0; ID_BYTES]), SendFlags::empty())?;
    let mut found = Vec::new();
    let mut buffer = vec![0; 64 * 1024];
    loop {
        let (length, _) = recv(socket, &mut buffer[..], RecvFlags::empty())?;
        let mut rest = &buffer[..length];
        while let Some((kind, body, next)) = split(rest) {
            match kind {
                ERROR | DONE => return Ok(found),
                LIST if found.len() < MAX_FORGOTTEN => found.extend(id_of(body)),
                _ => {}
            }
            rest = next;
        }
    }
}

/// A message about TCP sockets in every state.
fn message(kind: u16, flags: u16, family: u8, id: &[u8; ID_BYTES]) -> Vec<u8> {
    let length = HEADER_BYTES + 8 + ID_BYTES;
    let mut bytes = Vec::with_capacity(length);
    bytes.extend_from_slice(&(length as u32).to_ne_bytes());
    bytes.extend_from_slice(&kind.to_ne_bytes());
    bytes.extend_from_slice(&flags.to_ne_bytes());
    bytes.extend_from_slice(&[0; 8]);
    bytes.extend_from_slice(&[family, TCP, 0, 0]);
    bytes.extend_from_slice(&u32::MAX.to_ne_bytes());
    bytes.extend_from_slice(id);
    bytes
}

/// The first of several messages: its type, its body, and the messages after it.
fn split(bytes: &[u8]) -> Option<(u16, &[u8], &[u8])> {
    let length = u32::from_ne_bytes(*bytes.first_chunk()?) as usize;
    let kind = u16::from_ne_bytes(*bytes.get(4..)?.first_chunk()?);
    let body = bytes.get(HEADER_BYTES..length)?;
    let next = bytes.get(length.next_multiple_of(4)..).unwrap_or_default();
    Some((kind, body, next))
}

/// The id of a listed socket.
fn id_of(body: &[u8]) -> Option<[u8; ID_BYTES]> {
    body.get(4..)?.first_chunk().copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn socket_counts_are_found_by_their_names() {
        for (text, open, closed) in [
            ("", 0, 0),
            (
                "sockets: used 12\nTCP: inuse 0 orphan 1 tw 0 alloc 40 mem 9\nUDP: inuse 0 mem 4\n",
                0,
                0,
            ),
            (
                "sockets: used 12\nTCP: inuse 3 orphan 1 tw 2 alloc 4 mem 9\nUDP: inuse 1 mem 4\n",
                4,
                2,
            ),
            ("TCP6: inuse 1\nUDP6: inuse 0\nUDPLITE6: inuse 0\nRAW6: inuse 5\n", 6, 0),
            ("FRAG: inuse x memory 0", u64::MAX, 0),
        ] {
            assert_eq!(Counts::parse(text), Counts { open, closed }, "{text}");
        }
    }

    #[test]
    fn netlink_messages_are_split() {
        let id: [u8; ID_BYTES] = std::array::from_fn(|place| place as u8);
        let one = message(LIST, REQUEST, 2, &id);
        assert_eq!(one.len(), 72);
        let two = [one.clone(), message(DONE, 0, 10, &id)].concat();
        let (kind, body, next) = split(&two).unwrap();
        assert_eq!((kind, body.len()), (LIST, 56));
        assert_eq!(body[8..], id);
        let (kind, _, next) = split(next).unwrap();
        assert_eq!((kind, next.len()), (DONE, 0));
        assert!(split(next).is_none());
        for cut in 0..one.len() {
            assert!(split(&one[..cut]).is_none(), "{cut}");
        }
        assert!(split(&[0; 16]).is_none(), "a message shorter than its header");
        assert_eq!(id_of(&[7; 51]), None);
        assert_eq!(id_of(&[7; 72]), Some([7; ID_BYTES]));
    }
}

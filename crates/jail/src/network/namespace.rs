//! Makes and removes the network of a policy in the namespace that the calling thread was in when
//! it opened it. The kernel does what a message says before it takes the next, so an error is there
//! when the message is sent, and nothing here waits.

use std::io;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::os::fd::OwnedFd;

use rustix::io::Errno;
use rustix::net::netlink::{self, SocketAddrNetlink};
use rustix::net::{
    AddressFamily, Protocol, RecvFlags, SendFlags, SocketFlags, SocketType, bind, listen, recv,
    sendto, socket_with, sockopt,
};

use super::message::{DONE, error_in, received};
use super::refused::{self, Answer};
use super::routes::{self, Wanted};
use super::settings::without_cookies;
use super::{LISTENER, NAMES, PROXY, REFUSED_AT_MOST, Rules, table};
use crate::sys::transparent;

/// Connections that wait until they are accepted.
const BACKLOG: i32 = 1024;

/// More than the kernel puts into one answer.
const ANSWER_BYTES: usize = 32 * 1024;

/// A network namespace. Whoever opened it may leave the namespace: the sockets stay in it.
///
/// The kernel removes rules later than it stops to use them, and until it has, closing a socket of
/// this kind waits: for milliseconds, and for long on a busy machine. So whoever waits for
/// [`Self::change`], [`Self::disarm`] or a second [`Self::arm`] is answered first, and this is
/// dropped a while later.
pub struct Namespace {
    routes: OwnedFd,
    tables: OwnedFd,
}

/// What was there before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Armed {
    /// Nothing.
    First,
    /// A table, which the kernel may still be removing.
    Again,
}

/// The sockets of a sandbox with a policy.
#[derive(Debug)]
pub struct Sockets {
    /// Accepts every connection that the kernel lets through. The own address of an accepted socket
    /// is the one that was dialled.
    pub connections: OwnedFd,
    /// Where programs look up names.
    pub names: OwnedFd,
}

impl Namespace {
    /// That of the calling thread.
    pub fn open() -> io::Result<Self> {
        Ok(Self {
            routes: netlink_socket(None)?,
            tables: netlink_socket(Some(netlink::NETFILTER))?,
        })
    }

    /// Lets exactly what the rules say reach the sockets that [`Sockets::make`] made, and refuses
    /// everything else. What an earlier call made is replaced.
    pub fn arm(&self, rules: &Rules) -> io::Result<Armed> {
        let (armed, rules) = if self.has_table()? {
            (Armed::Again, table::replaced(rules))
        } else {
            (Armed::First, table::first(rules))
        };
        // The rules come first: with the routes alone, programs would reach themselves.
        tell(&self.tables, &rules)?;
        tell(&self.routes, &routes::own_address(Wanted::Yes))?;
        tell(&self.routes, &routes::all_local(Wanted::Yes))?;
        match tell(&self.routes, &routes::no_ipv6(Wanted::Yes)) {
            // A kernel without IPv6 has no way out over it.
            Err(error) if is_without_ipv6(&error) => Ok(armed),
            other => other.map(|()| armed),
        }
    }

    fn has_table(&self) -> io::Result<bool> {
        match tell(&self.tables, &table::asked()) {
            Ok(()) => Ok(true),
            Err(error) if is(&error, Errno::NOENT) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Replaces the rules, all at once.
    pub fn change(&self, rules: &Rules) -> io::Result<()> {
        tell(&self.tables, &table::changed(rules))
    }

    /// Takes everything back that [`Self::arm`] did. Nothing needs to be there.
    pub fn disarm(&self) -> io::Result<()> {
        let removals = [
            routes::all_local(Wanted::No),
            routes::no_ipv6(Wanted::No),
            routes::own_address(Wanted::No),
        ];
        for removal in &removals {
            match tell(&self.routes, removal) {
                Err(error) if !is_missing(&error) && !is_without_ipv6(&error) => return Err(error),
                Ok(()) | Err(_) => {}
            }
        }
        tell(&self.tables, &table::removed())
    }

    /// Which addresses and ports were refused lately.
    pub fn refused(&self) -> io::Result<Vec<(Ipv4Addr, u16)>> {
        send(&self.tables, &table::refused_asked())?;
        let mut buffer = vec![0; ANSWER_BYTES];
        let mut addresses = Vec::new();
        while let Some(length) = receive(&self.tables, &mut buffer)? {
            match refused::read(&buffer[..length], &mut addresses) {
                Answer::More => {}
                Answer::End => break,
                Answer::Failed(errno) => return Err(io::Error::from_raw_os_error(errno)),
            }
        }
        addresses.truncate(REFUSED_AT_MOST as usize);
        Ok(addresses)
    }

    /// Whether there is any table, ours or another.
    pub fn has_tables(&self) -> io::Result<bool> {
        send(&self.tables, &table::all_asked())?;
        let mut buffer = vec![0; ANSWER_BYTES];
        let mut found = false;
        while let Some(length) = receive(&self.tables, &mut buffer)? {
            for message in received(&buffer[..length]) {
                match error_in(&message) {
                    Some(0) | None if message.kind == DONE => return Ok(found),
                    Some(0) | None => found |= message.kind == table::TABLE_FOUND,
                    Some(errno) => return Err(io::Error::from_raw_os_error(errno)),
                }
            }
        }
        // The list has no end: nothing is known.
        Err(io::ErrorKind::UnexpectedEof.into())
    }
}

impl Sockets {
    /// Makes them in the namespace of the calling thread. Those of an earlier call must be closed.
    pub fn make() -> io::Result<Self> {
        // A connection that the kernel answers with a cookie has no listener to come back to: rules
        // hand over the first packet of a connection alone. Best effort: the backlog is long.
        let _ = without_cookies();
        Ok(Self { connections: listener(LISTENER, true)?, names: names()? })
    }
}

/// A listener for programs that use a proxy, where the kernel has no tables.
pub fn proxy_listener() -> io::Result<OwnedFd> {
    listener(PROXY, false)
}

fn listener((address, port): (Ipv4Addr, u16), transparent: bool) -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(AddressFamily::INET, SocketType::STREAM, flags, None)?;
    if transparent {
        transparent::set(&socket)?;
    }
    // Or programs could not listen on a port while connections to the same port go through here.
    sockopt::set_socket_reuseaddr(&socket, true)?;
    bind(&socket, &SocketAddrV4::new(address, port))?;
    listen(&socket, BACKLOG)?;
    Ok(socket)
}

fn names() -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(AddressFamily::INET, SocketType::DGRAM, flags, None)?;
    bind(&socket, &SocketAddrV4::new(NAMES.0, NAMES.1))?;
    Ok(socket)
}

fn netlink_socket(protocol: Option<Protocol>) -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    Ok(socket_with(AddressFamily::NETLINK, SocketType::RAW, flags, protocol)?)
}

fn send(socket: &OwnedFd, messages: &[u8]) -> io::Result<()> {
    let kernel = SocketAddrNetlink::new(0, 0);
    sendto(socket, messages, SendFlags::NOSIGNAL, &kernel)?;
    Ok(())
}

/// Sends messages; the first error that the kernel answers is the result.
fn tell(socket: &OwnedFd, messages: &[u8]) -> io::Result<()> {
    send(socket, messages)?;
    let mut buffer = vec![0; ANSWER_BYTES];
    let mut first = Ok(());
    while let Some(length) = receive(socket, &mut buffer)? {
        for message in received(&buffer[..length]) {
            let errno = error_in(&message).unwrap_or(0);
            if errno != 0 && first.is_ok() {
                first = Err(io::Error::from_raw_os_error(errno));
            }
        }
    }
    first
}

/// The next answer, if there is one.
fn receive(socket: &OwnedFd, buffer: &mut [u8]) -> io::Result<Option<usize>> {
    match recv(socket, buffer, RecvFlags::DONTWAIT) {
        Ok((length, _)) => Ok(Some(length)),
        Err(Errno::WOULDBLOCK) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

fn is_missing(error: &io::Error) -> bool {
    [Errno::SRCH, Errno::NOENT, Errno::ADDRNOTAVAIL].iter().any(|errno| is(error, *errno))
}

fn is_without_ipv6(error: &io::Error) -> bool {
    let kinds = [Errno::AFNOSUPPORT, Errno::OPNOTSUPP, Errno::PFNOSUPPORT];
    kinds.iter().any(|errno| is(error, *errno))
}

fn is(error: &io::Error, errno: Errno) -> bool {
    error.raw_os_error() == Some(errno.raw_os_error())
}

//! A connection to a port or Unix socket inside, carried on the main lane of its channel. Each
//! direction ends on its own.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::OwnedFd;

use guest_protocol::message::{Fault, FaultCode, MAX_SOCKET_PATH_BYTES, Reply, lane};
use rustix::event::epoll::EventFlags;
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, ipproto, socket_with, sockopt,
};

use super::fault::{fault, refused, refused_as};
use super::io::Io;
use super::ready::{Part, Source};
use super::stream::{Inlet, Inward, Outward, Progress};

/// A connection to something that listens inside.
#[derive(Debug)]
pub(super) struct Dial {
    channel: u32,
    /// 0 for a Unix socket.
    port: u16,
    /// The address being tried, until one has answered.
    trying: Option<SocketAddr>,
    input: Option<Inward>,
    output: Option<Outward>,
}

impl Dial {
    /// Begins to connect.
    pub(super) fn start(channel: u32, port: u16, io: &mut Io) -> Result<Self, Fault> {
        if port == 0 {
            return Err(fault(FaultCode::Invalid, "0 is not a valid port"));
        }
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        let mut dial = Self { channel, port, trying: Some(address), input: None, output: None };
        match dial.call(address, io) {
            Ok(()) => Ok(dial),
            Err(errno) => {
                dial.call_next(errno, io)?;
                Ok(dial)
            }
        }
    }

    /// Connects to a Unix socket. A Unix socket answers or refuses at once.
    pub(super) fn start_unix(channel: u32, path: &str, io: &mut Io) -> Result<Self, Fault> {
        let address = SocketAddrUnix::new(path).map_err(|_| {
            let most = MAX_SOCKET_PATH_BYTES;
            let message =
                format!("the path of a socket must have 1 to {most} bytes, none of them zero");
            fault(FaultCode::Invalid, message)
        })?;
        let mut dial = Self { channel, port: 0, trying: None, input: None, output: None };
        dial.call_unix(&address, io).map_err(|errno| match errno {
            Errno::CONNREFUSED | Errno::NOENT | Errno::NOTDIR => {
                refused_as(FaultCode::NotFound, errno, format!("nothing listens on {path}"))
            }
            Errno::PROTOTYPE => {
                let message = format!("{path} is not a stream socket");
                refused_as(FaultCode::WrongKind, errno, message)
            }
            Errno::AGAIN => {
                let message = format!("no program accepts connections on {path}");
                refused_as(FaultCode::Limit, errno, message)
            }
            errno => refused(errno, &format!("cannot connect to {path}")),
        })?;
        io.reply(channel, &Reply::Started { pid: None });
        Ok(dial)
    }

    fn call_unix(&mut self, address: &SocketAddrUnix, io: &Io) -> Result<(), Errno> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
        connect(&socket, address)?;
        self.watch(socket, io)
    }

    fn call(&mut self, address: SocketAddr, io: &mut Io) -> Result<(), Errno> {
        let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = socket_with(family, SocketType::STREAM, flags, Some(ipproto::TCP))?;
        match connect(&socket, &address) {
            Ok(()) | Err(Errno::INPROGRESS) => {}
            Err(errno) => return Err(errno),
        }
        sockopt::set_tcp_nodelay(&socket, true)?;
        self.watch(socket, io)?;
        self.trying = Some(address);
        Ok(())
    }

    fn watch(&mut self, socket: OwnedFd, io: &Io) -> Result<(), Errno> {
        let reader = socket.try_clone().map_err(|_| Errno::MFILE)?;
        io.watch(&socket, Source::Part(self.channel, Part::Input), EventFlags::OUT)?;
        let interest = EventFlags::IN | EventFlags::RDHUP;
        io.watch(&reader, Source::Part(self.channel, Part::Output), interest)?;
        self.set_ends(socket, reader);
        Ok(())
    }

    fn set_ends(&mut self, writer: OwnedFd, reader: OwnedFd) {
        match &mut self.input {
            Some(input) => input.redirect(writer),
            None => self.input = Some(Inward::new(writer, Inlet::Socket)),
        }
        self.output = Some(Outward::new(reader));
    }

    /// One address has refused: tries the next, or gives up.
    fn call_next(&mut self, errno: Errno, io: &mut Io) -> Result<(), Fault> {
        let port = self.port;
        let give_up = |errno| match errno {
            Errno::CONNREFUSED => {
                let message = format!("nothing listens on port {port}");
                refused_as(FaultCode::NotFound, errno, message)
            }
            errno => refused(errno, &format!("cannot connect to port {port}")),
        };
        match self.trying {
            Some(SocketAddr::V4(_)) => {
                let address = SocketAddr::from((Ipv6Addr::LOCALHOST, port));
                // Without IPv6, the answer over IPv4 counts.
                self.call(address, io).map_err(|_| give_up(errno))
            }
            Some(SocketAddr::V6(_)) | None => Err(give_up(errno)),
        }
    }

    /// Goes on with one direction.
    pub(super) fn step(&mut self, part: Part, io: &mut Io) -> Progress {
        if self.trying.is_some() {
            return self.answered(io);
        }
        match part {
            Part::Input => {
                if let Some(input) = &mut self.input
                    && input.pump(self.channel, lane::MAIN, &mut io.connection.endpoint)
                        == Progress::Over
                {
                    self.input = None;
                }
                self.settle(io)
            }
            Part::Output => {
                let Some(output) = &mut self.output else { return Progress::Wait };
                match output.pump(self.channel, lane::MAIN, io) {
                    Progress::More => Progress::More,
                    Progress::Wait => Progress::Wait,
                    Progress::Over => {
                        self.output = None;
                        io.connection.endpoint.end(self.channel, lane::MAIN);
                        self.settle(io)
                    }
                }
            }
            Part::Stdout | Part::Stderr | Part::Work => Progress::Wait,
        }
    }

    /// Checks whether the other end has answered.
    fn answered(&mut self, io: &mut Io) -> Progress {
        let Some(output) = &self.output else { return Progress::Wait };
        let verdict = match sockopt::socket_error(&output.descriptor) {
            Ok(Ok(())) => match rustix::net::getpeername(&output.descriptor) {
                Ok(_) => Ok(()),
                Err(_) => return Progress::Wait,
            },
            Ok(Err(errno)) | Err(errno) => Err(errno),
        };
        match verdict {
            Ok(()) => {
                self.trying = None;
                io.reply(self.channel, &Reply::Started { pid: None });
                io.make_ready(self.channel, Part::Input);
                io.make_ready(self.channel, Part::Output);
                Progress::Wait
            }
            Err(errno) => match self.call_next(errno, io) {
                Ok(()) => Progress::Wait,
                Err(fault) => {
                    io.fail(self.channel, fault);
                    Progress::Over
                }
            },
        }
    }

    /// Bytes for the connection.
    pub(super) fn take(&mut self, lane: u8, bytes: Vec<u8>, io: &mut Io) -> Progress {
        match &mut self.input {
            Some(input) if lane == lane::MAIN => {
                input.take(bytes);
                if self.trying.is_some() { Progress::Wait } else { self.step(Part::Input, io) }
            }
            // Not read any more: drop it, so that the host does not wait for credit.
            Some(_) | None => {
                io.connection.endpoint.consumed(self.channel, lane, bytes.len());
                Progress::Wait
            }
        }
    }

    /// The host sends no further bytes.
    pub(super) fn end(&mut self, lane: u8, io: &mut Io) -> Progress {
        match &mut self.input {
            Some(input) if lane == lane::MAIN => {
                input.end();
                if self.trying.is_some() { Progress::Wait } else { self.step(Part::Input, io) }
            }
            Some(_) | None => Progress::Wait,
        }
    }

    /// The host has given up on it.
    pub(super) fn reset(&mut self, lane: u8, io: &mut Io) -> Progress {
        if lane != lane::MAIN {
            return Progress::Wait;
        }
        self.input = None;
        self.output = None;
        self.trying = None;
        self.settle(io)
    }

    fn settle(&mut self, io: &mut Io) -> Progress {
        if self.input.is_none() && self.output.is_none() {
            io.reply(self.channel, &Reply::Done);
            return Progress::Over;
        }
        Progress::Wait
    }
}

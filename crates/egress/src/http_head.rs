//! Reads the heads of HTTP requests and where each request ends, so that every request on a connection
//! is checked. It must never pass on what a server could read differently: whatever is unclear is
//! refused, and heads are written anew from what was understood.

mod answer;
mod body;
mod message;
mod proxy;
#[cfg(test)]
mod tests;

use model::HostName;

pub(crate) use self::answer::{Answered, UpgradeAnswer};
use self::body::{Body, Piece};
use self::message::{Framing, Message, Scan};
pub(crate) use self::proxy::{CONNECTED, ProxyRequest, ProxyStep};
use crate::target::{Host, Target};

/// The most bytes of a head.
pub(crate) const HEAD_BYTES_MAX: usize = 32 << 10;

/// Why a request was refused, and the status to answer with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Refusal {
    pub status: u16,
    pub reason: &'static str,
}

impl Refusal {
    const fn unclear(reason: &'static str) -> Self {
        Self { status: 400, reason }
    }

    const fn forbidden(reason: &'static str) -> Self {
        Self { status: 403, reason }
    }

    /// The answer. Only for the first request of a connection: later it would be taken for the answer
    /// to an earlier request, so close.
    pub(crate) fn answer(self) -> Vec<u8> {
        let Self { status, reason } = self;
        let length = reason.len() + 1;
        format!(
            "HTTP/1.1 {status} Refused\r\nContent-Type: text/plain\r\nContent-Length: {length}\r\n\
             Connection: close\r\n\r\n{reason}\n"
        )
        .into_bytes()
    }
}

/// A request that may pass.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Head {
    /// How many bytes of the buffer it was.
    pub consumed: usize,
    /// What to send to the host in place of them.
    pub bytes: Vec<u8>,
    /// For the events.
    pub method: String,
    pub path: String,
    /// It asks for a WebSocket. Hold further bytes of the client until `UpgradeAnswer` knows the
    /// answer of the host.
    pub upgrade: bool,
}

/// What follows from the bytes so far.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Step {
    NeedMore,
    /// A request begins.
    Head(Head),
    /// The next bytes, this many, pass as they are, whether they are here already or not.
    Body(u64),
    /// Hold: the answer to an upgrade is awaited.
    Hold,
    /// Every byte from now on passes.
    PassAll,
    /// Nothing more passes: the only request of this connection has ended.
    End,
    Refused(Refusal),
}

/// The requests of one connection to one host.
#[derive(Debug)]
pub(crate) struct Requests {
    target: Target,
    state: State,
    /// No request has passed yet.
    first: bool,
    /// Only one request passes.
    single: bool,
}

#[derive(Debug)]
enum State {
    Head(Scan),
    Body(Body),
    AwaitsUpgrade,
    Upgraded,
    Ended,
    Refused(Refusal),
}

impl Requests {
    /// The requests of a connection that a program opened to this name and port.
    pub(crate) fn new(name: HostName, port: u16) -> Self {
        let target = Target { host: Host::Name(name), port };
        Self { target, state: State::Head(Scan::default()), first: true, single: false }
    }

    /// What follows the head of the only request of a connection.
    fn after_only_head(target: Target, framing: Framing) -> Self {
        let state = State::Body(Body::new(framing));
        Self { target, state, first: false, single: true }
    }

    /// What follows. `buffer` begins with the first byte that has not passed.
    pub(crate) fn step(&mut self, buffer: &[u8]) -> Step {
        let step = match &mut self.state {
            State::Head(scan) => match scan.whole_request(buffer) {
                Ok(None) => return Step::NeedMore,
                Ok(Some(length)) => self.head(&buffer[..length]),
                Err(refusal) => Err(refusal),
            },
            State::Body(body) => match body.next(buffer) {
                Ok(Piece::NeedMore) => return Step::NeedMore,
                Ok(Piece::Pass(count)) => return Step::Body(count),
                Ok(Piece::End) if self.single => {
                    self.state = State::Ended;
                    return Step::End;
                }
                Ok(Piece::End) => {
                    self.state = State::Head(Scan::default());
                    return self.step(buffer);
                }
                Err(refusal) => Err(refusal),
            },
            State::AwaitsUpgrade => return Step::Hold,
            State::Upgraded => return Step::PassAll,
            State::Ended => return Step::End,
            State::Refused(refusal) => Err(*refusal),
        };
        step.unwrap_or_else(|refusal| {
            self.state = State::Refused(refusal);
            Step::Refused(refusal)
        })
    }

    fn head(&mut self, bytes: &[u8]) -> Result<Step, Refusal> {
        let first = self.first;
        let (head, framing) = Message::read(bytes, |message| {
            let path = message.path_at(&self.target)?;
            message.names_only(&self.target)?;
            let framing = message.framing()?;
            let upgrade = message.asks_for_websocket()?;
            if upgrade && !first {
                return Err(Refusal::unclear(
                    "a WebSocket is not the first request of its connection",
                ));
            }
            Ok((message.passed_on(&path, upgrade, bytes.len()), framing))
        })?;
        self.first = false;
        self.state =
            if head.upgrade { State::AwaitsUpgrade } else { State::Body(Body::new(framing)) };
        Ok(Step::Head(head))
    }

    /// The host has answered the upgrade.
    pub(crate) fn upgrade_answered(&mut self, switched: bool) {
        if matches!(self.state, State::AwaitsUpgrade) {
            self.state = if switched { State::Upgraded } else { State::Head(Scan::default()) };
        }
    }

    /// Whether no request has passed yet, so that a refusal can be answered.
    pub(crate) const fn is_first(&self) -> bool {
        self.first
    }
}

//! The host's state of one call: answers that came, and unread bytes of its lanes, which the
//! protocol's windows bound. It must do no I/O.

use std::collections::VecDeque;
use std::task::{Context, Waker};

use guest_protocol::Endpoint;
use guest_protocol::message::{Reply, lane};

/// The kind of a call, which decides what answers it has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// One answer.
    Single,
    /// A description first, then bytes, then the answer.
    Reading,
    /// Bytes go out, then the answer comes.
    Writing,
    /// Perhaps `Started` first, then the exit. Which of its lanes are used.
    Program {
        /// The input lane, or that of the terminal.
        main: bool,
        /// Both output lanes.
        output: bool,
    },
    /// `Started` first, then bytes both ways, then the answer.
    Connection,
}

impl Kind {
    /// The lanes on which bytes may go.
    pub(super) fn lanes(self) -> impl Iterator<Item = u8> {
        let (main, output) = match self {
            Self::Single => (false, false),
            Self::Reading | Self::Writing | Self::Connection => (true, false),
            Self::Program { main, output } => (main, output),
        };
        let used = [(lane::MAIN, main), (lane::STDOUT, output), (lane::STDERR, output)];
        used.into_iter().filter(|(_, used)| *used).map(|(lane, _)| lane)
    }

    /// Whether more answers follow this one.
    fn continues(self, reply: &Reply) -> bool {
        match reply {
            Reply::Started { .. } => matches!(self, Self::Program { .. } | Self::Connection),
            Reply::Entry(_) => self == Self::Reading,
            Reply::Ready { .. }
            | Reply::SetupFailed { .. }
            | Reply::Done
            | Reply::Exited(_)
            | Reply::Entries { .. }
            | Reply::Ports(_)
            | Reply::Processes(_)
            | Reply::Failed(_)
            | Reply::Scale { .. } => false,
        }
    }
}

/// The unread bytes of one lane, and the waker of its reader.
#[derive(Debug, Default)]
pub(super) struct LaneBuffer {
    pieces: VecDeque<Vec<u8>>,
    /// How much of the first piece was read.
    read: usize,
    /// The lane has ended: no further bytes will come.
    pub ended: bool,
    /// The other side has closed it.
    pub reset: bool,
    /// New bytes are discarded.
    pub unwanted: bool,
    pub reader: Option<Waker>,
    pub writer: Option<Waker>,
}

impl LaneBuffer {
    /// Bytes that came.
    pub(super) fn push(&mut self, bytes: Vec<u8>) {
        self.pieces.push_back(bytes);
    }

    /// Moves bytes out, as many as fit.
    pub(super) fn read(&mut self, mut into: &mut [u8]) -> usize {
        let mut total = 0;
        while let Some(piece) = self.pieces.front() {
            let rest = &piece[self.read..];
            let n = rest.len().min(into.len());
            into[..n].copy_from_slice(&rest[..n]);
            into = &mut into[n..];
            total += n;
            self.read += n;
            if self.read < piece.len() {
                break;
            }
            self.pieces.pop_front();
            self.read = 0;
        }
        if self.pieces.is_empty() {
            self.pieces = VecDeque::new();
        }
        total
    }

    /// Discards the unread bytes and returns how many there were.
    pub(super) fn clear(&mut self) -> usize {
        let bytes: usize = self.pieces.iter().map(Vec::len).sum();
        let bytes = bytes - self.read;
        self.pieces = VecDeque::new();
        self.read = 0;
        bytes
    }
}

/// One call.
#[derive(Debug)]
pub(super) struct Channel {
    pub kind: Kind,
    /// An answer after which more follow.
    pub first: Option<Reply>,
    /// The last answer.
    pub last: Option<Reply>,
    /// The last answer came, and was perhaps taken already.
    pub finished: bool,
    /// Its caller has gone. It is kept until the guest is done with it, so that neither side
    /// exceeds the limit of open calls.
    pub abandoned: bool,
    /// The waker of the caller.
    pub waiter: Option<Waker>,
    lanes: [LaneBuffer; lane::LANES],
}

impl Channel {
    pub(super) fn new(kind: Kind) -> Self {
        Self {
            kind,
            first: None,
            last: None,
            finished: false,
            abandoned: false,
            waiter: None,
            lanes: Default::default(),
        }
    }

    /// The buffer of a lane; the protocol has refused lanes that do not exist.
    pub(super) fn lane(&mut self, lane: u8) -> &mut LaneBuffer {
        &mut self.lanes[usize::from(lane) % lane::LANES]
    }

    /// Stores an answer. False if no answer was expected.
    pub(super) fn answered(&mut self, reply: Reply, wakes: &mut Vec<Waker>) -> bool {
        if self.finished {
            return false;
        }
        wakes.extend(self.waiter.take());
        if self.kind.continues(&reply) {
            return self.first.replace(reply).is_none();
        }
        self.finished = true;
        self.last = Some(reply);
        self.wake_lanes(wakes);
        true
    }

    /// Takes all wakers: every waiter must check again.
    pub(super) fn wake_all(&mut self, wakes: &mut Vec<Waker>) {
        wakes.extend(self.waiter.take());
        self.wake_lanes(wakes);
    }

    fn wake_lanes(&mut self, wakes: &mut Vec<Waker>) {
        for lane in &mut self.lanes {
            wakes.extend(lane.reader.take());
            wakes.extend(lane.writer.take());
        }
    }

    /// Its caller has gone: closes its lanes on both sides.
    pub(super) fn abandon(&mut self, number: u32, endpoint: &mut Endpoint) {
        self.abandoned = true;
        for lane in self.kind.lanes() {
            endpoint.reset(number, lane);
            self.lane(lane).clear();
        }
    }
}

/// Stores a waker. Returns the previous one, which must be dropped where no lock is held.
#[must_use = "drop it where no lock is held"]
pub(super) fn remember(slot: &mut Option<Waker>, cx: &Context<'_>) -> Option<Waker> {
    match slot {
        Some(waker) if waker.will_wake(cx.waker()) => None,
        Some(_) | None => slot.replace(cx.waker().clone()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lane_bytes_are_read_across_pieces() {
        let mut lane = LaneBuffer::default();
        lane.push(b"abc".to_vec());
        lane.push(b"defg".to_vec());
        let mut into = [0; 2];
        assert_eq!((lane.read(&mut into), &into), (2, b"ab"));
        let mut into = [0; 3];
        assert_eq!((lane.read(&mut into), &into), (3, b"cde"));
        assert_eq!(lane.clear(), 2);
        assert_eq!(lane.read(&mut into), 0);
    }

    #[test]
    fn guest_answers_come_in_order_or_not_at_all() {
        let mut wakes = Vec::new();
        let mut channel = Channel::new(Kind::Connection);
        assert!(channel.answered(Reply::Started { pid: None }, &mut wakes));
        assert!(!channel.answered(Reply::Started { pid: None }, &mut wakes));
        assert!(channel.answered(Reply::Done, &mut wakes));
        assert!(!channel.answered(Reply::Done, &mut wakes));
        let mut single = Channel::new(Kind::Single);
        assert!(single.answered(Reply::Started { pid: None }, &mut wakes));
        assert!(single.finished, "who asks once is answered once");
    }
}

//! What every activity of the guest uses: the connection, what is polled, and one buffer for all.

use std::os::fd::{AsFd, OwnedFd};

use guest_protocol::message::{Fault, Reply};
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::io::Errno;

use super::connection::Connection;
use super::ready::{Part, Ready, Source};
use super::{ExitReason, Named as _};

/// One piece of work with bytes.
pub(super) const PIECE_BYTES: usize = 64 * 1024;

/// A buffer that exists only while there is something to do with it.
#[derive(Debug, Default)]
pub(super) struct Scratch(Vec<u8>);

impl Scratch {
    pub(super) fn buffer(&mut self) -> &mut [u8] {
        if self.0.is_empty() {
            self.0 = vec![0; PIECE_BYTES];
        }
        &mut self.0
    }

    pub(super) fn is_held(&self) -> bool {
        !self.0.is_empty()
    }

    pub(super) fn release(&mut self) {
        self.0 = Vec::new();
    }
}

/// What every activity uses.
#[derive(Debug)]
pub(super) struct Io {
    pub(super) connection: Connection,
    pub(super) scratch: Scratch,
    pub(super) ready: Ready,
    epoll: OwnedFd,
    /// What the two ends of the connection are watched for now.
    interest: (EventFlags, EventFlags),
    /// Descriptors to be closed once all that is queued has been said.
    closing: Vec<OwnedFd>,
}

impl Io {
    pub(super) fn new(connection: Connection) -> Result<Self, ExitReason> {
        let epoll = epoll::create(CreateFlags::CLOEXEC).named("epoll")?;
        let interest = connection.interest();
        let data = EventData::new_u64(Source::Connection.to_number());
        epoll::add(&epoll, connection.inlet(), data, interest.0).named("watch the connection")?;
        if let Some(outlet) = connection.outlet() {
            let data = EventData::new_u64(Source::Outlet.to_number());
            epoll::add(&epoll, outlet, data, interest.1).named("watch the connection")?;
        }
        let (scratch, ready) = (Scratch::default(), Ready::default());
        Ok(Self { connection, scratch, ready, epoll, interest, closing: Vec::new() })
    }

    pub(super) fn epoll(&self) -> &OwnedFd {
        &self.epoll
    }

    /// Watches a descriptor, for as long as it is open, and is told of changes only.
    pub(super) fn watch(
        &self,
        descriptor: impl AsFd,
        source: Source,
        interest: EventFlags,
    ) -> Result<(), Errno> {
        let data = EventData::new_u64(source.to_number());
        epoll::add(&self.epoll, descriptor, data, interest | EventFlags::ET)
    }

    /// Watches the connection for what it needs now.
    pub(super) fn follow_interest(&mut self) -> Result<(), ExitReason> {
        let interest = self.connection.interest();
        if interest.0 != self.interest.0 {
            let data = EventData::new_u64(Source::Connection.to_number());
            epoll::modify(&self.epoll, self.connection.inlet(), data, interest.0)
                .named("watch the connection")?;
        }
        if interest.1 != self.interest.1
            && let Some(outlet) = self.connection.outlet()
        {
            let data = EventData::new_u64(Source::Outlet.to_number());
            epoll::modify(&self.epoll, outlet, data, interest.1).named("watch the connection")?;
        }
        self.interest = interest;
        Ok(())
    }

    /// Writes what is queued, and closes what was to be closed after it.
    pub(super) fn flush(&mut self) -> Result<(), ExitReason> {
        self.connection.flush()?;
        if !self.closing.is_empty() {
            self.closing = Vec::new();
        }
        Ok(())
    }

    /// Closes a descriptor once all that is queued has been said.
    pub(super) fn close_later(&mut self, descriptor: Option<OwnedFd>) {
        self.closing.extend(descriptor);
    }

    /// Queues a reply. All replies of this guest are bounded far below what a message may be.
    pub(super) fn reply(&mut self, channel: u32, reply: &Reply) {
        if self.connection.endpoint.send(channel, reply).is_err() {
            debug_assert!(false, "a reply that is too long: {reply:?}");
        }
    }

    pub(super) fn fail(&mut self, channel: u32, fault: Fault) {
        self.reply(channel, &Reply::Failed(fault));
    }

    pub(super) fn make_ready(&mut self, channel: u32, part: Part) {
        self.ready.add(channel, part);
    }
}

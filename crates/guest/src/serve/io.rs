//! What all activities of the guest share: the connection, epoll, and one buffer.

use std::os::fd::{AsFd, OwnedFd};

use guest_protocol::message::{Fault, Reply};
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::io::Errno;

use super::connection::Connection;
use super::ready::{Part, Ready, Source};
use super::{ExitReason, Named as _};

/// The size of one piece of work.
pub(super) const PIECE_BYTES: usize = 64 * 1024;

/// A buffer that is allocated only while it is needed.
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

/// What all activities share.
#[derive(Debug)]
pub(super) struct Io {
    pub(super) connection: Connection,
    pub(super) scratch: Scratch,
    pub(super) ready: Ready,
    epoll: OwnedFd,
    /// The events for which the two ends of the connection are watched.
    interest: (EventFlags, EventFlags),
    /// Descriptors to close once all queued replies have been written.
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

    /// Watches a descriptor as long as it is open, edge-triggered.
    pub(super) fn watch(
        &self,
        descriptor: impl AsFd,
        source: Source,
        interest: EventFlags,
    ) -> Result<(), Errno> {
        let data = EventData::new_u64(source.to_number());
        epoll::add(&self.epoll, descriptor, data, interest | EventFlags::ET)
    }

    /// Watches the connection for the events it needs now.
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

    /// Writes what is queued, then closes the descriptors that waited for it.
    pub(super) fn flush(&mut self) -> Result<(), ExitReason> {
        self.connection.flush()?;
        if !self.closing.is_empty() {
            self.closing = Vec::new();
        }
        Ok(())
    }

    /// Closes a descriptor once all queued replies have been written.
    pub(super) fn close_later(&mut self, descriptor: Option<OwnedFd>) {
        self.closing.extend(descriptor);
    }

    /// Queues a reply. All replies of this guest are far below the maximum size of a message.
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

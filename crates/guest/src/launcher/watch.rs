//! The launcher's epoll. It must never report an event of a socket that was closed: events name
//! slots, and slots are used again, so an event of the last owner would be taken for one of the
//! next.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::rc::Rc;

use rustix::event::{Timespec, epoll};

/// The only place in which the launcher waits.
pub(super) struct Watch {
    epoll: Rc<OwnedFd>,
}

/// A socket of the launcher that is watched until it is dropped.
pub(super) struct Watched {
    socket: OwnedFd,
    epoll: Rc<OwnedFd>,
}

impl Watch {
    pub(super) fn new() -> io::Result<Self> {
        Ok(Self { epoll: Rc::new(epoll::create(epoll::CreateFlags::CLOEXEC)?) })
    }

    /// Watches a descriptor that stays open as long as the launcher lives.
    pub(super) fn add(&self, descriptor: impl AsFd, token: u64) -> io::Result<()> {
        let data = epoll::EventData::new_u64(token);
        Ok(epoll::add(&self.epoll, descriptor, data, epoll::EventFlags::IN)?)
    }

    /// Watches a socket that is closed before the launcher ends.
    pub(super) fn socket(&self, socket: OwnedFd, token: u64) -> io::Result<Watched> {
        self.add(&socket, token)?;
        Ok(Watched { socket, epoll: Rc::clone(&self.epoll) })
    }

    /// Waits for other events of a descriptor than before.
    pub(super) fn change(&self, descriptor: impl AsFd, token: u64, interest: epoll::EventFlags) {
        let data = epoll::EventData::new_u64(token);
        let _ = epoll::modify(&self.epoll, descriptor, data, interest);
    }

    pub(super) fn remove(&self, descriptor: impl AsFd) {
        let _ = epoll::delete(&self.epoll, descriptor);
    }

    /// Waits until an event arrives or the time has passed.
    pub(super) fn wait(
        &self,
        events: &mut Vec<epoll::Event>,
        at_most: &Timespec,
    ) -> rustix::io::Result<usize> {
        events.clear();
        epoll::wait(&self.epoll, rustix::buffer::spare_capacity(events), Some(at_most))
    }
}

impl AsFd for Watched {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl Drop for Watched {
    /// Closing it is not enough. A child that was just forked has a copy until it closes what is
    /// the launcher's, and as long as a copy exists, the kernel reports events.
    fn drop(&mut self) {
        let _ = epoll::delete(&self.epoll, &self.socket);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::launcher::slot_parents::pair;

    const NOW: Timespec = Timespec { tv_sec: 0, tv_nsec: 0 };

    #[test]
    fn a_socket_that_is_closed_is_silent_though_a_child_has_a_copy() {
        let watch = Watch::new().unwrap();
        let (ours, theirs) = pair().unwrap();
        let copy_of_a_child = ours.try_clone().unwrap();
        let watched = watch.socket(ours, 7).unwrap();
        drop(theirs);
        let mut events = Vec::with_capacity(4);
        assert_eq!(watch.wait(&mut events, &NOW), Ok(1), "the other end is closed");
        drop(watched);
        assert_eq!(watch.wait(&mut events, &NOW), Ok(0));
        drop(copy_of_a_child);
    }
}

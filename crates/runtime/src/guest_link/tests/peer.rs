//! A guest that does what a test says, and nothing else.

use std::collections::VecDeque;
use std::io::{self, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use guest_protocol::message::{Reply, Request, VERSION};
use guest_protocol::{Endpoint, Incoming, decode};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SocketFlags, SocketType,
};
use tokio::io::{AsyncWriteExt as _, Interest};
use tokio::net::UnixStream;
use tokio::time::timeout;

use crate::deaths::Died;
use crate::guest_link::{GuestLink, LinkSettings, Surroundings};

/// What is known about a sandbox that does not exist.
#[derive(Default)]
pub(super) struct Scenery {
    pub(super) out_of_memory: AtomicBool,
    pub(super) died: Option<Died>,
}

#[async_trait]
impl Surroundings for Scenery {
    fn memory_ran_out(&self) -> bool {
        self.out_of_memory.swap(false, Ordering::SeqCst)
    }

    async fn death(&self) -> Died {
        match self.died {
            Some(died) => died,
            None => std::future::pending().await,
        }
    }
}

/// The guest's end.
pub(super) struct Peer {
    socket: UnixStream,
    pub(super) endpoint: Endpoint,
    pub(super) descriptors: VecDeque<OwnedFd>,
}

/// A link and the guest at its other end.
pub(super) fn pair(settings: LinkSettings, scenery: Scenery) -> (GuestLink, Peer) {
    let flags = SocketFlags::CLOEXEC;
    let (ours, theirs) =
        rustix::net::socketpair(AddressFamily::UNIX, SocketType::STREAM, flags, None).unwrap();
    rustix::net::sockopt::set_socket_send_buffer_size(&ours, 4096).unwrap();
    let link = GuestLink::new(ours, settings, Arc::new(scenery)).unwrap();
    let theirs = std::os::unix::net::UnixStream::from(theirs);
    theirs.set_nonblocking(true).unwrap();
    let socket = UnixStream::from_std(theirs).unwrap();
    (link, Peer { socket, endpoint: Endpoint::accepting(), descriptors: VecDeque::new() })
}

/// A link whose guest is ready, with every default.
pub(super) async fn ready_pair() -> (Arc<GuestLink>, Peer) {
    let (link, mut peer) = pair(LinkSettings::default(), Scenery::default());
    peer.say(0, &Reply::Ready { version: VERSION }).await;
    link.ready().await.unwrap();
    (Arc::new(link), peer)
}

impl Peer {
    pub(super) async fn say(&mut self, channel: u32, reply: &Reply) {
        self.endpoint.send(channel, reply).unwrap();
        self.flush().await;
    }

    pub(super) async fn flush(&mut self) {
        let bytes = self.endpoint.outgoing().to_vec();
        self.socket.write_all(&bytes).await.unwrap();
        self.endpoint.sent(bytes.len());
    }

    pub(super) async fn raw(&mut self, bytes: &[u8]) {
        self.socket.write_all(bytes).await.unwrap();
    }

    /// What the host says next.
    pub(super) async fn next(&mut self) -> Incoming {
        loop {
            if let Some(incoming) = self.endpoint.next() {
                return incoming;
            }
            assert!(self.receive().await > 0, "the host has closed the connection");
        }
    }

    /// The next request.
    pub(super) async fn request(&mut self) -> (u32, Request) {
        let incoming = self.next().await;
        let Incoming::Message { channel, payload } = incoming else {
            panic!("not a request: {incoming:?}")
        };
        (channel, decode(&payload).unwrap())
    }

    /// Takes data of a lane until it has so many bytes, and gives credit for them.
    pub(super) async fn data(&mut self, bytes: usize) -> Vec<u8> {
        let mut all = Vec::new();
        while all.len() < bytes {
            let incoming = self.next().await;
            let Incoming::Data { channel, lane, bytes } = incoming else {
                panic!("not data: {incoming:?}")
            };
            self.endpoint.consumed(channel, lane, bytes.len());
            self.flush().await;
            all.extend(bytes);
        }
        all
    }

    /// Nothing comes for a while.
    pub(super) async fn hears_nothing(&mut self) {
        let heard = timeout(Duration::from_millis(50), self.next()).await;
        assert!(heard.is_err(), "{heard:?}");
    }

    /// The host has closed the connection.
    pub(super) async fn closed(&mut self) {
        while self.receive().await > 0 {}
    }

    async fn receive(&mut self) -> usize {
        let mut bytes = [0; 4096];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(16))];
        loop {
            self.socket.readable().await.unwrap();
            let mut control = RecvAncillaryBuffer::new(&mut space);
            let received = self.socket.try_io(Interest::READABLE, || {
                let mut into = [IoSliceMut::new(&mut bytes)];
                let flags = RecvFlags::CMSG_CLOEXEC;
                Ok(rustix::net::recvmsg(&self.socket, &mut into, &mut control, flags)?)
            });
            let n = match received {
                Ok(received) => received.bytes,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => continue,
                Err(error) => panic!("{error}"),
            };
            for message in control.drain() {
                if let RecvAncillaryMessage::ScmRights(fds) = message {
                    self.descriptors.extend(fds);
                }
            }
            self.endpoint.feed(&bytes[..n]).unwrap();
            return n;
        }
    }
}

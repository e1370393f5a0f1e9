//! The process of the way out: one thread that serves many sandboxes. It begins with what the server
//! says, gives up every power, and ends when the server closes the socket. It must never hold a
//! descriptor that a sandbox could use, and never open a file once it serves.

mod accept;
mod bound;
mod confine;
mod connection;
mod control_loop;
mod dial;
mod greeted;
mod key_gate;
mod linger;
mod names;
mod order;
mod outbox;
mod proxy;
mod requests;
mod sandbox;
#[cfg(test)]
mod tests;

use std::io;
use std::net::SocketAddr;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::process::ExitCode;
use std::sync::{Arc, PoisonError, RwLock};

use tokio::sync::Semaphore;

use crate::boundary::Terminator;
use crate::control::{Beginning, Channel, FromEgress, Letter, ToEgress, UpstreamProxy};
use crate::node_addresses::NodeAddresses;
use crate::relay::Pipes;
use crate::resolver::Resolver;
use linger::Linger;
use order::Order;
use outbox::Outbox;

/// Says which address a program dialled, of a connection that was accepted.
type Dialled = fn(BorrowedFd<'_>) -> io::Result<SocketAddr>;

/// What all sandboxes of a process share.
struct Shared {
    order: Order,
    linger: Linger,
    outbox: Outbox,
    resolver: Arc<Resolver>,
    node: RwLock<NodeAddresses>,
    proxy: Option<UpstreamProxy>,
    pipes: Arc<Pipes>,
    /// One place per connection that the limit of descriptors allows.
    places: Arc<Semaphore>,
    /// Places for attempts to connect that are made beside another one of the same connection.
    attempts: Arc<Semaphore>,
    dialled: Dialled,
    boundary: Option<Terminator>,
}

/// How many such places there are.
const ATTEMPTS_BESIDES: usize = 256;

/// Serves until the server closes the socket. The process must have no other thread: powers are given
/// up by thread.
pub fn main(control: OwnedFd) -> ExitCode {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let outcome = runtime.and_then(|runtime| {
        let outcome = runtime.block_on(begin(control));
        // Connections end with the process; nothing waits for them.
        runtime.shutdown_background();
        outcome
    });
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!(%error, "the way out has ended");
            ExitCode::FAILURE
        }
    }
}

async fn begin(control: OwnedFd) -> io::Result<()> {
    let channel = Arc::new(Channel::new(control)?);
    let Some((ToEgress::Begin(beginning), _)) = channel.receive::<ToEgress>().await? else {
        return Err(io::Error::other("the server did not begin with the beginning"));
    };
    let made = confine::become_nothing(beginning.user)
        .and_then(|descriptors| {
            let order = Order::of(Arc::clone(&channel));
            Shared::new(*beginning, order, dialled, descriptors)
        })
        .and_then(|shared| confine::load_filter().map(|()| shared));
    let shared = match made {
        Ok(shared) => Arc::new(shared),
        Err(error) => {
            let refused = FromEgress::Refused { ticket: 0, reason: error.to_string() };
            channel.send(&Letter::new(&refused)?, &[]).await?;
            return Err(error);
        }
    };
    control_loop::serve(&channel, shared).await
}

fn dialled(socket: BorrowedFd<'_>) -> io::Result<SocketAddr> {
    let address = rustix::net::getsockname(socket)?;
    SocketAddr::try_from(address).map_err(io::Error::from)
}

impl Shared {
    fn new(
        beginning: Beginning,
        order: Order,
        dialled: Dialled,
        descriptors: u64,
    ) -> io::Result<Self> {
        let boundary = confine::boundary(&beginning)?;
        let places = confine::places(descriptors);
        Ok(Self {
            order,
            linger: Linger::default(),
            outbox: Outbox::default(),
            resolver: Arc::new(Resolver::new(beginning.resolver, beginning.hosts)?),
            node: RwLock::new(beginning.node),
            proxy: beginning.proxy,
            pipes: Arc::default(),
            places: Arc::new(Semaphore::new(places)),
            attempts: Arc::new(Semaphore::new(ATTEMPTS_BESIDES)),
            dialled,
            boundary,
        })
    }

    fn with_node<T>(&self, look: impl FnOnce(&NodeAddresses) -> T) -> T {
        look(&self.node.read().unwrap_or_else(PoisonError::into_inner))
    }
}

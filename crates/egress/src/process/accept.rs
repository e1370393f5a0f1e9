//! Takes connections from the listener of a sandbox, as fast as its limits allow: the others stay in
//! its backlog. It must never take one that it cannot serve at once.

use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use rustix::net::{SocketFlags, accept_with};
use tokio::io::Interest;
use tokio::net::TcpStream;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::connection;
use super::sandbox::Sandbox;
use crate::relay::pause;

/// How long to wait when the kernel has no descriptors or memory.
const SHORT_OF: Duration = Duration::from_millis(100);

/// The places that a connection has.
pub(super) struct Places {
    _own: OwnedSemaphorePermit,
    _of_key: Option<OwnedSemaphorePermit>,
    _of_process: OwnedSemaphorePermit,
}

/// A listener whose readiness can be waited for before a connection is taken, which a listener of
/// tokio cannot do: so it is called a stream.
pub(super) fn watched(listener: OwnedFd) -> io::Result<TcpStream> {
    rustix::io::ioctl_fionbio(&listener, true)?;
    TcpStream::from_std(listener.into())
}

async fn place(gate: &Arc<Semaphore>) -> Option<OwnedSemaphorePermit> {
    gate.clone().acquire_owned().await.ok()
}

/// Waits for a connection first: a sandbox that has none must not hold a place.
pub(super) async fn accept_all(sandbox: Arc<Sandbox>, listener: Arc<TcpStream>) {
    loop {
        if listener.readable().await.is_err() {
            return;
        }
        let Some(own) = place(&sandbox.places).await else { return };
        let of_key = match sandbox.places_of_key() {
            Some(gate) => place(&gate).await,
            None => None,
        };
        let Some(of_process) = place(&sandbox.shared.places).await else { return };
        // Even a sleep of no time lasts until the next tick of the clock.
        pause(sandbox.new_connections.owe(1.0)).await;
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let accepted = listener.try_io(Interest::READABLE, || Ok(accept_with(&listener, flags)?));
        let socket = match accepted {
            Ok(socket) => socket,
            // Nothing came, so nothing is owed.
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                sandbox.new_connections.owe(-1.0);
                continue;
            }
            Err(error) if gone_already(&error) => continue,
            Err(_) => {
                tokio::time::sleep(SHORT_OF).await;
                continue;
            }
        };
        let places = Places { _own: own, _of_key: of_key, _of_process: of_process };
        serve(&sandbox, socket, places);
    }
}

fn gone_already(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::ConnectionAborted | io::ErrorKind::Interrupted)
}

fn serve(sandbox: &Arc<Sandbox>, socket: OwnedFd, places: Places) {
    let Ok(dialled) = (sandbox.shared.dialled)(socket.as_fd()) else { return };
    let Ok(stream) = TcpStream::from_std(socket.into()) else { return };
    let _ = stream.set_nodelay(true);
    sandbox.spawn(|number| {
        let connection = Arc::new(connection::Connection::new(sandbox.clone(), number));
        async move {
            connection::serve(&connection, stream, dialled).await;
            drop((connection, places));
        }
    });
}

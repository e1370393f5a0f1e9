//! Takes connections from the listener of a sandbox, as fast as its limits allow: the others stay in
//! its backlog. It must never take one that it cannot serve at once.

use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use rustix::net::{SocketFlags, accept_with};
use tokio::io::Interest;
use tokio::net::TcpStream;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::connection;
use super::key_gate::{KeyGate, KeyPlace};
use super::sandbox::Sandbox;
use crate::relay::pause;

/// How long to wait when the kernel has no descriptors or memory.
const SHORT_OF: Duration = Duration::from_millis(100);

/// The places that a connection has.
pub(super) struct Places {
    _own: OwnedSemaphorePermit,
    _of_key: Option<KeyPlace>,
    _of_process: OwnedSemaphorePermit,
}

/// A listener whose readiness can be waited for before a connection is taken, which a listener of
/// tokio cannot do: so it is called a stream.
pub(super) fn watched(listener: OwnedFd) -> io::Result<TcpStream> {
    rustix::io::ioctl_fionbio(&listener, true)?;
    TcpStream::from_std(listener.into())
}

async fn place(gate: &Arc<Semaphore>, waits: &AtomicU64) -> Option<OwnedSemaphorePermit> {
    if let Ok(place) = gate.clone().try_acquire_owned() {
        return Some(place);
    }
    waits.fetch_add(1, Relaxed);
    gate.clone().acquire_owned().await.ok()
}

async fn place_of_key(gate: &Arc<KeyGate>, waits: &AtomicU64) -> Option<KeyPlace> {
    if let Some(place) = gate.try_place() {
        return Some(place);
    }
    waits.fetch_add(1, Relaxed);
    gate.place().await
}

/// Takes a turn of a sandbox, and of its key, and says how long to wait for it.
fn owe(sandbox: &Sandbox, gate: Option<&Arc<KeyGate>>, count: f64) -> Duration {
    let outbox = &sandbox.shared.outbox;
    let own = sandbox.new_connections.owe(count);
    let of_key = gate.and_then(|gate| gate.new_connections.as_ref());
    let of_key = of_key.map(|bucket| bucket.owe(count)).unwrap_or_default();
    if own.max(of_key).is_zero() {
        return Duration::ZERO;
    }
    let waits = if own >= of_key { &outbox.waits_of_sandbox } else { &outbox.waits_of_key };
    waits.fetch_add(1, Relaxed);
    own.max(of_key)
}

/// Waits for a connection first: a sandbox that has none must not hold a place.
pub(super) async fn accept_all(sandbox: Arc<Sandbox>, listener: Arc<TcpStream>) {
    let outbox = &sandbox.shared.outbox;
    loop {
        if listener.readable().await.is_err() {
            return;
        }
        let Some(own) = place(&sandbox.places, &outbox.waits_of_sandbox).await else { return };
        let gate = sandbox.gate_of_key();
        let of_key = match &gate {
            Some(gate) => place_of_key(gate, &outbox.waits_of_key).await,
            None => None,
        };
        let of_process = place(&sandbox.shared.places, &outbox.waits_of_process).await;
        let Some(of_process) = of_process else { return };
        // Even a sleep of no time lasts until the next tick of the clock.
        pause(owe(&sandbox, gate.as_ref(), 1.0)).await;
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let accepted = listener.try_io(Interest::READABLE, || Ok(accept_with(&listener, flags)?));
        let socket = match accepted {
            Ok(socket) => socket,
            // Nothing came, so nothing is owed.
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                give_back(&sandbox, gate.as_ref());
                continue;
            }
            Err(error) if gone_already(&error) => continue,
            Err(_) => {
                tokio::time::sleep(SHORT_OF).await;
                continue;
            }
        };
        let places = Places { _own: own, _of_key: of_key, _of_process: of_process };
        sandbox.shared.order.catch_up().await;
        serve(&sandbox, socket, places);
    }
}

fn give_back(sandbox: &Sandbox, gate: Option<&Arc<KeyGate>>) {
    sandbox.new_connections.owe(-1.0);
    if let Some(bucket) = gate.and_then(|gate| gate.new_connections.as_ref()) {
        bucket.owe(-1.0);
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

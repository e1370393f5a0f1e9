//! The server's connection to one process of the way out: what is asked of it, in order, and what it
//! answers. It starts the process anew when it dies. It must never lose a question: each is answered,
//! or its channel is closed, which its caller sees as the loss of the process.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use model::{InstanceId, KeyId};
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, sleep, timeout};

use super::shares::Shares;
use super::starter::{Process, Starter};
use super::{EgressError, Hub};
use crate::control::{AttachMessage, Beginning, Channel, FromEgress, Letter, Sockets, ToEgress};
use crate::node_addresses::NodeAddresses;
use crate::policy::Reach;

/// How long a process may take to begin.
const BEGIN_PATIENCE: Duration = Duration::from_secs(10);
const BACKOFF_FIRST: Duration = Duration::from_millis(50);
const BACKOFF_MAX: Duration = Duration::from_secs(5);
/// A process that lived so long starts at once when it dies.
const LIVED_WELL: Duration = Duration::from_secs(30);

/// A process that owes an answer for so long is stuck, and is replaced. Callers wait for less.
const STUCK_AFTER: Duration = Duration::from_mins(1);
const LOOKED_AT_EVERY: Duration = Duration::from_secs(5);
/// From then on the node is degraded.
const OVERDUE_AFTER: Duration = Duration::from_secs(5);

/// What is asked of a process.
pub(super) enum Command {
    Attach {
        message: Box<AttachMessage>,
        sockets: Sockets,
        reply: oneshot::Sender<Result<(), EgressError>>,
    },
    Change {
        sandbox: InstanceId,
        key: Option<KeyId>,
        policy: Reach,
        /// Used when it was sent.
        sent: Option<oneshot::Sender<()>>,
        reply: oneshot::Sender<Result<(), EgressError>>,
    },
    Forget {
        sandbox: InstanceId,
        return_sockets: bool,
        reply: oneshot::Sender<Option<Sockets>>,
    },
    Node(NodeAddresses),
    /// The share of the process in the limits of a key has changed.
    Share(KeyId),
}

/// What was sent and is not answered yet.
enum Waiting {
    Attach(InstanceId, oneshot::Sender<Result<(), EgressError>>),
    Change(oneshot::Sender<Result<(), EgressError>>),
    Forget(InstanceId, oneshot::Sender<Option<Sockets>>),
}

#[derive(Default)]
struct Tickets {
    next: u64,
    /// With when it was asked. Answers come in the order of the questions.
    waiting: BTreeMap<u64, (Instant, Waiting)>,
    /// Sandboxes that the process has acknowledged.
    attached: BTreeSet<InstanceId>,
}

/// Serves one process after the other until no more commands can come.
pub(super) async fn serve(
    number: u64,
    beginning: Beginning,
    starter: Starter,
    (hub, shares): (Arc<Hub>, Arc<Shares>),
    mut commands: mpsc::UnboundedReceiver<Command>,
) {
    let mut backoff = BACKOFF_FIRST;
    loop {
        let tickets = Mutex::new(Tickets::default());
        let began = Instant::now();
        let outcome = match begin(&beginning, &starter, &hub).await {
            Ok((channel, process)) => {
                tracing::debug!(process = process.id(), "a process of the way out has begun");
                tokio::select! {
                    ended = send_all(&channel, &tickets, &shares, &mut commands) => ended,
                    ended = receive_all(number, &channel, &tickets, &hub) => ended,
                    stuck = watch(number, &tickets, &hub) => Err(stuck),
                }
            }
            Err(error) => Err(error),
        };
        let attached = std::mem::take(&mut lock(&tickets).attached);
        drop(tickets);
        let Err(error) = outcome else {
            hub.retire(number);
            return;
        };
        tracing::warn!(%error, sandboxes = attached.len(), "a process of the way out has ended");
        hub.died(number, attached.into_iter().collect());
        if began.elapsed() > LIVED_WELL {
            backoff = BACKOFF_FIRST;
        }
        sleep(backoff).await;
        backoff = (backoff * 2).min(BACKOFF_MAX);
        if commands.is_closed() && commands.is_empty() {
            hub.retire(number);
            return;
        }
    }
}

async fn begin(
    beginning: &Beginning,
    starter: &Starter,
    hub: &Hub,
) -> io::Result<(Channel, Process)> {
    let mut process = starter.start().await?;
    let socket = process.socket.take().ok_or(io::ErrorKind::NotConnected)?;
    let channel = Channel::new(socket)?;
    let mut beginning = beginning.clone();
    beginning.node = hub.node();
    channel.send(&Letter::new(&ToEgress::Begin(Box::new(beginning)))?, &[]).await?;
    let first = timeout(BEGIN_PATIENCE, channel.receive::<FromEgress>()).await??;
    match first {
        Some((FromEgress::Up, _)) => Ok((channel, process)),
        Some((FromEgress::Refused { reason, .. }, _)) => Err(io::Error::other(reason)),
        Some(_) => Err(io::Error::other("it began with something else than that it is up")),
        None => Err(io::Error::other("it ended before it was up")),
    }
}

fn lock(tickets: &Mutex<Tickets>) -> MutexGuard<'_, Tickets> {
    tickets.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Ends without an error when there is nothing more to ask.
async fn send_all(
    channel: &Channel,
    tickets: &Mutex<Tickets>,
    shares: &Shares,
    commands: &mut mpsc::UnboundedReceiver<Command>,
) -> io::Result<()> {
    while let Some(command) = commands.recv().await {
        let ticket = {
            let mut tickets = lock(tickets);
            tickets.next += 1;
            tickets.next
        };
        let wait = |waiting| lock(tickets).waiting.insert(ticket, (Instant::now(), waiting));
        match command {
            // Its caller has left: what would be made would have no owner.
            Command::Attach { reply, .. } if reply.is_closed() => {}
            Command::Attach { mut message, sockets, reply } => {
                let sandbox = message.sandbox;
                message.parts = shares.parts(message.key);
                let letter = match Letter::new(&ToEgress::Attach { ticket, attach: message }) {
                    Ok(letter) => letter,
                    Err(error) => {
                        let _ = reply.send(Err(EgressError::Refused(error.to_string())));
                        continue;
                    }
                };
                wait(Waiting::Attach(sandbox, reply));
                let both = [Some(&sockets.connections), sockets.names.as_ref()];
                let both: Vec<_> = both.into_iter().flatten().map(OwnedFd::as_fd).collect();
                channel.send(&letter, &both).await?;
            }
            Command::Change { sandbox, key, policy, sent, reply } => {
                wait(Waiting::Change(reply));
                let parts = shares.parts(key);
                let change = ToEgress::Change { ticket, sandbox, key, parts, policy };
                channel.send(&Letter::new(&change)?, &[]).await?;
                let _ = sent.map(|sent| sent.send(()));
            }
            Command::Forget { sandbox, return_sockets, reply } => {
                wait(Waiting::Forget(sandbox, reply));
                let letter = Letter::new(&ToEgress::Forget { ticket, sandbox, return_sockets })?;
                channel.send(&letter, &[]).await?;
            }
            Command::Node(node) => channel.send(&Letter::new(&ToEgress::Node(node))?, &[]).await?,
            Command::Share(key) => {
                let share = ToEgress::Share { key, parts: shares.parts(Some(key)) };
                channel.send(&Letter::new(&share)?, &[]).await?;
            }
        }
    }
    Ok(())
}

/// Ends when an answer is overdue.
async fn watch(number: u64, tickets: &Mutex<Tickets>, hub: &Hub) -> io::Error {
    loop {
        sleep(LOOKED_AT_EVERY).await;
        let oldest = lock(tickets).waiting.first_key_value().map(|(_, (asked, _))| asked.elapsed());
        let owed = oldest.unwrap_or_default();
        hub.set_overdue(number, owed >= OVERDUE_AFTER);
        if owed >= STUCK_AFTER {
            return io::Error::other("it does not answer");
        }
    }
}

/// Never ends without an error.
async fn receive_all(
    number: u64,
    channel: &Channel,
    tickets: &Mutex<Tickets>,
    hub: &Hub,
) -> io::Result<()> {
    loop {
        let Some((message, descriptors)) = channel.receive::<FromEgress>().await? else {
            return Err(io::ErrorKind::UnexpectedEof.into());
        };
        match message {
            FromEgress::Up => return Err(io::Error::other("it said twice that it is up")),
            FromEgress::Done { ticket } => {
                let mut tickets = lock(tickets);
                let waiting = tickets.waiting.remove(&ticket);
                done(waiting.map(|(_, waiting)| waiting), descriptors, &mut tickets.attached);
            }
            FromEgress::Refused { ticket, reason } => {
                let mut tickets = lock(tickets);
                match tickets.waiting.remove(&ticket).map(|(_, waiting)| waiting) {
                    Some(Waiting::Attach(_, reply) | Waiting::Change(reply)) => {
                        let _ = reply.send(Err(EgressError::Refused(reason)));
                    }
                    Some(Waiting::Forget(_, reply)) => drop(reply.send(None)),
                    None => {}
                }
            }
            FromEgress::Events(events) => hub.publish(events),
            FromEgress::Counts(counts) => hub.count(number, counts),
        }
    }
}

/// If the caller has left, sockets that came are closed here.
fn done(waiting: Option<Waiting>, descriptors: Vec<OwnedFd>, attached: &mut BTreeSet<InstanceId>) {
    match waiting {
        Some(Waiting::Attach(sandbox, reply)) => {
            attached.insert(sandbox);
            let _ = reply.send(Ok(()));
        }
        Some(Waiting::Change(reply)) => drop(reply.send(Ok(()))),
        Some(Waiting::Forget(sandbox, reply)) => {
            attached.remove(&sandbox);
            let mut descriptors = descriptors.into_iter();
            let connections = descriptors.next();
            let names = descriptors.next();
            let _ = reply.send(connections.map(|connections| Sockets { connections, names }));
        }
        None => {}
    }
}

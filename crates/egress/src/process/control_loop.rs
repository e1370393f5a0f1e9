//! Does what the server asks, one message after the other, and answers each. It must answer only when
//! it is done: what the server forgets is closed, and what it changes holds.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::sync::{Arc, PoisonError};

use model::{InstanceId, KeyId};

use super::Shared;
use super::key_gate::KeyGate;
use super::sandbox::Sandbox;
use crate::control::{AttachMessage, Channel, FromEgress, Letter, Sockets, ToEgress};
use crate::limits::EgressLimits;

struct Sandboxes {
    shared: Arc<Shared>,
    by_id: BTreeMap<InstanceId, Arc<Sandbox>>,
    /// What the sandboxes of each key share; gone with its last sandbox.
    keys: BTreeMap<KeyId, Arc<KeyGate>>,
}

/// Serves until the server closes the socket.
pub(super) async fn serve(channel: &Channel, shared: Arc<Shared>) -> io::Result<()> {
    channel.send(&Letter::new(&FromEgress::Up)?, &[]).await?;
    let outbox = shared.clone();
    tokio::select! {
        ended = listen(channel, shared) => ended,
        ended = outbox.outbox.send_events(channel) => ended,
        ended = outbox.outbox.send_counts(channel) => ended,
        () = outbox.linger.look() => Ok(()),
    }
}

async fn listen(channel: &Channel, shared: Arc<Shared>) -> io::Result<()> {
    let mut sandboxes = Sandboxes { shared, by_id: BTreeMap::new(), keys: BTreeMap::new() };
    while let Some((message, descriptors)) = channel.receive::<ToEgress>().await? {
        let ends_one = matches!(message, ToEgress::Forget { .. });
        sandboxes.shared.order.begin();
        let (answer, sockets) = sandboxes.carry_out(message, descriptors).await;
        sandboxes.shared.order.end();
        let Some(answer) = answer else { continue };
        if ends_one {
            // The next user of the sandbox must not be taken for the one of these events.
            sandboxes.shared.outbox.flush(channel).await?;
        }
        let both =
            sockets.as_ref().map(|sockets| [Some(&sockets.connections), sockets.names.as_ref()]);
        let both: Vec<_> =
            both.iter().flatten().flatten().map(|&socket| OwnedFd::as_fd(socket)).collect();
        channel.send(&Letter::new(&answer)?, &both).await?;
    }
    sandboxes.close().await;
    Ok(())
}

impl Sandboxes {
    async fn carry_out(
        &mut self,
        message: ToEgress,
        descriptors: Vec<OwnedFd>,
    ) -> (Option<FromEgress>, Option<Sockets>) {
        let (ticket, outcome) = match message {
            ToEgress::Begin(_) => (0, Err("it has begun already".to_owned())),
            ToEgress::Attach { ticket, attach } => {
                (ticket, self.attach(*attach, descriptors).await.map_err(|error| error.to_string()))
            }
            ToEgress::Change { ticket, sandbox, key, parts, policy } => {
                match self.by_id.get(&sandbox).cloned() {
                    Some(sandbox) => {
                        let gate = key.map(|key| self.gate(key, parts, &sandbox.limits));
                        sandbox.change(&policy, gate).await;
                        self.tidy_gates();
                        (ticket, Ok(()))
                    }
                    None => (ticket, Err("the sandbox is not attached".to_owned())),
                }
            }
            ToEgress::Forget { ticket, sandbox, return_sockets } => {
                let sockets = self.forget(sandbox).await.filter(|_| return_sockets);
                return (Some(FromEgress::Done { ticket }), sockets);
            }
            ToEgress::Share { key, parts } => {
                if let Some(gate) = self.keys.get(&key) {
                    gate.divide(parts);
                }
                return (None, None);
            }
            ToEgress::Node(node) => {
                *self.shared.node.write().unwrap_or_else(PoisonError::into_inner) = node;
                for sandbox in self.by_id.values() {
                    sandbox.cut_what_is_refused().await;
                }
                return (None, None);
            }
        };
        let answer = match outcome {
            Ok(()) => FromEgress::Done { ticket },
            Err(reason) => FromEgress::Refused { ticket, reason },
        };
        (Some(answer), None)
    }

    async fn attach(
        &mut self,
        message: AttachMessage,
        descriptors: Vec<OwnedFd>,
    ) -> io::Result<()> {
        let id = message.sandbox;
        let mut descriptors = descriptors.into_iter();
        let connections = descriptors.next().ok_or(io::ErrorKind::InvalidInput)?;
        let sockets = Sockets { connections, names: descriptors.next() };
        drop(self.forget(id).await);
        let gate = message.key.map(|key| self.gate(key, message.parts, &message.limits));
        let sandbox = Sandbox::start(&self.shared, message, sockets, gate)?;
        self.by_id.insert(id, sandbox);
        Ok(())
    }

    /// What all sandboxes of a key share.
    fn gate(&mut self, key: KeyId, parts: u32, limits: &EgressLimits) -> Arc<KeyGate> {
        let gate = self.keys.entry(key);
        let gate = gate.or_insert_with(|| Arc::new(KeyGate::new(*limits, parts)));
        gate.divide(parts);
        gate.clone()
    }

    fn tidy_gates(&mut self) {
        self.keys.retain(|_, gate| Arc::strong_count(gate) > 1);
    }

    /// When it returns, everything of the sandbox but these sockets is closed.
    async fn forget(&mut self, id: InstanceId) -> Option<Sockets> {
        let sandbox = self.by_id.remove(&id)?;
        let sockets = sandbox.stop().await;
        drop(sandbox);
        self.tidy_gates();
        sockets
    }

    async fn close(&mut self) {
        for (_, sandbox) in std::mem::take(&mut self.by_id) {
            drop(sandbox.stop().await);
        }
    }
}

//! Which process serves which sandbox. Pure bookkeeping under one lock that is never held over an
//! await. It must never place two keys that have secrets into one process.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use model::{InstanceId, KeyId};
use sha2::{Digest as _, Sha256};
use tokio::sync::mpsc;
use zeroize::Zeroizing;

use super::hub::Hub;
use super::link::{self, Command};
use super::starter::Starter;
use super::{EgressError, PROCESSES_OF_KEYS, SANDBOXES_OF_A_PROCESS};
use crate::boundary::Authority;
use crate::control::Beginning;
use crate::limits::EgressLimits;
use crate::node_addresses::NodeAddresses;

/// How long a process without sandboxes stays.
pub(super) const LINGER: Duration = Duration::from_mins(1);

/// Where to ask one process.
#[derive(Debug, Clone)]
pub(super) struct Link {
    number: u64,
    commands: mpsc::UnboundedSender<Command>,
}

impl Link {
    pub(super) fn ask(&self, command: Command) -> Result<(), EgressError> {
        self.commands.send(command).map_err(|_| EgressError::Lost)
    }
}

#[derive(Debug)]
struct Place {
    link: Link,
    key: Option<KeyId>,
    members: BTreeSet<InstanceId>,
    /// Since when it has none.
    empty_since: Option<Instant>,
}

impl Place {
    /// A sandbox is gone, by itself or with the process.
    fn leave(&mut self, sandbox: InstanceId) {
        self.members.remove(&sandbox);
        if self.members.is_empty() {
            self.empty_since = Some(Instant::now());
        }
    }
}

#[derive(Debug, Default)]
struct State {
    next: u64,
    places: BTreeMap<u64, Place>,
    placed: BTreeMap<InstanceId, u64>,
}

#[derive(Debug)]
pub(super) struct Placement {
    state: Mutex<State>,
    beginning: Beginning,
    starter: Starter,
    hub: Arc<Hub>,
    names_key: [u8; 32],
    limits: EgressLimits,
}

impl Placement {
    pub(super) fn new(
        beginning: Beginning,
        starter: Starter,
        hub: Arc<Hub>,
        names_key: [u8; 32],
        limits: EgressLimits,
    ) -> Self {
        let state = Mutex::new(State::default());
        Self { state, beginning, starter, hub, names_key, limits }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        for (number, sandboxes) in self.hub.take_deaths() {
            for sandbox in sandboxes {
                if state.placed.get(&sandbox) == Some(&number) {
                    state.placed.remove(&sandbox);
                    if let Some(place) = state.places.get_mut(&number) {
                        place.leave(sandbox);
                    }
                }
            }
        }
        state
    }

    pub(super) fn hub(&self) -> &Hub {
        &self.hub
    }

    pub(super) const fn limits(&self) -> EgressLimits {
        self.limits
    }

    /// The key of a sandbox's synthetic addresses: the same in every process.
    pub(super) fn names_key(&self, sandbox: InstanceId) -> [u8; 16] {
        let mut hash = Sha256::new();
        hash.update(self.names_key);
        hash.update(sandbox.as_u128().to_be_bytes());
        let digest = hash.finalize();
        let mut key = [0; 16];
        key.iter_mut().zip(digest.iter()).for_each(|(to, from)| *to = *from);
        key
    }

    pub(super) fn start_first(&self) {
        self.open(&mut self.lock(), None);
    }

    /// Chooses a process for a sandbox that has none.
    pub(super) fn place(
        &self,
        sandbox: InstanceId,
        own: Option<(KeyId, &Authority)>,
    ) -> Result<Link, EgressError> {
        let mut state = self.lock();
        let key = own.map(|(key, _)| key);
        let fits = |place: &&mut Place| {
            place.key == key && (key.is_some() || place.members.len() < SANDBOXES_OF_A_PROCESS)
        };
        let of_keys = state.places.values().filter(|place| place.key.is_some()).count();
        let found = state.places.values_mut().filter(fits).min_by_key(|place| place.link.number);
        let link = match found {
            Some(place) => place.link.clone(),
            None if own.is_some() && of_keys >= PROCESSES_OF_KEYS => {
                return Err(EgressError::TooManyKeys);
            }
            None => {
                let carried = |(key, authority)| {
                    let bytes = postcard::to_allocvec(authority);
                    bytes.map(|bytes| (key, Zeroizing::new(bytes)))
                };
                let own = own.map(carried).transpose();
                self.open(&mut state, own.map_err(|_| EgressError::Incomplete("an authority"))?)
            }
        };
        if let Some(place) = state.places.get_mut(&link.number) {
            place.members.insert(sandbox);
            place.empty_since = None;
        }
        state.placed.insert(sandbox, link.number);
        Ok(link)
    }

    fn open(&self, state: &mut State, own: Option<(KeyId, Zeroizing<Vec<u8>>)>) -> Link {
        state.next += 1;
        let number = state.next;
        let (commands, received) = mpsc::unbounded_channel();
        let (key, authority) = own.unzip();
        let beginning = Beginning { authority, ..self.beginning.clone() };
        let (starter, hub) = (self.starter.clone(), self.hub.clone());
        tokio::spawn(link::serve(number, beginning, starter, hub, received));
        let link = Link { number, commands };
        let place = Place { link: link.clone(), key, members: BTreeSet::new(), empty_since: None };
        state.places.insert(number, place);
        link
    }

    pub(super) fn link_of(&self, sandbox: InstanceId) -> Option<Link> {
        let state = self.lock();
        let number = state.placed.get(&sandbox)?;
        state.places.get(number).map(|place| place.link.clone())
    }

    /// Takes a sandbox out; where it was.
    pub(super) fn remove(&self, sandbox: InstanceId) -> Option<Link> {
        let mut state = self.lock();
        let number = state.placed.remove(&sandbox)?;
        let place = state.places.get_mut(&number)?;
        place.leave(sandbox);
        Some(place.link.clone())
    }

    /// Takes a sandbox out if it is still there.
    pub(super) fn remove_from(&self, sandbox: InstanceId, link: &Link) {
        let there = self.lock().placed.get(&sandbox) == Some(&link.number);
        if there {
            drop(self.remove(sandbox));
        }
    }

    /// Ends the processes that had no sandbox for a while, except the first.
    pub(super) fn close_idle(&self, now: Instant) {
        self.lock().places.retain(|number, place| {
            let idle = place.empty_since.is_some_and(|since| now >= since + LINGER);
            *number == 1 || !idle
        });
    }

    pub(super) fn node_is(&self, node: &NodeAddresses) {
        if self.hub.set_node(node) {
            for place in self.lock().places.values() {
                let _ = place.link.ask(Command::Node(node.clone()));
            }
        }
    }

    /// Processes and sandboxes.
    pub(super) fn sizes(&self) -> (u64, u64) {
        let state = self.lock();
        (state.places.len() as u64, state.placed.len() as u64)
    }
}

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
use super::shares::Shares;
use super::starter::Starter;
use super::{EgressConfig, EgressError, SANDBOXES_OF_A_PROCESS};
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

/// Where a sandbox is.
#[derive(Debug, Clone, Copy)]
struct Placed {
    process: u64,
    /// The key whose limits its connections count for.
    counted_for: Option<KeyId>,
}

#[derive(Debug, Default)]
struct State {
    next: u64,
    places: BTreeMap<u64, Place>,
    placed: BTreeMap<InstanceId, Placed>,
    /// How many sandboxes with boundary secrets of each key will come.
    reserved: BTreeMap<KeyId, usize>,
}

impl State {
    /// The keys that have a process in use, or will have one.
    fn keys_in_use(&self) -> BTreeSet<KeyId> {
        let used = self.places.values().filter(|place| place.empty_since.is_none());
        let used = used.filter_map(|place| place.key);
        used.chain(self.reserved.keys().copied()).collect()
    }

    /// The process of a key that has had no sandbox for the longest time, and expects none.
    fn longest_empty(&self) -> Option<u64> {
        let idle = |place: &&Place| place.key.is_some_and(|key| !self.reserved.contains_key(&key));
        let empty = self.places.values().filter(idle);
        let empty = empty.filter_map(|place| Some((place.empty_since?, place.link.number)));
        empty.min().map(|(_, number)| number)
    }
}

#[derive(Debug)]
pub(super) struct Placement {
    state: Mutex<State>,
    beginning: Beginning,
    starter: Starter,
    hub: Arc<Hub>,
    shares: Arc<Shares>,
    names_key: [u8; 32],
    limits: EgressLimits,
    boundary_keys: usize,
}

impl Placement {
    pub(super) fn new(
        beginning: Beginning,
        starter: Starter,
        hub: Arc<Hub>,
        names_key: [u8; 32],
        config: &EgressConfig,
    ) -> Self {
        let (state, shares) = (Mutex::new(State::default()), Arc::default());
        let (limits, boundary_keys) = (config.limits, config.boundary_keys);
        Self { state, beginning, starter, hub, shares, names_key, limits, boundary_keys }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        for (number, sandboxes) in self.hub.take_deaths() {
            for sandbox in sandboxes {
                if state.placed.get(&sandbox).is_some_and(|placed| placed.process == number) {
                    self.take_out(&mut state, sandbox);
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

    #[cfg(test)]
    pub(super) fn parts(&self, key: KeyId) -> u32 {
        self.shares.parts(Some(key))
    }

    pub(super) fn start_first(&self) {
        self.open(&mut self.lock(), None);
    }

    /// Keeps a place for a sandbox with boundary secrets. The process of another key that has had no
    /// sandbox for a while gives way when the sandbox comes.
    pub(super) fn reserve(&self, key: KeyId) -> Result<(), EgressError> {
        let mut state = self.lock();
        self.check_room(&state, key)?;
        *state.reserved.entry(key).or_default() += 1;
        Ok(())
    }

    pub(super) fn give_back(&self, key: KeyId) {
        let mut state = self.lock();
        if let Some(count) = state.reserved.get_mut(&key) {
            *count -= 1;
            if *count == 0 {
                state.reserved.remove(&key);
            }
        }
    }

    fn check_room(&self, state: &State, key: KeyId) -> Result<(), EgressError> {
        let in_use = state.keys_in_use();
        if in_use.contains(&key) || in_use.len() < self.boundary_keys {
            return Ok(());
        }
        Err(EgressError::TooManyKeys { most: self.boundary_keys })
    }

    /// Chooses a process for a sandbox that has none: that of its key if it has boundary secrets.
    pub(super) fn place(
        &self,
        sandbox: InstanceId,
        counted_for: Option<KeyId>,
        own: Option<(KeyId, &Authority)>,
    ) -> Result<Link, EgressError> {
        let mut state = self.lock();
        let key = own.map(|(key, _)| key);
        if let Some(key) = key {
            self.check_room(&state, key)?;
        }
        let fits = |place: &&mut Place| {
            place.key == key && (key.is_some() || place.members.len() < SANDBOXES_OF_A_PROCESS)
        };
        let found = state.places.values_mut().filter(fits).min_by_key(|place| place.link.number);
        let link = if let Some(place) = found {
            place.link.clone()
        } else {
            let carried = |(key, authority)| {
                let bytes = postcard::to_allocvec(authority);
                bytes.map(|bytes| (key, Zeroizing::new(bytes)))
            };
            let carried = own.map(carried).transpose();
            let carried = carried.map_err(|_| EgressError::Incomplete("an authority"))?;
            if carried.is_some() {
                self.make_way(&mut state);
            }
            self.open(&mut state, carried)
        };
        if let Some(place) = state.places.get_mut(&link.number) {
            place.members.insert(sandbox);
            place.empty_since = None;
        }
        let placed = Placed { process: link.number, counted_for };
        state.placed.insert(sandbox, placed);
        self.joined(&state, placed);
        Ok(link)
    }

    /// Ends a process of another key that only waits for its next sandbox, if there are too many.
    fn make_way(&self, state: &mut State) {
        let of_keys =
            |state: &State| state.places.values().filter(|place| place.key.is_some()).count();
        while of_keys(state) >= self.boundary_keys {
            let Some(number) = state.longest_empty() else { return };
            state.places.remove(&number);
        }
    }

    /// The share of other processes in the limits of a key has changed.
    fn joined(&self, state: &State, placed: Placed) {
        if let Some(key) = placed.counted_for {
            Self::tell(state, key, &self.shares.join(key, placed.process));
        }
    }

    fn parted(&self, state: &State, placed: Placed) {
        if let Some(key) = placed.counted_for {
            Self::tell(state, key, &self.shares.leave(key, placed.process));
        }
    }

    fn tell(state: &State, key: KeyId, processes: &[u64]) {
        for place in processes.iter().filter_map(|number| state.places.get(number)) {
            // One that has ended has no connections.
            let _ = place.link.ask(Command::Share(key));
        }
    }

    /// Counts the connections of a sandbox for this key from now on; where it is.
    pub(super) fn count_for(&self, sandbox: InstanceId, key: Option<KeyId>) -> Option<Link> {
        let mut state = self.lock();
        let placed = state.placed.get_mut(&sandbox)?;
        let before = *placed;
        placed.counted_for = key;
        let now = *placed;
        if before.counted_for != now.counted_for {
            self.joined(&state, now);
            self.parted(&state, before);
        }
        state.places.get(&now.process).map(|place| place.link.clone())
    }

    fn open(&self, state: &mut State, own: Option<(KeyId, Zeroizing<Vec<u8>>)>) -> Link {
        state.next += 1;
        let number = state.next;
        let (commands, received) = mpsc::unbounded_channel();
        let (key, authority) = own.unzip();
        let beginning = Beginning { authority, ..self.beginning.clone() };
        let (starter, hub) = (self.starter.clone(), self.hub.clone());
        let both = (hub, self.shares.clone());
        tokio::spawn(link::serve(number, beginning, starter, both, received));
        let link = Link { number, commands };
        let place = Place { link: link.clone(), key, members: BTreeSet::new(), empty_since: None };
        state.places.insert(number, place);
        link
    }

    pub(super) fn link_of(&self, sandbox: InstanceId) -> Option<Link> {
        let state = self.lock();
        let process = state.placed.get(&sandbox)?.process;
        state.places.get(&process).map(|place| place.link.clone())
    }

    fn take_out(&self, state: &mut State, sandbox: InstanceId) -> Option<Link> {
        let placed = state.placed.remove(&sandbox)?;
        let link = state.places.get_mut(&placed.process).map(|place| {
            place.leave(sandbox);
            place.link.clone()
        });
        self.parted(state, placed);
        link
    }

    /// Takes a sandbox out; where it was.
    pub(super) fn remove(&self, sandbox: InstanceId) -> Option<Link> {
        self.take_out(&mut self.lock(), sandbox)
    }

    /// Takes a sandbox out if it is still there.
    pub(super) fn remove_from(&self, sandbox: InstanceId, link: &Link) {
        let mut state = self.lock();
        if state.placed.get(&sandbox).is_some_and(|placed| placed.process == link.number) {
            self.take_out(&mut state, sandbox);
        }
    }

    /// Ends the processes that had no sandbox for a while, except the first.
    pub(super) fn close_idle(&self, now: Instant) {
        let mut state = self.lock();
        let State { places, reserved, .. } = &mut *state;
        places.retain(|number, place| {
            let idle = place.empty_since.is_some_and(|since| now >= since + LINGER);
            let expects = place.key.is_some_and(|key| reserved.contains_key(&key));
            *number == 1 || expects || !idle
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

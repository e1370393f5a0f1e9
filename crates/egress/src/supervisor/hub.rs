//! What processes report, gathered: events, losses and numbers. It must never wait for the server: what
//! nobody takes in time is dropped and counted.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, MutexGuard, PoisonError};

use model::InstanceId;
use tokio::sync::mpsc;

use crate::control::ProcessCounts;
use crate::event::{EVENTS_WAITING_MAX, EgressEvent};
use crate::node_addresses::NodeAddresses;

/// Numbers for metrics. `processes`, `sandboxes` and `connections` are of now, all others since the
/// start.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct EgressCounts {
    /// Processes.
    pub processes: u64,
    /// Sandboxes that are attached.
    pub sandboxes: u64,
    /// Connections.
    pub connections: u64,
    /// Connections that came.
    pub accepted: u64,
    /// Connections that were refused.
    pub refused: u64,
    /// Connections that were allowed and could not be made.
    pub failed: u64,
    /// Questions for names that were answered with an address.
    pub names_allowed: u64,
    /// Questions for names that were refused.
    pub names_refused: u64,
    /// Bytes out.
    pub sent: u64,
    /// Bytes in.
    pub received: u64,
    /// Events that were dropped because there were too many.
    pub dropped_events: u64,
    /// Processes that died.
    pub deaths: u64,
    /// Processes that owe an answer for long.
    pub overdue: u64,
    /// How often a new connection waited for a limit of its sandbox.
    pub waits_of_sandbox: u64,
    /// The same for a limit of its key.
    pub waits_of_key: u64,
    /// The same for the descriptors of its process.
    pub waits_of_process: u64,
}

/// An event, with its number.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reported {
    /// Grows with each event: see [`Egress::reported`](super::Egress::reported).
    pub number: u64,
    /// What happened.
    pub event: EgressEvent,
}

#[derive(Debug)]
pub(super) struct Hub {
    state: Mutex<State>,
    events: mpsc::Sender<Reported>,
    lost: mpsc::UnboundedSender<Vec<InstanceId>>,
}

#[derive(Debug)]
struct State {
    /// Of processes that are gone.
    past: EgressCounts,
    running: BTreeMap<u64, ProcessCounts>,
    overdue: BTreeSet<u64>,
    node: NodeAddresses,
    /// What a dead process served, taken out of the placement when it is asked for.
    deaths: Vec<(u64, Vec<InstanceId>)>,
    /// The number of the last event.
    reported: u64,
    events: Option<mpsc::Receiver<Reported>>,
    lost: Option<mpsc::UnboundedReceiver<Vec<InstanceId>>>,
}

impl Hub {
    pub(super) fn new(node: NodeAddresses) -> Self {
        let (events, events_out) = mpsc::channel(EVENTS_WAITING_MAX);
        let (lost, lost_out) = mpsc::unbounded_channel();
        let state = State {
            past: EgressCounts::default(),
            running: BTreeMap::new(),
            overdue: BTreeSet::new(),
            node,
            deaths: Vec::new(),
            reported: 0,
            events: Some(events_out),
            lost: Some(lost_out),
        };
        Self { state: Mutex::new(state), events, lost }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn publish(&self, events: Vec<EgressEvent>) {
        // Behind the lock, so that the numbers are in the order of the channel.
        let mut state = self.lock();
        for event in events {
            let number = state.reported + 1;
            if self.events.try_send(Reported { number, event }).is_ok() {
                state.reported = number;
            } else {
                state.past.dropped_events += 1;
            }
        }
    }

    /// The number of the last event that was published.
    pub(super) fn reported(&self) -> u64 {
        self.lock().reported
    }

    pub(super) fn count(&self, process: u64, counts: ProcessCounts) {
        self.lock().running.insert(process, counts);
    }

    /// A process died; these were attached to it.
    pub(super) fn died(&self, process: u64, sandboxes: Vec<InstanceId>) {
        self.retire(process);
        let mut state = self.lock();
        state.past.deaths += 1;
        state.deaths.push((process, sandboxes.clone()));
        drop(state);
        if !sandboxes.is_empty() {
            let _ = self.lost.send(sandboxes);
        }
    }

    /// Sandboxes that lost their process since the last call, with the number of its link.
    pub(super) fn take_deaths(&self) -> Vec<(u64, Vec<InstanceId>)> {
        std::mem::take(&mut self.lock().deaths)
    }

    /// Whether a process owes an answer for long.
    pub(super) fn set_overdue(&self, process: u64, overdue: bool) {
        let mut state = self.lock();
        if overdue {
            state.overdue.insert(process);
        } else {
            state.overdue.remove(&process);
        }
    }

    /// A process is gone: its numbers are of the past.
    pub(super) fn retire(&self, process: u64) {
        let mut state = self.lock();
        state.overdue.remove(&process);
        if let Some(last) = state.running.remove(&process) {
            add(&mut state.past, &last);
            state.past.connections = 0;
        }
    }

    pub(super) fn counts(&self) -> EgressCounts {
        let state = self.lock();
        let mut counts = state.past;
        state.running.values().for_each(|one| add(&mut counts, one));
        counts.overdue = state.overdue.len() as u64;
        counts
    }

    pub(super) fn node(&self) -> NodeAddresses {
        self.lock().node.clone()
    }

    /// Whether this is new.
    pub(super) fn set_node(&self, node: &NodeAddresses) -> bool {
        let mut state = self.lock();
        let is_new = state.node != *node;
        if is_new {
            state.node = node.clone();
        }
        is_new
    }

    pub(super) fn take_events(&self) -> mpsc::Receiver<Reported> {
        self.lock().events.take().unwrap_or_else(|| mpsc::channel(1).1)
    }

    pub(super) fn take_lost(&self) -> mpsc::UnboundedReceiver<Vec<InstanceId>> {
        self.lock().lost.take().unwrap_or_else(|| mpsc::unbounded_channel().1)
    }
}

fn add(sum: &mut EgressCounts, one: &ProcessCounts) {
    let ProcessCounts {
        connections,
        accepted,
        refused,
        failed,
        names_allowed,
        names_refused,
        sent,
        received,
        dropped_events,
        waits_of_sandbox,
        waits_of_key,
        waits_of_process,
    } = one;
    sum.connections += connections;
    sum.accepted += accepted;
    sum.refused += refused;
    sum.failed += failed;
    sum.names_allowed += names_allowed;
    sum.names_refused += names_refused;
    sum.sent += sent;
    sum.received += received;
    sum.dropped_events += dropped_events;
    sum.waits_of_sandbox += waits_of_sandbox;
    sum.waits_of_key += waits_of_key;
    sum.waits_of_process += waits_of_process;
}

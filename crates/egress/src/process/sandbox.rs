//! One sandbox on the way out: its policy, its names, its limits and its connections. It must never
//! judge by a policy that was replaced, and never keep a connection that the present one refuses.

use std::collections::BTreeMap;
use std::io;
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use model::{ConnectionCheck, InstanceId};
use tokio::net::{TcpStream, UdpSocket};
use tokio::sync::Semaphore;
use tokio::task::{AbortHandle, JoinSet};

use super::key_gate::{KeyGate, as_rate};
use super::{Shared, accept, bound, names};
use crate::boundary::BoundSecret;
use crate::control::{AttachMessage, Sockets};
use crate::event::{EVENTS_PER_SECOND, EgressEvent, EventKind, Verdict};
use crate::limits::{Bucket, EgressLimits};
use crate::policy::{Granted, Policy, Reach};
use crate::synthetic::Synthetic;
use crate::target::{Host, Target};

pub(super) struct Sandbox {
    pub id: InstanceId,
    pub shared: Arc<Shared>,
    pub limits: EgressLimits,
    pub secrets: Arc<[BoundSecret]>,
    pub names: Mutex<Synthetic>,
    /// One place per connection.
    pub places: Arc<Semaphore>,
    gate_of_key: Mutex<Option<Arc<KeyGate>>>,
    pub new_connections: Bucket,
    pub questions: Bucket,
    bandwidth: Option<Bucket>,
    moved: AtomicU64,
    events: Bucket,
    /// Nothing is reported any more.
    left: AtomicBool,
    policy: Mutex<Arc<Policy>>,
    live: Mutex<Live>,
    tasks: Mutex<JoinSet<()>>,
    sockets: Mutex<Option<Watched>>,
}

/// The sockets of a sandbox, as they are waited for.
type Watched = (Arc<TcpStream>, Option<Arc<UdpSocket>>);

#[derive(Default)]
struct Live {
    next: u64,
    connections: BTreeMap<u64, LiveOne>,
}

#[derive(Default)]
struct LiveOne {
    abort: Option<AbortHandle>,
    grant: Option<Grant>,
}

/// Connections have tasks that have tasks.
const TURNS_AFTER_THE_END: usize = 4;

/// By what a connection exists.
#[derive(Debug, Clone)]
pub(super) struct Grant {
    pub target: Target,
    /// The address it is connected to, once it is.
    pub address: Option<IpAddr>,
    /// How it is checked.
    pub check: Option<ConnectionCheck>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Sandbox {
    /// Begins to serve.
    pub(super) fn start(
        shared: &Arc<Shared>,
        message: AttachMessage,
        sockets: Sockets,
        gate_of_key: Option<Arc<KeyGate>>,
    ) -> io::Result<Arc<Self>> {
        let limits = message.limits;
        let bucket = |rate: u32, burst: u32| Bucket::new(rate.into(), burst.into());
        let bandwidth = limits.bytes_per_second.map(as_rate).map(Bucket::of_a_second);
        let connections = Arc::new(accept::watched(sockets.connections)?);
        let names = match sockets.names {
            Some(names) => {
                rustix::io::ioctl_fionbio(&names, true)?;
                Some(Arc::new(UdpSocket::from_std(names.into())?))
            }
            None => None,
        };
        let this = Arc::new(Self {
            id: message.sandbox,
            shared: shared.clone(),
            limits,
            secrets: message.secrets.into_iter().map(bound::prepared).collect(),
            names: Mutex::new(Synthetic::new(message.names_key)),
            places: Arc::new(Semaphore::new(limits.connections as usize)),
            gate_of_key: Mutex::new(gate_of_key),
            new_connections: Bucket::of_a_second(limits.new_connections_per_second.into()),
            questions: bucket(limits.questions_per_second, limits.questions_burst),
            bandwidth,
            moved: AtomicU64::new(0),
            events: bucket(EVENTS_PER_SECOND, EVENTS_PER_SECOND),
            left: AtomicBool::new(false),
            policy: Mutex::new(Arc::new(Policy::new(&message.policy))),
            live: Mutex::default(),
            tasks: Mutex::default(),
            sockets: Mutex::new(Some((connections.clone(), names.clone()))),
        });
        let accepting = accept::accept_all(this.clone(), connections);
        lock(&this.tasks).spawn(accepting);
        if let Some(names) = names {
            let answering = names::answer_all(this.clone(), names);
            lock(&this.tasks).spawn(answering);
        }
        Ok(this)
    }

    /// Ends everything. When it returns, only the sockets that it returns are open, and nothing more is
    /// reported.
    pub(super) async fn stop(&self) -> Option<Sockets> {
        let mut tasks = std::mem::take(&mut *lock(&self.tasks));
        tasks.shutdown().await;
        // What these tasks had started is dropped, and so reported, when it has its next turn.
        for _ in 0..TURNS_AFTER_THE_END {
            tokio::task::yield_now().await;
        }
        self.left.store(true, Relaxed);
        let (connections, names) = lock(&self.sockets).take()?;
        Some(Sockets {
            connections: Arc::into_inner(connections)?.into_std().ok()?.into(),
            names: match names.and_then(Arc::into_inner) {
                Some(names) => Some(names.into_std().ok()?.into()),
                None => None,
            },
        })
    }

    /// The policy of now.
    pub(super) fn policy(&self) -> Arc<Policy> {
        lock(&self.policy).clone()
    }

    /// What all sandboxes of its key share now.
    pub(super) fn gate_of_key(&self) -> Option<Arc<KeyGate>> {
        lock(&self.gate_of_key).clone()
    }

    /// Counts bytes that moved, and says how long to pause after them. An error means that it may move
    /// no more.
    pub(super) fn moved(&self, bytes: usize) -> io::Result<Duration> {
        let count = bytes as u64;
        let moved = self.moved.fetch_add(count, Relaxed).saturating_add(count);
        if self.limits.bytes.is_some_and(|most| moved > most) {
            return Err(io::Error::other("the sandbox has used up its bytes"));
        }
        let own = self.bandwidth.as_ref().map(|bucket| bucket.owe(as_rate(count)));
        let gate = self.gate_of_key();
        let of_key = gate.as_ref().and_then(|gate| gate.bandwidth.as_ref());
        let of_key = of_key.map(|bucket| bucket.owe(as_rate(count)));
        Ok(own.max(of_key).unwrap_or_default())
    }

    /// Replaces the policy, and whose connections these are. When it returns, what the policy refuses
    /// is closed.
    pub(super) async fn change(&self, policy: &Reach, gate_of_key: Option<Arc<KeyGate>>) {
        *lock(&self.policy) = Arc::new(Policy::new(policy));
        *lock(&self.gate_of_key) = gate_of_key;
        self.cut_what_is_refused().await;
    }

    pub(super) async fn cut_what_is_refused(&self) {
        let policy = self.policy();
        let mut cut = Vec::new();
        for (number, one) in &lock(&self.live).connections {
            if one.grant.as_ref().is_some_and(|grant| !self.still_grants(&policy, grant)) {
                one.abort.iter().for_each(AbortHandle::abort);
                cut.push(*number);
            }
        }
        // A task that was aborted is dropped when it has its next turn.
        for number in cut {
            while lock(&self.live).connections.contains_key(&number) {
                tokio::task::yield_now().await;
            }
        }
    }

    /// Whether a policy allows a connection, with no more checks than it had.
    pub(super) fn still_grants(&self, policy: &Policy, grant: &Grant) -> bool {
        let port = grant.target.port;
        self.shared.with_node(|node| {
            let granted = match &grant.target.host {
                Host::Name(name) => policy.grants_name(name, port).filter(|_| {
                    grant.address.is_none_or(|one| policy.admits_resolved(one, port, node))
                }),
                Host::Address(address) => policy.grants_address(*address, port, node),
            };
            granted.is_some_and(|granted| granted.check.is_none() || granted.check == grant.check)
        })
    }

    /// By which rule a target may be reached.
    pub(super) fn grants(&self, target: &Target) -> Option<Granted> {
        let policy = self.policy();
        match &target.host {
            Host::Name(name) => policy.grants_name(name, target.port),
            Host::Address(address) => {
                self.shared.with_node(|node| policy.grants_address(*address, target.port, node))
            }
        }
    }

    /// Runs a connection until it ends or is cut.
    pub(super) fn spawn<F>(self: &Arc<Self>, connection: impl FnOnce(u64) -> F)
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let mut live = lock(&self.live);
        live.next += 1;
        let number = live.next;
        live.connections.insert(number, LiveOne::default());
        drop(live);
        let mut tasks = lock(&self.tasks);
        while tasks.try_join_next().is_some() {}
        let abort = tasks.spawn(connection(number));
        drop(tasks);
        if let Some(one) = lock(&self.live).connections.get_mut(&number) {
            one.abort = Some(abort);
        }
    }

    pub(super) fn ended(&self, number: u64) {
        lock(&self.live).connections.remove(&number);
    }

    /// A connection exists by this from now on. False if the present policy refuses that already.
    pub(super) fn granted(&self, number: u64, grant: &Grant) -> bool {
        if let Some(one) = lock(&self.live).connections.get_mut(&number) {
            one.grant = Some(grant.clone());
        }
        self.still_grants(&self.policy(), grant)
    }

    /// Reports, unless there is too much to report.
    pub(super) fn report(&self, event: EgressEvent) {
        if self.left.load(Relaxed) {
            return;
        }
        let outbox = &self.shared.outbox;
        if event.kind == EventKind::Connection {
            match event.verdict {
                Verdict::Allowed | Verdict::Noted => {}
                Verdict::Refused => drop(outbox.refused.fetch_add(1, Relaxed)),
                Verdict::Failed => drop(outbox.failed.fetch_add(1, Relaxed)),
            }
        }
        if self.events.try_take() {
            outbox.put(event);
        } else {
            outbox.dropped.fetch_add(1, Relaxed);
        }
    }
}

//! The kernel behind its lock, and the one way in: [`Core::ask`] for requests that are answered,
//! [`Core::notify`] for events without an answer. Decisions are queued in order. Whatever a
//! decision journals is committed before any of its effects, answers or events goes out.

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use kernel::{Action, Effect, Event, Kernel, Notice, Reply};
use model::lifecycle::StoredEvent;
use model::record::JournalEntry;
use model::{DocumentChange, ErrorCode, Mono, Now, Refusal, RequestId, TurnChange, Wall};
use store::Store;
use tokio::sync::{Notify, Semaphore, oneshot, watch};
use tokio::task::AbortHandle;

use crate::answers::{Answer, DeliveredAnswer, Waiter, undelivered};
use crate::clock::Clock;
use crate::harnesses::Harnesses;
use crate::image_pins::ImagePins;
use crate::instance_ends::InstanceEnds;
use crate::journal_health::JournalHealth;
use crate::keep_alive_observers::Observers;
use crate::keys::Keyring;
use crate::lanes::Lanes;
use crate::metering::Metering;
use crate::metrics::Metrics;
use crate::mounts::Mounts;
use crate::named_documents::NamedDocuments;
use crate::network::Networks;
use crate::processes::{self, LogDirectory, Processes};
use crate::roots::Roots;
use crate::runtimes::Runtimes;
use crate::scale_file;
use crate::secrets::Secrets;
use crate::seed_archives::SeedHolders;
use crate::session_names::{NameChange, Names};
use crate::transitions::{NewTransitions, Transitions};
use crate::turns::{Live, TurnUpdates, Turns};
use crate::uploads::Uploads;
use crate::workspace_disk::Disk;

/// Imports at once: each takes two threads and the disk.
const IMPORTS_MAX: usize = 2;

/// State that every part of the engine shares.
pub(crate) struct Core {
    pub(crate) clock: Clock,
    pub(crate) store: Arc<dyn Store>,
    pub(crate) runtimes: Runtimes,
    pub(crate) roots: Roots,
    pub(crate) mounts: Mounts,
    /// What sandboxes may reach.
    pub(crate) networks: Networks,
    /// Images that templates still need.
    pub(crate) image_pins: ImagePins,
    /// One permit per import that may run at once.
    pub(crate) imports: Arc<Semaphore>,
    pub(crate) disk: Disk,
    /// Documents by name, and their locks.
    pub(crate) named_documents: NamedDocuments,
    /// Dialects that log what keeps sandboxes awake.
    pub(crate) observers: Observers,
    /// Large files that arrive in parts.
    pub(crate) uploads: Uploads,
    /// Requests that are about to name a seed archive.
    pub(crate) seed_holders: SeedHolders,
    pub(crate) scan_interval_ms: u64,
    pub(crate) metrics: Metrics,
    pub(crate) metering: Metering,
    pub(crate) keyring: Keyring,
    pub(crate) secrets: Secrets,
    pub(crate) journal_health: JournalHealth,
    /// Why the configured templates could not be put in place after a start without space on the
    /// disk.
    pub(crate) templates_failed: OnceLock<String>,
    /// The latest state transitions.
    pub(crate) transitions: Transitions,
    /// Uses and turns that wait for the end of their instance.
    pub(crate) instance_ends: InstanceEnds,
    /// Turns in progress.
    pub(crate) turns: Turns,
    pub(crate) harnesses: Harnesses,
    /// Programs that outlive the request that started them.
    pub(crate) processes: Processes,
    /// How many of them may run in one sandbox.
    pub(crate) max_processes: usize,
    pub(crate) shutdown_grace_ms: u64,
    /// Wakes the commit task.
    pub(crate) to_commit: Notify,
    /// Wakes the timer before its time.
    pub(crate) timer_early: Notify,
    /// When the timer wakes next by itself.
    timer_at: AtomicU64,
    /// The number of the last stored event.
    pub(crate) last_event: watch::Sender<u64>,
    /// True when nothing is left and the server may exit.
    pub(crate) stopped: watch::Sender<bool>,
    state: Mutex<State>,
    halted: AtomicBool,
    /// Tasks that run for as long as the engine lives.
    tasks: Mutex<Vec<AbortHandle>>,
    ids: AtomicU64,
    id_base: u64,
}

/// State behind the kernel's lock.
pub(crate) struct State {
    pub(crate) kernel: Kernel,
    pub(crate) lanes: Lanes,
    pub(crate) names: Names,
    /// Decisions that are not committed yet, in order.
    queue: VecDeque<Decision>,
    /// Some decisions were taken from the queue and are being committed.
    committing: bool,
    next_event: u64,
    waiting: BTreeMap<RequestId, Waiter>,
}

/// What the kernel decided on one event.
#[derive(Default)]
pub(crate) struct Decision {
    pub(crate) journal: Vec<JournalEntry>,
    pub(crate) events: Vec<StoredEvent>,
    pub(crate) turns: TurnUpdates,
    pub(crate) documents: Vec<DocumentChange>,
    effects: Vec<Effect>,
    notices: Vec<Notice>,
    transitions: NewTransitions,
    /// The answer that the kernel gave at once, and its receiver.
    reply: Option<(Waiter, Answer)>,
}

/// Written in the same transaction as the decision, if the kernel accepts the event.
pub(crate) enum Attached {
    Turn(Box<TurnChange>),
    Name(Box<NameChange>),
}

/// What [`Core`] is made of.
pub(crate) struct Parts {
    pub(crate) kernel: Kernel,
    pub(crate) names: Names,
    pub(crate) clock: Clock,
    pub(crate) store: Arc<dyn Store>,
    pub(crate) runtimes: Runtimes,
    pub(crate) roots: Roots,
    pub(crate) mounts: Mounts,
    pub(crate) networks: Networks,
    pub(crate) disk: Disk,
    pub(crate) scan_interval_ms: u64,
    pub(crate) keyring: Keyring,
    pub(crate) secrets: Secrets,
    pub(crate) metering: Metering,
    pub(crate) last_event: u64,
    pub(crate) process_logs: Option<Arc<LogDirectory>>,
    pub(crate) max_processes: usize,
    pub(crate) shutdown_grace_ms: u64,
    pub(crate) id_base: u64,
}

impl Core {
    pub(crate) fn new(parts: Parts) -> Self {
        let state = State {
            kernel: parts.kernel,
            lanes: Lanes::default(),
            names: parts.names,
            queue: VecDeque::new(),
            committing: false,
            next_event: parts.last_event + 1,
            waiting: BTreeMap::new(),
        };
        Self {
            clock: parts.clock,
            store: parts.store,
            runtimes: parts.runtimes,
            roots: parts.roots,
            mounts: parts.mounts,
            networks: parts.networks,
            image_pins: ImagePins::default(),
            imports: Arc::new(Semaphore::new(IMPORTS_MAX)),
            disk: parts.disk,
            named_documents: NamedDocuments::default(),
            observers: Observers::default(),
            uploads: Uploads::default(),
            seed_holders: SeedHolders::default(),
            scan_interval_ms: parts.scan_interval_ms,
            metrics: Metrics::default(),
            metering: parts.metering,
            keyring: parts.keyring,
            secrets: parts.secrets,
            journal_health: JournalHealth::default(),
            templates_failed: OnceLock::new(),
            transitions: Transitions::default(),
            instance_ends: InstanceEnds::default(),
            turns: Turns::default(),
            harnesses: Harnesses::default(),
            processes: Processes::new(parts.process_logs),
            max_processes: parts.max_processes,
            shutdown_grace_ms: parts.shutdown_grace_ms,
            to_commit: Notify::new(),
            timer_early: Notify::new(),
            timer_at: AtomicU64::new(0),
            last_event: watch::Sender::new(parts.last_event),
            stopped: watch::Sender::new(false),
            state: Mutex::new(state),
            halted: AtomicBool::new(false),
            tasks: Mutex::default(),
            ids: AtomicU64::new(1),
            id_base: parts.id_base,
        }
    }

    /// A panic in the middle of a decision leaves a kernel that must not be trusted. The journal is
    /// right, so the process aborts here and the next start recovers from the journal.
    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(|_| {
            abort("panic while the kernel lock was held: its state may be inconsistent")
        })
    }

    pub(crate) fn now(&self) -> Now {
        self.clock.now()
    }

    /// Runs a task for as long as the engine lives.
    pub(crate) fn keep_running(&self, task: impl Future<Output = ()> + Send + 'static) {
        let task = tokio::spawn(task);
        self.tasks.lock().unwrap_or_else(PoisonError::into_inner).push(task.abort_handle());
        tokio::spawn(async move {
            if task.await.is_err_and(|error| error.is_panic()) {
                abort("panic in a task that every decision needs");
            }
        });
    }

    /// Stops committing, the timer and the watch for deaths: nothing happens from now on.
    pub(crate) fn halt(&self) {
        for task in self.tasks.lock().unwrap_or_else(PoisonError::into_inner).drain(..) {
            task.abort();
        }
        self.halted.store(true, Ordering::SeqCst);
        self.journal_health.stopped();
    }

    /// Whether the engine has stopped.
    pub(crate) fn is_halted(&self) -> bool {
        self.halted.load(Ordering::Relaxed)
    }

    /// Waits until the engine has stopped.
    pub(crate) async fn until_halted(&self) {
        self.journal_health.until(|| self.is_halted()).await;
    }

    /// A number that no other request, use or run has.
    pub(crate) fn fresh_id(&self) -> u128 {
        let n = self.ids.fetch_add(1, Ordering::Relaxed);
        u128::from(self.id_base) << 64 | u128::from(n)
    }

    /// Reads from the kernel.
    pub(crate) fn read<T>(&self, look: impl FnOnce(&Kernel) -> T) -> T {
        look(&self.state().kernel)
    }

    /// Applies an event for which no caller waits.
    pub(crate) fn notify(self: &Arc<Self>, event: Event) {
        self.decide(event, None, None);
    }

    /// Lets the kernel decide, and answers `waiter`: at once, after the commit, or when the kernel
    /// has an answer. `attached` is committed with the decision, unless the kernel refuses.
    pub(crate) fn decide(
        self: &Arc<Self>,
        event: Event,
        waiter: Option<(RequestId, Waiter)>,
        mut attached: Option<Attached>,
    ) {
        let mut state = self.state();
        let mut todo = VecDeque::from([(event, waiter)]);
        while let Some((event, waiter)) = todo.pop_front() {
            let now = self.clock.now();
            let reply = state.kernel.apply(now, event);
            let attached = attached.take();
            if let (Err(_), Some(Attached::Turn(turn))) = (&reply, &attached)
                && let TurnChange::Put(refused) = &**turn
            {
                self.turns.forget(refused.id);
            }
            let attached = attached.filter(|_| reply.is_ok());
            let decision = state.take_decision(&self.turns, now.wall, reply, waiter, attached);
            let must_wait = decision.must_be_written() || state.is_behind();
            if must_wait {
                state.queue.push_back(decision);
                self.to_commit.notify_one();
            } else {
                let undelivered_events = self.carry_on(&mut state, decision);
                todo.extend(undelivered_events.into_iter().map(|event| (event, None)));
            }
        }
        self.wake_timer(&state);
    }

    /// Queues what the kernel decided while it was restored.
    pub(crate) fn take_first_decision(&self) {
        let mut state = self.state();
        let wall = self.clock.now().wall;
        let decision = state.take_decision(&self.turns, wall, Ok(Reply::Noted), None, None);
        state.queue.push_back(decision);
        self.to_commit.notify_one();
    }

    /// Takes the next decisions to commit.
    pub(crate) fn take_queued(&self, at_most: usize, bytes_max: usize) -> Vec<Decision> {
        let mut state = self.state();
        let mut bytes = 0;
        let fits = state.queue.iter().take(at_most).take_while(|decision| {
            let before = bytes;
            bytes += decision.bytes();
            before < bytes_max
        });
        let n = fits.count();
        state.committing = n > 0;
        state.queue.drain(..n).collect()
    }

    /// Carries out decisions that are committed.
    pub(crate) fn written(self: &Arc<Self>, decisions: Vec<Decision>) {
        let mut undelivered_events = Vec::new();
        {
            let mut state = self.state();
            for decision in decisions {
                undelivered_events.extend(self.carry_on(&mut state, decision));
            }
            state.committing = false;
        }
        for event in undelivered_events {
            self.notify(event);
        }
    }

    /// Starts the effects and sends the answers of a committed decision. Returns the events that
    /// follow from answers that no caller took.
    fn carry_on(self: &Arc<Self>, state: &mut State, decision: Decision) -> Vec<Event> {
        let mut undelivered_events = Vec::new();
        if let Some(live) = self.turns.show(&self.metrics, decision.turns) {
            self.queue_pieces(state, &live);
        }
        self.transitions.show(decision.transitions);
        if let Some((waiter, answer)) = decision.reply {
            undelivered_events.extend(waiter.give(answer, &self.instance_ends));
        }
        for notice in decision.notices {
            match notice {
                Notice::Answer { request, result } => match state.waiting.remove(&request) {
                    Some(waiter) => {
                        undelivered_events.extend(waiter.give(result, &self.instance_ends));
                    }
                    None => undelivered_events.extend(undelivered(result)),
                },
                Notice::InstanceEnded { instance, cause } => {
                    self.instance_ends.report(instance, cause);
                }
                Notice::ProcessRestartScheduled { sandbox, process, exit_code, attempt, of } => {
                    processes::pauses(self, sandbox, process, exit_code, (attempt, of));
                }
                Notice::ProcessOver { sandbox, process, end, keeps_alive } => {
                    processes::end_process(self, sandbox, process, end, keeps_alive);
                }
                Notice::KeepAliveCountChanged { instance, processes, seen } => {
                    scale_file::show(self, instance, processes, seen);
                }
                Notice::ShutdownComplete => {
                    self.stopped.send_replace(true);
                }
            }
        }
        for effect in decision.effects {
            if let Action::StartTurn { instance, turn, .. } = &effect.action {
                self.turns.enters(*turn, self.instance_ends.watch(*instance));
            }
            state.lanes.add(self, effect);
        }
        undelivered_events
    }

    /// Has the pieces of a turn stored with the next commit.
    pub(crate) fn save_pieces(&self, live: &Arc<Live>) {
        self.queue_pieces(&mut self.state(), live);
    }

    fn queue_pieces(&self, state: &mut State, live: &Arc<Live>) {
        if let Some(turns) = TurnUpdates::unsaved(live) {
            state.queue.push_back(Decision { turns, ..Decision::default() });
            self.to_commit.notify_one();
        }
    }

    /// Commits documents after all earlier decisions, and answers when they are committed. Does
    /// nothing if a name has changed with its session since `seen` was read.
    pub(crate) fn queue_documents(
        &self,
        documents: Vec<DocumentChange>,
        seen: Option<u64>,
    ) -> Option<oneshot::Receiver<DeliveredAnswer>> {
        let (waiter, receiver) = Waiter::new();
        let mut state = self.state();
        if seen.is_some_and(|seen| seen != state.names.followed()) {
            return None;
        }
        let reply = Some((waiter, Ok(Reply::Noted)));
        state.queue.push_back(Decision { documents, reply, ..Decision::default() });
        self.to_commit.notify_one();
        Some(receiver)
    }

    /// The caller no longer waits for its answer. True if there was none yet.
    pub(crate) fn forget_waiter(&self, request: RequestId) -> bool {
        self.state().waiting.remove(&request).is_some()
    }

    /// Requests are refused while the journal cannot be written.
    pub(crate) fn refuse_if_journal_fails(&self) -> Result<(), Refusal> {
        if self.is_halted() {
            let cause = "the server has stopped";
            return Err(Refusal::new(ErrorCode::ShuttingDown, cause).retry_after(5_000));
        }
        self.journal_health.failure().map_or(Ok(()), |cause| Err(unavailable(&cause)))
    }

    /// When the timer must wake; the timer announces it before it sleeps.
    pub(crate) fn timer_sleeps_until(&self) -> Mono {
        let state = self.state();
        let at = state.kernel.next_wake().unwrap_or(Mono::NEVER);
        // Under the lock, so that every later decision sees until when the timer sleeps.
        self.timer_at.store(at.0, Ordering::SeqCst);
        drop(state);
        at
    }

    fn wake_timer(&self, state: &State) {
        let wanted = state.kernel.next_wake().unwrap_or(Mono::NEVER);
        if wanted.0 < self.timer_at.load(Ordering::SeqCst) {
            self.timer_at.store(wanted.0, Ordering::SeqCst);
            self.timer_early.notify_one();
        }
    }
}

/// Ends the process at once, as `kill -9` would: every start recovers from that.
fn abort(why: &str) -> ! {
    tracing::error!(why, "the server aborts; restart it to recover from the journal");
    std::process::abort()
}

pub(crate) fn unavailable(cause: &str) -> Refusal {
    Refusal::new(ErrorCode::StoreUnavailable, cause.to_owned()).retry_after(1_000)
}

impl State {
    fn take_decision(
        &mut self,
        known: &Turns,
        at: Wall,
        reply: Answer,
        waiter: Option<(RequestId, Waiter)>,
        attached: Option<Attached>,
    ) -> Decision {
        let out = self.kernel.outbox();
        let journal = std::mem::take(&mut out.journal);
        let published = std::mem::take(&mut out.published);
        let effects = std::mem::take(&mut out.effects);
        let notices = std::mem::take(&mut out.notices);
        let mut events = Vec::with_capacity(published.len());
        let mut turns = TurnUpdates::default();
        let mut documents = Vec::new();
        match attached {
            Some(Attached::Turn(turn)) => turns.add_requested(*turn),
            // A session that had ended before the event is not changed by it.
            Some(Attached::Name(name)) if matches!(reply, Ok(Reply::Pending)) => {
                self.names.begin(*name, &mut documents);
            }
            Some(Attached::Name(_)) | None => {}
        }
        self.names.follow(&journal, &mut documents);
        for index in 0..published.len() {
            known.apply(&mut turns, at, &published[index..], &self.kernel);
        }
        for one in published {
            let number = self.next_event;
            self.next_event += 1;
            events.push(StoredEvent { number, at, tenant: one.tenant, event: one.event });
        }
        let mut transitions = NewTransitions::default();
        // Drained, so that the kernel keeps the allocation: almost every use has transitions.
        for one in self.kernel.outbox().transitions.drain(..) {
            transitions.add(self.next_event - 1, at, one);
        }
        let reply = match (waiter, reply) {
            (None, _) => None,
            (Some((request, waiter)), Ok(Reply::Pending)) => {
                self.waiting.insert(request, waiter);
                None
            }
            (Some((_, waiter)), reply) => Some((waiter, reply)),
        };
        Decision { journal, events, turns, documents, effects, notices, transitions, reply }
    }

    /// Earlier decisions are not carried out yet.
    fn is_behind(&self) -> bool {
        self.committing || !self.queue.is_empty()
    }

    /// How many decisions wait for a commit.
    pub(crate) fn backlog(&self) -> usize {
        self.queue.len()
    }
}

impl Decision {
    fn must_be_written(&self) -> bool {
        !self.journal.is_empty()
            || !self.events.is_empty()
            || !self.turns.changes.is_empty()
            || !self.documents.is_empty()
    }

    /// How many bytes turns and documents add.
    fn bytes(&self) -> usize {
        self.turns.bytes + self.documents.iter().map(DocumentChange::bytes).sum::<usize>()
    }
}

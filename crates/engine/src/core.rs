//! The kernel behind its lock, and the one way in: [`Core::ask`] for requests that are answered,
//! [`Core::tell`] for news. What the kernel decides is queued in the order of its decisions; what
//! is to be written down is committed before anything of it is done or said.

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

use crate::answers::{Answer, Given, Waiter, nobody_took};
use crate::clock::Clock;
use crate::harnesses::Harnesses;
use crate::image_pins::Needed;
use crate::instance_ends::Gone;
use crate::journal_health::Trouble;
use crate::keep_alive_observers::Observers;
use crate::keys::Keyring;
use crate::lanes::Lanes;
use crate::metrics::Metrics;
use crate::mounts::Mounts;
use crate::named_documents::Named;
use crate::processes::{self, Processes, Shelf};
use crate::roots::Roots;
use crate::runtimes::Runtimes;
use crate::scale_file;
use crate::seed_archives::Sowing;
use crate::session_names::{NameChange, Names};
use crate::transitions::{Changed, States};
use crate::turns::{Live, TurnNews, Turns};
use crate::uploads::Uploads;
use crate::workspace_disk::Disk;

/// Imports at once: each takes two threads and the disk.
const IMPORTS_MAX: usize = 2;

/// What everything of an engine shares.
pub(crate) struct Core {
    pub(crate) clock: Clock,
    pub(crate) store: Arc<dyn Store>,
    pub(crate) runtimes: Runtimes,
    pub(crate) roots: Roots,
    pub(crate) mounts: Mounts,
    /// Images that templates need.
    pub(crate) needed: Needed,
    /// As many imports as may go on at once.
    pub(crate) imports: Arc<Semaphore>,
    pub(crate) disk: Disk,
    /// What is kept under names.
    pub(crate) named: Named,
    /// Who hears what keeps sandboxes awake.
    pub(crate) observers: Observers,
    /// Large files that come in parts.
    pub(crate) uploads: Uploads,
    /// Who holds which seeds.
    pub(crate) sowing: Sowing,
    pub(crate) scan_interval_ms: u64,
    pub(crate) metrics: Metrics,
    pub(crate) keyring: Keyring,
    pub(crate) trouble: Trouble,
    /// Why what is configured could not be put in place after a start without space on the disk.
    pub(crate) not_begun: OnceLock<String>,
    /// The last changes of states.
    pub(crate) states: States,
    /// What is in which instance, to hear that it is over.
    pub(crate) gone: Gone,
    /// Turns in progress.
    pub(crate) turns: Turns,
    pub(crate) harnesses: Harnesses,
    /// Programs that outlive the request that started them.
    pub(crate) processes: Processes,
    /// How many of them may run in one sandbox.
    pub(crate) max_processes: usize,
    pub(crate) shutdown_grace_ms: u64,
    /// There is something to commit.
    pub(crate) to_commit: Notify,
    /// The timer must look again.
    pub(crate) timer_early: Notify,
    /// When the timer wakes by itself.
    timer_at: AtomicU64,
    /// The number of the last event that is stored.
    pub(crate) last_event: watch::Sender<u64>,
    /// Nothing is left, and the server may exit.
    pub(crate) stopped: watch::Sender<bool>,
    state: Mutex<State>,
    halted: AtomicBool,
    /// What runs for as long as the engine lives.
    tasks: Mutex<Vec<AbortHandle>>,
    ids: AtomicU64,
    id_base: u64,
}

/// What is behind the lock.
pub(crate) struct State {
    pub(crate) kernel: Kernel,
    pub(crate) lanes: Lanes,
    pub(crate) names: Names,
    /// Decisions that are not written down yet, in order.
    queue: VecDeque<Decision>,
    /// Some that were taken out of the queue are being written down.
    committing: bool,
    next_event: u64,
    waiting: BTreeMap<RequestId, Waiter>,
}

/// What the kernel decided upon one event.
#[derive(Default)]
pub(crate) struct Decision {
    pub(crate) journal: Vec<JournalEntry>,
    pub(crate) events: Vec<StoredEvent>,
    pub(crate) turns: TurnNews,
    pub(crate) documents: Vec<DocumentChange>,
    effects: Vec<Effect>,
    notices: Vec<Notice>,
    states: Changed,
    /// Who gets the answer that the kernel gave at once.
    reply: Option<(Waiter, Answer)>,
}

/// What is written with a decision besides what the kernel says, if the kernel accepts the event.
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
    pub(crate) disk: Disk,
    pub(crate) scan_interval_ms: u64,
    pub(crate) keyring: Keyring,
    pub(crate) last_event: u64,
    pub(crate) process_logs: Option<Arc<Shelf>>,
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
            needed: Needed::default(),
            imports: Arc::new(Semaphore::new(IMPORTS_MAX)),
            disk: parts.disk,
            named: Named::default(),
            observers: Observers::default(),
            uploads: Uploads::default(),
            sowing: Sowing::default(),
            scan_interval_ms: parts.scan_interval_ms,
            metrics: Metrics::default(),
            keyring: parts.keyring,
            trouble: Trouble::default(),
            not_begun: OnceLock::new(),
            states: States::default(),
            gone: Gone::default(),
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

    /// A mistake in the middle of a decision leaves a kernel that nobody may trust. What is written
    /// down is right, so the process ends here, and the next start goes on from there.
    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        self.state
            .lock()
            .unwrap_or_else(|_| give_up("the kernel was left in the middle of a decision"))
    }

    pub(crate) fn now(&self) -> Now {
        self.clock.now()
    }

    /// Runs something for as long as the engine lives.
    pub(crate) fn keep_running(&self, task: impl Future<Output = ()> + Send + 'static) {
        let task = tokio::spawn(task);
        self.tasks.lock().unwrap_or_else(PoisonError::into_inner).push(task.abort_handle());
        tokio::spawn(async move {
            if task.await.is_err_and(|error| error.is_panic()) {
                give_up("a part that every decision needs ended by a mistake");
            }
        });
    }

    /// Stops committing, keeping time and hearing of deaths: nothing happens from now on.
    pub(crate) fn halt(&self) {
        for task in self.tasks.lock().unwrap_or_else(PoisonError::into_inner).drain(..) {
            task.abort();
        }
        self.halted.store(true, Ordering::SeqCst);
        self.trouble.stops();
    }

    /// Whether nothing happens any more.
    pub(crate) fn is_halted(&self) -> bool {
        self.halted.load(Ordering::Relaxed)
    }

    /// Waits until nothing happens any more.
    pub(crate) async fn until_halted(&self) {
        self.trouble.until(|| self.is_halted()).await;
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

    /// News, of which nobody waits for an answer.
    pub(crate) fn tell(self: &Arc<Self>, event: Event) {
        self.decide(event, None, None);
    }

    /// Lets the kernel decide, and gives the answer to `waiter`: at once, when the decision is
    /// written down, or when the kernel has one. What is attached is written with the decision, unless
    /// the kernel refuses.
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
                let untaken = self.carry_on(&mut state, decision);
                todo.extend(untaken.into_iter().map(|event| (event, None)));
            }
        }
        self.wake_timer(&state);
    }

    /// What the kernel left to be done when it was made.
    pub(crate) fn take_first_decision(&self) {
        let mut state = self.state();
        let wall = self.clock.now().wall;
        let decision = state.take_decision(&self.turns, wall, Ok(Reply::Noted), None, None);
        state.queue.push_back(decision);
        self.to_commit.notify_one();
    }

    /// Some of the decisions that are to be written down next.
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

    /// These decisions are written down: does and says what follows from them.
    pub(crate) fn written(self: &Arc<Self>, decisions: Vec<Decision>) {
        let mut untaken = Vec::new();
        {
            let mut state = self.state();
            for decision in decisions {
                untaken.extend(self.carry_on(&mut state, decision));
            }
            state.committing = false;
        }
        for event in untaken {
            self.tell(event);
        }
    }

    /// Starts the effects and gives the answers of a decision that is written down. Gives back
    /// what must be told because nobody took an answer.
    fn carry_on(self: &Arc<Self>, state: &mut State, decision: Decision) -> Vec<Event> {
        let mut untaken = Vec::new();
        if let Some(live) = self.turns.tell(&self.metrics, decision.turns) {
            self.queue_pieces(state, &live);
        }
        self.states.show(decision.states);
        if let Some((waiter, answer)) = decision.reply {
            untaken.extend(waiter.give(answer, &self.gone));
        }
        for notice in decision.notices {
            match notice {
                Notice::Answer { request, result } => match state.waiting.remove(&request) {
                    Some(waiter) => untaken.extend(waiter.give(result, &self.gone)),
                    None => untaken.extend(nobody_took(result)),
                },
                Notice::InstanceOver { instance, cause } => self.gone.over(instance, cause),
                Notice::ProcessRests { sandbox, process, exit_code, attempt, of } => {
                    processes::rests(self, sandbox, process, exit_code, (attempt, of));
                }
                Notice::ProcessOver { sandbox, process, end, keeps_alive } => {
                    processes::over(self, sandbox, process, end, keeps_alive);
                }
                Notice::HoldsChanged { instance, processes, seen } => {
                    scale_file::show(self, instance, processes, seen);
                }
                Notice::ShutdownComplete => {
                    self.stopped.send_replace(true);
                }
            }
        }
        for effect in decision.effects {
            if let Action::StartTurn { instance, turn, .. } = &effect.action {
                self.turns.enters(*turn, self.gone.enter(*instance));
            }
            state.lanes.add(self, effect);
        }
        untaken
    }

    /// Has the pieces of a turn stored, together with whatever else is written then.
    pub(crate) fn save_pieces(&self, live: &Arc<Live>) {
        self.queue_pieces(&mut self.state(), live);
    }

    fn queue_pieces(&self, state: &mut State, live: &Arc<Live>) {
        if let Some(turns) = TurnNews::unsaved(live) {
            state.queue.push_back(Decision { turns, ..Decision::default() });
            self.to_commit.notify_one();
        }
    }

    /// Writes documents after all that was decided before, and answers when they are written; nothing
    /// if a name has changed with its session since `seen` was read.
    pub(crate) fn queue_documents(
        &self,
        documents: Vec<DocumentChange>,
        seen: Option<u64>,
    ) -> Option<oneshot::Receiver<Given>> {
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

    /// Nobody waits for the answer to a request any more. True if there was none yet.
    pub(crate) fn forget_waiter(&self, request: RequestId) -> bool {
        self.state().waiting.remove(&request).is_some()
    }

    /// Requests are refused while nothing can be written down.
    pub(crate) fn refuse_in_trouble(&self) -> Result<(), Refusal> {
        if self.is_halted() {
            let cause = "the server has stopped";
            return Err(Refusal::new(ErrorCode::ShuttingDown, cause).retry_after(5_000));
        }
        self.trouble.now().map_or(Ok(()), |cause| Err(unavailable(&cause)))
    }

    /// The moment at which the timer is to wake; it says so before it sleeps.
    pub(crate) fn timer_sleeps_until(&self) -> Mono {
        let state = self.state();
        let at = state.kernel.next_wake().unwrap_or(Mono::NEVER);
        // Under the lock: whoever decides afterwards sees until when the timer sleeps.
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

/// Ends the process at once, as `kill -9` would: every start is made for that.
fn give_up(why: &str) -> ! {
    tracing::error!(why, "the server ends at once; start it again");
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
        let mut turns = TurnNews::default();
        let mut documents = Vec::new();
        match attached {
            Some(Attached::Turn(turn)) => turns.asked(*turn),
            // What was over before the event was is not changed by it.
            Some(Attached::Name(name)) if matches!(reply, Ok(Reply::Pending)) => {
                self.names.begin(*name, &mut documents);
            }
            Some(Attached::Name(_)) | None => {}
        }
        self.names.follow(&journal, &mut documents);
        for one in published {
            known.hear(&mut turns, at, &one.event, &self.kernel);
            let number = self.next_event;
            self.next_event += 1;
            events.push(StoredEvent { number, at, tenant: one.tenant, event: one.event });
        }
        let mut states = Changed::default();
        // Drained, so that the kernel keeps the room: almost every use has changes.
        for one in self.kernel.outbox().transitions.drain(..) {
            states.add(self.next_event - 1, at, one);
        }
        let reply = match (waiter, reply) {
            (None, _) => None,
            (Some((request, waiter)), Ok(Reply::Pending)) => {
                self.waiting.insert(request, waiter);
                None
            }
            (Some((_, waiter)), reply) => Some((waiter, reply)),
        };
        Decision { journal, events, turns, documents, effects, notices, states, reply }
    }

    /// Decisions before this one are not carried out yet.
    fn is_behind(&self) -> bool {
        self.committing || !self.queue.is_empty()
    }

    /// How many decisions wait to be written down.
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

    /// What turns and documents say.
    fn bytes(&self) -> usize {
        self.turns.bytes + self.documents.iter().map(DocumentChange::bytes).sum::<usize>()
    }
}

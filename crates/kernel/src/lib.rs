//! Every lifecycle decision of Shoal, as a pure state machine.
//!
//! [`Kernel::apply`] takes an event and the time at which it happened, changes the state in memory,
//! and leaves in the [`Outbox`] what the interpreter must store, do and answer. It never reads a
//! clock, rolls dice, does I/O or depends on the order of a hash map: the same events give the same
//! decisions. The kernel in memory is the authority, and the store is its journal.
//!
//! One module decides one thing and is named for it. The module that an event belongs to handles
//! it. The reconcilers find everything else that follows (waiters to serve, pools to refill,
//! sandboxes to evict) by looking at the state, not at the event.

mod abort;
mod admission;
mod alarms;
mod archive_queue;
mod audit;
mod checkout;
mod cold_workspaces;
mod control;
mod counts;
mod deadline;
mod deletion;
mod disk_limits;
pub mod effect;
mod effect_completion;
mod entries;
mod entry;
pub mod event;
mod eviction;
mod explain;
mod fair_queue;
mod flag;
mod flaw;
mod flaws;
mod fork;
mod freeze;
mod handout;
mod harness_access;
mod idle_policy;
mod index;
mod journal;
mod keep_alive;
mod keys;
mod launch;
mod lease;
mod lru_lists;
mod metering;
mod minter;
mod network;
mod pause;
mod pending_removals;
mod pool;
mod pool_life;
mod pool_lookup;
mod pools;
mod probe;
mod process_life;
mod process_reads;
mod process_restart;
mod process_time;
mod quiesce;
mod reconcile_queue;
mod recovery;
mod recycle;
mod refill;
mod removal;
pub mod reply;
mod request;
mod requests;
mod restart_policy;
mod retention;
mod save;
mod session;
mod session_binding;
mod session_life;
mod session_list;
mod session_waiters;
mod sessions;
mod settle;
mod shares;
mod shelved_sessions;
mod shutdown;
mod slab;
mod state_loss;
mod termination;
mod tiers;
mod timers;
mod tombstones;
mod transitions;
mod turn;
mod turn_clients;
mod turn_end;
mod uses;
pub mod view;
mod waiters;
mod workspace_readers;

#[cfg(test)]
mod tests;

use model::record::JournalEntry;
use model::{KeyId, LifecycleEvent, Mono, NodeConfig, Now, Refusal};

use crate::admission::Admission;
use crate::alarms::Alarms;
use crate::archive_queue::ArchiveQueue;
use crate::counts::Counts;
pub use crate::disk_limits::SoftWorkspace;
pub use crate::effect::{Action, Effect, Launch, Notice};
use crate::entries::Entries;
pub use crate::entry::TRANSITIONS_PER_SECOND_MAX;
pub use crate::event::{
    Checkout, CheckoutPolicy, DeadlineChange, DeathCause, Event, Failure, FailureKind, Measured,
    Outcome, SessionSettings, StartedProcess, UseKind, UseTarget, WhenBusy,
};
pub use crate::flaw::Flaw;
use crate::flaws::Flaws;
use crate::journal::Marks;
use crate::keys::Keys;
use crate::metering::Meters;
pub use crate::metering::{KeyTime, StoredFiles};
use crate::minter::Minter;
use crate::pending_removals::PendingRemovals;
use crate::pools::Pools;
use crate::reconcile_queue::ReconcileQueue;
pub use crate::recovery::Recovery;
pub use crate::removal::interrupted_use_refusal;
pub use crate::reply::{
    CheckedOut, CheckoutPath, FreezeStatus, Grant, KeepAliveProcess, KeepAliveReport, Loss, Reply,
    SessionReady,
};
use crate::requests::Requests;
pub use crate::restart_policy::{
    EndRequest, ProgramEnd, ProgramExit, RESTART_PAUSE_MS, describe_sandbox_end,
};
pub use crate::session_list::SessionFilter;
use crate::sessions::Sessions;
use crate::shutdown::Shutdown;
use crate::tiers::Tiers;
use crate::tombstones::Tombstones;
use crate::transitions::ChangedStates;
pub use crate::transitions::Transition;
pub use crate::view::{KeepAliveCounts, NetworkView, NextBinding, SandboxView, SessionView};
use crate::workspace_readers::WorkspaceReaders;

/// What a kernel starts from.
#[derive(Debug, Clone)]
pub struct Boot {
    config: NodeConfig,
    seed: u64,
    now: Now,
    flaw: Option<Flaw>,
}

impl Boot {
    /// A start with a configuration, a random seed that was never used before, and the time.
    pub const fn new(config: NodeConfig, seed: u64, now: Now) -> Self {
        Self { config, seed, now, flaw: None }
    }

    /// A start of a kernel that is broken on purpose.
    #[cfg(feature = "flaws")]
    #[must_use]
    pub const fn with_flaw(mut self, flaw: Option<Flaw>) -> Self {
        self.flaw = flaw;
        self
    }
}

/// What the interpreter must do for a decision. The journal and the published events are one
/// transaction; only when it is durable may the effects begin and the notices be delivered.
#[derive(Debug, Default)]
pub struct Outbox {
    /// To store.
    pub journal: Vec<JournalEntry>,
    /// To publish, in order.
    pub published: Vec<Published>,
    /// To carry out.
    pub effects: Vec<Effect>,
    /// To deliver to callers.
    pub notices: Vec<Notice>,
    /// Transitions for event streams; they are never stored.
    pub transitions: Vec<Transition>,
}

/// An event, and the key that may see it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Published {
    /// The key that its subject belongs to; nil if that has no owner.
    pub tenant: KeyId,
    /// The event.
    pub event: LifecycleEvent,
}

impl Outbox {
    /// Whether there is nothing to do.
    pub fn is_empty(&self) -> bool {
        self.journal.is_empty()
            && self.published.is_empty()
            && self.effects.is_empty()
            && self.notices.is_empty()
            && self.transitions.is_empty()
    }

    /// Empties it and keeps its capacity.
    pub fn clear(&mut self) {
        self.journal.clear();
        self.published.clear();
        self.effects.clear();
        self.notices.clear();
        self.transitions.clear();
    }
}

/// The state machine. Each part owns one kind of facts and their indexes; decisions that need
/// several parts are in `impl Kernel` blocks, one module each.
#[derive(Debug)]
pub struct Kernel {
    config: NodeConfig,
    now: Now,
    minter: Minter,
    flaws: Flaws,
    out: Outbox,
    alarms: Alarms,

    entries: Entries,
    sessions: Sessions,
    pools: Pools,
    requests: Requests,
    tombstones: Tombstones,

    keys: Keys,
    meters: Meters,
    admission: Admission,
    tiers: Tiers,
    counts: Counts,
    pending_removals: PendingRemovals,
    archives: ArchiveQueue,
    readers: WorkspaceReaders,
    /// The disk of the workspaces has less free space than configured.
    disk_short: bool,
    shutdown: Option<Shutdown>,

    marks: Marks,
    changed_states: ChangedStates,
    due: ReconcileQueue,
}

impl Kernel {
    /// A kernel without any state.
    pub fn new(boot: Boot) -> Self {
        let remembered = boot.config.remembered_ends as usize;
        Self {
            config: boot.config,
            now: boot.now,
            minter: Minter::new(boot.seed),
            flaws: Flaws::new(boot.flaw),
            out: Outbox::default(),
            alarms: Alarms::new(boot.now),
            entries: Entries::default(),
            sessions: Sessions::default(),
            pools: Pools::default(),
            requests: Requests::default(),
            tombstones: Tombstones::new(remembered),
            keys: Keys::default(),
            meters: Meters::default(),
            admission: Admission::default(),
            tiers: Tiers::default(),
            counts: Counts::default(),
            pending_removals: PendingRemovals::default(),
            archives: ArchiveQueue::default(),
            readers: WorkspaceReaders::default(),
            disk_short: false,
            shutdown: None,
            marks: Marks::default(),
            changed_states: ChangedStates::default(),
            due: ReconcileQueue::default(),
        }
    }

    /// Handles an event and decides what follows from it.
    pub fn apply(&mut self, now: Now, event: Event) -> Result<Reply, Refusal> {
        self.advance_clock(now);
        // A repeated request that still waits is the same request.
        let asked = event.request();
        if asked.is_some_and(|request| self.requests.by_id(request).is_some()) {
            return Ok(Reply::Pending);
        }
        let reply = self.handle(event);
        self.reconcile_all();
        self.flush_journal();
        self.publish_transitions();
        reply
    }

    /// What the interpreter must store, do and answer. It empties the outbox after each event.
    pub const fn outbox(&mut self) -> &mut Outbox {
        &mut self.out
    }

    /// When the kernel needs the next [`Event::Ticked`].
    pub fn next_wake(&self) -> Option<Mono> {
        self.alarms.next()
    }

    /// The kernel may refuse requests; it accepts all other events.
    fn handle(&mut self, event: Event) -> Result<Reply, Refusal> {
        match event {
            Event::TemplatePut { template, traits } => return self.template_put(template, traits),
            Event::PoolResized { template, pool_size, max_overflow } => {
                return self.pool_resized(&template, pool_size, max_overflow);
            }
            Event::PoolDrained { template } => return self.pool_drained(&template),
            Event::PoolResumed { template } => return self.pool_resumed(&template),
            Event::PoolDestroyed { request, template, force } => {
                return self.pool_destroyed(request, &template, force);
            }
            Event::CheckoutRequested(checkout) => return self.checkout(checkout),
            Event::LeaseReturned { lease } => return self.lease_returned(lease),
            Event::LeaseRenewed { lease, ttl_ms } => return self.lease_renewed(lease, ttl_ms),
            Event::UseRequested { request, target, use_id, kind, wait_ms } => {
                return self.use_requested(request, target, use_id, kind, wait_ms);
            }
            Event::ProcessStarted(started) => return self.process_started(started),
            Event::ProcessEndRequested { instance, process, asked } => {
                return self.process_end_asked(instance, process, asked);
            }
            Event::StopRequested { sandbox, after_ms } => {
                return self.stop_requested(sandbox, after_ms);
            }
            Event::FreezeRequested { request, sandbox } => {
                return self.freeze_requested(request, sandbox);
            }
            Event::ThawRequested { request, sandbox } => {
                return self.thaw_requested(request, sandbox);
            }
            Event::DeleteRequested { request, sandbox } => {
                return self.delete_requested(request, sandbox);
            }
            Event::SessionCreated { request, session, template, settings, wait_ms } => {
                return self.session_created(request, session, template, settings, wait_ms);
            }
            Event::TurnRequested { request, session, turn, when_busy, wait_ms } => {
                return self.turn_requested(request, session, turn, when_busy, wait_ms);
            }
            Event::AbortRequested { request, session, keep_sandbox } => {
                return self.abort_requested(request, session, keep_sandbox);
            }
            Event::PauseRequested { request, session } => {
                return self.pause_requested(request, session);
            }
            Event::ResumeRequested { request, session, wait_ms } => {
                return self.resume_requested(request, session, wait_ms);
            }
            Event::NetworkChanged { target, network } => {
                return self.network_changed(target, network);
            }
            Event::SessionChanged { session, labels, config, deadline } => {
                return self.session_changed(session, labels, config, deadline);
            }
            Event::SessionStopRequested { request, session } => {
                return self.session_stop_requested(request, session);
            }
            Event::SessionEndRequested { request, session } => {
                return self.session_end_requested(request, session);
            }
            Event::ForkRequested { request, parent, session } => {
                return self.fork_requested(request, parent, session);
            }
            Event::ReadRequested { request, workspace } => {
                return Ok(self.read_requested(request, workspace));
            }
            Event::ReadEnded { request, needs_guest } => self.read_ended(request, needs_guest),
            Event::ProcessesRead { sandbox } => self.processes_read(sandbox),
            Event::KeyLimitsSet { key, limits } => self.key_limits_set(key, limits),
            Event::UseEnded { use_id } => self.use_ended(use_id),
            Event::ProgramEnded { instance, process, how } => {
                self.program_ended(instance, process, how);
            }
            Event::ScaleWritten { instance, seq, scale, drops } => {
                self.scale_written(instance, seq, scale, drops);
            }
            Event::TurnWithdrawn { session, turn } => self.turn_withdrawn(session, turn),
            Event::TurnEnded { session, turn, outcome } => self.turn_ended(session, turn, outcome),
            Event::ClientGone { request } => self.client_gone(request),
            Event::InstanceDied { instance, cause, detail } => {
                self.instance_died(instance, cause, detail);
            }
            Event::GuestLost { instance } => self.guest_lost(instance),
            Event::WorkspaceMeasured { instance, measured } => {
                self.workspace_measured(instance, measured);
            }
            Event::DiskMeasured { free_bytes } => self.disk_measured(free_bytes),
            Event::FilesMeasured { workspace, bytes } => self.files_measured(workspace, bytes),
            Event::LossReported { session, generation } => {
                self.loss_reported(session, generation);
            }
            Event::EffectEnded { id, outcome } => self.effect_ended(id, outcome),
            Event::Ticked => self.ticked(),
            Event::ShutdownBegan { grace_ms } => self.shutdown_began(grace_ms),
        }
        Ok(Reply::Noted)
    }

    /// Publishes an event to one key, or to none.
    pub(crate) fn publish(&mut self, tenant: KeyId, event: LifecycleEvent) {
        self.out.published.push(Published { tenant, event });
    }
}

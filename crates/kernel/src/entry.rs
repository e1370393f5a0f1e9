//! One sandbox as the kernel knows it, live or cold, and what follows from its facts: the state a
//! user sees, the eviction tier it stands in, what it counts for. Facts are stored; what follows
//! from them is computed here and nowhere else.

use std::collections::BTreeMap;
use std::sync::Arc;

use model::record::{Owner, SandboxRecord};
use model::template::RuntimeTraits;
use model::why::{Eviction, Tier};
use model::{
    ClaimSettings, EndCause, Generation, InstanceId, KeyId, LeaseId, Mono, Now, ProcessId,
    SandboxId, SandboxState, Template, UseId, Wall, WorkspaceId,
};

use crate::event::UseKind;
use crate::orders::{Line, Links};
use crate::pool::PoolIx;
use crate::request::RequestIx;
use crate::session::SessionIx;
use crate::slab::Place;

/// The place of a sandbox.
pub(crate) type EntryIx = Place<Entry>;

/// A sandbox.
#[derive(Debug)]
pub(crate) struct Entry {
    pub(crate) id: SandboxId,
    pub(crate) previous_id: Option<SandboxId>,
    /// What was launched and is not confirmed as removed; nil if nothing.
    pub(crate) instance: InstanceId,
    pub(crate) generation: Generation,
    pub(crate) owner: Own,
    /// The key that its owner belongs to; nil while it is nobody's.
    pub(crate) tenant: KeyId,
    /// How its lease ended, while it is still known as that lease's.
    pub(crate) lease_end: Option<EndCause>,
    pub(crate) phase: Phase,
    /// The pool whose slot it takes. A session's sandbox takes none.
    pub(crate) slot: Option<PoolIx>,
    /// Whether it counts as a process: from before its launch until its removal is confirmed.
    pub(crate) live: bool,
    /// The one thing that is being done to it.
    pub(crate) op: Option<Op>,
    /// Its files are being made durable, which does not get in the way of anything else.
    pub(crate) saving: Option<Op>,
    /// A turn is being started or stopped in it.
    pub(crate) turn_op: Option<Op>,
    pub(crate) ending: Option<Box<Ending>>,
    pub(crate) frozen: Frozen,
    /// It stands among the idle ones of its pool.
    pub(crate) in_line: bool,
    /// Someone is about to use it: it may not be frozen, swept or evicted.
    pub(crate) pinned: bool,
    /// Someone is about to run a command in it.
    pub(crate) exec_wanted: bool,
    /// A turn of its session is bound to it.
    pub(crate) turn: bool,
    /// It was used since it was last claimed or bound.
    pub(crate) used: bool,
    /// A user's code or settings have been in it since it was last known to be clean.
    pub(crate) touched: bool,
    /// Settings of a user may still be bound to it, whatever a wipe says: whoever gets it next
    /// binds theirs, if only none.
    pub(crate) bound: bool,
    /// Files may have changed since they were last made durable.
    pub(crate) dirty: bool,
    /// A use that may write began, or was in progress, since the last save began.
    pub(crate) wrote: bool,
    /// A use ended since the last save began: its caller has its answer, and that save may not
    /// hold what it wrote.
    pub(crate) acknowledged: bool,
    /// Its removal is to be announced: it has been ready in this generation.
    pub(crate) announced: bool,
    /// Its launch failed, and someone who waits is told when it is gone.
    pub(crate) failed: bool,
    /// Its record has changed in this decision.
    pub(crate) marked: bool,
    pub(crate) execs: u32,
    pub(crate) calls: u32,
    pub(crate) uses: u32,
    pub(crate) copies: u32,
    /// Its files could not be saved lately, so it is no victim until then.
    pub(crate) spared_until: Mono,
    pub(crate) last_used: Now,
    pub(crate) proven_at: Mono,
    pub(crate) expires_at: Option<Wall>,
    pub(crate) hard_expires_at: Option<Wall>,
    pub(crate) created_at: Wall,
    pub(crate) alarm: Mono,
    pub(crate) template: Arc<Template>,
    pub(crate) traits: RuntimeTraits,
    pub(crate) settings: Option<Arc<ClaimSettings>>,
    pub(crate) workspace: WorkspaceId,
    /// Its workspace was made, so there is something to restore.
    pub(crate) has_files: bool,
    /// Its workspace is in an archive.
    pub(crate) archived: bool,
    /// What its files took when they were measured while it was cold.
    pub(crate) kept_bytes: Option<u64>,
    /// It is not put into one before this.
    pub(crate) archive_at: Mono,
    /// It waits until fewer are put into one.
    pub(crate) archive_waits: bool,
    pub(crate) copying_from: Option<WorkspaceId>,
    /// The instance that gives those files out, if it takes one.
    pub(crate) copying_live: Option<InstanceId>,
    /// The sandbox whose files are being copied may not be given up meanwhile.
    pub(crate) holds_source: bool,
    pub(crate) slept: Option<EndCause>,
    /// What its workspace took on disk when it was last measured.
    pub(crate) disk_bytes: u64,
    /// How often in a row some of it could not be measured.
    pub(crate) disk_hidden: u8,
    /// What few sandboxes have.
    pub(crate) extra: Option<Box<Extra>>,
    pub(crate) derived: Derived,
    idle_links: Links,
    tier_links: Links,
}

/// Who has the exclusive use of a sandbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Own {
    Nobody,
    Lease(LeaseId),
    Session(SessionIx),
}

/// What a sandbox is doing, in more detail than its state shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Phase {
    /// No process.
    Cold,
    /// Being started.
    Launching,
    /// In its pool, ready to be handed out.
    Idle,
    /// Being bound to a lease (with the request that waits for it) or a session.
    Claiming(Option<RequestIx>),
    /// A lease's or a session's.
    InUse,
    /// Being wiped after a use.
    Wiping,
    /// Being proven clean after a wipe.
    Proving,
    /// Being removed, until that is confirmed.
    Killing,
}

/// An effect in progress.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Op {
    pub(crate) n: u64,
    pub(crate) kind: OpKind,
    pub(crate) deadline: Mono,
}

/// What is in progress.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum OpKind {
    Launch,
    Claim,
    /// With the number of the attempt.
    Probe(u32),
    Wipe,
    Prove,
    Freeze,
    Thaw,
    StartTurn,
    StopTurn,
    Persist,
    Kill,
    Copy,
    Archive,
}

/// Whether its processes run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Frozen {
    No,
    Yes,
    /// A freeze went wrong: it must be thawed before use, to be sure.
    Unsure,
}

/// The way to its end.
#[derive(Debug, Clone)]
pub(crate) struct Ending {
    pub(crate) cause: EndCause,
    pub(crate) detail: Option<Arc<str>>,
    pub(crate) eviction: Option<Arc<Eviction>>,
    pub(crate) after: After,
    /// What happens if a use comes in between, or if the files cannot be saved.
    pub(crate) resolve: Resolve,
    /// The removal in progress takes the workspace along.
    pub(crate) takes_workspace: bool,
    /// Saves that worked, while something went on writing.
    pub(crate) saves: u32,
    pub(crate) attempts: u32,
    pub(crate) retry_at: Mono,
}

impl Ending {
    /// An end at once that leaves nothing.
    pub(crate) const fn now(cause: EndCause) -> Self {
        Self {
            cause,
            detail: None,
            eviction: None,
            after: After::Gone,
            resolve: Resolve::Now,
            takes_workspace: false,
            saves: 0,
            attempts: 0,
            retry_at: Mono::NEVER,
        }
    }
}

/// What is left when the process is gone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum After {
    /// Nothing: record and workspace go.
    Gone,
    /// A cold record with the workspace.
    Cold,
    /// The same under a new id, because this one died.
    Renamed,
    /// No record: the files stay with the session.
    Shelved,
}

/// How firm the decision to end it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Resolve {
    /// Void as soon as someone uses it; its files come first.
    Voidable,
    /// Its user wants it, but its files come first.
    Careful,
    /// It must end: its files are saved if that works within a few attempts.
    Firm,
    /// At once.
    Now,
}

/// What few sandboxes have.
#[derive(Debug, Default)]
pub(crate) struct Extra {
    /// Uses in progress.
    pub(crate) uses: Vec<(UseId, UseKind)>,
    /// Requests that wait for it to be thawed, frozen or gone.
    pub(crate) waiting: Vec<RequestIx>,
    pub(crate) processes: BTreeMap<ProcessId, Process>,
    /// What programs wrote to the scale file.
    pub(crate) scale: u32,
    /// The last note about the scale file.
    pub(crate) scale_seen: u64,
    pub(crate) stop: Option<ScheduledStop>,
    /// Since when the time of its processes stands still, if it does.
    pub(crate) still_since: Option<Mono>,
}

/// A process that keeps its sandbox awake, or did, or has a time limit.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Process {
    pub(crate) holds: bool,
    pub(crate) started_at: Wall,
    pub(crate) timeout_ms: u64,
    pub(crate) kill_at: Mono,
    /// It is being killed by this effect, until then.
    pub(crate) killing: Option<(u64, Mono)>,
    pub(crate) kills: u32,
}

/// A stop that was asked for ahead of time.
#[derive(Debug, Clone)]
pub(crate) struct ScheduledStop {
    pub(crate) at: Mono,
    pub(crate) at_wall: Wall,
    /// The processes that existed when it was asked for.
    pub(crate) processes: Vec<ProcessId>,
}

/// What follows from the facts, as it is counted at the moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Derived {
    pub(crate) state: SandboxState,
    pub(crate) tier: Option<Tier>,
    pub(crate) dying_live: bool,
    pub(crate) dying_entry: bool,
}

/// What a new entry starts from.
pub(crate) struct Birth {
    pub(crate) id: SandboxId,
    pub(crate) workspace: WorkspaceId,
    pub(crate) template: Arc<Template>,
    pub(crate) traits: RuntimeTraits,
    pub(crate) owner: Own,
    pub(crate) tenant: KeyId,
    pub(crate) slot: Option<PoolIx>,
    pub(crate) now: Now,
}

impl Entry {
    /// A cold entry, the start of every life.
    pub(crate) fn new(birth: Birth) -> Self {
        Self {
            id: birth.id,
            previous_id: None,
            instance: InstanceId::NIL,
            generation: Generation(0),
            owner: birth.owner,
            tenant: birth.tenant,
            lease_end: None,
            phase: Phase::Cold,
            slot: birth.slot,
            live: false,
            op: None,
            saving: None,
            turn_op: None,
            ending: None,
            frozen: Frozen::No,
            in_line: false,
            pinned: false,
            exec_wanted: false,
            turn: false,
            used: false,
            touched: false,
            bound: false,
            dirty: false,
            wrote: false,
            acknowledged: false,
            announced: false,
            failed: false,
            marked: false,
            execs: 0,
            calls: 0,
            uses: 0,
            copies: 0,
            spared_until: Mono(0),
            last_used: birth.now,
            proven_at: Mono(0),
            expires_at: None,
            hard_expires_at: None,
            created_at: birth.now.wall,
            alarm: Mono::NEVER,
            template: birth.template,
            traits: birth.traits,
            settings: None,
            workspace: birth.workspace,
            has_files: false,
            archived: false,
            kept_bytes: None,
            archive_at: Mono(0),
            archive_waits: false,
            copying_from: None,
            copying_live: None,
            holds_source: false,
            slept: None,
            disk_bytes: 0,
            disk_hidden: 0,
            extra: None,
            derived: Derived::NOTHING,
            idle_links: Links::default(),
            tier_links: Links::default(),
        }
    }

    /// The state a user sees.
    pub(crate) fn state(&self) -> SandboxState {
        match self.phase {
            Phase::Cold => SandboxState::Cold,
            Phase::Launching => SandboxState::Warming,
            Phase::Wiping | Phase::Proving => SandboxState::Waiting,
            Phase::Killing => match self.derived.state {
                SandboxState::Cold => SandboxState::Warming,
                state @ (SandboxState::Warming
                | SandboxState::Warm
                | SandboxState::Waiting
                | SandboxState::Running) => state,
            },
            Phase::InUse if self.turn || self.execs > 0 || self.exec_wanted => {
                SandboxState::Running
            }
            Phase::InUse if self.used => SandboxState::Waiting,
            Phase::InUse | Phase::Idle | Phase::Claiming(_) => SandboxState::Warm,
        }
    }

    /// The tier in which it may be chosen to give way.
    pub(crate) fn tier(&self, now: Mono) -> Option<Tier> {
        if self.ending.is_some() || self.pinned || self.copies > 0 {
            return None;
        }
        match self.phase {
            Phase::Cold => (self.op.is_none() || self.is_archiving()).then_some(Tier::Cold),
            Phase::Idle => Some(Tier::Warm),
            Phase::InUse => {
                let session = matches!(self.owner, Own::Session(_));
                (session && self.is_quiet() && !self.is_awake() && self.spared_until <= now)
                    .then_some(Tier::Waiting)
            }
            Phase::Launching
            | Phase::Claiming(_)
            | Phase::Wiping
            | Phase::Proving
            | Phase::Killing => None,
        }
    }

    pub(crate) fn derive(&self, now: Mono) -> Derived {
        Derived {
            state: self.state(),
            tier: self.tier(now),
            dying_live: self.live && self.ending.is_some(),
            dying_entry: self
                .ending
                .as_ref()
                .is_some_and(|e| matches!(e.after, After::Gone | After::Shelved)),
        }
    }

    /// Nothing is in progress in it.
    pub(crate) fn is_quiet(&self) -> bool {
        !self.turn && self.execs == 0 && self.calls == 0
    }

    /// Its files are being put into an archive, which anything else calls off.
    pub(crate) fn is_archiving(&self) -> bool {
        self.op.is_some_and(|op| op.kind == OpKind::Archive)
    }

    /// Its files are being saved by way of its guest, which must not be stopped meanwhile.
    pub(crate) fn is_saving_inside(&self) -> bool {
        self.saving.is_some() && !self.traits.workspace_survives
    }

    /// It has files of a session that go when its processes go, and are not saved.
    pub(crate) fn has_unsaved_files(&self) -> bool {
        let owned = matches!(self.owner, Own::Session(_));
        owned && self.dirty && !self.traits.workspace_survives
    }

    /// Nothing is in progress in it, and nobody is about to use it.
    pub(crate) fn may_rest(&self) -> bool {
        self.is_quiet() && !self.pinned
    }

    /// Something of its own keeps it awake.
    pub(crate) fn is_awake(&self) -> bool {
        self.extra
            .as_ref()
            .is_some_and(|extra| extra.scale > 0 || extra.processes.values().any(|p| p.holds))
    }

    /// Until when a process whose time is over may be on its way out: it must be able to run.
    pub(crate) fn kills_until(&self) -> Option<Mono> {
        let processes = self.extra.iter().flat_map(|extra| extra.processes.values());
        processes.filter_map(|process| process.killing).map(|(_, until)| until).max()
    }

    pub(crate) fn uses_in_progress(&self) -> u32 {
        self.execs + self.calls + u32::from(self.turn)
    }

    pub(crate) fn memory_mb(&self) -> u64 {
        self.template.limits.memory_mb.into()
    }

    /// How many requests wait for it.
    pub(crate) fn waiting(&self) -> usize {
        self.extra.as_ref().map_or(0, |extra| extra.waiting.len())
    }

    pub(crate) fn extra(&mut self) -> &mut Extra {
        self.extra.get_or_insert_default()
    }

    /// It is nobody's, and no key's either.
    pub(crate) const fn disown(&mut self) {
        self.owner = Own::Nobody;
        self.tenant = KeyId::NIL;
        self.lease_end = None;
    }

    /// Whether it has more than `margin_ms` left to live.
    pub(crate) fn outlives(&self, now: Wall, margin_ms: u64) -> bool {
        self.expires_at.is_none_or(|end| end > now.plus(margin_ms))
    }

    pub(crate) const fn links(&mut self, line: Line) -> &mut Links {
        match line {
            Line::Idle => &mut self.idle_links,
            Line::Tier => &mut self.tier_links,
        }
    }

    pub(crate) const fn links_ref(&self, line: Line) -> &Links {
        match line {
            Line::Idle => &self.idle_links,
            Line::Tier => &self.tier_links,
        }
    }

    /// The durable part of it. `owner` is its owner by id.
    pub(crate) fn record(&self, owner: Owner) -> SandboxRecord {
        SandboxRecord {
            id: self.id,
            previous_id: self.previous_id,
            instance: (self.instance != InstanceId::NIL).then_some(self.instance),
            generation: self.generation,
            template: self.template.name.clone(),
            traits: self.traits,
            owner,
            tenant: self.tenant,
            lease_end: self.lease_end,
            state: self.derived.state,
            ending: self.ending.as_ref().map(|ending| ending.cause),
            doomed: self.ending.as_ref().is_some_and(|ending| ending.after == After::Gone),
            slept: self.slept,
            announced: self.announced,
            uses: self.uses,
            dirty: self.dirty,
            workspace: self.workspace,
            has_files: self.has_files,
            archived: self.archived,
            copying_from: self.copying_from,
            created_at: self.created_at,
            last_used_at: self.last_used.wall,
            expires_at: self.expires_at,
        }
    }
}

impl Derived {
    /// Of an entry that is not counted yet.
    pub(crate) const NOTHING: Self =
        Self { state: SandboxState::Cold, tier: None, dying_live: false, dying_entry: false };
}

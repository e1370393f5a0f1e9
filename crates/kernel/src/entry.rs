//! One sandbox as the kernel knows it, live or cold. An entry stores facts only; `derived` computes
//! what follows from them. Facts that belong together are one type in a module beneath this one,
//! and that type keeps them consistent.

mod cleanliness;
mod cold_files;
mod derived;
mod disk_use;
mod durability;
mod file_access;
mod holds;
mod lifetime;
mod operations;
mod ownership;
mod phase;
mod process;
mod rare_state;
mod readiness;
mod termination;
mod visible_state;
mod workspace_copy;

use std::sync::Arc;

use model::record::{Owner, SandboxRecord};
use model::template::RuntimeTraits;
use model::{
    ClaimSettings, EndCause, Generation, InstanceId, KeyId, Mono, Now, SandboxId, Template, Wall,
    WorkspaceId,
};

use crate::entry::cleanliness::Cleanliness;
pub(crate) use crate::entry::cold_files::ColdFiles;
pub(crate) use crate::entry::derived::Derived;
use crate::entry::disk_use::DiskUse;
pub(crate) use crate::entry::durability::Durability;
use crate::entry::file_access::FileAccess;
pub(crate) use crate::entry::file_access::Reach;
pub(crate) use crate::entry::holds::Demand;
use crate::entry::holds::Holds;
use crate::entry::lifetime::Lifetime;
use crate::entry::operations::Operations;
pub(crate) use crate::entry::operations::{Lane, Op, OpKind};
pub(crate) use crate::entry::ownership::{EntryOwner, Ownership};
pub(crate) use crate::entry::phase::{Frozen, Phase, Step};
pub(crate) use crate::entry::process::{Process, Program};
pub(crate) use crate::entry::rare_state::{RareState, ScheduledStop};
pub(crate) use crate::entry::readiness::Readiness;
pub(crate) use crate::entry::termination::{AfterEnd, Firmness, Termination};
pub use crate::entry::visible_state::TRANSITIONS_PER_SECOND_MAX;
pub(crate) use crate::entry::visible_state::{Publish, VisibleChange, VisibleState};
pub(crate) use crate::entry::workspace_copy::WorkspaceCopy;
use crate::flag::Flag;
use crate::lru_lists::{LinkSet, Links};
use crate::pool::PoolIx;
use crate::session::SessionIx;
use crate::slab::SlabIndex;

/// The index of a sandbox.
pub(crate) type EntryIx = SlabIndex<Entry>;

/// A sandbox.
#[derive(Debug)]
pub(crate) struct Entry {
    pub(crate) id: SandboxId,
    pub(crate) previous_id: Option<SandboxId>,
    /// The launched instance until its removal is confirmed; nil if there is none.
    pub(crate) instance: InstanceId,
    pub(crate) generation: Generation,
    pub(crate) template: Arc<Template>,
    pub(crate) traits: RuntimeTraits,
    pub(crate) workspace: WorkspaceId,
    pub(crate) created_at: Wall,
    /// The pool whose slot it takes. The sandbox of a session takes none.
    pub(crate) slot: Option<PoolIx>,
    pub(crate) ownership: Ownership,
    pub(crate) settings: Option<Arc<ClaimSettings>>,
    /// How often it was handed out since it was launched.
    pub(crate) uses: u32,

    phase: Phase,
    pub(crate) frozen: Frozen,
    pub(crate) ready: Readiness,
    pub(crate) ops: Operations,
    pub(crate) holds: Holds,
    pub(crate) clean: Cleanliness,
    pub(crate) life: Lifetime,
    pub(crate) termination: Option<Box<Termination>>,
    /// Its present user was notified that the instance ended.
    pub(crate) end_notified: bool,
    /// Why it is cold, while it is cold.
    pub(crate) slept: Option<EndCause>,

    pub(crate) files: Durability,
    pub(crate) file_access: FileAccess,
    pub(crate) cold: ColdFiles,
    pub(crate) copying: Option<WorkspaceCopy>,
    pub(crate) disk: DiskUse,

    pub(crate) last_used: Now,
    /// When it last answered or was proven alive.
    pub(crate) proven_at: Mono,
    /// A save failed lately: it cannot be evicted before this.
    pub(crate) spared_until: Mono,
    pub(crate) alarm: Mono,
    /// Rarely used state, boxed to keep `Entry` small.
    pub(crate) rare: Option<Box<RareState>>,
    pub(crate) derived: Derived,
    /// Its record changed in this decision.
    pub(crate) marked: Flag,
    /// The state that users saw last.
    pub(crate) visible: VisibleState,
    /// Its state changed in this decision.
    pub(crate) state_changed: Flag,

    /// Whether it takes a place: from before its launch until its removal is confirmed.
    live: bool,
    /// It is in the idle list of its pool.
    in_line: Flag,
    idle_links: Links,
    tier_links: Links,
}

/// The parts of a new entry.
pub(crate) struct NewEntry {
    pub(crate) id: SandboxId,
    pub(crate) workspace: WorkspaceId,
    pub(crate) template: Arc<Template>,
    pub(crate) traits: RuntimeTraits,
    pub(crate) owner: EntryOwner,
    pub(crate) tenant: KeyId,
    pub(crate) slot: Option<PoolIx>,
    pub(crate) now: Now,
}

impl Entry {
    /// A cold entry: every sandbox starts cold.
    pub(crate) fn new(new: NewEntry) -> Self {
        Self {
            id: new.id,
            previous_id: None,
            instance: InstanceId::NIL,
            generation: Generation(0),
            template: new.template,
            traits: new.traits,
            workspace: new.workspace,
            created_at: new.now.wall,
            slot: new.slot,
            ownership: Ownership::new(new.owner, new.tenant),
            settings: None,
            uses: 0,
            phase: Phase::Cold,
            frozen: Frozen::No,
            ready: Readiness::default(),
            ops: Operations::default(),
            holds: Holds::default(),
            clean: Cleanliness::default(),
            life: Lifetime::default(),
            termination: None,
            end_notified: false,
            slept: None,
            files: Durability::default(),
            file_access: FileAccess::default(),
            cold: ColdFiles::new(false),
            copying: None,
            disk: DiskUse::default(),
            last_used: new.now,
            proven_at: Mono(0),
            spared_until: Mono(0),
            alarm: Mono::NEVER,
            rare: None,
            derived: Derived::NOTHING,
            marked: Flag::default(),
            visible: VisibleState::default(),
            state_changed: Flag::default(),
            live: false,
            in_line: Flag::default(),
            idle_links: Links::default(),
            tier_links: Links::default(),
        }
    }

    /// It has no activity.
    pub(crate) fn is_quiet(&self) -> bool {
        self.holds.is_quiet()
    }

    /// Its files are being archived. Any other operation cancels that.
    pub(crate) fn is_archiving(&self) -> bool {
        self.ops.is_doing(OpKind::Archive)
    }

    /// Who can reach its files while it lives.
    pub(crate) fn reach(&self) -> Reach {
        self.file_access.reach(self.traits)
    }

    /// Its guest is saving or copying its files and must not be stopped meanwhile.
    pub(crate) fn is_read_inside(&self) -> bool {
        let (copied, saved) = (self.holds.is_copied(), self.ops.is_saving());
        // Usually neither.
        (copied || saved)
            && match self.reach() {
                Reach::Host => false,
                Reach::GuestReads => copied,
                Reach::GuestOnly => true,
            }
    }

    /// Its processes run, and nothing is stopping them.
    pub(crate) fn runs(&self) -> bool {
        self.frozen == Frozen::No && !self.ops.is_freezing_or_thawing()
    }

    /// It has unsaved files of a session that would be lost with its processes.
    pub(crate) fn has_unsaved_files(&self) -> bool {
        self.session().is_some() && self.has_volatile_files()
    }

    /// It has unsaved files that would be lost with its processes.
    pub(crate) fn has_volatile_files(&self) -> bool {
        self.files.is_dirty() && !self.traits.workspace_survives
    }

    /// It has no activity, and no caller is about to use it.
    pub(crate) fn is_inactive(&self) -> bool {
        self.is_quiet() && !self.holds.is_wanted()
    }

    /// It may be frozen now.
    pub(crate) fn may_freeze(&self) -> bool {
        self.may_freeze_soon() && self.ops.is_free() && !self.is_read_inside()
    }

    /// It may be frozen once the operation on it or its files has ended.
    pub(crate) fn may_freeze_soon(&self) -> bool {
        self.phase == Phase::InUse
            && self.traits.can_freeze
            && self.frozen == Frozen::No
            && self.termination.is_none()
            && self.is_inactive()
            && !self.is_kept_alive()
    }

    /// A process or the scale file keeps it alive.
    pub(crate) fn is_kept_alive(&self) -> bool {
        self.rare
            .as_ref()
            .is_some_and(|rare| rare.scale > 0 || rare.processes.values().any(|p| p.keeps_alive))
    }

    /// Until when a process whose time has expired may still be ending: the sandbox must run for
    /// that.
    pub(crate) fn kills_until(&self) -> Option<Mono> {
        let processes = self.rare.iter().flat_map(|rare| rare.processes.values());
        processes.filter_map(|process| process.killing).map(|(_, until)| until).max()
    }

    /// A program of one of its processes is due for a restart.
    pub(crate) fn wants_restart(&self, now: Mono) -> bool {
        let mut processes = self.rare.iter().flat_map(|rare| rare.processes.values());
        processes.any(|process| process.wants_restart(now))
    }

    pub(crate) fn memory_mb(&self) -> u64 {
        self.template.limits.memory_mb.into()
    }

    /// How many requests wait for it.
    pub(crate) fn waiting(&self) -> usize {
        self.rare.as_ref().map_or(0, |rare| rare.waiting.len())
    }

    pub(crate) fn rare_mut(&mut self) -> &mut RareState {
        self.rare.get_or_insert_default()
    }

    pub(crate) const fn owner(&self) -> EntryOwner {
        self.ownership.owner()
    }

    /// The session that owns it.
    pub(crate) const fn session(&self) -> Option<SessionIx> {
        self.ownership.session()
    }

    pub(crate) const fn tenant(&self) -> KeyId {
        self.ownership.tenant()
    }

    /// Why it ends, if it is ending.
    pub(crate) fn end_cause(&self) -> EndCause {
        self.termination.as_ref().map_or(EndCause::Deleted, |termination| termination.cause)
    }

    /// It is being evicted or swept, but a use now would void that.
    pub(crate) fn may_be_spared(&self) -> bool {
        let voidable = |termination: &Termination| termination.firmness == Firmness::Voidable;
        self.phase == Phase::InUse && self.termination.as_deref().is_some_and(voidable)
    }

    /// An instance is being launched for it, in a new generation and with a new lifetime.
    pub(crate) fn launch_began(&mut self, now: Now) {
        self.generation = self.generation.next();
        self.take(Step::Launch);
        self.slept = None;
        self.end_notified = false;
        self.uses = 0;
        self.cold.in_use();
        self.disk = DiskUse::default();
        self.spared_until = Mono(0);
        self.last_used = now;
        self.life = Lifetime::began(now.wall, self.template.max_lifetime_ms);
    }

    /// Its lease or session uses it from now on.
    pub(crate) fn came_into_use(&mut self, step: Step) {
        self.take(step);
        if self.holds.is_wanted_to_run() {
            self.clean.wanted();
        }
    }

    /// It takes a place from now on.
    pub(crate) fn place_reserved(&mut self) {
        debug_assert!(!self.live, "a place is reserved once");
        self.live = true;
    }

    /// It takes no place from now on.
    pub(crate) fn place_released(&mut self) {
        debug_assert!(self.live, "a place is given back once");
        self.live = false;
    }

    /// Whether it takes a place.
    pub(crate) const fn is_live(&self) -> bool {
        self.live
    }

    /// Its instance is gone, and everything that depended on it.
    pub(crate) fn process_gone(&mut self) {
        self.ops.cancel();
        self.holds.finish_turn();
        self.clean.process_gone();
        self.frozen = Frozen::No;
        self.file_access = FileAccess::default();
        self.life = Lifetime::default();
    }

    /// Only its record and its files are left.
    pub(crate) fn went_cold(&mut self, cause: EndCause) {
        self.take(Step::Sleep);
        self.slept = Some(cause);
        self.rare = None;
        self.settings = None;
        self.clean.went_cold();
        self.files.settled();
    }

    /// It is clean and alive and joins the idle list of its pool. Nothing of its last user is kept.
    pub(crate) fn join_line(&mut self, now: Now) {
        self.in_line.raise();
        self.ownership.returned_to_pool();
        self.clean.cleaned();
        self.files.settled();
        self.settings = None;
        self.rare = None;
        self.last_used = now;
    }

    /// It leaves the idle list of its pool. Returns whether it was in it.
    pub(crate) const fn leave_line(&mut self) -> bool {
        self.in_line.lower()
    }

    pub(crate) const fn links(&mut self, set: LinkSet) -> &mut Links {
        match set {
            LinkSet::Idle => &mut self.idle_links,
            LinkSet::Tier => &mut self.tier_links,
        }
    }

    pub(crate) const fn links_ref(&self, set: LinkSet) -> &Links {
        match set {
            LinkSet::Idle => &self.idle_links,
            LinkSet::Tier => &self.tier_links,
        }
    }

    /// Its record in the journal. `owner` is its owner by id.
    pub(crate) fn record(&self, owner: Owner) -> SandboxRecord {
        SandboxRecord {
            id: self.id,
            previous_id: self.previous_id,
            instance: (self.instance != InstanceId::NIL).then_some(self.instance),
            generation: self.generation,
            template: self.template.name.clone(),
            traits: self.traits,
            owner,
            tenant: self.tenant(),
            lease_end: self.ownership.lease_end(),
            state: self.derived.state,
            ending: self.termination.as_ref().map(|termination| termination.cause),
            doomed: self
                .termination
                .as_ref()
                .is_some_and(|termination| termination.after == AfterEnd::Gone),
            slept: self.slept,
            announced: self.ready == Readiness::Ready,
            uses: self.uses,
            dirty: self.files.is_dirty(),
            workspace: self.workspace,
            has_files: self.files.has_files(),
            archived: self.cold.is_archived(),
            copying_from: self.copying.map(|copying| copying.from),
            created_at: self.created_at,
            last_used_at: self.last_used.wall,
            expires_at: self.life.expires_at(),
        }
    }
}

//! Starting from the journal. Every instance that may still exist is removed, sandboxes of sessions
//! become cold and keep their files, leases are lost and report that, and sessions are paused until
//! their next message. A crash, an orderly stop and a first start take the same path.

use std::sync::Arc;

use model::lifecycle::TurnOutcome;
use model::record::{Journal, Owner, PoolRecord, SandboxRecord, SessionRecord};
use model::why::Ended;
use model::{EndCause, InstanceId, Mono, Now, SessionStatus};

use crate::entry::{
    AfterEnd, ColdFiles, Durability, Entry, EntryIx, EntryOwner, Firmness, NewEntry, Ownership,
    Readiness, Step, Termination, WorkspaceCopy,
};
use crate::event::SessionSettings;
use crate::pool::Pool;
use crate::session::Session;
use crate::shelved_sessions::ShelvedFiles;
use crate::tombstones::{LeaseTombstone, SessionTombstone};
use crate::{Boot, Kernel};

/// What a restart found.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Recovery {
    /// Sandboxes that were live and become cold when their removal is confirmed.
    pub marked_cold: u32,
    /// Sandboxes that were idle in a pool or leased, and end.
    pub ended: u32,
    /// Instances that no record names.
    pub orphans: u32,
}

impl Kernel {
    /// A kernel restored from its journal and from the instances that runtimes report.
    pub fn restore(boot: Boot, journal: Journal, alive: &[InstanceId]) -> (Self, Recovery) {
        let mut kernel = Self::new(boot);
        let mut recovery = Recovery::default();
        for ended in &journal.ended {
            kernel.tombstones.remember_sandbox(ended);
            if let Some(lease) = ended.lease {
                let cause = ended.lease_end.unwrap_or(ended.cause);
                kernel
                    .tombstones
                    .remember_lease(lease, LeaseTombstone { cause, tenant: ended.tenant });
            }
        }
        for record in journal.pools {
            kernel.restore_pool(record);
        }
        for record in journal.sessions {
            kernel.restore_session(record);
        }
        let mut records = journal.sandboxes;
        // The least recently used comes first, so that the eviction order stays the same.
        records.sort_by_key(|record| (record.last_used_at, record.id));
        let mut goes = Vec::new();
        for record in records {
            goes.extend(kernel.restore_sandbox(&record, &mut recovery));
        }
        kernel.remember_sessions(&journal.ended);
        kernel.hold_copy_sources();
        for (entry, cause) in goes {
            kernel.continue_removal(entry, cause);
        }
        for workspace in journal.doomed_workspaces {
            kernel.restore_workspace_deletion(workspace);
        }
        for &instance in alive {
            if kernel.entries.by_instance(instance).is_none() {
                recovery.orphans += 1;
                kernel.remove_orphan(instance);
            }
        }
        for session in kernel.sessions.indices() {
            kernel.arm_deadline(session);
        }
        kernel.reconcile_all();
        kernel.flush_journal();
        kernel.accept_restored_states();
        (kernel, recovery)
    }

    /// Sessions that have tombstones of sandboxes but no record have ended.
    fn remember_sessions(&mut self, ended: &[Ended]) {
        for (session, end) in ended.iter().filter_map(|end| Some((end.session?, end))) {
            if self.sessions.by_id(session).is_none() {
                let at_deadline = end.cause == EndCause::DeadlineReached;
                let end = SessionTombstone { tenant: end.tenant, at_deadline };
                self.tombstones.remember_session(session, end);
            }
        }
    }

    /// Sources of copies that are repeated must not be removed meanwhile.
    fn hold_copy_sources(&mut self) {
        for copy in self.entries.indices() {
            let Some(WorkspaceCopy { from, .. }) = self.entries[copy].copying else { continue };
            let source = self.entries.iter().find(|(_, entry)| entry.workspace == from);
            if let Some((source, _)) = source
                && let Some(copying) = &mut self.entries[copy].copying
            {
                copying.hold_source();
                self.hold_for_copy(source);
            }
        }
    }

    fn restore_pool(&mut self, record: PoolRecord) {
        let mut pool = Pool::new(record.template, record.traits, self.now.mono);
        pool.phase = record.phase;
        let pool = self.pools.insert(pool);
        self.pool_due(pool);
    }

    fn restore_session(&mut self, record: SessionRecord) {
        let settings = SessionSettings {
            tenant: record.tenant,
            claim: record.claim,
            idle_timeout_ms: record.idle_timeout_ms,
            deadline: record.deadline,
            on_disconnect: record.on_disconnect,
        };
        let mut session = Session::new(record.id, record.template, settings, record.created_at);
        session.parent = record.parent;
        session.status = record.status;
        session.generation = record.generation;
        session.state_lost = record.state_lost;
        session.lost_generation = record.lost_generation;
        session.shelved = record.files.map(|files| ShelvedFiles { files, bytes: None });
        session.told_id = record.told_id;
        session.idle_from = record.idle_from.max(record.created_at);
        // An older record does not have this time.
        session.last_active_at = record.last_active_at.max(record.created_at);
        let session = self.sessions.insert(session);
        for turn in record.turn.into_iter().chain(record.queued) {
            self.publish_turn_ended(session, turn, TurnOutcome::Interrupted);
            self.mark_session(session);
        }
        match record.status {
            SessionStatus::Starting | SessionStatus::Active => {
                self.set_status(session, SessionStatus::Paused);
            }
            SessionStatus::Paused | SessionStatus::Stopped | SessionStatus::Ended => {}
        }
        self.schedule_shelved_files(session);
    }

    /// Restores a sandbox. Returns it if it must be removed, with the cause. The removal comes
    /// later: first the kernel must know which files are being copied.
    fn restore_sandbox(
        &mut self,
        record: &SandboxRecord,
        recovery: &mut Recovery,
    ) -> Option<(EntryIx, EndCause)> {
        let owner = match record.owner {
            Owner::Unowned => EntryOwner::Unowned,
            Owner::Lease(lease) => EntryOwner::Lease(lease),
            Owner::Session(id) => {
                self.sessions.by_id(id).map_or(EntryOwner::Unowned, EntryOwner::Session)
            }
        };
        let entry = self.insert_restored(record, owner);
        if let EntryOwner::Session(session) = owner {
            let known = &mut self.sessions[session];
            known.entry = Some(entry);
            if record.instance.is_some() {
                // It may have been in use until the server stopped.
                known.idle_from = self.now.wall;
            }
            self.mark_session(session);
        }
        let over = self.was_ended(record, owner);
        if record.instance.is_none() {
            self.count_in(entry);
            return match owner {
                EntryOwner::Session(_) if over => Some((entry, EndCause::SessionEnded)),
                EntryOwner::Session(_) if !record.doomed => {
                    self.copy_workspace(entry, None, false);
                    None
                }
                EntryOwner::Session(session) => {
                    // It was deleted during the copy of its files, and its session with it.
                    self.sessions[session].status = SessionStatus::Ended;
                    Some((entry, EndCause::Deleted))
                }
                EntryOwner::Unowned | EntryOwner::Lease(_) => Some((entry, EndCause::Restart)),
            };
        }
        self.count_in(entry);
        self.reserve_live(entry);
        if let Owner::Lease(_) = record.owner
            && self.flaw_readopts(entry)
        {
            return None;
        }
        // A sandbox that was returned and not yet clean ended with that cause.
        let cause = record.ending.or(record.lease_end).unwrap_or(EndCause::Restart);
        let after = match owner {
            EntryOwner::Session(_) if record.doomed || over => AfterEnd::Gone,
            EntryOwner::Session(_) => {
                recovery.marked_cold += 1;
                AfterEnd::Cold
            }
            EntryOwner::Unowned | EntryOwner::Lease(_) => {
                recovery.ended += 1;
                AfterEnd::Gone
            }
        };
        self.forget_lease(entry, cause);
        if after == AfterEnd::Cold && self.entries[entry].has_unsaved_files() {
            // They were lost with the previous run of the server.
            self.lose_files(entry, EndCause::Restart.reason());
        }
        let sandbox = &mut self.entries[entry];
        sandbox.take(Step::CleanUp);
        sandbox.termination = Some(Box::new(Termination::new(cause, after, Firmness::Now)));
        self.notify_instance_ended(entry, cause);
        self.mark(entry);
        self.settle(entry);
        Some((entry, cause))
    }

    /// Continues the removal of a sandbox that a restart found.
    fn continue_removal(&mut self, entry: EntryIx, cause: EndCause) {
        if self.entries[entry].is_live() {
            self.send_kill(entry);
        } else {
            self.remove_entry(entry, cause, None, None);
        }
    }

    /// Whether the owner of a session had ended it. The end continues: the files are deleted, and
    /// the session is removed.
    fn was_ended(&mut self, record: &SandboxRecord, owner: EntryOwner) -> bool {
        let EntryOwner::Session(session) = owner else { return false };
        let over = self.sessions[session].status == SessionStatus::Ended
            || record.ending == Some(EndCause::SessionEnded)
            || (record.ending == Some(EndCause::DeadlineReached) && record.doomed);
        if over {
            self.set_status(session, SessionStatus::Ended);
        }
        over
    }

    fn insert_restored(&mut self, record: &SandboxRecord, owner: EntryOwner) -> EntryIx {
        let pool = self.pools.named(&record.template);
        let template = match pool {
            Some(pool) => Arc::clone(&self.pools[pool].template),
            // Its template is gone; the sandbox can only be removed or resumed.
            None => Arc::new(model::Template::named(record.template.clone())),
        };
        let slot = match owner {
            EntryOwner::Unowned | EntryOwner::Lease(_) => pool,
            EntryOwner::Session(_) => None,
        };
        let ago_ms = self.now.wall.since(record.last_used_at);
        let mono = self.now.mono.0.saturating_sub(ago_ms);
        let last_used = Now { mono: Mono(mono), wall: record.last_used_at };
        let new = NewEntry {
            id: record.id,
            workspace: record.workspace,
            template,
            traits: record.traits,
            owner,
            tenant: record.tenant,
            slot,
            now: last_used,
        };
        let mut sandbox = Entry::new(new);
        sandbox.previous_id = record.previous_id;
        sandbox.instance = record.instance.unwrap_or(InstanceId::NIL);
        sandbox.generation = record.generation;
        sandbox.ownership = Ownership::recorded(owner, record.tenant, record.lease_end);
        sandbox.ready = Readiness::recorded(record.announced);
        sandbox.uses = record.uses;
        sandbox.files = Durability::recorded(record.dirty, record.has_files);
        sandbox.cold = ColdFiles::new(record.archived);
        sandbox.copying = record.copying_from.map(WorkspaceCopy::of);
        sandbox.created_at = record.created_at;
        sandbox.slept = record.slept;
        let entry = self.entries.insert(sandbox);
        if let Some(pool) = slot {
            self.pools[pool].occupied.slot_taken();
        }
        entry
    }
}

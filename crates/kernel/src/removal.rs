//! What happens when the removal of an instance is confirmed: its end is published once, its place
//! is released once, and a cold record stays or nothing.

use std::sync::Arc;

use model::why::{Ended, Eviction};
use model::{
    EndCause, ErrorCode, Generation, LifecycleEvent, Refusal, SandboxId, TerminatedReason,
};

use crate::Kernel;
use crate::effect::Notice;
use crate::entry::{AfterEnd, EntryIx, Readiness};
use crate::pool::PoolIx;
use crate::reply::Reply;
use crate::request::WaitingFor;

impl Kernel {
    /// The instance of a sandbox is gone.
    pub(crate) fn removed(&mut self, entry: EntryIx) {
        self.announce_end(entry);
        self.publish_waiting_end(entry);
        let sandbox = &mut self.entries[entry];
        let termination = sandbox.termination.take().expect("what was removed had a cause");
        sandbox.process_gone();
        self.entries.instance_gone(entry);
        if self.entries[entry].is_live() {
            self.release_live(entry);
        }
        let is_renamed = termination.after == AfterEnd::Renamed;
        if self.loses_files(entry, termination.after) {
            self.lose_files(entry, termination.cause.reason());
        }
        match termination.after {
            AfterEnd::Gone => {
                // A workspace that the removal did not delete is deleted next.
                self.entries[entry].files.process_removed(termination.takes_workspace);
                self.remove_entry(
                    entry,
                    termination.cause,
                    termination.detail.as_ref(),
                    termination.eviction,
                );
            }
            AfterEnd::Shelved => {
                self.shelve(entry);
                self.remove_entry(
                    entry,
                    termination.cause,
                    termination.detail.as_ref(),
                    termination.eviction,
                );
            }
            AfterEnd::Cold | AfterEnd::Renamed => {
                if is_renamed {
                    self.rename(entry, termination.cause, termination.detail.clone());
                } else {
                    self.write_ended(
                        entry,
                        termination.cause,
                        termination.detail.clone(),
                        termination.eviction,
                    );
                }
                self.entries[entry].went_cold(termination.cause);
                self.mark(entry);
                self.settle(entry);
                if let Some(session) = self.entries[entry].session() {
                    self.session_lost_sandbox(
                        session,
                        termination.cause,
                        termination.detail.as_deref(),
                    );
                }
            }
        }
    }

    /// Publishes that a sandbox is gone, once per generation that was ready.
    fn announce_end(&mut self, entry: EntryIx) {
        let sandbox = &mut self.entries[entry];
        if !sandbox.ready.end_announced() {
            return;
        }
        let cause = sandbox.end_cause();
        if self.flaws.announces_twice() {
            self.publish_terminated(entry, cause);
        }
        self.publish_terminated(entry, cause);
    }

    fn publish_terminated(&mut self, entry: EntryIx, cause: EndCause) {
        let sandbox = &self.entries[entry];
        let (session, lease) = self.owner_ids(entry);
        let event = LifecycleEvent::SandboxTerminated {
            session,
            lease,
            sandbox_id: sandbox.id,
            generation: sandbox.generation,
            reason: cause.reason(),
            cause,
        };
        self.publish(sandbox.tenant(), event);
    }

    /// Gives a sandbox another id, so that a caller that knows the old one cannot reach it.
    pub(crate) fn rename(&mut self, entry: EntryIx, cause: EndCause, detail: Option<Arc<str>>) {
        self.write_ended(entry, cause, detail, None);
        self.publish_last_transition(entry, cause);
        let id = SandboxId::from_u128(self.mint());
        let old = self.entries.rename(entry, id);
        self.out.journal.push(model::record::JournalEntry::SandboxRemoved(old));
        if let Some(session) = self.entries[entry].session() {
            self.refuse_uses_by_id(session, cause);
        }
        let sandbox = &mut self.entries[entry];
        sandbox.previous_id = Some(old);
        sandbox.created_at = self.now.wall;
        self.mark(entry);
    }

    /// A clean sandbox goes back to its pool under another id: to its last user it is gone.
    pub(crate) fn rename_recycled(&mut self, entry: EntryIx) {
        // The next user is notified of the next end.
        self.entries[entry].end_notified = false;
        if self.flaws.reuses_id() {
            self.write_ended(entry, EndCause::Returned, None, None);
            return;
        }
        self.publish_terminated(entry, EndCause::Returned);
        self.rename(entry, EndCause::Returned, None);
        let sandbox = &mut self.entries[entry];
        sandbox.previous_id = None;
        sandbox.generation = Generation::FIRST;
    }

    fn write_ended(
        &mut self,
        entry: EntryIx,
        cause: EndCause,
        detail: Option<Arc<str>>,
        eviction: Option<Arc<Eviction>>,
    ) {
        let (session, lease) = self.owner_ids(entry);
        let sandbox = &self.entries[entry];
        let ended = Ended {
            sandbox: sandbox.id,
            generation: sandbox.generation,
            template: sandbox.template.name.clone(),
            lease,
            lease_end: sandbox.ownership.lease_end(),
            session,
            tenant: sandbox.tenant(),
            cause,
            detail,
            eviction,
            created_at: sandbox.created_at,
            ended_at: self.now.wall,
        };
        self.tombstones.remember_sandbox(&ended);
        self.out.journal.push(model::record::JournalEntry::Ended(ended));
    }

    /// Removes the entry of a sandbox.
    pub(crate) fn remove_entry(
        &mut self,
        entry: EntryIx,
        cause: EndCause,
        detail: Option<&Arc<str>>,
        eviction: Option<Arc<Eviction>>,
    ) {
        self.cancel_archive(entry);
        self.release_copy_source(entry);
        self.write_ended(entry, cause, detail.cloned(), eviction);
        self.publish_last_transition(entry, cause);
        for req in self.take_waiting(entry, |_| true) {
            let result = match &self.requests[req].what {
                WaitingFor::Delete { .. } => Ok(Reply::Gone),
                WaitingFor::Checkout(_)
                | WaitingFor::SessionUse { .. }
                | WaitingFor::Bind { .. }
                | WaitingFor::Turn { .. }
                | WaitingFor::Control { .. }
                | WaitingFor::LeaseUse { .. }
                | WaitingFor::Freeze { .. }
                | WaitingFor::Read
                | WaitingFor::Destroy { .. } => Err(gone(cause)),
            };
            self.answer(req, result);
        }
        self.readers_lost(entry, &gone(cause));
        self.count_out(entry);
        let sandbox = self.entries.remove(entry);
        self.due.look_at_line();
        self.out.journal.push(model::record::JournalEntry::SandboxRemoved(sandbox.id));
        if sandbox.files.has_files() || sandbox.copying.is_some() {
            if sandbox.holds.is_copied() {
                // A fork reads it: the workspace is deleted when that has ended.
                self.schedule_deletion_after_copy(sandbox.workspace);
            } else {
                self.schedule_workspace_deletion(sandbox.workspace);
            }
        }
        if let Some(copying) = sandbox.copying {
            self.readers.copy_stops_waiting(copying.from, entry);
            self.workspace_copy_ended(copying.from);
        }
        if let Some(session) = sandbox.session() {
            self.session_without_entry(session, cause, detail.map(|detail| &**detail));
        }
        if let Some(pool) = sandbox.slot {
            let failed = (sandbox.ready == Readiness::Failed).then_some(cause);
            self.slot_freed(pool, failed, detail.map(|detail| &**detail));
        }
    }

    /// A slot of a pool is free again. If a launch failed, and no other sandbox is coming to the
    /// first waiter, that waiter is refused now.
    fn slot_freed(&mut self, pool: PoolIx, failed: Option<EndCause>, detail: Option<&str>) {
        let occupied = &mut self.pools[pool].occupied;
        occupied.slot_freed();
        if failed.is_some() {
            occupied.failed_launch_removed();
        }
        if self.flaws.frees_slot_twice() && occupied.slots() > 0 {
            occupied.slot_freed();
        }
        let known = &self.pools[pool];
        if let Some(code) = failed.and_then(launch_failure)
            && known.expecting() > known.coming()
            && let Some(req) = self.next_in_pool_queue(pool)
        {
            let cause = detail.map_or("the runtime gave no reason", |detail| detail).to_owned();
            self.refuse_waiter(req, Refusal::new(code, cause).retry_after(1_000));
        }
        self.pool_due(pool);
    }

    /// Notifies the user of an instance, once, that it ended and why.
    pub(crate) fn notify_instance_ended(&mut self, entry: EntryIx, cause: EndCause) {
        let sandbox = &mut self.entries[entry];
        if std::mem::replace(&mut sandbox.end_notified, true) || self.flaws.hides_death(cause) {
            return;
        }
        let instance = sandbox.instance;
        self.out.notices.push(Notice::InstanceEnded { instance, cause });
    }

    /// Ends every use and every process of a sandbox that is being removed or was returned.
    pub(crate) fn break_uses(&mut self, entry: EntryIx, cause: EndCause) {
        let sandbox = &mut self.entries[entry];
        sandbox.holds.broken();
        let uses = sandbox.rare.as_mut().map(|rare| std::mem::take(&mut rare.uses));
        for (use_id, _) in uses.unwrap_or_default() {
            self.entries.use_ended(use_id);
        }
        let waits = |what: &WaitingFor| {
            matches!(what, WaitingFor::LeaseUse { .. } | WaitingFor::Freeze { .. })
        };
        for req in self.take_waiting(entry, waits) {
            self.answer(req, Err(interrupted_use_refusal(cause)));
        }
        if let Some(rare) = &mut self.entries[entry].rare {
            rare.scale = 0;
            rare.stop = None;
            rare.time_stopped_since = None;
            if !rare.processes.is_empty() {
                self.processes_end_with_sandbox(entry, cause);
            }
        }
        if let Some(session) = self.entries[entry].session() {
            self.turn_broken(session, cause);
        }
        self.settle(entry);
    }
}

/// The error for callers that waited for a launch, if the launch failed.
pub(crate) const fn launch_failure(cause: EndCause) -> Option<ErrorCode> {
    if matches!(cause, EndCause::LaunchFailed) {
        Some(ErrorCode::LaunchFailed)
    } else if matches!(cause, EndCause::ReadyTimeout) {
        Some(ErrorCode::ReadyTimeout)
    } else {
        None
    }
}

/// The refusal of a caller that names a sandbox that is gone.
pub(crate) fn gone(cause: EndCause) -> Refusal {
    Refusal::sandbox_gone(cause)
}

/// The refusal of a caller that was using a sandbox when it ended.
pub fn interrupted_use_refusal(cause: EndCause) -> Refusal {
    match cause.reason() {
        TerminatedReason::Crash | TerminatedReason::Replaced => Refusal::new(
            ErrorCode::SandboxCrashed,
            format!("the sandbox ended while it was used: {}", cause.in_words()),
        ),
        TerminatedReason::Oom => {
            Refusal::new(ErrorCode::Oom, "the sandbox ran out of memory while it was used")
        }
        TerminatedReason::DiskLimit => {
            Refusal::new(ErrorCode::DiskLimit, "the sandbox wrote too much to its workspace")
        }
        TerminatedReason::UserAbort
        | TerminatedReason::Idle
        | TerminatedReason::Expired
        | TerminatedReason::Evicted
        | TerminatedReason::Shutdown
        | TerminatedReason::Deleted
        | TerminatedReason::Policy => gone(cause),
    }
}

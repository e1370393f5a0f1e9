//! What happens when a process is confirmed as gone: its end is announced once, its places are
//! given back once, and what is left of it is a cold record or nothing.

use std::sync::Arc;

use model::why::{Ended, Eviction};
use model::{
    EndCause, ErrorCode, Generation, LifecycleEvent, Refusal, SandboxId, TerminatedReason,
};

use crate::Kernel;
use crate::effect::Notice;
use crate::entry::{After, EntryIx, Readiness};
use crate::pool::PoolIx;
use crate::reply::Reply;
use crate::request::Waiting;

impl Kernel {
    /// The process of a sandbox is gone.
    pub(crate) fn removed(&mut self, entry: EntryIx) {
        self.announce_end(entry);
        let sandbox = &mut self.entries[entry];
        let ending = sandbox.ending.take().expect("what was removed had a cause");
        sandbox.process_gone();
        self.entries.instance_gone(entry);
        if self.entries[entry].is_live() {
            self.release_live(entry);
        }
        let died = ending.after == After::Renamed;
        if self.files_go(entry, ending.after) {
            self.lose_files(entry, ending.cause.reason());
        }
        match ending.after {
            After::Gone => {
                // What the removal did not take along is deleted next.
                self.entries[entry].files.process_removed(ending.takes_workspace);
                self.remove_entry(entry, ending.cause, ending.detail.as_ref(), ending.eviction);
            }
            After::Shelved => {
                self.shelve(entry);
                self.remove_entry(entry, ending.cause, ending.detail.as_ref(), ending.eviction);
            }
            After::Cold | After::Renamed => {
                if died {
                    self.rename(entry, ending.cause, ending.detail.clone());
                } else {
                    self.write_ended(entry, ending.cause, ending.detail.clone(), ending.eviction);
                }
                self.entries[entry].went_cold(ending.cause);
                self.mark(entry);
                self.settle(entry);
                if let Some(session) = self.entries[entry].session() {
                    self.session_lost_sandbox(session, ending.cause, ending.detail.as_deref());
                }
            }
        }
    }

    /// Tells the world that a sandbox is gone, once per generation that had been ready.
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

    /// Gives a sandbox another id, so that a caller who knows this one cannot reach what comes
    /// next.
    pub(crate) fn rename(&mut self, entry: EntryIx, cause: EndCause, detail: Option<Arc<str>>) {
        self.write_ended(entry, cause, detail, None);
        self.tell_gone(entry, cause);
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

    /// A clean sandbox goes back into its pool: to the world, the one that was used is gone.
    pub(crate) fn rename_recycled(&mut self, entry: EntryIx) {
        // Its next user hears of its next end.
        self.entries[entry].over_told = false;
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
            lease_end: sandbox.belongs.lease_end(),
            session,
            tenant: sandbox.tenant(),
            cause,
            detail,
            eviction,
            created_at: sandbox.created_at,
            ended_at: self.now.wall,
        };
        self.ends.remember(&ended);
        self.out.journal.push(model::record::JournalEntry::Ended(ended));
    }

    /// Removes a sandbox from the books.
    pub(crate) fn remove_entry(
        &mut self,
        entry: EntryIx,
        cause: EndCause,
        detail: Option<&Arc<str>>,
        eviction: Option<Arc<Eviction>>,
    ) {
        self.call_off_archive(entry);
        self.release_copy_source(entry);
        self.write_ended(entry, cause, detail.cloned(), eviction);
        self.tell_gone(entry, cause);
        for req in self.take_waiting(entry, |_| true) {
            let result = match &self.requests[req].what {
                Waiting::Delete { .. } => Ok(Reply::Gone),
                Waiting::Checkout(_)
                | Waiting::SessionUse { .. }
                | Waiting::Bind { .. }
                | Waiting::Turn { .. }
                | Waiting::Control { .. }
                | Waiting::LeaseUse { .. }
                | Waiting::Freeze { .. }
                | Waiting::Read
                | Waiting::Destroy { .. } => Err(gone(cause)),
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
                // A fork is reading it. It goes as soon as that has ended.
                self.doom_copied_workspace(sandbox.workspace);
            } else {
                self.doom_workspace(sandbox.workspace);
            }
        }
        if let Some(copying) = sandbox.copying {
            self.reads.copy_waits_no_more(copying.from, entry);
            self.copied(copying.from);
        }
        if let Some(session) = sandbox.session() {
            self.session_without_entry(session, cause, detail.map(|detail| &**detail));
        }
        if let Some(pool) = sandbox.slot {
            let failed = (sandbox.ready == Readiness::Failed).then_some(cause);
            self.slot_freed(pool, failed, detail.map(|detail| &**detail));
        }
    }

    /// A slot of a pool is free again. If that is because a launch failed, and nothing else is on
    /// its way to the first who waits, that one gets its refusal now.
    fn slot_freed(&mut self, pool: PoolIx, failed: Option<EndCause>, detail: Option<&str>) {
        let occupied = &mut self.pools[pool].occupied;
        occupied.slot_freed();
        if failed.is_some() {
            occupied.failure_over();
        }
        if self.flaws.frees_slot_twice() && occupied.slots() > 0 {
            occupied.slot_freed();
        }
        let known = &self.pools[pool];
        if let Some(code) = failed.and_then(launch_failure)
            && known.expecting() > known.coming()
            && let Some((_, req)) = self.pools[pool].queue.pop_first()
        {
            let cause = detail.map_or("no reason was given", |detail| detail).to_owned();
            self.refuse_waiter(req, Refusal::new(code, cause).retry_after(1_000));
        }
        self.pool_due(pool);
    }

    /// The user of a sandbox's instance hears once that it is over, and why.
    pub(crate) fn tell_over(&mut self, entry: EntryIx, cause: EndCause) {
        let sandbox = &mut self.entries[entry];
        if std::mem::replace(&mut sandbox.over_told, true) || self.flaws.hides_death(cause) {
            return;
        }
        let instance = sandbox.instance;
        self.out.notices.push(Notice::InstanceOver { instance, cause });
    }

    /// Ends every use and every process of a sandbox that is being removed, or comes back to its pool.
    pub(crate) fn break_uses(&mut self, entry: EntryIx, cause: EndCause) {
        let sandbox = &mut self.entries[entry];
        sandbox.holds.broken();
        let uses = sandbox.extra.as_mut().map(|extra| std::mem::take(&mut extra.uses));
        for (use_id, _) in uses.unwrap_or_default() {
            self.entries.use_over(use_id);
        }
        let waits =
            |what: &Waiting| matches!(what, Waiting::LeaseUse { .. } | Waiting::Freeze { .. });
        for req in self.take_waiting(entry, waits) {
            self.answer(req, Err(use_broken(cause)));
        }
        if let Some(extra) = &mut self.entries[entry].extra {
            extra.scale = 0;
            extra.stop = None;
            extra.still_since = None;
            if !extra.processes.is_empty() {
                self.processes_end_with_sandbox(entry, cause);
            }
        }
        if let Some(session) = self.entries[entry].session() {
            self.turn_broken(session, cause);
        }
        self.settle(entry);
    }
}

/// The error of those who waited for a launch, if that is what failed.
pub(crate) const fn launch_failure(cause: EndCause) -> Option<ErrorCode> {
    if matches!(cause, EndCause::LaunchFailed) {
        Some(ErrorCode::LaunchFailed)
    } else if matches!(cause, EndCause::ReadyTimeout) {
        Some(ErrorCode::ReadyTimeout)
    } else {
        None
    }
}

/// The refusal of a caller that asks for a sandbox that is gone.
pub(crate) fn gone(cause: EndCause) -> Refusal {
    Refusal::sandbox_gone(cause)
}

/// The refusal of a caller that was using a sandbox when it went.
pub fn use_broken(cause: EndCause) -> Refusal {
    match cause.reason() {
        TerminatedReason::Crash | TerminatedReason::Replaced => Refusal::new(
            ErrorCode::SandboxCrashed,
            format!("the sandbox died while it was used ({})", cause.as_str()),
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

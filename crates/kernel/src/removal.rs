//! What happens when a process is confirmed as gone: its end is announced once, its places are
//! given back once, and what is left of it is a cold record or nothing.

use std::sync::Arc;

use model::why::{Ended, Eviction};
use model::{
    EndCause, ErrorCode, Generation, InstanceId, LifecycleEvent, Refusal, SandboxId, SessionId,
    TerminatedReason,
};

use crate::effect::Notice;
use crate::entry::{After, Frozen, Own, Phase};
use crate::reply::{Loss, Reply};
use crate::request::Waiting;
use crate::slab::Ix;
use crate::{Flaw, Kernel};

impl Kernel {
    /// The process of a sandbox is gone.
    pub(crate) fn removed(&mut self, ix: Ix) {
        self.announce_end(ix);
        let entry = &mut self.entries[ix];
        let ending = entry.ending.take().expect("what was removed had a cause");
        entry.op = None;
        entry.turn = false;
        entry.used = false;
        entry.frozen = Frozen::No;
        entry.expires_at = None;
        entry.hard_expires_at = None;
        let instance = std::mem::replace(&mut entry.instance, InstanceId::NIL);
        self.instance_index.remove(instance.as_u128());
        if self.entries[ix].live {
            self.release_live(ix);
        }
        let died = ending.after == After::Renamed;
        if self.files_go(ix, ending.after) {
            self.lose_files(ix, ending.cause.reason());
        }
        match ending.after {
            After::Gone => {
                // What the removal did not take along is deleted next.
                self.entries[ix].has_files = !ending.takes_workspace;
                self.remove_entry(ix, ending.cause, ending.detail.as_ref(), ending.eviction);
            }
            After::Shelved => {
                self.shelve(ix);
                self.remove_entry(ix, ending.cause, ending.detail.as_ref(), ending.eviction);
            }
            After::Cold | After::Renamed => {
                if died {
                    self.rename(ix, ending.cause, ending.detail.clone());
                } else {
                    self.write_ended(ix, ending.cause, ending.detail.clone(), ending.eviction);
                }
                let entry = &mut self.entries[ix];
                entry.phase = Phase::Cold;
                entry.slept = Some(ending.cause);
                entry.extra = None;
                entry.settings = None;
                entry.touched = false;
                entry.dirty = false;
                self.mark(ix);
                self.settle(ix);
                if let Own::Session(session) = self.entries[ix].owner {
                    self.session_lost_sandbox(session, ending.cause, ending.detail.as_deref());
                }
            }
        }
    }

    /// Whether files go with this process, if there were any.
    fn files_go(&self, ix: Ix, after: After) -> bool {
        let entry = &self.entries[ix];
        match after {
            After::Gone => true,
            After::Cold | After::Renamed | After::Shelved => {
                entry.dirty && !entry.traits.workspace_survives
            }
        }
    }

    /// Tells the world that a sandbox is gone, once per generation that had been ready.
    fn announce_end(&mut self, ix: Ix) {
        let entry = &mut self.entries[ix];
        if !std::mem::take(&mut entry.announced) {
            return;
        }
        let cause = entry.ending.as_ref().map_or(EndCause::Deleted, |ending| ending.cause);
        if self.flawed(Flaw::TerminatedTwice) {
            self.publish_terminated(ix, cause);
        }
        self.publish_terminated(ix, cause);
    }

    fn publish_terminated(&mut self, ix: Ix, cause: EndCause) {
        let entry = &self.entries[ix];
        let (session, lease) = self.owner_ids(ix);
        let event = LifecycleEvent::SandboxTerminated {
            session,
            lease,
            sandbox_id: entry.id,
            generation: entry.generation,
            reason: cause.reason(),
            cause,
        };
        self.publish(entry.tenant, event);
    }

    /// Gives a sandbox another id, so that whoever knows this one cannot reach what comes next.
    pub(crate) fn rename(&mut self, ix: Ix, cause: EndCause, detail: Option<Arc<str>>) {
        self.write_ended(ix, cause, detail, None);
        let old = self.entries[ix].id;
        let new = SandboxId::from_u128(self.mint());
        self.entry_index.remove(old.as_u128());
        self.entry_index.insert(new.as_u128(), ix);
        self.out.journal.push(model::record::JournalEntry::SandboxRemoved(old));
        if let Own::Session(session) = self.entries[ix].owner {
            self.refuse_uses_by_id(session, cause);
        }
        let entry = &mut self.entries[ix];
        entry.id = new;
        entry.previous_id = Some(old);
        entry.created_at = self.now.wall;
        self.mark(ix);
    }

    /// A clean sandbox goes back into its pool: to the world, the one that was used is gone.
    pub(crate) fn rename_recycled(&mut self, ix: Ix) {
        if self.flawed(Flaw::IdReused) {
            self.write_ended(ix, EndCause::Returned, None, None);
            return;
        }
        self.publish_terminated(ix, EndCause::Returned);
        self.rename(ix, EndCause::Returned, None);
        let entry = &mut self.entries[ix];
        entry.previous_id = None;
        entry.generation = Generation::FIRST;
    }

    fn write_ended(
        &mut self,
        ix: Ix,
        cause: EndCause,
        detail: Option<Arc<str>>,
        eviction: Option<Arc<Eviction>>,
    ) {
        let (session, lease) = self.owner_ids(ix);
        let entry = &self.entries[ix];
        let ended = Ended {
            sandbox: entry.id,
            generation: entry.generation,
            template: entry.template.name.clone(),
            lease,
            lease_end: entry.lease_end,
            session,
            tenant: entry.tenant,
            cause,
            detail,
            eviction,
            created_at: entry.created_at,
            ended_at: self.now.wall,
        };
        self.ends.remember(&ended);
        self.out.journal.push(model::record::JournalEntry::Ended(ended));
    }

    /// Removes a sandbox from the books.
    pub(crate) fn remove_entry(
        &mut self,
        ix: Ix,
        cause: EndCause,
        detail: Option<&Arc<str>>,
        eviction: Option<Arc<Eviction>>,
    ) {
        self.call_off_archive(ix);
        self.release_copy_source(ix);
        self.write_ended(ix, cause, detail.cloned(), eviction);
        for req in self.take_waiting(ix, |_| true) {
            let result = match &self.requests[req].what {
                Waiting::Delete { .. } => Ok(Reply::Gone),
                Waiting::Checkout(_)
                | Waiting::SessionUse { .. }
                | Waiting::Bind { .. }
                | Waiting::Turn { .. }
                | Waiting::Control { .. }
                | Waiting::LeaseUse { .. }
                | Waiting::Freeze { .. }
                | Waiting::Destroy { .. } => Err(gone(cause)),
            };
            self.answer(req, result);
        }
        self.count_out(ix);
        let entry = self.entries.remove(ix);
        self.entry_index.remove(entry.id.as_u128());
        self.admission.entries -= 1;
        self.admission_due = true;
        self.out.journal.push(model::record::JournalEntry::SandboxRemoved(entry.id));
        if entry.has_files || entry.copying_from.is_some() {
            if entry.copies > 0 {
                // A fork is reading it. It goes as soon as that has ended.
                self.doom_copied_workspace(entry.workspace);
            } else {
                self.doom_workspace(entry.workspace);
            }
        }
        if let Some(from) = entry.copying_from {
            self.copied(from);
        }
        if let Own::Session(session) = entry.owner {
            self.session_without_entry(session, cause, detail.map(|detail| &**detail));
        }
        if let Some(pool) = entry.slot {
            let failed = entry.failed.then_some(cause);
            self.slot_freed(pool, failed, detail.map(|detail| &**detail));
        }
    }

    /// A slot of a pool is free again. If that is because a launch failed, and nothing else is on
    /// its way to the first who waits, that one is told now.
    fn slot_freed(&mut self, pool: Ix, failed: Option<EndCause>, detail: Option<&str>) {
        let freed = &mut self.pools[pool];
        freed.slots_used -= 1;
        freed.failing -= u32::from(failed.is_some());
        if self.flawed(Flaw::SlotFreedTwice) {
            self.pools[pool].slots_used = self.pools[pool].slots_used.saturating_sub(1);
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

    /// Ends every use of a sandbox that is being removed.
    pub(crate) fn break_uses(&mut self, ix: Ix, cause: EndCause) {
        let entry = &mut self.entries[ix];
        (entry.execs, entry.calls) = (0, 0);
        entry.pinned = false;
        entry.exec_wanted = false;
        let uses = entry.extra.as_mut().map(|extra| std::mem::take(&mut extra.uses));
        for (use_id, _) in uses.unwrap_or_default() {
            if self.use_index.remove(use_id.as_u128()).is_some() {
                self.out.notices.push(Notice::UseBroken { use_id, refusal: broken(cause) });
            }
        }
        let waits =
            |what: &Waiting| matches!(what, Waiting::LeaseUse { .. } | Waiting::Freeze { .. });
        for req in self.take_waiting(ix, waits) {
            self.answer(req, Err(broken(cause)));
        }
        if let Some(extra) = &mut self.entries[ix].extra {
            extra.processes.clear();
            extra.scale = 0;
            extra.stop = None;
            extra.still_since = None;
        }
        if let Own::Session(session) = self.entries[ix].owner {
            self.turn_broken(session, cause);
        }
        self.settle(ix);
    }

    /// Files of a session are lost or given up: its next answer reports that.
    pub(crate) fn lose_files(&mut self, ix: Ix, reason: TerminatedReason) {
        let entry = &mut self.entries[ix];
        // What was never saved is lost like what was.
        let had_files = std::mem::take(&mut entry.dirty) || entry.has_files;
        let (owner, sandbox) = (entry.owner, entry.id);
        if let Own::Session(session) = owner
            && had_files
        {
            self.report_loss(session, sandbox, reason);
        }
    }

    /// Remembers that files of a session were lost, until an answer has reported it.
    pub(crate) fn report_loss(
        &mut self,
        session: Ix,
        sandbox_id: SandboxId,
        reason: TerminatedReason,
    ) {
        let silent = self.flawed(Flaw::SilentStateLoss);
        let known = &mut self.sessions[session];
        if silent || known.status == model::SessionStatus::Ended || known.is_ending() {
            return;
        }
        known.lost_generation = known.generation;
        if known.state_lost.replace(reason).is_none() {
            let (session_id, tenant) = (known.id, known.settings.tenant);
            let event = LifecycleEvent::StateLost { session: session_id, sandbox_id, reason };
            self.publish(tenant, event);
        }
        self.mark_session(session);
    }

    /// An answer has reported what was lost before the sandbox of this generation.
    pub(crate) fn loss_reported(&mut self, id: SessionId, generation: Generation) {
        let Some(session) = self.session_index.get(id.as_u128()) else { return };
        let known = &mut self.sessions[session];
        if known.state_lost.is_some() && known.lost_generation < generation {
            known.state_lost = None;
            self.mark_session(session);
        }
    }

    /// What an answer about a session that needs no sandbox has to report.
    pub fn unreported_loss_of(&self, id: SessionId) -> Option<Loss> {
        let known = &self.sessions[self.session_index.get(id.as_u128())?];
        let generation = known.lost_generation.next();
        known.state_lost.map(|reason| Loss { session: id, generation, reason })
    }

    /// What the next answer about the sandbox of a session has to report.
    pub(crate) fn unreported_loss(&self, ix: Ix) -> Option<Loss> {
        let entry = &self.entries[ix];
        let Own::Session(session) = entry.owner else { return None };
        let known = &self.sessions[session];
        let (session, generation) = (known.id, entry.generation);
        known.state_lost.map(|reason| Loss { session, generation, reason })
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

/// The refusal of whoever asks for a sandbox that is gone.
pub(crate) fn gone(cause: EndCause) -> Refusal {
    Refusal::sandbox_gone(cause)
}

/// The refusal of whoever was using a sandbox when it went.
pub(crate) fn broken(cause: EndCause) -> Refusal {
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

//! Forks: a new session with a copy of another's files. The copy is a cold sandbox from the start,
//! so it is counted, found after a crash, and launched by its first message.

use std::sync::Arc;

use model::lifecycle::SessionChange;
use model::why::{Shortage, Tier};
use model::{EndCause, ErrorCode, InstanceId, Refusal, RequestId, SessionId, SessionStatus};

use crate::Kernel;
use crate::effect::Action;
use crate::entry::{AfterEnd, EntryIx, EntryOwner, OpKind, Phase, WorkspaceCopy};
use crate::event::{FailureKind, Outcome};
use crate::pool::PoolIx;
use crate::reply::Reply;
use crate::session::{ControlKind, SessionIx};

impl Kernel {
    pub(crate) fn fork_requested(
        &mut self,
        request: RequestId,
        parent_id: SessionId,
        id: SessionId,
    ) -> Result<Reply, Refusal> {
        self.refuse_when_stopping()?;
        let parent = self.session_by_id(parent_id)?;
        self.refuse_new_session(id)?;
        self.refuse_session_above_limits(self.sessions[parent].settings.tenant)?;
        let known = &self.sessions[parent];
        if known.entry.is_some_and(|entry| self.entries[entry].copying.is_some()) {
            let cause = "the session's own files are still being copied";
            return Err(Refusal::new(ErrorCode::SessionBusy, cause));
        }
        if known.is_leaving() {
            let cause = "the session is being stopped or ended";
            return Err(Refusal::new(ErrorCode::SessionBusy, cause).retry_after(1_000));
        }
        if known.status == SessionStatus::Ended {
            return Err(Refusal::new(ErrorCode::SessionEnded, "the session has ended"));
        }
        if known.entry.is_some_and(|entry| self.is_losing_files(entry)) {
            let cause = "the session's sandbox is being removed";
            return Err(Refusal::new(ErrorCode::SessionBusy, cause).retry_after(1_000));
        }
        let pool = self.served_pool(&known.template)?;
        if known.shelved.is_some() {
            self.take_entry_for_shelved_files(parent, pool)?;
        }
        let known = &self.sessions[parent];
        let (template, settings) = (known.template.clone(), known.settings.clone());
        let source = known.entry.filter(|entry| {
            let sandbox = &self.entries[*entry];
            sandbox.files.has_files() || sandbox.phase() == Phase::InUse
        });
        if let Some(entry) = source {
            self.cancel_archive(entry);
            self.hold_for_copy(entry);
            if let Err(refusal) = self.make_room_for_entry() {
                self.release_copy_hold(entry);
                return Err(refusal);
            }
            self.spare_source(entry);
        }
        let session = self.new_session(id, template, settings);
        // Files lost before the copy are missing in it too: its clients must hear of that.
        self.sessions[session].state_lost = self.sessions[parent].state_lost;
        self.sessions[session].parent = Some(parent_id);
        self.sessions[session].status = SessionStatus::Paused;
        self.arm_deadline(session);
        self.mark_session(session);
        let Some(source) = source else {
            self.publish_session(session, SessionChange::Forked);
            return Ok(Reply::Forked { session: id });
        };
        self.begin_control(request, session, ControlKind::Fork)?;
        let entry = self.create_entry(pool, EntryOwner::Session(session), None);
        self.sessions[session].entry = Some(entry);
        let mut copying = WorkspaceCopy::of(self.entries[source].workspace);
        copying.hold_source();
        self.entries[entry].copying = Some(copying);
        self.await_source(entry);
        self.mark(entry);
        self.settle(entry);
        self.source_changed(source);
        Ok(Reply::Pending)
    }

    /// The instance to copy the files from, if it has all of them. One that is being launched or
    /// removed may have only a part; then the saved files are copied. A disk that only the sandbox
    /// can read is complete from the start.
    pub(crate) fn instance_to_copy_from(&self, entry: EntryIx) -> Option<InstanceId> {
        let sandbox = &self.entries[entry];
        let whole = sandbox.phase() == Phase::InUse
            || sandbox.traits.workspace_survives
            || self.flaws.copies_half_restored();
        (sandbox.is_live() && whole).then_some(sandbox.instance)
    }

    /// Whether the files of a sandbox that is being removed are lost with it, or about to be
    /// shelved.
    fn is_losing_files(&self, entry: EntryIx) -> bool {
        let sandbox = &self.entries[entry];
        let Some(termination) =
            sandbox.termination.as_ref().filter(|_| sandbox.phase() == Phase::Killing)
        else {
            return false;
        };
        match termination.after {
            AfterEnd::Gone | AfterEnd::Shelved => true,
            AfterEnd::Cold | AfterEnd::Renamed => sandbox.has_unsaved_files(),
        }
    }

    /// Voids an eviction or sweep: the files of the sandbox are being copied.
    fn spare_source(&mut self, entry: EntryIx) {
        if self.entries[entry].may_be_spared() {
            let refusal =
                Refusal::new(ErrorCode::SandboxBusy, "the files of the sandbox are being copied");
            self.void_termination(entry, &refusal);
        }
    }

    /// Gives a shelved session a cold sandbox, so that its files can be copied.
    fn take_entry_for_shelved_files(
        &mut self,
        session: SessionIx,
        pool: PoolIx,
    ) -> Result<(), Refusal> {
        self.make_room_for_entry()?;
        let entry = self.create_entry(pool, EntryOwner::Session(session), None);
        self.sessions[session].entry = Some(entry);
        self.entries[entry].generation = self.sessions[session].generation;
        self.unshelve(session, entry);
        // Callers may have waited for the session's sandbox while it had no entry.
        self.recompute_demand(entry);
        Ok(())
    }

    /// Copies the workspace that a cold sandbox is to start from.
    pub(crate) fn copy_workspace(
        &mut self,
        entry: EntryIx,
        instance: Option<InstanceId>,
        guest_awake: bool,
    ) {
        let sandbox = &mut self.entries[entry];
        let Some(copying) = &mut sandbox.copying else { return };
        copying.began(instance);
        let (from, to) = (copying.from, sandbox.workspace);
        let template = Arc::clone(&sandbox.template);
        let action = Action::CopyWorkspace { from, instance, guest_awake, to, template };
        self.begin(entry, OpKind::Copy, self.config.deadlines.workspace_ms, action);
        self.mark(entry);
        self.settle(entry);
    }

    /// Makes room for a new cold entry by evicting cold entries, which ends at once.
    fn make_room_for_entry(&mut self) -> Result<(), Refusal> {
        while self.entries.count() >= self.config.max_sandboxes {
            if self.tiers.is_empty(Tier::Cold) || !self.evict_one(Shortage::Entries) {
                return Err(self.capacity_exhausted(Some(Shortage::Entries)));
            }
        }
        Ok(())
    }

    pub(crate) fn copy_ended(&mut self, entry: EntryIx, outcome: Outcome) {
        if self.retry_copy_by_guest(entry, &outcome) {
            return;
        }
        self.release_copy_source(entry);
        if let Some(termination) = self.entries[entry].termination.take() {
            // The fork was cancelled during the copy, so its session never existed.
            if let Some(session) = self.entries[entry].session() {
                self.sessions[session].status = SessionStatus::Ended;
            }
            self.remove_entry(entry, termination.cause, termination.detail.as_ref(), None);
            return;
        }
        let (gone, detail): (bool, Arc<str>) = match outcome {
            Outcome::Done => {
                let sandbox = &mut self.entries[entry];
                let copying = sandbox.copying.take();
                sandbox.files.files_made();
                if let Some(copying) = copying {
                    self.workspace_copy_ended(copying.from);
                }
                self.mark(entry);
                self.settle(entry);
                if let Some(session) = self.entries[entry].session() {
                    self.publish_session(session, SessionChange::Forked);
                    let reply = Reply::Forked { session: self.sessions[session].id };
                    self.finish_control(session, &Ok(reply));
                    // After a restart no request waits for the fork itself, but a use may.
                    self.session_due(session);
                }
                return;
            }
            Outcome::Failed(failure) => (failure.kind == FailureKind::Gone, failure.detail),
            Outcome::TimedOut => (false, "copying the workspace took too long".into()),
        };
        if let Some(session) = self.entries[entry].session() {
            let refusal = if gone || !self.is_source_there(session, entry) {
                let cause = "the session's sandbox ended while its files were being copied";
                Refusal::new(ErrorCode::SessionBusy, cause).retry_after(1_000)
            } else {
                Refusal::new(ErrorCode::PersistFailed, detail.to_string())
            };
            self.drop_queued_turns(session);
            self.sessions[session].status = SessionStatus::Ended;
            self.fail_wants(session, &refusal);
            self.finish_control(session, &Err(refusal));
        }
        self.remove_entry(entry, EndCause::LaunchFailed, Some(&detail), None);
    }

    /// Whether the source of a fork still belongs to its parent. If not, a failed copy is not the
    /// fault of the disk.
    fn is_source_there(&self, fork: SessionIx, copy: EntryIx) -> bool {
        let parent = self.sessions[fork].parent;
        let parent = parent.and_then(|id| self.sessions.by_id(id));
        let Some(copying) = self.entries[copy].copying else { return false };
        parent.is_some_and(|parent| {
            let known = &self.sessions[parent];
            let source = known.entry.map(|entry| &self.entries[entry]);
            let source = source.filter(|source| source.workspace == copying.from);
            let there = source.is_some_and(|source| {
                copying.is_through(source.instance) && source.phase() != Phase::Killing
            });
            there && !known.is_leaving() && known.status != SessionStatus::Ended
        })
    }

    /// A source must not be removed while it is copied.
    pub(crate) fn hold_for_copy(&mut self, entry: EntryIx) {
        self.entries[entry].holds.copy_began();
        self.settle(entry);
    }

    pub(crate) fn release_copy_hold(&mut self, entry: EntryIx) {
        self.entries[entry].holds.copy_ended();
        self.settle(entry);
        self.unquiesce_if_unneeded(entry);
        self.continue_freeze(entry);
        self.arm_freeze_and_sweep(entry);
    }

    /// Releases the hold on the source of a copy, once, if both still exist.
    pub(crate) fn release_copy_source(&mut self, copy: EntryIx) {
        let source = self.source_of(copy);
        let Some(copying) = &mut self.entries[copy].copying else { return };
        if copying.release_source()
            && let Some(source) = source
        {
            self.release_copy_hold(source);
        }
    }

    /// The sandbox whose files are being copied into this one, if it still exists.
    pub(crate) fn source_of(&self, copy: EntryIx) -> Option<EntryIx> {
        let from = self.entries[copy].copying?.from;
        let parent = self.sessions[self.entries[copy].session()?].parent?;
        let source = self.sessions[self.sessions.by_id(parent)?].entry?;
        (self.entries[source].workspace == from).then_some(source)
    }
}

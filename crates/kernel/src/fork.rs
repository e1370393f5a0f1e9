//! Forks: another session with a copy of this one's files. The copy is a cold sandbox of its own
//! from the start, so that it is counted, found after a crash, and woken by its first message.

use std::sync::Arc;

use model::lifecycle::SessionChange;
use model::why::{Shortage, Tier};
use model::{EndCause, ErrorCode, Refusal, RequestId, SessionId, SessionStatus};

use crate::Kernel;
use crate::admission::capacity_exhausted;
use crate::effect::Action;
use crate::entry::{OpKind, Own, Phase};
use crate::event::{FailureKind, Outcome};
use crate::reply::Reply;
use crate::session::ControlKind;
use crate::slab::Ix;

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
        let known = &self.sessions[parent];
        if known.entry.is_some_and(|ix| self.entries[ix].copying_from.is_some()) {
            let cause = "the session's own files are still being copied";
            return Err(Refusal::new(ErrorCode::SessionBusy, cause));
        }
        let pool = self.served_pool(&known.template)?;
        let (template, settings) = (known.template.clone(), known.settings.clone());
        let source = known.entry.filter(|ix| {
            let entry = &self.entries[*ix];
            entry.has_files || entry.phase == Phase::InUse
        });
        if let Some(ix) = source {
            self.call_off_archive(ix);
            self.hold_for_copy(ix);
            if let Err(refusal) = self.make_room_for_entry() {
                self.release_copy_hold(ix);
                return Err(refusal);
            }
        }
        let session = self.new_session(id, template, settings);
        self.sessions[session].parent = Some(parent_id);
        self.sessions[session].status = SessionStatus::Paused;
        self.mark_session(session);
        let Some(source) = source else {
            self.publish_session(session, SessionChange::Forked);
            return Ok(Reply::Forked { session: id });
        };
        self.begin_control(request, session, ControlKind::Fork)?;
        let ix = self.create_entry(pool, Own::Session(session), None);
        self.sessions[session].entry = Some(ix);
        self.entries[ix].copying_from = Some(self.entries[source].workspace);
        self.entries[ix].holds_source = true;
        let instance = self.entries[source].live.then_some(self.entries[source].instance);
        self.copy_workspace(ix, instance);
        Ok(Reply::Pending)
    }

    /// Copies the workspace that a cold sandbox is to start from.
    pub(crate) fn copy_workspace(&mut self, ix: Ix, instance: Option<model::InstanceId>) {
        let entry = &self.entries[ix];
        let Some(from) = entry.copying_from else { return };
        let template = Arc::clone(&entry.template);
        let action = Action::CopyWorkspace { from, instance, to: entry.workspace, template };
        self.begin(ix, OpKind::Copy, self.config.deadlines.workspace_ms, action);
        self.mark(ix);
        self.settle(ix);
    }

    /// A cold entry can only be added where an entry is free; what is cold gives way at once.
    fn make_room_for_entry(&mut self) -> Result<(), Refusal> {
        while self.admission.entries >= self.config.max_sandboxes {
            if self.first_of(Tier::Cold).is_none() || !self.evict_one(Shortage::Entries) {
                return Err(capacity_exhausted());
            }
        }
        Ok(())
    }

    pub(crate) fn copy_ended(&mut self, ix: Ix, outcome: Outcome) {
        let source_went = self.source_went(ix);
        self.release_copy_source(ix);
        if let Some(ending) = self.entries[ix].ending.take() {
            // It was given up while it was being copied, and so its session never came to be.
            if let Own::Session(session) = self.entries[ix].owner {
                self.sessions[session].status = SessionStatus::Ended;
            }
            self.remove_entry(ix, ending.cause, ending.detail.as_ref(), None);
            return;
        }
        let (code, detail): (_, Arc<str>) = match outcome {
            Outcome::Done => {
                let entry = &mut self.entries[ix];
                entry.copying_from = None;
                entry.has_files = true;
                self.mark(ix);
                self.settle(ix);
                if let Own::Session(session) = self.entries[ix].owner {
                    self.publish_session(session, SessionChange::Forked);
                    let reply = Reply::Forked { session: self.sessions[session].id };
                    self.finish_control(session, &Ok(reply));
                }
                return;
            }
            Outcome::Failed(failure) => {
                // Whose files went because their owner's sandbox did has no trouble with its disk.
                let went = source_went || failure.kind == FailureKind::Gone;
                let detail = failure.detail;
                if went {
                    let cause = format!("its sandbox ended while its files were copied ({detail})");
                    (ErrorCode::SessionBusy, cause.into())
                } else {
                    (ErrorCode::PersistFailed, detail)
                }
            }
            Outcome::TimedOut => {
                (ErrorCode::PersistFailed, "copying the workspace took too long".into())
            }
        };
        if let Own::Session(session) = self.entries[ix].owner {
            let refusal = Refusal::new(code, detail.to_string());
            self.drop_queued_turns(session);
            let known = &mut self.sessions[session];
            known.status = SessionStatus::Ended;
            let forking = known.control.take_if(|control| control.kind == ControlKind::Fork);
            for req in forking.into_iter().flat_map(|control| control.requests) {
                self.answer(req, Err(refusal.clone()));
            }
            self.fail_wants(session, &refusal);
        }
        self.remove_entry(ix, EndCause::LaunchFailed, Some(&detail), None);
    }

    /// Whether what is copied is no longer its session's, or about to go with its sandbox.
    fn source_went(&self, copy: Ix) -> bool {
        let Own::Session(session) = self.entries[copy].owner else { return false };
        let parent = self.sessions[session].parent;
        let parent = parent.and_then(|parent| self.session_index.get(parent.as_u128()));
        let Some(parent) = parent else { return true };
        let source = self.sessions[parent].entry.map(|ix| &self.entries[ix]);
        self.sessions[parent].status == SessionStatus::Ended
            || source.is_none_or(|source| {
                Some(source.workspace) != self.entries[copy].copying_from || source.ending.is_some()
            })
    }

    /// What is being copied may not be given up meanwhile.
    pub(crate) fn hold_for_copy(&mut self, ix: Ix) {
        self.entries[ix].copies += 1;
        self.settle(ix);
    }

    fn release_copy_hold(&mut self, ix: Ix) {
        self.entries[ix].copies = self.entries[ix].copies.saturating_sub(1);
        self.settle(ix);
        self.arm_quiet(ix);
    }

    /// Releases the hold on the source of a copy, once, if both are still there.
    pub(crate) fn release_copy_source(&mut self, copy: Ix) {
        let copying = std::mem::take(&mut self.entries[copy].holds_source);
        let (true, Some(from)) = (copying, self.entries[copy].copying_from) else { return };
        let Own::Session(session) = self.entries[copy].owner else { return };
        let Some(parent) = self.sessions[session].parent else { return };
        let Some(parent) = self.session_index.get(parent.as_u128()) else { return };
        if let Some(ix) = self.sessions[parent].entry
            && self.entries[ix].workspace == from
        {
            self.release_copy_hold(ix);
        }
    }
}

//! Freezing and thawing all processes of a sandbox. Files that only its processes could save are
//! saved first. After a failed freeze the sandbox is thawed before use.

use std::sync::Arc;

use model::{EndCause, ErrorCode, LifecycleEvent, Refusal, RequestId, SandboxId};

use crate::Kernel;
use crate::effect::Action;
use crate::entry::{EntryIx, Frozen, OpKind, Phase};
use crate::event::{FailureKind, Outcome};
use crate::reply::Reply;
use crate::request::WaitingFor;

impl Kernel {
    /// Continues a requested freeze after the save or copy that it waited for.
    pub(crate) fn continue_freeze(&mut self, entry: EntryIx) {
        let wanted = |what: &WaitingFor| matches!(what, WaitingFor::Freeze { frozen: true, .. });
        let rare = self.entries[entry].rare.as_ref();
        let asked =
            rare.is_some_and(|e| e.waiting.iter().any(|req| wanted(&self.requests[*req].what)));
        if !asked || self.is_freeze_under_way(entry) || self.entries[entry].is_read_inside() {
            return;
        }
        if self.entries[entry].may_freeze() && !self.must_save_first(&self.entries[entry]) {
            self.freeze(entry);
        } else {
            self.refuse_pending_freeze(entry);
        }
    }

    /// A sandbox came into use before it could be frozen: refuses the requests for a freeze.
    pub(crate) fn refuse_pending_freeze(&mut self, entry: EntryIx) {
        if self.entries[entry].waiting() > 0 {
            let cause = "the sandbox came into use before it could be frozen";
            self.refuse_freeze_requests(entry, &Refusal::new(ErrorCode::SandboxBusy, cause));
        }
    }

    /// Refuses the requests for a freeze, unless one is under way.
    pub(crate) fn refuse_freeze_requests(&mut self, entry: EntryIx, refusal: &Refusal) {
        if !self.is_freeze_under_way(entry) {
            self.answer_freeze_requests(entry, true, &Err(refusal.clone()));
        }
    }

    /// Whether a sandbox is being frozen or quiesced; the completion looks at freeze requests
    /// again.
    fn is_freeze_under_way(&self, entry: EntryIx) -> bool {
        let sandbox = &self.entries[entry];
        sandbox.ops.is_doing(OpKind::Freeze) || sandbox.ops.is_quiescing()
    }

    pub(crate) fn freeze(&mut self, entry: EntryIx) {
        let action = Action::Freeze { instance: self.entries[entry].instance };
        self.begin(entry, OpKind::Freeze, self.config.deadlines.freeze_ms, action);
    }

    pub(crate) fn thaw(&mut self, entry: EntryIx) {
        let action = Action::Thaw { instance: self.entries[entry].instance };
        self.begin(entry, OpKind::Thaw, self.config.deadlines.freeze_ms, action);
    }

    pub(crate) fn freeze_ended(&mut self, entry: EntryIx, outcome: Outcome) {
        self.entries[entry].file_access.freeze_again_settled();
        let answer = match outcome {
            Outcome::Done => {
                self.entries[entry].frozen = Frozen::Yes;
                self.note_requested_freeze(entry);
                self.stop_process_time(entry);
                self.publish_frozen(entry);
                Ok(Reply::Frozen { frozen: true })
            }
            Outcome::Failed(failure) => match failure.kind {
                FailureKind::Unsupported => {
                    self.entries[entry].traits.can_freeze = false;
                    Err(Refusal::new(ErrorCode::Unsupported, failure.detail.to_string()))
                }
                FailureKind::Trouble
                | FailureKind::Gone
                | FailureKind::FilesGone
                | FailureKind::NeedsGuest
                | FailureKind::Refused(_) => {
                    self.entries[entry].frozen = Frozen::Unsure;
                    Err(Refusal::new(ErrorCode::SandboxBusy, failure.detail.to_string()))
                }
            },
            Outcome::TimedOut => {
                self.entries[entry].frozen = Frozen::Unsure;
                Err(Refusal::new(
                    ErrorCode::DeadlineExceeded,
                    "the sandbox could not be frozen in time",
                ))
            }
        };
        self.arm_processes(entry);
        self.answer_freeze_requests(entry, true, &answer);
        if !self.thaw_if_wanted(entry) {
            self.continue_save(entry);
            self.drive_entry(entry);
        }
    }

    /// Remembers whether a caller asked for the freeze that has just ended.
    fn note_requested_freeze(&mut self, entry: EntryIx) {
        let Some(rare) = &self.entries[entry].rare else { return };
        let asked = |what: &WaitingFor| matches!(what, WaitingFor::Freeze { frozen: true, .. });
        if rare.waiting.iter().any(|req| asked(&self.requests[*req].what)) {
            let rare = self.entries[entry].rare_mut();
            rare.frozen_on_request = true;
            rare.thaw_for_reader = false;
        }
    }

    /// Thaws a frozen sandbox that something keeps alive, or for whose process a caller waits: that
    /// may have begun while it was being frozen.
    pub(crate) fn thaw_if_wanted(&mut self, entry: EntryIx) -> bool {
        let sandbox = &self.entries[entry];
        let thaws = sandbox.frozen == Frozen::Yes
            && sandbox.phase() == Phase::InUse
            && sandbox.ops.is_free()
            && sandbox.termination.is_none()
            && (sandbox.is_kept_alive()
                || sandbox.rare.as_ref().is_some_and(|rare| rare.thaw_for_reader));
        if thaws {
            self.thaw(entry);
        }
        thaws
    }

    pub(crate) fn thaw_ended(&mut self, entry: EntryIx, outcome: Outcome) {
        if self.entries[entry].phase() == Phase::Wiping {
            self.thawed_for_wipe(entry, &outcome);
            return;
        }
        let detail = match outcome {
            Outcome::Done => {
                // A thaw does not prove that the sandbox answers.
                self.entries[entry].frozen = Frozen::No;
                self.resume_process_time(entry);
                // Reading its files is no use of the sandbox.
                let sandbox = &self.entries[entry];
                if !sandbox.file_access.freezes_again() || sandbox.holds.is_wanted() {
                    self.touch(entry);
                    if let Some(rare) = &mut self.entries[entry].rare {
                        rare.frozen_on_request = false;
                        rare.thaw_for_reader = false;
                    }
                }
                self.publish_frozen(entry);
                self.answer_freeze_requests(entry, false, &Ok(Reply::Frozen { frozen: false }));
                self.recompute_demand(entry);
                self.continue_save(entry);
                self.arm_freeze_and_sweep(entry);
                self.drive_entry(entry);
                return;
            }
            Outcome::Failed(failure) => failure.detail,
            Outcome::TimedOut => Arc::from("the sandbox could not be thawed in time"),
        };
        self.died(entry, EndCause::FreezeFailed, Some(detail));
    }

    fn answer_freeze_requests(
        &mut self,
        entry: EntryIx,
        frozen: bool,
        answer: &Result<Reply, Refusal>,
    ) {
        let wanted = |what: &WaitingFor| matches!(what, WaitingFor::Freeze { frozen: asked, .. } if *asked == frozen);
        for req in self.take_waiting(entry, wanted) {
            self.answer(req, answer.clone());
        }
        if let Some(session) = self.entries[entry].session()
            && frozen
        {
            self.pause_frozen(session);
        }
    }

    fn publish_frozen(&mut self, entry: EntryIx) {
        let sandbox = &self.entries[entry];
        let event = LifecycleEvent::SandboxFrozen {
            sandbox_id: sandbox.id,
            generation: sandbox.generation,
            frozen: sandbox.frozen == Frozen::Yes,
        };
        self.publish(sandbox.tenant(), event);
    }

    pub(crate) fn freeze_requested(
        &mut self,
        request: RequestId,
        sandbox: SandboxId,
    ) -> Result<Reply, Refusal> {
        let entry = self.usable(sandbox)?;
        Self::refuse_when_crowded(self.entries[entry].waiting())?;
        let known = &self.entries[entry];
        if known.frozen == Frozen::Yes && known.ops.is_free() {
            self.entries[entry].rare_mut().frozen_on_request = true;
            return Ok(Reply::Frozen { frozen: true });
        }
        if !known.traits.can_freeze {
            let cause = "the runtime of this template cannot freeze";
            return Err(Refusal::new(ErrorCode::Unsupported, cause));
        }
        let kills = known.kills_until().is_some_and(|until| until > self.now.mono);
        // A copy of its files ends soon, and the freeze waits for that.
        let waits = known.ops.is_quiescing() || known.file_access.freezes_again();
        if kills || !(known.may_freeze() || waits && known.may_freeze_soon()) {
            let cause = "the sandbox is in use, or something keeps it alive";
            return Err(Refusal::new(ErrorCode::SandboxBusy, cause));
        }
        let saves = self.must_save_first(known);
        self.await_freeze(request, entry, true);
        if waits {
            self.arm_freeze_and_sweep(entry);
        } else if saves {
            self.save(entry);
        } else {
            self.freeze(entry);
        }
        Ok(Reply::Pending)
    }

    pub(crate) fn thaw_requested(
        &mut self,
        request: RequestId,
        sandbox: SandboxId,
    ) -> Result<Reply, Refusal> {
        let entry = self.usable(sandbox)?;
        Self::refuse_when_crowded(self.entries[entry].waiting())?;
        let known = &self.entries[entry];
        let stands = known.ops.is_doing(OpKind::Freeze) || known.ops.is_quiescing();
        if known.frozen == Frozen::No && !stands {
            if known.file_access.freezes_again() {
                // It was thawed only for a copy; from now on it runs for a caller.
                self.touch(entry);
                self.refuse_pending_freeze(entry);
                self.arm_freeze_and_sweep(entry);
            }
            return Ok(Reply::Frozen { frozen: false });
        }
        self.await_freeze(request, entry, false);
        self.recompute_demand(entry);
        self.drive_entry(entry);
        Ok(Reply::Pending)
    }

    fn await_freeze(&mut self, request: RequestId, entry: EntryIx, frozen: bool) {
        let deadline = self.now.mono.plus(self.config.control_timeout_ms);
        let req = self.wait_until(request, deadline, WaitingFor::Freeze { entry, frozen });
        self.entries[entry].rare_mut().waiting.push(req);
    }
}

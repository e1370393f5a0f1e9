//! Operations on a session: abort, pause, stop, end and fork. One is in progress at a time; callers
//! that request the same one join it, and all get the same answer when it has ended.

use model::{EndCause, ErrorCode, Refusal, RequestId, SessionStatus};

use crate::Kernel;
use crate::entry::{AfterEnd, EntryIx, Firmness, Phase, Termination};
use crate::reply::Reply;
use crate::request::WaitingFor;
use crate::session::{Control, ControlKind, SessionIx};

impl Kernel {
    /// Begins an operation that ends the sandbox of a session, for a caller.
    pub(crate) fn leave_on_request(
        &mut self,
        request: RequestId,
        session: SessionIx,
        kind: ControlKind,
    ) -> Result<Reply, Refusal> {
        self.begin_control(request, session, kind)?;
        let refusal = Refusal::new(ErrorCode::Aborted, "the session is being stopped or ended");
        self.begin_leaving(session, kind, &refusal);
        Ok(Reply::Pending)
    }

    /// Begins an operation that ends the sandbox of a session. The refusal is for the callers that
    /// want the sandbox.
    pub(crate) fn begin_leaving(
        &mut self,
        session: SessionIx,
        kind: ControlKind,
        refusal: &Refusal,
    ) {
        let known = &mut self.sessions[session];
        known.control.get_or_insert(Control { kind, requests: Vec::new() });
        self.drop_queued_turns(session);
        for req in std::mem::take(&mut self.sessions[session].wanting) {
            self.answer(req, Err(refusal.clone()));
        }
        self.session_unwanted(session);
        self.stop_any_turn(session, refusal);
        self.continue_control(session);
    }

    /// Begins an operation on a session, or joins the same one if it is in progress.
    pub(crate) fn begin_control(
        &mut self,
        request: RequestId,
        session: SessionIx,
        kind: ControlKind,
    ) -> Result<(), Refusal> {
        if let Some(control) = &self.sessions[session].control
            && std::mem::discriminant(&control.kind) != std::mem::discriminant(&kind)
        {
            let cause = "another operation on the session is in progress";
            return Err(Refusal::new(ErrorCode::SessionBusy, cause));
        }
        let waiting = self.sessions[session].control.as_ref().map_or(0, |c| c.requests.len());
        Self::refuse_when_crowded(waiting)?;
        let deadline = self.now.mono.plus(self.config.control_timeout_ms);
        let req = self.wait_until(request, deadline, WaitingFor::Control { session });
        self.sessions[session]
            .control
            .get_or_insert(Control { kind, requests: Vec::new() })
            .requests
            .push(req);
        Ok(())
    }

    /// Continues an operation once the turn has ended.
    pub(crate) fn continue_control(&mut self, session: SessionIx) {
        // The end of the turn may have ended the operation, and the session too.
        let Some(known) = self.sessions.get(session) else { return };
        let Some(control) = &known.control else { return };
        if known.turn.is_some() {
            return;
        }
        let kind = control.kind;
        let live = known.entry.filter(|entry| self.entries[*entry].is_live());
        let (cause, firmness) = match kind {
            ControlKind::Abort { turn, keep_sandbox: true } => {
                let sandbox_kept =
                    live.is_some_and(|entry| self.entries[entry].termination.is_none());
                let reply = Reply::Aborted { turn: Some(turn), sandbox_kept };
                self.finish_control(session, &Ok(reply));
                return;
            }
            ControlKind::Abort { keep_sandbox: false, .. } => {
                (EndCause::UserAbort, Firmness::Careful)
            }
            ControlKind::Stop => (EndCause::SessionStopped, Firmness::Careful),
            ControlKind::Expire => (EndCause::DeadlineReached, Firmness::Firm),
            ControlKind::End(cause) => {
                self.end_for_good(session, cause);
                return;
            }
            ControlKind::Pause | ControlKind::Fork => return,
        };
        match live {
            Some(entry) => {
                let after = match (self.after_leaving(entry), kind) {
                    // An abort replaces the sandbox: its id is not valid again.
                    (AfterEnd::Cold, ControlKind::Abort { .. }) => AfterEnd::Renamed,
                    (after, _) => after,
                };
                self.end(entry, cause, after, firmness);
            }
            None => self.leave_finished(session),
        }
    }

    /// Ends a session and deletes its files, as its owner requested or its deadline says. The
    /// deletion is journalled together with the end of the sandbox, so a restart continues it.
    fn end_for_good(&mut self, session: SessionIx, cause: EndCause) {
        self.sessions[session].ended_by = Some(cause);
        if self.flaw_ends_without_files(session) {
            return;
        }
        self.delete_shelved_files(session);
        let Some(entry) = self.sessions[session].entry else {
            self.leave_finished(session);
            return;
        };
        let sandbox = &mut self.entries[entry];
        if sandbox.is_live() {
            self.end(entry, cause, AfterEnd::Gone, Firmness::Now);
        } else if !sandbox.ops.is_free() && !sandbox.is_archiving() {
            // Its files are still being copied into it: it is removed when the copy has ended.
            sandbox.termination = Some(Box::new(Termination::now(cause)));
            self.mark(entry);
            self.settle(entry);
        } else {
            self.remove_entry(entry, cause, None, None);
        }
    }

    /// What stays of a sandbox that its session gives up.
    pub(crate) fn after_leaving(&self, entry: EntryIx) -> AfterEnd {
        let sandbox = &self.entries[entry];
        match sandbox.phase() {
            Phase::InUse => AfterEnd::Cold,
            Phase::Launching if sandbox.files.has_files() => AfterEnd::Cold,
            // A sandbox that is still being claimed was never its session's.
            Phase::Launching
            | Phase::Claiming(_)
            | Phase::Cold
            | Phase::Idle
            | Phase::Wiping
            | Phase::Proving => AfterEnd::Gone,
            Phase::Killing => {
                sandbox.termination.as_ref().map_or(AfterEnd::Gone, |termination| termination.after)
            }
        }
    }

    /// The sandbox of a session is gone, so the operation that ended it is complete.
    pub(crate) fn leave_finished(&mut self, session: SessionIx) {
        let Some(known) = self.sessions.get(session) else { return };
        let Some(control) = &known.control else { return };
        if known.turn.is_some() && control.kind != ControlKind::Pause {
            return;
        }
        let reply = match control.kind {
            ControlKind::Abort { turn, .. } => {
                Reply::Aborted { turn: Some(turn), sandbox_kept: false }
            }
            ControlKind::Stop => {
                self.set_status(session, SessionStatus::Stopped);
                Reply::Stopped
            }
            ControlKind::Expire => {
                self.set_status(session, SessionStatus::Paused);
                Reply::Paused
            }
            ControlKind::End(_) => {
                self.set_status(session, SessionStatus::Ended);
                Reply::Ended
            }
            ControlKind::Pause => Reply::Paused,
            ControlKind::Fork => return,
        };
        self.finish_control(session, &Ok(reply));
        self.drop_if_ended(session);
    }

    pub(crate) fn finish_control(&mut self, session: SessionIx, result: &Result<Reply, Refusal>) {
        let Some(control) = self.sessions[session].control.take() else { return };
        for req in control.requests {
            self.answer(req, result.clone());
        }
        self.session_due(session);
        self.start_next_turn(session);
        self.session_unwanted(session);
        if self.sessions.get(session).is_some() {
            self.arm_deadline(session);
        }
    }

    /// The termination of a session's sandbox was voided, because a save failed or because it came
    /// into use.
    pub(crate) fn termination_voided(&mut self, session: SessionIx, refusal: &Refusal) {
        let Some(control) = &self.sessions[session].control else { return };
        let result = match control.kind {
            ControlKind::Abort { turn, .. } => {
                Ok(Reply::Aborted { turn: Some(turn), sandbox_kept: true })
            }
            ControlKind::Stop | ControlKind::Expire | ControlKind::End(_) => Err(refusal.clone()),
            ControlKind::Pause | ControlKind::Fork => return,
        };
        self.finish_control(session, &result);
    }
}

//! The life of sessions: created, resumed, stopped, ended, and what the end of its sandbox means
//! for one. Only the status of a session says what became of it.

use std::collections::BTreeMap;
use std::sync::Arc;

use model::lifecycle::{SessionChange, TurnOutcome};
use model::record::JournalEntry;
use model::{
    EndCause, ErrorCode, LifecycleEvent, Refusal, RequestId, SessionId, SessionStatus,
    TemplateName, TerminatedReason, TurnId,
};

use crate::Kernel;
use crate::alarms::Ringer;
use crate::event::{DeadlineChange, SessionSettings};
use crate::removal::launch_failure;
use crate::reply::Reply;
use crate::request::WaitingFor;
use crate::session::{ControlKind, Session, SessionIx};
use crate::tombstones::SessionTombstone;

impl Kernel {
    pub(crate) fn session_created(
        &mut self,
        request: RequestId,
        id: SessionId,
        template: TemplateName,
        settings: SessionSettings,
        wait_ms: Option<u64>,
    ) -> Result<Reply, Refusal> {
        self.refuse_when_stopping()?;
        let pool = self.served_pool(&template)?;
        self.refuse_when_closed(pool)?;
        self.refuse_new_session(id)?;
        self.refuse_session_above_limits(settings.tenant)?;
        self.refuse_deadline(settings.deadline)?;
        self.refuse_wider_network(pool, settings.claim.as_deref())?;
        let session = self.new_session(id, template, settings);
        self.await_bind(request, session, wait_ms);
        self.mark_session(session);
        Ok(Reply::Pending)
    }

    /// Refuses a session whose id exists already, or that is above the limit.
    pub(crate) fn refuse_new_session(&self, id: SessionId) -> Result<(), Refusal> {
        if self.sessions.by_id(id).is_some() || self.tombstones.of_session(id).is_some() {
            let cause = format!("session {id} exists already");
            return Err(Refusal::new(ErrorCode::IdConflict, cause));
        }
        if self.sessions.len() >= self.config.max_sessions as usize {
            let cause = format!("there are {} sessions already", self.config.max_sessions);
            return Err(Refusal::new(ErrorCode::CapacityExhausted, cause));
        }
        Ok(())
    }

    pub(crate) fn new_session(
        &mut self,
        id: SessionId,
        template: TemplateName,
        settings: SessionSettings,
    ) -> SessionIx {
        let session = Session::new(id, template, settings, self.now.wall);
        let session = self.sessions.insert(session);
        self.arm_deadline(session);
        session
    }

    fn await_bind(&mut self, request: RequestId, session: SessionIx, wait_ms: Option<u64>) {
        let req = self.wait_for_session(request, wait_ms, WaitingFor::Bind { session });
        self.sessions[session].wanting.push(req);
        self.engage(session);
    }

    pub(crate) fn resume_requested(
        &mut self,
        request: RequestId,
        id: SessionId,
        wait_ms: Option<u64>,
    ) -> Result<Reply, Refusal> {
        self.refuse_when_stopping()?;
        let session = self.session_by_id(id)?;
        let known = &self.sessions[session];
        if known.status == SessionStatus::Ended {
            return Err(Refusal::new(ErrorCode::SessionEnded, "the session has ended"));
        }
        if known.is_leaving() {
            let cause = "the session is being stopped or ended";
            return Err(Refusal::new(ErrorCode::SessionBusy, cause));
        }
        Self::refuse_when_crowded(known.wanting.len())?;
        self.await_bind(request, session, wait_ms);
        Ok(Reply::Pending)
    }

    /// Nothing in a sandbox depends on these settings, so nothing is bound again.
    pub(crate) fn session_changed(
        &mut self,
        id: SessionId,
        labels: Option<BTreeMap<String, String>>,
        config: Option<Arc<str>>,
        deadline: DeadlineChange,
    ) -> Result<Reply, Refusal> {
        let session = self.session_by_id(id)?;
        if self.sessions[session].status == SessionStatus::Ended {
            return Err(Refusal::new(ErrorCode::SessionEnded, "the session has ended"));
        }
        match deadline {
            DeadlineChange::Keep => {}
            DeadlineChange::Remove => self.set_deadline(session, None),
            DeadlineChange::Set(deadline) => {
                self.refuse_deadline(Some(deadline))?;
                self.set_deadline(session, Some(deadline));
            }
        }
        let known = &mut self.sessions[session];
        let mut claim = known.settings.claim.as_deref().cloned().unwrap_or_default();
        claim.labels = labels.unwrap_or(claim.labels);
        if let Some(config) = config {
            claim.config = Some(config).filter(|config| &**config != "null");
        }
        let claim = (!claim.is_empty()).then(|| Arc::new(claim));
        known.settings.claim.clone_from(&claim);
        if let Some(entry) = known.entry
            && self.entries[entry].is_live()
        {
            self.entries[entry].settings = claim;
        }
        self.mark_session(session);
        Ok(Reply::Noted)
    }

    pub(crate) fn session_stop_requested(
        &mut self,
        request: RequestId,
        id: SessionId,
    ) -> Result<Reply, Refusal> {
        let session = self.session_by_id(id)?;
        match self.sessions[session].status {
            SessionStatus::Stopped => return Ok(Reply::Stopped),
            SessionStatus::Ended => {
                return Err(Refusal::new(ErrorCode::SessionEnded, "the session has ended"));
            }
            SessionStatus::Starting => {
                let cause = "the session is still being created";
                return Err(Refusal::new(ErrorCode::SessionBusy, cause));
            }
            SessionStatus::Active | SessionStatus::Paused => {}
        }
        self.leave_on_request(request, session, ControlKind::Stop)
    }

    pub(crate) fn session_end_requested(
        &mut self,
        request: RequestId,
        id: SessionId,
    ) -> Result<Reply, Refusal> {
        let session = match self.session_by_id(id) {
            Ok(session) => session,
            Err(refusal) if refusal.code == ErrorCode::SessionEnded => return Ok(Reply::Ended),
            Err(refusal) => return Err(refusal),
        };
        if self.sessions[session].status == SessionStatus::Ended {
            return Ok(Reply::Ended);
        }
        self.leave_on_request(request, session, ControlKind::End(EndCause::SessionEnded))
    }

    /// The sandbox of a session is cold now.
    pub(crate) fn session_lost_sandbox(
        &mut self,
        session: SessionIx,
        cause: EndCause,
        detail: Option<&str>,
    ) {
        self.mark_session(session);
        self.sessions[session].coming = None;
        let set_aside = match cause.reason() {
            TerminatedReason::Idle
            | TerminatedReason::Expired
            | TerminatedReason::Evicted
            | TerminatedReason::Shutdown => true,
            TerminatedReason::UserAbort
            | TerminatedReason::Crash
            | TerminatedReason::Oom
            | TerminatedReason::DiskLimit
            | TerminatedReason::Replaced
            | TerminatedReason::Deleted
            | TerminatedReason::Policy => false,
        };
        let known = &self.sessions[session];
        if set_aside && known.status == SessionStatus::Active && !known.is_ending() {
            self.set_status(session, SessionStatus::Paused);
        }
        if let Some(code) = launch_failure(cause) {
            let text = detail.unwrap_or("the runtime gave no reason").to_owned();
            self.fail_wants(session, &Refusal::new(code, text));
        }
        if self.sessions.get(session).is_some() {
            self.leave_finished(session);
        }
        if self.sessions.get(session).is_some() {
            self.session_due(session);
        }
    }

    /// The entry of a session's sandbox is removed.
    pub(crate) fn session_without_entry(
        &mut self,
        session: SessionIx,
        cause: EndCause,
        detail: Option<&str>,
    ) {
        self.sessions[session].entry = None;
        // Its application was for a place only, and it needs an entry too now.
        self.unapply(session);
        self.refuse_uses_by_id(session, cause);
        if let Some(control) = &self.sessions[session].control
            && control.kind == ControlKind::Fork
        {
            let text = detail.unwrap_or("the sandbox of the fork was deleted").to_owned();
            self.set_status(session, SessionStatus::Ended);
            self.finish_control(session, &Err(Refusal::new(ErrorCode::Aborted, text)));
        }
        if self.sessions[session].status == SessionStatus::Ended {
            self.mark_session(session);
            self.leave_finished(session);
            self.drop_if_ended(session);
            return;
        }
        self.session_lost_sandbox(session, cause, detail);
    }

    /// Removes a session that has ended and has no sandbox.
    pub(crate) fn drop_if_ended(&mut self, session: SessionIx) {
        let Some(known) = self.sessions.get(session) else { return };
        if known.status == SessionStatus::Ended && known.entry.is_none() {
            self.drop_session(session);
        }
    }

    pub(crate) fn drop_session(&mut self, session: SessionIx) {
        let refusal = Refusal::new(ErrorCode::SessionEnded, "the session has ended");
        // Nothing else refers to its files.
        self.delete_shelved_files(session);
        for req in std::mem::take(&mut self.sessions[session].wanting) {
            self.answer(req, Err(refusal.clone()));
        }
        if let Some(end) = self.sessions[session].unpublished_end.take() {
            self.publish_turn_ended(session, end.turn, end.outcome);
        }
        self.drop_queued_turns(session);
        self.drop_turn(session, &refusal);
        let mut known = self.sessions.remove(session);
        for req in known.control.take().into_iter().flat_map(|control| control.requests) {
            self.answer(req, Err(refusal.clone()));
        }
        if let Some(seq) = known.applied {
            self.withdraw_application(seq);
        }
        self.alarms.clear(Ringer::Session(session), &mut known.alarm);
        let at_deadline = known.ended_by == Some(EndCause::DeadlineReached);
        let end = SessionTombstone { tenant: known.settings.tenant, at_deadline };
        self.tombstones.remember_session(known.id, end);
        self.out.journal.push(JournalEntry::SessionRemoved(known.id));
    }

    pub(crate) fn drop_queued_turns(&mut self, session: SessionIx) {
        if !self.sessions[session].queued.is_empty() {
            self.mark_session(session);
        }
        // Their senders may repeat them after a restart, or in a session that was only paused.
        let outcome = if self.shutdown.is_some() {
            TurnOutcome::Interrupted
        } else if self.sessions[session].leaves_at_deadline() {
            TurnOutcome::Expired
        } else {
            TurnOutcome::Aborted
        };
        for queued in std::mem::take(&mut self.sessions[session].queued) {
            self.forget_turn_client(queued.client);
            self.publish_turn_ended(session, queued.turn, outcome);
        }
    }

    pub(crate) fn set_status(&mut self, session: SessionIx, status: SessionStatus) {
        let known = &mut self.sessions[session];
        if known.status == status {
            return;
        }
        let change = match (known.status, status) {
            (SessionStatus::Starting, SessionStatus::Active) => SessionChange::Created,
            (_, SessionStatus::Active | SessionStatus::Starting) => SessionChange::Resumed,
            (_, SessionStatus::Paused) => SessionChange::Paused,
            (_, SessionStatus::Stopped) => SessionChange::Stopped,
            (_, SessionStatus::Ended) => SessionChange::Ended,
        };
        known.status = status;
        self.publish_session(session, change);
        self.mark_session(session);
        self.arm_deadline(session);
    }

    pub(crate) fn publish_session(&mut self, session: SessionIx, change: SessionChange) {
        let known = &self.sessions[session];
        let event = LifecycleEvent::SessionChanged { session: known.id, change };
        self.publish(known.settings.tenant, event);
    }

    pub(crate) fn publish_turn_ended(
        &mut self,
        session: SessionIx,
        turn: TurnId,
        outcome: TurnOutcome,
    ) {
        let known = &self.sessions[session];
        let event = LifecycleEvent::TurnEnded { session: known.id, turn, outcome };
        self.publish(known.settings.tenant, event);
    }
}

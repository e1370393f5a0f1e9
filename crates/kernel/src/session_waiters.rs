//! Callers that want the sandbox of a session. They are served together when it is ready, or
//! refused together when the session cannot get one. A session that never had a sandbox is removed
//! with the last of them.

use model::lifecycle::ActiveCause;
use model::{EndCause, ErrorCode, LifecycleEvent, Refusal, SessionStatus};

use crate::Kernel;
use crate::entry::{AfterEnd, EntryIx, Firmness};
use crate::removal::gone;
use crate::reply::{Reply, SessionReady};
use crate::request::{RequestIx, WaitingFor};
use crate::session::{Session, SessionIx};

impl Kernel {
    /// The sandbox of a session is ready: serves all callers that want it.
    pub(crate) fn serve_session(&mut self, session: SessionIx, entry: EntryIx) {
        self.refuse_pending_freeze(entry);
        let coming = self.sessions[session].coming.take();
        self.sessions[session].failed_claims = 0;
        let turn_starts = self.sessions[session].is_binding();
        let cause = coming.unwrap_or(ActiveCause::Reconnected);
        if coming.is_some() || turn_starts {
            self.publish_active(session, entry, cause);
        }
        self.count_resume(session, coming);
        self.set_status(session, SessionStatus::Active);
        let sandbox = &self.entries[entry];
        let ready = SessionReady {
            session: self.sessions[session].id,
            sandbox: sandbox.id,
            generation: sandbox.generation,
            instance: sandbox.instance,
            cause,
            state_lost: self.sessions[session].state_lost,
        };
        for req in std::mem::take(&mut self.sessions[session].wanting) {
            let reply = match self.requests[req].what {
                WaitingFor::SessionUse { use_id, kind, .. } => {
                    Reply::Granted(self.grant(entry, use_id, kind))
                }
                WaitingFor::Bind { .. }
                | WaitingFor::Checkout(_)
                | WaitingFor::Turn { .. }
                | WaitingFor::Control { .. }
                | WaitingFor::LeaseUse { .. }
                | WaitingFor::Freeze { .. }
                | WaitingFor::Delete { .. }
                | WaitingFor::Read
                | WaitingFor::Destroy { .. } => Reply::SessionReady(ready.clone()),
            };
            self.answer(req, Ok(reply));
        }
        if turn_starts {
            self.start_turn(session, entry, ready);
        }
        self.touch(entry);
        self.recompute_demand(entry);
        self.mark_session(session);
        self.arm_freeze_and_sweep(entry);
    }

    fn publish_active(&mut self, session: SessionIx, entry: EntryIx, cause: ActiveCause) {
        let sandbox = &mut self.entries[entry];
        let known = &mut self.sessions[session];
        sandbox.previous_id = None;
        let previous_id = known.told_id.replace(sandbox.id).filter(|last| *last != sandbox.id);
        let state_lost = known.state_lost.is_some();
        let event = LifecycleEvent::SandboxActive {
            session: Some(known.id),
            lease: None,
            sandbox_id: sandbox.id,
            generation: sandbox.generation,
            cause,
            previous_id,
            state_lost,
            expires_at: sandbox.life.expires_at(),
        };
        let tenant = known.settings.tenant;
        self.publish(tenant, event);
    }

    /// Counts a resume, by message or by call.
    pub(crate) fn count_resume(&mut self, session: SessionIx, coming: Option<ActiveCause>) {
        let set_aside =
            matches!(self.sessions[session].status, SessionStatus::Paused | SessionStatus::Stopped);
        match coming {
            Some(ActiveCause::Resumed | ActiveCause::Replaced) => self.counts.resumed_cold(),
            Some(ActiveCause::Created) | None if set_aside => self.counts.resumed_warm(),
            Some(ActiveCause::Created | ActiveCause::Reconnected) | None => {}
        }
    }

    /// The session cannot get a sandbox: refuses all callers that want it.
    pub(crate) fn fail_wants(&mut self, session: SessionIx, refusal: &Refusal) {
        for req in std::mem::take(&mut self.sessions[session].wanting) {
            self.answer(req, Err(refusal.clone()));
        }
        if self.sessions[session].is_binding() {
            self.turn_not_started(session, refusal);
        }
        self.session_unwanted(session);
    }

    /// Refuses callers that want a sandbox by an id that no longer exists.
    pub(crate) fn refuse_uses_by_id(&mut self, session: SessionIx, cause: EndCause) {
        let requests = &self.requests;
        let stale = |req: &mut RequestIx| {
            matches!(requests[*req].what, WaitingFor::SessionUse { by_id: true, .. })
        };
        let stale: Vec<RequestIx> = self.sessions[session].wanting.extract_if(.., stale).collect();
        for req in stale {
            self.answer(req, Err(gone(cause)));
        }
    }

    /// A caller no longer wants a session's sandbox.
    pub(crate) fn session_unwanted(&mut self, session: SessionIx) {
        // The session may be removed with the last caller that wanted it.
        if self.sessions.get(session).is_none_or(Session::wants) {
            return;
        }
        self.unapply(session);
        if let Some(entry) = self.sessions[session].entry {
            self.recompute_demand(entry);
        }
        self.arm_shelved_pruning(session);
        self.arm_deadline(session);
        let known = &self.sessions[session];
        // A session that is being ended is removed by that.
        if known.status == SessionStatus::Starting && known.control.is_none() {
            self.abandon_session(session);
        }
    }

    /// Removes a session that no caller was answered about, with its sandbox.
    fn abandon_session(&mut self, session: SessionIx) {
        self.set_status(session, SessionStatus::Ended);
        match self.sessions[session].entry {
            Some(entry) => self.end(entry, EndCause::ClientGone, AfterEnd::Gone, Firmness::Now),
            None => self.drop_session(session),
        }
    }

    pub(crate) fn bind_overdue(&self, session: SessionIx) -> Refusal {
        if self.sessions[session].applied.is_some() {
            self.capacity_exhausted(self.shortage())
        } else {
            Refusal::new(ErrorCode::ReadyTimeout, "no sandbox was ready in time")
        }
    }
}

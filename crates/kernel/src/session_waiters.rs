//! Those who want the sandbox of a session: they are served together when it is ready, or refused
//! together when it cannot be had. A session that never had a sandbox goes with the last of them.

use model::lifecycle::ActiveCause;
use model::{EndCause, ErrorCode, LifecycleEvent, Refusal, SessionStatus};

use crate::Kernel;
use crate::admission::capacity_exhausted;
use crate::entry::{AfterEnd, EntryIx, Firmness};
use crate::removal::gone;
use crate::reply::{Reply, SessionReady};
use crate::request::{RequestIx, WaitingFor};
use crate::session::{Session, SessionIx};

impl Kernel {
    /// The sandbox of a session is ready: everyone who wants it is served.
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
        let previous_id = known.told_id.replace(sandbox.id).filter(|told| *told != sandbox.id);
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

    /// A resume by message counts like one by call.
    pub(crate) fn count_resume(&mut self, session: SessionIx, coming: Option<ActiveCause>) {
        let set_aside =
            matches!(self.sessions[session].status, SessionStatus::Paused | SessionStatus::Stopped);
        match coming {
            Some(ActiveCause::Resumed | ActiveCause::Replaced) => self.counts.resumed_cold(),
            Some(ActiveCause::Created) | None if set_aside => self.counts.resumed_warm(),
            Some(ActiveCause::Created | ActiveCause::Reconnected) | None => {}
        }
    }

    /// The sandbox cannot be had: refuses all who want it.
    pub(crate) fn fail_wants(&mut self, session: SessionIx, refusal: &Refusal) {
        for req in std::mem::take(&mut self.sessions[session].wanting) {
            self.answer(req, Err(refusal.clone()));
        }
        if self.sessions[session].is_binding() {
            self.turn_not_started(session, refusal);
        }
        self.session_unwanted(session);
    }

    /// Refuses those who want a sandbox by an id that is no more.
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

    /// A caller stopped wanting a session's sandbox.
    pub(crate) fn session_unwanted(&mut self, session: SessionIx) {
        // It may be gone with the last one who wanted it.
        if self.sessions.get(session).is_none_or(Session::wants) {
            return;
        }
        self.unapply(session);
        if let Some(entry) = self.sessions[session].entry {
            self.recompute_demand(entry);
        }
        self.arm_shelved_pruning(session);
        let known = &self.sessions[session];
        // One that is being ended goes with that.
        if known.status == SessionStatus::Starting && known.control.is_none() {
            self.abandon_session(session);
        }
    }

    /// A session that no caller got to know goes, with what was made for it.
    fn abandon_session(&mut self, session: SessionIx) {
        self.set_status(session, SessionStatus::Ended);
        match self.sessions[session].entry {
            Some(entry) => self.end(entry, EndCause::ClientGone, AfterEnd::Gone, Firmness::Now),
            None => self.drop_session(session),
        }
    }

    pub(crate) fn bind_overdue(&self, session: SessionIx) -> Refusal {
        if self.sessions[session].applied.is_some() {
            capacity_exhausted()
        } else {
            Refusal::new(ErrorCode::ReadyTimeout, "no sandbox was ready in time")
        }
    }
}

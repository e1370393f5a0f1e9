//! How a session comes by its sandbox. There is one flight at a time per session: whoever wants the
//! sandbox waits for the same one. A live one is thawed and probed first; a cold one is launched on
//! its files; a session without any takes an idle one of the pool, or gets its own.

use std::sync::Arc;

use model::lifecycle::{ActiveCause, SessionChange};
use model::state::PoolPhase;
use model::{EndCause, ErrorCode, LifecycleEvent, Refusal, SessionStatus};

use crate::Kernel;
use crate::admission::{Applicant, Who, capacity_exhausted};
use crate::disk::disk_full;
use crate::effect::Action;
use crate::entry::{After, EntryIx, OpKind, Own, Phase, Resolve};
use crate::event::bound_generation;
use crate::pool::PoolIx;
use crate::removal::gone;
use crate::reply::{Reply, SessionReady};
use crate::request::{RequestIx, Waiting};
use crate::session::{ControlKind, Session, SessionIx};

impl Kernel {
    /// Someone wants a session's sandbox: from now on nothing may take that away.
    pub(crate) fn engage(&mut self, session: SessionIx) {
        if let Some(entry) = self.sessions[session].entry {
            let sandbox = &self.entries[entry];
            let voidable = sandbox.ending.as_ref().is_some_and(|e| e.resolve == Resolve::Voidable);
            if voidable && sandbox.phase == Phase::InUse && !self.flaws.ends_victim_in_use() {
                let refusal = Refusal::new(ErrorCode::SandboxBusy, "it came into use again");
                self.void_ending(entry, &refusal);
            }
            self.flaw_gets_another_sandbox(session, entry);
            self.repin(entry);
        }
        self.session_due(session);
    }

    /// Takes the next step to whatever a session wants.
    pub(crate) fn drive_session(&mut self, session: SessionIx) {
        let known = &self.sessions[session];
        if !known.wants() || known.is_leaving() {
            return;
        }
        let Some(entry) = known.entry else {
            if known.applied.is_none() {
                self.bind_new(session);
            }
            return;
        };
        let sandbox = &self.entries[entry];
        match sandbox.phase {
            Phase::Cold => {
                self.call_off_archive(entry);
                if self.entries[entry].ops.is_free() && self.sessions[session].applied.is_none() {
                    self.apply_for_session(session);
                }
            }
            Phase::InUse if sandbox.ending.is_none() && sandbox.ops.is_free() => {
                if !self.is_restful(entry) {
                    self.thaw(entry);
                } else if self.needs_probe(entry) {
                    self.probe(entry, 1);
                } else {
                    self.serve_session(session, entry);
                }
            }
            // Something is in progress, at whose end this is looked at again.
            Phase::InUse | Phase::Launching | Phase::Claiming(_) | Phase::Killing => {}
            Phase::Idle | Phase::Wiping | Phase::Proving => {
                unreachable!("a session's sandbox is in no pool")
            }
        }
    }

    /// A session without a sandbox takes an idle one, or gets one of its own.
    fn bind_new(&mut self, session: SessionIx) {
        let known = &self.sessions[session];
        let pool = match self.served_pool(&known.template) {
            Ok(pool) => pool,
            Err(refusal) => {
                self.fail_wants(session, &refusal);
                return;
            }
        };
        // One with files is launched on them.
        let open = known.shelf.is_none()
            && self.pools[pool].phase == PoolPhase::Active
            && self.pools[pool].queue.is_empty();
        let idle = if open { self.take_idle(pool) } else { None };
        match idle {
            Some(entry) => self.claim_for_session(session, entry, pool),
            None => self.apply_for_session(session),
        }
    }

    /// Takes an idle sandbox out of its pool for a session.
    fn claim_for_session(&mut self, session: SessionIx, entry: EntryIx, pool: PoolIx) {
        self.leave_pool_line(entry);
        self.pools[pool].occupied.slot_freed();
        self.pools[pool].counters.fast += 1;
        self.pool_due(pool);
        let known = &mut self.sessions[session];
        let sandbox = &mut self.entries[entry];
        sandbox.slot = None;
        sandbox.belongs.given_to_session(session, known.settings.tenant);
        sandbox.generation = bound_generation(known.generation, sandbox.generation);
        sandbox.settings.clone_from(&known.settings.claim);
        sandbox.phase = Phase::Claiming(None);
        sandbox.uses += 1;
        sandbox.clean.given_to_session();
        sandbox.holds.pin();
        sandbox.life.unlimited();
        known.generation = sandbox.generation;
        known.entry = Some(entry);
        known.coming = Some(if known.status == SessionStatus::Starting {
            ActiveCause::Created
        } else {
            ActiveCause::Replaced
        });
        let action = Action::Claim {
            instance: sandbox.instance,
            settings: sandbox.settings.clone(),
            expires_at: sandbox.life.expires_at(),
        };
        let timeout_ms = self.claim_timeout_ms(entry);
        self.begin(entry, OpKind::Claim, timeout_ms, action);
        self.mark(entry);
        self.mark_session(session);
        self.settle(entry);
    }

    /// The sandbox that was being bound to a session is lost: it looks for another.
    pub(crate) fn claim_lost_by_session(&mut self, session: SessionIx, entry: EntryIx) {
        let known = &mut self.sessions[session];
        if known.wants() && known.control.is_none() {
            self.entries[entry].belongs.given_back();
            known.entry = None;
            self.mark_session(session);
            self.session_due(session);
        } else {
            // Nobody wants another: whoever waits for the end of this one is told when it is gone.
            // Its files were never the session's.
            self.entries[entry].files.files_left();
        }
    }

    /// Stands in line for a process for a session, unless there is no hope.
    fn apply_for_session(&mut self, session: SessionIx) {
        let known = &self.sessions[session];
        let pool = match self.served_pool(&known.template) {
            Ok(pool) if self.pools[pool].phase != PoolPhase::Destroying => pool,
            Ok(_) => {
                let cause = "the pool of this template is being destroyed";
                self.fail_wants(session, &Refusal::new(ErrorCode::TemplateUnknown, cause));
                return;
            }
            Err(refusal) => {
                self.fail_wants(session, &refusal);
                return;
            }
        };
        if self.lacks_disk(pool) {
            self.fail_wants(session, &disk_full());
            return;
        }
        let memory_mb = self.pools[pool].template.limits.memory_mb.into();
        let needs_entry = known.entry.is_none();
        if let Some(entry) = known.entry {
            // A cold one that is about to be launched must not be evicted for its own sake.
            self.repin(entry);
        }
        let who = Who::Session(session);
        let seq = self.apply_for_place(Applicant { who, needs_entry, memory_mb });
        self.sessions[session].applied = Some(seq);
        self.make_room();
        if !self.is_covered(seq) {
            self.unapply(session);
            self.fail_wants(session, &capacity_exhausted());
        }
    }

    pub(crate) fn unapply(&mut self, session: SessionIx) {
        if let Some(seq) = self.sessions[session].applied.take() {
            self.withdraw_application(seq);
        }
    }

    /// A process may be started for a session.
    pub(crate) fn place_for_session(&mut self, session: SessionIx) {
        self.sessions[session].applied = None;
        let pool = match self.served_pool(&self.sessions[session].template) {
            Ok(pool) => pool,
            Err(refusal) => {
                self.fail_wants(session, &refusal);
                return;
            }
        };
        if self.lacks_disk(pool) {
            self.fail_wants(session, &disk_full());
            return;
        }
        let known = &self.sessions[session];
        let first = known.status == SessionStatus::Starting;
        let (entry, coming) = match known.entry {
            // It has another id than the one that died.
            Some(entry) if self.entries[entry].previous_id.is_some() => {
                (entry, ActiveCause::Replaced)
            }
            Some(entry) => (entry, ActiveCause::Resumed),
            None => {
                let entry = self.create_entry(pool, Own::Session(session), None);
                self.sessions[session].entry = Some(entry);
                if self.unshelve(session, entry) {
                    (entry, ActiveCause::Resumed)
                } else {
                    (entry, if first { ActiveCause::Created } else { ActiveCause::Replaced })
                }
            }
        };
        let known = &mut self.sessions[session];
        known.coming = Some(coming);
        let sandbox = &mut self.entries[entry];
        sandbox.template = Arc::clone(&self.pools[pool].template);
        sandbox.traits = self.pools[pool].traits;
        sandbox.settings.clone_from(&known.settings.claim);
        sandbox.generation = known.generation;
        sandbox.clean.started_for_session();
        sandbox.holds.pin();
        self.start(entry);
        self.sessions[session].generation = self.entries[entry].generation;
        self.mark_session(session);
    }

    /// The sandbox of a session is ready: everyone who wants it is served.
    fn serve_session(&mut self, session: SessionIx, entry: EntryIx) {
        self.call_off_freeze(entry);
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
                Waiting::SessionUse { use_id, kind, .. } => {
                    Reply::Granted(self.grant(entry, use_id, kind))
                }
                Waiting::Bind { .. }
                | Waiting::Checkout(_)
                | Waiting::Turn { .. }
                | Waiting::Control { .. }
                | Waiting::LeaseUse { .. }
                | Waiting::Freeze { .. }
                | Waiting::Delete { .. }
                | Waiting::Destroy { .. } => Reply::SessionReady(ready.clone()),
            };
            self.answer(req, Ok(reply));
        }
        if turn_starts {
            self.start_turn(session, entry, ready);
        }
        self.touch(entry);
        self.repin(entry);
        self.mark_session(session);
        self.arm_quiet(entry);
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
    fn count_resume(&mut self, session: SessionIx, coming: Option<ActiveCause>) {
        let set_aside =
            matches!(self.sessions[session].status, SessionStatus::Paused | SessionStatus::Stopped);
        match coming {
            Some(ActiveCause::Resumed | ActiveCause::Replaced) => self.counts.resumed_cold(),
            Some(ActiveCause::Created) | None if set_aside => self.counts.resumed_warm(),
            Some(ActiveCause::Created | ActiveCause::Reconnected) | None => {}
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
    }

    /// Nobody can be served: everyone who wants the sandbox is told.
    pub(crate) fn fail_wants(&mut self, session: SessionIx, refusal: &Refusal) {
        for req in std::mem::take(&mut self.sessions[session].wanting) {
            self.answer(req, Err(refusal.clone()));
        }
        if self.sessions[session].is_binding() {
            self.turn_not_started(session, refusal);
        }
        self.session_unwanted(session);
    }

    /// Those who want a sandbox by an id that is no more are told so.
    pub(crate) fn refuse_uses_by_id(&mut self, session: SessionIx, cause: EndCause) {
        let requests = &self.requests;
        let stale = |req: &mut RequestIx| {
            matches!(requests[*req].what, Waiting::SessionUse { by_id: true, .. })
        };
        let stale: Vec<RequestIx> = self.sessions[session].wanting.extract_if(.., stale).collect();
        for req in stale {
            self.answer(req, Err(gone(cause)));
        }
    }

    /// Someone stopped wanting a session's sandbox.
    pub(crate) fn session_unwanted(&mut self, session: SessionIx) {
        // It may be gone with the last one who wanted it.
        if self.sessions.get(session).is_none_or(Session::wants) {
            return;
        }
        self.unapply(session);
        if let Some(entry) = self.sessions[session].entry {
            self.repin(entry);
        }
        self.arm_shelf(session);
        let known = &self.sessions[session];
        // One that is being ended goes with that.
        if known.status == SessionStatus::Starting && known.control.is_none() {
            self.abandon_session(session);
        }
    }

    /// A session that nobody got to know goes, with whatever was made for it.
    fn abandon_session(&mut self, session: SessionIx) {
        self.set_status(session, SessionStatus::Ended);
        match self.sessions[session].entry {
            Some(entry) => self.end(entry, EndCause::ClientGone, After::Gone, Resolve::Now),
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

    /// The ending of a session's sandbox was called off, because its files could not be saved or
    /// because it came into use.
    pub(crate) fn ending_voided(&mut self, session: SessionIx, refusal: &Refusal) {
        let Some(control) = &self.sessions[session].control else { return };
        let result = match control.kind {
            ControlKind::Abort { turn, .. } => {
                Ok(Reply::Aborted { turn: Some(turn), sandbox_kept: true })
            }
            ControlKind::Stop | ControlKind::End => Err(refusal.clone()),
            ControlKind::Pause | ControlKind::Fork => return,
        };
        self.finish_control(session, &result);
    }
}

//! How a session gets its sandbox. There is one attempt at a time per session, and all callers that
//! want the sandbox wait for it. A live sandbox is thawed and probed first; a cold one is launched
//! on its files; a session without a sandbox takes an idle one of the pool, or a new one is
//! launched for it.

use std::sync::Arc;

use model::lifecycle::ActiveCause;
use model::state::PoolPhase;
use model::why::Shortage;
use model::{ErrorCode, Refusal, SessionStatus};

use crate::Kernel;
use crate::disk_limits::disk_full;
use crate::effect::Action;
use crate::entry::{EntryIx, EntryOwner, OpKind, Phase, Step};
use crate::event::bound_generation;
use crate::pool::PoolIx;
use crate::request::RequestIx;
use crate::session::SessionIx;

impl Kernel {
    /// A caller wants a session's sandbox: from now on nothing may take it away.
    pub(crate) fn engage(&mut self, session: SessionIx) {
        if let Some(entry) = self.sessions[session].entry {
            if self.entries[entry].may_be_spared() && !self.flaws.ends_victim_in_use() {
                let refusal =
                    Refusal::new(ErrorCode::SandboxBusy, "the sandbox came into use again");
                self.void_termination(entry, &refusal);
            }
            self.flaw_gets_another_sandbox(session, entry);
            self.recompute_demand(entry);
        }
        self.session_due(session);
    }

    /// Takes the next step towards the sandbox that a session wants.
    pub(crate) fn drive_session(&mut self, session: SessionIx) {
        let known = &self.sessions[session];
        if !known.wants() || known.is_leaving() {
            return;
        }
        let Some(entry) = known.entry else {
            if known.applied.is_none() {
                self.bind_new(session);
            } else {
                self.refuse_without_wait(session);
            }
            return;
        };
        let sandbox = &self.entries[entry];
        match sandbox.phase() {
            Phase::Cold => {
                self.cancel_archive(entry);
                if self.sessions[session].applied.is_some() {
                    self.refuse_without_wait(session);
                } else if self.entries[entry].ops.is_free() {
                    self.apply_for_session(session);
                }
            }
            Phase::InUse if sandbox.termination.is_none() && sandbox.ops.is_free() => {
                if !self.is_thawed(entry) {
                    self.thaw(entry);
                } else if self.needs_probe(entry) {
                    self.probe(entry, 1);
                } else {
                    self.serve_session(session, entry);
                }
            }
            // An operation is in progress; its completion leads here again.
            Phase::InUse | Phase::Launching | Phase::Claiming(_) | Phase::Killing => {}
            Phase::Idle | Phase::Wiping | Phase::Proving => {
                unreachable!("a session's sandbox is in no pool")
            }
        }
    }

    /// A session without a sandbox takes an idle one, or a new one is launched for it.
    fn bind_new(&mut self, session: SessionIx) {
        let known = &self.sessions[session];
        let pool = match self.served_pool(&known.template) {
            Ok(pool) => pool,
            Err(refusal) => {
                self.fail_wants(session, &refusal);
                return;
            }
        };
        // A session with files needs a launch on them.
        let open = known.shelved.is_none()
            && self.pools[pool].phase == PoolPhase::Active
            && self.pools[pool].queue.is_empty();
        let idle = if open { self.take_idle(pool) } else { None };
        let tenant = self.sessions[session].settings.tenant;
        match idle {
            Some(entry)
                if self.has_room_within_limits(tenant, 1, self.entries[entry].memory_mb()) =>
            {
                self.claim_for_session(session, entry, pool);
            }
            Some(_) | None => self.apply_for_session(session),
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
        sandbox.ownership.assigned_to_session(session, known.settings.tenant);
        sandbox.generation = bound_generation(known.generation, sandbox.generation);
        sandbox.settings.clone_from(&known.settings.claim);
        sandbox.take(Step::Claim(None));
        sandbox.uses += 1;
        sandbox.clean.assigned_to_session();
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

    /// The sandbox that a session was claiming is lost: the session looks for another.
    pub(crate) fn claim_lost_by_session(&mut self, session: SessionIx, entry: EntryIx) {
        let known = &mut self.sessions[session];
        if known.wants() && known.control.is_none() {
            self.entries[entry].ownership.returned_to_pool();
            known.entry = None;
            self.mark_session(session);
            self.session_due(session);
        } else {
            // No caller wants another. Callers that wait for the end of this one are answered when
            // it is gone. Its files were never the session's.
            self.entries[entry].files.files_left();
        }
    }

    /// Applies for a place for a session. Callers that do not wait are refused if none can become
    /// free.
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
        if !self.can_ever_fit(memory_mb) {
            self.fail_wants(session, &self.capacity_exhausted(Some(Shortage::Memory)));
            return;
        }
        let known = &self.sessions[session];
        let needs_entry = known.entry.is_none();
        if let Some(entry) = known.entry {
            // A cold sandbox must not be evicted to make room for its own launch.
            self.recompute_demand(entry);
        }
        let tenant = self.sessions[session].settings.tenant;
        if let Err(refusal) = self.make_room_within_limits(tenant, 1, memory_mb) {
            self.fail_wants(session, &refusal);
            return;
        }
        let seq = self.apply_for_place(session, needs_entry, memory_mb);
        self.sessions[session].applied = Some(seq);
        self.make_room();
        self.refuse_without_wait(session);
    }

    /// Refuses the callers of a session that do not wait for a place, unless one is coming to it.
    fn refuse_without_wait(&mut self, session: SessionIx) {
        let now = self.now.mono;
        let known = &self.sessions[session];
        let waits_no_longer = |req: &RequestIx| self.requests[*req].place_by <= now;
        let turn = known.is_binding() && known.turn.as_ref().is_some_and(|it| it.place_by <= now);
        if !turn && !known.wanting.iter().any(waits_no_longer) {
            return;
        }
        if known.applied.is_none_or(|seq| self.is_session_covered(seq)) {
            return;
        }
        let refusal = self.capacity_exhausted(self.shortage());
        let requests = &self.requests;
        let without_wait = |req: &mut RequestIx| requests[*req].place_by <= now;
        let refused: Vec<RequestIx> =
            self.sessions[session].wanting.extract_if(.., without_wait).collect();
        for req in refused {
            self.answer(req, Err(refusal.clone()));
        }
        if turn {
            self.turn_not_started(session, &refusal);
        }
        self.session_unwanted(session);
    }

    pub(crate) fn unapply(&mut self, session: SessionIx) {
        if let Some(seq) = self.sessions[session].applied.take() {
            self.withdraw_application(seq);
        }
    }

    /// A place is free: launches an instance for a session.
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
            // It replaces a sandbox that died, under another id.
            Some(entry) if self.entries[entry].previous_id.is_some() => {
                (entry, ActiveCause::Replaced)
            }
            Some(entry) => (entry, ActiveCause::Resumed),
            None => {
                let entry = self.create_entry(pool, EntryOwner::Session(session), None);
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
}

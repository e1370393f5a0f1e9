//! Execs, file calls and port calls. A use is granted at once, or as soon as its sandbox is thawed
//! or found. From the request on, nothing may take the sandbox away.

use model::{ErrorCode, Refusal, RequestId, UseId};

use crate::Kernel;
use crate::entry::{Demand, EntryIx, EntryOwner, Frozen, Phase};
use crate::event::{UseKind, UseTarget};
use crate::reply::{Grant, Reply};
use crate::request::WaitingFor;

impl Kernel {
    pub(crate) fn use_requested(
        &mut self,
        request: RequestId,
        target: UseTarget,
        use_id: UseId,
        kind: UseKind,
        wait_ms: Option<u64>,
    ) -> Result<Reply, Refusal> {
        self.refuse_when_stopping()?;
        if self.entries.has_use(use_id) {
            let cause = format!("use {use_id} is in progress already");
            return Err(Refusal::new(ErrorCode::IdConflict, cause));
        }
        let (session, by_id) = match target {
            UseTarget::Session(session) => (self.session_by_id(session)?, false),
            UseTarget::Sandbox(sandbox) => {
                let known = self.entries.by_id(sandbox);
                let known = known.map(|entry| &self.entries[entry]);
                match known.map(|entry| (entry.owner(), entry.phase())) {
                    // A use launches a cold sandbox of a session, but not one that is being
                    // removed.
                    Some((EntryOwner::Session(session), phase)) if phase != Phase::Killing => {
                        (session, true)
                    }
                    Some(_) | None => {
                        let entry = self.usable(sandbox)?;
                        self.refuse_harness_of_lease(entry, kind)?;
                        self.refuse_write_without_disk(kind, self.entries[entry].traits)?;
                        Self::refuse_when_crowded(self.entries[entry].waiting())?;
                        return Ok(self.use_leased(request, entry, use_id, kind));
                    }
                }
            }
        };
        self.refuse_when_ended(session)?;
        self.flaw_refuses_while_quiesced(session)?;
        self.refuse_harness_of_session(session, kind)?;
        if let Ok(pool) = self.served_pool(&self.sessions[session].template) {
            self.refuse_write_without_disk(kind, self.pools[pool].traits)?;
        }
        Self::refuse_when_crowded(self.sessions[session].wanting.len())?;
        let what = WaitingFor::SessionUse { session, use_id, kind, by_id };
        let req = self.wait_for_session(request, wait_ms, what);
        self.sessions[session].wanting.push(req);
        self.engage(session);
        Ok(Reply::Pending)
    }

    fn use_leased(
        &mut self,
        request: RequestId,
        entry: EntryIx,
        use_id: UseId,
        kind: UseKind,
    ) -> Reply {
        let sandbox = &self.entries[entry];
        if self.is_thawed(entry) && sandbox.ops.is_free() {
            return Reply::Granted(self.grant(entry, use_id, kind));
        }
        let deadline = self.now.mono.plus(self.config.control_timeout_ms);
        let req = self.wait_until(request, deadline, WaitingFor::LeaseUse { entry, use_id, kind });
        self.entries[entry].rare_mut().waiting.push(req);
        self.recompute_demand(entry);
        self.drive_lease(entry);
        Reply::Pending
    }

    /// Whether a sandbox can be used without being thawed first.
    pub(crate) fn is_thawed(&self, entry: EntryIx) -> bool {
        self.entries[entry].frozen == Frozen::No || self.flaws.uses_frozen()
    }

    /// Lets a use begin.
    pub(crate) fn grant(&mut self, entry: EntryIx, use_id: UseId, kind: UseKind) -> Grant {
        self.touch(entry);
        let sandbox = &mut self.entries[entry];
        sandbox.holds.use_began(kind);
        sandbox.clean.began_use();
        let newly_dirty = may_write(kind) && sandbox.files.write_began();
        sandbox.rare_mut().uses.push((use_id, kind));
        self.entries.use_began(use_id, entry);
        if newly_dirty {
            self.mark(entry);
        }
        self.settle(entry);
        let sandbox = &self.entries[entry];
        Grant {
            sandbox: sandbox.id,
            generation: sandbox.generation,
            instance: sandbox.instance,
            settings: sandbox.settings.clone(),
            lost: self.unreported_loss(entry).filter(|_| !self.flaws.forgets_losses()),
        }
    }

    pub(crate) fn use_ended(&mut self, use_id: UseId) {
        let Some(entry) = self.entries.use_ended(use_id) else { return };
        let now = self.now;
        let sandbox = &mut self.entries[entry];
        let uses = &mut sandbox.rare_mut().uses;
        if let Some(at) = uses.iter().position(|(id, _)| *id == use_id) {
            let kind = uses.swap_remove(at).1;
            sandbox.holds.use_ended(kind);
            if may_write(kind) {
                sandbox.files.write_answered();
            }
        }
        sandbox.proven_at = now.mono;
        self.on_activity_ended(entry);
    }

    /// A use or a turn in a sandbox ended.
    pub(crate) fn on_activity_ended(&mut self, entry: EntryIx) {
        self.touch(entry);
        if let Some(session) = self.entries[entry].session() {
            self.sessions[session].last_active_at = self.now.wall;
            self.arm_deadline(session);
        }
        self.settle(entry);
        self.arm_freeze_and_sweep(entry);
        self.arm_expiry(entry);
        self.end_if_stopping(entry);
    }

    /// Continues the requests that wait for a sandbox, after it changed.
    pub(crate) fn drive_entry(&mut self, entry: EntryIx) {
        self.restart_processes(entry);
        match self.entries[entry].owner() {
            EntryOwner::Session(session) => {
                if !self.thaw_if_asked(entry) {
                    self.answer_thawed(entry);
                    self.session_due(session);
                }
            }
            EntryOwner::Lease(_) => self.drive_lease(entry),
            EntryOwner::Unowned => {}
        }
    }

    /// Thaws a sandbox if a caller waits for that.
    fn thaw_if_asked(&mut self, entry: EntryIx) -> bool {
        let sandbox = &self.entries[entry];
        let thaws =
            sandbox.holds.is_wanted() && sandbox.ops.is_free() && sandbox.frozen != Frozen::No;
        if thaws {
            self.thaw(entry);
        }
        thaws
    }

    pub(crate) fn drive_lease(&mut self, entry: EntryIx) {
        if !self.entries[entry].ops.is_free() || self.entries[entry].termination.is_some() {
            return;
        }
        if !self.is_thawed(entry) {
            self.thaw_if_asked(entry);
            return;
        }
        for req in self.take_waiting(entry, |what| matches!(what, WaitingFor::LeaseUse { .. })) {
            if let WaitingFor::LeaseUse { use_id, kind, .. } = self.requests[req].what {
                let grant = self.grant(entry, use_id, kind);
                self.answer(req, Ok(Reply::Granted(grant)));
            }
        }
        self.answer_thawed(entry);
    }

    /// Answers the requests for a thaw.
    fn answer_thawed(&mut self, entry: EntryIx) {
        if !self.entries[entry].ops.is_free() || self.entries[entry].frozen != Frozen::No {
            return;
        }
        let asked = |what: &WaitingFor| matches!(what, WaitingFor::Freeze { frozen: false, .. });
        let asked = self.take_waiting(entry, asked);
        if !asked.is_empty() {
            self.touch(entry);
        }
        for req in asked {
            self.answer(req, Ok(Reply::Frozen { frozen: false }));
        }
        self.recompute_demand(entry);
    }

    /// Recomputes from waiting requests and due restarts whether a sandbox is about to be used.
    pub(crate) fn recompute_demand(&mut self, entry: EntryIx) {
        let sandbox = &self.entries[entry];
        let own = sandbox.rare.iter().flat_map(|rare| &rare.waiting);
        let (session, binding) = match sandbox.owner() {
            EntryOwner::Session(session) => {
                let session = &self.sessions[session];
                (session.wanting.as_slice(), session.is_binding())
            }
            EntryOwner::Lease(_) | EntryOwner::Unowned => (&[][..], false),
        };
        let mut wanted = if binding { Demand::Use } else { Demand::None };
        if sandbox.wants_restart(self.now.mono) {
            wanted = Demand::Run;
        }
        for req in own.chain(session) {
            match self.requests[*req].what {
                WaitingFor::LeaseUse { kind, .. } | WaitingFor::SessionUse { kind, .. } => {
                    let runs = matches!(kind, UseKind::Exec | UseKind::Harness);
                    wanted = wanted.max(if runs { Demand::Run } else { Demand::Use });
                }
                WaitingFor::Bind { .. } | WaitingFor::Freeze { frozen: false, .. } => {
                    wanted = wanted.max(Demand::Use);
                }
                WaitingFor::Freeze { frozen: true, .. }
                | WaitingFor::Delete { .. }
                | WaitingFor::Checkout(_)
                | WaitingFor::Turn { .. }
                | WaitingFor::Control { .. }
                | WaitingFor::Read
                | WaitingFor::Destroy { .. } => {}
            }
        }
        let sandbox = &mut self.entries[entry];
        sandbox.holds.set_demand(wanted);
        if wanted == Demand::Run && sandbox.phase() == Phase::InUse {
            sandbox.clean.wanted();
        }
        self.settle(entry);
        if wanted == Demand::None {
            self.source_changed(entry);
        }
    }
}

/// Whether a use may change files.
const fn may_write(kind: UseKind) -> bool {
    match kind {
        UseKind::Exec | UseKind::Files | UseKind::Port | UseKind::Stream | UseKind::Harness => true,
        UseKind::Read => false,
    }
}

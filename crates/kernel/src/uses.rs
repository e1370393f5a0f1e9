//! Execs, file calls and port calls. A use is granted at once, or as soon as its sandbox is thawed
//! or found; from the moment it is asked for, nothing may take the sandbox away.

use model::{ErrorCode, Refusal, RequestId, UseId};

use crate::entry::{Frozen, Own, Phase};
use crate::event::{UseKind, UseTarget};
use crate::reply::{Grant, Reply};
use crate::request::Waiting;
use crate::slab::Ix;
use crate::{Flaw, Kernel};

impl Kernel {
    pub(crate) fn use_requested(
        &mut self,
        request: RequestId,
        target: UseTarget,
        use_id: UseId,
        kind: UseKind,
    ) -> Result<Reply, Refusal> {
        self.refuse_when_stopping()?;
        if self.use_index.contains(use_id.as_u128()) {
            let cause = format!("use {use_id} is in progress already");
            return Err(Refusal::new(ErrorCode::IdConflict, cause));
        }
        let (session, by_id) = match target {
            UseTarget::Session(session) => (self.session_by_id(session)?, false),
            UseTarget::Sandbox(sandbox) => {
                let known = self.entry_index.get(sandbox.as_u128()).map(|ix| &self.entries[ix]);
                match known.map(|entry| (entry.owner, entry.phase)) {
                    // A cold sandbox of a session wakes when it is used; one that is going does not.
                    Some((Own::Session(session), phase)) if phase != Phase::Killing => {
                        (session, true)
                    }
                    Some(_) | None => {
                        let ix = self.usable(sandbox)?;
                        self.refuse_harness_of_lease(ix, kind)?;
                        self.refuse_write_without_disk(kind, self.entries[ix].traits)?;
                        Self::refuse_when_crowded(self.entries[ix].waiting())?;
                        return Ok(self.use_leased(request, ix, use_id, kind));
                    }
                }
            }
        };
        self.refuse_when_over(session)?;
        self.refuse_harness_of_session(session, kind)?;
        if let Ok(pool) = self.served_pool(&self.sessions[session].template) {
            self.refuse_write_without_disk(kind, self.pools[pool].traits)?;
        }
        Self::refuse_when_crowded(self.sessions[session].wanting.len())?;
        let deadline = self.now.mono.plus(self.config.bind_timeout_ms);
        let req =
            self.wait(request, deadline, Waiting::SessionUse { session, use_id, kind, by_id });
        self.arm_request(req);
        self.sessions[session].wanting.push(req);
        self.engage(session);
        Ok(Reply::Pending)
    }

    fn use_leased(&mut self, request: RequestId, ix: Ix, use_id: UseId, kind: UseKind) -> Reply {
        let entry = &self.entries[ix];
        if self.is_restful(ix) && entry.op.is_none() {
            return Reply::Granted(self.grant(ix, use_id, kind));
        }
        let deadline = self.now.mono.plus(self.config.control_timeout_ms);
        let req = self.wait(request, deadline, Waiting::LeaseUse { entry: ix, use_id, kind });
        self.arm_request(req);
        self.entries[ix].extra().waiting.push(req);
        self.repin(ix);
        self.drive_lease(ix);
        Reply::Pending
    }

    /// Whether a sandbox can be used without being thawed first.
    pub(crate) fn is_restful(&self, ix: Ix) -> bool {
        self.entries[ix].frozen == Frozen::No || self.flawed(Flaw::FrozenNotThawed)
    }

    /// Lets a use begin.
    pub(crate) fn grant(&mut self, ix: Ix, use_id: UseId, kind: UseKind) -> Grant {
        self.touch(ix);
        let entry = &mut self.entries[ix];
        match kind {
            UseKind::Exec | UseKind::Harness => entry.execs += 1,
            UseKind::Files | UseKind::Read | UseKind::Port | UseKind::Stream => entry.calls += 1,
        }
        entry.used = true;
        entry.touched = true;
        let newly_dirty = may_write(kind) && !std::mem::replace(&mut entry.dirty, true);
        entry.wrote |= may_write(kind);
        entry.extra().uses.push((use_id, kind));
        self.use_index.insert(use_id.as_u128(), ix);
        if newly_dirty {
            self.mark(ix);
        }
        self.settle(ix);
        let entry = &self.entries[ix];
        Grant {
            sandbox: entry.id,
            generation: entry.generation,
            instance: entry.instance,
            settings: entry.settings.clone(),
            lost: self.unreported_loss(ix).filter(|_| !self.flawed(Flaw::LossForgotten)),
        }
    }

    pub(crate) fn use_ended(&mut self, use_id: UseId) {
        let Some(ix) = self.use_index.remove(use_id.as_u128()) else { return };
        let now = self.now;
        let entry = &mut self.entries[ix];
        let uses = &mut entry.extra().uses;
        if let Some(at) = uses.iter().position(|(id, _)| *id == use_id) {
            let kind = uses.swap_remove(at).1;
            entry.acknowledged |= may_write(kind);
            match kind {
                UseKind::Exec | UseKind::Harness => entry.execs -= 1,
                UseKind::Files | UseKind::Read | UseKind::Port | UseKind::Stream => {
                    entry.calls -= 1;
                }
            }
        }
        entry.proven_at = now.mono;
        self.came_to_rest(ix);
    }

    /// Something that was in progress in a sandbox is over.
    pub(crate) fn came_to_rest(&mut self, ix: Ix) {
        self.touch(ix);
        if let Own::Session(session) = self.entries[ix].owner {
            self.sessions[session].last_active_at = self.now.wall;
        }
        self.settle(ix);
        self.arm_quiet(ix);
        self.arm_expiry(ix);
        self.end_if_stopping(ix);
    }

    /// Goes on with whoever waits for a sandbox, whatever just changed about it.
    pub(crate) fn drive_entry(&mut self, ix: Ix) {
        match self.entries[ix].owner {
            Own::Session(session) => {
                if !self.thaw_if_asked(ix) {
                    self.answer_thawed(ix);
                    self.session_due(session);
                }
            }
            Own::Lease(_) => self.drive_lease(ix),
            Own::Nobody => {}
        }
    }

    /// Someone asked for a thaw and nothing else.
    fn thaw_if_asked(&mut self, ix: Ix) -> bool {
        let entry = &self.entries[ix];
        let thaws = entry.pinned && entry.op.is_none() && entry.frozen != Frozen::No;
        if thaws {
            self.thaw(ix);
        }
        thaws
    }

    pub(crate) fn drive_lease(&mut self, ix: Ix) {
        if self.entries[ix].op.is_some() || self.entries[ix].ending.is_some() {
            return;
        }
        if !self.is_restful(ix) {
            self.thaw_if_asked(ix);
            return;
        }
        for req in self.take_waiting(ix, |what| matches!(what, Waiting::LeaseUse { .. })) {
            if let Waiting::LeaseUse { use_id, kind, .. } = self.requests[req].what {
                let grant = self.grant(ix, use_id, kind);
                self.answer(req, Ok(Reply::Granted(grant)));
            }
        }
        self.answer_thawed(ix);
    }

    /// Tells those who asked for a thaw and nothing else.
    fn answer_thawed(&mut self, ix: Ix) {
        if self.entries[ix].op.is_some() || self.entries[ix].frozen != Frozen::No {
            return;
        }
        let asked = |what: &Waiting| matches!(what, Waiting::Freeze { frozen: false, .. });
        for req in self.take_waiting(ix, asked) {
            self.answer(req, Ok(Reply::Frozen { frozen: false }));
        }
        self.repin(ix);
    }

    /// Whether someone is about to use a sandbox, from those who wait.
    pub(crate) fn repin(&mut self, ix: Ix) {
        let entry = &self.entries[ix];
        let own = entry.extra.iter().flat_map(|extra| &extra.waiting);
        let (session, binding) = match entry.owner {
            Own::Session(session) => {
                let session = &self.sessions[session];
                (session.wanting.as_slice(), session.is_binding())
            }
            Own::Lease(_) | Own::Nobody => (&[][..], false),
        };
        let (mut pinned, mut exec_wanted) = (binding, false);
        for req in own.chain(session) {
            match self.requests[*req].what {
                Waiting::LeaseUse { kind, .. } | Waiting::SessionUse { kind, .. } => {
                    pinned = true;
                    exec_wanted |= matches!(kind, UseKind::Exec | UseKind::Harness);
                }
                Waiting::Bind { .. } | Waiting::Freeze { frozen: false, .. } => pinned = true,
                Waiting::Freeze { frozen: true, .. }
                | Waiting::Delete { .. }
                | Waiting::Checkout(_)
                | Waiting::Turn { .. }
                | Waiting::Control { .. }
                | Waiting::Destroy { .. } => {}
            }
        }
        let entry = &mut self.entries[ix];
        entry.pinned = pinned;
        entry.exec_wanted = exec_wanted;
        entry.used |= exec_wanted && entry.phase == Phase::InUse;
        self.settle(ix);
    }
}

/// Whether a use may change files.
const fn may_write(kind: UseKind) -> bool {
    match kind {
        UseKind::Exec | UseKind::Files | UseKind::Port | UseKind::Stream | UseKind::Harness => true,
        UseKind::Read => false,
    }
}

//! Rest: when a quiet sandbox is frozen, when the sweep makes it cold, and how it is woken. Nothing
//! that is in use, about to be used, or kept awake is ever put to rest.

use std::sync::Arc;

use model::{EndCause, ErrorCode, LifecycleEvent, Mono, Refusal, RequestId, SandboxId};

use crate::effect::Action;
use crate::ending::sandbox_unknown;
use crate::entry::{After, Entry, Frozen, OpKind, Own, Phase, Resolve};
use crate::event::{FailureKind, Outcome};
use crate::reply::Reply;
use crate::request::Waiting;
use crate::slab::Ix;
use crate::{Flaw, Kernel};

impl Kernel {
    /// When a sandbox will be frozen, if nothing happens.
    pub(crate) fn freezes_at(&self, ix: Ix) -> Option<Mono> {
        let entry = &self.entries[ix];
        let after_ms = entry.template.freeze_after_ms.unwrap_or(self.config.freeze_after_ms);
        let mut quiet = entry.last_used.mono.plus(after_ms);
        if self.must_save_first(entry) {
            // Saving failed lately: it is tried again then.
            quiet = quiet.max(entry.spared_until);
        }
        may_freeze(entry).then(|| quiet.max(entry.kills_until().unwrap_or(quiet)))
    }

    /// When the sweep will make a sandbox cold, if nothing happens. Sweeps happen at fixed times.
    pub(crate) fn sleeps_at(&self, ix: Ix) -> Option<Mono> {
        let entry = &self.entries[ix];
        let Own::Session(session) = entry.owner else { return None };
        let ignored = self.flawed(Flaw::SweepIgnoresHolds)
            && entry.phase == Phase::InUse
            && entry.ending.is_none();
        if self.shutdown.is_some() || (entry.tier(self.now.mono).is_none() && !ignored) {
            return None;
        }
        if entry.phase == Phase::Cold {
            return None;
        }
        let idle_ms = self.sessions[session]
            .settings
            .idle_timeout_ms
            .or(entry.template.idle_timeout_ms)
            .unwrap_or(self.config.idle_timeout_ms);
        let interval_ms = self.config.sweep_interval_ms;
        let due = entry.last_used.mono.plus(idle_ms);
        Some(Mono(due.0.div_ceil(interval_ms).saturating_mul(interval_ms)))
    }

    /// Sees to it that a quiet sandbox is looked at when it should rest.
    pub(crate) fn arm_quiet(&mut self, ix: Ix) {
        let at = [self.freezes_at(ix), self.sleeps_at(ix)].into_iter().flatten().min();
        if let Some(at) = at {
            self.arm(ix, at);
        }
    }

    /// Makes a sandbox cold that has been idle for too long.
    pub(crate) fn sweep(&mut self, ix: Ix) {
        if self.sleeps_at(ix).is_some_and(|at| at <= self.now.mono) {
            self.end(ix, EndCause::Idle, After::Cold, Resolve::Voidable);
        }
    }

    pub(crate) fn freeze_if_quiet(&mut self, ix: Ix) {
        if self.freezes_at(ix).is_none_or(|at| at > self.now.mono) {
            return;
        }
        if self.must_save_first(&self.entries[ix]) {
            self.save(ix);
        } else {
            self.freeze(ix);
        }
    }

    /// Whether its files would be lost with its processes: frozen, they could not be saved without
    /// waking it, and its session would believe them kept.
    fn must_save_first(&self, entry: &Entry) -> bool {
        entry.has_unsaved_files() && !self.flawed(Flaw::FrozenUnsaved)
    }

    /// The files of a sandbox are saved: it is frozen, if that is what it was saved for.
    pub(crate) fn freeze_saved(&mut self, ix: Ix) {
        let wanted = |what: &Waiting| matches!(what, Waiting::Freeze { frozen: true, .. });
        let extra = self.entries[ix].extra.as_ref();
        let asked =
            extra.is_some_and(|e| e.waiting.iter().any(|req| wanted(&self.requests[*req].what)));
        if !asked || self.entries[ix].op.is_some_and(|op| op.kind == OpKind::Freeze) {
            return;
        }
        if may_freeze(&self.entries[ix]) && !self.must_save_first(&self.entries[ix]) {
            self.freeze(ix);
        } else {
            self.call_off_freeze(ix);
        }
    }

    /// A sandbox is used before it could be frozen: those who asked for the freeze do not get it.
    pub(crate) fn call_off_freeze(&mut self, ix: Ix) {
        if self.entries[ix].waiting() > 0 {
            let cause = "it came into use while its files were saved";
            self.refuse_freezers(ix, &Refusal::new(ErrorCode::SandboxBusy, cause));
        }
    }

    /// Those who asked for a freeze do not get it.
    pub(crate) fn refuse_freezers(&mut self, ix: Ix, refusal: &Refusal) {
        let freezing = self.entries[ix].op.is_some_and(|op| op.kind == OpKind::Freeze);
        if !freezing {
            self.answer_freezers(ix, true, &Err(refusal.clone()));
        }
    }

    pub(crate) fn freeze(&mut self, ix: Ix) {
        let action = Action::Freeze { instance: self.entries[ix].instance };
        self.begin(ix, OpKind::Freeze, self.config.deadlines.freeze_ms, action);
    }

    pub(crate) fn thaw(&mut self, ix: Ix) {
        let action = Action::Thaw { instance: self.entries[ix].instance };
        self.begin(ix, OpKind::Thaw, self.config.deadlines.freeze_ms, action);
    }

    pub(crate) fn freeze_ended(&mut self, ix: Ix, outcome: Outcome) {
        let answer = match outcome {
            Outcome::Done => {
                self.entries[ix].frozen = Frozen::Yes;
                self.time_stands_still(ix);
                self.publish_frozen(ix);
                Ok(Reply::Frozen { frozen: true })
            }
            Outcome::Failed(failure) => match failure.kind {
                FailureKind::Unsupported => {
                    self.entries[ix].traits.can_freeze = false;
                    Err(Refusal::new(ErrorCode::Unsupported, failure.detail.to_string()))
                }
                FailureKind::Trouble | FailureKind::Gone | FailureKind::FilesGone => {
                    self.entries[ix].frozen = Frozen::Unsure;
                    Err(Refusal::new(ErrorCode::SandboxBusy, failure.detail.to_string()))
                }
            },
            Outcome::TimedOut => {
                self.entries[ix].frozen = Frozen::Unsure;
                Err(Refusal::new(ErrorCode::DeadlineExceeded, "it could not be frozen in time"))
            }
        };
        self.arm_processes(ix);
        self.answer_freezers(ix, true, &answer);
        if !self.thaw_if_kept_awake(ix) {
            self.drive_entry(ix);
        }
    }

    /// Something began to keep a sandbox awake when it was being frozen already.
    pub(crate) fn thaw_if_kept_awake(&mut self, ix: Ix) -> bool {
        let entry = &self.entries[ix];
        let thaws = entry.frozen == Frozen::Yes
            && entry.phase == Phase::InUse
            && entry.op.is_none()
            && entry.ending.is_none()
            && entry.is_awake();
        if thaws {
            self.thaw(ix);
        }
        thaws
    }

    pub(crate) fn thaw_ended(&mut self, ix: Ix, outcome: Outcome) {
        let detail = match outcome {
            Outcome::Done => {
                // That it can be thawed says nothing of whether it answers.
                self.entries[ix].frozen = Frozen::No;
                self.time_goes_on(ix);
                self.touch(ix);
                self.publish_frozen(ix);
                self.answer_freezers(ix, false, &Ok(Reply::Frozen { frozen: false }));
                self.repin(ix);
                self.arm_quiet(ix);
                self.drive_entry(ix);
                return;
            }
            Outcome::Failed(failure) => failure.detail,
            Outcome::TimedOut => Arc::from("it could not be thawed in time"),
        };
        self.died(ix, EndCause::FreezeFailed, Some(detail));
    }

    fn answer_freezers(&mut self, ix: Ix, frozen: bool, answer: &Result<Reply, Refusal>) {
        let wanted =
            |what: &Waiting| matches!(what, Waiting::Freeze { frozen: f, .. } if *f == frozen);
        for req in self.take_waiting(ix, wanted) {
            self.answer(req, answer.clone());
        }
        if let Own::Session(session) = self.entries[ix].owner
            && frozen
        {
            self.pause_frozen(session);
        }
    }

    fn publish_frozen(&mut self, ix: Ix) {
        let entry = &self.entries[ix];
        let event = LifecycleEvent::SandboxFrozen {
            sandbox_id: entry.id,
            generation: entry.generation,
            frozen: entry.frozen == Frozen::Yes,
        };
        self.publish(entry.tenant, event);
    }

    pub(crate) fn freeze_requested(
        &mut self,
        request: RequestId,
        sandbox: SandboxId,
    ) -> Result<Reply, Refusal> {
        let ix = self.usable(sandbox)?;
        Self::refuse_when_crowded(self.entries[ix].waiting())?;
        let entry = &self.entries[ix];
        if entry.frozen == Frozen::Yes && entry.op.is_none() {
            return Ok(Reply::Frozen { frozen: true });
        }
        if !entry.traits.can_freeze {
            let cause = "the runtime of this template cannot freeze";
            return Err(Refusal::new(ErrorCode::Unsupported, cause));
        }
        let kills = entry.kills_until().is_some_and(|until| until > self.now.mono);
        if kills || !may_freeze(entry) {
            let cause = "something is going on in it, or keeps it awake";
            return Err(Refusal::new(ErrorCode::SandboxBusy, cause));
        }
        let saves = self.must_save_first(entry);
        self.await_freeze(request, ix, true);
        if saves {
            self.save(ix);
        } else {
            self.freeze(ix);
        }
        Ok(Reply::Pending)
    }

    pub(crate) fn thaw_requested(
        &mut self,
        request: RequestId,
        sandbox: SandboxId,
    ) -> Result<Reply, Refusal> {
        let ix = self.usable(sandbox)?;
        Self::refuse_when_crowded(self.entries[ix].waiting())?;
        let entry = &self.entries[ix];
        let freezing = entry.op.is_some_and(|op| op.kind == OpKind::Freeze);
        if entry.frozen == Frozen::No && !freezing {
            return Ok(Reply::Frozen { frozen: false });
        }
        self.await_freeze(request, ix, false);
        self.repin(ix);
        self.drive_entry(ix);
        Ok(Reply::Pending)
    }

    fn await_freeze(&mut self, request: RequestId, ix: Ix, frozen: bool) {
        let deadline = self.now.mono.plus(self.config.control_timeout_ms);
        let req = self.wait(request, deadline, Waiting::Freeze { entry: ix, frozen });
        self.arm_request(req);
        self.entries[ix].extra().waiting.push(req);
    }

    /// A sandbox that is someone's and alive, by its id.
    pub(crate) fn usable(&self, sandbox: SandboxId) -> Result<Ix, Refusal> {
        let Some(ix) = self.entry_index.get(sandbox.as_u128()) else {
            return Err(match self.ends.of_sandbox(sandbox) {
                Some(ended) => crate::removal::gone(ended.cause),
                None => sandbox_unknown(sandbox),
            });
        };
        let entry = &self.entries[ix];
        match (entry.phase, entry.owner) {
            (Phase::InUse, Own::Lease(_) | Own::Session(_)) => Ok(ix),
            (Phase::Killing, _) => {
                let cause = entry.ending.as_ref().map_or(EndCause::Deleted, |e| e.cause);
                Err(crate::removal::gone(cause))
            }
            (Phase::Wiping | Phase::Proving, _) => Err(crate::removal::gone(EndCause::Returned)),
            (Phase::Cold, _) => {
                let cause = entry.slept.unwrap_or(EndCause::Idle);
                Err(crate::removal::gone(cause))
            }
            (Phase::Launching | Phase::Idle | Phase::Claiming(_) | Phase::InUse, _) => {
                let cause = "the sandbox is not under a lease or session";
                Err(Refusal::new(ErrorCode::NotLeased, cause))
            }
        }
    }
}

/// Whether a sandbox may be frozen as things stand.
fn may_freeze(entry: &Entry) -> bool {
    entry.phase == Phase::InUse
        && entry.traits.can_freeze
        && entry.frozen == Frozen::No
        && entry.ending.is_none()
        && entry.op.is_none()
        && !entry.is_saving_inside()
        // Its guest may be what gives the files out.
        && entry.copies == 0
        && entry.may_rest()
        && !entry.is_awake()
}

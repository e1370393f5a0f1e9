//! Rest: when a quiet sandbox is frozen, when the sweep makes it cold, and how it is woken. Nothing
//! that is in use, about to be used, or kept awake is ever put to rest.

use std::sync::Arc;

use model::{EndCause, ErrorCode, LifecycleEvent, Mono, Refusal, RequestId, SandboxId};

use crate::Kernel;
use crate::effect::Action;
use crate::ending::sandbox_unknown;
use crate::entry::{After, Entry, EntryIx, Frozen, OpKind, Own, Phase, Resolve};
use crate::event::{FailureKind, Outcome};
use crate::reply::Reply;
use crate::request::Waiting;

impl Kernel {
    /// When a sandbox will be frozen, if nothing happens.
    pub(crate) fn freezes_at(&self, entry: EntryIx) -> Option<Mono> {
        let sandbox = &self.entries[entry];
        let after_ms = sandbox.template.freeze_after_ms.unwrap_or(self.config.freeze_after_ms);
        let mut quiet = sandbox.last_used.mono.plus(after_ms);
        if self.must_save_first(sandbox) {
            // Saving failed lately: it is tried again then.
            quiet = quiet.max(sandbox.spared_until);
        }
        may_freeze(sandbox).then(|| quiet.max(sandbox.kills_until().unwrap_or(quiet)))
    }

    /// When the sweep will make a sandbox cold, if nothing happens. Sweeps happen at fixed times.
    pub(crate) fn sleeps_at(&self, entry: EntryIx) -> Option<Mono> {
        let sandbox = &self.entries[entry];
        let session = sandbox.session()?;
        let may_go = sandbox.tier(self.now.mono).is_some() || self.flaws.sweeps_held(sandbox);
        if self.shutdown.is_some() || !may_go {
            return None;
        }
        if sandbox.phase == Phase::Cold {
            return None;
        }
        let idle_ms = self.sessions[session]
            .settings
            .idle_timeout_ms
            .or(sandbox.template.idle_timeout_ms)
            .unwrap_or(self.config.idle_timeout_ms);
        let interval_ms = self.config.sweep_interval_ms;
        let due = sandbox.last_used.mono.plus(idle_ms);
        Some(Mono(due.0.div_ceil(interval_ms).saturating_mul(interval_ms)))
    }

    /// Sees to it that a quiet sandbox is looked at when it should rest.
    pub(crate) fn arm_quiet(&mut self, entry: EntryIx) {
        let at = [self.freezes_at(entry), self.sleeps_at(entry)].into_iter().flatten().min();
        if let Some(at) = at {
            self.arm(entry, at);
        }
    }

    /// Makes a sandbox cold that has been idle for too long.
    pub(crate) fn sweep(&mut self, entry: EntryIx) {
        if self.sleeps_at(entry).is_some_and(|at| at <= self.now.mono) {
            self.end(entry, EndCause::Idle, After::Cold, Resolve::Voidable);
        }
    }

    pub(crate) fn freeze_if_quiet(&mut self, entry: EntryIx) {
        if self.freezes_at(entry).is_none_or(|at| at > self.now.mono) {
            return;
        }
        if self.must_save_first(&self.entries[entry]) {
            self.save(entry);
        } else {
            self.freeze(entry);
        }
    }

    /// Whether its files would be lost with its processes: frozen, they could not be saved without
    /// waking it, and its session would believe them kept.
    fn must_save_first(&self, entry: &Entry) -> bool {
        entry.has_unsaved_files() && !self.flaws.freezes_unsaved()
    }

    /// The files of a sandbox are saved: it is frozen, if that is what it was saved for.
    pub(crate) fn freeze_saved(&mut self, entry: EntryIx) {
        let wanted = |what: &Waiting| matches!(what, Waiting::Freeze { frozen: true, .. });
        let extra = self.entries[entry].extra.as_ref();
        let asked =
            extra.is_some_and(|e| e.waiting.iter().any(|req| wanted(&self.requests[*req].what)));
        if !asked || self.entries[entry].ops.is_doing(OpKind::Freeze) {
            return;
        }
        if may_freeze(&self.entries[entry]) && !self.must_save_first(&self.entries[entry]) {
            self.freeze(entry);
        } else {
            self.call_off_freeze(entry);
        }
    }

    /// A sandbox is used before it could be frozen: those who asked for the freeze do not get it.
    pub(crate) fn call_off_freeze(&mut self, entry: EntryIx) {
        if self.entries[entry].waiting() > 0 {
            let cause = "it came into use while its files were saved";
            self.refuse_freezers(entry, &Refusal::new(ErrorCode::SandboxBusy, cause));
        }
    }

    /// Those who asked for a freeze do not get it.
    pub(crate) fn refuse_freezers(&mut self, entry: EntryIx, refusal: &Refusal) {
        let freezing = self.entries[entry].ops.is_doing(OpKind::Freeze);
        if !freezing {
            self.answer_freezers(entry, true, &Err(refusal.clone()));
        }
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
        let answer = match outcome {
            Outcome::Done => {
                self.entries[entry].frozen = Frozen::Yes;
                self.time_stands_still(entry);
                self.publish_frozen(entry);
                Ok(Reply::Frozen { frozen: true })
            }
            Outcome::Failed(failure) => match failure.kind {
                FailureKind::Unsupported => {
                    self.entries[entry].traits.can_freeze = false;
                    Err(Refusal::new(ErrorCode::Unsupported, failure.detail.to_string()))
                }
                FailureKind::Trouble | FailureKind::Gone | FailureKind::FilesGone => {
                    self.entries[entry].frozen = Frozen::Unsure;
                    Err(Refusal::new(ErrorCode::SandboxBusy, failure.detail.to_string()))
                }
            },
            Outcome::TimedOut => {
                self.entries[entry].frozen = Frozen::Unsure;
                Err(Refusal::new(ErrorCode::DeadlineExceeded, "it could not be frozen in time"))
            }
        };
        self.arm_processes(entry);
        self.answer_freezers(entry, true, &answer);
        if !self.thaw_if_kept_awake(entry) {
            self.drive_entry(entry);
        }
    }

    /// Something began to keep a sandbox awake when it was being frozen already.
    pub(crate) fn thaw_if_kept_awake(&mut self, entry: EntryIx) -> bool {
        let sandbox = &self.entries[entry];
        let thaws = sandbox.frozen == Frozen::Yes
            && sandbox.phase == Phase::InUse
            && sandbox.ops.is_free()
            && sandbox.ending.is_none()
            && sandbox.is_awake();
        if thaws {
            self.thaw(entry);
        }
        thaws
    }

    pub(crate) fn thaw_ended(&mut self, entry: EntryIx, outcome: Outcome) {
        let detail = match outcome {
            Outcome::Done => {
                // That it can be thawed says nothing of whether it answers.
                self.entries[entry].frozen = Frozen::No;
                self.time_goes_on(entry);
                self.touch(entry);
                self.publish_frozen(entry);
                self.answer_freezers(entry, false, &Ok(Reply::Frozen { frozen: false }));
                self.repin(entry);
                self.arm_quiet(entry);
                self.drive_entry(entry);
                return;
            }
            Outcome::Failed(failure) => failure.detail,
            Outcome::TimedOut => Arc::from("it could not be thawed in time"),
        };
        self.died(entry, EndCause::FreezeFailed, Some(detail));
    }

    fn answer_freezers(&mut self, entry: EntryIx, frozen: bool, answer: &Result<Reply, Refusal>) {
        let wanted =
            |what: &Waiting| matches!(what, Waiting::Freeze { frozen: f, .. } if *f == frozen);
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
            return Ok(Reply::Frozen { frozen: true });
        }
        if !known.traits.can_freeze {
            let cause = "the runtime of this template cannot freeze";
            return Err(Refusal::new(ErrorCode::Unsupported, cause));
        }
        let kills = known.kills_until().is_some_and(|until| until > self.now.mono);
        if kills || !may_freeze(known) {
            let cause = "something is going on in it, or keeps it awake";
            return Err(Refusal::new(ErrorCode::SandboxBusy, cause));
        }
        let saves = self.must_save_first(known);
        self.await_freeze(request, entry, true);
        if saves {
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
        let freezing = known.ops.is_doing(OpKind::Freeze);
        if known.frozen == Frozen::No && !freezing {
            return Ok(Reply::Frozen { frozen: false });
        }
        self.await_freeze(request, entry, false);
        self.repin(entry);
        self.drive_entry(entry);
        Ok(Reply::Pending)
    }

    fn await_freeze(&mut self, request: RequestId, entry: EntryIx, frozen: bool) {
        let deadline = self.now.mono.plus(self.config.control_timeout_ms);
        let req = self.wait(request, deadline, Waiting::Freeze { entry, frozen });
        self.arm_request(req);
        self.entries[entry].extra().waiting.push(req);
    }

    /// A sandbox that is someone's and alive, by its id.
    pub(crate) fn usable(&self, sandbox: SandboxId) -> Result<EntryIx, Refusal> {
        let Some(entry) = self.entries.by_id(sandbox) else {
            return Err(match self.ends.of_sandbox(sandbox) {
                Some(ended) => crate::removal::gone(ended.cause),
                None => sandbox_unknown(sandbox),
            });
        };
        let known = &self.entries[entry];
        match (known.phase, known.owner()) {
            (Phase::InUse, Own::Lease(_) | Own::Session(_)) => Ok(entry),
            (Phase::Killing, _) => {
                let cause = known.ending.as_ref().map_or(EndCause::Deleted, |e| e.cause);
                Err(crate::removal::gone(cause))
            }
            (Phase::Wiping | Phase::Proving, _) => Err(crate::removal::gone(EndCause::Returned)),
            (Phase::Cold, _) => {
                let cause = known.slept.unwrap_or(EndCause::Idle);
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
        && entry.ops.is_free()
        && !entry.is_saving_inside()
        // Its guest may be what gives the files out.
        && !entry.holds.is_copied()
        && entry.may_rest()
        && !entry.is_awake()
}

//! The way to the end of a sandbox: save its files if they are worth it, then remove it. Promise 1
//! lives here: a decision that is voidable is void as soon as someone uses the sandbox, and a
//! failed save never kills, except where the sandbox must end.

use std::sync::Arc;

use model::{EndCause, ErrorCode, Refusal, RequestId, SandboxId};

use crate::effect::{Action, Effect};
use crate::entry::{After, Ending, Frozen, Op, OpKind, Own, Phase, Resolve};
use crate::event::{FailureKind, Outcome};
use crate::reply::Reply;
use crate::request::Waiting;
use crate::slab::Ix;
use crate::{Flaw, Kernel};

/// How often saving is tried before a sandbox that must end is ended without it.
const SAVE_ATTEMPTS_MAX: u32 = 3;

/// How long a sandbox whose files could not be saved is left alone.
const SPARED_MS: u64 = 10_000;

impl Kernel {
    /// Begins an effect on a sandbox.
    pub(crate) fn begin(&mut self, ix: Ix, kind: OpKind, timeout_ms: u64, action: Action) -> u64 {
        self.next_effect += 1;
        let n = self.next_effect;
        let deadline = self.now.mono.plus(timeout_ms);
        let entry = &mut self.entries[ix];
        let op = Some(Op { n, kind, deadline });
        match kind {
            OpKind::Persist => entry.saving = op,
            OpKind::StartTurn | OpKind::StopTurn => entry.turn_op = op,
            OpKind::Launch
            | OpKind::Claim
            | OpKind::Probe(_)
            | OpKind::Wipe
            | OpKind::Prove
            | OpKind::Freeze
            | OpKind::Thaw
            | OpKind::Kill
            | OpKind::Copy
            | OpKind::Archive => entry.op = op,
        }
        let id = model::EffectId { sandbox: entry.id, generation: entry.generation, n };
        self.out.effects.push(Effect { id, deadline, action });
        self.arm(ix, deadline);
        n
    }

    /// Decides that a sandbox ends. A firmer decision replaces a weaker one; a weaker one is
    /// ignored.
    pub(crate) fn end(&mut self, ix: Ix, cause: EndCause, after: After, resolve: Resolve) {
        let entry = &mut self.entries[ix];
        if entry.phase == Phase::Killing {
            if after == After::Gone
                && let Some(ending) = &mut entry.ending
                && ending.after != After::Gone
            {
                ending.after = After::Gone;
                ending.cause = cause;
                self.mark(ix);
                self.settle(ix);
            }
            return;
        }
        if let Some(ending) = &entry.ending
            && ending.resolve as u8 >= resolve as u8
        {
            return;
        }
        entry.ending = Some(Box::new(Ending { after, resolve, ..Ending::now(cause) }));
        self.mark(ix);
        self.leave_pool_line(ix);
        self.settle(ix);
        self.step_ending(ix);
    }

    /// Takes the next step to the end of a sandbox.
    pub(crate) fn step_ending(&mut self, ix: Ix) {
        let skip_save = self.flawed(Flaw::PersistSkipped);
        let entry = &self.entries[ix];
        let Some(ending) = &entry.ending else { return };
        let save = match ending.resolve {
            Resolve::Now => false,
            Resolve::Voidable | Resolve::Careful | Resolve::Firm => {
                entry.dirty && entry.phase == Phase::InUse && !skip_save
            }
        };
        if !save {
            self.kill(ix);
        } else if entry.saving.is_none() {
            self.save(ix);
        }
    }

    /// Makes the files of a sandbox durable.
    pub(crate) fn save(&mut self, ix: Ix) {
        let entry = &mut self.entries[ix];
        entry.wrote = !entry.is_quiet();
        entry.acknowledged = false;
        let action = Action::Persist { instance: entry.instance, workspace: entry.workspace };
        self.begin(ix, OpKind::Persist, self.config.deadlines.workspace_ms, action);
    }

    pub(crate) fn save_ended(&mut self, ix: Ix, outcome: Outcome) {
        let covers_later = self.flawed(Flaw::SaveCoversLater);
        match outcome {
            Outcome::Done => {
                let entry = &mut self.entries[ix];
                entry.dirty = entry.wrote || entry.acknowledged || entry.is_awake();
                entry.has_files = true;
                self.mark(ix);
                self.publish_durable(ix);
                // It was not frozen while its guest was needed.
                self.arm_quiet(ix);
                let entry = &mut self.entries[ix];
                let Some(ending) = &mut entry.ending else {
                    self.freeze_saved(ix);
                    return;
                };
                // A program of its own that goes on writing must not keep it from its end. But
                // what a caller was answered while this save went on needs another one: uses in
                // progress are the last, so that comes to an end.
                ending.saves += 1;
                let covered = !entry.acknowledged || covers_later;
                if covered && (ending.saves >= SAVE_ATTEMPTS_MAX || entry.is_quiet()) {
                    entry.dirty = false;
                }
                self.step_ending(ix);
            }
            Outcome::Failed(failure) => {
                let again = match failure.kind {
                    FailureKind::FilesGone => {
                        // All but some files were saved, and the others never will be.
                        self.entries[ix].has_files = true;
                        self.mark(ix);
                        false
                    }
                    FailureKind::Trouble | FailureKind::Gone | FailureKind::Unsupported => true,
                };
                self.save_failed(ix, &failure.detail, again);
            }
            Outcome::TimedOut => self.save_failed(ix, "saving the workspace took too long", true),
        }
    }

    fn save_failed(&mut self, ix: Ix, detail: &str, again: bool) {
        let kills = self.flawed(Flaw::FailedPersistKills);
        let now = self.now.mono;
        let entry = &mut self.entries[ix];
        let Some(ending) = &mut entry.ending else {
            entry.spared_until = now.plus(SPARED_MS);
            self.arm(ix, now.plus(SPARED_MS));
            self.settle(ix);
            self.arm_quiet(ix);
            let refusal = Refusal::new(ErrorCode::PersistFailed, detail.to_owned());
            self.refuse_freezers(ix, &refusal);
            return;
        };
        match ending.resolve {
            Resolve::Voidable | Resolve::Careful if !kills => {
                entry.spared_until = now.plus(SPARED_MS);
                self.arm(ix, now.plus(SPARED_MS));
                let refusal = Refusal::new(ErrorCode::PersistFailed, detail.to_owned());
                self.void_ending(ix, &refusal);
                self.refuse_freezers(ix, &refusal);
            }
            Resolve::Voidable | Resolve::Careful | Resolve::Firm | Resolve::Now => {
                ending.attempts += 1;
                if kills || !again || ending.attempts >= SAVE_ATTEMPTS_MAX {
                    self.kill(ix);
                } else {
                    let pause_ms = self.config.backoff.pause_ms(ending.attempts);
                    ending.retry_at = now.plus(pause_ms);
                    self.arm(ix, now.plus(pause_ms));
                }
            }
        }
    }

    /// The sandbox is not ended after all.
    pub(crate) fn void_ending(&mut self, ix: Ix, refusal: &Refusal) {
        let entry = &mut self.entries[ix];
        if entry.ending.take().is_none() {
            return;
        }
        self.mark(ix);
        self.repin(ix);
        self.arm_quiet(ix);
        self.arm_expiry(ix);
        for req in self.take_waiting(ix, |what| matches!(what, Waiting::Delete { .. })) {
            self.answer(req, Err(refusal.clone()));
        }
        if let Own::Session(session) = self.entries[ix].owner {
            self.ending_voided(session, refusal);
            self.session_due(session);
        }
        self.admission_due = true;
    }

    /// Removes a sandbox, whatever it is doing.
    pub(crate) fn kill(&mut self, ix: Ix) {
        self.uncount_phase(ix);
        if let Some(pool) = self.entries[ix].slot {
            // Those who counted on it look for another at once, if there is a slot.
            self.pool_due(pool);
        }
        let entry = &mut self.entries[ix];
        if !entry.live {
            // Nothing was launched: it is gone already.
            self.removed(ix);
            return;
        }
        entry.phase = Phase::Killing;
        entry.saving = None;
        entry.turn_op = None;
        if let Some(ending) = &mut entry.ending {
            ending.attempts = 0;
        }
        self.mark(ix);
        self.settle(ix);
        self.send_kill(ix);
        let cause = self.entries[ix].ending.as_ref().map_or(EndCause::Deleted, |e| e.cause);
        self.break_uses(ix, cause);
    }

    pub(crate) fn send_kill(&mut self, ix: Ix) {
        let entry = &mut self.entries[ix];
        let ending = entry.ending.as_mut().expect("what is being killed has a cause");
        // A launch that was never heard of may have made one all the same.
        // A fork may be reading it: then it goes when that has ended.
        let goes = ending.after == After::Gone && entry.copies == 0;
        ending.takes_workspace = goes || !entry.has_files;
        let workspace = ending.takes_workspace.then_some(entry.workspace);
        let action = Action::Kill { instance: entry.instance, workspace };
        self.begin(ix, OpKind::Kill, self.config.deadlines.kill_ms, action);
    }

    pub(crate) fn kill_ended(&mut self, ix: Ix, outcome: &Outcome) {
        if *outcome == Outcome::Done || self.flawed(Flaw::KillNotRetried) {
            self.removed(ix);
            return;
        }
        // It may still exist, so its place stays taken and we go on trying.
        let backoff = &self.config.backoff;
        let entry = &mut self.entries[ix];
        let ending = entry.ending.as_mut().expect("what is being killed has a cause");
        ending.attempts += 1;
        ending.retry_at = self.now.mono.plus(backoff.pause_ms(ending.attempts));
        let at = ending.retry_at;
        self.arm(ix, at);
    }

    /// Whatever still depends on the phase that a sandbox is leaving.
    fn uncount_phase(&mut self, ix: Ix) {
        let entry = &mut self.entries[ix];
        entry.op = None;
        match (entry.phase, entry.slot) {
            (Phase::Launching, Some(pool)) => self.pools[pool].launching -= 1,
            (Phase::Wiping | Phase::Proving, Some(pool)) => self.pools[pool].cleaning -= 1,
            (Phase::Claiming(req), _) => {
                if let Some(pool) = entry.slot {
                    self.pools[pool].leased -= 1;
                }
                self.claim_lost(ix, req);
            }
            (Phase::InUse, Some(pool)) => {
                let cause = entry.ending.as_ref().map_or(EndCause::Deleted, |e| e.cause);
                self.pools[pool].leased -= 1;
                self.forget_lease(ix, cause);
            }
            (
                Phase::Cold
                | Phase::Idle
                | Phase::Killing
                | Phase::Launching
                | Phase::Wiping
                | Phase::Proving
                | Phase::InUse,
                _,
            ) => {}
        }
        self.entries[ix].frozen = Frozen::No;
    }

    /// An instance died on its own.
    pub(crate) fn died(&mut self, ix: Ix, cause: EndCause, detail: Option<Arc<str>>) {
        let entry = &self.entries[ix];
        if entry.phase == Phase::Killing {
            return;
        }
        if let Some(pool) = entry.slot {
            self.pools[pool].counters.crashed += 1;
        }
        if entry.phase == Phase::Launching {
            let detail = detail.unwrap_or_else(|| "it died while it was being started".into());
            self.launch_ended(
                ix,
                Outcome::Failed(crate::Failure { kind: FailureKind::Gone, detail }),
            );
            return;
        }
        let after = match entry.owner {
            // One that was still being bound is not its session's yet.
            Own::Session(_) if entry.phase == Phase::InUse => After::Renamed,
            Own::Session(_) | Own::Nobody | Own::Lease(_) => After::Gone,
        };
        self.end(ix, cause, after, Resolve::Now);
        if let Some(ending) = self.entries.get_mut(ix).and_then(|e| e.ending.as_mut()) {
            ending.detail = detail;
        }
    }

    /// Someone wants a sandbox to go.
    pub(crate) fn delete_requested(
        &mut self,
        request: RequestId,
        sandbox: SandboxId,
    ) -> Result<Reply, Refusal> {
        let Some(ix) = self.entry_index.get(sandbox.as_u128()) else {
            return match self.ends.of_sandbox(sandbox) {
                Some(_) => Ok(Reply::Gone),
                None => Err(sandbox_unknown(sandbox)),
            };
        };
        if self.entries[ix].live {
            self.await_deletion(request, ix)?;
            self.end(ix, EndCause::Deleted, After::Gone, Resolve::Now);
            Ok(Reply::Pending)
        } else if self.entries[ix].op.is_some() && !self.entries[ix].is_archiving() {
            // Its files are being copied. It goes as soon as that is over, one way or the other.
            self.await_deletion(request, ix)?;
            self.entries[ix].ending = Some(Box::new(Ending::now(EndCause::Deleted)));
            self.mark(ix);
            self.settle(ix);
            Ok(Reply::Pending)
        } else {
            self.lose_files(ix, EndCause::Deleted.reason());
            self.remove_entry(ix, EndCause::Deleted, None, None);
            Ok(Reply::Gone)
        }
    }

    fn await_deletion(&mut self, request: RequestId, ix: Ix) -> Result<(), Refusal> {
        Self::refuse_when_crowded(self.entries[ix].waiting())?;
        let deadline = self.now.mono.plus(self.config.control_timeout_ms);
        let req = self.wait(request, deadline, Waiting::Delete { entry: ix });
        self.arm_request(req);
        self.entries[ix].extra().waiting.push(req);
        Ok(())
    }

    /// Takes the requests of one kind that wait for a sandbox.
    pub(crate) fn take_waiting(&mut self, ix: Ix, wanted: impl Fn(&Waiting) -> bool) -> Vec<Ix> {
        let requests = &self.requests;
        let Some(extra) = &mut self.entries[ix].extra else { return Vec::new() };
        extra.waiting.extract_if(.., |req| wanted(&requests[*req].what)).collect()
    }
}

pub(crate) fn sandbox_unknown(sandbox: SandboxId) -> Refusal {
    Refusal::new(ErrorCode::SandboxUnknown, format!("no sandbox {sandbox} is known"))
}

//! The way to the end of a sandbox: save its files if they are worth it, then remove it. Promise 1
//! lives here: a decision that is voidable is void as soon as someone uses the sandbox, and a
//! failed save never kills, except where the sandbox must end.

use std::sync::Arc;

use model::{EndCause, ErrorCode, Refusal, RequestId, SandboxId};

use crate::Kernel;
use crate::effect::{Action, Effect};
use crate::entry::{After, Ending, EntryIx, Frozen, Op, OpKind, Own, Phase, Resolve};
use crate::event::{FailureKind, Outcome};
use crate::reply::Reply;
use crate::request::{RequestIx, Waiting};

/// How often saving is tried before a sandbox that must end is ended without it.
const SAVE_ATTEMPTS_MAX: u32 = 3;

/// How long a sandbox whose files could not be saved is left alone.
const SPARED_MS: u64 = 10_000;

impl Kernel {
    /// Begins an effect on a sandbox.
    pub(crate) fn begin(
        &mut self,
        entry: EntryIx,
        kind: OpKind,
        timeout_ms: u64,
        action: Action,
    ) -> u64 {
        let n = self.minter.effect();
        let deadline = self.now.mono.plus(timeout_ms);
        let sandbox = &mut self.entries[entry];
        sandbox.ops.began(Op { n, kind, deadline });
        let id = model::EffectId { sandbox: sandbox.id, generation: sandbox.generation, n };
        self.out.effects.push(Effect { id, deadline, action });
        self.arm(entry, deadline);
        n
    }

    /// Decides that a sandbox ends. A firmer decision replaces a weaker one; a weaker one is
    /// ignored.
    pub(crate) fn end(&mut self, entry: EntryIx, cause: EndCause, after: After, resolve: Resolve) {
        let sandbox = &mut self.entries[entry];
        if sandbox.phase == Phase::Killing {
            if after == After::Gone
                && let Some(ending) = &mut sandbox.ending
                && ending.after != After::Gone
            {
                ending.after = After::Gone;
                ending.cause = cause;
                self.mark(entry);
                self.settle(entry);
            }
            return;
        }
        if let Some(ending) = &sandbox.ending
            && ending.resolve as u8 >= resolve as u8
        {
            return;
        }
        sandbox.ending = Some(Box::new(Ending { after, resolve, ..Ending::now(cause) }));
        self.mark(entry);
        self.leave_pool_line(entry);
        self.settle(entry);
        self.step_ending(entry);
    }

    /// Takes the next step to the end of a sandbox.
    pub(crate) fn step_ending(&mut self, entry: EntryIx) {
        let sandbox = &self.entries[entry];
        let Some(ending) = &sandbox.ending else { return };
        let save = match ending.resolve {
            Resolve::Now => false,
            Resolve::Voidable | Resolve::Careful | Resolve::Firm => {
                sandbox.files.is_dirty()
                    && sandbox.phase == Phase::InUse
                    && !self.flaws.skips_save()
            }
        };
        if !save {
            self.kill(entry);
        } else if !sandbox.ops.is_saving() {
            self.save(entry);
        }
    }

    /// Makes the files of a sandbox durable.
    pub(crate) fn save(&mut self, entry: EntryIx) {
        let sandbox = &mut self.entries[entry];
        sandbox.files.save_began(sandbox.holds.is_quiet());
        let action = Action::Persist { instance: sandbox.instance, workspace: sandbox.workspace };
        self.begin(entry, OpKind::Persist, self.config.deadlines.workspace_ms, action);
    }

    pub(crate) fn save_ended(&mut self, entry: EntryIx, outcome: Outcome) {
        match outcome {
            Outcome::Done => {
                let sandbox = &mut self.entries[entry];
                sandbox.files.save_ended(sandbox.is_awake());
                self.mark(entry);
                self.publish_durable(entry);
                // It was not frozen while its guest was needed.
                self.arm_quiet(entry);
                let sandbox = &mut self.entries[entry];
                let Some(ending) = &mut sandbox.ending else {
                    self.freeze_saved(entry);
                    return;
                };
                // A program of its own that goes on writing must not keep it from its end. But
                // what a caller was answered while this save went on needs another one: uses in
                // progress are the last, so that comes to an end.
                ending.saves += 1;
                let covered = !sandbox.files.lacks_answered() || self.flaws.counts_later_as_saved();
                if covered && (ending.saves >= SAVE_ATTEMPTS_MAX || sandbox.is_quiet()) {
                    sandbox.files.settled();
                }
                self.step_ending(entry);
            }
            Outcome::Failed(failure) => {
                let again = match failure.kind {
                    FailureKind::FilesGone => {
                        // All but some files were saved, and the others never will be.
                        self.entries[entry].files.saved_in_part();
                        self.mark(entry);
                        false
                    }
                    FailureKind::Trouble | FailureKind::Gone | FailureKind::Unsupported => true,
                };
                self.save_failed(entry, &failure.detail, again);
            }
            Outcome::TimedOut => {
                self.save_failed(entry, "saving the workspace took too long", true);
            }
        }
    }

    fn save_failed(&mut self, entry: EntryIx, detail: &str, again: bool) {
        let kills = self.flaws.kills_after_failed_save();
        let now = self.now.mono;
        let sandbox = &mut self.entries[entry];
        let Some(ending) = &mut sandbox.ending else {
            sandbox.spared_until = now.plus(SPARED_MS);
            self.arm(entry, now.plus(SPARED_MS));
            self.settle(entry);
            self.arm_quiet(entry);
            let refusal = Refusal::new(ErrorCode::PersistFailed, detail.to_owned());
            self.refuse_freezers(entry, &refusal);
            return;
        };
        match ending.resolve {
            Resolve::Voidable | Resolve::Careful if !kills => {
                sandbox.spared_until = now.plus(SPARED_MS);
                self.arm(entry, now.plus(SPARED_MS));
                let refusal = Refusal::new(ErrorCode::PersistFailed, detail.to_owned());
                self.void_ending(entry, &refusal);
                self.refuse_freezers(entry, &refusal);
            }
            Resolve::Voidable | Resolve::Careful | Resolve::Firm | Resolve::Now => {
                ending.attempts += 1;
                if kills || !again || ending.attempts >= SAVE_ATTEMPTS_MAX {
                    self.kill(entry);
                } else {
                    let pause_ms = self.config.backoff.pause_ms(ending.attempts);
                    ending.retry_at = now.plus(pause_ms);
                    self.arm(entry, now.plus(pause_ms));
                }
            }
        }
    }

    /// The sandbox is not ended after all.
    pub(crate) fn void_ending(&mut self, entry: EntryIx, refusal: &Refusal) {
        let sandbox = &mut self.entries[entry];
        if sandbox.ending.take().is_none() {
            return;
        }
        self.mark(entry);
        self.repin(entry);
        self.arm_quiet(entry);
        self.arm_expiry(entry);
        for req in self.take_waiting(entry, |what| matches!(what, Waiting::Delete { .. })) {
            self.answer(req, Err(refusal.clone()));
        }
        if let Some(session) = self.entries[entry].session() {
            self.ending_voided(session, refusal);
            self.session_due(session);
        }
        self.due.look_at_line();
    }

    /// Removes a sandbox, whatever it is doing.
    pub(crate) fn kill(&mut self, entry: EntryIx) {
        self.uncount_phase(entry);
        if let Some(pool) = self.entries[entry].slot {
            // Those who counted on it look for another at once, if there is a slot.
            self.pool_due(pool);
        }
        let sandbox = &mut self.entries[entry];
        if !sandbox.is_live() {
            // Nothing was launched: it is gone already.
            self.removed(entry);
            return;
        }
        sandbox.phase = Phase::Killing;
        sandbox.ops.call_off_save();
        sandbox.ops.call_off_turn();
        if let Some(ending) = &mut sandbox.ending {
            ending.attempts = 0;
        }
        self.mark(entry);
        self.settle(entry);
        self.send_kill(entry);
        let cause = self.entries[entry].ending.as_ref().map_or(EndCause::Deleted, |e| e.cause);
        self.break_uses(entry, cause);
    }

    pub(crate) fn send_kill(&mut self, entry: EntryIx) {
        let sandbox = &mut self.entries[entry];
        let ending = sandbox.ending.as_mut().expect("what is being killed has a cause");
        // A launch that was never heard of may have made one all the same.
        // A fork may be reading it: then it goes when that has ended.
        let goes = ending.after == After::Gone && !sandbox.holds.is_copied();
        ending.takes_workspace = goes || !sandbox.files.has_files();
        let workspace = ending.takes_workspace.then_some(sandbox.workspace);
        let action = Action::Kill { instance: sandbox.instance, workspace };
        self.begin(entry, OpKind::Kill, self.config.deadlines.kill_ms, action);
    }

    pub(crate) fn kill_ended(&mut self, entry: EntryIx, outcome: &Outcome) {
        if *outcome == Outcome::Done || self.flaws.forgets_failed_kill() {
            self.removed(entry);
            return;
        }
        // It may still exist, so its place stays taken and we go on trying.
        let backoff = &self.config.backoff;
        let sandbox = &mut self.entries[entry];
        let ending = sandbox.ending.as_mut().expect("what is being killed has a cause");
        ending.attempts += 1;
        ending.retry_at = self.now.mono.plus(backoff.pause_ms(ending.attempts));
        let at = ending.retry_at;
        self.arm(entry, at);
    }

    /// Whatever still depends on the phase that a sandbox is leaving.
    fn uncount_phase(&mut self, entry: EntryIx) {
        let sandbox = &mut self.entries[entry];
        sandbox.ops.call_off();
        match (sandbox.phase, sandbox.slot) {
            (Phase::Launching, Some(pool)) => self.pools[pool].occupied.launch_over(),
            (Phase::Wiping | Phase::Proving, Some(pool)) => {
                self.pools[pool].occupied.cleaning_over();
            }
            (Phase::Claiming(req), _) => {
                if let Some(pool) = sandbox.slot {
                    self.pools[pool].occupied.lease_over();
                }
                self.claim_lost(entry, req);
            }
            (Phase::InUse, Some(pool)) => {
                let cause = sandbox.ending.as_ref().map_or(EndCause::Deleted, |e| e.cause);
                self.pools[pool].occupied.lease_over();
                self.forget_lease(entry, cause);
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
        self.entries[entry].frozen = Frozen::No;
    }

    /// An instance died on its own.
    pub(crate) fn died(&mut self, entry: EntryIx, cause: EndCause, detail: Option<Arc<str>>) {
        let sandbox = &self.entries[entry];
        if sandbox.phase == Phase::Killing {
            return;
        }
        if let Some(pool) = sandbox.slot {
            self.pools[pool].counters.crashed += 1;
        }
        if sandbox.phase == Phase::Launching {
            let detail = detail.unwrap_or_else(|| "it died while it was being started".into());
            self.launch_ended(
                entry,
                Outcome::Failed(crate::Failure { kind: FailureKind::Gone, detail }),
            );
            return;
        }
        let after = match sandbox.owner() {
            // One that was still being bound is not its session's yet.
            Own::Session(_) if sandbox.phase == Phase::InUse => After::Renamed,
            Own::Session(_) | Own::Nobody | Own::Lease(_) => After::Gone,
        };
        self.end(entry, cause, after, Resolve::Now);
        if let Some(ending) = self.entries.get_mut(entry).and_then(|e| e.ending.as_mut()) {
            ending.detail = detail;
        }
    }

    /// Someone wants a sandbox to go.
    pub(crate) fn delete_requested(
        &mut self,
        request: RequestId,
        sandbox: SandboxId,
    ) -> Result<Reply, Refusal> {
        let Some(entry) = self.entries.by_id(sandbox) else {
            return match self.ends.of_sandbox(sandbox) {
                Some(_) => Ok(Reply::Gone),
                None => Err(sandbox_unknown(sandbox)),
            };
        };
        if self.entries[entry].is_live() {
            self.await_deletion(request, entry)?;
            self.end(entry, EndCause::Deleted, After::Gone, Resolve::Now);
            Ok(Reply::Pending)
        } else if !self.entries[entry].ops.is_free() && !self.entries[entry].is_archiving() {
            // Its files are being copied. It goes as soon as that is over, one way or the other.
            self.await_deletion(request, entry)?;
            self.entries[entry].ending = Some(Box::new(Ending::now(EndCause::Deleted)));
            self.mark(entry);
            self.settle(entry);
            Ok(Reply::Pending)
        } else {
            self.lose_files(entry, EndCause::Deleted.reason());
            self.remove_entry(entry, EndCause::Deleted, None, None);
            Ok(Reply::Gone)
        }
    }

    fn await_deletion(&mut self, request: RequestId, entry: EntryIx) -> Result<(), Refusal> {
        Self::refuse_when_crowded(self.entries[entry].waiting())?;
        let deadline = self.now.mono.plus(self.config.control_timeout_ms);
        let req = self.wait(request, deadline, Waiting::Delete { entry });
        self.arm_request(req);
        self.entries[entry].extra().waiting.push(req);
        Ok(())
    }

    /// Takes the requests of one kind that wait for a sandbox.
    pub(crate) fn take_waiting(
        &mut self,
        entry: EntryIx,
        wanted: impl Fn(&Waiting) -> bool,
    ) -> Vec<RequestIx> {
        let requests = &self.requests;
        let Some(extra) = &mut self.entries[entry].extra else { return Vec::new() };
        extra.waiting.extract_if(.., |req| wanted(&requests[*req].what)).collect()
    }
}

pub(crate) fn sandbox_unknown(sandbox: SandboxId) -> Refusal {
    Refusal::new(ErrorCode::SandboxUnknown, format!("no sandbox {sandbox} is known"))
}

//! Saving the files of a sandbox, during its termination or before a freeze. A failed save never
//! kills, except where the sandbox must end.

use model::{ErrorCode, Refusal};

use crate::Kernel;
use crate::effect::Action;
use crate::entry::{EntryIx, Firmness, OpKind, Reach};
use crate::event::{FailureKind, Outcome};

/// How often a save is tried before a sandbox that must end ends without it.
const SAVE_ATTEMPTS_MAX: u32 = 3;

/// How long a sandbox is not evicted after a failed save.
const SPARED_MS: u64 = 10_000;

impl Kernel {
    /// Saves the files of a sandbox, as soon as they can be reached.
    pub(crate) fn save(&mut self, entry: EntryIx) {
        let timeout_ms = self.config.deadlines.workspace_ms;
        if self.can_read(entry, Reach::GuestOnly) {
            let sandbox = &mut self.entries[entry];
            sandbox.files.save_began(sandbox.holds.is_quiet());
            let action = Action::Persist {
                instance: sandbox.instance,
                workspace: sandbox.workspace,
                guest_awake: sandbox.reach() == Reach::GuestOnly,
            };
            self.begin(entry, OpKind::Persist, timeout_ms, action);
        } else {
            self.begin_wait(entry, OpKind::AwaitGuest, self.now.mono.plus(timeout_ms));
            self.thaw_to_read(entry);
        }
    }

    /// Continues a save that waits for the guest, after the sandbox was frozen or thawed.
    pub(crate) fn continue_save(&mut self, entry: EntryIx) {
        if !self.entries[entry].ops.awaits_guest() {
            return;
        }
        if self.can_read(entry, Reach::GuestOnly) {
            self.save(entry);
        } else {
            self.thaw_to_read(entry);
        }
    }

    pub(crate) fn save_ended(&mut self, entry: EntryIx, outcome: Outcome) {
        match outcome {
            Outcome::Done => {
                let sandbox = &mut self.entries[entry];
                sandbox.files.save_ended(sandbox.is_kept_alive());
                self.mark(entry);
                self.publish_durable(entry);
                // The sandbox was not frozen while its guest was needed.
                self.arm_freeze_and_sweep(entry);
                let sandbox = &mut self.entries[entry];
                let Some(termination) = &mut sandbox.termination else {
                    self.continue_freeze(entry);
                    return;
                };
                // A program that keeps writing must not prevent the end. But a write that was
                // acknowledged during this save needs another save. No new uses begin, so this
                // ends.
                let saves = termination.save_worked();
                let covered = !sandbox.files.lacks_answered() || self.flaws.counts_later_as_saved();
                if covered && (saves >= SAVE_ATTEMPTS_MAX || sandbox.is_quiet()) {
                    sandbox.files.settled();
                }
                self.step_termination(entry);
            }
            Outcome::Failed(failure)
                if failure.kind == FailureKind::NeedsGuest
                    && self.entries[entry].reach() < Reach::GuestOnly =>
            {
                self.entries[entry].file_access.learn(Reach::GuestOnly);
                self.save(entry);
            }
            Outcome::Failed(failure) => {
                let again = match failure.kind {
                    FailureKind::FilesGone => {
                        // The other files were saved; these never will be.
                        self.entries[entry].files.saved_in_part();
                        self.mark(entry);
                        false
                    }
                    FailureKind::Trouble
                    | FailureKind::Gone
                    | FailureKind::Unsupported
                    | FailureKind::NeedsGuest
                    | FailureKind::Refused(_) => true,
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
        let Some(termination) = &mut sandbox.termination else {
            sandbox.spared_until = now.plus(SPARED_MS);
            self.arm(entry, now.plus(SPARED_MS));
            self.settle(entry);
            self.arm_freeze_and_sweep(entry);
            let refusal = Refusal::new(ErrorCode::PersistFailed, detail.to_owned());
            self.refuse_freeze_requests(entry, &refusal);
            return;
        };
        match termination.firmness {
            Firmness::Voidable | Firmness::Careful if !kills => {
                sandbox.spared_until = now.plus(SPARED_MS);
                self.arm(entry, now.plus(SPARED_MS));
                let refusal = Refusal::new(ErrorCode::PersistFailed, detail.to_owned());
                self.void_termination(entry, &refusal);
                self.refuse_freeze_requests(entry, &refusal);
            }
            Firmness::Voidable | Firmness::Careful | Firmness::Firm | Firmness::Now => {
                let attempts = termination.attempt_failed();
                if kills || !again || attempts >= SAVE_ATTEMPTS_MAX {
                    self.kill(entry);
                } else {
                    let at = now.plus(self.config.backoff.pause_ms(attempts));
                    termination.retry(at);
                    self.arm(entry, at);
                }
            }
        }
    }
}

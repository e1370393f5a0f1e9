//! Saving the files of a sandbox, on its way to its end or before it is frozen. A failed save never
//! kills, except where the sandbox must end.

use model::{ErrorCode, Refusal};

use crate::Kernel;
use crate::effect::Action;
use crate::entry::{EntryIx, OpKind, Reach, Resolve};
use crate::event::{FailureKind, Outcome};

/// How often saving is tried before a sandbox that must end is ended without it.
const SAVE_ATTEMPTS_MAX: u32 = 3;

/// How long a sandbox whose files could not be saved is left alone.
const SPARED_MS: u64 = 10_000;

impl Kernel {
    /// Makes the files of a sandbox durable, as soon as they can be reached.
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
            self.wake_to_read(entry);
        }
    }

    /// Goes on with a save that waits for the guest, now that something about that changed.
    pub(crate) fn go_on_saving(&mut self, entry: EntryIx) {
        if !self.entries[entry].ops.awaits_guest() {
            return;
        }
        if self.can_read(entry, Reach::GuestOnly) {
            self.save(entry);
        } else {
            self.wake_to_read(entry);
        }
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
                    self.go_on_freezing(entry);
                    return;
                };
                // A program of its own that goes on writing must not keep it from its end. But
                // what a caller was answered while this save went on needs another one: uses in
                // progress are the last, so that comes to an end.
                let saves = ending.save_worked();
                let covered = !sandbox.files.lacks_answered() || self.flaws.counts_later_as_saved();
                if covered && (saves >= SAVE_ATTEMPTS_MAX || sandbox.is_quiet()) {
                    sandbox.files.settled();
                }
                self.step_ending(entry);
            }
            Outcome::Failed(failure)
                if failure.kind == FailureKind::NeedsGuest
                    && self.entries[entry].reach() < Reach::GuestOnly =>
            {
                self.entries[entry].reading.learn(Reach::GuestOnly);
                self.save(entry);
            }
            Outcome::Failed(failure) => {
                let again = match failure.kind {
                    FailureKind::FilesGone => {
                        // All but some files were saved, and the others never will be.
                        self.entries[entry].files.saved_in_part();
                        self.mark(entry);
                        false
                    }
                    FailureKind::Trouble
                    | FailureKind::Gone
                    | FailureKind::Unsupported
                    | FailureKind::NeedsGuest => true,
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
                let attempts = ending.attempt_failed();
                if kills || !again || attempts >= SAVE_ATTEMPTS_MAX {
                    self.kill(entry);
                } else {
                    let at = now.plus(self.config.backoff.pause_ms(attempts));
                    ending.retry(at);
                    self.arm(entry, at);
                }
            }
        }
    }
}

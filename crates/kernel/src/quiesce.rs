//! Makes a sandbox ready for its files to be read. Files that the host reads are copied while nothing
//! changes them: the sandbox is held still for a second at most, and what takes longer is copied as
//! it runs. Files that only the guest reaches are copied and saved while it runs: a sandbox that is
//! at rest is thawed for that and rests again afterwards. It must never leave a sandbox still, and
//! never refuse a caller because of it: a caller that comes meanwhile waits. An end of the sandbox
//! does not wait.

use std::sync::Arc;

use model::EndCause;

use crate::Kernel;
use crate::effect::Action;
use crate::entry::{EntryIx, Frozen, OpKind, Phase, Reach};
use crate::event::{Failure, FailureKind, Outcome};
use crate::session::SessionIx;

/// How long a sandbox is held still while its files are copied, counted from the decision: a caller
/// that waits for an answer of it waits longer than that before it gives up.
const QUIESCE_MS: u64 = 1_000;

/// How often a sandbox that was held still is let run before it is ended instead.
const UNQUIESCE_ATTEMPTS_MAX: u32 = 3;

/// What the copies of a sandbox's files wait for.
enum CopyStep {
    /// Nothing: they begin.
    Copy,
    /// Something that is in progress, or a caller that comes first.
    Wait,
    /// It is to be held still first.
    HoldStill,
    /// It is to be thawed first.
    Thaw,
}

/// Copies, and the sandbox that they are made from.
impl Kernel {
    /// Files are copied into a cold sandbox as soon as the one that has them is ready for it.
    pub(crate) fn await_source(&mut self, copy: EntryIx) {
        let Some(copying) = self.entries[copy].copying else { return };
        self.readers.copy_waits(copying.from, copy);
        let until = self.now.mono.plus(self.config.deadlines.workspace_ms);
        self.begin_wait(copy, OpKind::AwaitSource, until);
    }

    /// Something changed about a sandbox that copies may be waiting for.
    pub(crate) fn source_changed(&mut self, source: EntryIx) {
        if self.entries[source].holds.is_copied()
            && let Some(session) = self.entries[source].session()
        {
            self.session_due(session);
        }
    }

    /// Goes on with the copies that wait for the sandbox of a session.
    pub(crate) fn drive_copies(&mut self, session: SessionIx) {
        let Some(source) = self.sessions.get(session).and_then(|known| known.entry) else { return };
        let sandbox = &self.entries[source];
        if !sandbox.holds.is_copied() || !self.readers.has_waiting(source, sandbox.workspace) {
            return;
        }
        match self.next_for_copies(source) {
            CopyStep::Copy => self.begin_copies(source),
            CopyStep::Wait => {}
            CopyStep::HoldStill => self.quiesce(source),
            CopyStep::Thaw => self.thaw_to_read(source),
        }
    }

    fn next_for_copies(&self, source: EntryIx) -> CopyStep {
        let sandbox = &self.entries[source];
        if sandbox.phase() != Phase::InUse {
            return CopyStep::Copy;
        }
        let free = sandbox.ops.is_free();
        if !self.can_read(source, Reach::GuestReads) {
            return if free { CopyStep::Thaw } else { CopyStep::Wait };
        }
        if sandbox.reach() >= Reach::GuestReads {
            return CopyStep::Copy;
        }
        let rests = sandbox.frozen == Frozen::Yes && free;
        let is_still = rests || sandbox.ops.is_doing(OpKind::Quiesced);
        // What is on its way out is not held up for this.
        let stays_as_it_is = !sandbox.traits.can_freeze || sandbox.termination.is_some();
        if is_still || stays_as_it_is {
            CopyStep::Copy
        } else if !free || sandbox.holds.is_wanted() || self.changes_turn(source) {
            // Callers that wait for it are served first, or copies could keep it still for ever.
            CopyStep::Wait
        } else {
            CopyStep::HoldStill
        }
    }

    /// Whether a turn is being started or stopped in a sandbox. It must run for that, and what lets it
    /// run again would come after that: a stop that takes long would count as a sandbox that does not
    /// run again.
    fn changes_turn(&self, entry: EntryIx) -> bool {
        self.entries[entry].ops.is_changing_turn() && !self.flaws.quiesces_mid_turn()
    }

    fn begin_copies(&mut self, source: EntryIx) {
        self.answer_readers(source);
        for copy in self.readers.waiting_copies(self.entries[source].workspace) {
            self.copy_from_source(copy);
        }
    }

    /// Begins a copy, however the sandbox is that has the files.
    pub(crate) fn copy_from_source(&mut self, copy: EntryIx) {
        if let Some(copying) = self.entries[copy].copying {
            self.readers.copy_stops_waiting(copying.from, copy);
        }
        if self.entries[copy].termination.is_some() {
            self.copy_ended(copy, Outcome::TimedOut);
            return;
        }
        let source = self.source_of(copy);
        let instance = source.and_then(|source| self.instance_to_copy_from(source));
        let guest_awake = source.is_some_and(|source| {
            let sandbox = &self.entries[source];
            sandbox.reach() >= Reach::GuestReads && self.can_read(source, Reach::GuestReads)
        });
        self.copy_workspace(copy, instance, guest_awake && instance.is_some());
    }

    /// A copy found that only the guest reaches the files: it is made again when that runs.
    pub(crate) fn retry_copy_by_guest(&mut self, copy: EntryIx, outcome: &Outcome) -> bool {
        let Outcome::Failed(Failure { kind: FailureKind::NeedsGuest, .. }) = outcome else {
            return false;
        };
        let given_up = self.entries[copy].termination.is_some();
        let Some(source) = self.source_of(copy) else { return false };
        if given_up || self.entries[source].reach() >= Reach::GuestReads {
            return false;
        }
        self.entries[source].file_access.learn(Reach::GuestReads);
        self.await_source(copy);
        self.unquiesce_if_unneeded(source);
        self.source_changed(source);
        true
    }
}

/// Holding still, and letting run.
impl Kernel {
    /// Whether the files of a sandbox can be read now, by the host or by a guest that runs. From
    /// `by_guest` on, the host cannot do what is to be done with them.
    pub(crate) fn can_read(&self, entry: EntryIx, by_guest: Reach) -> bool {
        let sandbox = &self.entries[entry];
        sandbox.reach() < by_guest || sandbox.runs() || self.flaws.asks_frozen_guest()
    }

    /// Thaws a sandbox whose guest is needed. What is being done to it comes to its end first.
    pub(crate) fn thaw_to_read(&mut self, entry: EntryIx) {
        let sandbox = &mut self.entries[entry];
        if !sandbox.ops.is_free() || sandbox.frozen == Frozen::No {
            return;
        }
        if sandbox.frozen == Frozen::Yes {
            sandbox.file_access.freeze_again();
        }
        self.thaw(entry);
    }

    fn quiesce(&mut self, entry: EntryIx) {
        let until = self.now.mono.plus(QUIESCE_MS);
        self.entries[entry].rare_mut().quiesced_until = self.flaws.quiesced_until(until);
        // Meanwhile no process in it is killed whose time is over, so that must not take long.
        let timeout_ms = self.config.deadlines.freeze_ms.min(QUIESCE_MS);
        let action = Action::HoldStill { instance: self.entries[entry].instance };
        self.begin(entry, OpKind::HoldStill, timeout_ms, action);
    }

    pub(crate) fn quiesce_ended(&mut self, entry: EntryIx, outcome: &Outcome) {
        match outcome {
            Outcome::Done => {
                self.stop_process_time(entry);
                let until = self.entries[entry].rare_mut().quiesced_until;
                self.begin_wait(entry, OpKind::Quiesced, until);
                self.begin_copies(entry);
                self.unquiesce_if_unneeded(entry);
            }
            // What cannot be held still is copied as it runs.
            Outcome::Failed(Failure { kind: FailureKind::Unsupported, .. }) => {
                self.entries[entry].traits.can_freeze = false;
                self.begin_copies(entry);
                self.after_unquiesce(entry);
            }
            // It may be still all the same.
            Outcome::Failed(_) | Outcome::TimedOut => {
                self.unquiesce(entry, 1);
                self.begin_copies(entry);
            }
        }
    }

    /// Lets a sandbox run that is held still for no copy, or for one that only its guest can make.
    pub(crate) fn unquiesce_if_unneeded(&mut self, entry: EntryIx) {
        let sandbox = &mut self.entries[entry];
        let needed = sandbox.holds.is_copied() && sandbox.reach() == Reach::Host;
        if sandbox.ops.is_doing(OpKind::Quiesced) && !needed {
            self.unquiesce(entry, 1);
        }
    }

    /// Something in a sandbox is to be ended, which takes that it runs: the stillness is over.
    pub(crate) fn unquiesce_for_stop(&mut self, entry: EntryIx) {
        let still = match self.entries[entry].ops.doing() {
            Some(OpKind::HoldStill | OpKind::Quiesced) => true,
            Some(_) | None => false,
        };
        if still {
            self.unquiesce(entry, 1);
            self.begin_copies(entry);
        }
    }

    pub(crate) fn unquiesce(&mut self, entry: EntryIx, attempt: u32) {
        let action = Action::LetRun { instance: self.entries[entry].instance };
        let timeout_ms = self.config.deadlines.freeze_ms;
        self.begin(entry, OpKind::LetRun(attempt), timeout_ms, action);
    }

    pub(crate) fn unquiesce_ended(&mut self, entry: EntryIx, attempt: u32, outcome: Outcome) {
        let detail = match outcome {
            Outcome::Done => {
                self.entries[entry].frozen = Frozen::No;
                self.after_unquiesce(entry);
                return;
            }
            Outcome::Failed(failure) => failure.detail,
            Outcome::TimedOut => Arc::from("it was held still for a copy, and does not run again"),
        };
        if self.flaws.leaves_quiesced() {
            self.after_unquiesce(entry);
        } else if attempt < UNQUIESCE_ATTEMPTS_MAX {
            self.unquiesce(entry, attempt + 1);
        } else {
            self.died(entry, EndCause::FreezeFailed, Some(detail));
        }
    }

    /// The stillness is over: what waited for that goes on.
    fn after_unquiesce(&mut self, entry: EntryIx) {
        self.resume_process_time(entry);
        self.continue_save(entry);
        self.continue_freeze(entry);
        self.arm_freeze_and_sweep(entry);
        self.drive_entry(entry);
    }
}

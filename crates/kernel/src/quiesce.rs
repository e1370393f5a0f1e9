//! Makes a sandbox ready for its files to be read. Files that the host reads are copied while
//! nothing changes them: the sandbox is quiesced for a second at most, and a copy that takes longer
//! goes on while it runs. Files that only the guest reaches are copied and saved while it runs: a
//! frozen sandbox is thawed for that and frozen again afterwards. It must never leave a sandbox
//! quiesced, and never refuse a caller because of it: the caller waits. A termination does not
//! wait.

use std::sync::Arc;

use model::EndCause;

use crate::Kernel;
use crate::effect::Action;
use crate::entry::{EntryIx, Frozen, OpKind, Phase, Reach};
use crate::event::{Failure, FailureKind, Outcome};
use crate::session::SessionIx;

/// How long a sandbox stays quiesced for a copy, counted from the decision. It is shorter than the
/// timeout of a caller that waits for the sandbox.
const QUIESCE_MS: u64 = 1_000;

/// How often releasing a quiesced sandbox is tried before it ends instead.
const UNQUIESCE_ATTEMPTS_MAX: u32 = 3;

/// The next step towards the copies of a sandbox's files.
enum CopyStep {
    /// They begin.
    Copy,
    /// They wait for an operation in progress, or for a caller that comes first.
    Wait,
    /// The sandbox is quiesced first.
    Quiesce,
    /// The sandbox is thawed first.
    Thaw,
}

/// Copies, and the sandbox that they read.
impl Kernel {
    /// Copies files into a cold sandbox as soon as the source is ready.
    pub(crate) fn await_source(&mut self, copy: EntryIx) {
        let Some(copying) = self.entries[copy].copying else { return };
        self.readers.copy_waits(copying.from, copy);
        let until = self.now.mono.plus(self.config.deadlines.workspace_ms);
        self.begin_wait(copy, OpKind::AwaitSource, until);
    }

    /// A sandbox changed that copies may wait for.
    pub(crate) fn source_changed(&mut self, source: EntryIx) {
        if self.entries[source].holds.is_copied()
            && let Some(session) = self.entries[source].session()
        {
            self.session_due(session);
        }
    }

    /// Continues the copies that wait for the sandbox of a session.
    pub(crate) fn drive_copies(&mut self, session: SessionIx) {
        let Some(source) = self.sessions.get(session).and_then(|known| known.entry) else { return };
        let sandbox = &self.entries[source];
        if !sandbox.holds.is_copied() || !self.readers.has_waiting(source, sandbox.workspace) {
            return;
        }
        match self.next_for_copies(source) {
            CopyStep::Copy => self.begin_copies(source),
            CopyStep::Wait => {}
            CopyStep::Quiesce => self.quiesce(source),
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
        // A termination does not wait for this.
        let stays_as_it_is = !sandbox.traits.can_freeze || sandbox.termination.is_some();
        if is_still || stays_as_it_is {
            CopyStep::Copy
        } else if !free || sandbox.holds.is_wanted() || self.changes_turn(source) {
            // Waiting callers are served first, or copies could keep it quiesced for ever.
            CopyStep::Wait
        } else {
            CopyStep::Quiesce
        }
    }

    /// Whether a turn is being started or stopped in a sandbox. The sandbox must run for that. The
    /// release would be queued behind it, so a slow stop would look like a sandbox that cannot be
    /// released.
    fn changes_turn(&self, entry: EntryIx) -> bool {
        self.entries[entry].ops.is_changing_turn() && !self.flaws.quiesces_mid_turn()
    }

    fn begin_copies(&mut self, source: EntryIx) {
        self.answer_readers(source);
        for copy in self.readers.waiting_copies(self.entries[source].workspace) {
            self.copy_from_source(copy);
        }
    }

    /// Begins a copy, whatever the source sandbox is doing.
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

    /// A copy found that only the guest reaches the files: retries it when the guest runs.
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

/// Quiescing and releasing.
impl Kernel {
    /// Whether the files of a sandbox can be read now, by the host or by a running guest. At
    /// `by_guest` and above the host cannot do it.
    pub(crate) fn can_read(&self, entry: EntryIx, by_guest: Reach) -> bool {
        let sandbox = &self.entries[entry];
        sandbox.reach() < by_guest || sandbox.runs() || self.flaws.asks_frozen_guest()
    }

    /// Thaws a sandbox whose guest is needed, once its main operation has ended.
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
        // Meanwhile no process whose time has expired can be killed, so this must be short.
        let timeout_ms = self.config.deadlines.freeze_ms.min(QUIESCE_MS);
        let action = Action::Quiesce { instance: self.entries[entry].instance };
        self.begin(entry, OpKind::Quiesce, timeout_ms, action);
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
            // A sandbox that cannot be quiesced is copied while it runs.
            Outcome::Failed(Failure { kind: FailureKind::Unsupported, .. }) => {
                self.entries[entry].traits.can_freeze = false;
                self.begin_copies(entry);
                self.after_unquiesce(entry);
            }
            // It may be quiesced all the same.
            Outcome::Failed(_) | Outcome::TimedOut => {
                self.unquiesce(entry, 1);
                self.begin_copies(entry);
            }
        }
    }

    /// Releases a sandbox that no copy needs quiesced any more, or whose copy needs its guest.
    pub(crate) fn unquiesce_if_unneeded(&mut self, entry: EntryIx) {
        let sandbox = &mut self.entries[entry];
        let needed = sandbox.holds.is_copied() && sandbox.reach() == Reach::Host;
        if sandbox.ops.is_doing(OpKind::Quiesced) && !needed {
            self.unquiesce(entry, 1);
        }
    }

    /// Releases a quiesced sandbox so that a turn in it can be stopped.
    pub(crate) fn unquiesce_for_stop(&mut self, entry: EntryIx) {
        let still = match self.entries[entry].ops.doing() {
            Some(OpKind::Quiesce | OpKind::Quiesced) => true,
            Some(_) | None => false,
        };
        if still {
            self.unquiesce(entry, 1);
            self.begin_copies(entry);
        }
    }

    pub(crate) fn unquiesce(&mut self, entry: EntryIx, attempt: u32) {
        let action = Action::Unquiesce { instance: self.entries[entry].instance };
        let timeout_ms = self.config.deadlines.freeze_ms;
        self.begin(entry, OpKind::Unquiesce(attempt), timeout_ms, action);
    }

    pub(crate) fn unquiesce_ended(&mut self, entry: EntryIx, attempt: u32, outcome: Outcome) {
        let detail = match outcome {
            Outcome::Done => {
                self.entries[entry].frozen = Frozen::No;
                self.after_unquiesce(entry);
                return;
            }
            Outcome::Failed(failure) => failure.detail,
            Outcome::TimedOut => {
                Arc::from("the sandbox was quiesced for a copy and could not be released")
            }
        };
        if self.flaws.leaves_quiesced() {
            self.after_unquiesce(entry);
        } else if attempt < UNQUIESCE_ATTEMPTS_MAX {
            self.unquiesce(entry, attempt + 1);
        } else {
            self.died(entry, EndCause::FreezeFailed, Some(detail));
        }
    }

    /// The sandbox runs again: everything that waited for that continues.
    fn after_unquiesce(&mut self, entry: EntryIx) {
        self.resume_process_time(entry);
        self.continue_save(entry);
        self.continue_freeze(entry);
        self.arm_freeze_and_sweep(entry);
        self.drive_entry(entry);
    }
}

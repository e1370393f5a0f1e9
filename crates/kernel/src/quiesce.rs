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
const STILL_MS: u64 = 1_000;

/// How often a sandbox that was held still is let run before it is ended instead.
const LET_RUN_ATTEMPTS_MAX: u32 = 3;

/// What the copies of a sandbox's files wait for.
enum Next {
    /// Nothing: they begin.
    Copy,
    /// Something that is in progress, or a caller that comes first.
    Wait,
    /// It is to be held still first.
    HoldStill,
    /// It is to be thawed first.
    Wake,
}

/// Copies, and the sandbox that they are made from.
impl Kernel {
    /// Files are copied into a cold sandbox as soon as the one that has them is ready for it.
    pub(crate) fn await_source(&mut self, copy: EntryIx) {
        let Some(copying) = self.entries[copy].copying else { return };
        self.reads.copy_waits(copying.from, copy);
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
        if !sandbox.holds.is_copied() || !self.reads.has_waiting(source, sandbox.workspace) {
            return;
        }
        match self.next_for_copies(source) {
            Next::Copy => self.begin_copies(source),
            Next::Wait => {}
            Next::HoldStill => self.hold_still(source),
            Next::Wake => self.wake_to_read(source),
        }
    }

    fn next_for_copies(&self, source: EntryIx) -> Next {
        let sandbox = &self.entries[source];
        if sandbox.phase() != Phase::InUse {
            return Next::Copy;
        }
        let free = sandbox.ops.is_free();
        if !self.can_read(source, Reach::GuestReads) {
            return if free { Next::Wake } else { Next::Wait };
        }
        if sandbox.reach() >= Reach::GuestReads {
            return Next::Copy;
        }
        let rests = sandbox.frozen == Frozen::Yes && free;
        let is_still = rests || sandbox.ops.is_doing(OpKind::Still);
        // What is on its way out is not held up for this.
        let stays_as_it_is = !sandbox.traits.can_freeze || sandbox.ending.is_some();
        if is_still || stays_as_it_is {
            Next::Copy
        } else if !free || sandbox.holds.is_wanted() || self.changes_turn(source) {
            // Callers that wait for it are served first, or copies could keep it still for ever.
            Next::Wait
        } else {
            Next::HoldStill
        }
    }

    /// Whether a turn is being started or stopped in a sandbox. It must run for that, and what lets it
    /// run again would come after that: a stop that takes long would count as a sandbox that does not
    /// run again.
    fn changes_turn(&self, entry: EntryIx) -> bool {
        self.entries[entry].ops.is_changing_turn() && !self.flaws.holds_still_midway()
    }

    fn begin_copies(&mut self, source: EntryIx) {
        self.answer_readers(source);
        for copy in self.reads.waiting_copies(self.entries[source].workspace) {
            self.copy_from_source(copy);
        }
    }

    /// Begins a copy, however the sandbox is that has the files.
    pub(crate) fn copy_from_source(&mut self, copy: EntryIx) {
        if let Some(copying) = self.entries[copy].copying {
            self.reads.copy_waits_no_more(copying.from, copy);
        }
        if self.entries[copy].ending.is_some() {
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
    pub(crate) fn copies_again_by_guest(&mut self, copy: EntryIx, outcome: &Outcome) -> bool {
        let Outcome::Failed(Failure { kind: FailureKind::NeedsGuest, .. }) = outcome else {
            return false;
        };
        let given_up = self.entries[copy].ending.is_some();
        let Some(source) = self.source_of(copy) else { return false };
        if given_up || self.entries[source].reach() >= Reach::GuestReads {
            return false;
        }
        self.entries[source].reading.learn(Reach::GuestReads);
        self.await_source(copy);
        self.let_run_if_unneeded(source);
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
    pub(crate) fn wake_to_read(&mut self, entry: EntryIx) {
        let sandbox = &mut self.entries[entry];
        if !sandbox.ops.is_free() || sandbox.frozen == Frozen::No {
            return;
        }
        if sandbox.frozen == Frozen::Yes {
            sandbox.reading.rest_again();
        }
        self.thaw(entry);
    }

    fn hold_still(&mut self, entry: EntryIx) {
        let until = self.now.mono.plus(STILL_MS);
        self.entries[entry].extra().still_until = self.flaws.still_until(until);
        // Meanwhile no process in it is killed whose time is over, so that must not take long.
        let timeout_ms = self.config.deadlines.freeze_ms.min(STILL_MS);
        let action = Action::HoldStill { instance: self.entries[entry].instance };
        self.begin(entry, OpKind::HoldStill, timeout_ms, action);
    }

    pub(crate) fn hold_still_ended(&mut self, entry: EntryIx, outcome: &Outcome) {
        match outcome {
            Outcome::Done => {
                self.time_stands_still(entry);
                let until = self.entries[entry].extra().still_until;
                self.begin_wait(entry, OpKind::Still, until);
                self.begin_copies(entry);
                self.let_run_if_unneeded(entry);
            }
            // What cannot be held still is copied as it runs.
            Outcome::Failed(Failure { kind: FailureKind::Unsupported, .. }) => {
                self.entries[entry].traits.can_freeze = false;
                self.begin_copies(entry);
                self.runs_again(entry);
            }
            // It may be still all the same.
            Outcome::Failed(_) | Outcome::TimedOut => {
                self.let_run(entry, 1);
                self.begin_copies(entry);
            }
        }
    }

    /// Lets a sandbox run that is held still for no copy, or for one that only its guest can make.
    pub(crate) fn let_run_if_unneeded(&mut self, entry: EntryIx) {
        let sandbox = &mut self.entries[entry];
        let needed = sandbox.holds.is_copied() && sandbox.reach() == Reach::Host;
        if sandbox.ops.is_doing(OpKind::Still) && !needed {
            self.let_run(entry, 1);
        }
    }

    /// Something in a sandbox is to be ended, which takes that it runs: the stillness is over.
    pub(crate) fn let_run_to_end(&mut self, entry: EntryIx) {
        let still = match self.entries[entry].ops.doing() {
            Some(OpKind::HoldStill | OpKind::Still) => true,
            Some(_) | None => false,
        };
        if still {
            self.let_run(entry, 1);
            self.begin_copies(entry);
        }
    }

    pub(crate) fn let_run(&mut self, entry: EntryIx, attempt: u32) {
        let action = Action::LetRun { instance: self.entries[entry].instance };
        let timeout_ms = self.config.deadlines.freeze_ms;
        self.begin(entry, OpKind::LetRun(attempt), timeout_ms, action);
    }

    pub(crate) fn let_run_ended(&mut self, entry: EntryIx, attempt: u32, outcome: Outcome) {
        let detail = match outcome {
            Outcome::Done => {
                self.entries[entry].frozen = Frozen::No;
                self.runs_again(entry);
                return;
            }
            Outcome::Failed(failure) => failure.detail,
            Outcome::TimedOut => Arc::from("it was held still for a copy, and does not run again"),
        };
        if self.flaws.leaves_still() {
            self.runs_again(entry);
        } else if attempt < LET_RUN_ATTEMPTS_MAX {
            self.let_run(entry, attempt + 1);
        } else {
            self.died(entry, EndCause::FreezeFailed, Some(detail));
        }
    }

    /// The stillness is over: what waited for that goes on.
    fn runs_again(&mut self, entry: EntryIx) {
        self.time_goes_on(entry);
        self.go_on_saving(entry);
        self.go_on_freezing(entry);
        self.arm_quiet(entry);
        self.drive_entry(entry);
    }
}

//! When the files of a cold sandbox are archived, and when they are deleted, if the node is
//! configured to do so. A session that wants its files comes first, and every deletion is reported
//! as state loss.

use model::why::Tier;
use model::{EndCause, Mono, Wall};

use crate::Kernel;
use crate::effect::{Action, Effect};
use crate::entry::{EntryIx, OpKind, Phase};
use crate::event::Outcome;

/// How many times longer an archive may take than other workspace effects.
pub(crate) const ARCHIVE_PATIENCE: u64 = 10;

impl Kernel {
    /// When the files are archived, if no caller wants them before.
    fn archives_at(&self, entry: EntryIx) -> Option<Mono> {
        let sandbox = &self.entries[entry];
        let after_ms = self.config.archive_after_ms.filter(|ms| *ms > 0)?;
        let wanted = sandbox.files.has_files()
            && sandbox.cold.may_be_archived()
            && sandbox.ops.is_free()
            && sandbox.traits.disk.is_some()
            && self.is_cold_and_unwanted(entry);
        wanted.then(|| self.time_at_age(entry, after_ms).max(sandbox.cold.not_before()))
    }

    /// When the files are deleted, if no caller wants them before.
    fn pruned_at(&self, entry: EntryIx) -> Option<Mono> {
        let after_ms = self.config.prune_after_ms.filter(|ms| *ms > 0)?;
        self.is_cold_and_unwanted(entry).then(|| self.time_at_age(entry, after_ms))
    }

    /// Whether it is cold and no caller wants it, so its files may be archived or deleted.
    fn is_cold_and_unwanted(&self, entry: EntryIx) -> bool {
        let sandbox = &self.entries[entry];
        self.shutdown.is_none()
            && sandbox.session().is_some()
            && sandbox.phase() == Phase::Cold
            && (sandbox.derived.tier == Some(Tier::Cold) || self.flaws.gives_up_wanted())
    }

    /// When it will have been unused for `age_ms`, by the wall clock: its last use may be before
    /// this run.
    fn time_at_age(&self, entry: EntryIx, age_ms: u64) -> Mono {
        let Wall(used) = self.entries[entry].last_used.wall;
        self.now.mono_at(Wall(used.saturating_add(age_ms)))
    }

    /// Sets the alarm for when the files of a cold sandbox are archived or deleted.
    pub(crate) fn arm_cold(&mut self, entry: EntryIx) {
        let at = [self.archives_at(entry), self.pruned_at(entry)].into_iter().flatten().min();
        if let Some(at) = at {
            self.arm(entry, at);
        }
    }

    /// Deletes or archives the files of a cold sandbox when that is due.
    pub(crate) fn archive_or_prune(&mut self, entry: EntryIx) {
        if self.is_due(self.pruned_at(entry)) {
            self.counts.gave_up_files(self.entries[entry].files.has_files());
            self.lose_files(entry, EndCause::Pruned.reason());
            self.remove_entry(entry, EndCause::Pruned, None, None);
        } else if self.is_due(self.archives_at(entry)) {
            self.archive(entry);
        }
    }

    fn is_due(&self, at: Option<Mono>) -> bool {
        at.is_some_and(|at| at <= self.now.mono)
    }

    fn archive(&mut self, entry: EntryIx) {
        if !self.archives.has_room() {
            self.entries[entry].cold.joined_line();
            self.archives.wait(entry);
            return;
        }
        self.archives.began();
        let timeout_ms = self.config.deadlines.workspace_ms.saturating_mul(ARCHIVE_PATIENCE);
        let action = Action::ArchiveWorkspace { workspace: self.entries[entry].workspace };
        self.begin(entry, OpKind::Archive, timeout_ms, action);
        self.settle(entry);
    }

    pub(crate) fn archive_ended(&mut self, entry: EntryIx, outcome: &Outcome) {
        self.archives.ended();
        let sandbox = &mut self.entries[entry];
        match outcome {
            Outcome::Done => sandbox.cold.archived(),
            // The files stay in their workspace; nothing is lost.
            Outcome::Failed(_) | Outcome::TimedOut => {
                let pause_ms = self.config.backoff.max_ms.saturating_mul(ARCHIVE_PATIENCE);
                sandbox.cold.archive_failed(self.now.mono.plus(pause_ms));
            }
        }
        self.mark(entry);
        self.settle(entry);
        self.arm_cold(entry);
        self.due.look_at_archives();
    }

    /// Archives the next in the queue. A session may want it meanwhile, or it may be gone.
    pub(crate) fn archive_next(&mut self) {
        while self.archives.has_room()
            && let Some(entry) = self.archives.next()
        {
            let known = self.entries.get_mut(entry);
            if known.is_some_and(|sandbox| sandbox.cold.left_line()) {
                // By now it may be due for deletion instead.
                self.arm_cold(entry);
                if self.is_due(self.archives_at(entry)) && !self.is_due(self.pruned_at(entry)) {
                    self.archive(entry);
                }
            }
        }
        self.archive_shelved_sessions();
    }

    /// A session wants the files, or they are deleted: an archive in progress is cancelled. One that
    /// this decision began is not begun at all.
    pub(crate) fn cancel_archive(&mut self, entry: EntryIx) {
        if self.entries[entry].is_archiving() {
            let of_entry = |effect: &Effect| {
                matches!(&effect.action, Action::ArchiveWorkspace { workspace }
                    if *workspace == self.entries[entry].workspace)
            };
            self.out.effects.retain(|effect| !of_entry(effect));
            self.entries[entry].ops.cancel();
            self.archives.ended();
            self.settle(entry);
            self.due.look_at_archives();
        }
    }

    /// How long a claim may take: a seed archive may come with it.
    pub(crate) fn claim_timeout_ms(&self, entry: EntryIx) -> u64 {
        let deadlines = &self.config.deadlines;
        match &self.entries[entry].settings {
            Some(settings) if settings.seed.is_some() => deadlines.workspace_ms,
            Some(_) | None => deadlines.claim_ms,
        }
    }
}

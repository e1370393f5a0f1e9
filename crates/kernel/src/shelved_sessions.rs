//! Shelved sessions: they have files but no sandbox, not even a cold one. A limit on the number of
//! sandboxes takes the entry of a sleeping session, never its files: these are archived, and the
//! session's next use restores them. Nothing here deletes files that their owner may still want.

use std::collections::{BTreeMap, BTreeSet};

use model::record::KeptFiles;
use model::{Mono, Wall, WorkspaceId};

use crate::Kernel;
use crate::alarms::Ringer;
use crate::cold_workspaces::ARCHIVE_PATIENCE;
use crate::effect::Action;
use crate::entry::EntryIx;
use crate::event::Outcome;
use crate::session::SessionIx;

/// The files of a shelved session.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ShelvedFiles {
    pub(crate) files: KeptFiles,
    /// Their size, once measured.
    pub(crate) bytes: Option<u64>,
}

/// Shelved files that must still be archived. Looking one up, finding the next and counting those
/// in progress cost the same for any number.
#[derive(Debug)]
pub(crate) struct ShelvedArchives {
    jobs: BTreeMap<WorkspaceId, Job>,
    /// Waiting jobs, by when they may start.
    line: BTreeSet<(Mono, WorkspaceId)>,
    /// Jobs in progress, by effect.
    running: BTreeMap<u64, WorkspaceId>,
    alarm: Mono,
}

impl Default for ShelvedArchives {
    fn default() -> Self {
        Self {
            jobs: BTreeMap::new(),
            line: BTreeSet::new(),
            running: BTreeMap::new(),
            alarm: Mono::NEVER,
        }
    }
}

/// The archiving of one workspace.
#[derive(Debug, Clone, Copy)]
struct Job {
    session: SessionIx,
    /// The effect in progress.
    n: Option<u64>,
    /// Its deadline, or when it may start.
    at: Mono,
}

impl ShelvedArchives {
    /// How many are being archived now.
    pub(crate) fn in_progress(&self) -> u32 {
        self.running.len() as u32
    }

    /// Queues files for archiving, not before `at`.
    fn wait(&mut self, workspace: WorkspaceId, session: SessionIx, at: Mono) {
        self.remove(workspace);
        self.jobs.insert(workspace, Job { session, n: None, at });
        self.line.insert((at, workspace));
    }

    fn start(&mut self, workspace: WorkspaceId, n: u64, deadline: Mono) {
        let Some(job) = self.jobs.get_mut(&workspace) else { return };
        self.line.remove(&(job.at, workspace));
        (job.n, job.at) = (Some(n), deadline);
        self.running.insert(n, workspace);
    }

    fn remove(&mut self, workspace: WorkspaceId) -> Option<Job> {
        let job = self.jobs.remove(&workspace)?;
        match job.n {
            Some(n) => {
                self.running.remove(&n);
            }
            None => {
                self.line.remove(&(job.at, workspace));
            }
        }
        Some(job)
    }

    /// The next job that may start.
    fn next(&self, now: Mono) -> Option<WorkspaceId> {
        self.line.first().filter(|(at, _)| *at <= now).map(|(_, workspace)| *workspace)
    }

    /// The workspaces that must be archived, with their sessions. Fails if the indexes disagree.
    pub(crate) fn audited(&self) -> Result<BTreeMap<WorkspaceId, SessionIx>, String> {
        let waits = |(at, id): &(Mono, WorkspaceId)| {
            self.jobs.get(id).is_some_and(|job| job.n.is_none() && job.at == *at)
        };
        let runs =
            |(n, id): (&u64, &WorkspaceId)| self.jobs.get(id).is_some_and(|job| job.n == Some(*n));
        let whole = self.line.len() + self.running.len() == self.jobs.len();
        if !whole || !self.line.iter().all(waits) || !self.running.iter().all(runs) {
            return Err(format!("archives of shelved files are out of order: {self:?}"));
        }
        Ok(self.jobs.iter().map(|(id, job)| (*id, job.session)).collect())
    }
}

impl Kernel {
    /// Shelves a session: keeps the files of its cold sandbox, which is about to be removed.
    pub(crate) fn shelve(&mut self, entry: EntryIx) {
        let sandbox = &mut self.entries[entry];
        let Some(session) = sandbox.session() else { return };
        if !sandbox.files.files_left() {
            return;
        }
        let files = KeptFiles {
            sandbox: sandbox.id,
            workspace: sandbox.workspace,
            // Only a workspace on the node's own disk can be archived.
            archived: sandbox.cold.is_archived() || sandbox.traits.disk.is_none(),
            last_used_at: sandbox.last_used.wall,
        };
        self.sessions[session].shelved = Some(ShelvedFiles { files, bytes: sandbox.cold.bytes() });
        self.mark_session(session);
        self.schedule_shelved_files(session);
    }

    /// Schedules the archiving and the pruning of shelved files.
    pub(crate) fn schedule_shelved_files(&mut self, session: SessionIx) {
        let Some(shelved) = &self.sessions[session].shelved else { return };
        if !shelved.files.archived {
            self.archives.shelved.wait(shelved.files.workspace, session, self.now.mono);
            self.due.look_at_archives();
        }
        self.arm_shelved_pruning(session);
    }

    /// Unshelves a session: its files become those of its new, cold sandbox.
    pub(crate) fn unshelve(&mut self, session: SessionIx, entry: EntryIx) -> bool {
        let Some(shelved) = self.take_shelved_files(session) else { return false };
        let sandbox = &mut self.entries[entry];
        sandbox.workspace = shelved.files.workspace;
        sandbox.files.files_made();
        sandbox.cold.unshelved(shelved.files.archived, shelved.bytes);
        sandbox.last_used.wall = shelved.files.last_used_at;
        self.mark(entry);
        true
    }

    /// Deletes the shelved files of a session.
    pub(crate) fn delete_shelved_files(&mut self, session: SessionIx) {
        if let Some(shelved) = self.take_shelved_files(session) {
            self.schedule_workspace_deletion(shelved.files.workspace);
        }
    }

    fn take_shelved_files(&mut self, session: SessionIx) -> Option<ShelvedFiles> {
        let shelved = self.sessions[session].shelved.take()?;
        // The next effect on the workspace cancels an archive in progress.
        if self.archives.shelved.remove(shelved.files.workspace).is_some() {
            self.due.look_at_archives();
        }
        self.mark_session(session);
        Some(shelved)
    }

    /// When shelved files are deleted because of their age.
    fn shelved_pruned_at(&self, session: SessionIx) -> Option<Mono> {
        let after_ms = self.config.prune_after_ms.filter(|ms| *ms > 0)?;
        let known = &self.sessions[session];
        let Wall(used) = known.shelved.as_ref()?.files.last_used_at;
        let left_alone = self.shutdown.is_none() && !known.wants() && known.control.is_none();
        left_alone.then(|| self.now.mono_at(Wall(used.saturating_add(after_ms))))
    }

    /// Sets the alarm for the pruning of shelved files.
    pub(crate) fn arm_shelved_pruning(&mut self, session: SessionIx) {
        if let Some(at) = self.shelved_pruned_at(session) {
            self.arm_session(session, at);
        }
    }

    /// Deletes shelved files that are older than the node allows.
    pub(crate) fn prune_shelved_files(&mut self, session: SessionIx) {
        match self.shelved_pruned_at(session) {
            Some(at) if at <= self.now.mono => self.give_up_shelved_files(session),
            Some(at) => self.arm_session(session, at),
            None => {}
        }
    }

    /// Archives shelved files while the limit allows it.
    pub(crate) fn archive_shelved_sessions(&mut self) {
        while self.archives.has_room()
            && self.shutdown.is_none()
            && let Some(workspace) = self.archives.shelved.next(self.now.mono)
        {
            self.archive_shelved(workspace);
        }
    }

    fn archive_shelved(&mut self, workspace: WorkspaceId) {
        let n = self.minter.effect();
        let timeout_ms = self.config.deadlines.workspace_ms.saturating_mul(ARCHIVE_PATIENCE);
        let deadline = self.now.mono.plus(timeout_ms);
        self.archives.shelved.start(workspace, n, deadline);
        let action = Action::ArchiveWorkspace { workspace };
        self.send_without_sandbox(workspace.as_u128(), n, deadline, action);
        self.alarms.at_latest(Ringer::ShelvedArchives, &mut self.archives.shelved.alarm, deadline);
    }

    /// Returns whether the effect archived shelved files.
    pub(crate) fn shelved_archive_ended(&mut self, n: u64, outcome: &Outcome) -> bool {
        let Some(workspace) = self.archives.shelved.running.get(&n).copied() else { return false };
        match outcome {
            Outcome::Done => {
                let Some(job) = self.archives.shelved.remove(workspace) else { return true };
                if let Some(shelved) = &mut self.sessions[job.session].shelved {
                    shelved.files.archived = true;
                    // The archive is smaller.
                    shelved.bytes = None;
                }
                self.mark_session(job.session);
            }
            Outcome::Failed(_) | Outcome::TimedOut => self.retry_shelved_archive(workspace),
        }
        self.due.look_at_archives();
        true
    }

    /// Retries later. The files stay in their workspace, and the session can use them.
    fn retry_shelved_archive(&mut self, workspace: WorkspaceId) {
        let pause_ms = self.config.backoff.max_ms.saturating_mul(ARCHIVE_PATIENCE);
        let at = self.now.mono.plus(pause_ms);
        if let Some(job) = self.archives.shelved.remove(workspace) {
            self.archives.shelved.wait(workspace, job.session, at);
        }
        self.alarms.at_latest(Ringer::ShelvedArchives, &mut self.archives.shelved.alarm, at);
    }

    /// Retries archives that passed their deadline, and sets the next alarm.
    pub(crate) fn shelved_archives_due(&mut self) {
        self.archives.shelved.alarm = Mono::NEVER;
        let now = self.now.mono;
        let running: Vec<WorkspaceId> = self.archives.shelved.running.values().copied().collect();
        for workspace in running {
            match self.archives.shelved.jobs.get(&workspace).map(|job| job.at) {
                Some(deadline) if deadline > now => {
                    let alarm = &mut self.archives.shelved.alarm;
                    self.alarms.at_latest(Ringer::ShelvedArchives, alarm, deadline);
                }
                Some(_) | None => self.retry_shelved_archive(workspace),
            }
        }
        // Jobs that are due start as soon as the limit allows it, without another alarm.
        let later = self.archives.shelved.line.range((now.plus(1), WorkspaceId::NIL)..).next();
        if let Some((at, _)) = later.copied() {
            self.alarms.at_latest(Ringer::ShelvedArchives, &mut self.archives.shelved.alarm, at);
        }
        self.due.look_at_archives();
    }
}

//! Files of sessions that have no sandbox, not even a cold one. A limit on the number of sandboxes
//! takes the entry of a sleeping session away, never its files: they go into an archive, and the
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

/// The files of one session on the shelf.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Shelf {
    pub(crate) files: KeptFiles,
    /// What they take, once that was measured.
    pub(crate) bytes: Option<u64>,
}

/// Shelved files that are still to be put into an archive. Looking one up, finding the next and
/// counting those in progress cost the same however many wait.
#[derive(Debug)]
pub(crate) struct ShelfArchives {
    jobs: BTreeMap<WorkspaceId, Job>,
    /// Those that wait, by when they may start.
    line: BTreeSet<(Mono, WorkspaceId)>,
    /// Those in progress, by the effect that puts them there.
    running: BTreeMap<u64, WorkspaceId>,
    alarm: Mono,
}

impl Default for ShelfArchives {
    fn default() -> Self {
        Self {
            jobs: BTreeMap::new(),
            line: BTreeSet::new(),
            running: BTreeMap::new(),
            alarm: Mono::NEVER,
        }
    }
}

/// One of them.
#[derive(Debug, Clone, Copy)]
struct Job {
    session: SessionIx,
    /// The effect in progress.
    n: Option<u64>,
    /// When that is timed out, or when it may start.
    at: Mono,
}

impl ShelfArchives {
    /// How many are being put into an archive now.
    pub(crate) fn in_progress(&self) -> u32 {
        self.running.len() as u32
    }

    /// Files are to go into an archive, not before `at`.
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

    /// The next that may start.
    fn next(&self, now: Mono) -> Option<WorkspaceId> {
        self.line.first().filter(|(at, _)| *at <= now).map(|(_, workspace)| *workspace)
    }

    /// The workspaces that are to go into an archive, and whose they are. Fails if the orders do
    /// not agree with that.
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
    /// Takes the files of a cold sandbox that is about to be removed onto its session's shelf.
    pub(crate) fn shelve(&mut self, entry: EntryIx) {
        let sandbox = &mut self.entries[entry];
        let Some(session) = sandbox.session() else { return };
        if !sandbox.files.files_left() {
            return;
        }
        let files = KeptFiles {
            sandbox: sandbox.id,
            workspace: sandbox.workspace,
            // Only a workspace on a disk of ours can be put into an archive.
            archived: sandbox.cold.is_archived() || sandbox.traits.disk.is_none(),
            last_used_at: sandbox.last_used.wall,
        };
        self.sessions[session].shelf = Some(Shelf { files, bytes: sandbox.cold.bytes() });
        self.mark_session(session);
        self.shelved(session);
    }

    /// Sees to shelved files: they go into an archive, and they may grow too old.
    pub(crate) fn shelved(&mut self, session: SessionIx) {
        let Some(shelf) = &self.sessions[session].shelf else { return };
        if !shelf.files.archived {
            self.archiving.shelves.wait(shelf.files.workspace, session, self.now.mono);
            self.due.look_at_archives();
        }
        self.arm_shelf(session);
    }

    /// A session uses its shelved files again: they become those of its new, cold sandbox.
    pub(crate) fn unshelve(&mut self, session: SessionIx, entry: EntryIx) -> bool {
        let Some(shelf) = self.take_shelf(session) else { return false };
        let sandbox = &mut self.entries[entry];
        sandbox.workspace = shelf.files.workspace;
        sandbox.files.files_made();
        sandbox.cold.unshelved(shelf.files.archived, shelf.bytes);
        sandbox.last_used.wall = shelf.files.last_used_at;
        self.mark(entry);
        true
    }

    /// Deletes the shelved files of a session.
    pub(crate) fn clear_shelf(&mut self, session: SessionIx) {
        if let Some(shelf) = self.take_shelf(session) {
            self.doom_workspace(shelf.files.workspace);
        }
    }

    fn take_shelf(&mut self, session: SessionIx) -> Option<Shelf> {
        let shelf = self.sessions[session].shelf.take()?;
        // An archive in progress is called off by what happens to the workspace next.
        if self.archiving.shelves.remove(shelf.files.workspace).is_some() {
            self.due.look_at_archives();
        }
        self.mark_session(session);
        Some(shelf)
    }

    /// When shelved files are given up by their age.
    fn shelf_pruned_at(&self, session: SessionIx) -> Option<Mono> {
        let after_ms = self.config.prune_after_ms.filter(|ms| *ms > 0)?;
        let known = &self.sessions[session];
        let Wall(used) = known.shelf.as_ref()?.files.last_used_at;
        let left_alone = self.shutdown.is_none() && !known.wants() && known.control.is_none();
        left_alone.then(|| self.now.mono_at(Wall(used.saturating_add(after_ms))))
    }

    /// Sees to it that the shelf of a session is looked at when its time comes.
    pub(crate) fn arm_shelf(&mut self, session: SessionIx) {
        if let Some(at) = self.shelf_pruned_at(session) {
            self.arm_session(session, at);
        }
    }

    /// Gives up shelved files that are too old by the node's settings.
    pub(crate) fn prune_shelf(&mut self, session: SessionIx) {
        match self.shelf_pruned_at(session) {
            Some(at) if at <= self.now.mono => self.give_up_shelf(session),
            Some(at) => self.arm_session(session, at),
            None => {}
        }
    }

    /// Starts archives while there is room for more.
    pub(crate) fn archive_shelves(&mut self) {
        while self.archiving.has_room()
            && self.shutdown.is_none()
            && let Some(workspace) = self.archiving.shelves.next(self.now.mono)
        {
            self.archive_shelf(workspace);
        }
    }

    fn archive_shelf(&mut self, workspace: WorkspaceId) {
        let n = self.minter.effect();
        let timeout_ms = self.config.deadlines.workspace_ms.saturating_mul(ARCHIVE_PATIENCE);
        let deadline = self.now.mono.plus(timeout_ms);
        self.archiving.shelves.start(workspace, n, deadline);
        let action = Action::ArchiveWorkspace { workspace };
        self.send_without_sandbox(workspace.as_u128(), n, deadline, action);
        self.alarms.at_latest(Ringer::Shelf, &mut self.archiving.shelves.alarm, deadline);
    }

    /// Tells whether the effect was an archive of shelved files.
    pub(crate) fn shelf_effect_ended(&mut self, n: u64, outcome: &Outcome) -> bool {
        let Some(workspace) = self.archiving.shelves.running.get(&n).copied() else { return false };
        match outcome {
            Outcome::Done => {
                let Some(job) = self.archiving.shelves.remove(workspace) else { return true };
                if let Some(shelf) = &mut self.sessions[job.session].shelf {
                    shelf.files.archived = true;
                    // It takes less room now.
                    shelf.bytes = None;
                }
                self.mark_session(job.session);
            }
            Outcome::Failed(_) | Outcome::TimedOut => self.retry_shelf(workspace),
        }
        self.due.look_at_archives();
        true
    }

    /// The files stay where they are meanwhile, and the session can use them.
    fn retry_shelf(&mut self, workspace: WorkspaceId) {
        let pause_ms = self.config.backoff.max_ms.saturating_mul(ARCHIVE_PATIENCE);
        let at = self.now.mono.plus(pause_ms);
        if let Some(job) = self.archiving.shelves.remove(workspace) {
            self.archiving.shelves.wait(workspace, job.session, at);
        }
        self.alarms.at_latest(Ringer::Shelf, &mut self.archiving.shelves.alarm, at);
    }

    /// Looks at archives that take too long, and at those that may be tried again.
    pub(crate) fn shelves_due(&mut self) {
        self.archiving.shelves.alarm = Mono::NEVER;
        let now = self.now.mono;
        let running: Vec<WorkspaceId> = self.archiving.shelves.running.values().copied().collect();
        for workspace in running {
            match self.archiving.shelves.jobs.get(&workspace).map(|job| job.at) {
                Some(deadline) if deadline > now => {
                    let alarm = &mut self.archiving.shelves.alarm;
                    self.alarms.at_latest(Ringer::Shelf, alarm, deadline);
                }
                Some(_) | None => self.retry_shelf(workspace),
            }
        }
        // Those whose time has come start as soon as there is room, without another alarm.
        let later = self.archiving.shelves.line.range((now.plus(1), WorkspaceId::NIL)..).next();
        if let Some((at, _)) = later.copied() {
            self.alarms.at_latest(Ringer::Shelf, &mut self.archiving.shelves.alarm, at);
        }
        self.due.look_at_archives();
    }
}

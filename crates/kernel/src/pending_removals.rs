//! Pending removals: workspaces to delete after their sandbox is gone, and orphans (instances that
//! a restart found and no record names). Each is tried until it is confirmed.

use std::collections::BTreeMap;

use model::record::JournalEntry;
use model::{InstanceId, Mono, WorkspaceId};

use crate::Kernel;
use crate::alarms::Ringer;
use crate::effect::Action;
use crate::event::Outcome;

/// What must still be removed.
#[derive(Debug)]
pub(crate) struct PendingRemovals {
    workspaces: BTreeMap<WorkspaceId, Removal>,
    orphans: BTreeMap<InstanceId, Removal>,
    /// The removal that an effect in progress carries out.
    in_progress: BTreeMap<u64, RemovalTarget>,
    alarm: Mono,
}

impl Default for PendingRemovals {
    fn default() -> Self {
        Self {
            workspaces: BTreeMap::new(),
            orphans: BTreeMap::new(),
            in_progress: BTreeMap::new(),
            alarm: Mono::NEVER,
        }
    }
}

/// One removal.
#[derive(Debug, Clone, Copy)]
struct Removal {
    attempts: u32,
    /// The effect in progress, if any.
    n: Option<u64>,
    /// Its deadline, or when it is tried again.
    at: Mono,
}

/// What a removal removes.
#[derive(Debug, Clone, Copy)]
enum RemovalTarget {
    Workspace(WorkspaceId),
    Orphan(InstanceId),
}

impl PendingRemovals {
    pub(crate) fn orphans(&self) -> usize {
        self.orphans.len()
    }

    /// Whether a workspace will be deleted.
    pub(crate) fn will_delete(&self, workspace: WorkspaceId) -> bool {
        self.workspaces.contains_key(&workspace)
    }

    /// The workspaces that will be deleted, and whether they wait for a fork that reads them.
    pub(crate) fn workspace_deletions(&self) -> impl Iterator<Item = (WorkspaceId, bool)> {
        self.workspaces.iter().map(|(workspace, removal)| (*workspace, removal.at == Mono::NEVER))
    }

    fn of(&mut self, target: RemovalTarget) -> Option<&mut Removal> {
        match target {
            RemovalTarget::Workspace(workspace) => self.workspaces.get_mut(&workspace),
            RemovalTarget::Orphan(instance) => self.orphans.get_mut(&instance),
        }
    }
}

impl Kernel {
    /// Deletes a workspace that its sandbox left behind.
    pub(crate) fn schedule_workspace_deletion(&mut self, workspace: WorkspaceId) {
        self.out.journal.push(JournalEntry::WorkspaceDoomed(workspace));
        self.schedule_removal(RemovalTarget::Workspace(workspace));
    }

    /// Deletes a workspace when the fork that reads it is done.
    pub(crate) fn schedule_deletion_after_copy(&mut self, workspace: WorkspaceId) {
        self.out.journal.push(JournalEntry::WorkspaceDoomed(workspace));
        self.restore_workspace_deletion(workspace);
    }

    /// Continues a deletion that was pending before a restart.
    pub(crate) fn restore_workspace_deletion(&mut self, workspace: WorkspaceId) {
        if self.is_workspace_copied(workspace) {
            let removal = Removal { attempts: 0, n: None, at: Mono::NEVER };
            self.pending_removals.workspaces.insert(workspace, removal);
        } else {
            self.schedule_removal(RemovalTarget::Workspace(workspace));
        }
    }

    /// A fork that read a workspace is done: a deletion that waited for it begins.
    pub(crate) fn workspace_copy_ended(&mut self, workspace: WorkspaceId) {
        let waits = self.pending_removals.workspaces.get(&workspace);
        if waits.is_some_and(|removal| removal.at == Mono::NEVER)
            && !self.is_workspace_copied(workspace)
        {
            self.schedule_removal(RemovalTarget::Workspace(workspace));
        }
    }

    /// Whether a fork reads a workspace.
    fn is_workspace_copied(&self, workspace: WorkspaceId) -> bool {
        self.entries
            .iter()
            .any(|(_, entry)| entry.copying.is_some_and(|copying| copying.from == workspace))
    }

    /// Removes an orphan. It takes a place until it is gone.
    pub(crate) fn remove_orphan(&mut self, instance: InstanceId) {
        self.admission.process_began(0);
        self.schedule_removal(RemovalTarget::Orphan(instance));
    }

    fn schedule_removal(&mut self, target: RemovalTarget) {
        let removal = Removal { attempts: 0, n: None, at: self.now.mono };
        match target {
            RemovalTarget::Workspace(workspace) => {
                self.pending_removals.workspaces.insert(workspace, removal)
            }
            RemovalTarget::Orphan(instance) => {
                self.pending_removals.orphans.insert(instance, removal)
            }
        };
        self.send_removal(target);
    }

    fn send_removal(&mut self, target: RemovalTarget) {
        let n = self.minter.effect();
        let (action, timeout_ms, name) = match target {
            RemovalTarget::Workspace(workspace) => (
                Action::DeleteWorkspace { workspace },
                self.config.deadlines.workspace_ms,
                workspace.as_u128(),
            ),
            RemovalTarget::Orphan(instance) => (
                Action::Kill { instance, workspace: None },
                self.config.deadlines.kill_ms,
                instance.as_u128(),
            ),
        };
        let deadline = self.now.mono.plus(timeout_ms);
        let Some(removal) = self.pending_removals.of(target) else { return };
        removal.n = Some(n);
        removal.at = deadline;
        self.pending_removals.in_progress.insert(n, target);
        self.send_without_sandbox(name, n, deadline, action);
        self.alarms.at_latest(Ringer::PendingRemovals, &mut self.pending_removals.alarm, deadline);
    }

    /// Returns whether the effect was a pending removal.
    pub(crate) fn removal_effect_ended(&mut self, n: u64, outcome: &Outcome) -> bool {
        let Some(target) = self.pending_removals.in_progress.remove(&n) else { return false };
        match outcome {
            Outcome::Done => self.removal_confirmed(target),
            Outcome::Failed(_) | Outcome::TimedOut => self.retry_removal_later(target),
        }
        true
    }

    fn removal_confirmed(&mut self, target: RemovalTarget) {
        match target {
            RemovalTarget::Workspace(workspace) => {
                self.pending_removals.workspaces.remove(&workspace);
                self.out.journal.push(JournalEntry::WorkspaceDeleted(workspace));
            }
            RemovalTarget::Orphan(instance) => {
                if self.pending_removals.orphans.remove(&instance).is_some() {
                    self.admission.process_ended(0);
                    self.due.look_at_line();
                }
            }
        }
    }

    fn retry_removal_later(&mut self, target: RemovalTarget) {
        let now = self.now.mono;
        let backoff = self.config.backoff.clone();
        let Some(removal) = self.pending_removals.of(target) else { return };
        removal.n = None;
        removal.attempts += 1;
        removal.at = now.plus(backoff.pause_ms(removal.attempts));
        let at = removal.at;
        self.alarms.at_latest(Ringer::PendingRemovals, &mut self.pending_removals.alarm, at);
    }

    /// Sends the removals that are due, and retries later those that passed their deadline.
    pub(crate) fn removals_due(&mut self) {
        self.pending_removals.alarm = Mono::NEVER;
        let now = self.now.mono;
        let workspaces = self
            .pending_removals
            .workspaces
            .iter()
            .map(|(id, d)| (RemovalTarget::Workspace(*id), *d));
        let orphans =
            self.pending_removals.orphans.iter().map(|(id, d)| (RemovalTarget::Orphan(*id), *d));
        let all: Vec<(RemovalTarget, Removal)> = workspaces.chain(orphans).collect();
        for (target, removal) in all {
            if removal.at > now {
                self.alarms.at_latest(
                    Ringer::PendingRemovals,
                    &mut self.pending_removals.alarm,
                    removal.at,
                );
            } else if let Some(n) = removal.n {
                self.pending_removals.in_progress.remove(&n);
                self.retry_removal_later(target);
            } else {
                self.send_removal(target);
            }
        }
    }
}

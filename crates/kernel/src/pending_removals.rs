//! Removals that outlive the sandbox they were for: workspaces to delete, and instances that a
//! restart found and no record names. Each is tried until it is confirmed.

use std::collections::BTreeMap;

use model::record::JournalEntry;
use model::{InstanceId, Mono, WorkspaceId};

use crate::Kernel;
use crate::alarms::Ringer;
use crate::effect::Action;
use crate::event::Outcome;

/// What is still to be removed.
#[derive(Debug)]
pub(crate) struct Debts {
    workspaces: BTreeMap<WorkspaceId, Debt>,
    orphans: BTreeMap<InstanceId, Debt>,
    /// The debt that an effect in progress is to discharge.
    paying: BTreeMap<u64, Creditor>,
    alarm: Mono,
}

impl Default for Debts {
    fn default() -> Self {
        Self {
            workspaces: BTreeMap::new(),
            orphans: BTreeMap::new(),
            paying: BTreeMap::new(),
            alarm: Mono::NEVER,
        }
    }
}

/// One removal.
#[derive(Debug, Clone, Copy)]
struct Debt {
    attempts: u32,
    /// The effect in progress, if any.
    n: Option<u64>,
    /// When it is timed out, or tried again.
    at: Mono,
}

/// What a debt is for.
#[derive(Debug, Clone, Copy)]
enum Creditor {
    Workspace(WorkspaceId),
    Orphan(InstanceId),
}

impl Debts {
    pub(crate) fn orphans(&self) -> usize {
        self.orphans.len()
    }

    /// Whether a workspace is to be deleted.
    pub(crate) fn owes(&self, workspace: WorkspaceId) -> bool {
        self.workspaces.contains_key(&workspace)
    }

    /// The workspaces that are to be deleted, and whether they wait for a fork that reads them.
    pub(crate) fn doomed(&self) -> impl Iterator<Item = (WorkspaceId, bool)> {
        self.workspaces.iter().map(|(workspace, debt)| (*workspace, debt.at == Mono::NEVER))
    }

    fn of(&mut self, creditor: Creditor) -> Option<&mut Debt> {
        match creditor {
            Creditor::Workspace(workspace) => self.workspaces.get_mut(&workspace),
            Creditor::Orphan(instance) => self.orphans.get_mut(&instance),
        }
    }
}

impl Kernel {
    /// A workspace is to be deleted.
    pub(crate) fn doom_workspace(&mut self, workspace: WorkspaceId) {
        self.out.journal.push(JournalEntry::WorkspaceDoomed(workspace));
        self.owe(Creditor::Workspace(workspace));
    }

    /// A workspace is to be deleted when the fork that reads it is done.
    pub(crate) fn doom_copied_workspace(&mut self, workspace: WorkspaceId) {
        self.out.journal.push(JournalEntry::WorkspaceDoomed(workspace));
        self.redoom_workspace(workspace);
    }

    /// A workspace was to be deleted before we were restarted.
    pub(crate) fn redoom_workspace(&mut self, workspace: WorkspaceId) {
        if self.is_copied(workspace) {
            let debt = Debt { attempts: 0, n: None, at: Mono::NEVER };
            self.debts.workspaces.insert(workspace, debt);
        } else {
            self.owe(Creditor::Workspace(workspace));
        }
    }

    /// A fork that read a workspace is done: if that is to be deleted, its time has come.
    pub(crate) fn copied(&mut self, workspace: WorkspaceId) {
        let waits = self.debts.workspaces.get(&workspace);
        if waits.is_some_and(|debt| debt.at == Mono::NEVER) && !self.is_copied(workspace) {
            self.owe(Creditor::Workspace(workspace));
        }
    }

    /// Whether a fork reads a workspace.
    fn is_copied(&self, workspace: WorkspaceId) -> bool {
        self.entries
            .iter()
            .any(|(_, entry)| entry.copying.is_some_and(|copying| copying.from == workspace))
    }

    /// An instance exists that no record names. It takes a place until it is gone.
    pub(crate) fn remove_orphan(&mut self, instance: InstanceId) {
        self.admission.process_began(0);
        self.owe(Creditor::Orphan(instance));
    }

    fn owe(&mut self, creditor: Creditor) {
        let debt = Debt { attempts: 0, n: None, at: self.now.mono };
        match creditor {
            Creditor::Workspace(workspace) => self.debts.workspaces.insert(workspace, debt),
            Creditor::Orphan(instance) => self.debts.orphans.insert(instance, debt),
        };
        self.pay(creditor);
    }

    fn pay(&mut self, creditor: Creditor) {
        let n = self.minter.effect();
        let (action, timeout_ms, name) = match creditor {
            Creditor::Workspace(workspace) => (
                Action::DeleteWorkspace { workspace },
                self.config.deadlines.workspace_ms,
                workspace.as_u128(),
            ),
            Creditor::Orphan(instance) => (
                Action::Kill { instance, workspace: None },
                self.config.deadlines.kill_ms,
                instance.as_u128(),
            ),
        };
        let deadline = self.now.mono.plus(timeout_ms);
        let Some(debt) = self.debts.of(creditor) else { return };
        debt.n = Some(n);
        debt.at = deadline;
        self.debts.paying.insert(n, creditor);
        self.send_without_sandbox(name, n, deadline, action);
        self.alarms.at_latest(Ringer::Debts, &mut self.debts.alarm, deadline);
    }

    /// Tells whether the effect was of a debt.
    pub(crate) fn debt_effect_ended(&mut self, n: u64, outcome: &Outcome) -> bool {
        let Some(creditor) = self.debts.paying.remove(&n) else { return false };
        match outcome {
            Outcome::Done => self.discharge(creditor),
            Outcome::Failed(_) | Outcome::TimedOut => self.defer(creditor),
        }
        true
    }

    fn discharge(&mut self, creditor: Creditor) {
        match creditor {
            Creditor::Workspace(workspace) => {
                self.debts.workspaces.remove(&workspace);
                self.out.journal.push(JournalEntry::WorkspaceDeleted(workspace));
            }
            Creditor::Orphan(instance) => {
                if self.debts.orphans.remove(&instance).is_some() {
                    self.admission.process_over(0);
                    self.due.look_at_line();
                }
            }
        }
    }

    fn defer(&mut self, creditor: Creditor) {
        let now = self.now.mono;
        let backoff = self.config.backoff.clone();
        let Some(debt) = self.debts.of(creditor) else { return };
        debt.n = None;
        debt.attempts += 1;
        debt.at = now.plus(backoff.pause_ms(debt.attempts));
        let at = debt.at;
        self.alarms.at_latest(Ringer::Debts, &mut self.debts.alarm, at);
    }

    /// Tries again what is due, and gives up on what takes too long, to try it again later.
    pub(crate) fn debts_due(&mut self) {
        self.debts.alarm = Mono::NEVER;
        let now = self.now.mono;
        let workspaces = self.debts.workspaces.iter().map(|(id, d)| (Creditor::Workspace(*id), *d));
        let orphans = self.debts.orphans.iter().map(|(id, d)| (Creditor::Orphan(*id), *d));
        let all: Vec<(Creditor, Debt)> = workspaces.chain(orphans).collect();
        for (creditor, debt) in all {
            if debt.at > now {
                self.alarms.at_latest(Ringer::Debts, &mut self.debts.alarm, debt.at);
            } else if let Some(n) = debt.n {
                self.debts.paying.remove(&n);
                self.defer(creditor);
            } else {
                self.pay(creditor);
            }
        }
    }
}

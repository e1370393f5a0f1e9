//! The order of effects: those on one instance are carried out one after the other, as in the
//! engine. What an effect reads when it begins is looked up here too. This module never ends an
//! effect.

use kernel::{Action, Effect};
use model::TurnId;

use crate::interpreter::How;
use crate::runtime::Instance;
use crate::world::World;

impl World {
    /// The instance whose guest gives the files for an effect, if one does.
    pub(super) fn read_by_guest(&mut self, action: &Action) -> Option<&mut Instance> {
        let instance = match action {
            Action::Persist { instance, guest_awake: true, .. }
            | Action::CopyWorkspace { instance: Some(instance), guest_awake: true, .. } => instance,
            Action::Persist { .. }
            | Action::CopyWorkspace { .. }
            | Action::Launch(_)
            | Action::Claim { .. }
            | Action::Probe { .. }
            | Action::Wipe { .. }
            | Action::Prove { .. }
            | Action::Freeze { .. }
            | Action::Thaw { .. }
            | Action::Quiesce { .. }
            | Action::Unquiesce { .. }
            | Action::StartTurn { .. }
            | Action::StopTurn { .. }
            | Action::KillProcess { .. }
            | Action::RestartProcess { .. }
            | Action::Kill { .. }
            | Action::DeleteWorkspace { .. }
            | Action::ArchiveWorkspace { .. } => return None,
        };
        self.runtime.instances.get_mut(instance)
    }

    /// The turn that an effect starts or stops, if it does that, and where.
    pub(super) fn turn_changed_by(&mut self, action: &Action) -> Option<(&mut Instance, TurnId)> {
        let (Action::StartTurn { instance, turn, .. } | Action::StopTurn { instance, turn }) =
            action
        else {
            return None;
        };
        self.runtime.instances.get_mut(instance).map(|one| (one, *turn))
    }

    /// Effects on one instance are carried out one after the other; only its removal does not wait.
    /// An effect that misses its deadline while it waits does nothing.
    pub(super) fn in_turn(&mut self, effect: &Effect, how: How, takes_ms: u64) -> (How, u64) {
        let now = self.now.mono;
        let one = match &effect.action {
            Action::Claim { instance, .. }
            | Action::Probe { instance }
            | Action::Wipe { instance }
            | Action::Prove { instance }
            | Action::Freeze { instance }
            | Action::Thaw { instance }
            | Action::Quiesce { instance }
            | Action::Unquiesce { instance }
            | Action::StartTurn { instance, .. }
            | Action::StopTurn { instance, .. }
            | Action::KillProcess { instance, .. } => self.runtime.instances.get_mut(instance),
            Action::Launch(_)
            | Action::RestartProcess { .. }
            | Action::Kill { .. }
            | Action::Persist { .. }
            | Action::CopyWorkspace { .. }
            | Action::DeleteWorkspace { .. }
            | Action::ArchiveWorkspace { .. } => None,
        };
        let Some(one) = one else { return (how, takes_ms) };
        let ends = now.plus(takes_ms).max(one.busy_until);
        if ends >= effect.deadline && ends > now.plus(takes_ms) {
            let how = How::Unknown { happened: false, reported_after_ms: None };
            return (how, effect.deadline.since(now).saturating_sub(1));
        }
        one.busy_until = ends;
        (how, ends.since(now))
    }

    /// What the workspace of an effect holds now.
    pub(super) fn held_by_workspace_of(&self, action: &Action) -> u64 {
        match action {
            Action::Persist { workspace, .. } => {
                self.runtime.workspaces.get(workspace).map_or(0, |held| held.live)
            }
            Action::CopyWorkspace { from, instance, .. } => {
                self.runtime.copied_of(*from, *instance)
            }
            Action::Launch(_)
            | Action::Claim { .. }
            | Action::Probe { .. }
            | Action::Wipe { .. }
            | Action::Prove { .. }
            | Action::Freeze { .. }
            | Action::Thaw { .. }
            | Action::Quiesce { .. }
            | Action::Unquiesce { .. }
            | Action::StartTurn { .. }
            | Action::StopTurn { .. }
            | Action::KillProcess { .. }
            | Action::RestartProcess { .. }
            | Action::Kill { .. }
            | Action::ArchiveWorkspace { .. }
            | Action::DeleteWorkspace { .. } => 0,
        }
    }
}

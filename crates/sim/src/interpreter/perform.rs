//! What each effect does to the true state when it happens. Nothing here is drawn or reported: it
//! is the runtime itself, and it refuses what is impossible.

use kernel::{Action, FailureKind, Outcome};
use model::template::RuntimeTraits;

use super::{Item, ProgramFate, failed};
use crate::checks::{self, Judged};
use crate::runtime::{Phase, Workspace};
use crate::world::World;

impl World {
    /// Does what an effect wants, as far as the truth allows it. `began_with` is what its
    /// workspace held when it started.
    pub(crate) fn perform(&mut self, action: &Action, began_with: u64) -> Judged<Outcome> {
        let now = self.now.mono;
        let gone = Ok(failed(FailureKind::Gone));
        match action {
            Action::Launch(launch) => {
                let known = self.runtime.workspaces.contains_key(&launch.workspace);
                let Some(one) = self.runtime.instances.get_mut(&launch.instance) else {
                    return gone;
                };
                if one.phase != Phase::Starting {
                    return gone;
                }
                if launch.restore && !known {
                    one.phase = Phase::Dead;
                    self.watch.vanished.insert(launch.workspace);
                    return Ok(failed(FailureKind::FilesGone));
                }
                one.phase = Phase::Up;
                one.answered_at = now;
                one.bound.clone_from(&launch.settings);
                self.runtime.workspaces.entry(launch.workspace).or_default();
            }
            Action::Claim { instance, settings, .. } => {
                let Some(one) = self.runtime.up(*instance) else { return gone };
                if one.frozen {
                    return Ok(failed(FailureKind::Trouble));
                }
                one.bound.clone_from(settings);
                one.answered_at = now;
                one.asked = true;
            }
            Action::Probe { instance } => {
                let Some(one) = self.runtime.up(*instance) else { return gone };
                if one.frozen {
                    return Ok(failed(FailureKind::Trouble));
                }
            }
            Action::Wipe { instance } => {
                let Some(one) = self.runtime.up(*instance) else { return gone };
                one.clear();
                let workspace = one.workspace;
                self.runtime.workspaces.insert(workspace, Workspace::default());
            }
            Action::Prove { instance } => {
                let contents = self.runtime.contents(*instance);
                let Some(one) = self.runtime.up(*instance) else { return gone };
                let clean = one.marks.is_empty() && one.processes.is_empty() && contents == Some(0);
                if !clean || one.frozen {
                    return Ok(failed(FailureKind::Trouble));
                }
                one.answered_at = now;
            }
            Action::Freeze { instance } => {
                let Some(one) = self.runtime.up(*instance) else { return gone };
                let RuntimeTraits { can_freeze, .. } = one.traits;
                if !can_freeze {
                    return Ok(failed(FailureKind::Unsupported));
                }
                one.freeze(now, false);
            }
            Action::Quiesce { instance } => {
                let Some(one) = self.runtime.up(*instance) else { return gone };
                if !one.traits.can_freeze {
                    return Ok(failed(FailureKind::Unsupported));
                }
                self.coverage.count("copies", "quiesced");
                one.freeze(now, true);
            }
            Action::Thaw { instance } | Action::Unquiesce { instance } => {
                let Some(one) = self.runtime.up(*instance) else { return gone };
                one.wake(now);
            }
            Action::StartTurn { instance, session, turn } => {
                let Some(one) = self.runtime.up(*instance) else { return gone };
                if one.frozen || one.stopped_turn == Some(*turn) {
                    return Ok(failed(FailureKind::Trouble));
                }
                one.turn = Some((*turn, now));
                one.active_at = now;
                one.stirred_at = now;
                checks::sessions::look(self, *session, *instance)?;
                self.session_writes(*instance, *session);
                let lasts_ms = self.choices.between(1, self.scenario.work_ms);
                let (instance, session, turn) = (*instance, *session, *turn);
                self.plan(lasts_ms, Item::TurnEnds { instance, session, turn });
            }
            Action::StopTurn { instance, turn } => {
                let Some(one) = self.runtime.up(*instance) else { return gone };
                if one.frozen {
                    return Ok(failed(FailureKind::Trouble));
                }
                one.turn.take_if(|(running, _)| running == turn);
                one.stopped_turn = Some(*turn);
            }
            Action::KillProcess { instance, process } => {
                let Some(one) = self.runtime.up(*instance) else { return gone };
                let program = one.process(*process).map_or(0, |known| known.program);
                let (instance, process) = (*instance, *process);
                let fate = ProgramFate::Signal(9);
                self.plan(1, Item::ProgramEnds { instance, process, program, fate });
            }
            Action::RestartProcess { instance, process, .. } => {
                let Some(one) = self.runtime.up(*instance) else { return gone };
                let frozen = one.frozen;
                // If the process ended meanwhile, the restart is given up.
                let Some(known) = one.process(*process).filter(|_| !frozen) else {
                    return Ok(failed(FailureKind::Trouble));
                };
                known.runs = true;
                known.program += 1;
                let program = known.program;
                self.program_will_end(*instance, *process, program, true);
            }
            Action::Persist { instance, workspace, guest_awake } => {
                let Some(one) = self.runtime.up(*instance) else { return gone };
                let inside = !one.traits.workspace_survives;
                if inside && !guest_awake {
                    return Ok(failed(FailureKind::NeedsGuest));
                }
                if inside && one.frozen {
                    return Ok(failed(FailureKind::Trouble));
                }
                // A save covers what was there when it began. What is written while it goes on
                // may be in it or not, so nothing may count on that.
                if let Some(workspace) = self.runtime.workspaces.get_mut(workspace) {
                    workspace.durable = workspace.durable.max(began_with);
                }
            }
            Action::Kill { instance, workspace } => {
                if let Some(one) = self.runtime.remove(*instance) {
                    checks::uses::removed(self, *instance, &one);
                }
                if let Some(workspace) = workspace {
                    self.runtime.workspaces.remove(workspace);
                }
            }
            Action::CopyWorkspace { from, instance, guest_awake, to, .. } => {
                if !self.runtime.workspaces.contains_key(from) {
                    return Ok(failed(FailureKind::Trouble));
                }
                if let Some(one) = instance.and_then(|instance| self.runtime.up(instance))
                    && one.is_read_inside()
                {
                    if !guest_awake {
                        self.coverage.count("copies", "needs_guest");
                        return Ok(failed(FailureKind::NeedsGuest));
                    }
                    if one.frozen {
                        return Ok(failed(FailureKind::Trouble));
                    }
                    self.coverage.count("copies", "by_guest");
                }
                // Files in memory go with their sandbox, also while they are copied.
                if let Some(instance) = instance
                    && !self.runtime.instances.get(instance).is_some_and(|one| {
                        one.traits.workspace_survives || one.phase != Phase::Dead
                    })
                {
                    return gone;
                }
                let copy = Workspace { live: began_with, durable: began_with };
                self.runtime.workspaces.insert(*to, copy);
            }
            Action::DeleteWorkspace { workspace } => {
                self.runtime.workspaces.remove(workspace);
            }
            Action::ArchiveWorkspace { workspace } => {
                // A launch on the workspace meanwhile comes first.
                let used = self.runtime.instances.values().any(|one| one.workspace == *workspace);
                if used || !self.runtime.workspaces.contains_key(workspace) {
                    return Ok(failed(FailureKind::Trouble));
                }
                self.coverage.count("disk", "archived");
            }
        }
        Ok(Outcome::Done)
    }
}

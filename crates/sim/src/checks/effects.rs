//! Effects at the moment they are decided: well formed, allowed, and journalled first.

use kernel::{Action, Effect};

use super::{
    Judged, Promise, broken, capacity, cold_workspaces, disk_limits, holds, processes, quiesce,
    sessions, terminations, uses,
};
use crate::coverage;
use crate::runtime::Phase;
use crate::trace::effect_line;
use crate::world::World;

/// Judges an effect that was decided and is about to start.
pub(crate) fn judge(world: &mut World, effect: &Effect) -> Judged {
    world.trace.note(world.step, world.now, || effect_line(effect));
    let fresh = world.watch.last_effect.is_none_or(|last| effect.id.n > last);
    world.watch.last_effect = Some(effect.id.n);
    holds(Promise::EffectSound, fresh, || format!("{:?} is not fresh", effect.id))?;
    holds(Promise::EffectSound, effect.deadline > world.now.mono, || {
        format!("{:?} is due at {:?}", effect.id, effect.deadline)
    })?;
    world.coverage.count("effects", name(&effect.action));
    match &effect.action {
        Action::Launch(launch) => {
            holds(Promise::ShutdownFinal, !world.stopping, || {
                format!("{:?} is launched while the server stops", launch.instance)
            })?;
            let written = world.store.sandboxes.get(&launch.sandbox).is_some_and(|record| {
                record.instance == Some(launch.instance) && record.generation == launch.generation
            });
            let fresh = !world.runtime.instances.contains_key(&launch.instance);
            holds(Promise::LaunchWritten, written && fresh, || {
                format!("{:?} for {:?} is not", launch.instance, launch.sandbox)
            })?;
            disk_limits::launch(world, launch)?;
            let ahead = world.ahead;
            capacity::launch(world, launch, &ahead)?;
            world.ahead.instances += 1;
            world.ahead.memory_mb += u64::from(launch.template.limits.memory_mb);
            Ok(())
        }
        Action::Kill { instance, workspace } => {
            if workspace.is_some() {
                sessions::kill(world, *instance)?;
            }
            quiesce::over(world, *instance);
            terminations::kill(world, *instance)
        }
        Action::Wipe { instance } => terminations::wipe(world, *instance),
        Action::Freeze { instance } => holds::freeze(world, *instance),
        Action::StartTurn { instance, .. } => {
            if let Some(one) = world.runtime.instances.get_mut(instance) {
                one.freeze_asked = false;
                if one.phase == Phase::Up && one.frozen {
                    return broken(Promise::FrozenUnused, || format!("a turn in {instance:?}"));
                }
            }
            uses::turn(world, *instance)
        }
        Action::KillProcess { instance, process } => {
            holds::kill(world, *instance, *process)?;
            if let Some(one) = world.runtime.instances.get_mut(instance) {
                for other in one.processes.iter_mut().filter(|other| other.id == *process) {
                    other.kill_asked = true;
                    other.keeps_awake = false;
                }
            }
            Ok(())
        }
        Action::RestartProcess { instance, process, .. } => {
            processes::restart(world, effect, *instance, *process)
        }
        Action::DeleteWorkspace { workspace } => sessions::delete(world, *workspace),
        Action::ArchiveWorkspace { workspace } => cold_workspaces::archive(world, *workspace),
        Action::Quiesce { instance } => quiesce::hold(world, *instance),
        Action::Unquiesce { instance } => {
            quiesce::over(world, *instance);
            Ok(())
        }
        Action::Persist { instance, guest_awake: true, .. } => quiesce::asked(world, *instance),
        Action::Claim { .. }
        | Action::Probe { .. }
        | Action::Prove { .. }
        | Action::Thaw { .. }
        | Action::StopTurn { .. }
        | Action::Persist { guest_awake: false, .. } => Ok(()),
        Action::CopyWorkspace { from, instance, guest_awake, .. } => {
            if let Some(instance) = instance.filter(|_| *guest_awake) {
                quiesce::asked(world, instance)?;
            }
            let now = world.now.mono;
            world.watch.copies.retain(|(_, until)| *until >= now);
            world.watch.copies.push((*from, effect.deadline));
            Ok(())
        }
    }
}

const fn name(action: &Action) -> &'static str {
    match action {
        Action::Launch(_) => "launch",
        Action::Claim { .. } => "claim",
        Action::Probe { .. } => "probe",
        Action::Wipe { .. } => "wipe",
        Action::Prove { .. } => "prove",
        Action::Freeze { .. } => "freeze",
        Action::Thaw { .. } => "thaw",
        Action::Quiesce { .. } => "quiesce",
        Action::Unquiesce { .. } => "unquiesce",
        Action::StartTurn { .. } => "start_turn",
        Action::StopTurn { .. } => "stop_turn",
        Action::KillProcess { .. } => "kill_process",
        Action::RestartProcess { .. } => "restart_process",
        Action::Persist { .. } => "persist",
        Action::Kill { .. } => "kill",
        Action::CopyWorkspace { .. } => "copy_workspace",
        Action::DeleteWorkspace { .. } => "delete_workspace",
        Action::ArchiveWorkspace { .. } => "archive_workspace",
    }
}

/// A late completion leads to nothing at all.
pub(crate) fn late(kind: usize, quiet: bool) -> Judged {
    holds(Promise::LateIsHarmless, quiet, || {
        format!("a late {} led to something", coverage::event_name(kind))
    })
}

//! Holds: what keeps a sandbox alive, and that no frozen or held sandbox is treated as if it were
//! not.

use model::record::Owner;
use model::{InstanceId, ProcessId, SandboxId};

use super::{Judged, Promise, holds, quiesce};
use crate::runtime::Phase;
use crate::world::World;

/// A freeze was decided.
pub(crate) fn freeze(world: &World, id: InstanceId) -> Judged {
    let Some(instance) = world.runtime.instances.get(&id) else { return Ok(()) };
    let busy = instance.turn.is_some() || !instance.uses.is_empty() || instance.is_restarting();
    holds(Promise::RunningSafe, !busy, || format!("{id:?} is in use, and is frozen"))?;
    quiesce::stops(id, instance)?;
    let files = world.runtime.workspaces.get(&instance.workspace);
    let unsaved = files.is_some_and(|files| files.live != files.durable);
    let session = matches!(instance.holder, Owner::Session(_));
    holds(Promise::FrozenSaved, !(session && unsaved && !instance.died), || {
        format!("{id:?} is frozen with {files:?}")
    })?;
    if instance.freeze_asked {
        return Ok(());
    }
    let held = instance.is_held(world.now.mono);
    holds(Promise::HoldsKept, !held, || format!("{id:?} is kept alive, and is frozen"))?;
    let recipe = &world.scenario.recipes[instance.recipe];
    let quiet_ms = world.now.mono.since(instance.active_at);
    let least_ms = recipe.template.freeze_after_ms.unwrap_or(u64::MAX).min(500);
    holds(Promise::FrozenQuietly, quiet_ms >= least_ms, || {
        format!("{id:?} was quiet for {quiet_ms} ms")
    })
}

/// The kill of a process was decided: it had its whole time limit, not counting frozen time. The
/// begin of frozen time is known only up to the length of a freeze.
pub(crate) fn kill(world: &World, id: InstanceId, process: ProcessId) -> Judged {
    let Some(instance) = world.runtime.instances.get(&id) else { return Ok(()) };
    let Some(process) = instance.processes.iter().find(|one| one.id == process) else {
        return Ok(());
    };
    // A process whose end was requested is killed as soon as its next program runs.
    let early = process.to_end || process.was_overdue;
    let Some(due) = process.due.filter(|_| !instance.troubled && !instance.frozen && !early) else {
        return Ok(());
    };
    let given_ms = due.since(process.began);
    let unclear_ms = process.naps * world.scenario.config.deadlines.freeze_ms;
    let had_ms = world.now.mono.since(process.began).saturating_sub(process.slept_ms);
    holds(Promise::TimeGiven, had_ms + unclear_ms >= given_ms, || {
        format!("{:?} in {id:?} had {had_ms} ms of {given_ms}", process.id)
    })
}

/// The kernel's keep-alive report is right.
pub(crate) fn compare(world: &World, id: InstanceId, sandbox: SandboxId) -> Judged {
    let Some(instance) = world.runtime.instances.get(&id) else { return Ok(()) };
    let Some(report) = world.kernel.keep_alive_report(sandbox) else { return Ok(()) };
    if instance.phase != Phase::Up || instance.kill_asked {
        return Ok(());
    }
    let now = world.now.mono;
    let stopping = instance.stop.as_ref().filter(|stop| stop.at <= now);
    for process in &instance.processes {
        let shown = report.processes.iter().any(|kept| kept.process == process.id);
        let overdue = process.due.is_some_and(|due| due <= now);
        // Its time limit may have been stopped for a moment.
        let unclear = overdue || process.naps > 0 || instance.frozen || process.was_overdue;
        let stopped = stopping.is_some_and(|stop| stop.of.contains(&process.id));
        if (unclear && process.due.is_some()) || stopped {
            continue;
        }
        holds(Promise::HoldsExact, shown == process.keeps_awake, || {
            format!("{:?} in {id:?}: shown {shown}", process.id)
        })?;
    }
    holds(Promise::HoldsExact, report.scale == instance.scale, || {
        format!("{id:?}: the scale is {} and shown as {}", instance.scale, report.scale)
    })
}

/// Time passed: processes whose time has expired are being killed.
pub(crate) fn ticked(world: &World) -> Judged {
    let now = world.now.mono;
    for (id, instance) in &world.runtime.instances {
        if instance.processes.is_empty() || instance.phase != Phase::Up || instance.kill_asked {
            continue;
        }
        let owned = world
            .store
            .record_of(*id)
            .is_some_and(|record| world.ledger.has(record.owner) && record.ending.is_none());
        for process in &instance.processes {
            let unclear_ms = process.naps * world.scenario.config.deadlines.freeze_ms;
            let later_ms = process.slept_ms + unclear_ms;
            // After a failed effect it may have to be thawed first.
            let awake = process.keeps_awake && !instance.frozen && !instance.troubled;
            // A process that is being restarted is killed when it runs.
            let awake = awake && process.restart_by.is_none();
            let late = awake && process.due.is_some_and(|due| due.plus(later_ms) <= now);
            holds(Promise::DeadlineKept, !owned || !late || process.kill_asked, || {
                format!("{:?} in {id:?} runs past its timeout", process.id)
            })?;
        }
        if let Some(record) = world.store.record_of(*id)
            && owned
        {
            compare(world, *id, record.id)?;
        }
    }
    Ok(())
}

//! Processes: when the program of one is restarted, and that each ends exactly once, at the latest
//! with its sandbox. `holds` checks what they keep alive and for how long they run.

use kernel::{Effect, RESTART_PAUSE_MS};
use model::{InstanceId, ProcessEnd, ProcessId};

use super::{Judged, Promise, broken, holds};
use crate::runtime::{Instance, Phase};
use crate::world::World;

/// How long a program that is to be started again may wait for its sandbox.
const RESTART_WAIT_MS: u64 = 60_000;

/// A restart was decided.
pub(crate) fn restart(
    world: &mut World,
    effect: &Effect,
    id: InstanceId,
    process: ProcessId,
) -> Judged {
    let now = world.now.mono;
    holds(Promise::ShutdownFinal, !world.stopping, || {
        format!("{process:?} is restarted while the server stops")
    })?;
    let record = world.store.record_of(id);
    let lives = record.is_some_and(|record| {
        let same = record.id == effect.id.sandbox && record.generation == effect.id.generation;
        same && record.ending.is_none()
    });
    let known = world.ledger.processes.get(&process) == Some(&id);
    holds(Promise::RestartsInPlace, lives && known, || {
        format!("{process:?} is restarted in {id:?}, which is recorded as {record:?}")
    })?;
    let Some(one) = world.runtime.instances.get_mut(&id) else { return Ok(()) };
    if one.phase == Phase::Up && one.frozen {
        return broken(Promise::FrozenUnused, || format!("{process:?} is started in {id:?}"));
    }
    let Some(known) = one.process(process) else { return Ok(()) };
    holds(Promise::StopIsFinal, !known.to_end, || format!("{process:?} in {id:?}"))?;
    let most = known.restart.map_or(0, |policy| policy.max_restarts.unwrap_or(u32::MAX));
    let rested_ms = known.rests_since.map(|since| now.since(since));
    let may = known.restarts < most && rested_ms.is_some_and(|ms| ms >= RESTART_PAUSE_MS);
    holds(Promise::RestartsBounded, may, || {
        let times = known.restarts;
        format!("{process:?} was restarted {times} of {most} times after a pause of {rested_ms:?}")
    })?;
    known.restarts += 1;
    (known.rests_since, known.restart_by) = (None, Some(effect.deadline));
    Ok(())
}

/// A process ended. What still runs of it is killed.
pub(crate) fn over(world: &mut World, process: ProcessId, end: &ProcessEnd) -> Judged {
    world.coverage.count("process_ends", end.reason.as_str());
    let Some(instance) = world.ledger.processes.remove(&process) else {
        return broken(Promise::ProcessesEndOnce, || format!("{process:?} had ended already"));
    };
    if let Some(one) = world.runtime.instances.get_mut(&instance) {
        one.processes.retain(|other| other.id != process);
    }
    Ok(())
}

/// A sandbox is being removed or wiped, and its users were notified: none of its processes
/// continues.
pub(crate) fn sandbox_ended(world: &World, id: InstanceId) -> Judged {
    let mut left = world.ledger.processes.iter().filter(|(_, instance)| **instance == id);
    holds(Promise::ProcessesEndOnce, left.next().is_none(), || {
        format!("{id:?} ends, and a process of it does not")
    })
}

/// Time passed: no process waits for a restart without limit, and no restart takes longer than its
/// deadline.
pub(crate) fn ticked(world: &World) -> Judged {
    let now = world.now.mono;
    for (id, one) in &world.runtime.instances {
        for process in &one.processes {
            let longest_ms = RESTART_PAUSE_MS + RESTART_WAIT_MS;
            let rests = process.rests_since.is_none_or(|since| since.plus(longest_ms) >= now);
            let starts = process.restart_by.is_none_or(|by| by >= now);
            holds(Promise::DeadlineKept, rests && starts, || {
                format!("{process:?} in {id:?} is neither restarted nor ended")
            })?;
        }
        polled(world, *id, one)?;
    }
    Ok(())
}

/// A sandbox that was frozen because it was idle is thawed soon after a caller polled a process.
fn polled(world: &World, id: InstanceId, one: &Instance) -> Judged {
    let patience_ms = 3 * world.scenario.config.deadlines.freeze_ms;
    let late = one.polled_at.is_some_and(|at| at.plus(patience_ms) < world.now.mono);
    let runs = one.processes.iter().any(|process| process.runs);
    // How long a copy may quiesce it is checked there.
    let frozen = one.frozen && one.quiesced_since.is_none();
    let waits = one.phase == Phase::Up && frozen && runs && one.effects == 0;
    let excused = one.freeze_asked || one.troubled || one.died || one.kill_asked || world.stopping;
    let ends = world.store.record_of(id).is_none_or(|record| record.ending.is_some());
    holds(Promise::PolledRuns, !(late && waits) || excused || ends, || {
        format!("{id:?} is frozen, and a process in it is polled since {:?}", one.polled_at)
    })
}

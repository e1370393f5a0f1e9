//! What is done to a sandbox so that its files can be read: it is quiesced briefly and for a copy
//! only, its guest runs while it sends files, and no caller is refused because of it.

use model::record::Owner;
use model::{ErrorCode, InstanceId, Refusal, SessionId, WorkspaceId};

use super::{Judged, Promise, holds};
use crate::ledger::Ask;
use crate::runtime::{Instance, Phase};
use crate::world::World;
use kernel::{Action, Effect, Failure, FailureKind, Outcome, UseTarget};

/// How long a sandbox may stay quiesced.
const QUIESCE_MS: u64 = 1_000;

/// How often a release may be tried before the sandbox must end.
const ATTEMPTS: u64 = 3;

/// A quiesce was decided.
pub(crate) fn hold(world: &mut World, id: InstanceId) -> Judged {
    if let Some(one) = world.runtime.instances.get(&id) {
        let copied = is_read(world, one.workspace);
        holds(Promise::QuiescedBriefly, copied, || format!("{id:?} is quiesced for no copy"))?;
        stops(id, one)?;
        let midway = !one.changing_turns.is_empty() && one.phase == Phase::Up;
        holds(Promise::QuiescedBetween, !midway, || {
            format!("{id:?} is quiesced while a turn is started or stopped in it")
        })?;
    }
    world.watch.quiesced.entry(id).or_insert(world.now.mono);
    Ok(())
}

/// Whether a workspace is being copied or read, or about to be.
pub(crate) fn is_read(world: &World, workspace: WorkspaceId) -> bool {
    let asked = world.ledger.pending.values().filter_map(|pending| pending.ask.reads());
    let reads = world.ledger.reads.values().map(|read| read.workspace);
    let copied = world.store.sandboxes.values().filter_map(|record| record.copying_from);
    asked.chain(reads).chain(copied).any(|of| of == workspace)
}

/// An effect ended: an unsupported quiesce did not happen.
pub(crate) fn reported(world: &mut World, effect: &Effect, outcome: &Outcome) {
    if let (
        Action::Quiesce { instance },
        Outcome::Failed(Failure { kind: FailureKind::Unsupported, .. }),
    ) = (&effect.action, outcome)
    {
        over(world, *instance);
    }
}

/// A freeze or quiesce was decided: the guest must not be sending files.
pub(crate) fn stops(id: InstanceId, one: &Instance) -> Judged {
    holds(Promise::GuestAwake, one.readings == 0 || one.phase != Phase::Up, || {
        format!("{id:?} is stopped while its guest sends files")
    })
}

/// The release or removal of a quiesced sandbox was decided.
pub(crate) fn over(world: &mut World, id: InstanceId) {
    world.watch.quiesced.remove(&id);
}

/// The guest of a sandbox is asked for files: it must run.
pub(crate) fn asked(world: &World, id: InstanceId) -> Judged {
    let Some(one) = world.runtime.instances.get(&id) else { return Ok(()) };
    let frozen = one.frozen && one.phase == Phase::Up && !one.kill_asked && one.is_read_inside();
    holds(Promise::GuestAwake, !frozen, || format!("{id:?} is frozen, and is asked for files"))
}

/// Time passed: no sandbox is quiesced for too long.
pub(crate) fn ticked(world: &World) -> Judged {
    let now = world.now.mono;
    for (id, since) in &world.watch.quiesced {
        let late = is_up(world, *id) && now >= since.plus(QUIESCE_MS);
        holds(Promise::QuiescedBriefly, !late, || {
            format!("{id:?} is quiesced since {since:?}, and nothing releases it")
        })?;
    }
    // The release may have to be repeated.
    let patience_ms = QUIESCE_MS + (ATTEMPTS + 1) * world.scenario.config.deadlines.freeze_ms;
    for (id, one) in &world.runtime.instances {
        let late = one.quiesced_since.is_some_and(|since| now > since.plus(patience_ms));
        holds(Promise::QuiescedBriefly, !(late && is_up(world, *id)), || {
            format!("{id:?} is quiesced since {:?}, and stays so", one.quiesced_since)
        })?;
    }
    Ok(())
}

/// Whether a sandbox works and is not ending.
fn is_up(world: &World, id: InstanceId) -> bool {
    let up = world.runtime.instances.get(&id).is_some_and(|one| one.phase == Phase::Up);
    let record = world.store.record_of(id);
    up && record.is_some_and(|record| record.ending.is_none())
}

/// A request was refused: the reason must not be a copy of the sandbox's files.
pub(crate) fn refused(world: &World, ask: &Ask, refusal: &Refusal) -> Judged {
    let wants = match ask {
        Ask::Use { target: UseTarget::Session(session), .. }
        | Ask::Turn { session, .. }
        | Ask::Resume { session } => Some(*session),
        Ask::Use { target: UseTarget::Sandbox(sandbox), .. } | Ask::Thaw { sandbox } => {
            match world.store.sandboxes.get(sandbox).map(|record| record.owner) {
                Some(Owner::Session(session)) => Some(session),
                Some(Owner::Unowned | Owner::Lease(_)) | None => None,
            }
        }
        Ask::Checkout { .. }
        | Ask::Freeze { .. }
        | Ask::Delete { .. }
        | Ask::Create { .. }
        | Ask::Abort { .. }
        | Ask::Pause { .. }
        | Ask::Stop { .. }
        | Ask::End { .. }
        | Ask::Fork { .. }
        | Ask::Read { .. }
        | Ask::Destroy { .. } => None,
    };
    let busy = matches!(refusal.code, ErrorCode::SessionBusy | ErrorCode::SandboxBusy);
    let still = busy && wants.is_some_and(|session| is_quiesced(world, session));
    holds(Promise::CopyCostsNoUse, !still, || format!("{ask:?} while it is quiesced: {refusal}"))
}

/// Whether the sandbox of a session is quiesced, no stop or end of the session was
/// requested, and its deadline has not come.
fn is_quiesced(world: &World, session: SessionId) -> bool {
    let leaves = world
        .ledger
        .sessions
        .get(&session)
        .is_none_or(|one| one.stop_asked || one.end_asked || one.may_be_due(world.now.wall));
    let instance = world.store.live_of_session(session).and_then(|record| record.instance);
    !leaves && instance.is_some_and(|id| world.watch.quiesced.contains_key(&id))
}

//! Published events: beginnings, ends and losses, each once and in order.

use model::lifecycle::{ActiveCause, LifecycleEvent};
use model::record::Owner;
use model::{ColdEviction, EndCause, Generation, SandboxId, SessionId, TerminatedReason};

use super::{Judged, Promise, broken, handout, holds, turns, uses};
use crate::ledger::LeasePhase;
use crate::world::World;

/// Judges a published event.
pub(crate) fn judge(world: &mut World, event: &LifecycleEvent) -> Judged {
    match event {
        LifecycleEvent::SandboxActive {
            session,
            lease,
            sandbox_id,
            generation,
            cause,
            state_lost,
            ..
        } => {
            world.coverage.count("active", active_name(*cause));
            if let Some(session) = session {
                handout::given(world, *sandbox_id, Owner::Session(*session))?;
                active(world, *session, *sandbox_id, *generation, *cause)?;
                // The stream of a turn carries this event; other answers report the loss
                // themselves.
                let streams = world.ledger.asked_turns.values().any(|(of, _)| of == session);
                if *state_lost && streams {
                    lost(world, *session);
                }
            }
            match lease {
                Some(lease) => handout::given(world, *sandbox_id, Owner::Lease(*lease)),
                None => Ok(()),
            }
        }
        LifecycleEvent::SandboxTerminated { lease, sandbox_id, generation, cause, .. } => {
            if let Some(lease) = lease {
                world.ledger.drop_lease(*lease, LeasePhase::Lost);
            }
            terminated(world, *sandbox_id, *generation, *cause)
        }
        LifecycleEvent::StateLost { session, reason, .. } => {
            world.coverage.count("sessions", "state_lost");
            let by_limit = *reason == TerminatedReason::Evicted
                && world.scenario.config.cold_eviction == ColdEviction::KeepFiles;
            holds(Promise::LimitsSpareFiles, !by_limit, || format!("{session:?} lost its files"))
        }
        LifecycleEvent::TurnStarted { session, turn, .. } => turns::started(world, *session, *turn),
        LifecycleEvent::TurnEnded { turn, outcome, .. } => turns::ended(world, *turn, *outcome),
        LifecycleEvent::WorkspaceDurable { .. }
        | LifecycleEvent::SessionChanged { .. }
        | LifecycleEvent::SandboxFrozen { .. }
        | LifecycleEvent::SandboxWakefulness { .. }
        | LifecycleEvent::PoolHealth { .. } => Ok(()),
        LifecycleEvent::SandboxState { sandbox_id, .. } => broken(Promise::StatesPublished, || {
            format!("a transition of {sandbox_id:?} is in the journal")
        }),
    }
}

fn lost(world: &mut World, session: SessionId) {
    if let Some(session) = world.ledger.sessions.get_mut(&session) {
        session.loss_reported = true;
    }
}

fn active(
    world: &mut World,
    session: SessionId,
    sandbox: SandboxId,
    generation: Generation,
    cause: ActiveCause,
) -> Judged {
    let Some(one) = world.ledger.sessions.get_mut(&session) else { return Ok(()) };
    let grows = match one.active {
        None => true,
        Some((last, of)) => {
            generation > last
                || (cause == ActiveCause::Reconnected && generation == last && of == sandbox)
        }
    };
    let before = one.active.replace((generation, sandbox));
    holds(Promise::GenerationsGrow, grows, || {
        format!("{session:?} had {before:?} and gets {sandbox:?} {generation} ({cause:?})")
    })
}

fn terminated(
    world: &mut World,
    sandbox: SandboxId,
    generation: Generation,
    cause: EndCause,
) -> Judged {
    world.coverage.count("terminated", cause.reason().as_str());
    let Some(instance) = world.watch.announced.remove(&(sandbox, generation)) else {
        return broken(Promise::TerminatedOnce, || {
            format!("{sandbox:?} {generation} by {cause:?} was not ready, or was published before")
        });
    };
    // A sandbox that continues under another id has ended for clients that knew the old one.
    let renamed = world.store.by_instance.get(&instance).is_some_and(|id| *id != sandbox);
    uses::ended(world, instance, renamed);
    let exists = world.runtime.instances.contains_key(&instance) && !renamed;
    holds(Promise::TerminatedOnce, !exists, || {
        format!("{sandbox:?} {generation} by {cause:?} is published while {instance:?} exists")
    })
}

const fn active_name(cause: ActiveCause) -> &'static str {
    match cause {
        ActiveCause::Created => "created",
        ActiveCause::Reconnected => "reconnected",
        ActiveCause::Replaced => "replaced",
        ActiveCause::Resumed => "resumed",
    }
}

//! Turns: the kernel publishes the start of each once, in the decision that gives it to a harness,
//! and its end once, after that. A turn that no harness got ends without a start.

use kernel::{Action, Effect};
use model::lifecycle::TurnOutcome;
use model::{SessionId, TurnId};

use super::{Judged, Promise, broken, holds};
use crate::world::World;

/// The kernel publishes the start of a turn.
pub(crate) fn started(world: &mut World, session: SessionId, turn: TurnId) -> Judged {
    let Some((_, request)) = world.ledger.asked_turns.remove(&turn) else {
        return broken(Promise::TurnStartPublished, || {
            format!("{turn:?} starts again, or has ended")
        });
    };
    world.ledger.turns.insert(turn, (session, request));
    world.watch.turns_started.push(turn);
    Ok(())
}

/// The kernel publishes the end of a turn.
pub(crate) fn ended(world: &mut World, turn: TurnId, outcome: TurnOutcome) -> Judged {
    world.coverage.count("turns", outcome.as_str());
    let started = world.ledger.turns.remove(&turn).is_some();
    let asked = world.ledger.asked_turns.remove(&turn).is_some();
    holds(Promise::TurnsEndOnce, started || asked, || {
        format!("{turn:?} ends, but was not in progress")
    })
}

/// A decision is committed: the turns whose start it publishes are those that it gives to
/// harnesses.
pub(crate) fn given(world: &mut World, effects: &[Effect]) -> Judged {
    let mut started = std::mem::take(&mut world.watch.turns_started);
    for effect in effects {
        let Action::StartTurn { turn, .. } = &effect.action else { continue };
        let Some(at) = started.iter().position(|started| started == turn) else {
            return broken(Promise::TurnStartPublished, || format!("{turn:?} starts unpublished"));
        };
        started.swap_remove(at);
    }
    holds(Promise::TurnStartPublished, started.is_empty(), || {
        format!("the start of {started:?} is published, and no harness gets them")
    })
}

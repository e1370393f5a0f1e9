//! Transitions: the kernel publishes each, or counts it as skipped because there were too many in a
//! second. The published and skipped transitions of a sandbox together are all its transitions.

use std::collections::{BTreeMap, VecDeque};

use kernel::{TRANSITIONS_PER_SECOND_MAX, Transition};
use model::{KeyId, Mono, SandboxId, SandboxState};

use super::{Judged, Promise, broken, holds, tenants};
use crate::world::World;

/// The window in which the kernel counts transitions.
const SECOND_MS: u64 = 1_000;

/// A sandbox as users see it.
#[derive(Debug, Default)]
pub struct Seen {
    /// Its state after the last decision; cold if it did not exist then.
    state: Option<SandboxState>,
    /// Transitions that are not published yet, in order.
    unpublished: Vec<(SandboxState, SandboxState)>,
    /// The key that its transitions were published to.
    tenant: Option<KeyId>,
    /// When transitions were published within the last second.
    published_at: VecDeque<Mono>,
}

impl Seen {
    fn state(&self) -> SandboxState {
        self.state.unwrap_or(SandboxState::Cold)
    }
}

/// A kernel was started: it publishes no transitions for restored states.
pub(crate) fn begin(world: &mut World) {
    let seen = |state| Seen { state: Some(state), ..Seen::default() };
    world.watch.seen = world.kernel.states().map(|(id, state)| (id, seen(state))).collect();
}

/// Checks the published and the missing transitions of a decision.
pub(crate) fn judge(world: &mut World, published: &[Transition]) -> Judged {
    let visible: BTreeMap<SandboxId, SandboxState> = world.kernel.states().collect();
    for one in published {
        world.coverage.count("states", one.to.as_str());
        tenants::transition(world, one)?;
        is_true(world, one, visible.get(&one.sandbox).copied())?;
    }
    for (id, state) in &visible {
        let now = world.now.mono;
        let seen = world.watch.seen.entry(*id).or_default();
        let before = seen.state.replace(*state).unwrap_or(SandboxState::Cold);
        if before != *state {
            seen.unpublished.push((before, *state));
            let busy = seen.published_lately(now) >= TRANSITIONS_PER_SECOND_MAX as usize;
            world.coverage.count("states", "skipped");
            holds(Promise::StatesPublished, busy, || {
                format!("{id:?} was {before:?} and is {state:?}, and was not published")
            })?;
        }
    }
    let gone = world.watch.seen.extract_if(.., |id, _| !visible.contains_key(id));
    for (id, seen) in gone {
        let complete = seen.state() == SandboxState::Cold && seen.unpublished.is_empty();
        holds(Promise::StatesPublished, complete, || {
            format!("{id:?} is gone unpublished: {seen:?}")
        })?;
    }
    Ok(())
}

/// Checks one published transition of a sandbox that is in this state now.
fn is_true(world: &mut World, one: &Transition, is: Option<SandboxState>) -> Judged {
    let now = world.now.mono;
    let seen = world.watch.seen.entry(one.sandbox).or_default();
    let change = (one.from, one.to);
    let late = seen.unpublished.last() == Some(&change)
        && one.skipped as usize + 1 == seen.unpublished.len();
    let fresh = one.from == seen.state()
        && one.to == is.unwrap_or(SandboxState::Cold)
        && one.skipped as usize == seen.unpublished.len();
    if !late && !fresh {
        return broken(Promise::StatesPublished, || {
            format!("{one:?} of {seen:?}, which is {is:?}")
        });
    }
    // At most one key sees an id. If a claim for the key failed, no key sees its end.
    if one.tenant != KeyId::NIL {
        let saw = *seen.tenant.get_or_insert(one.tenant);
        holds(Promise::TenantKept, saw == one.tenant, || format!("{one:?} was {saw:?}'s before"))?;
    }
    seen.state = Some(one.to);
    seen.unpublished.clear();
    seen.published_at.push_back(now);
    // A window begins with its first transition, so two windows may overlap one second.
    let most = 2 * TRANSITIONS_PER_SECOND_MAX as usize;
    let few = is.is_none() || seen.published_lately(now) <= most;
    holds(Promise::StatesPublished, few, || format!("more than {most} of {:?}", one.sandbox))?;
    let by = |between: &SandboxState| one.from.may_become(*between) && between.may_become(one.to);
    let follows = one.from.may_become(one.to) || SandboxState::ALL.iter().any(by);
    holds(Promise::StatesFollow, follows, || format!("{one:?}"))
}

impl Seen {
    /// How many transitions were published within the last second.
    fn published_lately(&mut self, now: Mono) -> usize {
        while self.published_at.front().is_some_and(|at| now.since(*at) >= SECOND_MS) {
            self.published_at.pop_front();
        }
        self.published_at.len()
    }
}

/// The world is at rest: the last published transition led to the present state.
pub(crate) fn rested(world: &World) -> Judged {
    let left = world.watch.seen.iter().find(|(_, seen)| !seen.unpublished.is_empty());
    match left {
        Some((id, seen)) => broken(Promise::StatesPublished, || format!("{id:?} is {seen:?}")),
        None => Ok(()),
    }
}

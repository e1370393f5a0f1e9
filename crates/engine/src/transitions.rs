//! The latest state transitions that users see, kept in memory for event streams. Nothing here goes
//! to the store. A reader never holds anything up: a slow one misses transitions that were dropped.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};

use kernel::Transition;
use model::lifecycle::StoredEvent;
use model::{KeyId, LifecycleEvent, Role, SandboxId, SessionId, Wall};
use tokio::sync::watch;

use crate::Engine;
use crate::keys::Caller;

/// The most transitions that are kept.
const KEPT_MAX: usize = 4_096;

/// The latest transitions.
pub(crate) struct Transitions {
    ring: Mutex<Ring>,
    /// The position of the last one.
    last: watch::Sender<u64>,
}

/// Transitions in order. Positions grow by one within a run, so that of each follows from the last.
#[derive(Default)]
struct Ring {
    changes: VecDeque<KeptTransition>,
    last: u64,
}

/// A transition that is kept.
#[derive(Debug, Clone, Copy)]
struct KeptTransition {
    /// The number of the last event before it.
    after: u64,
    at: Wall,
    change: Transition,
}

/// Transitions of a decision, shown after its commit. Most decisions have one at most, for which
/// nothing is allocated: a use has one when it begins and one when it ends.
#[derive(Default)]
pub(crate) struct NewTransitions {
    first: Option<KeptTransition>,
    more: Vec<KeptTransition>,
}

impl NewTransitions {
    /// Adds a transition that comes after the event of this number.
    pub(crate) fn add(&mut self, after: u64, at: Wall, change: Transition) {
        let one = KeptTransition { after, at, change };
        match self.first {
            None => self.first = Some(one),
            Some(_) => self.more.push(one),
        }
    }
}

/// Which transitions to return.
#[derive(Debug, Clone, Copy)]
pub struct TransitionQuery {
    /// Those after this position.
    pub place: u64,
    /// Those that did not happen before this event.
    pub after: u64,
    /// Of this sandbox only.
    pub sandbox: Option<SandboxId>,
    /// Of this session only.
    pub session: Option<SessionId>,
    /// So many of them at most.
    pub limit: usize,
}

/// Transitions that were found.
#[derive(Debug, Default)]
pub struct TransitionPage {
    /// With their positions. The number of each is that of the last event before it.
    pub changes: VecDeque<(u64, StoredEvent)>,
    /// The position of the last transition that was examined.
    pub place: u64,
    /// Whether there are none after them.
    pub is_all: bool,
}

impl TransitionPage {
    /// The number of the last event before one of the transitions that were left out; none if none
    /// was.
    pub fn cut_after(&self) -> Option<u64> {
        let (_, last) = self.changes.back().filter(|_| !self.is_all)?;
        Some(last.number)
    }
}

/// Waits for transitions.
pub struct TransitionWatch {
    last: watch::Receiver<u64>,
}

impl TransitionWatch {
    /// The position of the last transition.
    pub fn last(&self) -> u64 {
        *self.last.borrow()
    }

    /// Waits until there are transitions after this position; false if there will never be any.
    pub async fn wait_past(&mut self, place: u64) -> bool {
        self.last.wait_for(|last| *last > place).await.is_ok()
    }
}

impl Default for Transitions {
    fn default() -> Self {
        Self { ring: Mutex::default(), last: watch::Sender::new(0) }
    }
}

impl Transitions {
    fn ring(&self) -> MutexGuard<'_, Ring> {
        self.ring.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A decision is committed: shows its transitions.
    pub(crate) fn show(&self, changed: NewTransitions) {
        let Some(first) = changed.first else { return };
        let mut ring = self.ring();
        ring.add(first);
        for one in changed.more {
            ring.add(one);
        }
        let last = ring.last;
        drop(ring);
        self.last.send_replace(last);
    }

    fn find(&self, key: Option<KeyId>, query: &TransitionQuery) -> TransitionPage {
        let ring = self.ring();
        let wanted = |one: &KeptTransition| {
            one.after >= query.after
                && key.is_none_or(|key| one.change.tenant == key)
                && query.sandbox.is_none_or(|sandbox| one.change.sandbox == sandbox)
                && query.session.is_none_or(|session| one.change.session == Some(session))
        };
        let (mut changes, mut place) = (VecDeque::new(), query.place);
        for (at, one) in ring.after(query.place) {
            if changes.len() == query.limit {
                return TransitionPage { changes, place, is_all: false };
            }
            place = at;
            if wanted(one) {
                changes.push_back((at, one.into()));
            }
        }
        TransitionPage { changes, place: ring.last, is_all: true }
    }
}

impl Ring {
    fn add(&mut self, one: KeptTransition) {
        if self.changes.len() >= KEPT_MAX {
            self.changes.pop_front();
        }
        self.changes.push_back(one);
        self.last += 1;
    }

    /// The transitions after this position, with their positions.
    fn after(&self, place: u64) -> impl Iterator<Item = (u64, &KeptTransition)> {
        let forgotten = self.last - self.changes.len() as u64;
        let from = place.saturating_sub(forgotten).min(self.changes.len() as u64);
        (forgotten + from + 1..).zip(self.changes.iter().skip(from as usize))
    }
}

impl From<&KeptTransition> for StoredEvent {
    fn from(one: &KeptTransition) -> Self {
        let KeptTransition { after, at, change } = *one;
        let event = LifecycleEvent::SandboxState {
            session: change.session,
            sandbox_id: change.sandbox,
            generation: change.generation,
            from: change.from,
            to: change.to,
            reason: change.cause.map(model::EndCause::reason),
            cause: change.cause,
            skipped: change.skipped,
        };
        Self { number: after, at, tenant: change.tenant, event }
    }
}

impl Engine {
    /// The latest transitions that the caller may see.
    pub fn recent_transitions(&self, caller: Caller, query: &TransitionQuery) -> TransitionPage {
        let key = match caller.role {
            Role::Admin => None,
            Role::Use | Role::Read => Some(caller.key),
        };
        self.core.transitions.find(key, query)
    }

    /// A way to wait for more of them.
    pub fn watch_transitions(&self) -> TransitionWatch {
        TransitionWatch { last: self.core.transitions.last.subscribe() }
    }

    /// How often sandboxes went from one state to another since the start.
    pub fn transition_counts(&self) -> Vec<(model::SandboxState, model::SandboxState, u64)> {
        self.core.read(kernel::Kernel::transition_counts)
    }
}

#[cfg(test)]
mod tests {
    use model::{Generation, SandboxState};

    use super::*;

    const ALL: TransitionQuery =
        TransitionQuery { place: 0, after: 0, sandbox: None, session: None, limit: usize::MAX };

    fn change(sandbox: u128, session: Option<u128>, tenant: u128) -> Transition {
        Transition {
            tenant: KeyId::from_u128(tenant),
            session: session.map(SessionId::from_u128),
            sandbox: SandboxId::from_u128(sandbox),
            generation: Generation::FIRST,
            from: SandboxState::Waiting,
            to: SandboxState::Running,
            cause: None,
            skipped: 0,
        }
    }

    fn show(states: &Transitions, after: u64, changes: &[Transition]) {
        let mut changed = NewTransitions::default();
        for one in changes {
            changed.add(after, Wall(1), *one);
        }
        states.show(changed);
    }

    fn places(states: &Transitions, key: Option<u128>, query: TransitionQuery) -> Vec<u64> {
        let found = states.find(key.map(KeyId::from_u128), &query);
        found.changes.into_iter().map(|(place, _)| place).collect()
    }

    #[test]
    fn transitions_are_found_by_their_key_and_by_the_query() {
        let states = Transitions::default();
        assert_eq!(places(&states, None, ALL), [0_u64; 0]);
        show(&states, 3, &[change(1, None, 7), change(2, Some(5), 8)]);
        show(&states, 4, &[change(1, None, 7)]);
        assert_eq!(places(&states, None, ALL), [1, 2, 3]);
        assert_eq!(places(&states, Some(7), ALL), [1, 3]);
        let of = TransitionQuery { sandbox: Some(SandboxId::from_u128(2)), ..ALL };
        assert_eq!((places(&states, None, of), places(&states, Some(7), of)), (vec![2], vec![]));
        let of = TransitionQuery { session: Some(SessionId::from_u128(5)), ..ALL };
        assert_eq!(places(&states, None, of), [2]);
        assert_eq!(places(&states, None, TransitionQuery { after: 4, ..ALL }), [3]);
        assert_eq!(places(&states, None, TransitionQuery { place: 2, ..ALL }), [3]);
        assert_eq!(places(&states, None, TransitionQuery { place: 3, ..ALL }), [0_u64; 0]);
        assert_eq!(places(&states, None, TransitionQuery { place: 9, ..ALL }), [0_u64; 0]);
        assert_eq!(states.find(None, &TransitionQuery { place: 3, ..ALL }).place, 3);
    }

    #[test]
    fn transitions_that_are_oldest_are_dropped_and_positions_go_on() {
        let states = Transitions::default();
        let all = KEPT_MAX as u64 + 10;
        for _ in 0..all {
            show(&states, 0, &[change(1, None, 7)]);
        }
        let found = places(&states, None, ALL);
        assert_eq!((found.len(), found[0]), (KEPT_MAX, 11));
        assert_eq!(found.last(), Some(&all));
        let query = |place| TransitionQuery { place, ..ALL };
        assert_eq!(places(&states, None, query(5))[0], 11, "those between are dropped");
        assert_eq!(places(&states, None, query(all - 2)), [all - 1, all]);
    }

    #[test]
    fn transitions_come_in_pages_and_none_is_left_out() {
        let states = Transitions::default();
        for after in 0..10 {
            show(&states, after, &[change(1, None, 7), change(2, None, 8)]);
        }
        let (mut query, mut found) = (TransitionQuery { limit: 3, ..ALL }, Vec::new());
        loop {
            let page = states.find(Some(KeyId::from_u128(7)), &query);
            assert!(page.changes.len() <= 3);
            let last = page.changes.back().map(|(_, change)| change.number);
            assert_eq!(page.cut_after(), last.filter(|_| !page.is_all));
            found.extend(page.changes.iter().map(|(place, _)| *place));
            query.place = page.place;
            if page.is_all {
                break;
            }
        }
        assert_eq!(found, [1, 3, 5, 7, 9, 11, 13, 15, 17, 19]);
    }
}

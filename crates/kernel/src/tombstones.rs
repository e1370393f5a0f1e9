//! What the kernel remembers of ended sandboxes, leases and sessions, so that it can answer at once
//! why they ended. The memory is bounded; the store remembers longer.

use std::collections::VecDeque;

use model::why::Ended;
use model::{EndCause, KeyId, LeaseId, SandboxId, SessionId};

use crate::index::IdIndex;

/// The tombstones.
#[derive(Debug)]
pub(crate) struct Tombstones {
    limit: usize,
    sandboxes: VecDeque<Ended>,
    /// The number of a tombstone, counted from the first one ever.
    index: IdIndex<u64>,
    forgotten: u64,
    leases: VecDeque<LeaseId>,
    lease_ends: IdIndex<LeaseTombstone>,
    sessions: VecDeque<SessionId>,
    session_index: IdIndex<SessionTombstone>,
}

/// The tombstone of a lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct LeaseTombstone {
    pub(crate) cause: EndCause,
    pub(crate) tenant: KeyId,
}

/// The tombstone of a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct SessionTombstone {
    pub(crate) tenant: KeyId,
    /// Its deadline ended it.
    pub(crate) at_deadline: bool,
}

impl Tombstones {
    pub(crate) fn new(limit: usize) -> Self {
        Self {
            limit,
            sandboxes: VecDeque::new(),
            index: IdIndex::default(),
            forgotten: 0,
            leases: VecDeque::new(),
            lease_ends: IdIndex::default(),
            sessions: VecDeque::new(),
            session_index: IdIndex::default(),
        }
    }

    pub(crate) fn remember_sandbox(&mut self, ended: &Ended) {
        if self.limit == 0 {
            return;
        }
        if self.sandboxes.len() == self.limit
            && let Some(oldest) = self.sandboxes.pop_front()
        {
            // The same sandbox may have a later tombstone, of a later generation.
            if self.index.get(oldest.sandbox.as_u128()) == Some(self.forgotten) {
                self.index.remove(oldest.sandbox.as_u128());
            }
            self.forgotten += 1;
        }
        let number = self.forgotten + self.sandboxes.len() as u64;
        self.index.insert(ended.sandbox.as_u128(), number);
        self.sandboxes.push_back(ended.clone());
    }

    pub(crate) fn of_sandbox(&self, sandbox: SandboxId) -> Option<&Ended> {
        let number = self.index.get(sandbox.as_u128())?;
        self.sandboxes.get((number - self.forgotten) as usize)
    }

    pub(crate) fn remember_lease(&mut self, lease: LeaseId, end: LeaseTombstone) {
        if self.limit == 0 {
            return;
        }
        // The first cause counts, not what happened to the sandbox later.
        if self.lease_ends.contains(lease.as_u128()) {
            return;
        }
        self.lease_ends.insert(lease.as_u128(), end);
        if self.leases.len() == self.limit
            && let Some(oldest) = self.leases.pop_front()
        {
            self.lease_ends.remove(oldest.as_u128());
        }
        self.leases.push_back(lease);
    }

    pub(crate) fn remember_session(&mut self, session: SessionId, end: SessionTombstone) {
        if self.limit == 0 || self.session_index.insert(session.as_u128(), end).is_some() {
            return;
        }
        if self.sessions.len() == self.limit
            && let Some(oldest) = self.sessions.pop_front()
        {
            self.session_index.remove(oldest.as_u128());
        }
        self.sessions.push_back(session);
    }

    pub(crate) fn of_session(&self, session: SessionId) -> Option<SessionTombstone> {
        self.session_index.get(session.as_u128())
    }

    pub(crate) fn of_lease(&self, lease: LeaseId) -> Option<LeaseTombstone> {
        self.lease_ends.get(lease.as_u128())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::{Generation, TemplateName, Wall};

    const CRASH: LeaseTombstone =
        LeaseTombstone { cause: EndCause::Crash, tenant: KeyId::from_u128(7) };

    fn ended(id: u128, generation: u64) -> Ended {
        Ended {
            sandbox: SandboxId::from_u128(id),
            generation: Generation(generation),
            template: TemplateName::new("t").unwrap(),
            lease: None,
            lease_end: None,
            session: None,
            tenant: KeyId::NIL,
            cause: EndCause::Idle,
            detail: None,
            eviction: None,
            created_at: Wall(0),
            ended_at: Wall(0),
        }
    }

    #[test]
    fn oldest_tombstones_are_forgotten_first() {
        let mut tombstones = Tombstones::new(2);
        for id in 1..=3 {
            tombstones.remember_sandbox(&ended(id, 1));
            tombstones.remember_lease(LeaseId::from_u128(id), CRASH);
        }
        let known =
            |id| tombstones.of_sandbox(SandboxId::from_u128(id)).map(|e| e.sandbox.as_u128());
        assert_eq!([known(1), known(2), known(3)], [None, Some(2), Some(3)]);
        assert_eq!(tombstones.of_lease(LeaseId::from_u128(1)), None);
        assert_eq!(tombstones.of_lease(LeaseId::from_u128(3)), Some(CRASH));
    }

    #[test]
    fn a_sandbox_that_ended_twice_is_remembered_by_its_last_end() {
        let mut tombstones = Tombstones::new(2);
        tombstones.remember_sandbox(&ended(1, 1));
        tombstones.remember_sandbox(&ended(1, 2));
        tombstones.remember_sandbox(&ended(2, 1));
        let last = tombstones.of_sandbox(SandboxId::from_u128(1)).map(|e| e.generation);
        assert_eq!(last, Some(Generation(2)));
    }

    #[test]
    fn tombstones_with_a_limit_of_zero_stay_empty() {
        let mut tombstones = Tombstones::new(0);
        tombstones.remember_sandbox(&ended(1, 1));
        tombstones.remember_lease(LeaseId::from_u128(1), CRASH);
        assert!(tombstones.of_sandbox(SandboxId::from_u128(1)).is_none());
        assert_eq!(tombstones.of_lease(LeaseId::from_u128(1)), None);
    }
}

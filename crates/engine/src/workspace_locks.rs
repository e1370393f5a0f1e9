//! One operation at a time on each workspace on the host, in the order of arrival. If a caller goes
//! away, its operation still ends, or notices and stops, and the next one waits for that: no
//! operation ever sees half of another.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use model::WorkspaceId;
use tokio::sync::OwnedMutexGuard;

/// The locks of all workspaces that are in use.
#[derive(Debug, Clone, Default)]
pub(crate) struct WorkspaceLocks {
    all: Arc<Mutex<BTreeMap<WorkspaceId, Arc<WorkspaceLock>>>>,
}

#[derive(Debug, Default)]
struct WorkspaceLock {
    lock: Arc<tokio::sync::Mutex<()>>,
    /// How many urgent callers wait for the lock.
    urgent: AtomicUsize,
}

/// Whether an operation may have to wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Priority {
    /// It waits.
    Patient,
    /// Operations that can be called off are called off for it.
    Urgent,
}

impl WorkspaceLocks {
    /// Waits for the lock of a workspace, and holds it until the guard is dropped.
    pub(crate) async fn lock(&self, id: WorkspaceId, priority: Priority) -> LockGuard {
        let ticket = self.ticket(id, priority);
        let lock = Arc::clone(&ticket.lock_entry.lock);
        LockGuard { _guard: lock.lock_owned().await, ticket }
    }

    fn ticket(&self, id: WorkspaceId, priority: Priority) -> Ticket {
        let lock_entry = Arc::clone(self.all().entry(id).or_default());
        if priority == Priority::Urgent {
            lock_entry.urgent.fetch_add(1, Ordering::SeqCst);
        }
        Ticket { locks: self.clone(), id, priority, lock_entry }
    }

    fn all(&self) -> MutexGuard<'_, BTreeMap<WorkspaceId, Arc<WorkspaceLock>>> {
        self.all.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A caller that holds or awaits a lock.
struct Ticket {
    locks: WorkspaceLocks,
    id: WorkspaceId,
    priority: Priority,
    lock_entry: Arc<WorkspaceLock>,
}

impl Drop for Ticket {
    fn drop(&mut self) {
        if self.priority == Priority::Urgent {
            self.lock_entry.urgent.fetch_sub(1, Ordering::SeqCst);
        }
        let mut all = self.locks.all();
        // The map has one reference and this ticket another; any further one is a later caller.
        if Arc::strong_count(&self.lock_entry) == 2 {
            all.remove(&self.id);
        }
    }
}

/// The lock of a workspace.
pub(crate) struct LockGuard {
    // Dropped before the ticket.
    _guard: OwnedMutexGuard<()>,
    ticket: Ticket,
}

impl LockGuard {
    /// Whether an urgent caller waits.
    pub(crate) fn is_urgently_wanted(&self) -> bool {
        let own = usize::from(self.ticket.priority == Priority::Urgent);
        self.ticket.lock_entry.urgent.load(Ordering::SeqCst) > own
    }
}

/// Tells work in the background, when it is dropped, that no caller waits for the result.
#[derive(Debug, Default)]
pub(crate) struct CancelOnDrop {
    cancelled: Arc<AtomicBool>,
}

impl CancelOnDrop {
    /// What the work in the background asks.
    pub(crate) fn is_cancelled(&self) -> impl Fn() -> bool + Send + use<> {
        let cancelled = Arc::clone(&self.cancelled);
        move || cancelled.load(Ordering::SeqCst)
    }
}

impl Drop for CancelOnDrop {
    fn drop(&mut self) {
        self.cancelled.store(true, Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn workspace_lock_has_one_holder_and_no_entry_is_left() {
        let locks = WorkspaceLocks::default();
        let id = WorkspaceId::from_u128(1);
        let first = locks.lock(id, Priority::Patient).await;
        assert!(!first.is_urgently_wanted());
        let other = locks.lock(WorkspaceId::from_u128(2), Priority::Urgent).await;
        let waiting = tokio::spawn({
            let locks = locks.clone();
            async move { drop(locks.lock(id, Priority::Urgent).await) }
        });
        while !first.is_urgently_wanted() {
            tokio::task::yield_now().await;
        }
        assert!(!waiting.is_finished() && !other.is_urgently_wanted());
        drop((first, other));
        waiting.await.unwrap();
        // A caller that stops waiting leaves no entry either.
        let held = locks.lock(id, Priority::Patient).await;
        let cancelled = locks.lock(id, Priority::Urgent);
        tokio::select! {
            biased;
            _ = cancelled => unreachable!("the lock is held"),
            () = tokio::task::yield_now() => {}
        }
        assert!(!held.is_urgently_wanted());
        drop(held);
        assert!(locks.all().is_empty());
    }
}

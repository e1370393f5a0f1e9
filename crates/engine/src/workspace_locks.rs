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
pub(crate) struct Works {
    all: Arc<Mutex<BTreeMap<WorkspaceId, Arc<Work>>>>,
}

#[derive(Debug, Default)]
struct Work {
    lock: Arc<tokio::sync::Mutex<()>>,
    /// How many urgent callers wait for the lock.
    wanted: AtomicUsize,
}

/// Whether an operation may have to wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Haste {
    /// It waits.
    Patient,
    /// Operations that can be called off are called off for it.
    Urgent,
}

impl Works {
    /// Waits for the lock of a workspace, and holds it until the guard is dropped.
    pub(crate) async fn enter(&self, id: WorkspaceId, haste: Haste) -> Entered {
        let visit = self.visit(id, haste);
        let lock = Arc::clone(&visit.work.lock);
        Entered { _guard: lock.lock_owned().await, visit }
    }

    fn visit(&self, id: WorkspaceId, haste: Haste) -> Visit {
        let work = Arc::clone(self.all().entry(id).or_default());
        if haste == Haste::Urgent {
            work.wanted.fetch_add(1, Ordering::SeqCst);
        }
        Visit { works: self.clone(), id, haste, work }
    }

    fn all(&self) -> MutexGuard<'_, BTreeMap<WorkspaceId, Arc<Work>>> {
        self.all.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A caller that holds or awaits a lock.
struct Visit {
    works: Works,
    id: WorkspaceId,
    haste: Haste,
    work: Arc<Work>,
}

impl Drop for Visit {
    fn drop(&mut self) {
        if self.haste == Haste::Urgent {
            self.work.wanted.fetch_sub(1, Ordering::SeqCst);
        }
        let mut all = self.works.all();
        // The map has one reference and this ticket another; any further one is a later caller.
        if Arc::strong_count(&self.work) == 2 {
            all.remove(&self.id);
        }
    }
}

/// The lock of a workspace.
pub(crate) struct Entered {
    // Dropped before the ticket.
    _guard: OwnedMutexGuard<()>,
    visit: Visit,
}

impl Entered {
    /// Whether an urgent caller waits.
    pub(crate) fn is_wanted(&self) -> bool {
        let own = usize::from(self.visit.haste == Haste::Urgent);
        self.visit.work.wanted.load(Ordering::SeqCst) > own
    }
}

/// Tells work in the background, when it is dropped, that no caller waits for the result.
#[derive(Debug, Default)]
pub(crate) struct Waiting {
    gone: Arc<AtomicBool>,
}

impl Waiting {
    /// What the work in the background asks.
    pub(crate) fn is_gone(&self) -> impl Fn() -> bool + Send + use<> {
        let gone = Arc::clone(&self.gone);
        move || gone.load(Ordering::SeqCst)
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        self.gone.store(true, Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn workspace_lock_has_one_holder_and_no_entry_is_left() {
        let works = Works::default();
        let id = WorkspaceId::from_u128(1);
        let first = works.enter(id, Haste::Patient).await;
        assert!(!first.is_wanted());
        let other = works.enter(WorkspaceId::from_u128(2), Haste::Urgent).await;
        let waiting = tokio::spawn({
            let works = works.clone();
            async move { drop(works.enter(id, Haste::Urgent).await) }
        });
        while !first.is_wanted() {
            tokio::task::yield_now().await;
        }
        assert!(!waiting.is_finished() && !other.is_wanted());
        drop((first, other));
        waiting.await.unwrap();
        // A caller that stops waiting leaves no entry either.
        let held = works.enter(id, Haste::Patient).await;
        let gone = works.enter(id, Haste::Urgent);
        tokio::select! {
            biased;
            _ = gone => unreachable!("it is held"),
            () = tokio::task::yield_now() => {}
        }
        assert!(!held.is_wanted());
        drop(held);
        assert!(works.all().is_empty());
    }
}

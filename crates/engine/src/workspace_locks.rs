//! Who works on which workspace on the host: one at a time on each, in the order of arrival.
//! Whoever goes away leaves what was begun to come to its end, or to notice and stop; the next
//! waits for that, so nothing is ever done to half of something.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use model::WorkspaceId;
use tokio::sync::OwnedMutexGuard;

/// Who works on what.
#[derive(Debug, Clone, Default)]
pub(crate) struct Works {
    all: Arc<Mutex<BTreeMap<WorkspaceId, Arc<Work>>>>,
}

#[derive(Debug, Default)]
struct Work {
    lock: Arc<tokio::sync::Mutex<()>>,
    /// How many wait for it who come first.
    wanted: AtomicUsize,
}

/// Whether whoever comes now may have to wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Haste {
    /// It may.
    Patient,
    /// What can be called off is called off for it.
    Urgent,
}

impl Works {
    /// Waits until nobody works on a workspace. Nobody else does until what this gives is dropped.
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

/// Somebody who works on a workspace, or waits to.
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
        // The list has one, and we have one; whoever else has one came in time.
        if Arc::strong_count(&self.work) == 2 {
            all.remove(&self.id);
        }
    }
}

/// Nobody else works on a workspace.
pub(crate) struct Entered {
    // Dropped before the visit is over.
    _guard: OwnedMutexGuard<()>,
    visit: Visit,
}

impl Entered {
    /// Somebody waits who comes first.
    pub(crate) fn is_wanted(&self) -> bool {
        let own = usize::from(self.visit.haste == Haste::Urgent);
        self.visit.work.wanted.load(Ordering::SeqCst) > own
    }
}

/// Tells work that goes on by itself that nobody waits for it any more.
#[derive(Debug, Default)]
pub(crate) struct Waiting {
    gone: Arc<AtomicBool>,
}

impl Waiting {
    /// What the work asks.
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
    async fn one_at_a_time_and_nothing_is_left() {
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
        // Who goes away while waiting is forgotten, too.
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

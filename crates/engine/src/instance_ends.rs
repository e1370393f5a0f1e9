//! Why an instance ended, for the uses and turns in it. (The kernel ends processes itself.) The
//! kernel reports once per user of an instance that it has ended, and why. Uses and turns wait for
//! that report here and only here, at most for [`REASON_PATIENCE`]. This module never decides that
//! an instance has ended, and keeps nothing about an instance without uses and turns.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use kernel::interrupted_use_refusal;
use model::{EndCause, InstanceId, Refusal};
use tokio::sync::Notify;
use tokio::time::timeout;

/// How long the kernel may take to say why a sandbox that no longer answers has ended.
pub(crate) const REASON_PATIENCE: Duration = Duration::from_secs(1);

/// The instances in which there are uses or turns.
#[derive(Clone, Default)]
pub(crate) struct InstanceEnds {
    watched: Arc<Mutex<BTreeMap<InstanceId, Watched>>>,
}

/// One watched instance.
#[derive(Default)]
struct Watched {
    tenure: Arc<Tenure>,
    /// How many watches of this tenure exist.
    watches: usize,
}

/// The time in which one user has an instance.
#[derive(Default)]
struct Tenure {
    cause: OnceLock<EndCause>,
    reported: Notify,
}

impl InstanceEnds {
    fn watched(&self) -> MutexGuard<'_, BTreeMap<InstanceId, Watched>> {
        self.watched.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A use or turn is in an instance from now on. Call it in the order of the decisions, so that
    /// the next report about the instance is about this user.
    pub(crate) fn watch(&self, instance: InstanceId) -> EndWatch {
        let mut all = self.watched();
        let watched = all.entry(instance).or_default();
        watched.watches += 1;
        EndWatch { ends: self.clone(), instance, tenure: Arc::clone(&watched.tenure) }
    }

    /// The kernel reports that an instance has ended for its user.
    pub(crate) fn report(&self, instance: InstanceId, cause: EndCause) {
        let Some(Watched { tenure, .. }) = self.watched().remove(&instance) else { return };
        // A tenure ends once: the next watch begins another.
        let _ = tenure.cause.set(cause);
        tenure.reported.notify_waiters();
    }

    /// Whether every instance is empty.
    #[cfg(test)]
    pub(crate) fn is_empty(&self) -> bool {
        self.watched().is_empty()
    }
}

/// Lets a use or turn learn why its instance ended. Dropped when the use or turn has ended.
pub(crate) struct EndWatch {
    ends: InstanceEnds,
    instance: InstanceId,
    tenure: Arc<Tenure>,
}

impl EndWatch {
    /// Why the instance ended, if the kernel has reported it.
    fn cause(&self) -> Option<EndCause> {
        self.tenure.cause.get().copied()
    }

    /// The refusal for a caller that was using the sandbox, if it has ended.
    pub(crate) fn refusal(&self) -> Option<Refusal> {
        self.cause().map(interrupted_use_refusal)
    }

    /// Waits for the end of the instance, however long that takes, and returns the refusal.
    pub(crate) async fn ended(&self) -> Refusal {
        interrupted_use_refusal(self.wait_for_cause().await)
    }

    async fn wait_for_cause(&self) -> EndCause {
        loop {
            let reported = self.tenure.reported.notified();
            tokio::pin!(reported);
            reported.as_mut().enable();
            if let Some(cause) = self.cause() {
                return cause;
            }
            reported.await;
        }
    }

    /// Why the sandbox, which seems to be gone, has ended, if the kernel reports it in time.
    pub(crate) async fn reason(&self) -> Option<Refusal> {
        timeout(REASON_PATIENCE, self.ended()).await.ok()
    }
}

impl Drop for EndWatch {
    fn drop(&mut self) {
        let mut all = self.ends.watched();
        // After the end the instance is not in the map, or another tenure is.
        if let Some(known) = all.get_mut(&self.instance)
            && Arc::ptr_eq(&known.tenure, &self.tenure)
        {
            known.watches -= 1;
            if known.watches == 0 {
                all.remove(&self.instance);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const INSTANCE: InstanceId = InstanceId::from_u128(7);

    #[tokio::test(start_paused = true)]
    async fn instance_end_is_reported_to_every_watch_and_nothing_is_left() {
        let ends = InstanceEnds::default();
        let watches = [ends.watch(INSTANCE), ends.watch(INSTANCE)];
        let waits = tokio::spawn({
            let watch = ends.watch(INSTANCE);
            async move { watch.reason().await }
        });
        tokio::task::yield_now().await;
        ends.report(INSTANCE, EndCause::Crash);
        assert_eq!(waits.await.unwrap(), Some(interrupted_use_refusal(EndCause::Crash)));
        for watch in &watches {
            assert_eq!(watch.refusal(), Some(interrupted_use_refusal(EndCause::Crash)));
        }
        assert!(ends.is_empty(), "remaining watches keep their cause");
    }

    #[tokio::test(start_paused = true)]
    async fn instance_end_watch_after_the_end_waits_for_the_next_end() {
        let ends = InstanceEnds::default();
        let before = ends.watch(INSTANCE);
        ends.report(INSTANCE, EndCause::Crash);
        let after = ends.watch(INSTANCE);
        drop(before);
        assert!(after.reason().await.is_none(), "no report about the next user arrives in time");
        assert!(!ends.is_empty());
        ends.report(INSTANCE, EndCause::Returned);
        assert_eq!(after.ended().await, interrupted_use_refusal(EndCause::Returned));
        ends.report(INSTANCE, EndCause::Crash);
        assert!(ends.is_empty(), "a report about an unwatched instance is dropped");
    }

    #[test]
    fn instance_end_entry_goes_with_its_last_watch() {
        let ends = InstanceEnds::default();
        let first = ends.watch(INSTANCE);
        let second = ends.watch(INSTANCE);
        drop(first);
        assert!(!ends.is_empty());
        drop(second);
        assert!(ends.is_empty());
    }
}

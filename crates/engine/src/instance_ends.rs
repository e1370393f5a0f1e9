//! Why an instance ended, for the uses and turns in it. (The kernel ends processes itself.) The
//! kernel reports once per user of an instance that it has ended, and why. Uses and turns wait for
//! that report here and only here, at most for [`REASON_PATIENCE`]. This module never decides that
//! an instance has ended, and keeps nothing about an instance without uses and turns.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use kernel::use_broken;
use model::{EndCause, InstanceId, Refusal};
use tokio::sync::Notify;
use tokio::time::timeout;

/// How long the kernel may take to say why a sandbox that no longer answers has ended.
pub(crate) const REASON_PATIENCE: Duration = Duration::from_secs(1);

/// The instances in which there are uses or turns.
#[derive(Clone, Default)]
pub(crate) struct Gone {
    inhabited: Arc<Mutex<BTreeMap<InstanceId, Inhabited>>>,
}

/// One watched instance.
#[derive(Default)]
struct Inhabited {
    tenure: Arc<Tenure>,
    /// How many watches of this tenure exist.
    stays: usize,
}

/// The time in which one user has an instance.
#[derive(Default)]
struct Tenure {
    over: OnceLock<EndCause>,
    told: Notify,
}

impl Gone {
    fn inhabited(&self) -> MutexGuard<'_, BTreeMap<InstanceId, Inhabited>> {
        self.inhabited.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A use or turn is in an instance from now on. Call it in the order of the decisions, so that
    /// the next report about the instance is about this user.
    pub(crate) fn enter(&self, instance: InstanceId) -> Stay {
        let mut all = self.inhabited();
        let inhabited = all.entry(instance).or_default();
        inhabited.stays += 1;
        Stay { gone: self.clone(), instance, tenure: Arc::clone(&inhabited.tenure) }
    }

    /// The kernel reports that an instance has ended for its user.
    pub(crate) fn over(&self, instance: InstanceId, cause: EndCause) {
        let Some(Inhabited { tenure, .. }) = self.inhabited().remove(&instance) else { return };
        // A tenure ends once: the next watch begins another.
        let _ = tenure.over.set(cause);
        tenure.told.notify_waiters();
    }

    /// Whether every instance is empty.
    #[cfg(test)]
    pub(crate) fn is_empty(&self) -> bool {
        self.inhabited().is_empty()
    }
}

/// Lets a use or turn learn why its instance ended. Dropped when the use or turn has ended.
pub(crate) struct Stay {
    gone: Gone,
    instance: InstanceId,
    tenure: Arc<Tenure>,
}

impl Stay {
    /// Why the instance ended, if the kernel has reported it.
    fn cause(&self) -> Option<EndCause> {
        self.tenure.over.get().copied()
    }

    /// The refusal for a caller that was using the sandbox, if it has ended.
    pub(crate) fn refusal(&self) -> Option<Refusal> {
        self.cause().map(use_broken)
    }

    /// Waits for the end of the instance, however long that takes, and returns the refusal.
    pub(crate) async fn over(&self) -> Refusal {
        use_broken(self.cause_in_the_end().await)
    }

    async fn cause_in_the_end(&self) -> EndCause {
        loop {
            let told = self.tenure.told.notified();
            tokio::pin!(told);
            told.as_mut().enable();
            if let Some(cause) = self.cause() {
                return cause;
            }
            told.await;
        }
    }

    /// Why the sandbox, which seems to be gone, has ended, if the kernel reports it in time.
    pub(crate) async fn reason(&self) -> Option<Refusal> {
        timeout(REASON_PATIENCE, self.over()).await.ok()
    }
}

impl Drop for Stay {
    fn drop(&mut self) {
        let mut all = self.gone.inhabited();
        // After the end the instance is not in the map, or another tenure is.
        if let Some(known) = all.get_mut(&self.instance)
            && Arc::ptr_eq(&known.tenure, &self.tenure)
        {
            known.stays -= 1;
            if known.stays == 0 {
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
        let gone = Gone::default();
        let stays = [gone.enter(INSTANCE), gone.enter(INSTANCE)];
        let waits = tokio::spawn({
            let stay = gone.enter(INSTANCE);
            async move { stay.reason().await }
        });
        tokio::task::yield_now().await;
        gone.over(INSTANCE, EndCause::Crash);
        assert_eq!(waits.await.unwrap(), Some(use_broken(EndCause::Crash)));
        for stay in &stays {
            assert_eq!(stay.refusal(), Some(use_broken(EndCause::Crash)));
        }
        assert!(gone.is_empty(), "remaining watches keep their cause");
    }

    #[tokio::test(start_paused = true)]
    async fn instance_end_watch_after_the_end_waits_for_the_next_end() {
        let gone = Gone::default();
        let before = gone.enter(INSTANCE);
        gone.over(INSTANCE, EndCause::Crash);
        let after = gone.enter(INSTANCE);
        drop(before);
        assert!(after.reason().await.is_none(), "no report about the next user arrives in time");
        assert!(!gone.is_empty());
        gone.over(INSTANCE, EndCause::Returned);
        assert_eq!(after.over().await, use_broken(EndCause::Returned));
        gone.over(INSTANCE, EndCause::Crash);
        assert!(gone.is_empty(), "a report about an unwatched instance is dropped");
    }

    #[test]
    fn instance_end_entry_goes_with_its_last_watch() {
        let gone = Gone::default();
        let first = gone.enter(INSTANCE);
        let second = gone.enter(INSTANCE);
        drop(first);
        assert!(!gone.is_empty());
        drop(second);
        assert!(gone.is_empty());
    }
}

//! Why a sandbox is over, for the uses and turns that are in it. (The kernel ends processes itself.) The kernel says once to
//! each user of an instance that it is over and why. They wait for that word here, and only here,
//! and [`REASON_PATIENCE`] bounds how long. This module never decides that something is over, and
//! keeps nothing of an instance that is empty.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use kernel::use_broken;
use model::{EndCause, InstanceId, Refusal};
use tokio::sync::Notify;
use tokio::time::timeout;

/// How long the kernel may take to say why a sandbox is gone that does not answer any more.
pub(crate) const REASON_PATIENCE: Duration = Duration::from_secs(1);

/// The instances in which there are uses or turns.
#[derive(Clone, Default)]
pub(crate) struct Gone {
    inhabited: Arc<Mutex<BTreeMap<InstanceId, Inhabited>>>,
}

/// One of them.
#[derive(Default)]
struct Inhabited {
    tenure: Arc<Tenure>,
    /// How many stays there are of this tenure.
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

    /// A use or turn is in an instance from now on. Call it in the order of the decisions,
    /// so that the next word about the instance is about this user.
    pub(crate) fn enter(&self, instance: InstanceId) -> Stay {
        let mut all = self.inhabited();
        let inhabited = all.entry(instance).or_default();
        inhabited.stays += 1;
        Stay { gone: self.clone(), instance, tenure: Arc::clone(&inhabited.tenure) }
    }

    /// The kernel says that an instance is over for those who are in it.
    pub(crate) fn over(&self, instance: InstanceId, cause: EndCause) {
        let Some(Inhabited { tenure, .. }) = self.inhabited().remove(&instance) else { return };
        // A tenure is over once: the next to enter begins another.
        let _ = tenure.over.set(cause);
        tenure.told.notify_waiters();
    }

    /// Whether every instance is empty.
    #[cfg(test)]
    pub(crate) fn is_empty(&self) -> bool {
        self.inhabited().is_empty()
    }
}

/// A use or turn that is in an instance, until this is dropped.
pub(crate) struct Stay {
    gone: Gone,
    instance: InstanceId,
    tenure: Arc<Tenure>,
}

impl Stay {
    /// Why it is over, if that is said already.
    fn cause(&self) -> Option<EndCause> {
        self.tenure.over.get().copied()
    }

    /// The refusal of a caller that was using the sandbox, if it is over.
    pub(crate) fn refusal(&self) -> Option<Refusal> {
        self.cause().map(use_broken)
    }

    /// Waits until it is over, however long that takes, and says with which refusal.
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

    /// Why the sandbox is gone, which seems to be so: what the kernel says about it in time.
    pub(crate) async fn reason(&self) -> Option<Refusal> {
        timeout(REASON_PATIENCE, self.over()).await.ok()
    }
}

impl Drop for Stay {
    fn drop(&mut self) {
        let mut all = self.gone.inhabited();
        // One that is over is not in the map any more, or another one is there.
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
    async fn all_that_are_in_an_instance_hear_why_it_is_over_and_nothing_is_left() {
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
        assert!(gone.is_empty(), "stays that are left have what they need");
    }

    #[tokio::test(start_paused = true)]
    async fn one_that_enters_after_the_end_waits_for_the_next_one() {
        let gone = Gone::default();
        let before = gone.enter(INSTANCE);
        gone.over(INSTANCE, EndCause::Crash);
        let after = gone.enter(INSTANCE);
        drop(before);
        assert!(after.reason().await.is_none(), "nothing is said about the next user in time");
        assert!(!gone.is_empty());
        gone.over(INSTANCE, EndCause::Returned);
        assert_eq!(after.over().await, use_broken(EndCause::Returned));
        gone.over(INSTANCE, EndCause::Crash);
        assert!(gone.is_empty(), "a word about an empty instance is of no use");
    }

    #[test]
    fn the_last_one_to_leave_takes_the_entry_along() {
        let gone = Gone::default();
        let first = gone.enter(INSTANCE);
        let second = gone.enter(INSTANCE);
        drop(first);
        assert!(!gone.is_empty());
        drop(second);
        assert!(gone.is_empty());
    }
}

//! What is remembered of each container between its making and its removal: only what the engine
//! cannot be asked for in time. And which of them were found dead, until somebody takes notice.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use model::InstanceId;
use tokio::sync::{Notify, watch};
use tokio::time::Instant;

use super::first_process::FirstProcess;

/// How long what the engine told of memory counts.
const TOLD_COUNTS: Duration = Duration::from_secs(5);

/// One container.
#[derive(Debug)]
pub(super) struct Instance {
    /// Whether the engine is being asked to make it, and may yet do so.
    in_flight: watch::Sender<bool>,
    /// The engine was asked to make it, and was not seen to have removed it since.
    may_exist: AtomicBool,
    /// It was made, and runs as far as is known.
    runs: AtomicBool,
    /// When the engine last told that its memory ran out.
    told_at: Mutex<Option<Instant>>,
    first_process: OnceLock<FirstProcess>,
}

impl Instance {
    fn new() -> Self {
        Self {
            in_flight: watch::Sender::new(false),
            may_exist: AtomicBool::new(false),
            runs: AtomicBool::new(false),
            told_at: Mutex::default(),
            first_process: OnceLock::new(),
        }
    }

    /// The engine is asked to make it, until this is dropped.
    pub(super) fn asked(self: &Arc<Self>) -> InFlight {
        self.may_exist.store(true, Ordering::Relaxed);
        self.in_flight.send_replace(true);
        InFlight(Arc::clone(self))
    }

    /// Waits until the engine is not being asked to make it.
    pub(super) async fn landed(&self) {
        let _ = self.in_flight.subscribe().wait_for(|in_flight| !in_flight).await;
    }

    /// Whether the engine may have it.
    pub(super) fn may_exist(&self) -> bool {
        self.may_exist.load(Ordering::Relaxed)
    }

    /// The engine has it no more.
    pub(super) fn is_removed(&self) {
        self.may_exist.store(false, Ordering::Relaxed);
    }

    /// It runs from now on.
    pub(super) fn runs(&self, first_process: Option<FirstProcess>) {
        if let Some(process) = first_process {
            // There is one first process.
            let _ = self.first_process.set(process);
        }
        self.runs.store(true, Ordering::Relaxed);
    }

    fn told_at(&self) -> MutexGuard<'_, Option<Instant>> {
        self.told_at.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether memory ran out since this was last asked.
    pub(super) fn memory_ran_out(&self) -> bool {
        // What the kernel counts is exact and at once; the engine tells the same a little later.
        let counted = self.first_process.get().and_then(FirstProcess::memory_ran_out);
        counted.unwrap_or_else(|| {
            // What it told long ago was about something else.
            self.told_at().take().is_some_and(|at| at.elapsed() < TOLD_COUNTS)
        })
    }

    /// Whether the end of its first process, of which the engine says that memory ran out some time,
    /// was because of that.
    pub(super) fn ended_for_want_of_memory(&self) -> bool {
        let told = *self.told_at();
        let earlier = self.first_process.get().is_some_and(FirstProcess::ran_out_before);
        told.map_or(!earlier, |at| at.elapsed() < TOLD_COUNTS)
    }
}

/// The engine is asked to make a container.
pub(super) struct InFlight(Arc<Instance>);

impl Drop for InFlight {
    fn drop(&mut self) {
        self.0.in_flight.send_replace(false);
    }
}

/// All containers of this run.
#[derive(Debug, Default)]
pub(super) struct Instances {
    known: Mutex<BTreeMap<InstanceId, Arc<Instance>>>,
    fallen: Mutex<BTreeSet<InstanceId>>,
    fell: Notify,
}

impl Instances {
    fn known(&self) -> MutexGuard<'_, BTreeMap<InstanceId, Arc<Instance>>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn fallen_ones(&self) -> MutexGuard<'_, BTreeSet<InstanceId>> {
        self.fallen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// One is begun; none if there is one of this id.
    pub(super) fn begin(&self, id: InstanceId) -> Option<Arc<Instance>> {
        let mut known = self.known();
        if known.contains_key(&id) {
            return None;
        }
        let instance = Arc::new(Instance::new());
        known.insert(id, Arc::clone(&instance));
        Some(instance)
    }

    pub(super) fn get(&self, id: InstanceId) -> Option<Arc<Instance>> {
        self.known().get(&id).cloned()
    }

    pub(super) fn is_known(&self, id: InstanceId) -> bool {
        self.known().contains_key(&id)
    }

    /// It is removed.
    pub(super) fn forget(&self, id: InstanceId) {
        self.known().remove(&id);
        self.fallen_ones().remove(&id);
    }

    /// Its memory ran out, the engine says.
    pub(super) fn ran_out(&self, id: InstanceId) {
        if let Some(instance) = self.get(id) {
            *instance.told_at() = Some(Instant::now());
        }
    }

    /// It was found dead or missing. Told once, and only of what was alive.
    pub(super) fn fell(&self, id: InstanceId) {
        let ran = self.get(id).is_some_and(|one| one.runs.swap(false, Ordering::Relaxed));
        if ran {
            self.fallen_ones().insert(id);
            self.fell.notify_one();
        }
    }

    /// Those that run, as far as is known.
    pub(super) fn running(&self) -> Vec<InstanceId> {
        let known = self.known();
        let running = known.iter().filter(|(_, one)| one.runs.load(Ordering::Relaxed));
        running.map(|(id, _)| *id).collect()
    }

    /// The next that was found dead.
    pub(super) async fn next_fallen(&self) -> InstanceId {
        loop {
            let fell = self.fell.notified();
            if let Some(id) = self.fallen_ones().pop_first() {
                return id;
            }
            fell.await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(number: u128) -> InstanceId {
        InstanceId::from_u128(number)
    }

    #[tokio::test]
    async fn each_fall_is_told_once_and_only_of_what_ran() {
        let all = Instances::default();
        let one = all.begin(id(1)).unwrap();
        assert!(all.begin(id(1)).is_none(), "an id is one container's");
        all.fell(id(1));
        all.fell(id(9));
        one.runs(None);
        assert_eq!(all.running(), [id(1)]);
        all.fell(id(1));
        all.fell(id(1));
        assert_eq!(all.next_fallen().await, id(1));
        assert!(all.fallen_ones().is_empty());
        assert!(all.running().is_empty());
        all.forget(id(1));
        assert!(!all.is_known(id(1)));
    }

    #[tokio::test]
    async fn who_waits_for_a_fall_is_woken() {
        let all = Arc::new(Instances::default());
        all.begin(id(1)).unwrap().runs(None);
        let waiting = Arc::clone(&all);
        let told = tokio::spawn(async move { waiting.next_fallen().await });
        tokio::task::yield_now().await;
        all.fell(id(1));
        assert_eq!(told.await.unwrap(), id(1));
    }

    #[tokio::test]
    async fn what_is_in_flight_is_waited_for() {
        let all = Instances::default();
        let one = all.begin(id(1)).unwrap();
        one.landed().await;
        assert!(!one.may_exist());
        let asked = one.asked();
        assert!(one.may_exist());
        let landed = tokio::spawn({
            let one = Arc::clone(&one);
            async move { one.landed().await }
        });
        tokio::task::yield_now().await;
        assert!(!landed.is_finished());
        drop(asked);
        landed.await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn memory_that_ran_out_is_told_once_and_not_of_what_comes_much_later() {
        let all = Instances::default();
        let one = all.begin(id(1)).unwrap();
        all.ran_out(id(2));
        assert!(!one.memory_ran_out());
        all.ran_out(id(1));
        assert!(one.memory_ran_out());
        assert!(!one.memory_ran_out());
        all.ran_out(id(1));
        assert!(one.ended_for_want_of_memory());
        tokio::time::sleep(TOLD_COUNTS).await;
        assert!(!one.ended_for_want_of_memory());
        assert!(!one.memory_ran_out());
    }
}

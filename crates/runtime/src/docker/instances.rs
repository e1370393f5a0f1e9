//! The containers of this run between launch and removal: only what the engine cannot report in
//! time. Also the containers that were found dead, until the runtime takes note of them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use model::InstanceId;
use tokio::sync::{Notify, watch};
use tokio::time::Instant;

use super::first_process::FirstProcess;

/// How long an out-of-memory report of the engine counts.
const OOM_REPORT_VALID: Duration = Duration::from_secs(5);

/// One container.
#[derive(Debug)]
pub(super) struct Instance {
    /// Whether a create request is in progress, so that the container may yet appear.
    in_flight: watch::Sender<bool>,
    /// A create request was sent, and no removal was confirmed since.
    may_exist: AtomicBool,
    /// It was launched, and runs as far as is known.
    runs: AtomicBool,
    /// When the engine last reported that its memory ran out.
    oom_reported_at: Mutex<Option<Instant>>,
    first_process: OnceLock<FirstProcess>,
}

impl Instance {
    fn new() -> Self {
        Self {
            in_flight: watch::Sender::new(false),
            may_exist: AtomicBool::new(false),
            runs: AtomicBool::new(false),
            oom_reported_at: Mutex::default(),
            first_process: OnceLock::new(),
        }
    }

    /// A create request is in progress until the guard is dropped.
    pub(super) fn begin_creation(self: &Arc<Self>) -> CreationInFlight {
        self.may_exist.store(true, Ordering::Relaxed);
        self.in_flight.send_replace(true);
        CreationInFlight(Arc::clone(self))
    }

    /// Waits until no create request is in progress.
    pub(super) async fn creation_settled(&self) {
        let _ = self.in_flight.subscribe().wait_for(|in_flight| !in_flight).await;
    }

    /// Whether the engine may have it.
    pub(super) fn may_exist(&self) -> bool {
        self.may_exist.load(Ordering::Relaxed)
    }

    /// Its removal is confirmed.
    pub(super) fn mark_removed(&self) {
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

    fn oom_reported_at(&self) -> MutexGuard<'_, Option<Instant>> {
        self.oom_reported_at.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether memory ran out since the last call.
    pub(super) fn memory_ran_out(&self) -> bool {
        // The Linux kernel's counter is exact; the engine reports the same a little later.
        let counted = self.first_process.get().and_then(FirstProcess::memory_ran_out);
        counted.unwrap_or_else(|| {
            // An old report was about something else.
            self.oom_reported_at().take().is_some_and(|at| at.elapsed() < OOM_REPORT_VALID)
        })
    }

    /// The processor time of its container, if it can be seen.
    pub(super) fn cpu_time(&self) -> Option<Duration> {
        self.first_process.get()?.cpu_time()
    }

    /// Whether its first process exited for want of memory, if the engine reports that memory ran
    /// out at some time.
    pub(super) fn ended_for_want_of_memory(&self) -> bool {
        let reported = *self.oom_reported_at();
        let earlier = self.first_process.get().is_some_and(FirstProcess::ran_out_before);
        reported.map_or(!earlier, |at| at.elapsed() < OOM_REPORT_VALID)
    }
}

/// A create request in progress.
pub(super) struct CreationInFlight(Arc<Instance>);

impl Drop for CreationInFlight {
    fn drop(&mut self) {
        self.0.in_flight.send_replace(false);
    }
}

/// All containers of this run.
#[derive(Debug, Default)]
pub(super) struct Instances {
    known: Mutex<BTreeMap<InstanceId, Arc<Instance>>>,
    dead: Mutex<BTreeSet<InstanceId>>,
    died: Notify,
}

impl Instances {
    fn known(&self) -> MutexGuard<'_, BTreeMap<InstanceId, Arc<Instance>>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn dead_ones(&self) -> MutexGuard<'_, BTreeSet<InstanceId>> {
        self.dead.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Registers a container whose launch begins; none if the id is in use.
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

    /// Forgets a removed container.
    pub(super) fn forget(&self, id: InstanceId) {
        self.known().remove(&id);
        self.dead_ones().remove(&id);
    }

    /// The engine reported that its memory ran out.
    pub(super) fn note_out_of_memory(&self, id: InstanceId) {
        if let Some(instance) = self.get(id) {
            *instance.oom_reported_at() = Some(Instant::now());
        }
    }

    /// It was found dead or missing. Reported once, and only for a running one.
    pub(super) fn mark_dead(&self, id: InstanceId) {
        let ran = self.get(id).is_some_and(|one| one.runs.swap(false, Ordering::Relaxed));
        if ran {
            self.dead_ones().insert(id);
            self.died.notify_one();
        }
    }

    /// The containers that run, as far as is known.
    pub(super) fn running(&self) -> Vec<InstanceId> {
        let known = self.known();
        let running = known.iter().filter(|(_, one)| one.runs.load(Ordering::Relaxed));
        running.map(|(id, _)| *id).collect()
    }

    /// The next container that was found dead.
    pub(super) async fn next_dead(&self) -> InstanceId {
        loop {
            let died = self.died.notified();
            if let Some(id) = self.dead_ones().pop_first() {
                return id;
            }
            died.await;
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
    async fn dead_containers_are_reported_once_and_only_if_they_ran() {
        let all = Instances::default();
        let one = all.begin(id(1)).unwrap();
        assert!(all.begin(id(1)).is_none(), "an id is one container's");
        all.mark_dead(id(1));
        all.mark_dead(id(9));
        one.runs(None);
        assert_eq!(all.running(), [id(1)]);
        all.mark_dead(id(1));
        all.mark_dead(id(1));
        assert_eq!(all.next_dead().await, id(1));
        assert!(all.dead_ones().is_empty());
        assert!(all.running().is_empty());
        all.forget(id(1));
        assert!(!all.is_known(id(1)));
    }

    #[tokio::test]
    async fn dead_container_wakes_its_waiter() {
        let all = Arc::new(Instances::default());
        all.begin(id(1)).unwrap().runs(None);
        let waiting = Arc::clone(&all);
        let dead = tokio::spawn(async move { waiting.next_dead().await });
        tokio::task::yield_now().await;
        all.mark_dead(id(1));
        assert_eq!(dead.await.unwrap(), id(1));
    }

    #[tokio::test]
    async fn create_requests_in_progress_are_waited_for() {
        let all = Instances::default();
        let one = all.begin(id(1)).unwrap();
        one.creation_settled().await;
        assert!(!one.may_exist());
        let in_flight = one.begin_creation();
        assert!(one.may_exist());
        let landed = tokio::spawn({
            let one = Arc::clone(&one);
            async move { one.creation_settled().await }
        });
        tokio::task::yield_now().await;
        assert!(!landed.is_finished());
        drop(in_flight);
        landed.await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn out_of_memory_is_reported_once_and_not_much_later() {
        let all = Instances::default();
        let one = all.begin(id(1)).unwrap();
        all.note_out_of_memory(id(2));
        assert!(!one.memory_ran_out());
        all.note_out_of_memory(id(1));
        assert!(one.memory_ran_out());
        assert!(!one.memory_ran_out());
        all.note_out_of_memory(id(1));
        assert!(one.ended_for_want_of_memory());
        tokio::time::sleep(OOM_REPORT_VALID).await;
        assert!(!one.ended_for_want_of_memory());
        assert!(!one.memory_ran_out());
    }
}

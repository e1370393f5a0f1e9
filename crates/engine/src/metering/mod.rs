//! Measures what each key uses, and stores the totals: every few seconds, when a caller asks, and
//! before the server stops. The kernel's meters are exact, so a total lacks at most what happened
//! after the last measurement of a run that was killed. Totals are stored as a whole, never as
//! differences: nothing is counted twice. It must change nothing that it measures.

mod cpu;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use kernel::{Kernel, KeyTime};
use model::{ErrorCode, InstanceId, KeyId, Mono, Refusal, UsageRecord, Wall, WorkspaceId};
use store::StoreError;
use tasks::spawn_blocking;
use tokio::time::{Instant, sleep};

use self::cpu::CpuMeter;
use crate::core::Core;
use crate::{Caller, Engine, boxed, disk_usage};

/// How often everything is measured and stored.
const EVERY: Duration = Duration::from_secs(10);

/// A measurement that is younger answers a request.
const FRESH: Duration = Duration::from_secs(1);

/// How many sleeping workspaces are measured at once, at most.
const SLEEPING_PER_ROUND: usize = 64;

/// What a key has used, and what it stores now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KeyUsage {
    /// The totals since the key exists, as they are stored.
    pub total: UsageRecord,
    /// Bytes of its workspaces and archives when they were last measured.
    pub stored_bytes: u64,
}

/// The meters of a node.
pub(crate) struct Metering {
    /// The totals when this run began.
    before: BTreeMap<KeyId, UsageRecord>,
    cpu: Mutex<CpuMeter>,
    /// Its lock lets one measurement run at a time.
    files: tokio::sync::Mutex<Files>,
    stored: Mutex<Stored>,
}

/// What keys store.
struct Files {
    /// Until when stored bytes are counted.
    until: Mono,
    byte_ms: BTreeMap<KeyId, u128>,
    /// Sizes of sleeping workspaces that the kernel does not know.
    sleeping: BTreeMap<WorkspaceId, u64>,
}

/// The last totals in the store.
#[derive(Default)]
struct Stored {
    at: Option<Instant>,
    totals: BTreeMap<KeyId, UsageRecord>,
    bytes: BTreeMap<KeyId, u64>,
    /// The store does not take totals at present.
    failing: bool,
}

impl Metering {
    /// Goes on from the totals of earlier runs.
    pub(crate) fn new(before: Vec<UsageRecord>, now: Mono) -> Self {
        let before: BTreeMap<_, _> = before.into_iter().map(|one| (one.key, one)).collect();
        let stored = Stored { totals: before.clone(), ..Stored::default() };
        let files = Files { until: now, byte_ms: BTreeMap::new(), sleeping: BTreeMap::new() };
        Self {
            before,
            cpu: Mutex::default(),
            files: tokio::sync::Mutex::new(files),
            stored: Mutex::new(stored),
        }
    }

    fn cpu(&self) -> MutexGuard<'_, CpuMeter> {
        self.cpu.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn stored(&self) -> MutexGuard<'_, Stored> {
        self.stored.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The totals of every key that ever used anything, without `measured_at`.
    fn totals(&self, times: &[KeyTime], files: &Files) -> BTreeMap<KeyId, UsageRecord> {
        let mut all = self.before.clone();
        let mut add = |key, to: &dyn Fn(&mut UsageRecord)| {
            to(all.entry(key).or_insert_with(|| UsageRecord::none(key)));
        };
        for time in times {
            add(time.key, &|total| {
                total.sandbox_ms = total.sandbox_ms.saturating_add(time.sandbox_ms);
                total.memory_mb_ms = total.memory_mb_ms.saturating_add(time.memory_mb_ms);
            });
        }
        for (key, cpu) in self.cpu().totals() {
            add(key, &|total| {
                let both = total.cpu_us.zip(cpu.us).map(|(old, new)| old.saturating_add(new));
                total.cpu_us = both.or(total.cpu_us).or(cpu.us);
                total.cpu_incomplete |= cpu.incomplete;
            });
        }
        for (key, byte_ms) in &files.byte_ms {
            add(*key, &|total| {
                total.stored_byte_ms = total.stored_byte_ms.saturating_add(*byte_ms);
            });
        }
        all
    }
}

/// Runs for as long as the engine lives.
pub(crate) async fn run(core: Arc<Core>) {
    loop {
        sleep(EVERY).await;
        // A failure is logged, and the next round stores the same and more.
        let _ = measure(&core, Duration::ZERO).await;
    }
}

/// An instance is ready: what it used until now is no key's.
pub(crate) fn begin(core: &Core, instance: InstanceId) {
    let reading = core.runtimes.sandbox(instance).and_then(|sandbox| sandbox.cpu_time());
    core.metering.cpu().begin(instance, reading);
}

/// The use of an instance ends: its last reading belongs to the key that it still has.
pub(crate) fn use_ends(core: &Core, instance: InstanceId) {
    let key = core.read(|kernel| kernel.key_of_instance(instance));
    read(core, instance, key);
}

/// An instance is gone.
pub(crate) fn end(core: &Core, instance: InstanceId) {
    core.metering.cpu().end(instance);
}

fn read(core: &Core, instance: InstanceId, key: Option<KeyId>) {
    let Some(sandbox) = core.runtimes.sandbox(instance) else {
        // It died by itself, and has taken its counter along.
        core.metering.cpu().end(instance);
        return;
    };
    let reading = sandbox.cpu_time();
    if reading.is_some() || sandbox.ended().is_none() {
        core.metering.cpu().read(instance, key, reading);
    }
}

/// Measures everything and stores the totals, unless that was done within `fresh`.
pub(crate) async fn measure(core: &Arc<Core>, fresh: Duration) -> Result<(), StoreError> {
    let mut files = core.metering.files.lock().await;
    if core.metering.stored().at.is_some_and(|at| at.elapsed() < fresh) {
        return Ok(());
    }
    read_all(core).await;
    let bytes = files.measure(core).await;
    let now = core.now();
    let times = core.read(|kernel| kernel.key_times(now));
    let mut totals = core.metering.totals(&times, &files);
    let changed = changes(&core.metering.stored().totals, &mut totals, now.wall);
    if !changed.is_empty()
        && let Err(error) = core.store.put_usage(&changed).await
    {
        if !std::mem::replace(&mut core.metering.stored().failing, true) {
            tracing::warn!(%error, "the usage of keys could not be stored; it is tried again");
        }
        return Err(error);
    }
    let at = Some(Instant::now());
    *core.metering.stored() = Stored { at, totals, bytes, failing: false };
    Ok(())
}

/// The totals that differ from the stored ones, measured now. The others keep their time.
fn changes(
    stored: &BTreeMap<KeyId, UsageRecord>,
    totals: &mut BTreeMap<KeyId, UsageRecord>,
    now: Wall,
) -> Vec<UsageRecord> {
    let mut changed = Vec::new();
    for (key, total) in totals {
        let before = stored.get(key);
        total.measured_at = before.map_or(now, |before| before.measured_at);
        if before != Some(&*total) {
            total.measured_at = now;
            changed.push(*total);
        }
    }
    changed
}

/// Reads every instance, also those of no key: what a warm sandbox uses belongs to no later user.
async fn read_all(core: &Arc<Core>) {
    let instances = core.metering.cpu().instances();
    if instances.is_empty() {
        return;
    }
    let reading = Arc::clone(core);
    let read = spawn_blocking(move || {
        let owned: BTreeMap<_, _> = reading.read(Kernel::owned_instances).into_iter().collect();
        for instance in instances {
            read(&reading, instance, owned.get(&instance).copied());
        }
    });
    if let Err(error) = read.await {
        tracing::error!(%error, "the task that reads processor times panicked");
    }
}

impl Files {
    /// Counts what keys store until now, and returns how much that is at present.
    async fn measure(&mut self, core: &Arc<Core>) -> BTreeMap<KeyId, u64> {
        let all = core.read(Kernel::stored_files);
        let unknown = all.iter().filter(|one| !one.live && one.bytes.is_none());
        let unknown: BTreeSet<_> = unknown.map(|one| one.workspace).collect();
        self.sleeping.retain(|id, _| unknown.contains(id));
        let new = unknown.into_iter().filter(|id| !self.sleeping.contains_key(id));
        for id in new.take(SLEEPING_PER_ROUND).collect::<Vec<_>>() {
            self.sleeping.insert(id, disk_usage::saved_bytes(core, id).await);
        }
        let mut bytes = BTreeMap::<KeyId, u64>::new();
        for one in all {
            let measured = if one.live {
                core.disk.usage_meter.bytes_of(one.workspace).or(one.bytes)
            } else {
                one.bytes.or_else(|| self.sleeping.get(&one.workspace).copied())
            };
            *bytes.entry(one.key).or_default() += measured.unwrap_or(0);
        }
        let now = core.now().mono;
        let ms = u128::from(now.since(self.until));
        self.until = now.max(self.until);
        for (key, stored) in &bytes {
            *self.byte_ms.entry(*key).or_default() += u128::from(*stored) * ms;
        }
        bytes
    }
}

impl Engine {
    /// What keys have used since they exist: those that the caller may see, by key, also keys that
    /// have used nothing. It is measured now, or was just before; every number is stored already.
    #[boxed]
    pub async fn usage(&self, caller: Caller) -> Result<Vec<KeyUsage>, Refusal> {
        measure(&self.core, FRESH).await.map_err(|error| {
            let cause = format!("{error} ({})", error.remedy());
            Refusal::new(ErrorCode::StoreUnavailable, cause)
        })?;
        let stored = self.core.metering.stored();
        let mut all: BTreeMap<_, _> = stored.totals.clone();
        for key in self.keys() {
            all.entry(key.id).or_insert_with(|| UsageRecord::none(key.id));
        }
        let seen = all.into_values().filter(|total| caller.sees(total.key));
        let bytes = |key| stored.bytes.get(&key).copied().unwrap_or(0);
        Ok(seen.map(|total| KeyUsage { total, stored_bytes: bytes(total.key) }).collect())
    }

    /// The totals of the keys that the caller may see, as they were last stored.
    pub fn stored_usage(&self, caller: Caller) -> Vec<UsageRecord> {
        let stored = self.core.metering.stored();
        stored.totals.values().filter(|total| caller.sees(total.key)).copied().collect()
    }

    /// The totals of all keys together, as they were last stored.
    pub fn usage_of_all(&self) -> UsageRecord {
        let stored = self.core.metering.stored();
        let none = UsageRecord::none(KeyId::NIL);
        stored.totals.values().fold(none, |sum, one| UsageRecord {
            key: KeyId::NIL,
            measured_at: sum.measured_at.max(one.measured_at),
            sandbox_ms: sum.sandbox_ms.saturating_add(one.sandbox_ms),
            memory_mb_ms: sum.memory_mb_ms.saturating_add(one.memory_mb_ms),
            cpu_us: match (sum.cpu_us, one.cpu_us) {
                (Some(sum), Some(one)) => Some(sum.saturating_add(one)),
                (sum, one) => sum.or(one),
            },
            cpu_incomplete: sum.cpu_incomplete || one.cpu_incomplete,
            stored_byte_ms: sum.stored_byte_ms.saturating_add(one.stored_byte_ms),
        })
    }
}

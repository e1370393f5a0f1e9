//! The cost of a commit, by its contents: of one decision, as on an idle server, and of many, as on
//! a busy one.

use std::hint::black_box;
use std::path::{Path, PathBuf};
use std::time::Duration;

use criterion::{BatchSize, Criterion, Throughput, criterion_group, criterion_main};
use model::lifecycle::ActiveCause;
use model::reason::EndCause;
use model::record::{JournalEntry, Owner, SandboxRecord};
use model::template::{Recycle, RuntimeTraits};
use model::why::Ended;
use model::{
    Generation, InstanceId, KeyId, LeaseId, LifecycleEvent, SandboxId, SandboxState, StoredEvent,
    TemplateName, Wall, WorkspaceId,
};
use store::memory::MemoryStore;
use store::sqlite::SqliteStore;
use store::{Batch, Retention, Store};

const NOW_MS: u64 = 1_790_000_000_000;
const LIVE: u64 = 250;

/// Ids as they are made: by time, with noise behind it.
fn id(kind: u128, n: u64) -> u128 {
    let noise = u128::from(n.wrapping_mul(0x9e37_79b9_7f4a_7c15));
    (u128::from(NOW_MS + n / 8) << 80) | (0x7000 << 64) | (noise ^ kind)
}

fn template() -> TemplateName {
    TemplateName::new("default").expect("a name")
}

fn record(n: u64, owner: Owner) -> SandboxRecord {
    SandboxRecord {
        id: SandboxId::from_u128(id(1, n)),
        previous_id: None,
        instance: Some(InstanceId::from_u128(id(2, n))),
        generation: Generation::FIRST,
        template: template(),
        traits: RuntimeTraits {
            recycle: Recycle::Recreate,
            can_freeze: true,
            workspace_survives: true,
            disk: None,
        },
        owner,
        tenant: KeyId::from_u128(id(9, 1)),
        lease_end: None,
        state: SandboxState::Warm,
        ending: None,
        doomed: false,
        slept: None,
        announced: true,
        uses: 1,
        dirty: false,
        workspace: WorkspaceId::from_u128(id(3, n)),
        has_files: true,
        archived: false,
        copying_from: None,
        created_at: Wall(NOW_MS + n),
        last_used_at: Wall(NOW_MS + n),
        expires_at: Some(Wall(NOW_MS + n + 600_000)),
    }
}

fn active(number: u64) -> StoredEvent {
    StoredEvent {
        number,
        at: Wall(NOW_MS + number),
        tenant: KeyId::from_u128(id(9, 1)),
        event: LifecycleEvent::SandboxActive {
            session: None,
            lease: Some(LeaseId::from_u128(id(4, number))),
            sandbox_id: SandboxId::from_u128(id(1, number)),
            generation: Generation::FIRST,
            cause: ActiveCause::Created,
            previous_id: None,
            state_lost: false,
            expires_at: Some(Wall(NOW_MS + number + 600_000)),
        },
    }
}

fn terminated(number: u64) -> StoredEvent {
    StoredEvent {
        number,
        at: Wall(NOW_MS + number),
        tenant: KeyId::from_u128(id(9, 1)),
        event: LifecycleEvent::SandboxTerminated {
            session: None,
            lease: Some(LeaseId::from_u128(id(4, number))),
            sandbox_id: SandboxId::from_u128(id(1, number)),
            generation: Generation::FIRST,
            reason: EndCause::Returned.reason(),
            cause: EndCause::Returned,
        },
    }
}

fn ended(n: u64) -> Ended {
    Ended {
        sandbox: SandboxId::from_u128(id(1, n)),
        generation: Generation::FIRST,
        template: template(),
        lease: Some(LeaseId::from_u128(id(4, n))),
        lease_end: Some(EndCause::Returned),
        tenant: KeyId::from_u128(id(9, 1)),
        session: None,
        cause: EndCause::Returned,
        detail: None,
        eviction: None,
        created_at: Wall(NOW_MS + n),
        ended_at: Wall(NOW_MS + n),
    }
}

/// Decisions one after the other: checkouts, and returns in which one sandbox replaces another.
#[derive(Default)]
struct Decisions {
    n: u64,
}

impl Decisions {
    fn checkout(&mut self, batch: &mut Batch) {
        self.n += 1;
        let lease = LeaseId::from_u128(id(4, self.n));
        batch.entries.push(JournalEntry::SandboxPut(record(self.n % LIVE, Owner::Lease(lease))));
        batch.events.push(active(self.n));
    }

    fn turnover(&mut self, batch: &mut Batch) {
        self.n += 1;
        let (old, new) = (self.n.saturating_sub(LIVE), self.n);
        batch.entries.push(JournalEntry::SandboxRemoved(SandboxId::from_u128(id(1, old))));
        batch.entries.push(JournalEntry::SandboxPut(record(new, Owner::Unowned)));
        batch.entries.push(JournalEntry::Ended(ended(old)));
        batch.events.push(terminated(self.n));
    }

    fn batch(&mut self, count: u64, decide: fn(&mut Self, &mut Batch)) -> Batch {
        let mut batch = Batch::default();
        (0..count).for_each(|_| decide(self, &mut batch));
        batch
    }
}

fn directory(name: &str) -> PathBuf {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("bench-store-{name}"));
    let _ = std::fs::remove_dir_all(&path);
    std::fs::create_dir_all(&path).expect("a directory");
    path
}

fn commits(criterion: &mut Criterion) {
    let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
    let mut group = criterion.benchmark_group("commit");
    group.measurement_time(Duration::from_secs(3)).warm_up_time(Duration::from_secs(1));
    for kind in ["sqlite", "memory"] {
        for (what, decide) in [
            ("checkout", Decisions::checkout as fn(&mut Decisions, &mut Batch)),
            ("turnover", Decisions::turnover),
        ] {
            for count in [1, 10, 50, 100] {
                let path = directory(&format!("{kind}-{what}-{count}"));
                let store: Box<dyn Store> = match kind {
                    "memory" => Box::new(MemoryStore::new(Retention::default())),
                    _ => Box::new(SqliteStore::open(&path, Retention::default()).expect("opened")),
                };
                let mut decisions = Decisions::default();
                group.throughput(Throughput::Elements(count));
                group.bench_function(format!("{kind}/{what}/{count}"), |bencher| {
                    bencher.iter_batched_ref(
                        || decisions.batch(count, decide),
                        |batch| runtime.block_on(store.commit(black_box(batch))).expect("written"),
                        BatchSize::PerIteration,
                    );
                });
                runtime.block_on(store.close()).expect("closed");
                let _ = std::fs::remove_dir_all(path);
            }
        }
    }
}

criterion_group!(benches, commits);
criterion_main!(benches);

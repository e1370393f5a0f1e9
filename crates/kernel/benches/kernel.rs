//! The cost of decisions. The gates are in `docs/specification.md`: at least a million
//! acquire+return a second on one core, and at most twice the cost per operation from a thousand
//! to a hundred thousand sandboxes.

use std::hint::black_box;
use std::sync::Arc;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use kernel::{
    Action, Boot, Checkout, CheckoutPolicy, Event, Kernel, Notice, Outcome, Reply, UseKind,
    UseTarget,
};
use model::template::{Recycle, RuntimeTraits};
use model::{
    EffectId, KeyId, LeaseId, Mono, NodeConfig, Now, RequestId, SandboxId, Template, TemplateName,
    UseId, Wall,
};

struct Bench {
    kernel: Kernel,
    now: Now,
    name: TemplateName,
    next: u128,
}

impl Bench {
    /// A pool of `n` warm sandboxes and no slot beyond them, whose word is taken for as long as
    /// the usual settings say.
    fn warm(n: u32) -> Self {
        Self::with(n, NodeConfig::default())
    }

    /// The same, where each is heard from before it is handed out.
    fn asking(n: u32) -> Self {
        Self::with(n, NodeConfig { probe_fresh_ms: 0, ..NodeConfig::default() })
    }

    fn with(n: u32, config: NodeConfig) -> Self {
        let config = NodeConfig { max_sandboxes: n, max_live: n, ..config };
        let now = Now { mono: Mono(1_000_000), wall: Wall(1_700_000_000_000) };
        let name = TemplateName::new("bench").expect("a valid name");
        let mut bench = Self {
            kernel: Kernel::new(Boot::new(config, 1, now)),
            now,
            name: name.clone(),
            next: 0,
        };
        let mut template = Template::named(name);
        template.pool.pool_size = n;
        template.pool.max_overflow = 0;
        template.pool.refill_per_s = n;
        let traits = RuntimeTraits {
            recycle: Recycle::Recreate,
            can_freeze: true,
            workspace_survives: true,
            disk: None,
        };
        bench.apply(Event::TemplatePut { template: Arc::new(template), traits });
        bench.finish_effects();
        assert_eq!(bench.kernel.stats().warm, n);
        bench
    }

    fn apply(&mut self, event: Event) -> Reply {
        self.kernel.apply(self.now, event).expect("nothing is refused here")
    }

    fn finish_effects(&mut self) {
        loop {
            let effects = std::mem::take(&mut self.kernel.outbox().effects);
            if effects.is_empty() {
                break;
            }
            for effect in effects {
                self.apply(Event::EffectEnded { id: effect.id, outcome: Outcome::Done });
            }
        }
        self.kernel.outbox().clear();
    }

    fn id(&mut self) -> u128 {
        self.next += 1;
        self.next
    }

    /// Checks a sandbox out, at once or with its claim proven.
    fn acquire(&mut self) -> (LeaseId, SandboxId) {
        let request = RequestId::from_u128(self.id());
        let lease = LeaseId::from_u128(self.id());
        let template = self.name.clone();
        let answer = self.apply(Event::CheckoutRequested(Checkout {
            request,
            lease,
            tenant: KeyId::NIL,
            template,
            ttl_ms: None,
            wait_ms: None,
            policy: CheckoutPolicy::Wait,
            claim: None,
        }));
        if let Reply::CheckedOut(out) = answer {
            return (lease, out.sandbox);
        }
        let id = self.take_claim();
        self.apply(Event::EffectEnded { id, outcome: Outcome::Done });
        let sandbox = match self.kernel.outbox().notices.last() {
            Some(Notice::Answer { result: Ok(Reply::CheckedOut(out)), .. }) => out.sandbox,
            other => panic!("expected a checkout, found {other:?}"),
        };
        (lease, sandbox)
    }

    fn take_claim(&mut self) -> EffectId {
        match self.kernel.outbox().effects.last() {
            Some(effect) if matches!(effect.action, Action::Claim { .. }) => effect.id,
            other => panic!("expected a claim, found {other:?}"),
        }
    }

    fn acquire_and_return(&mut self) {
        let (lease, _) = self.acquire();
        self.apply(Event::LeaseReturned { lease });
        // What an interpreter would commit, do and say.
        black_box(self.kernel.outbox()).clear();
        self.next_ms();
    }

    /// Time passes, so that deadlines are never all the same.
    fn next_ms(&mut self) {
        if self.next.is_multiple_of(1000) {
            self.now = Now { mono: self.now.mono.plus(1), wall: self.now.wall.plus(1) };
        }
    }

    fn exec(&mut self, sandbox: SandboxId) {
        let request = RequestId::from_u128(self.id());
        let use_id = UseId::from_u128(self.id());
        let target = UseTarget::Sandbox(sandbox);
        self.apply(Event::UseRequested {
            request,
            target,
            use_id,
            kind: UseKind::Exec,
            wait_ms: None,
        });
        self.apply(Event::UseEnded { use_id });
        black_box(self.kernel.outbox()).clear();
    }
}

fn acquire_return(c: &mut Criterion) {
    let mut group = c.benchmark_group("acquire+return");
    group.throughput(Throughput::Elements(1));
    for n in [1_000, 10_000, 100_000] {
        let mut bench = Bench::warm(n);
        // Once around, so that every sandbox has been through the line.
        for _ in 0..n {
            bench.acquire_and_return();
        }
        group.bench_function(BenchmarkId::from_parameter(n), |b| {
            b.iter(|| bench.acquire_and_return());
        });
    }
    group.finish();
}

fn acquire_ask_return(c: &mut Criterion) {
    let mut bench = Bench::asking(1_000);
    c.benchmark_group("acquire+ask+return")
        .throughput(Throughput::Elements(1))
        .bench_function("1000", |b| b.iter(|| bench.acquire_and_return()));
}

fn exec(c: &mut Criterion) {
    let mut bench = Bench::warm(1_000);
    let (_, sandbox) = bench.acquire();
    c.benchmark_group("exec")
        .throughput(Throughput::Elements(1))
        .bench_function("start+end", |b| b.iter(|| bench.exec(sandbox)));
}

criterion_group!(benches, acquire_return, acquire_ask_return, exec);
criterion_main!(benches);

//! Random worlds: clients come, use, return, delete and vanish, while every effect may fail, hang
//! or kill its sandbox, the store fails and hangs, sandboxes crash, and the node is killed or
//! stopped and restarted. In every world nothing is shared, no limit is exceeded, every request is
//! answered by its deadline, and when the faults end nothing is left over.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use model::{ErrorCode, InstanceId, LeaseId, Refusal, Retry};
use runtime::fake::{Fault, Operation};
use runtime::{RuntimeError, RuntimeErrorCode};
use store::memory::MemoryStore;
use store::{Retention, StoreErrorCode};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use super::node::{ALICE, BOB, Node, config, name, template};
use crate::{Caller, CheckoutPolicy, CheckoutRequest, EngineConfig, HandedOut, UseKind};

const WORLDS: u64 = 40;
const MAX_LIVE: u32 = 6;
const CLIENTS: u64 = 8;
/// How long an answer may take beyond its request's own limit: the kernel's deadlines.
const SLACK: Duration = Duration::from_secs(30);

/// Random numbers, the same for the same random seed.
pub(super) struct Dice(pub(super) u64);

impl Dice {
    pub(super) fn roll(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub(super) fn below(&mut self, n: u64) -> u64 {
        self.roll() % n
    }

    pub(super) fn millis(&mut self, most: u64) -> Duration {
        Duration::from_millis(self.below(most))
    }

    pub(super) fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len() as u64) as usize]
    }
}

/// What clients have.
#[derive(Default)]
struct Taken {
    /// Instances that a client may use right now.
    instances: BTreeSet<InstanceId>,
    /// Leases whose end no client has learned of.
    leases: BTreeSet<LeaseId>,
}

type Held = Arc<Mutex<Taken>>;

fn small() -> EngineConfig {
    let mut config = config();
    config.node.max_live = MAX_LIVE;
    config.node.max_sandboxes = 8;
    config.shutdown_grace_ms = 2_000;
    let mut other = template("other");
    other.pool.pool_size = 1;
    other.pool.max_overflow = 2;
    other.ready_timeout_ms = 2_000;
    config.templates[0].ready_timeout_ms = 2_000;
    config.templates.push(other);
    config
}

#[tokio::test(start_paused = true)]
async fn random_world_shares_exceeds_and_leaves_nothing() {
    let number = |name| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    let first = number("ENGINE_SEED").unwrap_or(0);
    for seed in first..first + number("ENGINE_WORLDS").unwrap_or(WORLDS) {
        world(seed).await;
    }
}

async fn world(seed: u64) {
    let mut dice = Dice(seed);
    let mut store = Arc::new(MemoryStore::new(Retention::default()));
    for _ in 0..=dice.below(3) {
        let node = Arc::new(Node::on(Arc::clone(&store), small()).await);
        let held = Held::default();
        let mut clients = JoinSet::new();
        for n in 0..CLIENTS {
            let caller = if n % 2 == 0 { ALICE } else { BOB };
            let (node, held, dice) = (Arc::clone(&node), Arc::clone(&held), Dice(dice.roll()));
            clients.spawn(client(node, held, caller, dice));
        }
        let faults = trouble(&node, Dice(dice.roll()));
        let watch = watch_limits(&node);
        tokio::select! {
            () = faults => {}
            () = watch => {}
            result = clients.join_next() => panic!("seed {seed}: a client ended: {result:?}"),
        }
        let orderly = dice.below(2) == 0;
        if orderly {
            node.store.release_commits();
            if let Err(refusal) = node.engine.shutdown().await {
                // Kills that hang, one after another, may take longer than a client waits, and so
                // may a store that fails again and again.
                let expected = [ErrorCode::DeadlineExceeded, ErrorCode::StoreUnavailable];
                assert!(expected.contains(&refusal.code), "seed {seed}: {refusal}");
            }
            assert_eq!(node.runtime.alive().sandboxes, 0, "seed {seed}: after an orderly stop");
        }
        clients.shutdown().await;
        if !orderly {
            node.store.release_commits();
            sleep(Duration::from_mins(2)).await;
            let leased: u32 = node.engine.pools().iter().map(|pool| pool.leased).sum();
            let held = held.lock().unwrap().leases.len();
            assert!(leased as usize <= held, "seed {seed}: {leased} leased, {held} kept");
        }
        node.engine.core.halt();
        store = Arc::new(node.store.crash());
    }
    peace(seed, store).await;
}

/// When nothing fails any more, the node becomes idle.
async fn peace(seed: u64, store: Arc<MemoryStore>) {
    let node = Node::on(store, small()).await;
    sleep(Duration::from_mins(5)).await;
    let (stats, alive) = (node.engine.stats(), node.runtime.alive());
    for pool in node.engine.pools() {
        assert_eq!((pool.leased, pool.waiters), (0, 0), "seed {seed}: {pool:?}");
        assert_eq!(pool.idle, pool.pool_size, "seed {seed}: {pool:?}");
        assert!(!pool.degraded, "seed {seed}: {pool:?}");
    }
    assert_eq!(alive.sandboxes, 3, "seed {seed}: {stats:?} {alive:?}");
    assert_eq!((alive.tasks, alive.streams, alive.launching), (0, 0, 0), "seed {seed}");
    assert_eq!(stats.total, 3, "seed {seed}: {stats:?}");
    assert!(node.engine.health().degraded.is_empty(), "seed {seed}");
    let lease = node.checkout(ALICE).await.unwrap();
    assert!(node.run(ALICE, lease.sandbox, "true").await.unwrap().exit.success());
}

/// Faults of every kind, for a while.
pub(super) async fn trouble(node: &Node, mut dice: Dice) {
    const OPERATIONS: [Operation; 11] = [
        Operation::Launch,
        Operation::Launch,
        Operation::Claim,
        Operation::Ping,
        Operation::Exec,
        Operation::ReadFile,
        Operation::WriteFile,
        Operation::Freeze,
        Operation::Thaw,
        Operation::Kill,
        Operation::Kill,
    ];
    for _ in 0..dice.below(60) {
        sleep(dice.millis(400)).await;
        let operation = dice.pick(&OPERATIONS);
        let failure = RuntimeError::new(RuntimeErrorCode::LaunchFailed, "test", "by chance");
        let fault = match dice.below(4) {
            0 => Fault::Fail(failure),
            1 => Fault::Hang,
            2 => Fault::Delay(dice.millis(3_000)),
            _ => Fault::Die { out_of_memory: dice.below(2) == 0 },
        };
        node.runtime.inject(operation, fault);
        match dice.below(12) {
            0 => node.store.fail_commits(dice.below(6) as u32, StoreErrorCode::DiskFull),
            1 => {
                node.store.hang_commits();
                sleep(dice.millis(4_000)).await;
                node.store.release_commits();
            }
            2 | 3 => {
                let all = node.engine.sandboxes(Caller::SERVER);
                let live: Vec<_> = all.iter().filter_map(|view| view.instance).collect();
                if !live.is_empty() {
                    node.runtime.crash(dice.pick(&live), dice.below(2) == 0);
                }
            }
            _ => {}
        }
    }
}

async fn watch_limits(node: &Node) {
    loop {
        let alive = node.runtime.alive();
        let live = alive.sandboxes + alive.launching;
        assert!(live <= MAX_LIVE as usize, "{live} are alive");
        sleep(Duration::from_millis(7)).await;
    }
}

/// A client that goes on for ever. It panics if it gets no answer, or what another client has.
async fn client(node: Arc<Node>, held: Held, caller: Caller, mut dice: Dice) {
    loop {
        sleep(dice.millis(500)).await;
        let wait_ms = dice.below(3_000);
        let mut asked = CheckoutRequest::of(name(dice.pick(&["default", "other"])));
        asked.wait_ms = Some(wait_ms);
        asked.ttl_ms = (dice.below(4) == 0).then(|| 1 + dice.below(2_000));
        asked.policy = dice.pick(&[CheckoutPolicy::Wait, CheckoutPolicy::FailFast]);
        if dice.below(4) == 0 {
            asked.env.insert("WHO".to_owned(), "me".to_owned());
        }
        let checkout = node.engine.checkout(caller, asked);
        if dice.below(8) == 0 {
            // It vanishes at some await, and the engine gets back what it got.
            let _ = timeout(dice.millis(50), checkout).await;
            continue;
        }
        let patience = Duration::from_millis(wait_ms) + SLACK;
        let answer = timeout(patience, checkout).await.expect("a checkout is answered in time");
        match answer {
            Ok(lease) => with_lease(&node, &held, caller, lease, &mut dice).await,
            Err(refusal) => assert!(is_clear(&refusal), "{refusal}"),
        }
    }
}

async fn with_lease(node: &Node, held: &Held, caller: Caller, lease: HandedOut, dice: &mut Dice) {
    let instance = lease.instance;
    assert!(held.lock().unwrap().instances.insert(instance), "two have {instance}");
    let lease = lease.keep();
    held.lock().unwrap().leases.insert(lease.lease);
    for _ in 0..dice.below(4) {
        let act = act(node, caller, &lease, dice.below(5));
        let acted = if dice.below(6) == 0 {
            timeout(dice.millis(100), act).await.unwrap_or(Ok(()))
        } else {
            timeout(Duration::from_mins(3), act).await.expect("a use is answered in time")
        };
        if let Err(refusal) = acted {
            assert!(is_clear(&refusal), "{refusal}");
        }
    }
    held.lock().unwrap().instances.remove(&instance);
    let over = async {
        match dice.below(3) {
            0 => node.engine.delete_sandbox(caller, lease.sandbox).await,
            _ => node.engine.return_lease(caller, lease.lease).await,
        }
    };
    let over = timeout(Duration::from_mins(3), over).await.expect("a return is answered in time");
    match over {
        Err(refusal) if refusal.code.retry() == Retry::Later => {}
        Err(refusal) => assert!(is_clear(&refusal), "{refusal}"),
        Ok(()) => {
            held.lock().unwrap().leases.remove(&lease.lease);
        }
    }
}

async fn act(
    node: &Node,
    caller: Caller,
    lease: &crate::CheckedOut,
    what: u64,
) -> Result<(), Refusal> {
    let sandbox = lease.sandbox;
    match what {
        0 => node.run(caller, sandbox, "sleep 0.2; echo hi").await.map(|_| ()),
        1 => {
            let mark = format!("/workspace/{}", lease.lease);
            let used = node.engine.use_sandbox(caller, sandbox, UseKind::Files).await?;
            let files = used.list_files("/workspace", None, 100).await?;
            for entry in files.entries {
                let name = String::from_utf8_lossy(&entry.name).into_owned();
                assert!(mark.ends_with(&name), "it has {name} of someone else");
            }
            let writer = used.write_file(&mark, None).await?;
            used.finish_file(writer).await.map(|_| ())
        }
        2 => node.engine.freeze(caller, sandbox).await.map(|_| ()),
        3 => node.engine.thaw(caller, sandbox).await.map(|_| ()),
        _ => node.engine.renew_lease(caller, lease.lease, Some(5_000)).await.map(|_| ()),
    }
}

/// What a client may get when things fail: never an internal error.
pub(super) fn is_clear(refusal: &Refusal) -> bool {
    !matches!(
        refusal.code,
        ErrorCode::Internal
            | ErrorCode::InvalidArgument
            | ErrorCode::IdConflict
            | ErrorCode::TemplateUnknown
            | ErrorCode::LeaseUnknown
            | ErrorCode::SandboxUnknown
            | ErrorCode::NotLeased
    )
}

//! Clocks of the machine: setting its time neither ends a lease nor prolongs it; a suspend counts.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::Duration;

use model::{ErrorCode, MachineClocks, Wall};
use tokio::time::Instant;

use super::node::{ALICE, Node, config};
use crate::{EngineConfig, WallClock};

const BEGAN: Wall = Wall(1_700_000_000_000);
const HOUR_MS: i64 = 3_600_000;

/// A machine that can be suspended, and whose time can be set.
#[derive(Clone, Default)]
struct Machine {
    slept_ms: Arc<AtomicU64>,
    set_by_ms: Arc<AtomicI64>,
}

impl Machine {
    fn config(&self) -> EngineConfig {
        let (machine, began) = (self.clone(), Instant::now());
        let mut config = config();
        config.wall = WallClock::Machine(Arc::new(move || {
            let slept_ms = machine.slept_ms.load(Ordering::Relaxed);
            let boot_ms = 9_000 + slept_ms + began.elapsed().as_millis() as u64;
            let set_by_ms = machine.set_by_ms.load(Ordering::Relaxed);
            let wall = BEGAN.plus(boot_ms).0.saturating_add_signed(set_by_ms);
            MachineClocks { boot_ms, wall: Wall(wall) }
        }));
        config
    }
}

#[tokio::test(start_paused = true)]
async fn lease_neither_ends_nor_lasts_longer_when_the_machine_time_is_set() {
    for set_by_ms in [HOUR_MS, 24 * HOUR_MS, -24 * HOUR_MS] {
        let machine = Machine::default();
        let node = Node::start(machine.config()).await;
        let lease = node.checkout(ALICE).await.unwrap().keep();
        node.run(ALICE, lease.sandbox, "echo hi").await.unwrap();
        // The pool has been refilled.
        tokio::time::sleep(Duration::from_secs(1)).await;
        let idle = node.engine.stats().warm;
        machine.set_by_ms.store(set_by_ms, Ordering::Relaxed);
        // Long enough that the clocks are compared and everything due happens.
        tokio::time::sleep(Duration::from_secs(30)).await;
        node.run(ALICE, lease.sandbox, "echo hi").await.unwrap();
        assert_eq!(node.engine.stats().warm, idle, "the pool is as it was");
        let shown = node.engine.sandbox(ALICE, lease.sandbox).unwrap();
        assert_eq!(shown.expires_at, Some(lease.expires_at));
        tokio::time::sleep(Duration::from_secs(575)).await;
        let lost = node.engine.renew_lease(ALICE, lease.lease, None).await.unwrap_err();
        assert_eq!(lost.code, ErrorCode::LeaseLost, "after its ten minutes, and no later");
    }
}

#[tokio::test(start_paused = true)]
async fn lease_ends_soon_after_a_suspended_machine_resumes() {
    let machine = Machine::default();
    let node = Node::start(machine.config()).await;
    let lease = node.checkout(ALICE).await.unwrap().keep();
    machine.slept_ms.store(3_600_000, Ordering::Relaxed);
    // Noticed although no request arrives.
    tokio::time::sleep(Duration::from_secs(15)).await;
    let gone = node.engine.sandbox(ALICE, lease.sandbox).unwrap_err();
    assert_eq!(gone.code, ErrorCode::SandboxGone);
    assert!(gone.cause.contains("its lease was not renewed in time"), "{gone}");
}

#[tokio::test(start_paused = true)]
async fn clock_of_the_next_run_begins_with_the_time_that_was_set() {
    let machine = Machine::default();
    let node = Node::start(machine.config()).await;
    let before = node.engine.now().wall;
    machine.set_by_ms.store(HOUR_MS, Ordering::Relaxed);
    assert_eq!(node.engine.now().wall, before);
    let node = node.kill_and_start().await;
    assert_eq!(node.engine.now().wall, before.plus(3_600_000));
}

//! A pool against a small model of it: a queue of callers, a number of slots, and the launches. In
//! any order of events, waiters are served in order of arrival, slots are never exceeded, and no
//! caller waits while a sandbox is idle.

use std::collections::BTreeSet;

use model::record::Owner;
use model::template::RuntimeTraits;
use model::{ErrorCode, InstanceId, LeaseId, RequestId};
use proptest::prelude::{Just, Strategy, any, prop_oneof};
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};

use super::rig::{DOCKER, NATIVE, Rig, gone, instance_of, template, trouble};
use crate::{Action, DeathCause, Event, Outcome, UseKind, UseTarget};

/// Something that happens. Numbers choose among what there is.
#[derive(Debug, Clone)]
enum Step {
    Checkout { wait_ms: u64 },
    Return { which: usize, used: bool },
    GoAway { which: usize },
    Effect { which: usize, outcome: Outcome },
    Death { which: usize },
    Pass { seconds: u64 },
}

/// The sizes of a pool and what its runtime can do, with what happens to it.
fn cases() -> impl Strategy<Value = ((u32, u32), RuntimeTraits, Vec<Step>)> {
    let sizes = prop_oneof![Just((1, 0)), Just((0, 2)), Just((2, 1)), Just((1, 2))];
    let traits = prop_oneof![Just(NATIVE), Just(DOCKER)];
    let outcome = prop_oneof![
        12 => Just(Outcome::Done),
        1 => Just(trouble()),
        1 => Just(gone()),
        1 => Just(Outcome::TimedOut),
    ];
    let which = any::<usize>;
    let wait_ms = prop_oneof![Just(500_u64), Just(5_000), Just(600_000)];
    let step = prop_oneof![
        6 => wait_ms.prop_map(|wait_ms| Step::Checkout { wait_ms }),
        4 => (which(), any::<bool>()).prop_map(|(which, used)| Step::Return { which, used }),
        1 => which().prop_map(|which| Step::GoAway { which }),
        12 => (which(), outcome).prop_map(|(which, outcome)| Step::Effect { which, outcome }),
        1 => which().prop_map(|which| Step::Death { which }),
        2 => prop_oneof![Just(1_u64), Just(6), Just(40)].prop_map(|seconds| Step::Pass { seconds }),
    ];
    (sizes, traits, proptest::collection::vec(step, 1..150))
}

/// Where a caller is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum SlabIndex {
    InLine,
    Served,
    Refused,
}

struct Caller {
    request: RequestId,
    lease: LeaseId,
    place: SlabIndex,
}

/// The model, and the kernel beside it.
struct World {
    rig: Rig,
    slots: usize,
    /// In order of arrival, without callers that went away.
    callers: Vec<Caller>,
    /// Handed out and not returned.
    leases: Vec<LeaseId>,
    /// Launched, and not confirmed as removed.
    exist: BTreeSet<InstanceId>,
    seen: u64,
}

impl World {
    fn new((pool_size, max_overflow): (u32, u32), traits: RuntimeTraits) -> Self {
        let mut rig = Rig::new(model::NodeConfig::default());
        rig.put(template(pool_size, max_overflow), traits);
        let slots = (pool_size + max_overflow) as usize;
        let (callers, leases, exist) = (Vec::new(), Vec::new(), BTreeSet::new());
        Self { rig, slots, callers, leases, exist, seen: 0 }
    }

    fn step(&mut self, step: Step) {
        match step {
            Step::Checkout { wait_ms } => {
                let mut lease = LeaseId::NIL;
                let request = self.rig.checkout_with(|checkout| {
                    checkout.wait_ms = Some(wait_ms);
                    lease = checkout.lease;
                });
                self.callers.push(Caller { request, lease, place: SlabIndex::InLine });
            }
            Step::Return { which, used } => self.give_back(which, used),
            Step::GoAway { which } => {
                let waits = |caller: &Caller| self.rig.pending(caller.request);
                let waiting: Vec<usize> =
                    (0..self.callers.len()).filter(|at| waits(&self.callers[*at])).collect();
                if !waiting.is_empty() {
                    let caller = self.callers.remove(waiting[which % waiting.len()]);
                    let _ = self.rig.apply(Event::ClientGone { request: caller.request });
                }
            }
            Step::Effect { which, outcome } if !self.rig.effects.is_empty() => {
                let at = which % self.rig.effects.len();
                let effect = self.rig.effects.remove(at).unwrap();
                if let (Action::Kill { instance, .. }, Outcome::Done) = (&effect.action, &outcome) {
                    self.exist.remove(instance);
                }
                self.rig.end_effect(&effect, outcome);
            }
            Step::Effect { .. } => {}
            Step::Death { which } => {
                let views = self.rig.kernel.sandboxes();
                let alive: Vec<_> = views.iter().filter_map(|view| view.instance).collect();
                if !alive.is_empty() {
                    self.rig.die(alive[which % alive.len()], DeathCause::Crash);
                }
            }
            Step::Pass { seconds } => {
                // Shorter than the deadline of a claim: no caller comes and goes in between.
                for _ in 0..seconds {
                    self.rig.pass(1_000);
                    self.check();
                }
            }
        }
        self.check();
    }

    fn give_back(&mut self, which: usize, used: bool) {
        if self.leases.is_empty() {
            return;
        }
        let lease = self.leases.swap_remove(which % self.leases.len());
        let views = self.rig.kernel.sandboxes();
        let leased = views.iter().find(|view| view.owner == Owner::Lease(lease));
        if let (Some(view), true) = (leased, used) {
            self.rig.use_of(UseTarget::Sandbox(view.id), UseKind::Exec);
        }
        let _ = self.rig.apply(Event::LeaseReturned { lease });
    }

    /// Where a caller is now: served from the moment a sandbox is being bound to it.
    fn place(&self, caller: &Caller) -> SlabIndex {
        match self.rig.answer(caller.request) {
            Some(Ok(_)) => SlabIndex::Served,
            Some(Err(refusal)) => {
                let may_be =
                    [ErrorCode::CheckoutTimeout, ErrorCode::LaunchFailed, ErrorCode::ReadyTimeout];
                assert!(may_be.contains(&refusal.code), "{refusal}");
                SlabIndex::Refused
            }
            None => {
                let views = self.rig.kernel.sandboxes();
                let bound = views.iter().any(|view| view.owner == Owner::Lease(caller.lease));
                if bound { SlabIndex::Served } else { SlabIndex::InLine }
            }
        }
    }

    fn check(&mut self) {
        let now: Vec<SlabIndex> = self.callers.iter().map(|caller| self.place(caller)).collect();
        let mut someone_waits = false;
        for (caller, now) in self.callers.iter_mut().zip(now) {
            let before = std::mem::replace(&mut caller.place, now);
            let overtakes =
                someone_waits && before == SlabIndex::InLine && now == SlabIndex::Served;
            assert!(!overtakes, "no caller is served before an earlier one");
            someone_waits |= before == SlabIndex::InLine && now == SlabIndex::InLine;
            if now == SlabIndex::Served && !self.rig.pending(caller.request) {
                self.leases.push(caller.lease);
            }
        }
        let rig = &self.rig;
        self.callers.retain(|caller| rig.pending(caller.request));
        let in_line = self.callers.iter().filter(|c| c.place == SlabIndex::InLine).count();
        let pool = rig.pool();
        assert_eq!(pool.waiters as usize, in_line);
        assert!(pool.idle == 0 || in_line == 0, "no caller waits while a sandbox is idle");
        for effect in rig.effects.iter().filter(|effect| effect.id.n > self.seen) {
            if matches!(effect.action, Action::Launch(_)) {
                self.exist.extend(instance_of(&effect.action));
            }
        }
        self.seen =
            rig.effects.iter().map(|effect| effect.id.n).max().max(Some(self.seen)).unwrap();
        assert!(self.exist.len() <= self.slots, "slots are never exceeded");
        assert_eq!(pool.slots_used as usize, rig.kernel.sandboxes().len(), "nor leaked");
    }

    /// Every effect works from here on: all callers are answered and the pool becomes idle.
    fn come_to_rest(mut self, pool_size: u32) {
        for _ in 0..2_000 {
            self.rig.run();
            self.check();
            self.give_back(0, false);
            self.rig.run();
            self.check();
            if self.leases.is_empty() && self.callers.is_empty() {
                break;
            }
            self.rig.live(1_000);
            self.check();
        }
        assert!(self.leases.is_empty() && self.callers.is_empty(), "everyone was answered");
        self.rig.live(200_000);
        let pool = self.rig.pool();
        assert_eq!((pool.idle, pool.slots_used, pool.leased), (pool_size, pool_size, 0));
    }
}

#[test]
fn waiters_are_served_in_order_whatever_happens() {
    let config = Config { cases: 256, failure_persistence: None, ..Config::default() };
    let dice = TestRng::deterministic_rng(RngAlgorithm::ChaCha);
    let model_holds = |(sizes, traits, steps)| {
        let mut world = World::new(sizes, traits);
        world.check();
        for step in steps {
            world.step(step);
        }
        world.come_to_rest(sizes.0);
        Ok(())
    };
    TestRunner::new_with_rng(config, dice).run(&cases(), model_holds).unwrap();
}

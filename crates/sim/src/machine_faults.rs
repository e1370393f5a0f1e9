//! Faults of the machine: sandboxes that die, clocks that jump, servers that are killed between any
//! two steps or stopped in order, and the start after that. A killed server loses exactly what was
//! not committed, and its clients lose their connections.

use kernel::{DeathCause, Effect, Event, Kernel, Outbox};
use model::InstanceId;

use crate::checks::{self, Judged};
use crate::interpreter::Item;
use crate::ledger::LeasePhase;
use crate::runtime::Phase;
use crate::world::{World, boot};

/// When in the handling of an event the server is killed.
#[derive(Debug, Clone, Copy)]
pub(crate) enum CrashAt {
    /// Before anything is committed.
    BeforeCommit,
    /// After the commit, when this many effects were started.
    AfterEffects(u32),
}

impl World {
    /// Some sandbox dies on its own.
    pub(crate) fn let_die(&mut self) {
        let index = self.choices.below(self.runtime.instances.len() as u32) as usize;
        let Some(instance) = self.runtime.instances.keys().nth(index).copied() else { return };
        let cause = if self.choices.below(3) == 2 { DeathCause::Oom } else { DeathCause::Crash };
        let known_after_ms = self.choices.pick(&[0, 5, 400, 3_000]).unwrap_or(0);
        self.coverage.count("faults", "death");
        self.trace.note(self.step, self.now, || format!("{instance:?} dies: {cause:?}"));
        self.runtime.die(instance);
        self.programs_lost(instance);
        if known_after_ms > 0 && self.choices.below(2) == 1 {
            self.plan(known_after_ms / 2, Item::GuestLost { instance });
        }
        self.plan(known_after_ms, Item::Death { instance, cause });
    }

    /// The machine is suspended, or its wall clock is set, which the run must not notice.
    pub(crate) fn jump_clock(&mut self) -> Judged {
        let by_ms = self.choices.pick(&[1_000, 60_000, 10_000, 86_400_000]).unwrap_or(1_000);
        match self.choices.below(3) {
            0 => {
                self.coverage.count("faults", "suspended");
                self.clocks.boot_ms += by_ms;
                self.clocks.wall = self.clocks.wall.plus(by_ms);
                self.watch.clock_jumped = true;
            }
            1 => {
                self.coverage.count("faults", "clock_forward");
                self.clocks.wall = self.clocks.wall.plus(by_ms);
            }
            _ => {
                self.coverage.count("faults", "clock_back");
                self.clocks.wall.0 -= by_ms.min(self.clocks.wall.0);
            }
        }
        self.read_clocks();
        self.trace.note(self.step, self.now, || "the clocks of the machine jump".to_owned());
        if self.choices.below(2) == 0 { self.tick() } else { Ok(()) }
    }

    /// The server will be killed while it handles the next event.
    pub(crate) fn arm_crash(&mut self) -> Judged {
        let at = match self.choices.below(4) {
            0 => CrashAt::BeforeCommit,
            1 => CrashAt::AfterEffects(0),
            2 => CrashAt::AfterEffects(1),
            _ => CrashAt::AfterEffects(64),
        };
        self.armed = Some(at);
        if self.choices.below(2) == 0 {
            self.act()?;
        } else {
            self.pass_time()?;
        }
        // Nothing was handed over in this step: it is killed while idle.
        if self.armed.take().is_some() {
            self.crash(CrashAt::BeforeCommit, Outbox::default())?;
        }
        Ok(())
    }

    /// The server is killed: what is in `out` may be lost, in flight, or begun.
    pub(crate) fn crash(&mut self, at: CrashAt, mut out: Outbox) -> Judged {
        self.coverage.count("faults", "server_killed");
        self.trace.note(self.step, self.now, || format!("the server is killed: {at:?}"));
        if let CrashAt::AfterEffects(count) = at {
            self.commit(&mut out)?;
            checks::turns::given(self, &out.effects)?;
            for effect in out.effects.drain(..).take(count as usize) {
                self.start(effect);
            }
        }
        self.forget_clients();
        for (_, item) in std::mem::take(&mut self.agenda) {
            if let Item::Act { effect, began_with, .. } = item {
                self.abandon(&effect, began_with)?;
            }
        }
        self.boot()
    }

    /// No server is left to report this effect; it may have happened all the same.
    fn abandon(&mut self, effect: &Effect, began_with: u64) -> Judged {
        if self.calm || self.choices.below(2) == 1 {
            self.perform(&effect.action, began_with)?;
            // What the effect started is not reported either.
            self.agenda.clear();
        } else if let kernel::Action::Launch(launch) = &effect.action {
            if self.choices.below(2) == 0 {
                self.runtime.remove(launch.instance);
            } else {
                self.runtime.die(launch.instance);
            }
        }
        Ok(())
    }

    fn forget_clients(&mut self) {
        let leases: Vec<_> = self.ledger.leases.keys().copied().collect();
        for lease in leases {
            self.ledger.drop_lease(lease, LeasePhase::Lost);
        }
        self.ledger.pending.clear();
        self.ledger.queues.clear();
        self.ledger.uses.clear();
        self.ledger.processes.clear();
        self.ledger.reads.clear();
        self.follow_ups.clear();
        self.watch.gone.clear();
    }

    /// A kernel is rebuilt from what was committed and what exists.
    fn boot(&mut self) -> Judged {
        for id in self.runtime.instances.keys().copied().collect::<Vec<InstanceId>>() {
            if !self.calm && self.choices.below(3) == 0 {
                self.runtime.remove(id);
            } else if let Some(one) = self.runtime.instances.get_mut(&id) {
                one.left_over = true;
                one.effects = 0;
                one.readings = 0;
                one.changing_turns.clear();
                one.uses.clear();
                one.processes.clear();
                one.stop = None;
                one.scale = 0;
                if one.phase == Phase::Starting {
                    one.phase = Phase::Dead;
                }
            }
        }
        self.boots += 1;
        let away_ms = self.choices.between(0, 2_000);
        self.advance(away_ms);
        self.begin_run();
        (self.stopping, self.stopped) = (false, false);
        // The new kernel has not heard of the disk yet.
        self.disk_short = false;
        self.watch.last_effect = None;
        self.watch.end_notified.clear();
        self.watch.ended_now.clear();
        self.watch.quiesced.clear();
        let alive: Vec<InstanceId> = self.runtime.instances.keys().copied().collect();
        self.trace.note(self.step, self.now, || format!("the server starts; alive: {alive:?}"));
        let boot = boot(&self.scenario, self.boots, self.now, self.flaw);
        self.kernel = Kernel::restore(boot, self.store.journal(), &alive).0;
        let mut out = std::mem::take(self.kernel.outbox());
        self.settle(&mut out, None)?;
        checks::transitions::begin(self);
        self.forget_lost_sessions();
        self.notify(self.scenario.key_limits())
    }

    /// Sessions that were never committed no longer exist.
    fn forget_lost_sessions(&mut self) {
        let known = &self.store.sessions;
        self.ledger.open_sessions.retain(|id| known.contains_key(id));
        self.ledger.asked_turns.clear();
    }

    /// The server is asked to stop in order.
    pub(crate) fn begin_shutdown(&mut self) -> Judged {
        if self.stopping {
            return Ok(());
        }
        let grace_ms = self.choices.pick(&[1_000, 0, 5_000]).unwrap_or(1_000);
        self.coverage.count("faults", "shutdown");
        self.stopping = true;
        self.notify(Event::ShutdownBegan { grace_ms })
    }

    /// A server that stopped in order is started again.
    pub(crate) fn start_again(&mut self) -> Judged {
        self.forget_clients();
        for (_, item) in std::mem::take(&mut self.agenda) {
            if let Item::Act { effect, began_with, .. } = item {
                self.abandon(&effect, began_with)?;
            }
        }
        self.boot()
    }
}

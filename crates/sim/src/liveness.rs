//! The end of every world: faults stop, clients send no new requests, time runs on. Then every
//! waiting request must be answered, every pool must reach its size, every pending removal must
//! complete, and a server that is stopped must leave nothing.

use kernel::Event;
use model::InstanceId;
use model::record::Owner;
use model::state::PoolPhase;

use crate::checks::{Judged, Promise, broken, deadlines, full_audit, holds, transitions};
use crate::runtime::Instance;
use crate::world::World;

/// How long the world runs without faults before the final checks.
const LONG_MS: u64 = 150_000;
/// How long it may take then until nothing is in progress.
const MOMENT_MS: u64 = 20_000;
/// More steps than any world needs for that.
const MOST_STEPS: u32 = 200_000;

impl World {
    /// Lets the world become idle and checks what is left.
    pub fn rest(&mut self) -> Judged {
        self.choices.grow_dull();
        self.calm = true;
        self.armed = None;
        self.step += 1;
        // A clock that went back is corrected, or stored times would never come.
        self.clocks.wall = self.run_wall().max(self.watch.latest_wall);
        self.begin_run();
        if self.stopping {
            self.finish_shutdown()?;
            self.start_again()?;
        }
        self.ledger.open_sessions.clear();
        self.report_disk(false)?;
        // A scale file above zero would keep its sandbox alive for ever.
        let held = |(id, one): (&InstanceId, &Instance)| (one.scale > 0).then_some(*id);
        let now = self.now.mono;
        for instance in self.runtime.instances.iter().filter_map(held).collect::<Vec<_>>() {
            if let Some(one) = self.runtime.instances.get_mut(&instance) {
                one.scale = 0;
                one.stirred_at = now;
                one.processes.iter_mut().for_each(|process| process.keeps_awake = false);
            }
            self.notify(Event::ScaleWritten { instance, seq: u64::MAX, scale: 0, drops: true })?;
        }
        self.run_for(LONG_MS)?;
        self.come_to_rest()?;
        full_audit::judge(self)?;
        self.finish_shutdown()
    }

    fn run_for(&mut self, ms: u64) -> Judged {
        let until = self.now.mono.plus(ms);
        for _ in 0..MOST_STEPS {
            if self.now.mono >= until || self.stopped {
                return Ok(());
            }
            self.pass_time()?;
        }
        broken(Promise::AllAnswered, || "the world does not become idle".to_owned())
    }

    /// Pools always renew their sandboxes, so rest is a moment between two renewals.
    fn come_to_rest(&mut self) -> Judged {
        let until = self.now.mono.plus(MOMENT_MS);
        let mut last = self.at_rest();
        while self.now.mono < until {
            if self.agenda.is_empty() {
                last = self.at_rest();
                if last.is_ok() {
                    break;
                }
            }
            self.pass_time()?;
        }
        last
    }

    fn at_rest(&self) -> Judged {
        if let Some((request, pending)) = self.ledger.pending.first_key_value() {
            return broken(Promise::AllAnswered, || format!("{request:?} ({:?})", pending.ask));
        }
        if let Some((turn, of)) = self.ledger.turns.first_key_value() {
            return broken(Promise::TurnsEndOnce, || format!("{turn:?} of {of:?} never ended"));
        }
        transitions::rested(self)?;
        deadlines::rested(self)?;
        let leaked = |what: String| broken(Promise::NothingLeaks, || what);
        for record in self.store.sandboxes.values() {
            if record.ending.is_some() || record.copying_from.is_some() {
                return leaked(format!("{record:?} is not done"));
            }
            if let Owner::Lease(_) = record.owner {
                return leaked(format!("{record:?} is still leased"));
            }
            let idle = record.owner == Owner::Unowned;
            if record.instance.is_some() && !idle {
                return leaked(format!("{record:?} never became cold"));
            }
        }
        if let Some(doomed) = self.store.doomed.first() {
            return leaked(format!("{doomed:?} was never deleted"));
        }
        for instance in self.runtime.instances.keys() {
            if !self.store.by_instance.contains_key(instance) {
                return leaked(format!("{instance:?} exists and is in no record"));
            }
        }
        let in_sandboxes = self.store.sandboxes.values().map(|record| record.workspace);
        let shelved = self.store.sessions.values().filter_map(|session| session.files);
        let kept: std::collections::BTreeSet<_> =
            in_sandboxes.chain(shelved.map(|files| files.workspace)).collect();
        if let Some(lost) = self.runtime.workspaces.keys().find(|id| !kept.contains(id)) {
            return leaked(format!("{lost:?} exists and no record names it"));
        }
        for (sandbox, generation) in self.watch.announced.keys() {
            let lives = self.store.sandboxes.get(sandbox).is_some_and(|record| {
                record.generation == *generation && record.instance.is_some()
            });
            holds(Promise::TerminatedOnce, lives, || {
                format!("the end of {sandbox:?} {generation} was never published")
            })?;
        }
        self.pools_full()
    }

    fn pools_full(&self) -> Judged {
        let config = &self.scenario.config;
        let live = self.store.by_instance.len() as u32;
        for (name, pool) in &self.store.pools {
            let Some(stats) = self.kernel.pool_stats(name) else { continue };
            let want = match pool.phase {
                PoolPhase::Active => pool.template.pool.pool_size,
                PoolPhase::Draining | PoolPhase::Destroying => 0,
            };
            let idle = self.store.idle.get(name).map_or(0, |idle| idle.len() as u32);
            let memory_mb = u64::from(pool.template.limits.memory_mb);
            let room = live < config.max_live
                && (self.store.sandboxes.len() as u32) < config.max_sandboxes
                && config
                    .memory_budget_mb
                    .is_none_or(|budget_mb| self.runtime.memory_mb + memory_mb <= budget_mb);
            // A pool may be short of one that is being replaced right now.
            let full = idle + stats.launching >= want;
            holds(Promise::PoolsFill, full || !room, || format!("{idle} of {want}: {stats:?}"))?;
            holds(Promise::PoolsFill, idle <= want, || format!("{idle} of {want}: {stats:?}"))?;
            holds(Promise::PoolsFill, stats.slots_used <= idle + stats.launching, || {
                format!("slots are lost: {stats:?}")
            })?;
        }
        Ok(())
    }

    fn finish_shutdown(&mut self) -> Judged {
        if !self.stopping {
            self.stopping = true;
            self.notify(Event::ShutdownBegan { grace_ms: 1_000 })?;
        }
        self.run_for(LONG_MS)?;
        let left = self.runtime.instances.len();
        holds(Promise::ShutdownFinal, self.stopped, || {
            format!("the server does not stop; {left} instances are left")
        })
    }
}

//! What keeps a sandbox awake: processes that were started with keepAlive, and what programs write
//! to the scale file. Above nothing, it is never frozen, swept or evicted. Everything here is
//! forgotten when the sandbox starts, is returned, wiped or killed, so that nothing can be stuck
//! awake.

use std::sync::Arc;

use model::state::Wakefulness;
use model::{EffectId, EndCause, ErrorCode, InstanceId, Mono, ProcessId, Refusal, SandboxId, Wall};

use crate::effect::{Action, Effect};
use crate::entry::{Extra, Phase, Process, ScheduledStop};
use crate::event::{Failure, FailureKind, KeepAlive, Outcome, ScaleOp};
use crate::reply::{KeptProcess, Reply, WakeReport};
use crate::slab::Ix;
use crate::{Flaw, Kernel};

/// How often a process whose time is over is killed before we leave it to the end of its sandbox.
const PROCESS_KILLS_MAX: u32 = 3;

impl Kernel {
    pub(crate) fn process_started(
        &mut self,
        instance: InstanceId,
        process: ProcessId,
        keep_alive: Option<KeepAlive>,
    ) -> Result<Reply, Refusal> {
        let Some(ix) = self.in_use(instance) else { return Ok(Reply::Noted) };
        let Some(keep_alive) = keep_alive else { return Ok(Reply::Noted) };
        let now = self.now;
        let max = self.config.max_processes as usize;
        let timeout_ms = keep_alive.timeout_ms.unwrap_or(self.config.keep_alive_timeout_ms);
        let kill_at = if timeout_ms == 0 { Mono::NEVER } else { now.mono.plus(timeout_ms) };
        let extra = self.entries[ix].extra();
        if extra.processes.len() >= max && !extra.processes.contains_key(&process) {
            let cause = format!("a sandbox may have {max} keepAlive processes");
            return Err(Refusal::new(ErrorCode::InvalidArgument, cause));
        }
        extra.processes.insert(
            process,
            Process {
                holds: true,
                started_at: now.wall,
                timeout_ms,
                kill_at,
                killing: None,
                kills: 0,
            },
        );
        self.settle(ix);
        self.arm_processes(ix);
        Ok(Reply::Noted)
    }

    pub(crate) fn process_ended(&mut self, instance: InstanceId, process: ProcessId) {
        let Some(ix) = self.in_use(instance) else { return };
        let was_awake = self.entries[ix].is_awake();
        if let Some(extra) = &mut self.entries[ix].extra
            && extra.processes.remove(&process).is_some()
        {
            self.holds_changed(ix, was_awake);
        }
    }

    pub(crate) fn scale_written(&mut self, instance: InstanceId, op: ScaleOp) {
        let Some(ix) = self.in_use(instance) else { return };
        let was_awake = self.entries[ix].is_awake();
        let extra = self.entries[ix].extra();
        match op {
            ScaleOp::Add(n) => extra.scale = extra.scale.saturating_add(n),
            ScaleOp::Sub(n) => extra.scale = extra.scale.saturating_sub(n),
            ScaleOp::Set(n) => {
                extra.scale = n;
                for process in extra.processes.values_mut() {
                    process.holds = false;
                }
            }
        }
        self.holds_changed(ix, was_awake);
    }

    /// Takes keepAlive from the processes that exist now, now or later. The latest call counts.
    pub(crate) fn stop_requested(
        &mut self,
        sandbox: SandboxId,
        after_ms: u64,
    ) -> Result<Reply, Refusal> {
        let ix = self.usable(sandbox)?;
        let now = self.now;
        let was_awake = self.entries[ix].is_awake();
        let extra = self.entries[ix].extra();
        extra.stop = None;
        let processes: Vec<ProcessId> =
            extra.processes.iter().filter(|(_, p)| p.holds).map(|(id, _)| *id).collect();
        if after_ms == 0 {
            release(extra, &processes);
            self.holds_changed(ix, was_awake);
        } else if !processes.is_empty() {
            let at = now.mono.plus(after_ms);
            extra.stop = Some(ScheduledStop { at, at_wall: now.wall.plus(after_ms), processes });
            self.arm(ix, at);
        }
        Ok(Reply::Wakefulness(self.wake_report_of(ix)))
    }

    /// Kills processes whose time is over, and carries out a stop that was asked for ahead.
    pub(crate) fn processes_due(&mut self, ix: Ix) {
        let now = self.now.mono;
        let takes_all = self.flawed(Flaw::StopTakesLaterProcesses);
        let was_awake = self.entries[ix].is_awake();
        let Some(extra) = &mut self.entries[ix].extra else { return };
        let mut changed = false;
        if let Some(stop) = extra.stop.take_if(|stop| stop.at <= now) {
            let mut processes = stop.processes;
            if takes_all {
                processes = extra.processes.keys().copied().collect();
            }
            release(extra, &processes);
            changed = true;
        }
        let mut over = Vec::new();
        for (id, process) in &mut extra.processes {
            if process.kill_at <= now {
                // Whether or not the kill works, it holds nothing any more.
                changed |= std::mem::take(&mut process.holds);
                process.kill_at = Mono::NEVER;
                over.push(*id);
            }
        }
        for process in over {
            self.kill_process(ix, process);
        }
        if changed {
            self.holds_changed(ix, was_awake);
        }
    }

    fn kill_process(&mut self, ix: Ix, process: ProcessId) {
        self.next_effect += 1;
        let n = self.next_effect;
        let timeout_ms = self.config.deadlines.turn_ms;
        let deadline = self.now.mono.plus(timeout_ms);
        let entry = &mut self.entries[ix];
        let id = EffectId { sandbox: entry.id, generation: entry.generation, n };
        let action = Action::KillProcess { instance: entry.instance, process };
        if let Some(known) = entry.extra().processes.get_mut(&process) {
            known.killing = Some(n);
            known.kills += 1;
            // If nothing is heard of it, it is killed again.
            known.kill_at = if known.kills < PROCESS_KILLS_MAX { deadline } else { Mono::NEVER };
        }
        self.out.effects.push(Effect { id, deadline, action });
        self.arm_processes(ix);
    }

    pub(crate) fn process_kill_ended(&mut self, ix: Ix, n: u64, outcome: &Outcome) {
        let now = self.now.mono;
        let pause_ms = self.config.backoff.first_ms;
        let Some(extra) = &mut self.entries[ix].extra else { return };
        let Some(process) = extra.processes.values_mut().find(|p| p.killing == Some(n)) else {
            return;
        };
        process.killing = None;
        if let Outcome::Failed(Failure { kind: FailureKind::Gone, detail }) = outcome {
            let detail = Arc::clone(detail);
            self.died(ix, EndCause::Crash, Some(detail));
            return;
        }
        match outcome {
            // That it has ended is told by an event of its own.
            Outcome::Done => process.kill_at = Mono::NEVER,
            Outcome::Failed(_) | Outcome::TimedOut => {
                if process.kills < PROCESS_KILLS_MAX {
                    process.kill_at = now.plus(pause_ms);
                    self.arm_processes(ix);
                }
            }
        }
    }

    /// Sees to it that a sandbox is looked at when something of its processes is due.
    pub(crate) fn arm_processes(&mut self, ix: Ix) {
        let Some(extra) = &self.entries[ix].extra else { return };
        let kills = extra.processes.values().map(|process| process.kill_at);
        let stop = extra.stop.iter().map(|stop| stop.at);
        if let Some(at) = kills.chain(stop).min().filter(|at| *at != Mono::NEVER) {
            self.arm(ix, at);
        }
    }

    /// What keeps a sandbox awake changed. A sandbox that was kept awake was in use until now.
    fn holds_changed(&mut self, ix: Ix, was_awake: bool) {
        if was_awake {
            self.touch(ix);
        }
        self.settle(ix);
        self.arm_quiet(ix);
        self.arm_processes(ix);
    }

    fn in_use(&self, instance: InstanceId) -> Option<Ix> {
        let ix = self.instance_index.get(instance.as_u128())?;
        (self.entries[ix].phase == Phase::InUse).then_some(ix)
    }

    /// What keeps a sandbox awake, by its id.
    pub fn wake_report(&self, sandbox: SandboxId) -> Option<WakeReport> {
        let ix = self.entry_index.get(sandbox.as_u128())?;
        Some(self.wake_report_of(ix))
    }

    fn wake_report_of(&self, ix: Ix) -> WakeReport {
        let entry = &self.entries[ix];
        let extra = entry.extra.as_deref();
        let wakefulness = if entry.is_awake() { Wakefulness::Awake } else { Wakefulness::Auto };
        let kept = |(id, process): (&ProcessId, &Process)| KeptProcess {
            process: *id,
            started_at: process.started_at,
            timeout_ms: process.timeout_ms,
        };
        let scheduled: Option<Wall> = extra.and_then(|e| e.stop.as_ref()).map(|s| s.at_wall);
        WakeReport {
            wakefulness,
            scheduled_stop_at: scheduled,
            processes: extra
                .map(|e| e.processes.iter().filter(|(_, p)| p.holds).map(kept).collect())
                .unwrap_or_default(),
            scale: extra.map_or(0, |e| e.scale),
        }
    }
}

fn release(extra: &mut Extra, processes: &[ProcessId]) {
    for id in processes {
        if let Some(process) = extra.processes.get_mut(id) {
            process.holds = false;
        }
    }
}

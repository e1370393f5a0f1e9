//! The time limits of processes: when one is killed because its time has expired, when a scheduled
//! stop takes effect, and that this time stops while the sandbox is frozen. A process whose time
//! has expired keeps nothing alive, whether or not its kill works.

use std::sync::Arc;

use model::lifecycle::WakeCause;
use model::{EffectId, EndCause, Mono, ProcessId};

use crate::Kernel;
use crate::effect::{Action, Effect};
use crate::entry::{Entry, EntryIx, Frozen, Program};
use crate::event::{Failure, FailureKind, Outcome};
use crate::restart_policy::EndRequest;

/// How often a kill is tried before the process is left to the end of its sandbox.
const PROCESS_KILLS_MAX: u32 = 3;

impl Kernel {
    /// Handles what is due for the processes of a sandbox: restarts past their deadline, a
    /// scheduled stop, and processes whose time has expired.
    pub(crate) fn processes_due(&mut self, entry: EntryIx) {
        self.restarts_overdue(entry);
        if self.thaw_before_kill(entry) {
            return;
        }
        let was_kept_alive = self.entries[entry].is_kept_alive();
        let stopped = self.stop_due(entry);
        let timed_out = self.end_overdue_processes(entry);
        if let Some(because) = timed_out.or(stopped) {
            self.keep_alive_changed(entry, was_kept_alive, because);
        }
    }

    /// Ends restarts that passed their deadline.
    fn restarts_overdue(&mut self, entry: EntryIx) {
        let now = self.now.mono;
        let Some(rare) = &self.entries[entry].rare else { return };
        let is_late = |program: Program| matches!(program, Program::Restarting { deadline, .. } if deadline <= now);
        let late = rare.processes.iter().filter(|(_, process)| is_late(process.program));
        for process in late.map(|(id, _)| *id).collect::<Vec<_>>() {
            self.restart_ended(entry, process, &Outcome::TimedOut);
        }
    }

    /// Carries out a scheduled stop that is due.
    fn stop_due(&mut self, entry: EntryIx) -> Option<WakeCause> {
        let now = self.now.mono;
        let takes_all = self.flaws.stops_later_processes();
        let rare = self.entries[entry].rare.as_mut()?;
        let stop = rare.stop.take_if(|stop| stop.at <= now)?;
        let mut processes = stop.processes;
        if takes_all {
            processes = rare.processes.keys().copied().collect();
        }
        rare.release(&processes);
        Some(WakeCause::Stopped)
    }

    /// Ends processes whose time has expired, and repeats kills that did not work.
    fn end_overdue_processes(&mut self, entry: EntryIx) -> Option<WakeCause> {
        let now = self.now;
        if is_time_stopped(&self.entries[entry]) {
            return None;
        }
        let rare = self.entries[entry].rare.as_mut()?;
        let mut over = Vec::new();
        let mut changed = None;
        for (id, process) in &mut rare.processes {
            if process.kill_at > now.mono {
                continue;
            }
            process.kill_at = Mono::NEVER;
            if process.kills == 0 {
                process.asked = process.asked.and(EndRequest::Timeout);
            }
            // Whether or not the kill works, the process keeps nothing alive any more.
            if std::mem::take(&mut process.keeps_alive) {
                changed = Some(WakeCause::Timeout);
            }
            over.push((*id, process.program, process.asked));
        }
        for (process, program, asked) in over {
            match program {
                Program::Running => self.kill_process(entry, process),
                Program::AwaitsRestart { exit, .. } => {
                    self.process_ended(entry, process, exit.end_as_asked(now.wall, asked));
                }
                // It is killed as soon as it runs.
                Program::Restarting { .. } => {}
            }
        }
        changed
    }

    /// Thaws a sandbox that may be frozen, before anything in it is killed.
    fn thaw_before_kill(&mut self, entry: EntryIx) -> bool {
        let now = self.now.mono;
        let sandbox = &self.entries[entry];
        let due = sandbox.rare.iter().flat_map(|rare| rare.processes.values());
        let unsure = sandbox.frozen == Frozen::Unsure
            && sandbox.ops.is_free()
            && sandbox.termination.is_none();
        let thaws = unsure && due.into_iter().any(|process| process.kill_at <= now);
        if thaws {
            self.thaw(entry);
        }
        thaws
    }

    /// The processes of a sandbox stopped, and so do their time limits.
    pub(crate) fn stop_process_time(&mut self, entry: EntryIx) {
        let now = self.now.mono;
        if let Some(rare) = &mut self.entries[entry].rare {
            rare.time_stopped_since = Some(now);
        }
    }

    /// They run again: their time limits continue with what was left.
    pub(crate) fn resume_process_time(&mut self, entry: EntryIx) {
        let now = self.now.mono;
        if self.flaws.lets_process_time_run_frozen() {
            return;
        }
        if let Some(rare) = &mut self.entries[entry].rare
            && let Some(since) = rare.time_stopped_since.take()
        {
            let slept_ms = now.since(since);
            for process in rare.processes.values_mut().filter(|p| p.kill_at != Mono::NEVER) {
                process.kill_at = process.kill_at.plus(slept_ms);
            }
        }
        self.arm_processes(entry);
    }

    /// Kills the program of a process.
    pub(crate) fn kill_process(&mut self, entry: EntryIx, process: ProcessId) {
        let n = self.minter.effect();
        let timeout_ms = self.config.deadlines.turn_ms;
        let deadline = self.now.mono.plus(timeout_ms);
        let sandbox = &mut self.entries[entry];
        let id = EffectId { sandbox: sandbox.id, generation: sandbox.generation, n };
        let action = Action::KillProcess { instance: sandbox.instance, process };
        if let Some(known) = sandbox.rare_mut().processes.get_mut(&process) {
            known.killing = Some((n, deadline));
            known.kills += 1;
            // Without a completion the kill is repeated.
            known.kill_at = if known.kills < PROCESS_KILLS_MAX { deadline } else { Mono::NEVER };
        }
        self.out.effects.push(Effect { id, deadline, action });
        self.arm_processes(entry);
    }

    pub(crate) fn process_kill_ended(&mut self, entry: EntryIx, n: u64, outcome: &Outcome) {
        let now = self.now.mono;
        let pause_ms = self.config.backoff.first_ms;
        let Some(rare) = &mut self.entries[entry].rare else { return };
        let Some(process) =
            rare.processes.values_mut().find(|p| p.killing.is_some_and(|(of, _)| of == n))
        else {
            return;
        };
        process.killing = None;
        if let Outcome::Failed(Failure { kind: FailureKind::Gone, detail }) = outcome {
            let detail = Arc::clone(detail);
            self.died(entry, EndCause::Crash, Some(detail));
            return;
        }
        match outcome {
            // The end of its program is reported by an event.
            Outcome::Done => {
                process.kill_at = Mono::NEVER;
                self.arm_freeze_and_sweep(entry);
            }
            Outcome::Failed(_) | Outcome::TimedOut => {
                if process.kills < PROCESS_KILLS_MAX {
                    process.kill_at = now.plus(pause_ms);
                    self.arm_processes(entry);
                }
            }
        }
    }

    /// Sets the alarm for what is due next for the processes of a sandbox.
    pub(crate) fn arm_processes(&mut self, entry: EntryIx) {
        let now = self.now.mono;
        let is_time_stopped = is_time_stopped(&self.entries[entry]);
        let Some(rare) = &self.entries[entry].rare else { return };
        let mut at = rare.stop.as_ref().map_or(Mono::NEVER, |stop| stop.at);
        for process in rare.processes.values() {
            at = at.min(process.restart_alarm(now));
            if !is_time_stopped {
                at = at.min(process.kill_at);
            }
        }
        if at != Mono::NEVER {
            self.arm(entry, at);
        }
    }
}

/// Whether the processes of a sandbox are stopped, or about to be.
fn is_time_stopped(entry: &Entry) -> bool {
    entry.frozen == Frozen::Yes || entry.ops.is_freezing_or_thawing()
}

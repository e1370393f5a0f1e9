//! The time of processes: when one is killed because its time is over, when a stop that was asked for
//! ahead comes, and that time stands still while their sandbox is frozen. A process whose time is
//! over keeps nothing awake, whether or not its kill works.

use std::sync::Arc;

use model::lifecycle::WakeCause;
use model::{EffectId, EndCause, Mono, ProcessId};

use crate::Kernel;
use crate::effect::{Action, Effect};
use crate::entry::{Entry, EntryIx, Frozen, Program};
use crate::event::{Failure, FailureKind, Outcome};
use crate::restart_policy::EndAsked;

/// How often a process is killed before we leave it to the end of its sandbox.
const PROCESS_KILLS_MAX: u32 = 3;

impl Kernel {
    /// Looks at what is due of the processes of a sandbox: starts of programs of which nothing is
    /// heard, a stop that was asked for ahead, and processes whose time is over.
    pub(crate) fn processes_due(&mut self, entry: EntryIx) {
        self.restarts_overdue(entry);
        if self.thawed_first(entry) {
            return;
        }
        let was_awake = self.entries[entry].is_awake();
        let stopped = self.stop_due(entry);
        let timed_out = self.end_overtime(entry);
        if let Some(because) = timed_out.or(stopped) {
            self.holds_changed(entry, was_awake, because);
        }
    }

    /// Nothing is heard of the start of a program.
    fn restarts_overdue(&mut self, entry: EntryIx) {
        let now = self.now.mono;
        let Some(extra) = &self.entries[entry].extra else { return };
        let is_late = |program: Program| matches!(program, Program::Restarts { deadline, .. } if deadline <= now);
        let late = extra.processes.iter().filter(|(_, process)| is_late(process.program));
        for process in late.map(|(id, _)| *id).collect::<Vec<_>>() {
            self.restart_ended(entry, process, &Outcome::TimedOut);
        }
    }

    /// Carries out a stop that was asked for ahead.
    fn stop_due(&mut self, entry: EntryIx) -> Option<WakeCause> {
        let now = self.now.mono;
        let takes_all = self.flaws.stops_later_processes();
        let extra = self.entries[entry].extra.as_mut()?;
        let stop = extra.stop.take_if(|stop| stop.at <= now)?;
        let mut processes = stop.processes;
        if takes_all {
            processes = extra.processes.keys().copied().collect();
        }
        extra.release(&processes);
        Some(WakeCause::Stopped)
    }

    /// Ends processes whose time is over, and kills again where the last kill did not work.
    fn end_overtime(&mut self, entry: EntryIx) -> Option<WakeCause> {
        let now = self.now;
        if stands_still(&self.entries[entry]) {
            return None;
        }
        let extra = self.entries[entry].extra.as_mut()?;
        let mut over = Vec::new();
        let mut changed = None;
        for (id, process) in &mut extra.processes {
            if process.kill_at > now.mono {
                continue;
            }
            process.kill_at = Mono::NEVER;
            if process.kills == 0 {
                process.asked = process.asked.and(EndAsked::Timeout);
            }
            // Whether or not the kill works, it holds nothing any more.
            if std::mem::take(&mut process.holds) {
                changed = Some(WakeCause::Timeout);
            }
            over.push((*id, process.program, process.asked));
        }
        for (process, program, asked) in over {
            match program {
                Program::Runs => self.kill_process(entry, process),
                Program::Rests { exit, .. } => {
                    self.process_over(entry, process, exit.end_as_asked(now.wall, asked));
                }
                // It is killed as soon as it runs.
                Program::Restarts { .. } => {}
            }
        }
        changed
    }

    /// Thaws a sandbox of which it is not known whether it runs, before anything in it is killed.
    fn thawed_first(&mut self, entry: EntryIx) -> bool {
        let now = self.now.mono;
        let sandbox = &self.entries[entry];
        let due = sandbox.extra.iter().flat_map(|extra| extra.processes.values());
        let unsure =
            sandbox.frozen == Frozen::Unsure && sandbox.ops.is_free() && sandbox.ending.is_none();
        let thaws = unsure && due.into_iter().any(|process| process.kill_at <= now);
        if thaws {
            self.thaw(entry);
        }
        thaws
    }

    /// The processes of a sandbox stopped running, and their time with them.
    pub(crate) fn time_stands_still(&mut self, entry: EntryIx) {
        let now = self.now.mono;
        if let Some(extra) = &mut self.entries[entry].extra {
            extra.still_since = Some(now);
        }
    }

    /// They run again: what was left of their time is left of it now.
    pub(crate) fn time_goes_on(&mut self, entry: EntryIx) {
        let now = self.now.mono;
        if self.flaws.lets_time_run_in_sleep() {
            return;
        }
        if let Some(extra) = &mut self.entries[entry].extra
            && let Some(since) = extra.still_since.take()
        {
            let slept_ms = now.since(since);
            for process in extra.processes.values_mut().filter(|p| p.kill_at != Mono::NEVER) {
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
        if let Some(known) = sandbox.extra().processes.get_mut(&process) {
            known.killing = Some((n, deadline));
            known.kills += 1;
            // If nothing is heard of it, it is killed again.
            known.kill_at = if known.kills < PROCESS_KILLS_MAX { deadline } else { Mono::NEVER };
        }
        self.out.effects.push(Effect { id, deadline, action });
        self.arm_processes(entry);
    }

    pub(crate) fn process_kill_ended(&mut self, entry: EntryIx, n: u64, outcome: &Outcome) {
        let now = self.now.mono;
        let pause_ms = self.config.backoff.first_ms;
        let Some(extra) = &mut self.entries[entry].extra else { return };
        let Some(process) =
            extra.processes.values_mut().find(|p| p.killing.is_some_and(|(of, _)| of == n))
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
            // Its end is an event of its own.
            Outcome::Done => {
                process.kill_at = Mono::NEVER;
                self.arm_quiet(entry);
            }
            Outcome::Failed(_) | Outcome::TimedOut => {
                if process.kills < PROCESS_KILLS_MAX {
                    process.kill_at = now.plus(pause_ms);
                    self.arm_processes(entry);
                }
            }
        }
    }

    /// Sees to it that a sandbox is looked at when something of its processes is due.
    pub(crate) fn arm_processes(&mut self, entry: EntryIx) {
        let now = self.now.mono;
        let stands_still = stands_still(&self.entries[entry]);
        let Some(extra) = &self.entries[entry].extra else { return };
        let mut at = extra.stop.as_ref().map_or(Mono::NEVER, |stop| stop.at);
        for process in extra.processes.values() {
            at = at.min(process.restart_alarm(now));
            if !stands_still {
                at = at.min(process.kill_at);
            }
        }
        if at != Mono::NEVER {
            self.arm(entry, at);
        }
    }
}

/// Whether the processes of a sandbox do not run, or are about not to.
fn stands_still(entry: &Entry) -> bool {
    entry.frozen == Frozen::Yes || entry.ops.changes_pace()
}

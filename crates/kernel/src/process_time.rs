//! The time that processes have: it stands still while their sandbox is frozen, and one whose time
//! is over holds nothing any more and is killed, a few times if need be.

use std::sync::Arc;

use model::lifecycle::WakeCause;
use model::{EffectId, EndCause, Mono, ProcessId};

use crate::Kernel;
use crate::effect::{Action, Effect};
use crate::entry::{Entry, EntryIx, Frozen, OpKind};
use crate::event::{Failure, FailureKind, Outcome};

/// How often a process whose time is over is killed before we leave it to the end of its sandbox.
const PROCESS_KILLS_MAX: u32 = 3;

impl Kernel {
    /// Kills processes whose time is over, and carries out a stop that was asked for ahead.
    pub(crate) fn processes_due(&mut self, entry: EntryIx) {
        let now = self.now.mono;
        let takes_all = self.flaws.stops_later_processes();
        let was_awake = self.entries[entry].is_awake();
        let stands_still = stands_still(&self.entries[entry]);
        if self.thawed_first(entry) {
            return;
        }
        let Some(extra) = &mut self.entries[entry].extra else { return };
        let mut changed = None;
        if let Some(stop) = extra.stop.take_if(|stop| stop.at <= now) {
            let mut processes = stop.processes;
            if takes_all {
                processes = extra.processes.keys().copied().collect();
            }
            extra.release(&processes);
            changed = Some(WakeCause::Stopped);
        }
        let mut over = Vec::new();
        for (id, process) in &mut extra.processes {
            if process.kill_at <= now && !stands_still {
                // Whether or not the kill works, it holds nothing any more.
                if std::mem::take(&mut process.holds) {
                    changed = Some(WakeCause::Timeout);
                }
                process.kill_at = Mono::NEVER;
                over.push(*id);
            }
        }
        for process in over {
            self.kill_process(entry, process);
        }
        if let Some(because) = changed {
            self.holds_changed(entry, was_awake, because);
        }
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

    fn kill_process(&mut self, entry: EntryIx, process: ProcessId) {
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
        let stands_still = stands_still(&self.entries[entry]);
        let Some(extra) = &self.entries[entry].extra else { return };
        let running = extra.processes.values().filter(|_| !stands_still);
        let kills = running.map(|process| process.kill_at);
        let stop = extra.stop.iter().map(|stop| stop.at);
        if let Some(at) = kills.chain(stop).min().filter(|at| *at != Mono::NEVER) {
            self.arm(entry, at);
        }
    }
}

/// Whether the processes of a sandbox do not run, or are about not to.
fn stands_still(entry: &Entry) -> bool {
    let op = entry.ops.doing();
    entry.frozen == Frozen::Yes || matches!(op, Some(OpKind::Freeze | OpKind::Thaw))
}

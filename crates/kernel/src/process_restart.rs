//! Starting the program of a process again: after its pause, in the sandbox in which it failed and in
//! no other. A start is a use of that sandbox: a frozen one is thawed for it, and until the start has
//! ended nothing takes the sandbox away. A process that was asked to end is never started.

use std::sync::Arc;

use model::lifecycle::WakeCause;
use model::{
    EffectId, EndCause, ErrorCode, ProcessEndReason, ProcessId, ProcessStatus, Refusal,
    SessionStatus,
};

use crate::Kernel;
use crate::effect::{Action, Effect};
use crate::entry::{EntryIx, Program, Resolve};
use crate::event::{Failure, FailureKind, Outcome, UseKind};

/// How long a program that is to be started again waits for its sandbox, and how long its start may
/// take then.
pub(crate) const RESTART_TIMEOUT_MS: u64 = 60_000;

const LATE: &str = "it was not started in time";

impl Kernel {
    /// Starts programs again whose pause is over, if the sandbox can be used. If it cannot, it is
    /// looked at again when what is in the way has ended.
    pub(crate) fn restart_processes(&mut self, entry: EntryIx) {
        let now = self.now.mono;
        let Some(extra) = &self.entries[entry].extra else { return };
        if extra.processes.is_empty() {
            return;
        }
        let waiting = extra.processes.iter().filter(|(_, process)| process.wants_restart(now));
        let waiting: Vec<_> = waiting.map(|(id, known)| (*id, known.restart_alarm(now))).collect();
        if waiting.is_empty() {
            return;
        }
        // One that is on its way out takes its processes along.
        let stays = self.entries[entry].ending.is_none();
        let refused = self.refuse_when_stopping().err().filter(|_| stays);
        let stopping: Option<Arc<str>> = refused.map(|refusal| (&*refusal.cause).into());
        let mut due = Vec::with_capacity(waiting.len());
        for (process, gives_up_at) in waiting {
            let refused = stopping.clone().or_else(|| (gives_up_at <= now).then(|| LATE.into()));
            match refused {
                Some(cause) => self.restart_failed(entry, process, cause),
                None => due.push(process),
            }
        }
        self.repin(entry);
        if due.is_empty() || !self.is_ready_for_restart(entry) {
            return;
        }
        self.used_by_restart(entry);
        for process in due {
            self.begin_restart(entry, process);
        }
        self.repin(entry);
    }

    /// A sandbox comes into use, as by a caller: those who asked for a freeze do not get it, and a
    /// session that was paused goes on.
    fn used_by_restart(&mut self, entry: EntryIx) {
        self.call_off_freeze(entry);
        if let Some(session) = self.entries[entry].session() {
            self.count_resume(session, None);
            self.set_status(session, SessionStatus::Active);
        }
    }

    /// Whether a program can be started in a sandbox now; what is in the way is called off where that
    /// is possible.
    fn is_ready_for_restart(&mut self, entry: EntryIx) -> bool {
        if let Some(ending) = &self.entries[entry].ending {
            if ending.resolve != Resolve::Voidable || self.flaws.ends_victim_in_use() {
                return false;
            }
            let refusal = Refusal::new(ErrorCode::SandboxBusy, "it came into use again");
            self.void_ending(entry, &refusal);
        }
        if !self.entries[entry].ops.is_free() {
            return false;
        }
        let ready = self.is_restful(entry);
        if !ready {
            self.thaw(entry);
        }
        ready
    }

    pub(crate) fn begin_restart(&mut self, entry: EntryIx, process: ProcessId) {
        self.touch(entry);
        let n = self.minter.effect();
        let deadline = self.now.mono.plus(RESTART_TIMEOUT_MS);
        let sandbox = &mut self.entries[entry];
        let Some(known) = sandbox.extra().processes.get_mut(&process) else { return };
        let Program::Rests { exit, .. } = known.program else { return };
        known.program = Program::Restarts { n, deadline, exit };
        let attempt = known.restarts.saturating_add(1);
        sandbox.holds.use_began(UseKind::Exec);
        sandbox.clean.began_use();
        let newly_dirty = sandbox.files.write_began();
        let id = EffectId { sandbox: sandbox.id, generation: sandbox.generation, n };
        let instance = sandbox.instance;
        let action = Action::RestartProcess { instance, process, attempt };
        self.out.effects.push(Effect { id, deadline, action });
        if newly_dirty {
            self.mark(entry);
        }
        self.settle(entry);
        self.arm(entry, deadline);
    }

    /// An effect on a sandbox ended that is none of those that are done to the sandbox itself: it may
    /// be one on a process.
    pub(crate) fn process_effect_ended(&mut self, entry: EntryIx, n: u64, outcome: &Outcome) {
        let Some(extra) = &self.entries[entry].extra else { return };
        let is_it =
            |program: Program| matches!(program, Program::Restarts { n: of, .. } if of == n);
        let restarts = extra.processes.iter().find(|(_, process)| is_it(process.program));
        match restarts.map(|(id, _)| *id) {
            Some(process) => self.restart_ended(entry, process, outcome),
            None => self.process_kill_ended(entry, n, outcome),
        }
    }

    pub(crate) fn restart_ended(&mut self, entry: EntryIx, process: ProcessId, outcome: &Outcome) {
        match outcome {
            Outcome::Done => {
                self.restart_heard(entry, process);
                self.kill_if_asked(entry, process);
            }
            Outcome::Failed(Failure { kind: FailureKind::Gone, detail }) => {
                self.died(entry, EndCause::Crash, Some(Arc::clone(detail)));
            }
            Outcome::Failed(Failure { detail, .. }) => {
                self.restart_use_over(entry);
                self.restart_failed(entry, process, Arc::clone(detail));
                self.came_to_rest(entry);
            }
            Outcome::TimedOut => {
                self.restart_use_over(entry);
                self.restart_failed(entry, process, LATE.into());
                self.came_to_rest(entry);
            }
        }
    }

    /// A program was started again: its time begins anew.
    pub(crate) fn restart_heard(&mut self, entry: EntryIx, process: ProcessId) {
        let now = self.now;
        let counts = !self.flaws.leaves_restarts_uncounted();
        self.restart_use_over(entry);
        let sandbox = &mut self.entries[entry];
        sandbox.proven_at = now.mono;
        let Some(known) = sandbox.extra().processes.get_mut(&process) else { return };
        known.program_began(now);
        known.restarts = known.restarts.saturating_add(u32::from(counts));
        self.arm_processes(entry);
        self.came_to_rest(entry);
    }

    /// A program runs again. If its end was asked for while it was being started, it could not
    /// hear that: it is killed, and keeps nothing awake any more.
    fn kill_if_asked(&mut self, entry: EntryIx, process: ProcessId) {
        let sandbox = &mut self.entries[entry];
        let was_awake = sandbox.is_awake();
        let Some(known) = sandbox.extra().processes.get_mut(&process) else { return };
        if !known.asked.is_final() {
            return;
        }
        let held = std::mem::take(&mut known.holds);
        self.kill_process(entry, process);
        if held {
            self.holds_changed(entry, was_awake, WakeCause::ProcessEnded);
        }
    }

    /// The start of a program is no longer a use of its sandbox.
    fn restart_use_over(&mut self, entry: EntryIx) {
        let sandbox = &mut self.entries[entry];
        sandbox.holds.use_ended(UseKind::Exec);
        sandbox.files.write_answered();
    }

    /// A program was not started again: its process is over.
    fn restart_failed(&mut self, entry: EntryIx, process: ProcessId, cause: Arc<str>) {
        let at = self.now.wall;
        let Some(known) = self.entries[entry].extra().processes.get(&process) else { return };
        let (Program::Rests { exit, .. } | Program::Restarts { exit, .. }) = known.program else {
            return;
        };
        let end = if known.asked.is_final() {
            exit.end_as_asked(at, known.asked)
        } else {
            let (status, reason) = (ProcessStatus::Failed, ProcessEndReason::RestartFailed);
            exit.end(at, status, reason, Some(cause))
        };
        self.process_over(entry, process, end);
    }
}

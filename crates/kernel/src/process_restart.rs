//! Restarting the program of a process: after its pause, in the sandbox in which it failed and in
//! no other. A restart is a use of that sandbox: a frozen one is thawed for it, and nothing takes
//! the sandbox away before the restart has ended. A process whose end was requested is never
//! restarted.

use std::sync::Arc;

use model::lifecycle::WakeCause;
use model::{
    EffectId, EndCause, ErrorCode, ProcessEndReason, ProcessId, ProcessStatus, Refusal,
    SessionStatus,
};

use crate::Kernel;
use crate::effect::{Action, Effect};
use crate::entry::{EntryIx, Firmness, Program};
use crate::event::{Failure, FailureKind, Outcome, UseKind};

/// How long a restart waits for its sandbox, and how long it may take then.
pub(crate) const RESTART_TIMEOUT_MS: u64 = 60_000;

const LATE: &str = "the program was not restarted in time";

impl Kernel {
    /// Restarts programs whose pause has ended, if the sandbox can be used. If not, the kernel
    /// looks again when the operation in the way has ended.
    pub(crate) fn restart_processes(&mut self, entry: EntryIx) {
        let now = self.now.mono;
        let Some(rare) = &self.entries[entry].rare else { return };
        if rare.processes.is_empty() {
            return;
        }
        let waiting = rare.processes.iter().filter(|(_, process)| process.wants_restart(now));
        let waiting: Vec<_> = waiting.map(|(id, known)| (*id, known.restart_alarm(now))).collect();
        if waiting.is_empty() {
            return;
        }
        // A sandbox that is ending ends its processes too.
        let stays = self.entries[entry].termination.is_none();
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
        self.recompute_demand(entry);
        if due.is_empty() || !self.is_ready_for_restart(entry) {
            return;
        }
        self.used_by_restart(entry);
        for process in due {
            self.begin_restart(entry, process);
        }
        self.recompute_demand(entry);
    }

    /// A sandbox comes into use, as by a caller: pending freeze requests are refused, and a paused
    /// session resumes.
    fn used_by_restart(&mut self, entry: EntryIx) {
        self.refuse_pending_freeze(entry);
        if let Some(session) = self.entries[entry].session() {
            self.count_resume(session, None);
            self.set_status(session, SessionStatus::Active);
        }
    }

    /// Whether a program can be started in a sandbox now. A voidable termination is voided and a
    /// frozen sandbox thawed first.
    fn is_ready_for_restart(&mut self, entry: EntryIx) -> bool {
        if let Some(termination) = &self.entries[entry].termination {
            if termination.firmness != Firmness::Voidable || self.flaws.ends_victim_in_use() {
                return false;
            }
            let refusal = Refusal::new(ErrorCode::SandboxBusy, "the sandbox came into use again");
            self.void_termination(entry, &refusal);
        }
        if !self.entries[entry].ops.is_free() {
            return false;
        }
        let ready = self.is_thawed(entry);
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
        let Some(known) = sandbox.rare_mut().processes.get_mut(&process) else { return };
        let Program::AwaitsRestart { exit, .. } = known.program else { return };
        known.program = Program::Restarting { n, deadline, exit };
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

    /// An effect ended that is no operation on the sandbox itself: it may be one on a process.
    pub(crate) fn process_effect_ended(&mut self, entry: EntryIx, n: u64, outcome: &Outcome) {
        let Some(rare) = &self.entries[entry].rare else { return };
        let is_it =
            |program: Program| matches!(program, Program::Restarting { n: of, .. } if of == n);
        let restarts = rare.processes.iter().find(|(_, process)| is_it(process.program));
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
                self.restart_use_ended(entry);
                self.restart_failed(entry, process, Arc::clone(detail));
                self.on_activity_ended(entry);
            }
            Outcome::TimedOut => {
                self.restart_use_ended(entry);
                self.restart_failed(entry, process, LATE.into());
                self.on_activity_ended(entry);
            }
        }
    }

    /// A program was restarted: its time limit starts again.
    pub(crate) fn restart_heard(&mut self, entry: EntryIx, process: ProcessId) {
        let now = self.now;
        let counts = !self.flaws.leaves_restarts_uncounted();
        self.restart_use_ended(entry);
        let sandbox = &mut self.entries[entry];
        sandbox.proven_at = now.mono;
        let Some(known) = sandbox.rare_mut().processes.get_mut(&process) else { return };
        known.program_began(now);
        known.restarts = known.restarts.saturating_add(u32::from(counts));
        self.arm_processes(entry);
        self.on_activity_ended(entry);
    }

    /// A program runs again. If its end was requested during the restart, it is killed now and
    /// keeps nothing alive.
    fn kill_if_asked(&mut self, entry: EntryIx, process: ProcessId) {
        let sandbox = &mut self.entries[entry];
        let was_kept_alive = sandbox.is_kept_alive();
        let Some(known) = sandbox.rare_mut().processes.get_mut(&process) else { return };
        if !known.asked.is_final() {
            return;
        }
        let held = std::mem::take(&mut known.keeps_alive);
        self.kill_process(entry, process);
        if held {
            self.keep_alive_changed(entry, was_kept_alive, WakeCause::ProcessEnded);
        }
    }

    /// The restart is no longer a use of the sandbox.
    fn restart_use_ended(&mut self, entry: EntryIx) {
        let sandbox = &mut self.entries[entry];
        sandbox.holds.use_ended(UseKind::Exec);
        sandbox.files.write_answered();
    }

    /// A restart failed: the process ends.
    fn restart_failed(&mut self, entry: EntryIx, process: ProcessId, cause: Arc<str>) {
        let at = self.now.wall;
        let Some(known) = self.entries[entry].rare_mut().processes.get(&process) else { return };
        let (Program::AwaitsRestart { exit, .. } | Program::Restarting { exit, .. }) =
            known.program
        else {
            return;
        };
        let end = if known.asked.is_final() {
            exit.end_as_asked(at, known.asked)
        } else {
            let (status, reason) = (ProcessStatus::Failed, ProcessEndReason::RestartFailed);
            exit.end(at, status, reason, Some(cause))
        };
        self.process_ended(entry, process, end);
    }
}

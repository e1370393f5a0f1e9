//! The life of a process: it starts, a caller may request its end, its program ends, and then the
//! process ends or waits for a restart. Every process that the kernel hears of ends exactly once,
//! with a reason, and at the latest with its sandbox. `process_restart` decides when programs
//! restart, `process_time` when they are killed.

use std::sync::Arc;

use model::lifecycle::WakeCause;
use model::{
    EndCause, ErrorCode, InstanceId, ProcessEnd, ProcessEndReason, ProcessId, ProcessStatus,
    Refusal, SandboxId,
};

use crate::Kernel;
use crate::effect::Notice;
use crate::entry::{Entry, EntryIx, Phase, Process, Program};
use crate::event::StartedProcess;
use crate::reply::Reply;
use crate::restart_policy::{
    AfterExit, EndRequest, ProgramEnd, ProgramExit, after_exit, describe_sandbox_end, end_unseen,
    end_with_sandbox, words_of,
};

impl Kernel {
    /// The time limit of a process; 0 is none.
    pub const fn process_timeout_ms(&self, keep_alive: bool, asked: Option<u64>) -> u64 {
        match asked {
            Some(timeout_ms) => timeout_ms,
            None if keep_alive => self.config.keep_alive_timeout_ms,
            None => 0,
        }
    }

    pub(crate) fn process_started(&mut self, started: StartedProcess) -> Result<Reply, Refusal> {
        let StartedProcess { sandbox, instance, process, keep_alive, timeout_ms, restart } =
            started;
        // The instance may have been wiped and belong to another sandbox now.
        let is_it = |entry: &EntryIx| self.entries[*entry].id == sandbox;
        let Some(entry) = self.in_use(instance).filter(is_it) else {
            self.started_too_late(sandbox, process);
            return Ok(Reply::Noted);
        };
        let now = self.now;
        let max = self.config.max_processes as usize;
        let was_kept_alive = self.entries[entry].is_kept_alive();
        let processes = &mut self.entries[entry].rare_mut().processes;
        if processes.contains_key(&process) {
            return Ok(Reply::Noted);
        }
        if processes.len() >= max {
            let cause = format!("a sandbox may have {max} processes");
            let detail = cause.as_str().into();
            let (status, reason) = (ProcessStatus::Failed, ProcessEndReason::Killed);
            let end = end_unseen(now.wall, status, reason, detail);
            let over = Notice::ProcessOver { sandbox, process, end, keeps_alive: false };
            self.out.notices.push(over);
            return Err(Refusal::new(ErrorCode::LimitReached, cause));
        }
        processes.insert(process, Process::new(now, keep_alive, timeout_ms, restart));
        if keep_alive || timeout_ms > 0 {
            self.keep_alive_changed(entry, was_kept_alive, WakeCause::ProcessStarted);
        }
        Ok(Reply::Noted)
    }

    /// A process was started in a sandbox that ended meanwhile: it ends with it.
    fn started_too_late(&mut self, sandbox: SandboxId, process: ProcessId) {
        let entry = self.entries.by_id(sandbox);
        let termination = entry.and_then(|entry| self.entries[entry].termination.as_deref());
        let words = match (termination, self.tombstones.of_sandbox(sandbox)) {
            (Some(termination), _) => {
                describe_sandbox_end(termination.cause, termination.detail.as_deref())
            }
            (None, Some(ended)) => describe_sandbox_end(ended.cause, ended.detail.as_deref()),
            // It is being wiped, or it ended so long ago that its tombstone is gone.
            (None, None) => describe_sandbox_end(EndCause::Returned, None),
        };
        let end = end_with_sandbox(self.now.wall, words.into());
        self.out.notices.push(Notice::ProcessOver { sandbox, process, end, keeps_alive: false });
    }

    /// An end was requested, or a signal. The interpreter signals the program if it runs. If none
    /// runs, none is restarted; one that is being started is killed as soon as it runs.
    pub(crate) fn process_end_asked(
        &mut self,
        instance: InstanceId,
        process: ProcessId,
        more: EndRequest,
    ) -> Result<Reply, Refusal> {
        let now = self.now;
        let forgets = self.flaws.forgets_stop_between_programs();
        let Some((entry, known)) = self.process(instance, process) else {
            return Err(Refusal::new(ErrorCode::ProcessOver, "the process has ended"));
        };
        let program_runs = known.program == Program::Running;
        let more = more.meant(program_runs);
        if !program_runs && matches!(more, EndRequest::Signal(_)) {
            let cause = "the program is about to be restarted, so nothing can get the signal";
            return Err(Refusal::new(ErrorCode::SandboxBusy, cause).retry_after(1_000));
        }
        if !program_runs && forgets {
            return Ok(Reply::Noted);
        }
        known.asked = known.asked.and(more);
        if let Program::AwaitsRestart { exit, .. } = known.program
            && known.asked.is_final()
        {
            let end = exit.end_as_asked(now.wall, known.asked);
            self.process_ended(entry, process, end);
        }
        Ok(Reply::Noted)
    }

    /// The program of a process ended.
    pub(crate) fn program_ended(
        &mut self,
        instance: InstanceId,
        process: ProcessId,
        how: ProgramEnd,
    ) {
        let Some((entry, known)) = self.process(instance, process) else { return };
        match known.program {
            Program::Running => {}
            // The report of the end overtook the report of the restart.
            Program::Restarting { .. } => self.restart_heard(entry, process),
            Program::AwaitsRestart { .. } => return,
        }
        let at = self.now.wall;
        match how {
            ProgramEnd::Exited(exit) => self.program_exited(instance, process, exit),
            ProgramEnd::Lost { sandbox_gone: true, detail } => {
                self.process_ended(entry, process, end_with_sandbox(at, detail));
            }
            ProgramEnd::Lost { sandbox_gone: false, detail } => {
                let (status, reason) = (ProcessStatus::Failed, ProcessEndReason::Exited);
                self.process_ended(entry, process, end_unseen(at, status, reason, detail));
            }
            ProgramEnd::GivenUp => {
                let (status, reason) = (ProcessStatus::Failed, ProcessEndReason::Killed);
                let detail = "an internal error of the server ended the process".into();
                self.process_ended(entry, process, end_unseen(at, status, reason, detail));
            }
        }
    }

    fn program_exited(&mut self, instance: InstanceId, process: ProcessId, exit: ProgramExit) {
        let now = self.now;
        let drops_hold = self.flaws.drops_hold_in_pause();
        let Some((entry, known)) = self.process(instance, process) else { return };
        match after_exit(exit, known.asked, known.restart, known.restarts) {
            AfterExit::Ended(status, reason) => {
                let end = exit.end(now.wall, status, reason, words_of(known.asked));
                self.process_ended(entry, process, end);
            }
            AfterExit::Again { attempt, of } => {
                known.await_restart(now.mono, exit);
                known.keeps_alive &= !drops_hold;
                let sandbox = self.entries[entry].id;
                let exit_code = exit.code;
                let rests =
                    Notice::ProcessRestartScheduled { sandbox, process, exit_code, attempt, of };
                self.out.notices.push(rests);
                self.arm_processes(entry);
            }
        }
    }

    /// Ends a process: it is removed here and keeps nothing alive.
    pub(crate) fn process_ended(&mut self, entry: EntryIx, process: ProcessId, end: ProcessEnd) {
        let sandbox = &mut self.entries[entry];
        let was_kept_alive = sandbox.is_kept_alive();
        let Some(over) = sandbox.rare_mut().processes.remove(&process) else { return };
        let id = sandbox.id;
        // A process that ends by itself counted until then.
        let keeps_alive = over.keeps_alive
            && match end.reason {
                ProcessEndReason::Exited
                | ProcessEndReason::Oom
                | ProcessEndReason::RestartFailed => true,
                ProcessEndReason::Stopped
                | ProcessEndReason::Killed
                | ProcessEndReason::Timeout
                | ProcessEndReason::SandboxEnded
                | ProcessEndReason::ServerEnded => false,
            };
        let notice = Notice::ProcessOver { sandbox: id, process, end, keeps_alive };
        if self.flaws.ends_process_twice() {
            self.out.notices.push(notice.clone());
        }
        self.out.notices.push(notice);
        if let Program::AwaitsRestart { .. } = over.program {
            // Its restart may have been about to use the sandbox.
            self.recompute_demand(entry);
        }
        if over.keeps_alive {
            self.keep_alive_changed(entry, was_kept_alive, WakeCause::ProcessEnded);
        } else {
            // The sandbox was not frozen during the kill.
            self.arm_freeze_and_sweep(entry);
        }
    }

    /// A sandbox ends, or its user lost it: all its processes end.
    pub(crate) fn processes_end_with_sandbox(&mut self, entry: EntryIx, cause: EndCause) {
        let at = self.now.wall;
        self.flaw_restarts_waiting_programs(entry);
        let Entry { id, termination, rare, .. } = &mut self.entries[entry];
        let Some(rare) = rare else { return };
        let detail = termination.as_ref().and_then(|termination| termination.detail.as_deref());
        let words: Arc<str> = describe_sandbox_end(cause, detail).into();
        for process in rare.processes.keys().copied() {
            let end = end_with_sandbox(at, Arc::clone(&words));
            let over = Notice::ProcessOver { sandbox: *id, process, end, keeps_alive: false };
            self.out.notices.push(over);
        }
        rare.processes.clear();
    }

    /// A process that has not ended, with its sandbox.
    fn process(
        &mut self,
        instance: InstanceId,
        process: ProcessId,
    ) -> Option<(EntryIx, &mut Process)> {
        let entry = self.in_use(instance)?;
        let known = self.entries[entry].rare.as_mut()?.processes.get_mut(&process)?;
        Some((entry, known))
    }

    /// The sandbox of a lease or a session, by its instance.
    pub(crate) fn in_use(&self, instance: InstanceId) -> Option<EntryIx> {
        let entry = self.entries.by_instance(instance)?;
        (self.entries[entry].phase() == Phase::InUse).then_some(entry)
    }
}

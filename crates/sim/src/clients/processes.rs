//! What clients do with processes: they start them, with or without a restart policy, poll them,
//! and stop, kill and signal them at any moment.

use kernel::{EndRequest, Event, StartedProcess};
use model::process::RestartPolicy;
use model::{InstanceId, ProcessId};

use crate::checks::Judged;
use crate::interpreter::{Item, ProgramFate};
use crate::runtime::{Instance, Phase, Process};
use crate::world::World;

const SIGHUP: i32 = 1;
const SIGKILL: i32 = 9;
const SIGTERM: i32 = 15;

impl World {
    pub(super) fn act_start_process(&mut self) -> Judged {
        let Some((instance, sandbox)) = self.used_instance() else { return Ok(()) };
        let process = ProcessId::from_u128(self.ledger.fresh());
        let (keep_alive, asked) = match self.choices.below(5) {
            0 => (false, None),
            1 => (true, None),
            2 => (true, Some(1_500)),
            3 => (false, Some(1_500)),
            _ => (true, Some(0)),
        };
        let restart = match self.choices.below(5) {
            0 | 1 => None,
            2 => Some(RestartPolicy { max_restarts: None }),
            3 => Some(RestartPolicy { max_restarts: Some(1) }),
            _ => Some(RestartPolicy { max_restarts: Some(3) }),
        };
        let timeout_ms = self.kernel.process_timeout_ms(keep_alive, asked);
        let started =
            StartedProcess { sandbox, instance, process, keep_alive, timeout_ms, restart };
        // Sometimes the kernel hears of it late, when its sandbox may have ended or changed its id.
        if self.choices.below(8) == 0 {
            let heard_ms = self.choices.between(1, 3_000);
            self.plan(heard_ms, Item::ProcessStarted(started));
            return Ok(());
        }
        self.process_started(started)
    }

    /// The kernel hears that a process was started, if it still runs.
    pub(crate) fn process_started(&mut self, started: StartedProcess) -> Judged {
        let StartedProcess { instance, process, keep_alive, timeout_ms, restart, .. } = started;
        let now = self.now.mono;
        let up = self.runtime.up(instance).filter(|one| !one.frozen);
        let Some(one) = up else { return Ok(()) };
        one.processes.push(Process {
            id: process,
            restart,
            timeout_ms,
            program: 0,
            runs: true,
            restarts: 0,
            rests_since: None,
            restart_by: None,
            to_end: false,
            was_overdue: false,
            keeps_awake: keep_alive,
            due: (timeout_ms > 0).then(|| now.plus(timeout_ms)),
            began: now,
            slept_ms: 0,
            naps: 0,
            kill_asked: false,
        });
        self.ledger.processes.insert(process, instance);
        self.program_will_end(instance, process, 0, restart.is_some());
        self.notify(Event::ProcessStarted(started))
    }

    /// A caller reads the state of a process, or its output, and waits for it.
    pub(super) fn act_poll_processes(&mut self) -> Judged {
        let runs = |one: &Instance| one.processes.iter().any(|process| process.runs);
        let up = |one: &Instance| one.phase == Phase::Up && !one.kill_asked && runs(one);
        let instances = self.runtime.instances.iter();
        let candidates: Vec<_> = instances.filter(|(_, one)| up(one)).map(|(id, _)| *id).collect();
        let Some(instance) = self.choices.pick(&candidates) else { return Ok(()) };
        let Some(sandbox) = self.store.record_of(instance).map(|record| record.id) else {
            return Ok(());
        };
        let now = self.now.mono;
        self.notify(Event::ProcessesRead { sandbox })?;
        let Some(one) = self.runtime.up(instance) else { return Ok(()) };
        if !one.freeze_asked {
            one.active_at = now;
            one.stirred_at = now;
            if one.frozen && one.quiesced_since.is_none() {
                one.polled_at.get_or_insert(now);
            }
        }
        Ok(())
    }

    pub(super) fn act_end_process(&mut self) -> Judged {
        let candidates: Vec<(InstanceId, ProcessId)> = self
            .runtime
            .instances
            .iter()
            .filter(|(_, one)| one.phase == Phase::Up && !one.kill_asked)
            .flat_map(|(id, one)| one.processes.iter().map(|process| (*id, process.id)))
            .collect();
        let Some((instance, process)) = self.choices.pick(&candidates) else { return Ok(()) };
        let asked = match self.choices.below(6) {
            0 => EndRequest::Stop,
            1 => EndRequest::Kill,
            2 => EndRequest::StopForced,
            3 => EndRequest::Signal(SIGKILL),
            4 => EndRequest::Signal(SIGTERM),
            _ => EndRequest::Signal(SIGHUP),
        };
        let dies_ms = self.choices.between(0, 400);
        let ignored = self.choices.below(2) == 1;
        // The end of a process counts as a use, also between two of its programs.
        let now = self.now.mono;
        if let Some(one) = self.runtime.up(instance) {
            one.stirred_at = now;
        }
        let Some(known) = self.runtime.up(instance).and_then(|one| one.process(process)) else {
            return Ok(());
        };
        // Between two programs nothing can decide otherwise.
        let between = known.rests_since.is_some() || known.restart_by.is_some();
        let signal = match asked {
            EndRequest::Signal(signal) => signal,
            EndRequest::Stop => SIGTERM,
            EndRequest::Nothing
            | EndRequest::StopForced
            | EndRequest::Kill
            | EndRequest::Timeout => SIGKILL,
        };
        let was_to_end = known.to_end;
        known.to_end |= match asked {
            EndRequest::Signal(SIGTERM) => between,
            EndRequest::Signal(signal) => signal == SIGKILL,
            EndRequest::Nothing => false,
            EndRequest::Stop | EndRequest::StopForced | EndRequest::Kill | EndRequest::Timeout => {
                true
            }
        };
        let (runs, program) = (known.runs, known.program);
        // Some programs do not end by what can be ignored.
        if runs && (signal == SIGKILL || !ignored) {
            let fate = ProgramFate::Signal(signal);
            self.plan(dies_ms, Item::ProgramEnds { instance, process, program, fate });
        }
        let answer = self.submit(Event::ProcessEndRequested { instance, process, asked }, None)?;
        if let Some(Err(_)) = answer
            && let Some(known) = self.runtime.up(instance).and_then(|one| one.process(process))
        {
            known.to_end = was_to_end;
        }
        Ok(())
    }
}

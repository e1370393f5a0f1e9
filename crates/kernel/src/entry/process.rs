//! One process of a sandbox, from its start to its end: whether its program runs or waits for a
//! restart, which end was requested, and how long it may run. These are the facts; `process_life`,
//! `process_restart` and `process_time` decide.

use model::process::RestartPolicy;
use model::{Mono, Now, Wall};

use crate::process_restart::RESTART_TIMEOUT_MS;
use crate::restart_policy::{EndRequest, ProgramExit, RESTART_PAUSE_MS};

/// A process that has not ended.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Process {
    /// It keeps its sandbox alive.
    pub(crate) keeps_alive: bool,
    /// When its program was last started.
    pub(crate) started_at: Wall,
    pub(crate) timeout_ms: u64,
    /// When its time expires, or the kill is repeated.
    pub(crate) kill_at: Mono,
    /// It is being killed by this effect, until then.
    pub(crate) killing: Option<(u64, Mono)>,
    pub(crate) kills: u32,
    /// Whether its program is restarted when it fails.
    pub(crate) restart: Option<RestartPolicy>,
    /// How often it was restarted.
    pub(crate) restarts: u32,
    pub(crate) asked: EndRequest,
    pub(crate) program: Program,
}

/// What the program of a process does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Program {
    /// It runs.
    Running,
    /// It failed with this exit, and is restarted then, or as soon after that as its sandbox is
    /// ready.
    AwaitsRestart { until: Mono, exit: ProgramExit },
    /// It failed with this exit, and this effect is restarting it, with that deadline.
    Restarting { n: u64, deadline: Mono, exit: ProgramExit },
}

impl Process {
    /// A process whose first program has just been started.
    pub(crate) fn new(
        now: Now,
        keeps_alive: bool,
        timeout_ms: u64,
        restart: Option<RestartPolicy>,
    ) -> Self {
        let mut process = Self {
            keeps_alive,
            started_at: now.wall,
            timeout_ms,
            kill_at: Mono::NEVER,
            killing: None,
            kills: 0,
            restart,
            restarts: 0,
            asked: EndRequest::Nothing,
            program: Program::Running,
        };
        process.program_began(now);
        process
    }

    /// Its program runs: its time limit starts again.
    pub(crate) fn program_began(&mut self, now: Now) {
        self.program = Program::Running;
        self.started_at = now.wall;
        self.kill_at =
            if self.timeout_ms == 0 { Mono::NEVER } else { now.mono.plus(self.timeout_ms) };
        (self.killing, self.kills) = (None, 0);
    }

    /// Its program failed and waits for its restart.
    pub(crate) const fn await_restart(&mut self, now: Mono, exit: ProgramExit) {
        self.program = Program::AwaitsRestart { until: now.plus(RESTART_PAUSE_MS), exit };
        self.asked = self.asked.of_next_program();
    }

    /// Its program is due for a restart.
    pub(crate) fn wants_restart(&self, now: Mono) -> bool {
        matches!(self.program, Program::AwaitsRestart { until, .. } if until <= now)
    }

    /// When the kernel must look at its restart.
    pub(crate) fn restart_alarm(&self, now: Mono) -> Mono {
        match self.program {
            Program::Running => Mono::NEVER,
            Program::AwaitsRestart { until, .. } if until > now => until,
            // It waits for its sandbox, but not without limit.
            Program::AwaitsRestart { until, .. } => until.plus(RESTART_TIMEOUT_MS),
            Program::Restarting { deadline, .. } => deadline,
        }
    }
}

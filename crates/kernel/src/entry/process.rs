//! One process of a sandbox, from its start until it is over: whether its program runs or rests
//! before its next start, what was asked of it, and until when it may run. These are the facts; what
//! follows from them is decided in `process_life`, `process_restart` and `process_time`.

use model::process::RestartPolicy;
use model::{Mono, Now, Wall};

use crate::process_restart::RESTART_TIMEOUT_MS;
use crate::restart_policy::{EndAsked, ProgramExit, RESTART_PAUSE_MS};

/// A process that is not over.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Process {
    /// It keeps its sandbox awake.
    pub(crate) keeps_alive: bool,
    /// When its program was started, the last time.
    pub(crate) started_at: Wall,
    pub(crate) timeout_ms: u64,
    /// When its time is over, or it is killed again.
    pub(crate) kill_at: Mono,
    /// It is being killed by this effect, until then.
    pub(crate) killing: Option<(u64, Mono)>,
    pub(crate) kills: u32,
    /// Whether its program is started again when it fails.
    pub(crate) restart: Option<RestartPolicy>,
    /// How often it was.
    pub(crate) restarts: u32,
    pub(crate) asked: EndAsked,
    pub(crate) program: Program,
}

/// What the program of a process does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Program {
    /// It runs.
    Running,
    /// It failed like this, and is started again then, or as soon as its sandbox is ready after that.
    AwaitsRestart { until: Mono, exit: ProgramExit },
    /// It failed like this, and is being started again by this effect, until then.
    Restarting { n: u64, deadline: Mono, exit: ProgramExit },
}

impl Process {
    /// One whose first program has just been started.
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
            asked: EndAsked::Nothing,
            program: Program::Running,
        };
        process.program_began(now);
        process
    }

    /// A program of it runs: its time begins anew.
    pub(crate) fn program_began(&mut self, now: Now) {
        self.program = Program::Running;
        self.started_at = now.wall;
        self.kill_at =
            if self.timeout_ms == 0 { Mono::NEVER } else { now.mono.plus(self.timeout_ms) };
        (self.killing, self.kills) = (None, 0);
    }

    /// Its program failed and rests before its next start.
    pub(crate) const fn await_restart(&mut self, now: Mono, exit: ProgramExit) {
        self.program = Program::AwaitsRestart { until: now.plus(RESTART_PAUSE_MS), exit };
        self.asked = self.asked.of_next_program();
    }

    /// Its program is to be started again now.
    pub(crate) fn wants_restart(&self, now: Mono) -> bool {
        matches!(self.program, Program::AwaitsRestart { until, .. } if until <= now)
    }

    /// When something about its next start is to be looked at.
    pub(crate) fn restart_alarm(&self, now: Mono) -> Mono {
        match self.program {
            Program::Running => Mono::NEVER,
            Program::AwaitsRestart { until, .. } if until > now => until,
            // It waits for its sandbox, but not for ever.
            Program::AwaitsRestart { until, .. } => until.plus(RESTART_TIMEOUT_MS),
            Program::Restarting { deadline, .. } => deadline,
        }
    }
}

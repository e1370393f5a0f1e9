//! The programs of processes: how they end, and when the kernel hears of it. Nothing here is an
//! effect: programs end by themselves, by a signal, or with their sandbox. The kernel never hears
//! of a program whose process has ended.

use kernel::{Event, ProgramEnd, ProgramExit};
use model::{InstanceId, ProcessId};

use super::Item;
use crate::checks::Judged;
use crate::runtime::Phase;
use crate::world::World;

/// How long the server waits to hear why a sandbox is gone before it reports a program as lost.
const REASON_PATIENCE_MS: u64 = 1_000;

/// How the program of a process ends.
#[derive(Debug, Clone, Copy)]
pub(crate) enum ProgramFate {
    /// By itself.
    ByItself,
    /// By this signal.
    Signal(i32),
}

impl World {
    /// A program was started, and ends by itself some day.
    pub(crate) fn program_will_end(
        &mut self,
        instance: InstanceId,
        process: ProcessId,
        program: u32,
        soon: bool,
    ) {
        let lasts_ms = self.choices.between(1, if soon { 500 } else { 20_000 });
        let fate = ProgramFate::ByItself;
        self.plan(lasts_ms, Item::ProgramEnds { instance, process, program, fate });
    }

    /// A program ends, if it still runs.
    pub(super) fn program_ends(
        &mut self,
        instance: InstanceId,
        process: ProcessId,
        program: u32,
        fate: ProgramFate,
    ) {
        let Some(one) = self.runtime.up(instance) else { return };
        let frozen = one.frozen;
        let Some(known) = one.process(process) else { return };
        if !known.runs || known.program != program {
            return;
        }
        if frozen {
            // Nothing runs in a frozen sandbox, so it goes on when that is thawed.
            self.plan(100, Item::ProgramEnds { instance, process, program, fate });
            return;
        }
        known.runs = false;
        let how = self.draw_end(fate);
        let heard_ms = self.choices.between(0, 30);
        self.plan(heard_ms, Item::ProgramReported { instance, process, program, how });
    }

    fn draw_end(&mut self, fate: ProgramFate) -> ProgramEnd {
        let exit = |code, signal, out_of_memory| {
            ProgramEnd::Exited(ProgramExit { code, signal, out_of_memory })
        };
        match fate {
            ProgramFate::Signal(signal) => exit(None, Some(signal), false),
            ProgramFate::ByItself => match self.choices.below(12) {
                0..=2 => exit(Some(0), None, false),
                3..=7 => exit(Some(3), None, false),
                8 => exit(None, Some(11), false),
                9 => exit(None, Some(9), true),
                10 => ProgramEnd::Lost { sandbox_gone: false, detail: "lost".into() },
                _ => ProgramEnd::GivenUp,
            },
        }
    }

    /// The kernel hears that a program ended.
    pub(super) fn program_reported(
        &mut self,
        instance: InstanceId,
        process: ProcessId,
        program: u32,
        how: ProgramEnd,
    ) -> Judged {
        let now = self.now.mono;
        let Some(one) = self.runtime.instances.get_mut(&instance) else { return Ok(()) };
        let Some(known) = one.process(process).filter(|known| known.program == program) else {
            return Ok(());
        };
        known.runs = false;
        known.start_heard(now);
        known.rests_since = Some(now);
        one.stirred_at = now;
        self.notify(Event::ProgramEnded { instance, process, how })
    }

    /// An instance died: nothing is heard of its programs any more. If the kernel does not say why
    /// in time, the server reports them as lost.
    pub(crate) fn programs_lost(&mut self, instance: InstanceId) {
        let Some(one) = self.runtime.instances.get_mut(&instance) else { return };
        debug_assert_eq!(one.phase, Phase::Dead, "only what is dead loses its programs");
        let running = one.processes.iter_mut().filter(|process| process.runs);
        let lost: Vec<(ProcessId, u32)> = running.map(|one| (one.id, one.program)).collect();
        for (process, program) in lost {
            let how = ProgramEnd::Lost { sandbox_gone: true, detail: "gone".into() };
            let item = Item::ProgramReported { instance, process, program, how };
            self.plan(REASON_PATIENCE_MS, item);
        }
    }
}

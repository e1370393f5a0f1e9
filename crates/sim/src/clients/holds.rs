//! What keeps sandboxes awake or puts them to rest or away: processes, the scale file, stops,
//! freezes, thaws and deletions by id.

use kernel::{Event, KeepAlive, ScaleOp};
use model::{InstanceId, ProcessId, SandboxId};

use crate::checks::{self, Judged};
use crate::interpreter::Item;
use crate::ledger::Ask;
use crate::runtime::{Phase, Process, ScheduledStop};
use crate::world::World;

impl World {
    /// An instance in which somebody works, with its sandbox.
    pub(super) fn used_instance(&mut self) -> Option<(InstanceId, SandboxId)> {
        let candidates: Vec<InstanceId> = self
            .runtime
            .instances
            .iter()
            .filter(|(_, one)| {
                one.phase == Phase::Up && !one.frozen && !one.kill_asked && !one.marks.is_empty()
            })
            .map(|(id, _)| *id)
            .collect();
        let instance = self.choices.pick(&candidates)?;
        let record = self.store.record_of(instance)?;
        // What belongs to nobody runs nothing of anybody.
        (self.ledger.has(record.owner) && record.ending.is_none()).then_some((instance, record.id))
    }

    pub(super) fn act_start_process(&mut self) -> Judged {
        let Some((instance, _)) = self.used_instance() else { return Ok(()) };
        let process = ProcessId::from_u128(self.ledger.fresh());
        let keep_alive = match self.choices.below(4) {
            0 => None,
            1 => Some(KeepAlive { timeout_ms: None }),
            2 => Some(KeepAlive { timeout_ms: Some(1_500) }),
            _ => Some(KeepAlive { timeout_ms: Some(0) }),
        };
        let now = self.now.mono;
        let default_ms = self.scenario.config.keep_alive_timeout_ms;
        let lasts_ms = self.choices.between(1, 20_000);
        let event = Event::ProcessStarted { instance, process, keep_alive };
        let accepted = matches!(self.submit(event, None)?, Some(Ok(_)));
        let Some(one) = self.runtime.up(instance) else { return Ok(()) };
        if accepted {
            one.processes.push(Process {
                id: process,
                keeps_awake: keep_alive.is_some(),
                due: keep_alive
                    .map(|keep| keep.timeout_ms.unwrap_or(default_ms))
                    .filter(|timeout_ms| *timeout_ms > 0)
                    .map(|timeout_ms| now.plus(timeout_ms)),
                kill_asked: false,
            });
            self.plan(lasts_ms, Item::ProcessEnds { instance, process });
        }
        Ok(())
    }

    pub(super) fn act_write_scale(&mut self) -> Judged {
        let Some((instance, _)) = self.used_instance() else { return Ok(()) };
        let op = match self.choices.below(5) {
            0 => ScaleOp::Set(0),
            1 | 2 => ScaleOp::Add(1),
            3 => ScaleOp::Sub(1 + self.choices.below(2)),
            _ => ScaleOp::Set(self.choices.below(3)),
        };
        let now = self.now.mono;
        if let Some(one) = self.runtime.up(instance) {
            one.stirred_at = now;
            match op {
                ScaleOp::Add(more) => one.scale += more,
                ScaleOp::Sub(less) => one.scale = one.scale.saturating_sub(less),
                ScaleOp::Set(exactly) => {
                    one.scale = exactly;
                    one.processes.iter_mut().for_each(|process| process.keeps_awake = false);
                }
            }
        }
        self.tell(Event::ScaleWritten { instance, op })
    }

    pub(super) fn act_stop_keep_alive(&mut self) -> Judged {
        let Some((instance, sandbox)) = self.used_instance() else { return Ok(()) };
        let after_ms = self.choices.pick(&[0, 400, 2_000]).unwrap_or(0);
        let now = self.now.mono;
        let Some(one) = self.runtime.up(instance) else { return Ok(()) };
        let before = (one.processes.clone(), one.stop.clone());
        one.stirred_at = now;
        one.settle_stop(now);
        let of = one.processes.iter().map(|process| process.id).collect();
        one.stop = Some(ScheduledStop { at: now.plus(after_ms), of });
        one.settle_stop(now);
        let direct = self.submit(Event::StopRequested { sandbox, after_ms }, None)?;
        let Some(one) = self.runtime.up(instance) else { return Ok(()) };
        if let Some(Err(_)) = direct {
            (one.processes, one.stop) = before;
        }
        checks::holds::compare(self, instance, sandbox)
    }

    pub(super) fn some_sandbox(&mut self) -> Option<SandboxId> {
        let stale = self.choices.below(8) == 7;
        if stale && let Some((_, sandbox)) = self.ledger.stale.back() {
            return Some(*sandbox);
        }
        let index = self.choices.below(self.store.sandboxes.len() as u32) as usize;
        self.store.sandboxes.keys().nth(index).copied()
    }

    pub(super) fn act_freeze(&mut self, freeze: bool) -> Judged {
        let Some(sandbox) = self.some_sandbox() else { return Ok(()) };
        let request = self.request();
        let patience_ms = self.scenario.config.control_timeout_ms;
        if freeze {
            if let Some(instance) = self.store.sandboxes.get(&sandbox).and_then(|one| one.instance)
                && let Some(one) = self.runtime.instances.get_mut(&instance)
            {
                one.freeze_asked = true;
            }
            let event = Event::FreezeRequested { request, sandbox };
            self.ask(request, patience_ms, Ask::Freeze { sandbox }, event)
        } else {
            let event = Event::ThawRequested { request, sandbox };
            self.ask(request, patience_ms, Ask::Thaw { sandbox }, event)
        }
    }

    pub(super) fn act_delete(&mut self) -> Judged {
        let Some(sandbox) = self.some_sandbox() else { return Ok(()) };
        let request = self.request();
        self.ledger.deletes.insert(sandbox);
        let patience_ms = self.scenario.config.control_timeout_ms;
        let event = Event::DeleteRequested { request, sandbox };
        self.ask(request, patience_ms, Ask::Delete { sandbox }, event)
    }
}

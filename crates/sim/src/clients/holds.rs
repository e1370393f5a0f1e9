//! What keeps sandboxes alive, freezes or removes them: processes, the scale file, stops, freezes,
//! thaws and deletions by id.

use kernel::Event;
use model::{InstanceId, SandboxId};

use crate::checks::{self, Judged};
use crate::ledger::Ask;
use crate::runtime::{Phase, ScheduledStop};
use crate::world::World;

impl World {
    /// An instance that its owner used, with its sandbox.
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
        // A sandbox without an owner runs no client's programs.
        (self.ledger.has(record.owner) && record.ending.is_none()).then_some((instance, record.id))
    }

    pub(super) fn act_write_scale(&mut self) -> Judged {
        let Some((instance, _)) = self.used_instance() else { return Ok(()) };
        let (choice, some) = (self.choices.below(5), self.choices.below(3));
        let (now, seq) = (self.now.mono, self.ledger.fresh() as u64);
        let Some(one) = self.runtime.up(instance) else { return Ok(()) };
        one.stirred_at = now;
        one.scale = match choice {
            0 => 0,
            1 | 2 => one.scale + 1,
            3 => one.scale.saturating_sub(1 + some),
            _ => some,
        };
        let drops = matches!(choice, 0 | 4);
        if drops {
            one.processes.iter_mut().for_each(|process| process.keeps_awake = false);
        }
        let scale = one.scale;
        self.notify(Event::ScaleWritten { instance, seq, scale, drops })
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
        let now = self.now.mono;
        if let Some(instance) = self.store.sandboxes.get(&sandbox).and_then(|one| one.instance)
            && let Some(one) = self.runtime.instances.get_mut(&instance)
        {
            one.stirred_at = now;
            one.freeze_asked |= freeze;
        }
        if freeze {
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

//! What keeps a sandbox alive: processes that were started with keepAlive, and the counter that
//! programs write to the scale file. While anything does, the sandbox is never frozen, swept or
//! evicted. All of it is reset when the sandbox starts, is returned, wiped or killed, so no sandbox
//! can be kept alive for ever by mistake.

use model::lifecycle::WakeCause;
use model::state::Wakefulness;
use model::{InstanceId, LifecycleEvent, ProcessId, Refusal, SandboxId, Wall};

use crate::Kernel;
use crate::effect::Notice;
use crate::entry::{Entry, EntryIx, Frozen, Phase, Process, ScheduledStop};
use crate::reply::{FreezeStatus, KeepAliveProcess, KeepAliveReport, Reply};

impl Kernel {
    /// Whether a process keeps its sandbox alive.
    pub fn process_keeps_alive(&self, instance: InstanceId, process: ProcessId) -> bool {
        self.in_use(instance)
            .and_then(|entry| self.entries[entry].rare.as_ref()?.processes.get(&process))
            .is_some_and(|process| process.keeps_alive)
    }

    pub(crate) fn scale_written(
        &mut self,
        instance: InstanceId,
        seq: u64,
        scale: u32,
        drops: bool,
    ) {
        let Some(entry) = self.in_use(instance) else { return };
        let was_kept_alive = self.entries[entry].is_kept_alive();
        let rare = self.entries[entry].rare_mut();
        (rare.scale, rare.scale_seen) = (scale, seq);
        if drops {
            for process in rare.processes.values_mut() {
                process.keeps_alive = false;
            }
        }
        self.keep_alive_changed(entry, was_kept_alive, WakeCause::ScaleWritten);
    }

    /// Takes keepAlive from the processes that exist now, at once or later. The latest call counts.
    pub(crate) fn stop_requested(
        &mut self,
        sandbox: SandboxId,
        after_ms: u64,
    ) -> Result<Reply, Refusal> {
        let entry = self.usable(sandbox)?;
        let now = self.now;
        let was_kept_alive = self.entries[entry].is_kept_alive();
        let rare = self.entries[entry].rare_mut();
        rare.stop = None;
        let processes: Vec<ProcessId> =
            rare.processes.iter().filter(|(_, p)| p.keeps_alive).map(|(id, _)| *id).collect();
        if after_ms == 0 {
            rare.release(&processes);
            self.keep_alive_changed(entry, was_kept_alive, WakeCause::Stopped);
        } else if !processes.is_empty() {
            let at = now.mono.plus(after_ms);
            rare.stop = Some(ScheduledStop { at, at_wall: now.wall.plus(after_ms), processes });
            self.arm(entry, at);
        }
        Ok(Reply::Wakefulness(self.keep_alive_report_of(entry)))
    }

    /// What keeps a sandbox alive changed. Time in which it was kept alive counts as activity.
    pub(crate) fn keep_alive_changed(
        &mut self,
        entry: EntryIx,
        was_kept_alive: bool,
        because: WakeCause,
    ) {
        if was_kept_alive {
            self.touch(entry);
        }
        self.settle(entry);
        self.arm_freeze_and_sweep(entry);
        self.arm_processes(entry);
        self.publish_keep_alive(entry, was_kept_alive, because);
        self.thaw_if_wanted(entry);
        let sandbox = &self.entries[entry];
        let Some(rare) = &sandbox.rare else { return };
        // The scale file of a frozen sandbox cannot be updated.
        if sandbox.frozen == Frozen::No {
            let processes = rare.processes.values().filter(|p| p.keeps_alive).count() as u32;
            let (instance, seen) = (sandbox.instance, rare.scale_seen);
            self.out.notices.push(Notice::KeepAliveCountChanged { instance, processes, seen });
        }
    }

    fn publish_keep_alive(&mut self, entry: EntryIx, was_kept_alive: bool, because: WakeCause) {
        let sandbox = &self.entries[entry];
        if sandbox.is_kept_alive() == was_kept_alive {
            return;
        }
        let now = self.now;
        let freezes_at =
            self.freezes_at(entry).map(|at| Wall(now.wall.0.saturating_add(at.since(now.mono))));
        let wakefulness = if was_kept_alive { Wakefulness::Auto } else { Wakefulness::Awake };
        let event = LifecycleEvent::SandboxWakefulness {
            sandbox_id: sandbox.id,
            generation: sandbox.generation,
            wakefulness,
            because,
            freezes_at,
        };
        self.publish(sandbox.tenant(), event);
    }

    /// What keeps a sandbox alive, by its id.
    pub fn keep_alive_report(&self, sandbox: SandboxId) -> Option<KeepAliveReport> {
        let entry = self.entries.by_id(sandbox)?;
        Some(self.keep_alive_report_of(entry))
    }

    fn keep_alive_report_of(&self, entry: EntryIx) -> KeepAliveReport {
        let sandbox = &self.entries[entry];
        let rare = sandbox.rare.as_deref();
        let wakefulness =
            if sandbox.is_kept_alive() { Wakefulness::Awake } else { Wakefulness::Auto };
        let kept = |(id, process): (&ProcessId, &Process)| KeepAliveProcess {
            process: *id,
            started_at: process.started_at,
            timeout_ms: process.timeout_ms,
        };
        let scheduled: Option<Wall> = rare.and_then(|e| e.stop.as_ref()).map(|s| s.at_wall);
        KeepAliveReport {
            wakefulness,
            scheduled_stop_at: scheduled,
            processes: rare
                .map(|e| e.processes.iter().filter(|(_, p)| p.keeps_alive).map(kept).collect())
                .unwrap_or_default(),
            scale: rare.map_or(0, |e| e.scale),
            because: freeze_status(sandbox),
        }
    }
}

fn freeze_status(entry: &Entry) -> FreezeStatus {
    match entry.phase() {
        Phase::Cold => FreezeStatus::Cold,
        Phase::Launching
        | Phase::Idle
        | Phase::Claiming(_)
        | Phase::Wiping
        | Phase::Proving
        | Phase::Killing => FreezeStatus::Moving,
        Phase::InUse if entry.termination.is_some() => FreezeStatus::Moving,
        Phase::InUse if entry.is_kept_alive() => FreezeStatus::KeptAwake,
        Phase::InUse if entry.frozen == Frozen::Yes => FreezeStatus::Frozen,
        Phase::InUse if !entry.is_inactive() => FreezeStatus::InUse,
        Phase::InUse if !entry.traits.can_freeze => FreezeStatus::CannotFreeze,
        Phase::InUse => FreezeStatus::Quiet,
    }
}

//! The simulated runtime: the true state of what exists. It knows instances and workspaces and what
//! happened in them, and nothing of what the kernel thinks about them; checks compare the two.

use std::collections::BTreeMap;
use std::sync::Arc;

use model::process::RestartPolicy;
use model::record::Owner;
use model::template::RuntimeTraits;
use model::{ClaimSettings, InstanceId, Mono, ProcessId, TurnId, UseId, Wall, WorkspaceId};

/// How far an instance is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Phase {
    /// It is being made.
    Starting,
    /// It works.
    Up,
    /// It died on its own, or was only half made; what is left of it waits to be removed.
    Dead,
}

/// How the last attempt to make the workspace durable went, as far as it was reported.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Saved {
    /// There was none.
    NotTried,
    /// It worked.
    Yes,
    /// It failed, or the result is unknown.
    No,
}

/// A process started through the API that has not ended.
#[derive(Debug, Clone)]
pub(crate) struct Process {
    /// Its id.
    pub id: ProcessId,
    /// Whether its program is restarted when it fails.
    pub restart: Option<RestartPolicy>,
    /// How much time it was given; 0 is for ever.
    pub timeout_ms: u64,
    /// Which of its programs was started last, from 0, and whether that runs.
    pub program: u32,
    /// Whether that program runs.
    pub runs: bool,
    /// How many restarts were decided.
    pub restarts: u32,
    /// Since when the kernel knows that its program failed, if it was not restarted since.
    pub rests_since: Option<Mono>,
    /// The deadline of the restart, if the kernel waits for one.
    pub restart_by: Option<Mono>,
    /// Whether its end was requested, whatever its program does.
    pub to_end: bool,
    /// Whether its time may have expired when its program was restarted.
    pub was_overdue: bool,
    /// Whether it keeps its sandbox alive.
    pub keeps_awake: bool,
    /// When it is to be killed.
    pub due: Option<Mono>,
    /// When it was started.
    pub began: Mono,
    /// For how long its sandbox was frozen since.
    pub slept_ms: u64,
    /// How often.
    pub naps: u64,
    /// Whether it was asked to be killed.
    pub kill_asked: bool,
}

impl Process {
    /// The kernel hears of a restart, if it did not before: the time limit starts again.
    pub(crate) fn start_heard(&mut self, now: Mono) {
        if self.restart_by.take().is_none() {
            return;
        }
        // If its time expired before that, it is killed and keeps nothing alive.
        let overdue = self.due.is_some_and(|due| due <= now);
        self.was_overdue |= overdue;
        self.keeps_awake &= !overdue;
        self.began = now;
        (self.slept_ms, self.naps, self.kill_asked) = (0, 0, false);
        self.due = (self.timeout_ms > 0).then(|| now.plus(self.timeout_ms));
    }
}

/// A stop of keepAlive that is still to come.
#[derive(Debug, Clone)]
pub(crate) struct ScheduledStop {
    /// When.
    pub at: Mono,
    /// The processes that existed when it was called.
    pub of: Vec<ProcessId>,
}

/// Something that was launched and is not removed.
#[derive(Debug)]
pub(crate) struct Instance {
    /// How far it is.
    pub phase: Phase,
    /// Its template, as an index of the scenario.
    pub recipe: usize,
    /// The memory promised to it.
    pub memory_mb: u64,
    /// What its runtime can do.
    pub traits: RuntimeTraits,
    /// Its workspace.
    pub workspace: WorkspaceId,
    /// Whether its processes are stopped from running.
    pub frozen: bool,
    /// Since when.
    pub frozen_since: Mono,
    /// Since when it is quiesced for a copy of its files, if it is.
    pub quiesced_since: Option<Mono>,
    /// Whether its files are a file system of their own, which only its guest reads.
    pub closed: bool,
    /// Copies and saves in progress that its guest gives the files for.
    pub readings: u32,
    /// Turns that are being started or stopped in it, once for each effect, and have not ended.
    pub changing_turns: Vec<TurnId>,
    /// When everything that was begun in it so far has ended, one after the other.
    pub busy_until: Mono,
    /// Owners that left something in it.
    pub marks: Vec<Owner>,
    /// The settings bound to it.
    pub bound: Option<Arc<ClaimSettings>>,
    /// The owner that it was last handed out to.
    pub holder: Owner,
    /// Processes started through the API.
    pub processes: Vec<Process>,
    /// What programs wrote to the scale file.
    pub scale: u32,
    /// A stop of keepAlive that is still to come.
    pub stop: Option<ScheduledStop>,
    /// The turn in progress, and since when.
    pub turn: Option<(TurnId, Mono)>,
    /// Uses in progress.
    pub uses: Vec<UseId>,
    /// When it last answered.
    pub answered_at: Mono,
    /// Whether it was probed since it was last handed out.
    pub asked: bool,
    /// When anything of its owner last happened in it.
    pub active_at: Mono,
    /// When anything last happened in it that may count as its use.
    pub stirred_at: Mono,
    /// Whether it died on its own.
    pub died: bool,
    /// Whether the kernel heard of that.
    pub death_reported: bool,
    /// Whether the kernel heard that its guest is gone.
    pub guest_lost: bool,
    /// Whether some effect on it did not end well.
    pub troubled: bool,
    /// Whether the kernel heard that it takes too much of the disk.
    pub disk_reported: bool,
    /// When its template lets it live no longer.
    pub lives_until: Option<Wall>,
    /// Whether it was asked to be removed.
    pub kill_asked: bool,
    /// How saving its workspace went.
    pub saved: Saved,
    /// Whether it was there before the server was last started.
    pub left_over: bool,
    /// Whether a freeze or pause was requested since it was last used.
    pub freeze_asked: bool,
    /// Since when a caller polls one of its processes while it is frozen.
    pub polled_at: Option<Mono>,
    /// Whether a turn could not be stopped in it, so that it must end.
    pub unstoppable: bool,
    /// The last turn that was stopped: it does not start any more.
    pub stopped_turn: Option<TurnId>,
    /// Effects on it in progress.
    pub effects: u32,
}

impl Instance {
    /// Whether a process or the scale file certainly keeps it alive.
    pub(crate) fn is_held(&self, now: Mono) -> bool {
        self.scale > 0
            || self.processes.iter().any(|process| {
                let timely = process.due.is_none_or(|due| due > now);
                let stopped = self
                    .stop
                    .as_ref()
                    .is_some_and(|stop| stop.at <= now && stop.of.contains(&process.id));
                process.keeps_awake && timely && !stopped
            })
    }

    /// Whether the program of a process is being started in it.
    pub(crate) fn is_restarting(&self) -> bool {
        self.processes.iter().any(|process| process.restart_by.is_some())
    }

    /// A process that has not ended.
    pub(crate) fn process(&mut self, id: ProcessId) -> Option<&mut Process> {
        self.processes.iter_mut().find(|process| process.id == id)
    }

    /// Its processes stop running.
    pub(crate) fn freeze(&mut self, now: Mono, for_copy: bool) {
        if !std::mem::replace(&mut self.frozen, true) {
            self.frozen_since = now;
        }
        self.quiesced_since = for_copy.then_some(now);
    }

    /// Whether only its guest can read its files.
    pub(crate) const fn is_read_inside(&self) -> bool {
        self.closed || !self.traits.workspace_survives
    }

    /// Its processes run again.
    pub(crate) fn wake(&mut self, now: Mono) {
        self.quiesced_since = None;
        self.polled_at = None;
        if std::mem::take(&mut self.frozen) {
            for process in &mut self.processes {
                process.slept_ms += now.since(self.frozen_since.max(process.began));
                process.naps += 1;
            }
        }
    }

    /// Forgets everything its user left in it.
    pub(crate) fn clear(&mut self) {
        self.marks.clear();
        self.bound = None;
        self.processes.clear();
        self.scale = 0;
        self.stop = None;
        self.turn = None;
        self.uses.clear();
    }

    /// Carries out a stop of keepAlive whose time has come.
    pub(crate) fn settle_stop(&mut self, now: Mono) {
        if let Some(stop) = self.stop.take_if(|stop| stop.at <= now) {
            for process in &mut self.processes {
                process.keeps_awake &= !stop.of.contains(&process.id);
            }
        }
    }
}

/// The contents of a workspace, as the number of the last write; 0 is empty.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Workspace {
    /// What a process in it sees.
    pub live: u64,
    /// What is left when that process dies and the runtime keeps nothing.
    pub durable: u64,
}

/// Everything that exists.
#[derive(Debug, Default)]
pub(crate) struct Runtime {
    /// Instances, from the start of their launch to their removal.
    pub instances: BTreeMap<InstanceId, Instance>,
    /// Workspaces.
    pub workspaces: BTreeMap<WorkspaceId, Workspace>,
    /// The sum of the memory of all instances.
    pub memory_mb: u64,
    writes: u64,
}

impl Runtime {
    /// An instance exists from now on.
    pub(crate) fn begin(&mut self, id: InstanceId, instance: Instance) {
        self.memory_mb += instance.memory_mb;
        self.instances.insert(id, instance);
    }

    /// Nothing is left of an instance from now on.
    pub(crate) fn remove(&mut self, id: InstanceId) -> Option<Instance> {
        let instance = self.instances.remove(&id)?;
        self.memory_mb -= instance.memory_mb;
        self.lose_unsaved(&instance);
        Some(instance)
    }

    /// An instance stops working, and waits to be removed.
    pub(crate) fn die(&mut self, id: InstanceId) {
        let Some(instance) = self.instances.get_mut(&id) else { return };
        instance.phase = Phase::Dead;
        instance.died = true;
        instance.turn = None;
        let (traits, workspace) = (instance.traits, instance.workspace);
        if !traits.workspace_survives
            && let Some(workspace) = self.workspaces.get_mut(&workspace)
        {
            workspace.live = workspace.durable;
        }
    }

    fn lose_unsaved(&mut self, instance: &Instance) {
        if !instance.traits.workspace_survives
            && let Some(workspace) = self.workspaces.get_mut(&instance.workspace)
        {
            workspace.live = workspace.durable;
        }
    }

    /// The instance, if it works.
    pub(crate) fn up(&mut self, id: InstanceId) -> Option<&mut Instance> {
        self.instances.get_mut(&id).filter(|instance| instance.phase == Phase::Up)
    }

    /// An owner writes into the workspace of a live instance. Returns the new contents.
    pub(crate) fn write(&mut self, id: InstanceId, owner: Owner) -> Option<u64> {
        let instance = self.instances.get_mut(&id).filter(|one| one.phase == Phase::Up)?;
        if !instance.marks.contains(&owner) {
            instance.marks.push(owner);
        }
        let survives = instance.traits.workspace_survives;
        let workspace = self.workspaces.get_mut(&instance.workspace)?;
        self.writes += 1;
        workspace.live = self.writes;
        if survives {
            workspace.durable = self.writes;
        }
        Some(self.writes)
    }

    /// The contents of a copy that begins now: from a sandbox with its files in memory what that
    /// has, which is nothing during a restore; else the saved files.
    pub(crate) fn copied_of(&self, from: WorkspaceId, through: Option<InstanceId>) -> u64 {
        let Some(held) = self.workspaces.get(&from) else { return 0 };
        let through = through.and_then(|id| self.instances.get(&id));
        match through.filter(|one| !one.traits.workspace_survives).map(|one| one.phase) {
            None => held.durable,
            Some(Phase::Starting) => 0,
            Some(Phase::Up | Phase::Dead) => held.live,
        }
    }

    /// What a process in the instance sees in its workspace.
    pub(crate) fn contents(&self, id: InstanceId) -> Option<u64> {
        let workspace = self.instances.get(&id)?.workspace;
        Some(self.workspaces.get(&workspace)?.live)
    }
}

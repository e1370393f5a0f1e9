//! Keeps effects in order: effects on one instance, workspace or process run one after another, all
//! others at the same time. A lane exists while it has effects.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use kernel::{Action, Effect, Event};
use model::{InstanceId, ProcessId, WorkspaceId};
use tokio::sync::Notify;

use crate::core::Core;
use crate::effects;

/// What effects are ordered by.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Lane {
    Instance(InstanceId),
    Workspace(WorkspaceId),
    Process(ProcessId),
}

/// The lanes that have effects.
#[derive(Default)]
pub(crate) struct Lanes {
    busy: BTreeMap<Lane, Waiting>,
}

/// The effects of one lane that wait.
struct Waiting {
    effects: VecDeque<Effect>,
    /// Makes a launch or an archive in progress give up, because its end is wanted.
    give_up: Arc<Notify>,
}

impl Lanes {
    /// Carries out an effect when its turn comes.
    pub(crate) fn add(&mut self, core: &Arc<Core>, effect: Effect) {
        let lane = lane_of(&effect.action);
        if let Some(waiting) = self.busy.get_mut(&lane) {
            if matches!(effect.action, Action::Kill { .. } | Action::DeleteWorkspace { .. }) {
                waiting.give_up.notify_one();
            }
            waiting.effects.push_back(effect);
            return;
        }
        let give_up = Arc::new(Notify::new());
        let waiting = Waiting { effects: VecDeque::new(), give_up: Arc::clone(&give_up) };
        self.busy.insert(lane, waiting);
        tokio::spawn(run(Arc::clone(core), lane, effect, give_up));
    }

    fn next(&mut self, lane: Lane) -> Option<Effect> {
        let next = self.busy.get_mut(&lane)?.effects.pop_front();
        if next.is_none() {
            self.busy.remove(&lane);
        }
        next
    }
}

async fn run(core: Arc<Core>, lane: Lane, mut effect: Effect, give_up: Arc<Notify>) {
    loop {
        let id = effect.id;
        // In a task of its own: a panic in one effect must not hold up the next ones.
        let (of, stop) = (Arc::clone(&core), Arc::clone(&give_up));
        let task = tokio::spawn(async move { effects::carry_out(&of, effect, &stop).await });
        let outcome = task.await.unwrap_or_else(|error| effects::panicked(id.sandbox, &error));
        core.notify(Event::EffectEnded { id, outcome });
        match core.state().lanes.next(lane) {
            Some(next) => effect = next,
            None => return,
        }
    }
}

fn lane_of(action: &Action) -> Lane {
    match action {
        Action::Launch(launch) => Lane::Instance(launch.instance),
        Action::Claim { instance, .. }
        | Action::Probe { instance }
        | Action::Wipe { instance }
        | Action::Prove { instance }
        | Action::Freeze { instance }
        | Action::Thaw { instance }
        | Action::Quiesce { instance }
        | Action::Unquiesce { instance }
        | Action::StartTurn { instance, .. }
        | Action::StopTurn { instance, .. }
        | Action::KillProcess { instance, .. }
        | Action::Kill { instance, .. } => Lane::Instance(*instance),
        // Like a use: no other effect on the sandbox waits for it.
        Action::RestartProcess { process, .. } => Lane::Process(*process),
        Action::CopyWorkspace { to, .. } => Lane::Workspace(*to),
        // No other effect on the sandbox waits until its files are durable.
        Action::Persist { workspace, .. }
        | Action::ArchiveWorkspace { workspace }
        | Action::DeleteWorkspace { workspace } => Lane::Workspace(*workspace),
    }
}

//! A turn that is in progress or queued, and everything that the engine has of it: its message, its
//! pieces, and the task that runs it. It stays known until followers see its end and its task has
//! ended. This module never decides when a turn begins or ends.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use model::{KeyId, TurnId};
use tokio::sync::{Notify, watch};
use tokio::time::Instant;

use super::log::TurnLog;
use crate::instance_ends::EndWatch;

/// A turn.
pub(crate) struct Live {
    pub(crate) turn: TurnId,
    /// Whose session it is.
    pub(super) tenant: KeyId,
    /// When it was requested.
    pub(crate) began: Instant,
    pub(crate) log: TurnLog,
    state: Mutex<State>,
}

struct State {
    /// Its message, as JSON, until a harness has it.
    input: Option<Arc<str>>,
    /// The task that runs it, while there is one.
    work: Option<TaskHandle>,
    /// The watch of its instance, from when a harness there gets it until its task begins.
    end_watch: Option<EndWatch>,
    /// Followers see its end.
    ended: bool,
}

/// Stops a task that runs a turn.
#[derive(Clone)]
struct TaskHandle {
    stop: Arc<Notify>,
    /// Closed when the task has ended.
    done: watch::Receiver<()>,
}

impl Live {
    pub(crate) fn new(turn: TurnId, tenant: KeyId, input: Arc<str>) -> Arc<Self> {
        let state = State { input: Some(input), work: None, end_watch: None, ended: false };
        let (began, log) = (Instant::now(), TurnLog::new(turn));
        Arc::new(Self { turn, tenant, began, log, state: Mutex::new(state) })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Its message; none once a harness has it.
    pub(crate) fn input(&self) -> Option<Arc<str>> {
        self.state().input.clone()
    }

    /// A harness has the message, so it is not needed here any more.
    pub(crate) fn forget_input(&self) {
        self.state().input = None;
    }

    /// What it takes in memory before a harness has it.
    pub(crate) fn waiting_bytes(&self) -> usize {
        self.state().input.as_ref().map_or(0, |input| input.len())
    }

    /// The kernel gives it to a harness in this instance.
    pub(super) fn enters(&self, end_watch: EndWatch) {
        self.state().end_watch = Some(end_watch);
    }

    /// The watch of its instance, for the task that runs it.
    pub(super) fn take_end_watch(&self) -> Option<EndWatch> {
        self.state().end_watch.take()
    }

    /// A task begins to run it: returns what stops the task, and what the task drops at its end,
    /// after [`Self::work_ended`].
    pub(super) fn work_begins(&self) -> (Arc<Notify>, watch::Sender<()>) {
        let (guard, done) = watch::channel(());
        let stop = Arc::new(Notify::new());
        self.state().work = Some(TaskHandle { stop: Arc::clone(&stop), done });
        (stop, guard)
    }

    pub(super) fn work_ended(&self) {
        self.state().work = None;
    }

    /// Stops the task that runs it, if there is one; done when the task has ended.
    pub(super) async fn stop_work(&self) {
        let Some(mut work) = self.state().work.clone() else { return };
        work.stop.notify_one();
        // Nothing is ever sent: it ends when the sender is dropped.
        while work.done.changed().await.is_ok() {}
    }

    /// Followers see its end from now on.
    pub(super) fn end_shown(&self) {
        self.state().ended = true;
    }

    /// Nothing of it is left: followers see its end, and no task runs it.
    pub(super) fn is_finished(&self) -> bool {
        let state = self.state();
        state.ended && state.work.is_none()
    }
}

//! The tasks that belong to one connection of a client. None of them outlives it: a connection that
//! is cut takes those to the real host with it.

use std::future::Future;
use std::sync::{Arc, Mutex, PoisonError};

use hyper::rt::Executor;
use tokio::task::JoinSet;

/// Starts tasks. Clones start them in the same set.
#[derive(Clone, Default)]
pub(super) struct Tasks(Arc<Mutex<JoinSet<()>>>);

/// Ends all tasks of a set when it goes.
pub(super) struct EndsTasks(pub(super) Tasks);

impl Tasks {
    pub(super) fn start(&self, task: impl Future<Output = ()> + Send + 'static) {
        let mut set = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        // Those that have ended are forgotten here: a connection may live for days.
        while set.try_join_next().is_some() {}
        set.spawn(task);
    }
}

impl<F> Executor<F> for Tasks
where
    F: Future + Send + 'static,
    F::Output: Send,
{
    fn execute(&self, task: F) {
        self.start(async move {
            task.await;
        });
    }
}

impl Drop for EndsTasks {
    fn drop(&mut self) {
        self.0.0.lock().unwrap_or_else(PoisonError::into_inner).abort_all();
    }
}

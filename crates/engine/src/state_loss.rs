//! Lost files of a session are reported by the next answer about that session: an exec, a file, a
//! turn. What an answer must report is collected here while the answer is prepared, and the kernel
//! learns that it was reported only when a client took an answer that carried it.

use std::cell::RefCell;

use kernel::{Event, Loss};

use crate::Engine;

tokio::task_local! {
    /// What the answer of this task must report.
    static TO_REPORT: RefCell<Vec<Loss>>;
}

/// Prepares an answer, and returns what it must report.
pub async fn collect_losses<T>(answer: impl Future<Output = T>) -> (T, Vec<Loss>) {
    let noting = async {
        let answer = answer.await;
        (answer, TO_REPORT.with(RefCell::take))
    };
    TO_REPORT.scope(RefCell::default(), noting).await
}

/// The answer in progress must report this loss. Work outside of an answer reports nothing, so the
/// next answer does.
pub(crate) fn note(loss: Option<Loss>) {
    if let Some(loss) = loss {
        // Outside of an answer there is no place for it.
        let _ = TO_REPORT.try_with(|losses| losses.borrow_mut().push(loss));
    }
}

impl Engine {
    /// A client took an answer that reported losses.
    pub fn losses_reported(&self, losses: &[Loss]) {
        for Loss { session, generation, .. } in losses.iter().copied() {
            self.core.notify(Event::LossReported { session, generation });
        }
    }
}

//! Lost files of a session are reported by the next answer about that session, whatever it is: an
//! exec, a file, a turn. What an answer has to report is collected here while it is worked out, and
//! the kernel hears that it was reported only when an answer that carried it was taken.

use std::cell::RefCell;

use kernel::{Event, Loss};

use crate::Engine;

tokio::task_local! {
    /// What the answer that this task works out has to report.
    static TO_REPORT: RefCell<Vec<Loss>>;
}

/// Works out an answer, and says what it has to report.
pub async fn with_losses<T>(answer: impl Future<Output = T>) -> (T, Vec<Loss>) {
    let noting = async {
        let answer = answer.await;
        (answer, TO_REPORT.with(RefCell::take))
    };
    TO_REPORT.scope(RefCell::default(), noting).await
}

/// The answer in progress has to report this. Work that is no answer to anybody reports nothing, and
/// so the next answer does.
pub(crate) fn note(loss: Option<Loss>) {
    if let Some(loss) = loss {
        // Outside of an answer there is no place for it.
        let _ = TO_REPORT.try_with(|losses| losses.borrow_mut().push(loss));
    }
}

impl Engine {
    /// An answer that reported losses was taken.
    pub fn losses_reported(&self, losses: &[Loss]) {
        for Loss { session, generation, .. } in losses.iter().copied() {
            self.core.tell(Event::LossReported { session, generation });
        }
    }
}

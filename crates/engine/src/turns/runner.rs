//! Lets a harness work on a turn. One task per turn reads what the harness says; a stop makes it
//! cancel the turn, and is done only when nothing of it runs. The kernel reports the death of a
//! sandbox, because it knows why.

use std::sync::Arc;
use std::time::Duration;

use harness::{HarnessEnd, HarnessError, HarnessErrorCode, HarnessEvent, Turn};
use kernel::Event;
use model::lifecycle::TurnOutcome;
use model::{InstanceId, SessionId, TurnId};
use runtime::{RuntimeError, RuntimeErrorCode};
use serde_json::json;
use tokio::sync::{Notify, watch};

use super::live::Live;
use crate::core::Core;
use crate::instance_ends::EndWatch;

/// How long a harness may take to cancel a turn by itself.
const CANCEL_GRACE: Duration = Duration::from_millis(1_500);
/// The largest result of a turn.
const RESULT_BYTES_MAX: usize = 1024 * 1024;

/// How a turn ended.
enum TurnRun {
    Ended(HarnessEnd),
    Stopped,
    /// The turn has ended already, whatever the harness does.
    Closed,
}

/// Begins to run a turn in a task of its own.
pub(crate) fn begin(
    core: &Arc<Core>,
    instance: InstanceId,
    session: SessionId,
    turn: TurnId,
) -> Result<(), RuntimeError> {
    let known = core.turns.live(turn).and_then(|live| Some((live.take_end_watch()?, live)));
    let Some((end_watch, live)) = known else {
        let cause = "the message of the turn is not known any more";
        return Err(RuntimeError::new(RuntimeErrorCode::System, "start a turn", cause));
    };
    let (stop, done) = live.work_begins();
    let task_end = TaskEnd { core: Arc::clone(core), live, _done: done };
    tasks::spawn(async move {
        let of =
            TurnTask { core: &task_end.core, live: &task_end.live, end_watch, instance, session };
        of.run(&stop).await;
    });
    Ok(())
}

/// Stops a turn; done when nothing of it runs.
pub(crate) async fn stop(core: &Core, turn: TurnId) {
    if let Some(live) = core.turns.live(turn) {
        live.stop_work().await;
    }
}

/// The end of the task of a turn, reported when this is dropped, also after a panic.
struct TaskEnd {
    core: Arc<Core>,
    live: Arc<Live>,
    /// Dropped last: a caller that waits for the end of the task finds the turn as it is after it.
    _done: watch::Sender<()>,
}

impl Drop for TaskEnd {
    fn drop(&mut self) {
        self.live.work_ended();
        self.core.turns.forget_finished(&self.live);
    }
}

struct TurnTask<'a> {
    core: &'a Arc<Core>,
    live: &'a Arc<Live>,
    end_watch: EndWatch,
    instance: InstanceId,
    session: SessionId,
}

impl TurnTask<'_> {
    async fn run(&self, stop: &Notify) {
        let worked = self.work(stop).await;
        let (core, turn) = (self.core, self.live.turn);
        let outcome = match worked {
            // The kernel that asked for the stop says how the turn ended.
            TurnRun::Stopped | TurnRun::Closed => return,
            TurnRun::Ended(HarnessEnd::Completed { result }) => {
                self.give_result(result);
                TurnOutcome::Completed
            }
            TurnRun::Ended(HarnessEnd::Failed { code, message }) => {
                self.fail(code.as_str(), &message);
                TurnOutcome::Failed
            }
            TurnRun::Ended(HarnessEnd::SandboxGone) => {
                // The decision that says why has ended the turn.
                if self.end_watch.reason().await.is_some() {
                    return;
                }
                self.fail("sandbox_gone", "the sandbox no longer answers");
                TurnOutcome::Failed
            }
        };
        core.notify(Event::TurnEnded { session: self.session, turn, outcome });
    }

    fn give_result(&self, result: Option<Arc<str>>) {
        match result {
            Some(result) if result.len() > RESULT_BYTES_MAX => {
                let message = format!("the result has more than {RESULT_BYTES_MAX} bytes");
                let error = json!({ "code": "result_too_large", "message": message });
                self.add_piece("error", error.to_string().into(), false);
            }
            Some(result) => {
                self.add_piece("result", Arc::clone(&result), false);
                self.live.log.set_result(result);
            }
            None => {}
        }
    }

    fn fail(&self, code: &str, message: &str) {
        let error: Arc<str> = json!({ "code": code, "message": message }).to_string().into();
        self.add_piece("error", Arc::clone(&error), false);
        self.live.log.set_error(error);
    }

    fn add_piece(&self, name: &str, data: Arc<str>, counts: bool) {
        if self.live.log.add(self.core.now().wall, name, data, counts) {
            self.core.save_pieces(self.live);
        }
    }

    /// Sends the turn to the harness, which is started if need be.
    async fn send(&self) -> Result<Turn, HarnessError> {
        let (link, config) =
            self.core.harnesses.ready(self.core, self.instance, self.session).await?;
        let Some(input) = self.live.input() else { return Err(HarnessError::sandbox_gone()) };
        let given = link.turn(self.live.turn, &input, config.as_deref()).await;
        if given.is_ok() {
            self.live.forget_input();
        }
        given
    }

    async fn work(&self, stop: &Notify) -> TurnRun {
        let given = async {
            match self.send().await {
                // It died since its last turn, and did not get the message.
                Err(error) if died_before(&error) => self.send().await,
                given => given,
            }
        };
        let mut turn = tokio::select! {
            biased;
            () = stop.notified() => return TurnRun::Stopped,
            () = self.live.log.closed() => return TurnRun::Closed,
            given = given => match given {
                Ok(turn) => turn,
                Err(error) => return TurnRun::Ended(error.into_end()),
            },
        };
        let mut first = true;
        loop {
            let event = tokio::select! {
                biased;
                () = stop.notified() => {
                    turn.cancel(CANCEL_GRACE).await;
                    return TurnRun::Stopped;
                }
                () = self.live.log.closed() => return TurnRun::Closed,
                event = async { self.live.log.room().await; turn.next().await } => event,
            };
            if std::mem::take(&mut first) {
                self.core.metrics.turn_answered(self.live.began.elapsed());
            }
            match event {
                HarnessEvent::Output { stream, text } => {
                    let data = json!({ "stream": stream.as_str(), "text": text });
                    self.add_piece("output", data.to_string().into(), true);
                }
                HarnessEvent::Message(data) => self.add_piece("message", data, true),
                HarnessEvent::Ended(end) => return TurnRun::Ended(end),
            }
        }
    }
}

/// Whether a program that was ready before the turn was not when it came.
fn died_before(error: &HarnessError) -> bool {
    matches!(error.code, HarnessErrorCode::Died | HarnessErrorCode::Protocol)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The guide for authors of harnesses says how long a cancel may take.
    #[test]
    fn harness_guide_documents_the_grace_of_a_cancel() {
        let guide = include_str!("../../../../docs/harness.md");
        assert!(guide.contains(&format!("has {} s.", CANCEL_GRACE.as_secs_f64())));
    }
}

//! Lets a harness work on a turn. One task per turn reads what the harness says; a stop makes it
//! call the turn off and be done only when nothing of it runs. That the sandbox died is left to the
//! kernel to tell, which knows why.

use std::sync::{Arc, PoisonError};
use std::time::Duration;

use harness::{HarnessEnd, HarnessError, HarnessErrorCode, HarnessEvent, Turn};
use kernel::Event;
use model::lifecycle::TurnOutcome;
use model::{InstanceId, LifecycleEvent, SessionId, TurnId};
use runtime::{RuntimeError, RuntimeErrorCode};
use serde_json::json;
use tokio::sync::{Notify, watch};
use tokio::time::timeout;

use super::log::Live;
use crate::core::Core;

/// How long a harness may take to call a turn off by itself.
const CANCEL_GRACE: Duration = Duration::from_millis(1_500);
/// The most that a harness may give as the result of a turn.
const RESULT_BYTES_MAX: usize = 1024 * 1024;
/// How long the kernel may take to say why a sandbox is gone.
const REASON_PATIENCE: Duration = Duration::from_secs(1);

/// A turn that a task works on.
pub(super) struct Running {
    stop: Arc<Notify>,
    /// Closed when the task is over.
    done: watch::Receiver<()>,
}

/// How the work on a turn ended.
enum Worked {
    Ended(HarnessEnd),
    Stopped,
    /// The turn is over already, whatever the harness does.
    Closed,
}

/// Begins to work on a turn; it goes on by itself.
pub(crate) fn begin(
    core: &Arc<Core>,
    instance: InstanceId,
    session: SessionId,
    turn: TurnId,
) -> Result<(), RuntimeError> {
    let Some(live) = core.turns.live(turn) else {
        let cause = "what was sent is not known any more";
        return Err(RuntimeError::new(RuntimeErrorCode::System, "start a turn", cause));
    };
    let (guard, done) = watch::channel(());
    let stop = Arc::new(Notify::new());
    let running = Running { stop: Arc::clone(&stop), done };
    core.turns.running.lock().unwrap_or_else(PoisonError::into_inner).insert(turn, running);
    let core = Arc::clone(core);
    tasks::spawn(async move {
        let of = Work { core: &core, live: &live, instance, session };
        of.say_where();
        of.run(&stop).await;
        core.turns.running.lock().unwrap_or_else(PoisonError::into_inner).remove(&turn);
        drop(guard);
    });
    Ok(())
}

/// Stops the work on a turn; done when nothing of it runs.
pub(crate) async fn stop(core: &Core, turn: TurnId) {
    let found = {
        let running = core.turns.running.lock().unwrap_or_else(PoisonError::into_inner);
        running.get(&turn).map(|running| (Arc::clone(&running.stop), running.done.clone()))
    };
    if let Some((stop, mut done)) = found {
        stop.notify_one();
        // Nothing is ever sent: it ends when the other end is dropped.
        while done.changed().await.is_ok() {}
    }
}

struct Work<'a> {
    core: &'a Arc<Core>,
    live: &'a Arc<Live>,
    instance: InstanceId,
    session: SessionId,
}

impl Work<'_> {
    fn say_where(&self) {
        let Some(view) = self.core.read(|kernel| kernel.session(self.session)) else { return };
        let Some(sandbox_id) = view.sandbox_id else { return };
        let (session, turn, generation) = (self.session, self.live.turn, view.generation);
        let event = LifecycleEvent::TurnStarted { session, turn, sandbox_id, generation };
        let (name, data) = super::lifecycle(&event);
        self.say(name, data, false);
    }

    async fn run(&self, stop: &Notify) {
        let worked = self.work(stop).await;
        let (core, turn) = (self.core, self.live.turn);
        let outcome = match worked {
            // Whoever asked for the stop says how it ended.
            Worked::Stopped | Worked::Closed => return,
            Worked::Ended(HarnessEnd::Completed { result }) => {
                self.give_result(result);
                TurnOutcome::Completed
            }
            Worked::Ended(HarnessEnd::Failed { code, message }) => {
                self.fail(code.as_str(), &message);
                TurnOutcome::Failed
            }
            Worked::Ended(HarnessEnd::SandboxGone) => {
                if timeout(REASON_PATIENCE, self.live.closed()).await.is_ok() {
                    return;
                }
                self.fail("sandbox_gone", "the sandbox did not answer any more");
                TurnOutcome::Failed
            }
        };
        core.tell(Event::TurnEnded { session: self.session, turn, outcome });
    }

    fn give_result(&self, result: Option<Arc<str>>) {
        match result {
            Some(result) if result.len() > RESULT_BYTES_MAX => {
                let message = format!("the result has more than {RESULT_BYTES_MAX} bytes");
                let error = json!({ "code": "result_too_large", "message": message });
                self.say("error", error.to_string().into(), false);
            }
            Some(result) => {
                self.say("result", Arc::clone(&result), false);
                self.live.set_result(result);
            }
            None => {}
        }
    }

    fn fail(&self, code: &str, message: &str) {
        let error: Arc<str> = json!({ "code": code, "message": message }).to_string().into();
        self.say("error", Arc::clone(&error), false);
        self.live.set_error(error);
    }

    fn say(&self, name: &str, data: Arc<str>, counts: bool) {
        if self.live.add(self.core.now().wall, name, data, counts) {
            self.core.save_pieces(self.live);
        }
    }

    /// Gives the turn to the harness, which is started if need be.
    async fn give(&self) -> Result<Turn, HarnessError> {
        let (link, config) =
            self.core.harnesses.ready(self.core, self.instance, self.session).await?;
        let Some(input) = self.live.input() else { return Err(HarnessError::sandbox_gone()) };
        let given = link.turn(self.live.turn, &input, config.as_deref()).await;
        if given.is_ok() {
            self.live.forget_input();
        }
        given
    }

    async fn work(&self, stop: &Notify) -> Worked {
        let given = async {
            match self.give().await {
                // It died since its last turn, and the message was not given to it.
                Err(error) if died_before(&error) => self.give().await,
                given => given,
            }
        };
        let mut turn = tokio::select! {
            biased;
            () = stop.notified() => return Worked::Stopped,
            () = self.live.closed() => return Worked::Closed,
            given = given => match given {
                Ok(turn) => turn,
                Err(error) => return Worked::Ended(error.into_end()),
            },
        };
        let mut first = true;
        loop {
            let event = tokio::select! {
                biased;
                () = stop.notified() => {
                    turn.cancel(CANCEL_GRACE).await;
                    return Worked::Stopped;
                }
                () = self.live.closed() => return Worked::Closed,
                event = async { self.live.room().await; turn.next().await } => event,
            };
            if std::mem::take(&mut first) {
                self.core.metrics.turn_answered(self.live.began.elapsed());
            }
            match event {
                HarnessEvent::Output { stream, text } => {
                    let data = json!({ "stream": stream.as_str(), "text": text });
                    self.say("output", data.to_string().into(), true);
                }
                HarnessEvent::Message(data) => self.say("message", data, true),
                HarnessEvent::Ended(end) => return Worked::Ended(end),
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

    /// Whoever writes a harness reads how long it has.
    #[test]
    fn the_grace_of_a_cancel_is_told() {
        let told = include_str!("../../../../docs/harness.md");
        assert!(told.contains(&format!("has {} s.", CANCEL_GRACE.as_secs_f64())));
    }
}

//! Answers to requests, and what happens to an answer that no caller takes: a client may disconnect
//! at any moment, and the engine then gives back what the kernel granted.

use std::sync::Arc;
use std::time::Duration;

use kernel::{Event, Reply};
use model::{Refusal, RequestId, SessionId, TurnChange, TurnId};
use tokio::sync::oneshot;

use crate::core::{Attached, Core, unavailable};
use crate::instance_ends::{EndWatch, InstanceEnds};

/// How long a request waits for a journal that cannot be written.
pub(crate) const JOURNAL_PATIENCE: Duration = Duration::from_secs(2);

/// What the kernel answers.
pub(crate) type Answer = Result<Reply, Refusal>;

/// An answer on its way to its caller.
pub(crate) struct DeliveredAnswer {
    pub(crate) answer: Answer,
    /// A caller that gets a use watches its instance from now on, also before it reads the answer.
    pub(crate) end_watch: Option<EndWatch>,
}

/// Where an answer goes.
pub(crate) struct Waiter {
    sender: oneshot::Sender<DeliveredAnswer>,
}

impl Waiter {
    pub(crate) fn new() -> (Self, oneshot::Receiver<DeliveredAnswer>) {
        let (sender, receiver) = oneshot::channel();
        (Self { sender }, receiver)
    }

    /// Sends the answer. If the caller is gone, returns the event for the kernel.
    pub(crate) fn give(self, answer: Answer, ends: &InstanceEnds) -> Option<Event> {
        let end_watch = match &answer {
            Ok(Reply::Granted(grant)) => Some(ends.watch(grant.instance)),
            Ok(_) | Err(_) => None,
        };
        let delivered = DeliveredAnswer { answer, end_watch };
        self.sender.send(delivered).err().and_then(|delivered| undelivered(delivered.answer))
    }
}

/// The event that follows from an answer that no caller took. (A use and a read end with their
/// guard.)
pub(crate) fn undelivered(answer: Answer) -> Option<Event> {
    match answer {
        Ok(Reply::CheckedOut(checked_out)) => {
            Some(Event::LeaseReturned { lease: checked_out.lease })
        }
        Ok(
            Reply::Noted
            | Reply::Granted(_)
            | Reply::Pending
            | Reply::Renewed { .. }
            | Reply::Wakefulness(_)
            | Reply::Frozen { .. }
            | Reply::Gone
            | Reply::SessionReady(_)
            | Reply::TurnStarted(_)
            | Reply::TurnQueued { .. }
            | Reply::Aborted { .. }
            | Reply::Paused
            | Reply::Stopped
            | Reply::Ended
            | Reply::Readable { .. }
            | Reply::Forked { .. },
        )
        | Err(_) => None,
    }
}

/// A request that waits for its answer. If it is dropped, the kernel learns that the client is
/// gone, or gets back what it granted.
pub(crate) struct PendingRequest {
    core: Arc<Core>,
    request: RequestId,
    receiver: oneshot::Receiver<DeliveredAnswer>,
    answered: bool,
    /// The turn that was sent with it.
    put: Option<(SessionId, TurnId)>,
}

impl Drop for PendingRequest {
    fn drop(&mut self) {
        if self.answered {
            return;
        }
        if self.core.forget_waiter(self.request) {
            self.core.notify(Event::ClientGone { request: self.request });
            return;
        }
        self.receiver.close();
        let Ok(DeliveredAnswer { answer, .. }) = self.receiver.try_recv() else { return };
        let begun = matches!(answer, Ok(Reply::TurnStarted(_) | Reply::TurnQueued { .. }));
        if begun {
            // The turn may have to end with its client.
            self.core.notify(Event::ClientGone { request: self.request });
        } else if let Some(event) = undelivered(answer) {
            self.core.notify(event);
        }
    }
}

impl Core {
    /// A number for a request.
    pub(crate) fn request(&self) -> RequestId {
        RequestId::from_u128(self.fresh_id())
    }

    /// A request with an answer. `request` is the one that the event names, if it names one.
    pub(crate) async fn ask(self: &Arc<Self>, request: RequestId, event: Event) -> Answer {
        self.ask_with(request, event, None).await
    }

    /// The same, with something that is committed with it.
    pub(crate) async fn ask_with(
        self: &Arc<Self>,
        request: RequestId,
        event: Event,
        attached: Option<Attached>,
    ) -> Answer {
        self.begin_request(request, event, attached)?.answer().await
    }

    /// The same, but the answer is awaited later. The decision is made when this returns.
    pub(crate) fn begin_request(
        self: &Arc<Self>,
        request: RequestId,
        event: Event,
        attached: Option<Attached>,
    ) -> Result<PendingRequest, Refusal> {
        let put = attached.as_ref().and_then(put);
        if let Err(refusal) = self.refuse_if_journal_fails() {
            if let Some((_, turn)) = put {
                self.turns.forget(turn);
            }
            return Err(refusal);
        }
        let (waiter, receiver) = Waiter::new();
        let pending =
            PendingRequest { core: Arc::clone(self), request, receiver, answered: false, put };
        self.decide(event, Some((request, waiter)), attached);
        Ok(pending)
    }
}

impl PendingRequest {
    pub(crate) async fn answer(self) -> Answer {
        self.delivered().await.answer
    }

    /// The answer, and with a grant the watch for the end of its instance.
    pub(crate) async fn delivered(mut self) -> DeliveredAnswer {
        let core = Arc::clone(&self.core);
        let delivered = tokio::select! {
            biased;
            delivered = &mut self.receiver => delivered,
            cause = core.journal_health.failed_for(JOURNAL_PATIENCE) => {
                if let Some((session, turn)) = self.put {
                    // The client will send the turn again, and must not get two answers.
                    core.notify(Event::TurnWithdrawn { session, turn });
                }
                return DeliveredAnswer { answer: Err(unavailable(&cause)), end_watch: None };
            }
        };
        self.answered = true;
        delivered.unwrap_or_else(|_| DeliveredAnswer {
            answer: Err(unavailable("the engine has stopped")),
            end_watch: None,
        })
    }
}

/// The turn that is sent with a request.
fn put(attached: &Attached) -> Option<(SessionId, TurnId)> {
    match attached {
        Attached::Turn(turn) => match &**turn {
            TurnChange::Put(record) => Some((record.session, record.id)),
            TurnChange::Pieces { .. }
            | TurnChange::Started { .. }
            | TurnChange::Ended { .. }
            | TurnChange::Forked { .. } => None,
        },
        Attached::Name(_) => None,
    }
}

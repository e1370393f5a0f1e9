//! The clients of turns: what becomes of a turn, running or queued, whose client goes away or
//! withdraws it.

use model::lifecycle::TurnOutcome;
use model::record::OnDisconnect;
use model::{ErrorCode, Refusal, RequestId, SessionId, TurnId};

use crate::Kernel;
use crate::session::{SessionIx, Stage};

impl Kernel {
    pub(crate) fn turn_withdrawn(&mut self, id: SessionId, turn: TurnId) {
        let Some(session) = self.sessions.by_id(id) else { return };
        let known = &mut self.sessions[session];
        if known.turn.as_ref().is_some_and(|current| current.id == turn) {
            let refusal = Refusal::new(ErrorCode::Aborted, "the message was withdrawn");
            self.stop_any_turn(session, &refusal);
        } else if let Some(at) = known.queued.iter().position(|queued| queued.turn == turn) {
            self.drop_queued_turn(session, at);
        }
    }

    /// Drops a queued turn.
    fn drop_queued_turn(&mut self, session: SessionIx, at: usize) {
        let Some(queued) = self.sessions[session].queued.remove(at) else { return };
        self.forget_turn_client(queued.client);
        self.publish_turn_ended(session, queued.turn, TurnOutcome::Aborted);
        self.mark_session(session);
    }

    pub(crate) fn forget_turn_client(&mut self, client: Option<RequestId>) {
        if let Some(client) = client {
            self.sessions.client_left(client);
        }
    }

    /// The request that waited for the start of a turn was refused, or its client went away.
    pub(crate) fn turn_client_gone(&mut self, session: SessionIx, turn: TurnId, refusal: &Refusal) {
        let Some(current) = &mut self.sessions[session].turn else { return };
        if current.id != turn {
            return;
        }
        current.request = None;
        if refusal.code == ErrorCode::ClientGone {
            self.running_client_lost(session);
        } else if current.stage == Stage::Binding {
            self.finish_turn(session, TurnOutcome::NotStarted, None);
        }
    }

    /// The client of a running or queued turn went away.
    pub(crate) fn turn_client_lost(&mut self, session: SessionIx, client: RequestId) {
        let queued = &self.sessions[session].queued;
        let Some(at) = queued.iter().position(|queued| queued.client == Some(client)) else {
            self.running_client_lost(session);
            return;
        };
        match self.sessions[session].settings.on_disconnect {
            OnDisconnect::Continue => {
                self.sessions[session].queued[at].client = None;
                self.forget_turn_client(Some(client));
            }
            OnDisconnect::Abort => self.drop_queued_turn(session, at),
        }
    }

    /// No client follows a running turn any more: it continues, or is aborted if its session is
    /// configured so.
    fn running_client_lost(&mut self, session: SessionIx) {
        let Some(turn) = &mut self.sessions[session].turn else { return };
        let client = turn.client.take();
        self.forget_turn_client(client);
        match self.sessions[session].settings.on_disconnect {
            OnDisconnect::Continue => {}
            OnDisconnect::Abort => self.abort_turn(session, false),
        }
    }
}

//! Aborts: the turn is killed, the files are saved, and the sandbox ends unless the caller keeps
//! it. The answer confirms that the turn has ended.

use model::{ErrorCode, Refusal, RequestId, SessionId};

use crate::Kernel;
use crate::entry::Phase;
use crate::reply::Reply;
use crate::session::{Control, ControlKind, SessionIx};

impl Kernel {
    pub(crate) fn abort_requested(
        &mut self,
        request: RequestId,
        id: SessionId,
        keep_sandbox: bool,
    ) -> Result<Reply, Refusal> {
        let session = self.session_by_id(id)?;
        let known = &self.sessions[session];
        let aborting =
            matches!(known.control.as_ref().map(|c| c.kind), Some(ControlKind::Abort { .. }));
        let Some(turn) = known.turn.as_ref().map(|turn| turn.id) else {
            if aborting {
                let turn = model::TurnId::NIL;
                self.begin_control(request, session, ControlKind::Abort { turn, keep_sandbox })?;
                return Ok(Reply::Pending);
            }
            self.drop_queued_turns(session);
            let sandbox_kept = self.sessions[session]
                .entry
                .is_some_and(|entry| self.entries[entry].phase() == Phase::InUse);
            return Ok(Reply::Aborted { turn: None, sandbox_kept });
        };
        match self.sessions[session].control.as_ref().map(|control| control.kind) {
            Some(ControlKind::Fork) => {
                self.abort_turn(session, keep_sandbox);
                return Ok(Reply::Aborted { turn: Some(turn), sandbox_kept: false });
            }
            Some(ControlKind::Pause) => self.pause_frozen(session),
            Some(
                ControlKind::Abort { .. }
                | ControlKind::Stop
                | ControlKind::Expire
                | ControlKind::End(_),
            )
            | None => {}
        }
        self.begin_control(request, session, ControlKind::Abort { turn, keep_sandbox })?;
        if !aborting {
            self.abort_turn(session, keep_sandbox);
        }
        Ok(Reply::Pending)
    }

    /// Aborts the turn in progress, whether or not a caller waits for that.
    pub(crate) fn abort_turn(&mut self, session: SessionIx, keep_sandbox: bool) {
        let Some(turn) = self.sessions[session].turn.as_ref().map(|turn| turn.id) else { return };
        let kind = ControlKind::Abort { turn, keep_sandbox };
        let refusal = Refusal::new(ErrorCode::Aborted, "the turn was aborted");
        match self.sessions[session].control.as_ref().map(|control| control.kind) {
            // The session is already being stopped, paused or ended, which stops the turn too.
            Some(ControlKind::Stop | ControlKind::Expire | ControlKind::End(_)) => return,
            // The turn waits for the copy, so there is no sandbox to end.
            Some(ControlKind::Fork) => {}
            Some(ControlKind::Pause) => {
                self.pause_frozen(session);
                self.sessions[session].control = Some(Control { kind, requests: Vec::new() });
            }
            Some(ControlKind::Abort { .. }) | None => {
                let known = &mut self.sessions[session];
                known.control.get_or_insert(Control { kind, requests: Vec::new() });
            }
        }
        self.drop_queued_turns(session);
        self.stop_any_turn(session, &refusal);
    }
}

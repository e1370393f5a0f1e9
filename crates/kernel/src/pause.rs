//! Pausing a session: its processes are frozen now instead of after an idle time, and its files are
//! saved meanwhile. The session resumes with its next message.

use model::{ErrorCode, LifecycleEvent, Refusal, RequestId, SessionId, SessionStatus};

use crate::Kernel;
use crate::entry::{EntryIx, Phase, Reach};
use crate::reply::Reply;
use crate::session::{ControlKind, SessionIx};

impl Kernel {
    pub(crate) fn pause_requested(
        &mut self,
        request: RequestId,
        id: SessionId,
    ) -> Result<Reply, Refusal> {
        let session = self.session_by_id(id)?;
        let known = &self.sessions[session];
        if known.turn.is_some() {
            let cause = "a turn of the session is in progress";
            return Err(Refusal::new(ErrorCode::TurnInProgress, cause));
        }
        let other = known.control.as_ref().is_some_and(|c| c.kind != ControlKind::Pause);
        if known.wants() || other {
            let cause = "the session is being used, or another operation is in progress";
            return Err(Refusal::new(ErrorCode::SessionBusy, cause));
        }
        match known.status {
            SessionStatus::Paused => return Ok(Reply::Paused),
            SessionStatus::Active => {}
            SessionStatus::Starting | SessionStatus::Stopped | SessionStatus::Ended => {
                self.refuse_when_ended(session)?;
                let cause = "the session is still being created";
                return Err(Refusal::new(ErrorCode::SessionBusy, cause));
            }
        }
        let resting = known.entry.filter(|entry| {
            self.entries[*entry].phase() == Phase::InUse
                && self.entries[*entry].termination.is_none()
        });
        if resting.is_some_and(|entry| !self.entries[entry].is_quiet()) {
            let cause = "the sandbox of the session is in use";
            return Err(Refusal::new(ErrorCode::SandboxBusy, cause));
        }
        let saves = resting.filter(|entry| {
            let sandbox = &self.entries[*entry];
            sandbox.files.is_dirty() && !sandbox.ops.is_saving()
        });
        // Where the guest is needed for the save, the freeze follows it.
        let inside = saves.is_some_and(|entry| self.entries[entry].reach() == Reach::GuestOnly);
        let freezes = resting.filter(|entry| !inside && self.freezes_at(*entry).is_some());
        if freezes.is_some() {
            self.begin_control(request, session, ControlKind::Pause)?;
        }
        self.set_status(session, SessionStatus::Paused);
        if let Some(entry) = saves {
            self.save(entry);
        }
        if let Some(entry) = freezes {
            self.freeze(entry);
            return Ok(Reply::Pending);
        }
        if let Some(entry) = resting.filter(|entry| self.entries[*entry].ops.is_quiescing()) {
            self.entries[entry].file_access.freeze_again();
        }
        Ok(Reply::Paused)
    }

    /// The freeze of a paused session ended, done or failed.
    pub(crate) fn pause_frozen(&mut self, session: SessionIx) {
        let pausing = self.sessions[session].control.as_ref();
        if pausing.is_some_and(|control| control.kind == ControlKind::Pause) {
            self.finish_control(session, &Ok(Reply::Paused));
        }
    }

    /// Publishes that the files of a session are durable.
    pub(crate) fn publish_durable(&mut self, entry: EntryIx) {
        let sandbox = &self.entries[entry];
        if let Some(session) = sandbox.session() {
            let event = LifecycleEvent::WorkspaceDurable {
                session: self.sessions[session].id,
                sandbox_id: sandbox.id,
                generation: sandbox.generation,
            };
            self.publish(sandbox.tenant(), event);
        }
    }
}

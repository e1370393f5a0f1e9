//! State loss: the kernel remembers, across restarts, that a session lost files, until an answer
//! has reported it. No loss is silent, except to a session that is ending.

use model::{Generation, LifecycleEvent, SandboxId, SessionId, TerminatedReason};

use crate::Kernel;
use crate::entry::{AfterEnd, EntryIx};
use crate::reply::Loss;
use crate::session::SessionIx;

impl Kernel {
    /// Whether files are lost with this instance, if there were any.
    pub(crate) fn loses_files(&self, entry: EntryIx, after: AfterEnd) -> bool {
        let sandbox = &self.entries[entry];
        match after {
            AfterEnd::Gone => true,
            AfterEnd::Cold | AfterEnd::Renamed | AfterEnd::Shelved => sandbox.has_volatile_files(),
        }
    }

    /// Files of a session are lost or deleted: its next answer reports that.
    pub(crate) fn lose_files(&mut self, entry: EntryIx, reason: TerminatedReason) {
        let known = &mut self.entries[entry];
        let had_files = known.files.files_lost();
        let sandbox = known.id;
        if let Some(session) = known.session()
            && had_files
        {
            self.report_loss(session, sandbox, reason);
        }
    }

    /// Records a state loss of a session, until an answer has reported it.
    pub(crate) fn report_loss(
        &mut self,
        session: SessionIx,
        sandbox_id: SandboxId,
        reason: TerminatedReason,
    ) {
        let silent = self.flaws.hides_losses();
        let known = &mut self.sessions[session];
        if silent || known.status == model::SessionStatus::Ended || known.is_ending() {
            return;
        }
        known.lost_generation = known.generation;
        if known.state_lost.replace(reason).is_none() {
            let (session_id, tenant) = (known.id, known.settings.tenant);
            let event = LifecycleEvent::StateLost { session: session_id, sandbox_id, reason };
            self.publish(tenant, event);
        }
        self.mark_session(session);
    }

    /// An answer has reported what was lost before the sandbox of this generation.
    pub(crate) fn loss_reported(&mut self, id: SessionId, generation: Generation) {
        let Some(session) = self.sessions.by_id(id) else { return };
        let known = &mut self.sessions[session];
        if known.state_lost.is_some() && known.lost_generation < generation {
            known.state_lost = None;
            self.mark_session(session);
        }
    }

    /// The loss that an answer about a session without a sandbox must report.
    pub fn unreported_loss_of(&self, id: SessionId) -> Option<Loss> {
        let known = &self.sessions[self.sessions.by_id(id)?];
        let generation = known.lost_generation.next();
        known.state_lost.map(|reason| Loss { session: id, generation, reason })
    }

    /// The loss that the next answer about the sandbox of a session must report.
    pub(crate) fn unreported_loss(&self, entry: EntryIx) -> Option<Loss> {
        let sandbox = &self.entries[entry];
        let session = sandbox.session()?;
        let known = &self.sessions[session];
        let (session, generation) = (known.id, sandbox.generation);
        known.state_lost.map(|reason| Loss { session, generation, reason })
    }
}

//! Sessions as callers see them: one, or a page of them, newest first. Reading is no activity.

use model::{KeyId, SandboxStatus, SessionId, SessionStatus, TemplateName, TurnId, Wall};

use crate::Kernel;
use crate::entry::Phase;
use crate::session::Session;
use crate::view::SessionView;

/// A filter for sessions.
#[derive(Debug, Clone, Default)]
pub struct SessionFilter {
    /// Only those of this key.
    pub tenant: Option<KeyId>,
    /// Only those in this status.
    pub status: Option<SessionStatus>,
    /// Only those of this template.
    pub template: Option<TemplateName>,
    /// Only those that have all of these labels.
    pub labels: Vec<(String, String)>,
    /// Only those that are older than this one, which need not exist any more.
    pub after: Option<(Wall, SessionId)>,
}

impl SessionFilter {
    fn takes(&self, session: &Session) -> bool {
        let settings = &session.settings;
        let labels = settings.claim.as_ref().map(|claim| &claim.labels);
        self.tenant.is_none_or(|tenant| settings.tenant == tenant)
            && self.status.is_none_or(|status| session.status == status)
            && self.template.as_ref().is_none_or(|template| session.template == *template)
            && self.labels.iter().all(|(name, value)| {
                labels.and_then(|labels| labels.get(name)).is_some_and(|found| found == value)
            })
    }
}

impl Kernel {
    /// A session as it is now.
    pub fn session(&self, id: SessionId) -> Option<SessionView> {
        let known = &self.sessions[self.sessions.by_id(id)?];
        Some(self.session_view(known))
    }

    /// The newest sessions that match a filter, at most `limit` of them.
    pub fn sessions(&self, filter: &SessionFilter, limit: usize) -> Vec<SessionView> {
        let found = self.sessions.newest_first(filter.after).filter(|known| filter.takes(known));
        found.map(|known| self.session_view(known)).take(limit).collect()
    }

    /// The turn in progress of a session.
    pub fn turn_of(&self, id: SessionId) -> Option<TurnId> {
        let session = self.sessions.by_id(id)?;
        self.sessions[session].turn.as_ref().map(|turn| turn.id)
    }

    /// The key of a session, or of its tombstone.
    pub fn tenant_of_session(&self, id: SessionId) -> Option<KeyId> {
        match self.sessions.by_id(id) {
            Some(session) => Some(self.sessions[session].settings.tenant),
            None => self.tombstones.of_session(id).map(|ended| ended.tenant),
        }
    }

    /// How many sessions there are in each status, in the order of [`SessionStatus::ALL`].
    pub fn sessions_by_status(&self) -> [u32; SessionStatus::ALL.len()] {
        let mut counts = [0; SessionStatus::ALL.len()];
        for (_, known) in self.sessions.iter() {
            counts[known.status as usize] += 1;
        }
        counts
    }

    fn session_view(&self, known: &Session) -> SessionView {
        let connected = known.entry.filter(|entry| {
            self.entries[*entry].phase() == Phase::InUse
                && self.entries[*entry].termination.is_none()
        });
        let sandbox_status = match connected {
            Some(_) => SandboxStatus::Connected,
            None => SandboxStatus::Disconnected,
        };
        let used_at = known.entry.map(|entry| self.entries[entry].last_used.wall);
        SessionView {
            id: known.id,
            tenant: known.settings.tenant,
            parent: known.parent,
            template: known.template.clone(),
            status: known.status,
            sandbox_status,
            sandbox_id: connected.map(|entry| self.entries[entry].id),
            generation: known.generation,
            turn: known.turn.as_ref().map(|turn| turn.id),
            queued_turns: known.queued.len() as u32,
            state_lost: known.state_lost.is_some(),
            idle_timeout_ms: known.settings.idle_timeout_ms,
            deadline: known.settings.deadline,
            deadline_at: self.sessions.by_id(known.id).and_then(|at| self.deadline_at(at)),
            on_disconnect: known.settings.on_disconnect,
            claim: known.settings.claim.clone(),
            workspace: known
                .entry
                .map(|entry| self.entries[entry].workspace)
                .or(known.shelved.map(|shelved| shelved.files.workspace)),
            files_durable: known.entry.is_none_or(|entry| !self.entries[entry].has_unsaved_files()),
            created_at: known.created_at,
            last_active_at: used_at.map_or(known.last_active_at, |at| at.max(known.last_active_at)),
        }
    }
}

//! Deadlines of sessions: at a time, or after a time without use, the kernel ends or pauses a
//! session by itself. A deadline never comes early: where the kernel does not know how long a
//! session was idle, it counts from when it last knew.

use model::{
    Deadline, DeadlineAction, EndCause, ErrorCode, Mono, Refusal, SessionStatus, TerminatedReason,
    Wall,
};

use crate::Kernel;
use crate::session::{ControlKind, SessionIx};

impl Kernel {
    /// How many deadlines of sessions were reached since the node started, in the order of
    /// [`DeadlineAction::ALL`].
    pub const fn deadlines_met(&self) -> [u64; DeadlineAction::ALL.len()] {
        self.counts.deadlines_met()
    }

    /// Refuses a deadline that cannot be.
    pub(crate) fn refuse_deadline(&self, deadline: Option<Deadline>) -> Result<(), Refusal> {
        match deadline.and_then(|deadline| deadline.refused_at(self.now.wall)) {
            Some(cause) => Err(Refusal::new(ErrorCode::InvalidArgument, cause)),
            None => Ok(()),
        }
    }

    /// Sets the deadline of a session. Its idle time begins now.
    pub(crate) fn set_deadline(&mut self, session: SessionIx, deadline: Option<Deadline>) {
        let known = &mut self.sessions[session];
        known.settings.deadline = deadline;
        known.idle_from = self.now.wall;
        self.mark_session(session);
        self.arm_deadline(session);
    }

    /// When a session ends or pauses if it is not used before.
    pub(crate) fn deadline_at(&self, session: SessionIx) -> Option<Wall> {
        let known = &self.sessions[session];
        let deadline = known.settings.deadline?;
        let put_off = self.shutdown.is_some() || known.control.is_some();
        if put_off || self.flaws.ignores_session_deadlines() {
            return None;
        }
        let idle_at = deadline.idle_ms.and_then(|idle_ms| self.idle_deadline_at(session, idle_ms));
        match (deadline.action, known.status) {
            (_, SessionStatus::Ended) | (DeadlineAction::Pause, SessionStatus::Starting) => None,
            (DeadlineAction::End, _) | (DeadlineAction::Pause, SessionStatus::Active) => {
                deadline.at.into_iter().chain(idle_at).min()
            }
            (DeadlineAction::Pause, SessionStatus::Paused | SessionStatus::Stopped) => deadline.at,
        }
    }

    fn idle_deadline_at(&self, session: SessionIx, idle_ms: u64) -> Option<Wall> {
        let Wall(since) = self.idle_since(session)?;
        Some(Wall(since.saturating_add(idle_ms)))
    }

    /// Since when a session is idle, if it is.
    fn idle_since(&self, session: SessionIx) -> Option<Wall> {
        if self.is_in_use(session) && !self.flaws.counts_use_as_idle() {
            return None;
        }
        let known = &self.sessions[session];
        let sandbox = known.entry.map(|entry| self.entries[entry].last_used.wall);
        let shelved = known.shelved.as_ref().map(|shelved| shelved.files.last_used_at);
        [Some(known.idle_from), Some(known.last_active_at), sandbox, shelved]
            .into_iter()
            .flatten()
            .max()
    }

    fn is_in_use(&self, session: SessionIx) -> bool {
        let known = &self.sessions[session];
        let sandbox = known.entry.map(|entry| &self.entries[entry]);
        known.wants()
            || known.turn.is_some()
            || !known.queued.is_empty()
            || sandbox.is_some_and(|sandbox| {
                let in_use = !sandbox.is_inactive() || sandbox.is_kept_alive();
                (sandbox.is_live() && in_use) || sandbox.copying.is_some()
            })
    }

    /// Remembers that a session is in use now, if it is: it may be the last that the kernel sees of
    /// that.
    pub(crate) fn note_use(&mut self, session: SessionIx) {
        let is_timed = self.sessions[session].settings.deadline.is_some();
        if is_timed && self.idle_since(session).is_none() {
            self.sessions[session].idle_from = self.now.wall;
        }
    }

    /// Sets the alarm for a session's deadline. While the session is in use, the alarm rings after
    /// one idle time, to look again.
    pub(crate) fn arm_deadline(&mut self, session: SessionIx) {
        let Some(deadline) = self.sessions[session].settings.deadline else { return };
        let in_use = deadline.idle_ms.map(|ms| Wall(self.now.wall.0.saturating_add(ms)));
        let in_use = in_use.filter(|_| self.idle_since(session).is_none());
        if let Some(at) = self.deadline_at(session).into_iter().chain(in_use).min() {
            let at: Mono = self.now.mono_at(at);
            self.arm_session(session, at);
        }
    }

    /// Ends or pauses a session whose deadline has come.
    pub(crate) fn meet_deadline(&mut self, session: SessionIx) {
        let Some(deadline) = self.sessions[session].settings.deadline else { return };
        self.note_use(session);
        let is_due = self.deadline_at(session).is_some_and(|at| at <= self.now.wall);
        if !is_due {
            self.arm_deadline(session);
            return;
        }
        self.counts.deadline_met(deadline.action);
        match deadline.action {
            DeadlineAction::End => {
                let kind = ControlKind::End(EndCause::DeadlineReached);
                self.begin_leaving(session, kind, &deadline_reached());
            }
            DeadlineAction::Pause => self.pause_at_deadline(session, deadline),
        }
    }

    fn pause_at_deadline(&mut self, session: SessionIx, deadline: Deadline) {
        let known = &mut self.sessions[session];
        if deadline.at.is_some_and(|at| at <= self.now.wall) {
            known.settings.deadline = deadline.without_time();
        }
        self.mark_session(session);
        let known = &self.sessions[session];
        let is_live = known.entry.is_some_and(|entry| self.entries[entry].is_live());
        if is_live || known.wants() {
            self.begin_leaving(session, ControlKind::Expire, &deadline_reached());
        } else if known.status == SessionStatus::Active {
            self.set_status(session, SessionStatus::Paused);
        }
        if self.sessions.get(session).is_some() {
            self.arm_deadline(session);
        }
    }
}

/// The refusal of callers that want the sandbox of a session whose deadline came.
fn deadline_reached() -> Refusal {
    let cause = "the deadline of the session was reached";
    Refusal::new(ErrorCode::Aborted, cause).because(TerminatedReason::Expired)
}

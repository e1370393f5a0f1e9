//! A session as the kernel knows it. It owns at most one sandbox at a time and survives that
//! sandbox's death. What it wants is stored here; `session_binding` decides how it gets it.

use std::collections::VecDeque;

use model::lifecycle::{ActiveCause, TurnOutcome};
use model::record::SessionRecord;
use model::{
    EndCause, ErrorCode, Generation, Mono, Refusal, RequestId, SandboxId, SessionId, SessionStatus,
    TemplateName, TerminatedReason, TurnId, Wall,
};

use crate::Kernel;
use crate::entry::EntryIx;
use crate::event::SessionSettings;
use crate::flag::Flag;
use crate::reply::SessionReady;
use crate::request::RequestIx;
use crate::shelved_sessions::ShelvedFiles;
use crate::slab::SlabIndex;

/// The index of a session.
pub(crate) type SessionIx = SlabIndex<Session>;

/// A session.
#[derive(Debug)]
pub(crate) struct Session {
    pub(crate) id: SessionId,
    pub(crate) parent: Option<SessionId>,
    pub(crate) template: TemplateName,
    pub(crate) status: SessionStatus,
    pub(crate) generation: Generation,
    pub(crate) settings: SessionSettings,
    /// Its sandbox, live or cold.
    pub(crate) entry: Option<EntryIx>,
    /// Its number in the queue for places.
    pub(crate) applied: Option<u64>,
    /// How it gets the sandbox that it is waiting for.
    pub(crate) coming: Option<ActiveCause>,
    /// How many claims failed since it last had a sandbox.
    pub(crate) failed_claims: u32,
    /// Files were lost for this reason, and no answer has reported it yet.
    pub(crate) state_lost: Option<TerminatedReason>,
    /// The generation in which they were lost.
    pub(crate) lost_generation: Generation,
    /// Its files, while it is shelved.
    pub(crate) shelved: Option<ShelvedFiles>,
    /// The sandbox that was last published for it.
    pub(crate) told_id: Option<SandboxId>,
    /// Requests that want its sandbox.
    pub(crate) wanting: Vec<RequestIx>,
    pub(crate) turn: Option<Turn>,
    /// A turn that is over, and whose end is published after the end of its sandbox.
    pub(crate) unpublished_end: Option<UnpublishedEnd>,
    pub(crate) queued: VecDeque<Queued>,
    /// The operation in progress.
    pub(crate) control: Option<Control>,
    /// Idle time counts from here at the earliest: its deadline was set, or it was last known to be
    /// in use.
    pub(crate) idle_from: Wall,
    /// Why it is being ended for good.
    pub(crate) ended_by: Option<EndCause>,
    pub(crate) created_at: Wall,
    pub(crate) last_active_at: Wall,
    pub(crate) marked: Flag,
    pub(crate) due: Flag,
    pub(crate) alarm: Mono,
}

/// A turn.
#[derive(Debug)]
pub(crate) struct Turn {
    pub(crate) id: TurnId,
    /// The request that waits for it to start.
    pub(crate) request: Option<RequestIx>,
    /// The request of the client that follows it.
    pub(crate) client: Option<RequestId>,
    pub(crate) stage: Stage,
    /// Until when it waits for a place.
    pub(crate) place_by: Mono,
    pub(crate) deadline: Mono,
    /// The answer to the request that waits for it to start.
    pub(crate) ready: Option<SessionReady>,
}

/// A turn that is over, and how it ended.
#[derive(Debug, Clone, Copy)]
pub(crate) struct UnpublishedEnd {
    pub(crate) turn: TurnId,
    pub(crate) outcome: TurnOutcome,
}

/// A turn that waits for those before it.
#[derive(Debug)]
pub(crate) struct Queued {
    pub(crate) turn: TurnId,
    /// The request of the client that waits with it.
    pub(crate) client: Option<RequestId>,
}

/// The stage of a turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stage {
    /// Its sandbox is being found.
    Binding,
    /// It is being given to the harness.
    Starting,
    /// The harness works on it.
    Running,
    /// It is being stopped, and will end with this outcome.
    Stopping(TurnOutcome),
}

/// An operation on a session.
#[derive(Debug)]
pub(crate) struct Control {
    pub(crate) kind: ControlKind,
    pub(crate) requests: Vec<RequestIx>,
}

/// Which operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ControlKind {
    Abort {
        turn: TurnId,
        keep_sandbox: bool,
    },
    Pause,
    Stop,
    /// It is paused at its deadline.
    Expire,
    /// It ends for this cause.
    End(EndCause),
    Fork,
}

impl Session {
    pub(crate) fn new(
        id: SessionId,
        template: TemplateName,
        settings: SessionSettings,
        created_at: Wall,
    ) -> Self {
        Self {
            id,
            parent: None,
            template,
            status: SessionStatus::Starting,
            generation: Generation::default(),
            settings,
            entry: None,
            applied: None,
            coming: None,
            failed_claims: 0,
            state_lost: None,
            lost_generation: Generation::default(),
            shelved: None,
            told_id: None,
            wanting: Vec::new(),
            turn: None,
            unpublished_end: None,
            queued: VecDeque::new(),
            control: None,
            idle_from: created_at,
            ended_by: None,
            created_at,
            last_active_at: created_at,
            marked: Flag::default(),
            due: Flag::default(),
            alarm: Mono::NEVER,
        }
    }

    /// A caller waits for its sandbox.
    pub(crate) fn wants(&self) -> bool {
        !self.wanting.is_empty() || self.is_binding()
    }

    pub(crate) fn is_binding(&self) -> bool {
        self.turn.as_ref().is_some_and(|turn| turn.stage == Stage::Binding)
    }

    /// Whether an operation is in progress that ends its sandbox.
    pub(crate) fn is_leaving(&self) -> bool {
        match self.control.as_ref().map(|control| control.kind) {
            Some(ControlKind::Stop | ControlKind::Expire | ControlKind::End(_)) => true,
            Some(ControlKind::Abort { .. } | ControlKind::Pause | ControlKind::Fork) | None => {
                false
            }
        }
    }

    /// Whether its sandbox ends because its deadline came.
    pub(crate) fn leaves_at_deadline(&self) -> bool {
        match self.control.as_ref().map(|control| control.kind) {
            Some(ControlKind::Expire | ControlKind::End(EndCause::DeadlineReached)) => true,
            Some(
                ControlKind::Abort { .. }
                | ControlKind::Pause
                | ControlKind::Stop
                | ControlKind::End(_)
                | ControlKind::Fork,
            )
            | None => false,
        }
    }

    /// Whether it is being ended.
    pub(crate) fn is_ending(&self) -> bool {
        self.control.as_ref().is_some_and(|control| matches!(control.kind, ControlKind::End(_)))
    }

    /// Whether it still needs this template.
    pub(crate) fn needs_template(&self, template: &TemplateName) -> bool {
        self.template == *template && self.status != SessionStatus::Ended
    }

    pub(crate) fn record(&self, sandbox: Option<SandboxId>) -> SessionRecord {
        // A restart publishes the end of each of them.
        let mut unended = (self.unpublished_end.iter().map(|end| end.turn))
            .chain(self.turn.iter().map(|turn| turn.id))
            .chain(self.queued.iter().map(|queued| queued.turn));
        SessionRecord {
            id: self.id,
            tenant: self.settings.tenant,
            parent: self.parent,
            template: self.template.clone(),
            status: self.status,
            generation: self.generation,
            sandbox,
            claim: self.settings.claim.clone(),
            idle_timeout_ms: self.settings.idle_timeout_ms,
            deadline: self.settings.deadline,
            idle_from: self.idle_from,
            on_disconnect: self.settings.on_disconnect,
            state_lost: self.state_lost,
            lost_generation: self.lost_generation,
            files: self.shelved.map(|shelved| shelved.files),
            told_id: self.told_id,
            turn: unended.next(),
            queued: unended.collect(),
            created_at: self.created_at,
            last_active_at: self.last_active_at,
        }
    }
}

impl Kernel {
    pub(crate) fn session_by_id(&self, id: SessionId) -> Result<SessionIx, Refusal> {
        self.sessions.by_id(id).ok_or_else(|| self.session_gone(id))
    }

    /// The refusal of what needs a session that is not there, with why it ended.
    pub fn session_gone(&self, id: SessionId) -> Refusal {
        let Some(ended) = self.tombstones.of_session(id) else {
            return Refusal::new(ErrorCode::SessionUnknown, format!("no session {id} is known"));
        };
        let (cause, reason) = if ended.at_deadline {
            ("the session has ended: its deadline was reached", TerminatedReason::Expired)
        } else {
            ("the session has ended", TerminatedReason::Deleted)
        };
        Refusal::new(ErrorCode::SessionEnded, cause).because(reason)
    }

    /// Refuses work for a session that has ended, is stopped, or is leaving.
    pub(crate) fn refuse_when_ended(&self, session: SessionIx) -> Result<(), Refusal> {
        let known = &self.sessions[session];
        let (code, cause) = match known.status {
            SessionStatus::Ended => (ErrorCode::SessionEnded, "the session has ended"),
            SessionStatus::Stopped => (ErrorCode::SessionStopped, "the session is stopped"),
            SessionStatus::Starting | SessionStatus::Active | SessionStatus::Paused => {
                if !known.is_leaving() {
                    return Ok(());
                }
                (ErrorCode::SessionBusy, "the session is being stopped or ended")
            }
        };
        Err(Refusal::new(code, cause))
    }
}

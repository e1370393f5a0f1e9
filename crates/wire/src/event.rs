//! What happened, as it is told on streams and in pages.

use model::lifecycle::{ActiveCause, SessionChange, TurnOutcome, WakeCause};
use model::state::Wakefulness;
use model::{
    EndCause, Generation, KeyId, LeaseId, LifecycleEvent, SandboxId, SessionId, StoredEvent,
    TemplateName, TerminatedReason, TurnId,
};
use serde::{Deserialize, Serialize};

use crate::time::Time;

/// One event.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Event {
    /// Its number: later events have higher ones, also over restarts of the server.
    pub id: u64,
    /// When it happened.
    pub at: Time,
    /// The key that it concerns; none if it is about the server itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<KeyId>,
    /// What happened.
    #[serde(flatten)]
    pub body: EventBody,
}

/// What happened.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub enum EventBody {
    /// A session or lease has a sandbox that works.
    SandboxActive {
        /// The session, if it is one's.
        session: Option<SessionId>,
        /// The lease, if it is one's.
        lease: Option<LeaseId>,
        /// The sandbox.
        sandbox_id: SandboxId,
        /// Its generation.
        generation: Generation,
        /// How it came about.
        cause: ActiveCause,
        /// The sandbox it takes the place of.
        previous_id: Option<SandboxId>,
        /// Whether files were given up since the last one.
        state_lost: bool,
        /// When it will end unless renewed.
        expires_at: Option<Time>,
    },
    /// A sandbox that had been ready is gone. Told once per generation.
    SandboxTerminated {
        /// The session, if it was one's.
        session: Option<SessionId>,
        /// The lease, if it was one's.
        lease: Option<LeaseId>,
        /// The sandbox.
        sandbox_id: SandboxId,
        /// Its generation.
        generation: Generation,
        /// Why, for branching.
        reason: TerminatedReason,
        /// Why, exactly.
        cause: EndCause,
    },
    /// A session's files were given up.
    StateLost {
        /// The session.
        session: SessionId,
        /// The sandbox that held them.
        sandbox_id: SandboxId,
        /// Why.
        reason: TerminatedReason,
    },
    /// A session's files are safe even from a power cut.
    WorkspaceDurable {
        /// The session.
        session: SessionId,
        /// The sandbox that holds them.
        sandbox_id: SandboxId,
        /// Its generation.
        generation: Generation,
    },
    /// The status of a session changed.
    SessionChanged {
        /// The session.
        session: SessionId,
        /// How.
        change: SessionChange,
    },
    /// A turn was started in a sandbox.
    TurnStarted {
        /// The session.
        session: SessionId,
        /// The turn.
        turn: TurnId,
        /// The sandbox.
        sandbox_id: SandboxId,
        /// Its generation.
        generation: Generation,
    },
    /// A turn is over.
    TurnEnded {
        /// The session.
        session: SessionId,
        /// The turn.
        turn: TurnId,
        /// How.
        outcome: TurnOutcome,
    },
    /// A sandbox was frozen or thawed.
    SandboxFrozen {
        /// The sandbox.
        sandbox_id: SandboxId,
        /// Its generation.
        generation: Generation,
        /// Whether it is frozen now.
        frozen: bool,
    },
    /// What keeps a sandbox awake began, or ended for good.
    SandboxWakefulness {
        /// The sandbox.
        sandbox_id: SandboxId,
        /// Its generation.
        generation: Generation,
        /// Whether it may hibernate now.
        wakefulness: Wakefulness,
        /// Why that changed.
        because: WakeCause,
        /// When it will be frozen, if nothing happens and nobody uses it already.
        freezes_at: Option<Time>,
    },
    /// The health of a pool changed.
    PoolHealth {
        /// The pool's template.
        template: TemplateName,
        /// Whether launches fail at the moment.
        degraded: bool,
        /// The last failure.
        detail: String,
    },
}

impl EventBody {
    /// The name of the event in a stream: its `type`.
    pub const fn name(&self) -> &'static str {
        match self {
            Self::SandboxActive { .. } => "sandbox_active",
            Self::SandboxTerminated { .. } => "sandbox_terminated",
            Self::StateLost { .. } => "state_lost",
            Self::WorkspaceDurable { .. } => "workspace_durable",
            Self::SessionChanged { .. } => "session_changed",
            Self::TurnStarted { .. } => "turn_started",
            Self::TurnEnded { .. } => "turn_ended",
            Self::SandboxFrozen { .. } => "sandbox_frozen",
            Self::SandboxWakefulness { .. } => "sandbox_wakefulness",
            Self::PoolHealth { .. } => "pool_health",
        }
    }
}

impl From<StoredEvent> for Event {
    fn from(stored: StoredEvent) -> Self {
        Self {
            id: stored.number,
            at: stored.at.into(),
            key: (stored.tenant != KeyId::NIL).then_some(stored.tenant),
            body: stored.event.into(),
        }
    }
}

impl From<LifecycleEvent> for EventBody {
    fn from(event: LifecycleEvent) -> Self {
        match event {
            LifecycleEvent::SandboxActive {
                session,
                lease,
                sandbox_id,
                generation,
                cause,
                previous_id,
                state_lost,
                expires_at,
            } => Self::SandboxActive {
                session,
                lease,
                sandbox_id,
                generation,
                cause,
                previous_id,
                state_lost,
                expires_at: expires_at.map(Time::from),
            },
            LifecycleEvent::SandboxTerminated {
                session,
                lease,
                sandbox_id,
                generation,
                reason,
                cause,
            } => Self::SandboxTerminated { session, lease, sandbox_id, generation, reason, cause },
            LifecycleEvent::StateLost { session, sandbox_id, reason } => {
                Self::StateLost { session, sandbox_id, reason }
            }
            LifecycleEvent::WorkspaceDurable { session, sandbox_id, generation } => {
                Self::WorkspaceDurable { session, sandbox_id, generation }
            }
            LifecycleEvent::SessionChanged { session, change } => {
                Self::SessionChanged { session, change }
            }
            LifecycleEvent::TurnStarted { session, turn, sandbox_id, generation } => {
                Self::TurnStarted { session, turn, sandbox_id, generation }
            }
            LifecycleEvent::TurnEnded { session, turn, outcome } => {
                Self::TurnEnded { session, turn, outcome }
            }
            LifecycleEvent::SandboxFrozen { sandbox_id, generation, frozen } => {
                Self::SandboxFrozen { sandbox_id, generation, frozen }
            }
            LifecycleEvent::SandboxWakefulness {
                sandbox_id,
                generation,
                wakefulness,
                because,
                freezes_at,
            } => Self::SandboxWakefulness {
                sandbox_id,
                generation,
                wakefulness,
                because,
                freezes_at: freezes_at.map(Time::from),
            },
            LifecycleEvent::PoolHealth { template, degraded, detail } => {
                Self::PoolHealth { template, degraded, detail }
            }
        }
    }
}

/// Events, oldest first.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct EventList {
    /// One page of them.
    pub events: Vec<Event>,
    /// What to give as `after` for the next page, if there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<u64>,
    /// The oldest event that is still remembered; those before it are forgotten.
    pub oldest: u64,
}

/// Told on a stream as `reset`: events between the last one that was read and `oldest` are
/// forgotten, or the last one that was read is of a history that is gone. Whoever keeps a picture of the world should read it anew.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct EventsReset {
    /// The oldest event that is still remembered.
    pub oldest: u64,
}

impl EventsReset {
    /// The name of the event in a stream.
    pub const NAME: &'static str = "reset";
}

#[cfg(test)]
mod tests {
    use model::Wall;

    use super::*;

    fn stored(event: LifecycleEvent) -> StoredEvent {
        StoredEvent { number: 7, at: Wall(1_767_323_045_678), tenant: KeyId::from_u128(9), event }
    }

    #[test]
    fn events_are_tagged_by_their_name_and_read_back() {
        let (session, sandbox_id) = (SessionId::from_u128(1), SandboxId::from_u128(2));
        let (generation, turn) = (Generation::FIRST, TurnId::from_u128(3));
        let template = TemplateName::new("t").unwrap();
        for event in [
            LifecycleEvent::SandboxActive {
                session: None,
                lease: Some(LeaseId::from_u128(4)),
                sandbox_id,
                generation,
                cause: ActiveCause::Created,
                previous_id: None,
                state_lost: false,
                expires_at: Some(Wall(0)),
            },
            LifecycleEvent::SandboxTerminated {
                session: None,
                lease: None,
                sandbox_id,
                generation,
                reason: TerminatedReason::Crash,
                cause: EndCause::Crash,
            },
            LifecycleEvent::StateLost { session, sandbox_id, reason: TerminatedReason::Evicted },
            LifecycleEvent::WorkspaceDurable { session, sandbox_id, generation },
            LifecycleEvent::SessionChanged { session, change: SessionChange::Created },
            LifecycleEvent::TurnStarted { session, turn, sandbox_id, generation },
            LifecycleEvent::TurnEnded { session, turn, outcome: TurnOutcome::Completed },
            LifecycleEvent::SandboxFrozen { sandbox_id, generation, frozen: true },
            LifecycleEvent::PoolHealth { template, degraded: true, detail: "no".to_owned() },
        ] {
            let kernel = serde_json::to_value(&event).unwrap();
            let event = Event::from(stored(event));
            let value = serde_json::to_value(&event).unwrap();
            assert_eq!(value["type"], kernel["type"]);
            assert_eq!(value["type"], event.body.name());
            assert_eq!(value["at"], "2026-01-02T03:04:05.678Z");
            assert_eq!(serde_json::from_value::<Event>(value).unwrap(), event);
        }
    }

    #[test]
    fn an_event_of_the_server_itself_names_no_key() {
        let (sandbox_id, generation) = (SandboxId::from_u128(2), Generation::FIRST);
        let mut event =
            stored(LifecycleEvent::SandboxFrozen { sandbox_id, generation, frozen: true });
        event.tenant = KeyId::NIL;
        assert_eq!(Event::from(event).key, None);
    }
}

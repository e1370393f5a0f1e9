//! Events as they are sent on streams and in pages.

use model::{KeyId, LifecycleEvent, StoredEvent};
use serde::{Deserialize, Serialize};

use crate::time::Time;

/// One event.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Event {
    /// Its number: later events have higher ones, also over restarts of the server. A
    /// `sandbox_state` is not stored, and has the number of the last event before it.
    pub id: u64,
    /// When it happened.
    pub at: Time,
    /// The key that it concerns; null if it is about the server itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<KeyId>,
    /// What happened.
    #[serde(flatten)]
    pub body: EventBody,
}

/// What happened, with times as text.
pub type EventBody = LifecycleEvent<Time>;

impl From<StoredEvent> for Event {
    fn from(stored: StoredEvent) -> Self {
        Self {
            id: stored.number,
            at: stored.at.into(),
            key: (stored.tenant != KeyId::NIL).then_some(stored.tenant),
            body: stored.event.with_times(Time::from),
        }
    }
}

/// Events, oldest first.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct EventList {
    /// One page of them.
    pub events: Vec<Event>,
    /// The value of `after` for the next page, if there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<u64>,
    /// The oldest event that is still stored; older ones are deleted.
    pub oldest: u64,
}

/// Sent on a stream as `reset`: events between the last one that the client read and `oldest` are
/// deleted, or the last one belongs to a history that is gone. A client that derives state from
/// events must read that state again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct EventsReset {
    /// The oldest event that is still stored.
    pub oldest: u64,
}

impl EventsReset {
    /// The name of the event in a stream.
    pub const NAME: &'static str = "reset";
}

#[cfg(test)]
mod tests {
    use model::lifecycle::{ActiveCause, SessionChange, TurnOutcome, WakeCause};
    use model::state::{SandboxState, Wakefulness};
    use model::{
        EndCause, Generation, LeaseId, SandboxId, SessionId, TemplateName, TerminatedReason,
        TurnId, Wall,
    };
    use serde_json::json;

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
            LifecycleEvent::SandboxState {
                session: Some(session),
                sandbox_id,
                generation,
                from: SandboxState::Waiting,
                to: SandboxState::Cold,
                reason: Some(TerminatedReason::Idle),
                cause: Some(EndCause::Idle),
                skipped: 2,
            },
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
    fn event_json_is_stable() {
        let (session, lease) = (Some(SessionId::from_u128(1)), None);
        let (sandbox_id, generation) = (SandboxId::from_u128(2), Generation::FIRST);
        let active = LifecycleEvent::SandboxActive {
            session,
            lease,
            sandbox_id,
            generation,
            cause: ActiveCause::Resumed,
            previous_id: None,
            state_lost: true,
            expires_at: Some(Wall(1_767_323_045_678)),
        };
        let id = |n: u128| serde_json::to_value(SandboxId::from_u128(n)).unwrap();
        assert_eq!(
            serde_json::to_string(&Event::from(stored(active))).unwrap(),
            format!(
                r#"{{"id":7,"at":"2026-01-02T03:04:05.678Z","key":{},"type":"sandbox_active","session":{},"lease":null,"sandbox_id":{},"generation":1,"cause":"resumed","previous_id":null,"state_lost":true,"expires_at":"2026-01-02T03:04:05.678Z"}}"#,
                id(9),
                id(1),
                id(2)
            )
        );
        let awake = LifecycleEvent::SandboxWakefulness {
            sandbox_id,
            generation,
            wakefulness: Wakefulness::Auto,
            because: WakeCause::Timeout,
            freezes_at: Some(Wall(0)),
        };
        let kernel = serde_json::to_value(&awake).unwrap();
        let value = serde_json::to_value(Event::from(stored(awake))).unwrap();
        assert_eq!(
            (&kernel["freezes_at"], &value["freezes_at"]),
            (&json!(0), &json!("1970-01-01T00:00:00.000Z"))
        );
        assert_eq!(value["wakefulness"], kernel["wakefulness"]);
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

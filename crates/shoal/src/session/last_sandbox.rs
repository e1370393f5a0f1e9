//! The sandbox that a session had last, as its events tell: a session that sleeps has none, and its
//! user wants to know since when and why.

use client::{Client, ClientError, EventsQuery};
use model::{EndCause, LifecycleEvent, SandboxId, SessionId};
use wire::{Event, Time};

use crate::relative_time;

/// Events per request.
const PAGE: u32 = 1000;

/// The sandbox that a session had last.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct LastSandbox {
    pub(crate) id: SandboxId,
    /// When and why it ended, if it has.
    pub(crate) end: Option<(Time, EndCause)>,
}

impl LastSandbox {
    /// Reads all events of the session that the server still has; none if no sandbox is in them.
    pub(crate) async fn find(
        client: &Client,
        session: SessionId,
    ) -> Result<Option<Self>, ClientError> {
        let (session, limit) = (Some(session), Some(PAGE));
        let (mut last, mut after) = (None, Some(0));
        while after.is_some() {
            let query = EventsQuery { after, session, limit, sandbox: None };
            let page = client.events(query).await?;
            last = page.events.iter().fold(last, Self::with);
            after = page.next;
        }
        Ok(last)
    }

    /// What is known after one more event.
    fn with(last: Option<Self>, event: &Event) -> Option<Self> {
        match event.body {
            LifecycleEvent::SandboxActive { sandbox_id, .. } => {
                Some(Self { id: sandbox_id, end: None })
            }
            LifecycleEvent::SandboxTerminated { sandbox_id, cause, .. } => {
                Some(Self { id: sandbox_id, end: Some((event.at, cause)) })
            }
            LifecycleEvent::StateLost { .. }
            | LifecycleEvent::WorkspaceDurable { .. }
            | LifecycleEvent::SessionChanged { .. }
            | LifecycleEvent::TurnStarted { .. }
            | LifecycleEvent::TurnEnded { .. }
            | LifecycleEvent::SandboxFrozen { .. }
            | LifecycleEvent::SandboxWakefulness { .. }
            | LifecycleEvent::SandboxState { .. }
            | LifecycleEvent::PoolHealth { .. } => last,
        }
    }

    /// How it ended, in words. A session that has no sandbox and no end of one waits for that end.
    pub(crate) fn story(&self, now: Time) -> String {
        match self.end {
            Some((at, cause)) => {
                let ago = relative_time::ago(at, now);
                format!("{} ended {ago}, cause {}", self.id, cause.as_str())
            }
            None => format!("{} is being ended", self.id),
        }
    }
}

#[cfg(test)]
mod tests {
    use model::lifecycle::{ActiveCause, SessionChange};
    use model::{Generation, TerminatedReason};

    use super::*;

    #[test]
    fn last_sandbox_is_the_latest_in_the_events() {
        let session = Some(SessionId::from_u128(1));
        let active = |id: u128| LifecycleEvent::SandboxActive {
            session,
            lease: None,
            sandbox_id: SandboxId::from_u128(id),
            generation: Generation::FIRST,
            cause: ActiveCause::Created,
            previous_id: None,
            state_lost: false,
            expires_at: None,
        };
        let terminated = |id: u128| LifecycleEvent::SandboxTerminated {
            session,
            lease: None,
            sandbox_id: SandboxId::from_u128(id),
            generation: Generation::FIRST,
            reason: TerminatedReason::Evicted,
            cause: EndCause::Evicted,
        };
        let session = SessionId::from_u128(1);
        let paused = LifecycleEvent::SessionChanged { session, change: SessionChange::Paused };
        let after = |bodies: &[LifecycleEvent<Time>]| {
            let events = bodies.iter().map(|body| Event {
                id: 1,
                at: Time(5_000),
                key: None,
                body: body.clone(),
            });
            events.fold(None, |last, event| LastSandbox::with(last, &event))
        };
        assert_eq!(after(std::slice::from_ref(&paused)), None);
        let alive = after(&[active(7), terminated(7), active(8)]).unwrap();
        assert_eq!((alive.id, alive.end), (SandboxId::from_u128(8), None));
        assert!(alive.story(Time(9_000)).ends_with(" is being ended"));
        let evicted = after(&[active(7), terminated(7), paused]).unwrap();
        let said = evicted.story(Time(9_000));
        assert!(said.ends_with(" ended 4 s ago, cause evicted"), "{said}");
    }
}

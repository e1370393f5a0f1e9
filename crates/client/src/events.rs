//! What happens, as it happens. A stream that breaks is taken up where it broke; what the server
//! has forgotten meanwhile is said, never skipped in silence.

use std::time::Duration;

use hyper::header::{HeaderName, HeaderValue};
use model::{SandboxId, SessionId};
use tokio::time::{Instant, sleep, timeout};
use wire::{Event, EventList, EventsReset};

use crate::boxed;
use crate::call::Call;
use crate::error::ClientError;
use crate::lines::{Events, Lines, Told};
use crate::query::Target;
use crate::transport::Client;

pub(crate) const STREAM: &str = "text/event-stream";
pub(crate) const JSON: &str = "application/json";
pub(crate) const LAST_EVENT_ID: HeaderName = HeaderName::from_static("last-event-id");
pub(crate) const FIRST_PAUSE: Duration = Duration::from_millis(100);
pub(crate) const LONGEST_PAUSE: Duration = Duration::from_secs(5);

/// Which events.
#[derive(Debug, Clone, Copy, Default)]
pub struct EventsQuery {
    /// Those after this one; on a stream, only new ones if not given.
    pub after: Option<u64>,
    /// Those of this sandbox.
    pub sandbox: Option<SandboxId>,
    /// Those of this session.
    pub session: Option<SessionId>,
    /// At most so many; streams have no end.
    pub limit: Option<u32>,
}

impl EventsQuery {
    fn target(&self) -> Target {
        match (self.sandbox, self.session) {
            (Some(sandbox), _) => {
                Target::new("/v1/sandboxes").part(&sandbox.to_string()).part("events")
            }
            (None, Some(session)) => {
                Target::new("/v1/sessions").part(&session.to_string()).part("events")
            }
            (None, None) => Target::new("/v1/events"),
        }
    }
}

/// What a stream tells.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Seen {
    /// Something happened.
    Event(Box<Event>),
    /// Events before this one are forgotten: whoever keeps a picture of the world reads it anew.
    Forgotten {
        /// The oldest event that is still remembered.
        oldest: u64,
    },
}

impl Client {
    /// One page of events, oldest first.
    #[boxed]
    pub async fn events(&self, query: EventsQuery) -> Result<EventList, ClientError> {
        let target = query.target().maybe("after", query.after).maybe("limit", query.limit);
        self.json(Call::get(target).accept(JSON)).await
    }

    /// Events as they happen. Nothing is sent before the first is asked for.
    pub fn watch_events(&self, query: EventsQuery) -> EventStream {
        EventStream::new(self.clone(), query)
    }
}

/// Events as they happen.
pub struct EventStream {
    client: Client,
    query: EventsQuery,
    open: Option<(Lines, Events)>,
    /// Since when nothing could be heard.
    lost_at: Option<Instant>,
    pause: Duration,
}

impl EventStream {
    pub(crate) fn new(client: Client, query: EventsQuery) -> Self {
        Self { client, query, open: None, lost_at: None, pause: FIRST_PAUSE }
    }

    /// The last event that was seen: where another stream would go on.
    pub fn last_seen(&self) -> Option<u64> {
        self.query.after
    }

    /// The next one, however long that takes. An error means that the server refuses, or that it
    /// could not be reached for as long as the client's patience says. Safe to drop while waiting.
    pub async fn next(&mut self) -> Result<Seen, ClientError> {
        loop {
            let error = match self.step().await {
                Ok(Some(seen)) => return Ok(seen),
                Ok(None) => ClientError::cut("the server ended the stream"),
                Err(error) if error.retryable() => error,
                Err(error) => return Err(error),
            };
            self.open = None;
            let lost_at = *self.lost_at.get_or_insert_with(Instant::now);
            if lost_at.elapsed() >= self.client.patience().resume {
                return Err(error);
            }
            sleep(self.pause).await;
            self.pause = (self.pause * 2).min(LONGEST_PAUSE);
        }
    }

    /// Reads until something is told; none if the stream ended.
    async fn step(&mut self) -> Result<Option<Seen>, ClientError> {
        if self.open.is_none() {
            let mut call = Call::get(self.query.target()).accept(STREAM);
            if let Some(after) = self.query.after {
                call = call.header(LAST_EVENT_ID, HeaderValue::from(after));
            }
            let answer = self.client.stream(&mut call).await?;
            self.open = Some((Lines::new(answer.into_body()), Events::default()));
        }
        let quiet = self.client.patience().quiet;
        let Some((lines, events)) = &mut self.open else { return Ok(None) };
        loop {
            let heard = timeout(quiet, lines.next()).await;
            let heard =
                heard.map_err(|_| ClientError::cut("nothing was heard, not even a beat"))?;
            let Some(line) = heard? else { return Ok(None) };
            (self.lost_at, self.pause) = (None, FIRST_PAUSE);
            let Some(told) = events.line(&line) else { continue };
            let seen = seen(&told)?;
            match &seen {
                Seen::Event(event) => self.query.after = Some(event.id),
                Seen::Forgotten { oldest } => {
                    self.query.after = Some(oldest.saturating_sub(1));
                }
            }
            return Ok(Some(seen));
        }
    }
}

fn seen(told: &Told) -> Result<Seen, ClientError> {
    let wrong = |error| ClientError::Invalid { cause: format!("an event: {error}") };
    if told.name == EventsReset::NAME {
        let reset: EventsReset = serde_json::from_str(&told.data).map_err(wrong)?;
        return Ok(Seen::Forgotten { oldest: reset.oldest });
    }
    serde_json::from_str(&told.data).map(|event| Seen::Event(Box::new(event))).map_err(wrong)
}

impl std::fmt::Debug for EventStream {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("EventStream").field("query", &self.query).finish_non_exhaustive()
    }
}

//! Events as they happen. After a broken connection the stream resumes where it broke. It reports
//! events that the server deleted meanwhile; it never skips any silently.

use std::time::Duration;

use hyper::header::{HeaderName, HeaderValue};
use model::{SandboxId, SessionId};
use tokio::time::{Instant, sleep, timeout};
use wire::{Event, EventList, EventsReset};

use crate::boxed;
use crate::call::Call;
use crate::error::ClientError;
use crate::lines::{Lines, SseEvent, SseParser};
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
    /// Events after this id. Without it a stream has only new events.
    pub after: Option<u64>,
    /// Events of this sandbox.
    pub sandbox: Option<SandboxId>,
    /// Events of this session.
    pub session: Option<SessionId>,
    /// At most this many; ignored by streams.
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

/// An item of a stream of events.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum EventUpdate {
    /// An event.
    Event(Box<Event>),
    /// Events before `oldest` are no longer stored: a client that tracks state must read it again.
    Gap {
        /// The oldest event that is still stored.
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

    /// Events as they happen. The request is sent with the first `next`.
    pub fn watch_events(&self, query: EventsQuery) -> EventStream {
        EventStream::new(self.clone(), query)
    }
}

/// Events as they happen.
pub struct EventStream {
    client: Client,
    query: EventsQuery,
    open: Option<(Lines, SseParser)>,
    /// Since when the connection is broken.
    lost_at: Option<Instant>,
    pause: Duration,
}

impl EventStream {
    pub(crate) fn new(client: Client, query: EventsQuery) -> Self {
        Self { client, query, open: None, lost_at: None, pause: FIRST_PAUSE }
    }

    /// The id of the last event: another stream can resume after it.
    pub fn last_seen(&self) -> Option<u64> {
        self.query.after
    }

    /// Waits for the next item. An error means that the server refused, or that it was unreachable
    /// for longer than `Patience::resume`. Safe to drop while waiting.
    pub async fn next(&mut self) -> Result<EventUpdate, ClientError> {
        loop {
            let error = match self.step().await {
                Ok(Some(update)) => return Ok(update),
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

    /// Reads the next item; none if the stream ended.
    async fn step(&mut self) -> Result<Option<EventUpdate>, ClientError> {
        if self.open.is_none() {
            let mut call = Call::get(self.query.target()).accept(STREAM);
            if let Some(after) = self.query.after {
                call = call.header(LAST_EVENT_ID, HeaderValue::from(after));
            }
            let answer = self.client.stream(&mut call).await?;
            self.open = Some((Lines::new(answer.into_body()), SseParser::default()));
        }
        let quiet = self.client.patience().quiet;
        let Some((lines, events)) = &mut self.open else { return Ok(None) };
        loop {
            let heard = timeout(quiet, lines.next()).await;
            let heard = heard.map_err(|_| {
                ClientError::cut("the server sent nothing for too long, not even a heartbeat")
            })?;
            let Some(line) = heard? else { return Ok(None) };
            (self.lost_at, self.pause) = (None, FIRST_PAUSE);
            let Some(event) = events.line(&line) else { continue };
            let update = update_of(&event)?;
            match &update {
                EventUpdate::Event(event) => self.query.after = Some(event.id),
                EventUpdate::Gap { oldest } => {
                    self.query.after = Some(oldest.saturating_sub(1));
                }
            }
            return Ok(Some(update));
        }
    }
}

fn update_of(event: &SseEvent) -> Result<EventUpdate, ClientError> {
    let wrong = |error| ClientError::Invalid { cause: format!("cannot read an event: {error}") };
    if event.name == EventsReset::NAME {
        let reset: EventsReset = serde_json::from_str(&event.data).map_err(wrong)?;
        return Ok(EventUpdate::Gap { oldest: reset.oldest });
    }
    serde_json::from_str(&event.data)
        .map(|event| EventUpdate::Event(Box::new(event)))
        .map_err(wrong)
}

impl std::fmt::Debug for EventStream {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("EventStream").field("query", &self.query).finish_non_exhaustive()
    }
}

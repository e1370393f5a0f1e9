//! A turn as it happens. After a broken connection the stream resumes where it broke; the turn goes
//! on meanwhile. The last event is the end of the turn.

use std::time::Duration;

use hyper::StatusCode;
use hyper::header::HeaderValue;
use model::TurnId;
use tokio::time::{Instant, sleep, timeout};
use wire::{TurnEnded, TurnEvent, TurnRequest};

use crate::call::{Call, random};
use crate::error::ClientError;
use crate::events::{FIRST_PAUSE, LAST_EVENT_ID, LONGEST_PAUSE, STREAM};
use crate::lines::{Lines, SseEvent, SseParser};
use crate::query::Target;
use crate::transport::Client;

/// The longest time for a turn. Its template has the real limit.
pub(crate) const TURN_TIME_MAX: Duration = Duration::from_hours(24);

/// A random id, so that a turn can be found again if the connection broke at its start.
pub(crate) fn fresh_turn() -> TurnId {
    let bits = random() & !(0xf << 76) & !(0x3 << 62);
    TurnId::from_u128(bits | 0x4 << 76 | 0x2 << 62)
}

/// The events of a turn as they come. Dropping the stream does not end the turn, unless its session
/// aborts turns whose client disconnects.
pub struct TurnStream {
    client: Client,
    /// The turns of its session.
    at: Target,
    turn: TurnId,
    after: u64,
    open: Option<(Lines, SseParser)>,
    lost_at: Option<Instant>,
    pause: Duration,
    ended: bool,
}

impl TurnStream {
    pub(crate) async fn start(
        client: Client,
        at: Target,
        turn: TurnId,
        request: &TurnRequest,
    ) -> Result<Self, ClientError> {
        let call = Call::post(at.clone()).json(request)?.accept(STREAM);
        // The session may need a sandbox before the turn starts.
        let mut call = call.may_take(client.patience().control);
        let mut stream = Self::follow(client, at, turn, 0);
        match stream.client.stream(&mut call).await {
            Ok(answer) => {
                stream.open = Some((Lines::new(answer.into_body()), SseParser::default()));
                Ok(stream)
            }
            // The turn may have started: the next read finds out.
            Err(ClientError::Cut { .. }) => Ok(stream),
            Err(error) => Err(error),
        }
    }

    pub(crate) fn follow(client: Client, at: Target, turn: TurnId, after: u64) -> Self {
        let (open, lost_at, pause, ended) = (None, None, FIRST_PAUSE, false);
        Self { client, at, turn, after, open, lost_at, pause, ended }
    }

    /// The turn.
    pub fn turn(&self) -> TurnId {
        self.turn
    }

    /// The number of the last event that was read.
    pub fn last_seen(&self) -> u64 {
        self.after
    }

    /// The next event; none after the end. Safe to drop while waiting.
    pub async fn next(&mut self) -> Result<Option<TurnEvent>, ClientError> {
        while !self.ended {
            let error = match self.step().await {
                Ok(Some(event)) => {
                    self.ended = event.event == TurnEnded::NAME;
                    return Ok(Some(event));
                }
                Ok(None) if self.ended => return Ok(None),
                Ok(None) => ClientError::cut("the server ended the stream before the turn"),
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
        Ok(None)
    }

    async fn step(&mut self) -> Result<Option<TurnEvent>, ClientError> {
        if self.open.is_none() {
            let target = self.at.clone().part(&self.turn.to_string()).part("events");
            let mut call = Call::get(target).accept(STREAM);
            call = call.header(LAST_EVENT_ID, HeaderValue::from(self.after));
            let answer = self.client.stream(&mut call).await?;
            if answer.status() == StatusCode::NO_CONTENT {
                self.ended = true;
                return Ok(None);
            }
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
            let event = turn_event(event)?;
            self.after = self.after.max(event.id);
            return Ok(Some(event));
        }
    }
}

fn turn_event(event: SseEvent) -> Result<TurnEvent, ClientError> {
    let wrong = |cause: String| ClientError::Invalid {
        cause: format!("cannot read an event of a turn: {cause}"),
    };
    let id = event.id.as_deref().and_then(|id| id.parse().ok());
    let id = id.ok_or_else(|| wrong("it has no id".to_owned()))?;
    let data = serde_json::from_str(&event.data).map_err(|error| wrong(error.to_string()))?;
    Ok(TurnEvent { id, at: None, event: event.name, data })
}

impl std::fmt::Debug for TurnStream {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TurnStream")
            .field("turn", &self.turn)
            .field("after", &self.after)
            .finish_non_exhaustive()
    }
}

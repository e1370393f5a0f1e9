//! Follows the log of a process. After a broken connection the stream resumes where it broke; the
//! process runs on meanwhile. The last event is the end of the process.

use std::time::Duration;

use tokio::time::{Instant, sleep, timeout};
use wire::{LogPiece, Process, ProcessEvent};

use crate::call::Call;
use crate::error::ClientError;
use crate::events::{FIRST_PAUSE, LAST_EVENT_ID, LONGEST_PAUSE, STREAM};
use crate::lines::{Lines, SseParser};
use crate::query::Target;
use crate::transport::Client;

/// An event of the log of a process.
#[derive(Debug, Clone, PartialEq)]
pub enum LogEvent {
    /// Output of the process.
    Piece(LogPiece),
    /// The process has ended.
    Exit(Box<Process>),
}

/// A log that is followed. Dropping it does not end the process.
pub struct LogStream {
    client: Client,
    at: Target,
    offset: u64,
    open: Option<(Lines, SseParser)>,
    lost_at: Option<Instant>,
    pause: Duration,
    ended: bool,
}

impl LogStream {
    pub(crate) fn new(client: Client, at: Target, offset: u64) -> Self {
        let (open, lost_at, pause, ended) = (None, None, FIRST_PAUSE, false);
        Self { client, at, offset, open, lost_at, pause, ended }
    }

    /// The offset of the next output.
    pub fn offset(&self) -> u64 {
        self.offset
    }

    /// The next event; none after the end. Safe to drop while waiting.
    pub async fn next(&mut self) -> Result<Option<LogEvent>, ClientError> {
        while !self.ended {
            let event = match self.step().await {
                Ok(event) => event,
                Err(error) => {
                    self.open = None;
                    self.lost(error).await?;
                    continue;
                }
            };
            (self.lost_at, self.pause) = (None, FIRST_PAUSE);
            return match event {
                ProcessEvent::Output(piece) => {
                    self.offset = piece.next_offset;
                    Ok(Some(LogEvent::Piece(piece)))
                }
                ProcessEvent::Exit { process } => {
                    self.ended = true;
                    Ok(Some(LogEvent::Exit(process)))
                }
                ProcessEvent::Error { problem } => {
                    self.ended = true;
                    Err(ClientError::Problem(problem))
                }
            };
        }
        Ok(None)
    }

    async fn step(&mut self) -> Result<ProcessEvent, ClientError> {
        let quiet = self.client.patience().quiet;
        if self.open.is_none() {
            let mut call = Call::get(self.at.clone()).accept(STREAM);
            call = call.header(LAST_EVENT_ID, self.offset.into());
            let answer = self.client.stream(&mut call).await?;
            self.open = Some((Lines::new(answer.into_body()), SseParser::default()));
        }
        let Some((lines, events)) = &mut self.open else {
            return Err(ClientError::cut("the log is not open"));
        };
        loop {
            let line = timeout(quiet, lines.next()).await;
            let line =
                line.map_err(|_| ClientError::cut("the server sent nothing for too long"))??;
            let Some(line) = line else { return Err(ClientError::cut("the log ended early")) };
            if let Some(event) = events.line(&line) {
                let wrong =
                    |error| ClientError::cut(format!("cannot read an event of the log: {error}"));
                return serde_json::from_str(&event.data).map_err(wrong);
            }
        }
    }

    /// Waits before another attempt. Fails after too long, or if another attempt cannot help.
    async fn lost(&mut self, error: ClientError) -> Result<(), ClientError> {
        let since = *self.lost_at.get_or_insert_with(Instant::now);
        if !error.retryable() || since.elapsed() >= self.client.patience().resume {
            self.ended = true;
            return Err(error);
        }
        sleep(self.pause).await;
        self.pause = (self.pause * 2).min(LONGEST_PAUSE);
        Ok(())
    }
}

impl std::fmt::Debug for LogStream {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LogStream").field("offset", &self.offset).finish_non_exhaustive()
    }
}

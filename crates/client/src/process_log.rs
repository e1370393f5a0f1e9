//! A log that is followed. The connection may break: the process goes on, and the stream takes its log
//! up where it broke. The last thing it tells is the process's end.

use std::time::Duration;

use tokio::time::{Instant, sleep, timeout};
use wire::{LogPiece, Process, ProcessEvent};

use crate::call::Call;
use crate::error::ClientError;
use crate::events::{FIRST_PAUSE, LAST_EVENT_ID, LONGEST_PAUSE, STREAM};
use crate::lines::{Events, Lines};
use crate::query::Target;
use crate::transport::Client;

/// What a process wrote, or how it ended.
#[derive(Debug, Clone, PartialEq)]
pub enum Logged {
    /// It wrote something.
    Piece(LogPiece),
    /// It is over.
    Exit(Box<Process>),
}

/// A log that is followed. Dropped, the process runs on.
pub struct LogStream {
    client: Client,
    at: Target,
    offset: u64,
    open: Option<(Lines, Events)>,
    lost_at: Option<Instant>,
    pause: Duration,
    over: bool,
}

impl LogStream {
    pub(crate) fn new(client: Client, at: Target, offset: u64) -> Self {
        let (open, lost_at, pause, over) = (None, None, FIRST_PAUSE, false);
        Self { client, at, offset, open, lost_at, pause, over }
    }

    /// Where it is.
    pub fn offset(&self) -> u64 {
        self.offset
    }

    /// What comes next; none after the end. Safe to drop while waiting.
    pub async fn next(&mut self) -> Result<Option<Logged>, ClientError> {
        while !self.over {
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
                    Ok(Some(Logged::Piece(piece)))
                }
                ProcessEvent::Exit { process } => {
                    self.over = true;
                    Ok(Some(Logged::Exit(process)))
                }
                ProcessEvent::Error { problem } => {
                    self.over = true;
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
            self.open = Some((Lines::new(answer.into_body()), Events::default()));
        }
        let Some((lines, events)) = &mut self.open else {
            return Err(ClientError::cut("the log is not open"));
        };
        loop {
            let line = timeout(quiet, lines.next()).await;
            let line = line.map_err(|_| ClientError::cut("nothing was heard for too long"))??;
            let Some(line) = line else { return Err(ClientError::cut("the log ended early")) };
            if let Some(told) = events.line(&line) {
                let wrong = |error| ClientError::cut(format!("an event of the log: {error}"));
                return serde_json::from_str(&told.data).map_err(wrong);
            }
        }
    }

    /// Waits before another try, unless it was tried for too long or cannot help.
    async fn lost(&mut self, error: ClientError) -> Result<(), ClientError> {
        let since = *self.lost_at.get_or_insert_with(Instant::now);
        if !error.retryable() || since.elapsed() >= self.client.patience().resume {
            self.over = true;
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

//! Programs in a sandbox: run to their end, or watched while they run.

use std::time::Duration;

use tokio::time::{Instant, timeout_at};
use wire::{ExecEvent, ExecRequest, ExecResult};

use crate::boxed;
use crate::call::Call;
use crate::error::ClientError;
use crate::inside::Inside;
use crate::lines::Lines;

const LINES_OF_JSON: &str = "application/x-ndjson";

/// The longest a program can take: its own time, or the most that any may have.
fn may_take(request: &ExecRequest) -> Duration {
    Duration::from_millis(request.timeout_ms.unwrap_or(ExecRequest::TIMEOUT_MS_MAX))
}

impl Inside {
    /// Runs a program to its end, with its output kept. It is not sent again if the connection
    /// breaks: it may have run.
    #[boxed]
    pub async fn exec(&self, request: ExecRequest) -> Result<ExecResult, ClientError> {
        let may_take = may_take(&request);
        let call = Call::post(self.at().part("exec")).json(&request)?.may_take(may_take);
        self.client.json(call).await
    }

    /// Runs a program and gives its output as it comes.
    #[boxed]
    pub async fn exec_stream(&self, request: ExecRequest) -> Result<ExecStream, ClientError> {
        let may_take = may_take(&request);
        let mut call = Call::post(self.at().part("exec")).json(&request)?.accept(LINES_OF_JSON);
        let allowed = self.client.patience().answer + may_take;
        let deadline = Instant::now() + allowed;
        let answer = self.client.stream(&mut call).await?;
        let lost = answer.headers().get(wire::STATE_LOST_HEADER);
        let state_lost = lost.and_then(|reason| reason.to_str().ok()).map(str::to_owned);
        let lines = Lines::new(answer.into_body());
        Ok(ExecStream { lines, allowed, deadline, over: false, state_lost })
    }
}

/// A program that is watched. Dropped before its end, the program is killed.
pub struct ExecStream {
    lines: Lines,
    allowed: Duration,
    deadline: Instant,
    over: bool,
    state_lost: Option<String>,
}

impl ExecStream {
    /// Why files of the session were lost before this program ran, if this answer reports it.
    pub fn state_lost(&self) -> Option<&str> {
        self.state_lost.as_deref()
    }

    /// What happens next; none after the end. A refusal of the server is an error, also if it comes
    /// while the program runs.
    pub async fn next(&mut self) -> Result<Option<ExecEvent>, ClientError> {
        if self.over {
            return Ok(None);
        }
        let step = timeout_at(self.deadline, self.step()).await.unwrap_or_else(|_| {
            let call = "a program that runs".to_owned();
            Err(ClientError::Timeout { call, after: self.allowed })
        });
        self.over = !matches!(
            step,
            Ok(Some(ExecEvent::Started | ExecEvent::Stdout(_) | ExecEvent::Stderr(_)))
        );
        step
    }

    async fn step(&mut self) -> Result<Option<ExecEvent>, ClientError> {
        loop {
            let Some(line) = self.lines.next().await? else {
                return Err(ClientError::cut("the program's output ended before the program"));
            };
            if line.is_empty() {
                continue;
            }
            let event = serde_json::from_str(&line).map_err(|error| {
                ClientError::cut(format!("a line of the program's output: {error}"))
            })?;
            return match event {
                ExecEvent::Error { problem } => Err(ClientError::Problem(problem)),
                ExecEvent::Started
                | ExecEvent::Stdout(_)
                | ExecEvent::Stderr(_)
                | ExecEvent::Exit(_) => Ok(Some(event)),
            };
        }
    }
}

impl std::fmt::Debug for ExecStream {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ExecStream").field("over", &self.over).finish_non_exhaustive()
    }
}

//! Runs programs in a sandbox: with the whole output at the end, or streamed.

use std::time::Duration;

use tokio::time::{Instant, timeout_at};
use wire::{ExecEvent, ExecRequest, ExecResult};

use crate::boxed;
use crate::call::Call;
use crate::error::ClientError;
use crate::inside::Inside;
use crate::lines::Lines;

const LINES_OF_JSON: &str = "application/x-ndjson";

/// How long a program may take: its timeout, or the longest that a server allows.
fn may_take(request: &ExecRequest) -> Duration {
    Duration::from_millis(request.timeout_ms.unwrap_or(ExecRequest::TIMEOUT_MS_MAX))
}

impl Inside {
    /// Runs a program and collects its output. The request is not sent again if the connection
    /// breaks, because the program may have run.
    #[boxed]
    pub async fn exec(&self, request: ExecRequest) -> Result<ExecResult, ClientError> {
        let may_take = may_take(&request);
        let call = Call::post(self.at().part("exec")).json(&request)?.may_take(may_take);
        self.client.json(call).await
    }

    /// Runs a program and streams its output.
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
        Ok(ExecStream { lines, allowed, deadline, ended: false, state_lost })
    }
}

/// The output of a running program. Dropping it before the end kills the program.
pub struct ExecStream {
    lines: Lines,
    allowed: Duration,
    deadline: Instant,
    ended: bool,
    state_lost: Option<String>,
}

impl ExecStream {
    /// Why files of the session were lost before this program ran, if this answer reports it.
    pub fn state_lost(&self) -> Option<&str> {
        self.state_lost.as_deref()
    }

    /// The next event; none after the end. A refusal of the server is an error, also while the
    /// program runs.
    pub async fn next(&mut self) -> Result<Option<ExecEvent>, ClientError> {
        if self.ended {
            return Ok(None);
        }
        let step = timeout_at(self.deadline, self.step()).await.unwrap_or_else(|_| {
            let call = "the output of a program".to_owned();
            Err(ClientError::Timeout { call, after: self.allowed })
        });
        self.ended = !matches!(
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
                ClientError::cut(format!("cannot read a line of the program's output: {error}"))
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
        f.debug_struct("ExecStream").field("ended", &self.ended).finish_non_exhaustive()
    }
}

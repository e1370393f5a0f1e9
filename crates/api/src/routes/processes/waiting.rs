//! Waiting for a process. Whoever waits keeps its sandbox from being frozen by the use that he holds;
//! a wait that is over, or given up, changes nothing.

use engine::{Caller, LogQuery, LogWanted, ProcessRef, Use};
use model::{ErrorCode, ProcessId, ProcessRecord, SandboxId};
use tokio::time::{Instant, sleep_until};
use wire::{ExecRequest, ProcessOutput};

use crate::app::App;
use crate::passed_on::until_open;
use crate::refused::Refused;
use crate::view;

/// Somebody who waits for a process.
#[derive(Clone, Copy)]
pub(crate) struct Waiting<'a> {
    pub(crate) app: &'a App,
    pub(crate) caller: Caller,
    pub(crate) sandbox: SandboxId,
    pub(crate) process: ProcessId,
}

impl Waiting<'_> {
    /// The process when it is over, or as it is at the deadline.
    pub(crate) async fn end(
        &self,
        deadline: Instant,
        record: ProcessRecord,
    ) -> Result<ProcessRecord, Refused> {
        if record.end.is_some() {
            return Ok(record);
        }
        tokio::select! {
            over = self.over() => over,
            () = sleep_until(deadline) => self.now().await,
            () = self.server_stops() => Err(stopping()),
        }
    }

    /// The process when somebody listens on all ports, and whether that is so; else when it is over,
    /// or at the deadline.
    pub(crate) async fn ports(
        &self,
        deadline: Instant,
        record: ProcessRecord,
        used: &Use,
        ports: &[u16],
    ) -> Result<(ProcessRecord, bool), Refused> {
        if record.end.is_some() {
            return Ok((record, false));
        }
        tokio::select! {
            biased;
            open = until_open(used, ports) => {
                open?;
                Ok((self.now().await?, true))
            }
            over = self.over() => Ok((over?, false)),
            () = sleep_until(deadline) => Ok((self.now().await?, false)),
            () = self.server_stops() => Err(stopping()),
        }
    }

    async fn over(&self) -> Result<ProcessRecord, Refused> {
        let of = ProcessRef::Id(self.process);
        Ok(self.app.engine.wait_process(self.caller, self.sandbox, &of).await?)
    }

    async fn now(&self) -> Result<ProcessRecord, Refused> {
        let of = ProcessRef::Id(self.process);
        Ok(self.app.engine.process(self.caller, self.sandbox, &of).await?)
    }

    async fn server_stops(&self) {
        let mut stops = self.app.stopping.clone();
        // That nobody will say so any more is a stop too.
        let _ = stops.wait_for(|stops| *stops).await;
    }

    /// The end of both outputs, of each at most so much.
    pub(super) async fn output(&self, bytes_max: u64) -> Result<ProcessOutput, Refused> {
        let stdout = self.tail(LogWanted::Stdout, bytes_max).await?;
        let stderr = self.tail(LogWanted::Stderr, bytes_max).await?;
        Ok(ProcessOutput::new(stdout, stderr, view::log_extent(&self.now().await?)))
    }

    async fn tail(&self, wanted: LogWanted, bytes_max: u64) -> Result<Vec<u8>, Refused> {
        let max_bytes = bytes_max.min(ExecRequest::OUTPUT_BYTES_MAX);
        let query = LogQuery { wanted, offset: None, max_bytes };
        let of = ProcessRef::Id(self.process);
        let page = self.app.engine.process_log(self.caller, self.sandbox, &of, query).await?;
        Ok(page.pieces.iter().flat_map(|piece| piece.bytes.iter().copied()).collect())
    }
}

fn stopping() -> Refused {
    Refused::new(ErrorCode::ShuttingDown, "the server stops while the process is waited for")
}

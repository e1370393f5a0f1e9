//! Waiting for a process. The caller's use keeps the sandbox from being frozen during the wait; a
//! wait that ends or is cancelled changes nothing.

use engine::{Caller, ProcessRef, Use};
use model::{ErrorCode, ProcessId, ProcessRecord, SandboxId};
use tokio::time::{Instant, sleep_until};

use crate::app::App;
use crate::boxed;
use crate::proxy_exchange::until_open;
use crate::refused::Refused;

/// A wait for a process.
#[derive(Clone, Copy)]
pub struct Waiting<'a> {
    /// The shared state.
    pub app: &'a App,
    /// The caller that waits.
    pub caller: Caller,
    /// The sandbox of the process.
    pub sandbox: SandboxId,
    /// The process.
    pub process: ProcessId,
}

impl Waiting<'_> {
    /// The process when it has ended, or as it is at the deadline.
    #[boxed]
    pub async fn end(
        &self,
        deadline: Instant,
        record: ProcessRecord,
    ) -> Result<ProcessRecord, Refused> {
        if record.end.is_some() {
            return Ok(record);
        }
        tokio::select! {
            ended = self.ended() => ended,
            () = sleep_until(deadline) => self.now().await,
            () = self.server_stops() => Err(stopping()),
        }
    }

    /// The process when all ports are open, has ended, or at the deadline; and whether all ports
    /// are open.
    #[boxed]
    pub async fn ports(
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
            ended = self.ended() => Ok((ended?, false)),
            () = sleep_until(deadline) => Ok((self.now().await?, false)),
            () = self.server_stops() => Err(stopping()),
        }
    }

    async fn ended(&self) -> Result<ProcessRecord, Refused> {
        let of = ProcessRef::Id(self.process);
        Ok(self.app.engine.wait_process(self.caller, self.sandbox, &of).await?)
    }

    /// The process as it is.
    #[boxed]
    pub async fn now(&self) -> Result<ProcessRecord, Refused> {
        let of = ProcessRef::Id(self.process);
        Ok(self.app.engine.process(self.caller, self.sandbox, &of).await?)
    }

    async fn server_stops(&self) {
        let mut stops = self.app.stopping.clone();
        // A dropped sender means a stop, too.
        let _ = stops.wait_for(|stops| *stops).await;
    }
}

fn stopping() -> Refused {
    Refused::new(ErrorCode::ShuttingDown, "the server stopped during the wait for the process")
}

/// Refuses a port on which another program listens already: that one would answer.
#[boxed]
pub async fn refuse_taken(used: &Use, ports: &[u16]) -> Result<(), Refused> {
    let listening = used.ports().await?;
    match ports.iter().find(|wanted| listening.iter().any(|one| one.port == **wanted)) {
        None => Ok(()),
        Some(port) => {
            let cause = format!(
                "another program already listens on port {port}; the process was not started"
            );
            let mut refused = Refused::new(ErrorCode::PortTaken, cause);
            refused.field = Some("wait_for_ports".into());
            Err(refused)
        }
    }
}

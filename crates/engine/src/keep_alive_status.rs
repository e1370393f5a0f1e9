//! What keeps a sandbox awake, when it will be frozen or slept, and how processes are released.

use kernel::{Event, KeepAliveCounts, KeepAliveReport, Kernel, Reply};
use model::why::Why;
use model::{EndCause, ProcessId, ProcessRecord, Refusal, SandboxId, Wall};

use crate::Engine;
use crate::boxed;
use crate::keep_alive_observers::KeepAliveChange;
use crate::keys::Caller;
use crate::processes::ProcessRef;
use crate::sandboxes::unexpected;

/// What keeps a sandbox awake, and when it will be frozen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SandboxStatusReport {
    /// What keeps it awake, by process.
    pub wake: KeepAliveReport,
    /// The processes that do. A process that has just ended may be missing.
    pub keep_alive: Vec<ProcessRecord>,
    /// Whether it is frozen.
    pub frozen: bool,
    /// When it will be frozen if there is no activity.
    pub freezes_at: Option<Wall>,
    /// When it will become cold if there is no activity.
    pub sleeps_at: Option<Wall>,
}

impl Engine {
    /// How many sandboxes are frozen, and how many are kept awake by their own processes.
    pub fn keep_alive_counts(&self) -> KeepAliveCounts {
        self.core.read(Kernel::keep_alive_counts)
    }

    /// What keeps a sandbox awake, and when it will be frozen. It does not count as activity.
    #[boxed]
    pub async fn sandbox_status(
        &self,
        caller: Caller,
        sandbox: SandboxId,
    ) -> Result<SandboxStatusReport, Refusal> {
        if let Err(unknown) = self.check_sandbox(caller, sandbox) {
            return Err(self.ended_long_ago(caller, sandbox).await.unwrap_or(unknown));
        }
        let wake = self.core.read(|kernel| kernel.keep_alive_report(sandbox));
        match wake {
            Some(wake) => self.report(caller, sandbox, wake).await,
            // The sandbox is known but does not live: it has ended.
            None => match self.sandbox(caller, sandbox) {
                Err(refusal) => Err(refusal),
                // It is ending, or cold.
                Ok(view) => Err(Refusal::sandbox_gone(view.ending.unwrap_or(EndCause::Crash))),
            },
        }
    }

    /// Takes keepAlive from the processes that have it now: at once, or after `after_ms`. The
    /// latest call counts; no process is killed.
    #[boxed]
    pub async fn stop_keeping_awake(
        &self,
        caller: Caller,
        sandbox: SandboxId,
        after_ms: u64,
    ) -> Result<SandboxStatusReport, Refusal> {
        self.check_sandbox(caller, sandbox)?;
        let before = self.core.read(|kernel| kernel.keep_alive_report(sandbox));
        let of = before.map(|report| report.processes).unwrap_or_default();
        let request = self.core.request();
        let event = Event::StopRequested { sandbox, after_ms };
        let reply = self.core.ask(request, event).await?;
        let Reply::Wakefulness(wake) = reply else { return Err(unexpected(&reply)) };
        self.notify_observers(caller, sandbox, after_ms, of.iter().map(|kept| kept.process)).await;
        self.report(caller, sandbox, wake).await
    }

    async fn report(
        &self,
        caller: Caller,
        sandbox: SandboxId,
        wake: KeepAliveReport,
    ) -> Result<SandboxStatusReport, Refusal> {
        let now = self.now();
        let why = self.core.read(|kernel: &Kernel| kernel.why(now, sandbox));
        let (frozen, freezes_at, sleeps_at) = match why {
            Some(Why::Alive(alive)) => (alive.frozen, alive.freezes_at, alive.sleeps_at),
            Some(Why::Ended(_)) | None => (false, None, None),
        };
        let mut keep_alive = Vec::new();
        for kept in &wake.processes {
            let of = ProcessRef::Id(kept.process);
            if let Ok(record) = self.process(caller, sandbox, &of).await {
                keep_alive.push(record);
            }
        }
        keep_alive.sort_by_key(|record| record.number);
        Ok(SandboxStatusReport { wake, keep_alive, frozen, freezes_at, sleeps_at })
    }

    async fn notify_observers(
        &self,
        caller: Caller,
        sandbox: SandboxId,
        after_ms: u64,
        of: impl ExactSizeIterator<Item = ProcessId>,
    ) {
        let processes = of.len();
        self.core.observers.notify(KeepAliveChange::Released { sandbox, processes, after_ms });
        if after_ms > 0 {
            return;
        }
        for id in of {
            if let Ok(record) = self.process(caller, sandbox, &ProcessRef::Id(id)).await {
                self.core.observers.notify(KeepAliveChange::ReleasedOne(&record));
            }
        }
    }
}

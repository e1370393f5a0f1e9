//! Processes of sandboxes: programs that outlive the request that started them. They are started,
//! followed, fed, stopped and remembered here; when they are killed and what they keep awake is the
//! kernel's decision. That something is read of them counts as nothing and thaws nothing; whatever
//! needs the inside of a sandbox is a use of it.

mod asked;
mod follow;
mod live;
mod log;
mod names;
mod running;
mod starting;
mod stopping;
mod table;

pub use self::asked::{
    LogPage, LogPiece, LogQuery, LogWanted, ProcessInput, ProcessPage, ProcessQuery, ProcessRef,
    ProcessRequest,
};
pub use self::follow::LogFollow;
pub(crate) use self::stopping::kill_overdue;
pub(crate) use self::table::Processes;

use std::sync::Arc;

use bytes::Bytes;
use kernel::EndAsked;
use model::{ErrorCode, ProcessRecord, Refusal, SandboxId};
use runtime::TerminalSize;

use self::live::Live;
use self::table::Entry;
use crate::keys::Caller;
use crate::{Engine, Use, UseKind};

const SIGKILL: i32 = 9;

#[expect(clippy::unused_async, reason = "what is stored will be looked for here too")]
impl Engine {
    /// A process of a sandbox, also of one that is gone.
    pub async fn process(
        &self,
        caller: Caller,
        sandbox: SandboxId,
        of: &ProcessRef,
    ) -> Result<ProcessRecord, Refusal> {
        Ok(self.shown(&self.find_process(caller, sandbox, of)?))
    }

    /// Processes of a sandbox, also of one that is gone, the latest first.
    pub async fn processes(
        &self,
        caller: Caller,
        sandbox: SandboxId,
        query: &ProcessQuery,
    ) -> Result<ProcessPage, Refusal> {
        self.check_sandbox(caller, sandbox)?;
        let (entries, more) = self.core.processes.page(sandbox, query);
        let processes = entries.iter().map(|entry| self.shown(entry)).collect();
        Ok(ProcessPage { processes, more })
    }

    /// Waits until a process is over for good. It may be given up at any moment. Whoever waits holds
    /// a use of the sandbox meanwhile, or it may be frozen.
    pub async fn wait_process(
        &self,
        caller: Caller,
        sandbox: SandboxId,
        of: &ProcessRef,
    ) -> Result<ProcessRecord, Refusal> {
        match self.find_process(caller, sandbox, of)? {
            Entry::Live(live) => {
                live.over().await;
                Ok(live.record())
            }
            Entry::Over(record) => Ok(ProcessRecord::clone(&record)),
        }
    }

    /// Asks a process and everything that descends from it to end, and kills it if it has not after
    /// `grace_ms`. Done when it is over; whoever goes away meanwhile does not call it off.
    pub async fn stop_process(
        &self,
        caller: Caller,
        sandbox: SandboxId,
        of: &ProcessRef,
        grace_ms: u64,
    ) -> Result<ProcessRecord, Refusal> {
        let (used, live) = self.use_process(caller, sandbox, of).await?;
        stopping::stop(used, live, grace_ms).await
    }

    /// Kills a process and everything that descends from it. Done when it is over.
    pub async fn kill_process(
        &self,
        caller: Caller,
        sandbox: SandboxId,
        of: &ProcessRef,
    ) -> Result<ProcessRecord, Refusal> {
        let (used, live) = self.use_process(caller, sandbox, of).await?;
        stopping::kill(used, live).await
    }

    /// Sends a signal to a process, or to everything that descends from it too.
    pub async fn signal_process(
        &self,
        caller: Caller,
        sandbox: SandboxId,
        of: &ProcessRef,
        signal: i32,
        tree: bool,
    ) -> Result<ProcessRecord, Refusal> {
        let (_used, live) = self.use_process(caller, sandbox, of).await?;
        let asked = if signal == SIGKILL { EndAsked::Kill } else { EndAsked::Signal(signal) };
        if let Some(handle) = live.ask(asked)? {
            if tree {
                handle.signal_tree(signal).await?;
            } else {
                handle.signal(signal).await?;
            }
        }
        Ok(self.shown(&Entry::Live(live)))
    }

    /// Writes to the input of a process: all of it, in one piece, before what others write later.
    pub async fn write_stdin(
        &self,
        caller: Caller,
        sandbox: SandboxId,
        of: &ProcessRef,
        bytes: Bytes,
    ) -> Result<(), Refusal> {
        let (_used, live) = self.use_process(caller, sandbox, of).await?;
        live.write(bytes).await
    }

    /// Ends the input of a process. That it is ended is done too.
    pub async fn close_stdin(
        &self,
        caller: Caller,
        sandbox: SandboxId,
        of: &ProcessRef,
    ) -> Result<(), Refusal> {
        let (_used, live) = self.use_process(caller, sandbox, of).await?;
        live.close_input().await
    }

    /// Changes the size of a process's terminal.
    pub async fn resize_process(
        &self,
        caller: Caller,
        sandbox: SandboxId,
        of: &ProcessRef,
        size: TerminalSize,
    ) -> Result<(), Refusal> {
        let (_used, live) = self.use_process(caller, sandbox, of).await?;
        match live.handle()? {
            Some(handle) => Ok(handle.resize(size).await?),
            None => Ok(()),
        }
    }

    /// Part of what a process wrote.
    pub async fn process_log(
        &self,
        caller: Caller,
        sandbox: SandboxId,
        of: &ProcessRef,
        query: LogQuery,
    ) -> Result<LogPage, Refusal> {
        match self.find_process(caller, sandbox, of)? {
            Entry::Live(live) => Ok(follow::page(&live, query)),
            Entry::Over(_) => Ok(LogPage { over: true, ..LogPage::default() }),
        }
    }

    /// What a process wrote from `offset` on, and what it writes until it is over.
    pub async fn follow_log(
        &self,
        caller: Caller,
        sandbox: SandboxId,
        of: &ProcessRef,
        wanted: LogWanted,
        offset: u64,
    ) -> Result<LogFollow, Refusal> {
        match self.find_process(caller, sandbox, of)? {
            Entry::Live(live) => Ok(LogFollow::new(live, wanted, offset)),
            Entry::Over(record) => Err(forgotten(&record)),
        }
    }

    fn find_process(
        &self,
        caller: Caller,
        sandbox: SandboxId,
        of: &ProcessRef,
    ) -> Result<Entry, Refusal> {
        self.check_sandbox(caller, sandbox)?;
        self.core.processes.find(sandbox, of).ok_or_else(|| unknown(of))
    }

    /// A process that runs, and a use of its sandbox, which is thawed.
    async fn use_process(
        &self,
        caller: Caller,
        sandbox: SandboxId,
        of: &ProcessRef,
    ) -> Result<(Use, Arc<Live>), Refusal> {
        let live = self.find_running(caller, sandbox, of)?;
        let used = self.use_sandbox(caller, sandbox, UseKind::Exec).await?;
        Ok((used, live))
    }

    fn find_running(
        &self,
        caller: Caller,
        sandbox: SandboxId,
        of: &ProcessRef,
    ) -> Result<Arc<Live>, Refusal> {
        match self.find_process(caller, sandbox, of)? {
            Entry::Live(live) => {
                live.handle()?;
                Ok(live)
            }
            Entry::Over(_) => Err(live::over()),
        }
    }

    /// As it is shown: whether it still keeps its sandbox awake is known to the kernel alone.
    fn shown(&self, entry: &Entry) -> ProcessRecord {
        let mut record = entry.record();
        if let Entry::Live(live) = entry
            && record.keep_alive
            && record.end.is_none()
        {
            record.keep_alive = live.holds(&self.core);
        }
        record
    }
}

fn unknown(of: &ProcessRef) -> Refusal {
    let which = match of {
        ProcessRef::Id(id) => id.to_string(),
        ProcessRef::Pid(pid) => pid.to_string(),
        ProcessRef::Name(name) => format!("{name:?}"),
    };
    Refusal::new(ErrorCode::ProcessUnknown, format!("no process {which} is known"))
}

fn forgotten(record: &ProcessRecord) -> Refusal {
    let cause = format!("the output of process {} is kept no more", record.id);
    Refusal::new(ErrorCode::ProcessOver, cause)
}

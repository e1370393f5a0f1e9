//! Processes of sandboxes: programs that outlive the request that started them. This module starts,
//! follows, feeds and stops them, and stores their records. The kernel decides when they end, are
//! restarted or killed, and whether they keep their sandbox awake. Reading about a process is no
//! activity and thaws nothing; whatever needs the inside of a sandbox is a use of it.

mod live;
mod log;
mod log_reader;
mod log_writer;
mod names;
mod record_writer;
mod recovery;
mod requests;
mod restarts;
mod runner;
mod start;
mod stop;
mod table;

pub(crate) use self::log::files::LogDirectory;
pub use self::log::files::ProcessLogs;
pub use self::log_reader::LogFollow;
pub(crate) use self::log_writer::run as save;
pub(crate) use self::record_writer::run as store;
pub(crate) use self::recovery::{end_left_over, store_left_over, sweep};
pub use self::requests::{
    LogPage, LogPiece, LogQuery, OutputSelection, ProcessInput, ProcessPage, ProcessQuery,
    ProcessRef, ProcessRequest,
};
pub(crate) use self::restarts::{end_process, pauses, restart};
pub(crate) use self::stop::kill_program;
pub(crate) use self::table::Processes;

use std::collections::BTreeSet;
use std::sync::Arc;

use bytes::Bytes;
use kernel::Event;
use model::{ErrorCode, ProcessRecord, Refusal, SandboxId};
use runtime::TerminalSize;
use store::{ProcessBy, ProcessKey, ProcessesQuery};

use self::live::Live;
use self::table::Entry;
use crate::boxed;
use crate::core::unavailable;
use crate::keys::Caller;
use crate::{Engine, Use, UseKind};

/// The most bytes of records in one page.
const PAGE_BYTES_MAX: usize = 4 * 1024 * 1024;

impl Engine {
    /// A process of a sandbox, also of an ended one.
    #[boxed]
    pub async fn process(
        &self,
        caller: Caller,
        sandbox: SandboxId,
        of: &ProcessRef,
    ) -> Result<ProcessRecord, Refusal> {
        Ok(self.shown(&self.find_process(caller, sandbox, of).await?))
    }

    /// Processes of a sandbox, also of an ended one, latest first.
    #[boxed]
    pub async fn processes(
        &self,
        caller: Caller,
        sandbox: SandboxId,
        query: &ProcessQuery,
    ) -> Result<ProcessPage, Refusal> {
        let known = self.tenant_seen(caller, sandbox)?;
        let wanted = query.limit as usize;
        let page = self.core.processes.page(sandbox, query, wanted.saturating_add(1));
        let seen = page.entries.iter().filter(|entry| caller.sees(entry.tenant()));
        let mut processes: Vec<_> = seen.map(|entry| self.shown(entry)).collect();
        if !known && processes.len() < page.entries.len() {
            return Err(unknown_sandbox(sandbox));
        }
        if page.older {
            self.add_stored(caller, sandbox, query, &mut processes).await?;
            if processes.is_empty() && !known {
                self.check_ended(caller, sandbox).await?;
            }
        }
        let mut bytes = 0;
        let fits = processes.iter().take(wanted).take_while(|record| {
            let room = bytes < PAGE_BYTES_MAX;
            bytes += table::weight(record);
            room
        });
        let fits = fits.count();
        let more = processes.len() > fits;
        processes.truncate(fits);
        Ok(ProcessPage { processes, more })
    }

    /// A caller read about processes of a sandbox because it waits for them: as long as one runs,
    /// the kernel counts that as a use. A read that only observes is not reported here.
    pub fn note_process_read(&self, caller: Caller, sandbox: SandboxId) {
        if self.check_sandbox(caller, sandbox).is_ok() {
            self.core.notify(Event::ProcessesRead { sandbox });
        }
    }

    /// Waits until a process has ended for good; the future may be dropped at any moment. The
    /// caller should hold a use of the sandbox meanwhile, or the sandbox may be frozen.
    #[boxed]
    pub async fn wait_process(
        &self,
        caller: Caller,
        sandbox: SandboxId,
        of: &ProcessRef,
    ) -> Result<ProcessRecord, Refusal> {
        match self.find_process(caller, sandbox, of).await? {
            Entry::Live(live) => {
                live.ended().await;
                Ok(live.record())
            }
            Entry::Ended(record) => Ok(ProcessRecord::clone(&record)),
        }
    }

    /// Asks a process and all its descendants to end, and kills it if it has not after `grace_ms`.
    /// Done when the process has ended; a client that goes away does not call it off.
    #[boxed]
    pub async fn stop_process(
        &self,
        caller: Caller,
        sandbox: SandboxId,
        of: &ProcessRef,
        grace_ms: u64,
    ) -> Result<ProcessRecord, Refusal> {
        let (used, live) = self.use_process(caller, sandbox, of).await?;
        stop::stop(used, live, grace_ms).await
    }

    /// Kills a process and all its descendants; done when it has ended.
    #[boxed]
    pub async fn kill_process(
        &self,
        caller: Caller,
        sandbox: SandboxId,
        of: &ProcessRef,
    ) -> Result<ProcessRecord, Refusal> {
        let (used, live) = self.use_process(caller, sandbox, of).await?;
        stop::kill(used, live).await
    }

    /// Sends a signal to a process, or also to all its descendants.
    #[boxed]
    pub async fn signal_process(
        &self,
        caller: Caller,
        sandbox: SandboxId,
        of: &ProcessRef,
        signal: i32,
        tree: bool,
    ) -> Result<ProcessRecord, Refusal> {
        let (used, live) = self.use_process(caller, sandbox, of).await?;
        stop::signal(used, Arc::clone(&live), signal, tree).await?;
        Ok(self.shown(&Entry::Live(live)))
    }

    /// Writes to the input of a process: all of it, in one piece, before later writes of others.
    #[boxed]
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

    /// Ends the input of a process. It is no error if it has ended already.
    #[boxed]
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
    #[boxed]
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

    /// Part of the output of a process.
    #[boxed]
    pub async fn process_log(
        &self,
        caller: Caller,
        sandbox: SandboxId,
        of: &ProcessRef,
        query: LogQuery,
    ) -> Result<LogPage, Refusal> {
        let entry = self.find_process(caller, sandbox, of).await?;
        log_reader::page(&self.core, entry, query).await
    }

    /// The output of a process from `offset` on, until the process has ended.
    #[boxed]
    pub async fn follow_log(
        &self,
        caller: Caller,
        sandbox: SandboxId,
        of: &ProcessRef,
        wanted: OutputSelection,
        offset: u64,
    ) -> Result<LogFollow, Refusal> {
        let entry = self.find_process(caller, sandbox, of).await?;
        LogFollow::new(&self.core, entry, wanted, offset).await
    }

    async fn find_process(
        &self,
        caller: Caller,
        sandbox: SandboxId,
        of: &ProcessRef,
    ) -> Result<Entry, Refusal> {
        let known = self.tenant_seen(caller, sandbox)?;
        let stored = match self.core.processes.find(sandbox, of) {
            Ok(entry) if caller.sees(entry.tenant()) => return Ok(entry),
            Ok(_) => return Err(unknown_sandbox(sandbox)),
            Err(false) => None,
            Err(true) => {
                let key = ProcessKey { sandbox, by: of.into() };
                let stored = self.core.store.process(&key).await;
                stored.map_err(|error| unavailable(&error.to_string()))?
            }
        };
        match stored {
            Some(record) if caller.sees(record.tenant) => Ok(Entry::Ended(Arc::new(record))),
            Some(_) | None => {
                if !known {
                    self.check_ended(caller, sandbox).await?;
                }
                Err(unknown(of))
            }
        }
    }

    /// Refuses a sandbox of another key. Returns whether the kernel knows the sandbox.
    fn tenant_seen(&self, caller: Caller, sandbox: SandboxId) -> Result<bool, Refusal> {
        match self.core.read(|kernel| kernel.tenant_of_sandbox(sandbox)) {
            Some(_) => self.check_sandbox(caller, sandbox).map(|()| true),
            None => Ok(false),
        }
    }

    /// Refuses an ended sandbox unless the store knows that it was the caller's.
    async fn check_ended(&self, caller: Caller, sandbox: SandboxId) -> Result<(), Refusal> {
        match self.ended_long_ago(caller, sandbox).await {
            Some(_) => Ok(()),
            None => self.check_sandbox(caller, sandbox),
        }
    }

    /// Adds processes that only the store has to those in memory, latest first, up to one more than
    /// the limit.
    async fn add_stored(
        &self,
        caller: Caller,
        sandbox: SandboxId,
        query: &ProcessQuery,
        processes: &mut Vec<ProcessRecord>,
    ) -> Result<(), Refusal> {
        let wanted = (query.limit as usize).saturating_add(1);
        let in_memory: BTreeSet<u64> = processes.iter().map(|record| record.number).collect();
        let mut before = query.before;
        let mut added = 0;
        while added < wanted {
            let page = ProcessesQuery { sandbox, before, limit: query.limit.saturating_add(1) };
            let stored = self.core.store.processes(&page).await;
            let stored = stored.map_err(|error| unavailable(&error.to_string()))?;
            let Some(last) = stored.last() else { break };
            before = Some(last.number);
            let new = stored
                .into_iter()
                .filter(|record| caller.sees(record.tenant) && !in_memory.contains(&record.number));
            let had = processes.len();
            processes.extend(new);
            added += processes.len() - had;
        }
        processes.sort_by_key(|record| std::cmp::Reverse(record.number));
        processes.truncate(wanted);
        Ok(())
    }

    /// A running process, and a use of its sandbox, which is thawed.
    async fn use_process(
        &self,
        caller: Caller,
        sandbox: SandboxId,
        of: &ProcessRef,
    ) -> Result<(Use, Arc<Live>), Refusal> {
        let live = self.find_running(caller, sandbox, of).await?;
        let used = self.use_sandbox(caller, sandbox, UseKind::Exec).await?;
        Ok((used, live))
    }

    async fn find_running(
        &self,
        caller: Caller,
        sandbox: SandboxId,
        of: &ProcessRef,
    ) -> Result<Arc<Live>, Refusal> {
        match self.find_process(caller, sandbox, of).await? {
            Entry::Live(live) => {
                live.handle()?;
                Ok(live)
            }
            Entry::Ended(_) => Err(live::ended_refusal()),
        }
    }

    /// The record as callers see it: only the kernel knows whether it still keeps its sandbox
    /// awake.
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

fn unknown_sandbox(sandbox: SandboxId) -> Refusal {
    Refusal::new(ErrorCode::SandboxUnknown, format!("no sandbox {sandbox} is known"))
}

fn unknown(of: &ProcessRef) -> Refusal {
    let which = match of {
        ProcessRef::Id(id) => id.to_string(),
        ProcessRef::Pid(pid) => pid.to_string(),
        ProcessRef::Name(name) => format!("{name:?}"),
    };
    Refusal::new(ErrorCode::ProcessUnknown, format!("no process {which} is known"))
}

impl From<&ProcessRef> for ProcessBy {
    fn from(of: &ProcessRef) -> Self {
        match of {
            ProcessRef::Id(id) => Self::Id(*id),
            ProcessRef::Pid(pid) => Self::Pid(*pid),
            ProcessRef::Name(name) => Self::Name(name.clone()),
        }
    }
}

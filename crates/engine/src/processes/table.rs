//! Which processes there are, by sandbox: those that run, and those that ran. Names are unique among
//! those that run; how many run and how many are remembered is bounded, and the oldest go first.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use model::{ErrorCode, ProcessId, ProcessRecord, Refusal, SandboxId};

use super::asked::{ProcessQuery, ProcessRef};
use super::live::Live;
use super::names;

/// How many that are over are remembered of one sandbox.
const FINISHED_MAX: usize = 2_000;
/// Of how many of them the output is in memory.
const LOGS_MAX: usize = 64;

/// The processes of all sandboxes.
#[derive(Default)]
pub(crate) struct Processes {
    tables: Mutex<BTreeMap<SandboxId, Table>>,
}

/// The processes of one sandbox.
#[derive(Default)]
struct Table {
    last_number: u64,
    by_number: BTreeMap<u64, Entry>,
    ids: BTreeMap<ProcessId, u64>,
    /// The latest of each name and process id.
    names: BTreeMap<Arc<str>, u64>,
    pids: BTreeMap<u32, u64>,
    running: BTreeSet<u64>,
    finished: BTreeSet<u64>,
    /// Names of those that are just being started.
    starting: BTreeSet<Arc<str>>,
}

/// A process.
#[derive(Clone)]
pub(super) enum Entry {
    /// It is not over, or was not a moment ago.
    Live(Arc<Live>),
    /// It is over.
    Over(Arc<ProcessRecord>),
}

impl Entry {
    pub(super) fn record(&self) -> ProcessRecord {
        match self {
            Self::Live(live) => live.record(),
            Self::Over(record) => ProcessRecord::clone(record),
        }
    }
}

/// A name and a place that nobody else gets meanwhile. Dropped, they are free again.
pub(super) struct Reserved<'p> {
    processes: &'p Processes,
    sandbox: SandboxId,
    pub(super) name: Arc<str>,
}

impl Processes {
    fn tables(&self) -> MutexGuard<'_, BTreeMap<SandboxId, Table>> {
        self.tables.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a name and a place.
    pub(super) fn reserve(
        &self,
        sandbox: SandboxId,
        name: Option<&str>,
        max_running: usize,
    ) -> Result<Reserved<'_>, Refusal> {
        let wanted = name.map(|name| names::check(name).map(|()| name)).transpose()?;
        let mut tables = self.tables();
        let table = tables.entry(sandbox).or_default();
        if table.running.len() + table.starting.len() >= max_running {
            let cause = format!("a sandbox may have {max_running} processes that run");
            return Err(Refusal::new(ErrorCode::LimitReached, cause));
        }
        let name: Arc<str> = match wanted {
            Some(name) if table.has_name(name) => {
                let cause = format!("a process called {name:?} runs already");
                return Err(Refusal::new(ErrorCode::ProcessNameTaken, cause));
            }
            Some(name) => name.into(),
            None => loop {
                let name = names::made_up()?;
                if !table.has_name(&name) {
                    break name.into();
                }
            },
        };
        table.starting.insert(Arc::clone(&name));
        Ok(Reserved { processes: self, sandbox, name })
    }

    /// A process is over: it is remembered, and no longer held.
    pub(super) fn ended(&self, record: &ProcessRecord) {
        let mut tables = self.tables();
        let Some(table) = tables.get_mut(&record.sandbox) else { return };
        let number = record.number;
        if table.running.remove(&number) {
            table.finished.insert(number);
        }
        if let Some(number) = table.finished.iter().rev().nth(LOGS_MAX)
            && let Some(entry) = table.by_number.get_mut(number)
        {
            *entry = Entry::Over(Arc::new(entry.record()));
        }
        while table.finished.len() > FINISHED_MAX
            && let Some(oldest) = table.finished.pop_first()
        {
            table.forget(oldest);
        }
    }

    /// The process that is meant.
    pub(super) fn find(&self, sandbox: SandboxId, of: &ProcessRef) -> Option<Entry> {
        let tables = self.tables();
        let table = tables.get(&sandbox)?;
        let number = match of {
            ProcessRef::Id(id) => table.ids.get(id).copied(),
            ProcessRef::Name(name) => table.names.get(name.as_str()).copied(),
            ProcessRef::Pid(pid) => table.pids.get(pid).copied(),
        }?;
        table.by_number.get(&number).cloned()
    }

    /// A process by its id.
    pub(super) fn live(&self, sandbox: SandboxId, id: ProcessId) -> Option<Arc<Live>> {
        match self.find(sandbox, &ProcessRef::Id(id))? {
            Entry::Live(live) => Some(live),
            Entry::Over(_) => None,
        }
    }

    /// Some of a sandbox's processes, the latest first, and whether there are more.
    pub(super) fn page(&self, sandbox: SandboxId, query: &ProcessQuery) -> (Vec<Entry>, bool) {
        let before = query.before.unwrap_or(u64::MAX);
        let wanted = query.limit as usize;
        let mut entries = {
            let tables = self.tables();
            let Some(table) = tables.get(&sandbox) else { return (Vec::new(), false) };
            let one_more = wanted.saturating_add(1);
            let entry = |number: &u64| table.by_number.get(number).cloned();
            if query.running {
                let numbers = table.running.range(..before).rev();
                numbers.take(one_more).filter_map(entry).collect::<Vec<_>>()
            } else {
                let numbers = table.by_number.range(..before).rev();
                numbers.take(one_more).map(|(_, entry)| entry.clone()).collect()
            }
        };
        let more = entries.len() > wanted;
        entries.truncate(wanted);
        (entries, more)
    }
}

impl Table {
    /// Whether one that runs, or is about to, has this name.
    fn has_name(&self, name: &str) -> bool {
        let of_latest = self.names.get(name);
        self.starting.contains(name)
            || of_latest.is_some_and(|number| self.running.contains(number))
    }

    fn forget(&mut self, number: u64) {
        let Some(entry) = self.by_number.remove(&number) else { return };
        let record = entry.record();
        self.ids.remove(&record.id);
        if self.names.get(&record.name) == Some(&number) {
            self.names.remove(&record.name);
        }
        if self.pids.get(&record.pid) == Some(&number) {
            self.pids.remove(&record.pid);
        }
    }
}

impl Reserved<'_> {
    /// The process was started: it has its place. `make` is given its number.
    pub(super) fn fill(self, make: impl FnOnce(u64) -> Arc<Live>) -> Arc<Live> {
        let mut tables = self.processes.tables();
        let table = tables.entry(self.sandbox).or_default();
        table.last_number += 1;
        let number = table.last_number;
        let live = make(number);
        let record = live.record();
        table.by_number.insert(number, Entry::Live(Arc::clone(&live)));
        table.ids.insert(record.id, number);
        table.names.insert(Arc::clone(&record.name), number);
        table.pids.insert(record.pid, number);
        table.running.insert(number);
        live
    }
}

impl Drop for Reserved<'_> {
    fn drop(&mut self) {
        if let Some(table) = self.processes.tables().get_mut(&self.sandbox) {
            table.starting.remove(&self.name);
        }
    }
}

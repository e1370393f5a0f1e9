//! The processes of each sandbox that are in memory: running ones, and ended ones. Names are unique
//! among running processes; how many run and how many ended ones stay is bounded, and the oldest go
//! first. A process that is not here may be in the store.

use std::collections::btree_map::Entry as Place;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use kernel::Grant;
use model::{
    ErrorCode, Generation, InstanceId, KeyId, ProcessId, ProcessRecord, Refusal, SandboxId,
};
use store::{ProcessesQuery, Store};
use tokio::sync::Semaphore;

use super::live::Live;
use super::log::files::LogDirectory;
use super::names;
use super::record_writer::UnstoredChanges;
use super::requests::{ProcessQuery, ProcessRef};
use crate::core::unavailable;

/// How many ended processes of one sandbox are kept.
const FINISHED_MAX: usize = 2_000;
/// The memory for records of ended processes of all sandboxes; the store has the others.
const IN_MEMORY_BYTES_MAX: usize = 64 * 1024 * 1024;
/// The memory of a record besides its texts.
const RECORD_BYTES: usize = 512;
/// Input of all processes that may wait for programs to read it.
const INPUT_BYTES_MAX: usize = 128 * 1024 * 1024;

/// The processes of all sandboxes.
pub(crate) struct Processes {
    tables: Mutex<Tables>,
    /// Changes that wait for the store.
    pub(super) unstored: UnstoredChanges,
    log_directory: Option<Arc<LogDirectory>>,
    /// The room for input of programs.
    input: Arc<Semaphore>,
    /// Bytes of all logs that wait for the disk.
    unsaved_bytes: Arc<AtomicUsize>,
}

#[derive(Default)]
struct Tables {
    of: BTreeMap<SandboxId, Table>,
    /// The memory of the records of ended processes, of all tables.
    finished_bytes: usize,
}

/// The processes of one sandbox.
#[derive(Default)]
struct Table {
    instance: Option<InstanceId>,
    last_number: u64,
    by_number: BTreeMap<u64, Entry>,
    ids: BTreeMap<ProcessId, u64>,
    /// The latest of each name and process id.
    names: BTreeMap<Arc<str>, u64>,
    pids: BTreeMap<u32, u64>,
    running: BTreeSet<u64>,
    /// Ended processes, and the memory of their records.
    finished: BTreeMap<u64, usize>,
    /// Names of processes that are just being started.
    starting: BTreeSet<Arc<str>>,
    /// The store has some that are not here.
    older: bool,
}

/// A process.
#[derive(Clone)]
pub(super) enum Entry {
    /// It has not ended, or its end is not stored yet.
    Live(Arc<Live>),
    /// It has ended.
    Ended(Arc<ProcessRecord>),
}

/// The memory of a record.
pub(super) fn weight(record: &ProcessRecord) -> usize {
    let cwd = record.cwd.as_ref().map_or(0, |cwd| cwd.len());
    RECORD_BYTES + record.command.len() + record.name.len() + cwd
}

impl Entry {
    /// The key that it belongs to.
    pub(super) fn tenant(&self) -> KeyId {
        match self {
            Self::Live(live) => live.tenant,
            Self::Ended(record) => record.tenant,
        }
    }

    pub(super) fn record(&self) -> ProcessRecord {
        match self {
            Self::Live(live) => live.record(),
            Self::Ended(record) => ProcessRecord::clone(record),
        }
    }
}

/// The part of a query that is in memory.
pub(super) struct Page {
    /// Latest first.
    pub(super) entries: Vec<Entry>,
    /// There may be others in the store, between and after them.
    pub(super) older: bool,
}

/// A reserved name and number. They are free again when this is dropped.
pub(super) struct Reserved<'p> {
    processes: &'p Processes,
    sandbox: SandboxId,
    pub(super) name: Arc<str>,
}

impl Processes {
    pub(crate) fn new(log_directory: Option<Arc<LogDirectory>>) -> Self {
        Self {
            tables: Mutex::default(),
            unstored: UnstoredChanges::default(),
            log_directory,
            input: Arc::new(Semaphore::new(INPUT_BYTES_MAX)),
            unsaved_bytes: Arc::default(),
        }
    }

    fn tables(&self) -> MutexGuard<'_, Tables> {
        self.tables.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The logs on the disk.
    pub(super) fn log_directory(&self) -> Option<&LogDirectory> {
        self.log_directory.as_deref()
    }

    pub(super) fn shared_log_directory(&self) -> Option<Arc<LogDirectory>> {
        self.log_directory.clone()
    }

    /// The room for input of programs.
    pub(super) fn input(&self) -> Arc<Semaphore> {
        Arc::clone(&self.input)
    }

    /// Bytes of all logs that wait for the disk.
    pub(super) fn unsaved_bytes(&self) -> Arc<AtomicUsize> {
        Arc::clone(&self.unsaved_bytes)
    }

    /// The number of the last process of a sandbox that had an earlier instance; none if memory has
    /// it.
    pub(super) async fn last_of_earlier(
        &self,
        store: &dyn Store,
        grant: &Grant,
    ) -> Result<Option<u64>, Refusal> {
        let sandbox = grant.sandbox;
        if grant.generation == Generation::FIRST {
            return Ok(Some(0));
        }
        if self.tables().of.contains_key(&sandbox) {
            return Ok(None);
        }
        let query = ProcessesQuery { sandbox, before: None, limit: 1 };
        let latest = store.processes(&query).await;
        let latest = latest.map_err(|error| unavailable(&error.to_string()))?;
        Ok(Some(latest.first().map_or(0, |record| record.number)))
    }

    /// Reserves a name and a number. A sandbox that is new here continues its numbers; none if they
    /// are not known.
    pub(super) fn reserve(
        &self,
        grant: &Grant,
        name: Option<&str>,
        max_running: usize,
        last_of_earlier: Option<u64>,
    ) -> Result<Option<Reserved<'_>>, Refusal> {
        let sandbox = grant.sandbox;
        let wanted = name.map(|name| names::check(name).map(|()| name)).transpose()?;
        let mut tables = self.tables();
        let table = match (tables.of.entry(sandbox), last_of_earlier) {
            (Place::Occupied(known), _) => known.into_mut(),
            (Place::Vacant(place), Some(last_number)) => {
                let older = last_number > 0;
                place.insert(Table { last_number, older, ..Table::default() })
            }
            (Place::Vacant(_), None) => return Ok(None),
        };
        if table.running.len() + table.starting.len() >= max_running {
            let cause = format!("a sandbox may have {max_running} running processes");
            return Err(Refusal::new(ErrorCode::LimitReached, cause));
        }
        let name: Arc<str> = match wanted {
            Some(name) if table.has_name(name) => {
                let cause = format!("a process named {name:?} is already running");
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
        Ok(Some(Reserved { processes: self, sandbox, name }))
    }

    /// A change of a process is to be stored.
    pub(super) fn changed(&self, record: &ProcessRecord, live: &Arc<Live>) {
        self.unstored.changed(record.sandbox, record.number, live);
    }

    /// A process has ended: its record stays here.
    pub(super) fn ended(&self, record: &ProcessRecord, live: &Arc<Live>) {
        self.unstored.changed(record.sandbox, record.number, live);
        let mut tables = self.tables();
        let Tables { of, finished_bytes } = &mut *tables;
        let Some(table) = of.get_mut(&record.sandbox) else { return };
        if table.running.remove(&record.number) {
            table.finished.insert(record.number, weight(record));
            *finished_bytes += weight(record);
        }
        while table.finished.len() > FINISHED_MAX
            && let Some((oldest, bytes)) = table.finished.pop_first()
        {
            *finished_bytes -= bytes;
            table.forget(oldest);
            self.unstored.removed(record.sandbox, oldest);
        }
    }

    /// The end of a process is stored: its output need not be in memory any more.
    pub(super) fn stored(&self, record: Arc<ProcessRecord>) {
        let mut tables = self.tables();
        let Tables { of, finished_bytes } = &mut *tables;
        let Some(table) = of.get_mut(&record.sandbox) else { return };
        if let Some(entry) = table.by_number.get_mut(&record.number) {
            *entry = Entry::Ended(record);
        }
        while *finished_bytes > IN_MEMORY_BYTES_MAX
            && let Some((&oldest, &bytes)) = table.finished.first_key_value()
            && matches!(table.by_number.get(&oldest), Some(Entry::Ended(_)))
        {
            table.finished.remove(&oldest);
            table.forget(oldest);
            table.older = true;
            *finished_bytes -= bytes;
        }
    }

    /// Removes the tables of sandboxes that ended or have another instance: the store has them.
    pub(super) fn forget_gone(&self, instance_of: impl Fn(SandboxId) -> Option<InstanceId>) {
        let idle: Vec<_> = {
            let tables = self.tables();
            let idle = tables.of.iter().filter(|(_, table)| table.is_idle());
            idle.map(|(sandbox, table)| (*sandbox, table.instance)).collect()
        };
        for (sandbox, instance) in idle {
            if instance.is_some() && instance_of(sandbox) == instance {
                continue;
            }
            let mut tables = self.tables();
            if let Some(table) = tables.of.get(&sandbox)
                && table.is_idle()
                && table.instance == instance
                && let Some(gone) = tables.of.remove(&sandbox)
            {
                tables.finished_bytes -= gone.finished.values().sum::<usize>();
            }
        }
    }

    /// Whether no process runs, and everything is stored.
    pub(crate) fn are_idle(&self) -> bool {
        let tables = self.tables();
        self.unstored.is_empty() && tables.of.values().all(Table::is_idle)
    }

    /// All running processes.
    pub(super) fn running(&self) -> Vec<Arc<Live>> {
        let tables = self.tables();
        let running = tables.of.values().flat_map(|table| {
            table.running.iter().filter_map(|number| match table.by_number.get(number)? {
                Entry::Live(live) => Some(Arc::clone(live)),
                Entry::Ended(_) => None,
            })
        });
        running.collect()
    }

    /// Whether a process is in memory.
    pub(super) fn knows(&self, sandbox: SandboxId, number: u64) -> bool {
        self.tables().of.get(&sandbox).is_some_and(|table| table.by_number.contains_key(&number))
    }

    /// A process, if it is in memory; else whether it may be in the store.
    pub(super) fn find(&self, sandbox: SandboxId, of: &ProcessRef) -> Result<Entry, bool> {
        let tables = self.tables();
        let Some(table) = tables.of.get(&sandbox) else { return Err(true) };
        let number = match of {
            ProcessRef::Id(id) => table.ids.get(id).copied(),
            ProcessRef::Name(name) => table.names.get(name.as_str()).copied(),
            ProcessRef::Pid(pid) => table.pids.get(pid).copied(),
        };
        let entry = number.and_then(|number| table.by_number.get(&number).cloned());
        entry.ok_or(table.older)
    }

    /// A process in memory, by its id.
    pub(super) fn live(&self, sandbox: SandboxId, id: ProcessId) -> Option<Arc<Live>> {
        match self.find(sandbox, &ProcessRef::Id(id)).ok()? {
            Entry::Live(live) => Some(live),
            Entry::Ended(_) => None,
        }
    }

    /// Some processes of a sandbox.
    pub(super) fn page(&self, sandbox: SandboxId, query: &ProcessQuery, at_most: usize) -> Page {
        let before = query.before.unwrap_or(u64::MAX);
        let tables = self.tables();
        let Some(table) = tables.of.get(&sandbox) else {
            return Page { entries: Vec::new(), older: !query.running };
        };
        let entry = |number: &u64| table.by_number.get(number).cloned();
        let entries = if query.running {
            table.running.range(..before).rev().take(at_most).filter_map(entry).collect()
        } else {
            let latest = table.by_number.range(..before).rev().take(at_most);
            latest.map(|(_, entry)| entry.clone()).collect()
        };
        Page { entries, older: table.older && !query.running }
    }
}

impl Table {
    /// Whether a running or starting process has this name.
    fn has_name(&self, name: &str) -> bool {
        let of_latest = self.names.get(name);
        self.starting.contains(name)
            || of_latest.is_some_and(|number| self.running.contains(number))
    }

    fn is_idle(&self) -> bool {
        let stored = |number| matches!(self.by_number.get(number), Some(Entry::Ended(_)));
        self.running.is_empty() && self.starting.is_empty() && self.finished.keys().all(stored)
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
    /// The process was started: it gets its number, which `make` is given.
    pub(super) fn fill(
        self,
        instance: InstanceId,
        make: impl FnOnce(u64) -> Arc<Live>,
    ) -> Arc<Live> {
        let mut tables = self.processes.tables();
        let table = tables.of.entry(self.sandbox).or_default();
        table.instance = Some(instance);
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
        if let Some(table) = self.processes.tables().of.get_mut(&self.sandbox) {
            table.starting.remove(&self.name);
        }
    }
}

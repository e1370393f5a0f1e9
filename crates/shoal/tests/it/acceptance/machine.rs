//! Processes as this machine sees them: which a server started, directly or not, which of them are
//! sandboxes, and whether they are gone. A process is known by its number and the moment it began,
//! so that another of the same number is not mistaken for it.

use std::collections::BTreeMap;

use rustix::process::{Pid, Signal, kill_process};

/// One process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Process {
    pub(crate) pid: u32,
    parent: u32,
    began: u64,
    pub(crate) name: String,
}

impl Process {
    fn read(pid: u32) -> Option<Self> {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        let (before, after) = stat.rsplit_once(')')?;
        let fields: Vec<_> = after.split_whitespace().collect();
        // A zombie counts as ended.
        if matches!(fields.first(), Some(&("Z" | "X"))) {
            return None;
        }
        Some(Self {
            pid,
            parent: fields.get(1)?.parse().ok()?,
            began: fields.get(19)?.parse().ok()?,
            name: before.split_once('(')?.1.to_owned(),
        })
    }

    /// Whether it is still there.
    pub(crate) fn lives(&self) -> bool {
        Self::read(self.pid).is_some_and(|now| now.began == self.began)
    }

    pub(crate) fn signal(&self, signal: Signal) {
        let pid = Pid::from_raw(self.pid.cast_signed()).unwrap();
        // It may have ended already.
        let _ = kill_process(pid, signal);
    }

    /// Whether it is the first process of a native sandbox: one that is only half made has no
    /// filter.
    fn is_guest(&self) -> bool {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.pid));
        self.name == "shoal-guest" && status.is_ok_and(|text| text.contains("\nSeccomp:\t2\n"))
    }
}

/// Processes in whose command this stands.
pub(crate) fn mentioning(text: &str) -> Vec<Process> {
    let mentions = |process: &Process| {
        let command = std::fs::read(format!("/proc/{}/cmdline", process.pid)).unwrap_or_default();
        String::from_utf8_lossy(&command).contains(text)
    };
    all().filter(mentions).collect()
}

/// Processes in control groups beneath one of this name.
pub(crate) fn grouped(name: &str) -> Vec<Process> {
    let beneath = format!(":/{name}/");
    let grouped = |process: &Process| {
        let groups = std::fs::read_to_string(format!("/proc/{}/cgroup", process.pid));
        groups.is_ok_and(|groups| groups.contains(&beneath))
    };
    all().filter(grouped).collect()
}

fn all() -> impl Iterator<Item = Process> {
    let entries = std::fs::read_dir("/proc").unwrap().flatten();
    entries.filter_map(|entry| Process::read(entry.file_name().to_string_lossy().parse().ok()?))
}

/// All processes beneath one, however far.
pub(crate) fn beneath(ancestor: u32) -> Vec<Process> {
    let mut children = BTreeMap::<u32, Vec<Process>>::new();
    for process in all() {
        children.entry(process.parent).or_default().push(process);
    }
    let (mut found, mut above) = (Vec::new(), vec![ancestor]);
    while let Some(pid) = above.pop() {
        let of_it = children.remove(&pid).unwrap_or_default();
        above.extend(of_it.iter().map(|process| process.pid));
        found.extend(of_it);
    }
    found
}

/// The first processes of a server's native sandboxes.
pub(crate) fn guests(server: u32) -> Vec<Process> {
    beneath(server).into_iter().filter(Process::is_guest).collect()
}

/// The process that makes a server's native sandboxes.
pub(crate) fn launcher(server: u32) -> Process {
    let all = beneath(server).into_iter();
    let mut launchers = all.filter(|process| process.name == "shoal-launcher");
    launchers.next().expect("a server has a launcher")
}

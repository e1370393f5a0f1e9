//! Control groups of sandboxes, on v2, v1 or both. All groups are beneath `shoal/<run>/` of each
//! hierarchy and named by slot, so that a later cleanup knows their owner. A slot keeps its groups
//! from one sandbox to the next: making them costs, and the kernel keeps removed groups until the
//! last page that was charged to them is gone. No process is ever moved on a request path: it
//! starts in its v2 group, and a slot parent joins its v1 groups long before it is needed, because
//! such a write may take 20 ms.

use std::fmt::Write as _;
use std::io::{self, Write as _};
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, Mode, OFlags, mkdirat, openat, unlinkat};
use rustix::io::Errno;

/// The generation of a hierarchy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Version {
    /// One hierarchy per controller.
    V1,
    /// One hierarchy for all controllers.
    V2,
}

/// What a hierarchy is used for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Use {
    /// Limits memory and reports when it runs out.
    Memory,
    /// Limits processor time.
    Cpu,
    /// Limits the number of processes.
    Pids,
    /// Freezes.
    Freezer,
}

/// A hierarchy and its uses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hierarchy {
    /// Its generation.
    pub version: Version,
    /// The directory beneath which ours are made.
    pub directory: PathBuf,
    /// Its uses.
    pub uses: Vec<Use>,
}

impl Hierarchy {
    /// Makes the directory that all runs share, and the directory of one run in it.
    fn make_run(&self, shared: &Path, path: &Path) -> io::Result<()> {
        make_directory(shared)?;
        if self.version == Version::V2 {
            enable(shared, &self.uses)?;
        }
        make_directory(path)
    }
}

/// What one sandbox may use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Memory without swap.
    pub memory_bytes: u64,
    /// Thousandths of a processor.
    pub cpu_milli: u32,
    /// Processes and threads of the user.
    pub pids: u32,
}

/// What all sandboxes together may use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NodeCaps {
    /// Memory.
    pub memory_bytes: u64,
    /// Processes and threads.
    pub pids: u64,
}

impl NodeCaps {
    /// The machine, minus what keeps it usable.
    pub fn of_machine() -> Self {
        let info = rustix::system::sysinfo();
        let memory_bytes = info.totalram.saturating_mul(u64::from(info.mem_unit));
        let spared = (memory_bytes / 20).max(256 << 20);
        let pid_max: u64 = std::fs::read_to_string("/proc/sys/kernel/pid_max")
            .ok()
            .and_then(|text| text.trim().parse().ok())
            .unwrap_or(32_768);
        Self { memory_bytes: memory_bytes.saturating_sub(spared), pids: pid_max * 3 / 4 }
    }
}

/// The groups of one run.
#[derive(Debug)]
pub struct Groups {
    hierarchies: Vec<OpenHierarchy>,
}

#[derive(Debug)]
struct OpenHierarchy {
    version: Version,
    uses: Vec<Use>,
    /// As the host sees it. The launcher itself can no longer use this path: it uses descriptors.
    path: PathBuf,
    directory: OwnedFd,
    /// The hierarchy's own directory, to remove ours from.
    above: OwnedFd,
}

const CPU_PERIOD_US: u64 = 100_000;

/// On v1, the file with the limit of a group's TCP buffers, which its memory limit does not count.
/// On v2 it does.
const TCP_LIMIT: &str = "memory.kmem.tcp.limit_in_bytes";

/// The part of a sandbox's memory that its TCP buffers may take in addition on v1.
const TCP_PART: u64 = 4;

/// What all sandboxes together get of a busy processor and disk, as the weight of one group among
/// its neighbours, of which the server is one: a quarter of the usual. Files that a kernel does not
/// have are left out.
const WEIGHTS: [(&str, &str); 5] = [
    ("cpu.weight", "25"),
    ("cpu.shares", "256"),
    ("io.weight", "default 25"),
    ("io.bfq.weight", "25"),
    ("blkio.bfq.weight", "25"),
];

/// The child group into which processes of a group are moved.
pub(crate) const VACATED_TO: &str = "shoal-host";

/// How often to check whether all processes have moved: a process that forks meanwhile may be
/// quicker.
const VACATE_ATTEMPTS: u32 = 100;

/// How often to make the shared directory, if other runs keep removing it.
const SHARED_ATTEMPTS: u32 = 20;

impl Groups {
    /// Makes the directories of a run and caps what all its sandboxes may use together.
    pub fn open(layout: &[Hierarchy], run: &str, caps: NodeCaps) -> io::Result<Self> {
        let mut hierarchies = Vec::new();
        for hierarchy in layout {
            let shoal = hierarchy.directory.join("shoal");
            let path = shoal.join(run);
            if hierarchy.version == Version::V2 {
                enable(&hierarchy.directory, &hierarchy.uses)?;
            }
            // The shared directory goes with the last run, perhaps just now.
            let mut attempts = 1..SHARED_ATTEMPTS;
            loop {
                match hierarchy.make_run(&shoal, &path) {
                    Err(error) if error.kind() == io::ErrorKind::NotFound => {
                        attempts.next().ok_or(error)?;
                    }
                    made => break made?,
                }
            }
            if hierarchy.version == Version::V2 {
                enable(&path, &hierarchy.uses)?;
            }
            yield_to_neighbours(&shoal);
            let flags = OFlags::DIRECTORY | OFlags::CLOEXEC;
            let directory = openat(CWD, &path, flags, Mode::empty())?;
            let above = openat(CWD, &hierarchy.directory, flags, Mode::empty())?;
            let (version, uses) = (hierarchy.version, hierarchy.uses.clone());
            let opened = OpenHierarchy { version, uses, path, directory, above };
            opened.cap(caps)?;
            hierarchies.push(opened);
        }
        Ok(Self { hierarchies })
    }

    /// Whether a process has to write itself into a group that limits something.
    pub fn must_join(&self) -> bool {
        self.hierarchies.iter().any(|hierarchy| hierarchy.version == Version::V1)
    }

    /// Whether this use is available.
    pub fn serves(&self, wanted: Use) -> bool {
        self.hierarchies.iter().any(|hierarchy| hierarchy.uses.contains(&wanted))
    }

    /// Descriptors that a process needs to use these groups.
    pub fn descriptors(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.hierarchies.iter().map(|hierarchy| hierarchy.directory.as_fd())
    }

    /// Makes the group in which the first process of a slot starts, if processes can start in
    /// groups here.
    pub fn cgroup_for_clone(&self, slot: u32) -> io::Result<Option<OwnedFd>> {
        let Some(v2) = self.hierarchies.iter().find(|one| one.version == Version::V2) else {
            return Ok(None);
        };
        let name = name_of(slot);
        match mkdirat(&v2.directory, name.as_str(), Mode::from_raw_mode(0o755)) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(other) => return Err(other.into()),
        }
        let flags = OFlags::DIRECTORY | OFlags::CLOEXEC;
        Ok(Some(openat(&v2.directory, name.as_str(), flags, Mode::empty())?))
    }

    /// Makes the v1 groups of a slot and moves the calling process into them. Slow: only for slot
    /// parents.
    pub fn join(&self, slot: u32) -> io::Result<()> {
        let mut name = name_of(slot);
        let length = name.len();
        for hierarchy in self.hierarchies.iter().filter(|one| one.version == Version::V1) {
            name.truncate(length);
            match mkdirat(&hierarchy.directory, name.as_str(), Mode::from_raw_mode(0o755)) {
                Ok(()) | Err(Errno::EXIST) => {}
                Err(other) => return Err(other.into()),
            }
            name.push_str("/cgroup.procs");
            write_at(&hierarchy.directory, &name, "0")?;
        }
        Ok(())
    }

    /// Writes the limits of a slot, whatever was written before.
    pub fn limit(&self, slot: u32, limits: Limits) -> io::Result<()> {
        let name = name_of(slot);
        self.hierarchies.iter().try_for_each(|hierarchy| hierarchy.limit(&name, limits))
    }

    /// Lifts the CPU limit of a slot, so that the CPU time that the last sandbox used up does not
    /// delay the next one. Only on v1, where a launch waits for it.
    pub fn lift_cpu(&self, slot: u32) -> io::Result<()> {
        self.write_cpu(slot, "-1")
    }

    /// Sets the CPU limit again.
    pub fn limit_cpu(&self, slot: u32, limits: Limits) -> io::Result<()> {
        self.write_cpu(slot, &quota_us(limits).to_string())
    }

    fn write_cpu(&self, slot: u32, value: &str) -> io::Result<()> {
        match self.serving(Use::Cpu) {
            Some(cpu) if cpu.version == Version::V1 => {
                write_at(&cpu.directory, &format!("{}/cpu.cfs_quota_us", name_of(slot)), value)
            }
            Some(_) | None => Ok(()),
        }
    }

    /// How often the kernel killed a process of a slot because memory ran out.
    pub fn out_of_memory_kills(&self, slot: u32) -> u64 {
        let Some(memory) = self.serving(Use::Memory) else { return 0 };
        let file = match memory.version {
            Version::V1 => "memory.oom_control",
            Version::V2 => "memory.events",
        };
        let path = format!("{}/{file}", name_of(slot));
        read_at(&memory.directory, &path).ok().and_then(|text| kills_in(&text)).unwrap_or(0)
    }

    /// Thaws a group that may be frozen, so that it can be used again.
    pub fn thaw(&self, slot: u32) {
        let Some(freezer) = self.serving(Use::Freezer) else { return };
        let (file, value) = match freezer.version {
            Version::V1 => ("freezer.state", "THAWED"),
            Version::V2 => ("cgroup.freeze", "0"),
        };
        // Reading is cheap, writing takes a lock of the whole machine; and a group that was never
        // made is not frozen.
        let path = format!("{}/{file}", name_of(slot));
        let frozen = read_at(&freezer.directory, &path)
            .is_ok_and(|state| matches!(state.trim(), "1" | "FROZEN" | "FREEZING"));
        if frozen {
            let _ = write_at(&freezer.directory, &path, value);
        }
    }

    /// Removes the groups of the first `slots` slots and the directories of the run itself. What
    /// cannot be removed now, `shoal clean` finds.
    pub fn remove(&self, slots: u32, run: &str) {
        for hierarchy in &self.hierarchies {
            for slot in 0..slots {
                let _ = unlinkat(&hierarchy.directory, name_of(slot), AtFlags::REMOVEDIR);
            }
            // Another run may still exist beside this one.
            for path in [format!("shoal/{run}"), "shoal".to_owned()] {
                let _ = unlinkat(&hierarchy.above, path, AtFlags::REMOVEDIR);
            }
        }
    }

    /// The path of a slot's group for this use.
    pub fn path(&self, slot: u32, wanted: Use) -> Option<PathBuf> {
        self.serving(wanted).map(|hierarchy| hierarchy.path.join(name_of(slot)))
    }

    fn serving(&self, wanted: Use) -> Option<&OpenHierarchy> {
        self.hierarchies.iter().find(|hierarchy| hierarchy.uses.contains(&wanted))
    }
}

impl OpenHierarchy {
    fn cap(&self, caps: NodeCaps) -> io::Result<()> {
        for used in &self.uses {
            match (used, self.version) {
                (Use::Memory, Version::V1) => {
                    let bytes = caps.memory_bytes.to_string();
                    write_at(&self.directory, "memory.limit_in_bytes", &bytes)?;
                }
                (Use::Memory, Version::V2) => {
                    write_at(&self.directory, "memory.max", &caps.memory_bytes.to_string())?;
                }
                (Use::Pids, Version::V1 | Version::V2) => {
                    write_at(&self.directory, "pids.max", &caps.pids.to_string())?;
                }
                (Use::Cpu | Use::Freezer, Version::V1 | Version::V2) => {}
            }
        }
        Ok(())
    }

    fn limit(&self, slot: &str, limits: Limits) -> io::Result<()> {
        let write =
            |file: &str, value: &str| write_at(&self.directory, &format!("{slot}/{file}"), value);
        let quota_us = quota_us(limits);
        for used in &self.uses {
            match (used, self.version) {
                (Use::Memory, Version::V1) => {
                    let bytes = limits.memory_bytes.to_string();
                    // The limit with swap is never below the one without, whether the limit grows
                    // or shrinks.
                    write("memory.memsw.limit_in_bytes", "-1").or_else(if_missing)?;
                    write("memory.limit_in_bytes", &bytes)?;
                    match write("memory.memsw.limit_in_bytes", &bytes) {
                        Err(e) if e.kind() == io::ErrorKind::NotFound => {
                            write("memory.swappiness", "0")?;
                        }
                        other => other?,
                    }
                    let tcp_bytes = limits.memory_bytes / TCP_PART;
                    write(TCP_LIMIT, &tcp_bytes.to_string()).or_else(if_missing_or_busy)?;
                }
                (Use::Memory, Version::V2) => {
                    write("memory.max", &limits.memory_bytes.to_string())?;
                    write("memory.swap.max", "0").or_else(if_missing)?;
                }
                (Use::Cpu, Version::V1) => write("cpu.cfs_quota_us", &quota_us.to_string())?,
                (Use::Cpu, Version::V2) => {
                    write("cpu.max", &format!("{quota_us} {CPU_PERIOD_US}"))?;
                }
                // More than the user may have: the guest is in there too, and on v1 the slot
                // parent.
                (Use::Pids, Version::V1) => {
                    write("pids.max", &(u64::from(limits.pids) + 2).to_string())?;
                }
                (Use::Pids, Version::V2) => {
                    write("pids.max", &(u64::from(limits.pids) + 1).to_string())?;
                }
                (Use::Freezer, Version::V1 | Version::V2) => {}
            }
        }
        Ok(())
    }
}

/// Moves every process of a v2 group into a child group: a group whose children have controllers
/// may have no processes of its own.
pub fn vacate(directory: &Path) -> io::Result<()> {
    let part = directory.join(VACATED_TO);
    make_directory(&part)?;
    for _ in 0..VACATE_ATTEMPTS {
        let processes = std::fs::read_to_string(directory.join("cgroup.procs"))?;
        if processes.trim().is_empty() {
            return Ok(());
        }
        for process in processes.lines() {
            match std::fs::write(part.join("cgroup.procs"), process) {
                // The process has ended meanwhile.
                Err(error) if error.raw_os_error() == Some(Errno::SRCH.raw_os_error()) => {}
                moved => moved?,
            }
        }
    }
    Err(Errno::BUSY.into())
}

/// The CPU time of each period.
fn quota_us(limits: Limits) -> u64 {
    (u64::from(limits.cpu_milli) * CPU_PERIOD_US / 1000).max(1000)
}

fn if_missing(error: io::Error) -> io::Result<()> {
    if error.kind() == io::ErrorKind::NotFound { Ok(()) } else { Err(error) }
}

/// Buffers of the last sandbox may be there for a moment longer than it, and then the limit that it
/// had stays.
fn if_missing_or_busy(error: io::Error) -> io::Result<()> {
    if error.kind() == io::ErrorKind::ResourceBusy { Ok(()) } else { if_missing(error) }
}

/// Limits the TCP buffers of a group that another program made, where its memory limit does not
/// count them. Whether there is such a limit.
pub fn limit_tcp(group: &Path, memory_bytes: u64) -> io::Result<bool> {
    let file = group.join(TCP_LIMIT);
    if !file.exists() {
        return Ok(false);
    }
    std::fs::write(file, (memory_bytes / TCP_PART).to_string())?;
    Ok(true)
}

/// Caps what the groups of a run may use together, as far as the files of its directory allow it:
/// the directory was made by another program.
pub fn cap_together(directory: &Path, caps: NodeCaps) {
    let (memory, pids) = (caps.memory_bytes.to_string(), caps.pids.to_string());
    let caps = [("memory.max", &memory), ("memory.limit_in_bytes", &memory), ("pids.max", &pids)];
    for (file, value) in caps {
        write_if_there(&directory.join(file), value);
    }
    if let Some(shared) = directory.parent() {
        yield_to_neighbours(shared);
    }
}

/// Gives the group of all sandboxes less weight than its neighbours.
fn yield_to_neighbours(shared: &Path) {
    for (file, weight) in WEIGHTS {
        write_if_there(&shared.join(file), weight);
    }
}

/// A file that is not there must not be made.
fn write_if_there(file: &Path, value: &str) {
    let opened = std::fs::OpenOptions::new().write(true).open(file);
    let _ = opened.and_then(|mut file| file.write_all(value.as_bytes()));
}

/// The name of a slot's directory.
pub fn name_of(slot: u32) -> String {
    let mut name = String::with_capacity(32);
    // Writing to a string cannot fail.
    let _ = write!(name, "slot-{slot}");
    name
}

/// Enables these controllers for the children of a v2 group.
fn enable(directory: &Path, uses: &[Use]) -> io::Result<()> {
    for used in uses {
        let controller = match used {
            Use::Memory => "+memory",
            Use::Cpu => "+cpu",
            Use::Pids => "+pids",
            Use::Freezer => continue,
        };
        std::fs::write(directory.join("cgroup.subtree_control"), controller)?;
    }
    // Where this fails, all sandboxes are one to the disk.
    let _ = std::fs::write(directory.join("cgroup.subtree_control"), "+io");
    Ok(())
}

fn make_directory(path: &Path) -> io::Result<()> {
    match std::fs::create_dir(path) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        other => other,
    }
}

fn write_at(directory: &OwnedFd, path: &str, value: &str) -> io::Result<()> {
    let file = openat(directory, path, OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty())?;
    rustix::io::write(file, value.as_bytes())?;
    Ok(())
}

fn read_at(directory: &OwnedFd, path: &str) -> io::Result<String> {
    let file = openat(directory, path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
    let mut buffer = [0; 1024];
    let length = rustix::io::read(file, &mut buffer)?;
    Ok(String::from_utf8_lossy(&buffer[..length]).into_owned())
}

/// The number of out-of-memory kills in a group's file, `memory.oom_control` (v1) or
/// `memory.events` (v2).
pub fn kills_in(text: &str) -> Option<u64> {
    let mut lines = text.lines().filter_map(|line| line.split_once(' '));
    lines.find(|(name, _)| *name == "oom_kill").and_then(|(_, count)| count.trim().parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kills_are_read_from_both_generations() {
        let v1 = "oom_kill_disable 0\nunder_oom 0\noom_kill 3\n";
        let v2 = "low 0\nhigh 0\nmax 12\noom 4\noom_kill 2\noom_group_kill 0\n";
        assert_eq!(kills_in(v1), Some(3));
        assert_eq!(kills_in(v2), Some(2));
        assert_eq!(kills_in(""), None);
    }
}

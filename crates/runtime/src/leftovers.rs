//! What dead runs left behind. A run holds a lock on a file of its own while it lives; once the
//! lock can be taken, whatever carries the run's name is nobody's: its processes are killed, its
//! control groups removed, and then the file. Nothing of a run whose lock is held is touched.
//!
//! All of this blocks: call it where that is allowed.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::Duration;

use rustix::fs::{FlockOperation, flock};
use rustix::process::{Pid, PidfdFlags, Signal, getpid, pidfd_open, pidfd_send_signal};

use crate::spec::Reaped;

/// How long to wait between two looks at something that is about to go.
const PAUSE: Duration = Duration::from_millis(5);

/// How often to look before something counts as stuck: ten seconds in all.
const LOOKS: u32 = 2000;

/// The directory that all runs share in each hierarchy of control groups.
const SHARED: &str = "shoal";

const LOCK_ENDING: &str = "lock";

/// Where to look.
#[derive(Debug, Clone)]
pub struct Leftovers {
    run_directory: PathBuf,
    /// Directories that may have one of ours in them.
    hierarchies: Vec<PathBuf>,
}

impl Leftovers {
    /// What runs with their locks in this directory may have left on this machine.
    pub fn on_this_machine(run_directory: impl Into<PathBuf>) -> io::Result<Self> {
        let mounts = fs::read_to_string("/proc/self/mountinfo")?;
        let own = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
        Ok(Self { run_directory: run_directory.into(), hierarchies: hierarchies(&mounts, &own) })
    }

    #[cfg(test)]
    fn at(run_directory: &Path, hierarchy: &Path) -> Self {
        Self { run_directory: run_directory.into(), hierarchies: vec![hierarchy.into()] }
    }

    /// Removes what every run left that is over.
    pub fn remove_all(&self) -> io::Result<Reaped> {
        let mut reaped = Reaped::default();
        let files = match fs::read_dir(&self.run_directory) {
            Ok(files) => files,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(reaped),
            Err(error) => return Err(error),
        };
        for file in files {
            let path = file?.path();
            if path.extension() == Some(OsStr::new(LOCK_ENDING))
                && let Some(run) = path.file_stem().and_then(OsStr::to_str)
                && is_name(run)
            {
                self.remove_if_over(run, &mut reaped)?;
            }
        }
        Ok(reaped)
    }

    /// Removes what one run left, if it is over.
    pub fn remove_run(&self, run: &str) -> io::Result<Reaped> {
        let mut reaped = Reaped::default();
        if is_name(run) {
            self.remove_if_over(run, &mut reaped)?;
        }
        Ok(reaped)
    }

    fn remove_if_over(&self, run: &str, reaped: &mut Reaped) -> io::Result<()> {
        let path = self.run_directory.join(format!("{run}.{LOCK_ENDING}"));
        let lock = match File::open(&path) {
            Ok(lock) => lock,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            Err(error) => return Err(error),
        };
        match flock(&lock, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(rustix::io::Errno::WOULDBLOCK) => return Ok(()),
            Err(error) => return Err(error.into()),
        }
        let stuck_before = reaped.stuck.len();
        for hierarchy in &self.hierarchies {
            let shared = hierarchy.join(SHARED);
            let group = shared.join(run);
            if group.is_dir() {
                reaped.processes += end_processes(&group, run);
                remove_groups(&group, reaped);
                // Only the last run to go can remove what all share.
                let _ = fs::remove_dir(&shared);
            }
        }
        if reaped.stuck.len() == stuck_before {
            fs::remove_file(&path)?;
        }
        reaped.runs.push(run.to_owned());
        Ok(())
    }
}

/// Names of runs, as the launcher allows them: they become names of directories.
fn is_name(run: &str) -> bool {
    !run.is_empty() && run.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
}

/// The roots of all mounted hierarchies, and our own place in each.
fn hierarchies(mounts: &str, own: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for line in mounts.lines() {
        let Some((before, after)) = line.split_once(" - ") else { continue };
        let kind = after.split(' ').next().unwrap_or_default();
        let Some(mounted_at) = before.split(' ').nth(4) else { continue };
        if !matches!(kind, "cgroup" | "cgroup2") {
            continue;
        }
        let root = PathBuf::from(mounted_at);
        for line in own.lines() {
            // number:controllers:path, of which none are named for the second generation.
            let mut parts = line.splitn(3, ':').skip(1);
            let (Some(controllers), Some(path)) = (parts.next(), parts.next()) else { continue };
            if controllers.is_empty() == (kind == "cgroup2") {
                let place = root.join(path.trim_start_matches('/'));
                found.extend(
                    place.ancestors().take_while(|up| up.starts_with(&root)).map(Path::to_path_buf),
                );
            }
        }
        found.push(root);
    }
    found.sort_unstable();
    found.dedup();
    found
}

/// Kills everything in a group and those beneath it. Says how many were killed.
fn end_processes(group: &Path, run: &str) -> u32 {
    let mut killed = 0;
    for _ in 0..LOOKS {
        let processes = processes(group);
        if processes.is_empty() {
            break;
        }
        killed += processes.iter().map(|pid| u32::from(kill(*pid, run))).sum::<u32>();
        thaw(group);
        sleep(PAUSE);
    }
    killed
}

fn subgroups(group: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(group).into_iter().flatten().flatten();
    entries.map(|entry| entry.path()).filter(|path| path.is_dir()).collect()
}

fn processes(group: &Path) -> Vec<Pid> {
    let text = fs::read_to_string(group.join("cgroup.procs")).unwrap_or_default();
    let own = text.lines().filter_map(|line| line.trim().parse().ok()).filter_map(Pid::from_raw);
    own.chain(subgroups(group).iter().flat_map(|path| processes(path))).collect()
}

/// Kills a process if it really is one of the run's: its number may have gone to another by now.
fn kill(pid: Pid, run: &str) -> bool {
    if pid == getpid() {
        return false;
    }
    let Ok(handle) = pidfd_open(pid, PidfdFlags::empty()) else { return false };
    let groups = fs::read_to_string(format!("/proc/{}/cgroup", pid.as_raw_nonzero()));
    let ours = format!("/{SHARED}/{run}");
    groups.is_ok_and(|text| text.lines().any(|line| line.contains(&ours)))
        && pidfd_send_signal(handle, Signal::KILL).is_ok()
}

/// A frozen process of the first generation does not die before it is thawed.
fn thaw(group: &Path) {
    for (file, value) in [("freezer.state", "THAWED"), ("cgroup.freeze", "0")] {
        let path = group.join(file);
        if path.exists() {
            // If it cannot be thawed it shows up as stuck.
            let _ = fs::write(path, value);
        }
    }
    for path in subgroups(group) {
        thaw(&path);
    }
}

fn remove_groups(group: &Path, reaped: &mut Reaped) {
    for path in subgroups(group) {
        remove_groups(&path, reaped);
    }
    let mut last = None;
    for _ in 0..LOOKS {
        match fs::remove_dir(group) {
            Ok(()) => {
                reaped.control_groups += 1;
                return;
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => return,
            // What is dying keeps its group for a moment.
            Err(error) if error.kind() == io::ErrorKind::ResourceBusy => last = Some(error),
            Err(error) => {
                last = Some(error);
                break;
            }
        }
        sleep(PAUSE);
    }
    let cause = last.map(|error| error.to_string()).unwrap_or_default();
    reaped.stuck.push((group.to_owned(), cause));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hierarchies_of_both_generations_are_found() {
        let mounts = "\
            24 1 0:22 / /sys/fs/cgroup rw shared:9 - tmpfs tmpfs rw\n\
            30 24 0:26 / /sys/fs/cgroup/unified rw shared:10 - cgroup2 cgroup2 rw\n\
            31 24 0:27 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n\
            99 1 0:5 / /proc rw - proc proc rw\n";
        let own = "4:memory:/\n0::/user.slice/a.service\n";
        let expected = [
            "/sys/fs/cgroup/memory",
            "/sys/fs/cgroup/unified",
            "/sys/fs/cgroup/unified/user.slice",
            "/sys/fs/cgroup/unified/user.slice/a.service",
        ];
        assert_eq!(hierarchies(mounts, own), expected.map(PathBuf::from));
    }

    #[test]
    fn only_runs_that_are_over_are_removed() {
        let place = std::env::temp_dir().join(format!("leftovers-{}", std::process::id()));
        let (locks, groups) = (place.join("run"), place.join("groups"));
        for run in ["dead", "alive", "un.named"] {
            fs::create_dir_all(&locks).unwrap();
            fs::write(locks.join(format!("{run}.lock")), "").unwrap();
            fs::create_dir_all(groups.join("shoal").join(run).join("slot-1")).unwrap();
        }
        let held = File::open(locks.join("alive.lock")).unwrap();
        flock(&held, FlockOperation::NonBlockingLockExclusive).unwrap();
        let leftovers = Leftovers::at(&locks, &groups);
        let reaped = leftovers.remove_all().unwrap();
        assert_eq!((reaped.runs.as_slice(), reaped.control_groups), (&["dead".to_owned()][..], 2));
        assert_eq!((reaped.processes, reaped.stuck.len()), (0, 0));
        assert!(!groups.join("shoal/dead").exists() && !locks.join("dead.lock").exists());
        assert!(groups.join("shoal/alive/slot-1").exists() && locks.join("alive.lock").exists());
        assert!(groups.join("shoal/un.named").exists());
        drop(held);
        assert_eq!(leftovers.remove_run("alive").unwrap().runs, ["alive"]);
        assert_eq!(leftovers.remove_all().unwrap(), Reaped::default());
        let gone = Leftovers::at(&place.join("nowhere"), &groups);
        assert_eq!(gone.remove_all().unwrap(), Reaped::default());
        fs::remove_dir_all(place).unwrap();
    }
}

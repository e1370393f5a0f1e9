//! Removal of what dead runs left behind. A run holds a lock on a file of its own while it lives.
//! Once the lock is free, everything that carries the run's name is an orphan: its processes are
//! killed, then its control groups, the files beside its lock, and the lock file are removed. A run
//! whose lock is held must never be touched.
//!
//! All of this blocks: call it where that is allowed.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::Duration;

use jail::machine::parse::mounts;
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

/// Beneath a directory of runs, those of OCI runtimes have directories that begin with this.
pub(crate) const OCI: &str = "oci-";

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

    /// Removes what all dead runs left.
    pub fn remove_all(&self) -> io::Result<Reaped> {
        let mut reaped = Reaped::default();
        self.remove_in(&self.run_directory, &mut reaped)?;
        Ok(reaped)
    }

    fn remove_in(&self, directory: &Path, reaped: &mut Reaped) -> io::Result<()> {
        let files = match fs::read_dir(directory) {
            Ok(files) => files,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            Err(error) => return Err(error),
        };
        for file in files {
            let file = file?;
            let (path, name) = (file.path(), file.file_name());
            if file.file_type()?.is_dir() && name.as_encoded_bytes().starts_with(OCI.as_bytes()) {
                self.remove_in(&path, reaped)?;
                // It stays while some run has it.
                let _ = fs::remove_dir(&path);
            } else if path.extension() == Some(OsStr::new(LOCK_ENDING))
                && let Some(run) = path.file_stem().and_then(OsStr::to_str)
                && is_name(run)
            {
                self.remove_if_dead(directory, run, reaped)?;
            }
        }
        Ok(())
    }

    /// Removes what one run left, if it is dead.
    pub fn remove_run(&self, run: &str) -> io::Result<Reaped> {
        let mut reaped = Reaped::default();
        if is_name(run) {
            self.remove_if_dead(&self.run_directory, run, &mut reaped)?;
        }
        Ok(reaped)
    }

    /// Kills everything in one group of a live run, and removes the group. Returns what could not
    /// be removed, with the reason.
    pub(crate) fn remove_group_of(&self, run: &str, name: &str) -> Vec<(PathBuf, String)> {
        let mut reaped = Reaped::default();
        remove_groups(&self.groups_of(run, name), run, &mut reaped);
        reaped.stuck
    }

    /// The directories of one group of a run, or of all of them, one for each hierarchy in which it
    /// exists.
    pub(crate) fn groups_of(&self, run: &str, name: &str) -> Vec<PathBuf> {
        let at = |hierarchy: &PathBuf| {
            let all = hierarchy.join(SHARED).join(run);
            if name.is_empty() { all } else { all.join(name) }
        };
        self.hierarchies.iter().map(at).filter(|group| group.is_dir()).collect()
    }

    /// Removes what a run left whose launcher has ended. A sandbox that the launcher had just begun
    /// holds the lock until it is dead too, and so does another process that cleans up.
    pub(crate) fn remove_ended_run(&self, run: &str) -> io::Result<Reaped> {
        let mut reaped = Reaped::default();
        for _ in 0..LOOKS {
            if !is_name(run)
                || self.remove_if_dead(&self.run_directory, run, &mut reaped)? != RunState::Held
            {
                break;
            }
            sleep(PAUSE);
        }
        Ok(reaped)
    }

    fn remove_if_dead(
        &self,
        directory: &Path,
        run: &str,
        reaped: &mut Reaped,
    ) -> io::Result<RunState> {
        let path = lock_file(directory, run);
        let lock = match File::open(&path) {
            Ok(lock) => lock,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(RunState::Nothing),
            Err(error) => return Err(error),
        };
        match flock(&lock, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(rustix::io::Errno::WOULDBLOCK) => return Ok(RunState::Held),
            Err(error) => return Err(error.into()),
        }
        if !is_file_at(&lock, &path)? {
            // Another process removed the run between the two steps above.
            return Ok(RunState::Nothing);
        }
        let stuck_before = reaped.stuck.len();
        let groups: Vec<PathBuf> = self.groups_of(run, "");
        remove_groups(&groups, run, reaped);
        for shared in groups.iter().filter_map(|group| group.parent()) {
            // Only the last run to go can remove what all share.
            let _ = fs::remove_dir(shared);
        }
        // Only after its processes are gone: they may have something mounted from there.
        if reaped.stuck.len() == stuck_before
            && let Err(error) = remove_kept(&directory.join(run))
        {
            reaped.stuck.push((directory.join(run), error.to_string()));
        }
        if reaped.stuck.len() == stuck_before {
            fs::remove_file(&path)?;
        }
        reaped.runs.push(run.to_owned());
        Ok(RunState::Dead)
    }
}

/// What was found of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum RunState {
    /// There is nothing of it.
    Nothing,
    /// A process holds its lock.
    Held,
    /// It was dead; what could be removed is removed.
    Dead,
}

/// Whether an open file still is the one at its path.
fn is_file_at(file: &File, path: &Path) -> io::Result<bool> {
    let open = file.metadata()?;
    match fs::symlink_metadata(path) {
        Ok(found) => Ok((open.dev(), open.ino()) == (found.dev(), found.ino())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

/// The file whose lock shows whether a run lives.
pub(crate) fn lock_file(directory: &Path, run: &str) -> PathBuf {
    directory.join(format!("{run}.{LOCK_ENDING}"))
}

/// Removes the directory that a run has beside its lock, if there is one. We never mount anything
/// there; if something is mounted, all of it stays as it is.
pub(crate) fn remove_kept(directory: &Path) -> io::Result<()> {
    let directory = match directory.canonicalize() {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        found => found?,
    };
    let mounted = mounts(&fs::read_to_string("/proc/self/mountinfo")?);
    if mounted.iter().any(|mount| mount.point.starts_with(&directory)) {
        return Err(io::Error::other("something is mounted in it"));
    }
    match fs::remove_dir_all(directory) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        removed => removed,
    }
}

/// Names of runs, as the launcher allows them: they become names of directories.
pub(crate) fn is_name(run: &str) -> bool {
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

/// Kills everything in groups of a run, and removes the groups with those beneath them. A dying
/// process keeps its groups for a moment and may still make another, so this repeats. It handles
/// all hierarchies together, because a process that one of them froze does not die.
fn remove_groups(groups: &[PathBuf], run: &str, reaped: &mut Reaped) {
    let mut killed = BTreeSet::new();
    let mut stuck = Vec::new();
    for _ in 0..LOOKS {
        let found = groups.iter().flat_map(|group| processes(group));
        killed.extend(found.filter(|pid| kill(*pid, run)).map(Pid::as_raw_nonzero));
        stuck.clear();
        for group in groups {
            thaw(group);
        }
        for group in groups {
            remove_empty(group, reaped, &mut stuck);
        }
        if stuck.iter().all(|(_, error)| error.kind() != io::ErrorKind::ResourceBusy) {
            break;
        }
        sleep(PAUSE);
    }
    reaped.processes += killed.len() as u32;
    reaped.stuck.extend(stuck.into_iter().map(|(path, error)| (path, error.to_string())));
}

/// Removes a group and those beneath it as far as that is possible now.
fn remove_empty(group: &Path, reaped: &mut Reaped, stuck: &mut Vec<(PathBuf, io::Error)>) {
    for path in subgroups(group) {
        remove_empty(&path, reaped, stuck);
    }
    match fs::remove_dir(group) {
        Ok(()) => reaped.control_groups += 1,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => stuck.push((group.to_owned(), error)),
    }
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

/// Kills a process if it really is one of the run's: its pid may belong to another by now.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cgroup_hierarchies_of_both_generations_are_found() {
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
    fn leftovers_of_dead_runs_only_are_removed() {
        let place = std::env::temp_dir().join(format!("leftovers-{}", std::process::id()));
        let (locks, groups) = (place.join("run"), place.join("groups"));
        for run in ["dead", "alive", "un.named"] {
            fs::create_dir_all(&locks).unwrap();
            fs::write(locks.join(format!("{run}.lock")), "").unwrap();
            fs::create_dir_all(groups.join("shoal").join(run).join("slot-1")).unwrap();
        }
        // Those of OCI runtimes have theirs one level deeper, with files beside.
        let deeper = locks.join("oci-runc");
        for run in ["gone", "here"] {
            fs::create_dir_all(deeper.join(run).join("bundles/x")).unwrap();
            fs::write(deeper.join(format!("{run}.lock")), "").unwrap();
        }
        let here = File::open(deeper.join("here.lock")).unwrap();
        flock(&here, FlockOperation::NonBlockingLockExclusive).unwrap();
        let held = File::open(locks.join("alive.lock")).unwrap();
        flock(&held, FlockOperation::NonBlockingLockExclusive).unwrap();
        let leftovers = Leftovers::at(&locks, &groups);
        let mut reaped = leftovers.remove_all().unwrap();
        reaped.runs.sort();
        assert_eq!(
            (reaped.runs.as_slice(), reaped.control_groups),
            (&["dead", "gone"].map(str::to_owned)[..], 2)
        );
        assert!(deeper.join("here/bundles/x").exists() && !deeper.join("gone").exists());
        drop(here);
        assert_eq!(leftovers.remove_all().unwrap().runs, ["here"]);
        assert!(!deeper.exists());
        assert_eq!((reaped.processes, reaped.stuck.len()), (0, 0));
        assert!(!groups.join("shoal/dead").exists() && !locks.join("dead.lock").exists());
        assert!(groups.join("shoal/alive/slot-1").exists() && locks.join("alive.lock").exists());
        assert!(groups.join("shoal/un.named").exists());
        let waiting = std::thread::spawn({
            let leftovers = leftovers.clone();
            move || leftovers.remove_ended_run("alive")
        });
        assert_eq!(leftovers.remove_run("alive").unwrap(), Reaped::default());
        drop(held);
        assert_eq!(waiting.join().unwrap().unwrap().runs, ["alive"]);
        assert_eq!(leftovers.remove_all().unwrap(), Reaped::default());
        let gone = Leftovers::at(&place.join("nowhere"), &groups);
        assert_eq!(gone.remove_all().unwrap(), Reaped::default());
        fs::remove_dir_all(place).unwrap();
    }

    #[test]
    fn leftovers_that_several_remove_at_once_are_removed_once_and_without_an_error() {
        let place = std::env::temp_dir().join(format!("leftovers-at-once-{}", std::process::id()));
        let (locks, groups) = (place.join("run"), place.join("groups"));
        fs::create_dir_all(&locks).unwrap();
        let leftovers = Leftovers::at(&locks, &groups);
        for _ in 0..20 {
            for run in 0..50 {
                fs::write(lock_file(&locks, &format!("dead-{run}")), "").unwrap();
            }
            let remove = || leftovers.remove_all().map(|reaped| reaped.runs.len());
            let removed: Vec<_> = std::thread::scope(|scope| {
                let all: Vec<_> = (0..4).map(|_| scope.spawn(remove)).collect();
                all.into_iter().map(|one| one.join().unwrap().unwrap()).collect()
            });
            assert_eq!(removed.iter().sum::<usize>(), 50, "each by one of {removed:?}");
        }
        fs::remove_dir_all(place).unwrap();
    }
}

//! The first process of a container, where the engine is on this host. A pid that the engine
//! reports is used only if that process is in a control group of the container: an engine in a
//! container of its own has other pids.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use jail::groups::kills_in;
use jail::machine::parse::{memberships, mounts};
use rustix::fs::{Mode, OFlags, ResolveFlags, fstat, openat2, stat};

use crate::groups::CpuCounter;

/// The files that count kills for want of memory, of the second and of the first generation.
const COUNTERS: [&str; 2] = ["memory.events", "memory.oom_control"];

/// The first process of a container, as this host sees it.
#[derive(Debug)]
pub(super) struct FirstProcess {
    pub pid: u32,
    /// The control group that bounds its memory, if it can be seen.
    memory: Option<PathBuf>,
    kills_seen: AtomicU64,
    /// The counter of its processor time, if it can be seen.
    cpu: Option<CpuCounter>,
}

impl FirstProcess {
    /// The process, if it belongs to that container.
    pub(super) fn find(pid: i64, container: &str) -> Option<Self> {
        let pid = u32::try_from(pid).ok().filter(|pid| *pid != 0)?;
        let groups = fs::read_to_string(format!("/proc/{pid}/cgroup")).ok()?;
        if !is_of(&groups, container) {
            return None;
        }
        let mountinfo = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
        let memory = memory_group(&groups, &mountinfo).filter(|path| path.is_dir());
        let cpu = CpuCounter::of_process(pid, |path| path.contains(container));
        Some(Self { pid, memory, kills_seen: AtomicU64::new(0), cpu })
    }

    /// Whether it shares the host's network, as far as that is visible.
    pub(super) fn shares_our_network(&self) -> bool {
        let network = |process: &str| fs::read_link(format!("/proc/{process}/ns/net")).ok();
        match (network(&self.pid.to_string()), network("self")) {
            (Some(its), Some(ours)) => its == ours,
            (_, None) | (None, _) => false,
        }
    }

    /// Whether its path `place` is the same file as our path `ours`; none if that cannot be
    /// determined. Links inside the container are resolved inside it.
    pub(super) fn shows(&self, place: &str, ours: &str) -> Option<bool> {
        let root = File::open(format!("/proc/{}/root", self.pid)).ok()?;
        let flags = OFlags::PATH | OFlags::CLOEXEC;
        let inside = place.trim_start_matches('/');
        let shown = openat2(&root, inside, flags, Mode::empty(), ResolveFlags::IN_ROOT).ok()?;
        let (theirs, ours) = (fstat(&shown).ok()?, stat(ours).ok()?);
        Some((theirs.st_dev, theirs.st_ino) == (ours.st_dev, ours.st_ino))
    }

    /// Limits its TCP buffers where its memory limit does not count them, and this server may: no
    /// engine does.
    pub(super) fn limit_tcp(&self, memory_bytes: u64) {
        if let Some(Err(error)) =
            self.memory.as_ref().map(|group| jail::groups::limit_tcp(group, memory_bytes))
        {
            tracing::debug!(%error, "the TCP buffers of a container cannot be limited");
        }
    }

    /// Whether more processes were killed for want of memory since the last call; none if no
    /// counter exists.
    pub(super) fn memory_ran_out(&self) -> Option<bool> {
        let directory = self.memory.as_ref()?;
        let texts = COUNTERS.iter().map(|file| fs::read_to_string(directory.join(file)));
        let now = texts.flatten().find_map(|text| kills_in(&text))?;
        Some(self.kills_seen.fetch_max(now, Ordering::SeqCst) < now)
    }

    /// The processor time of its container.
    pub(super) fn cpu_time(&self) -> Option<Duration> {
        self.cpu.as_ref()?.read()
    }

    /// Whether any kill for want of memory was seen.
    pub(super) fn ran_out_before(&self) -> bool {
        self.kills_seen.load(Ordering::SeqCst) > 0
    }
}

/// Whether these are groups of that container: their names contain its id.
fn is_of(groups: &str, container: &str) -> bool {
    !container.is_empty() && memberships(groups).iter().any(|group| group.path.contains(container))
}

/// Where its memory is bounded: by the hierarchy of that controller, or by the one for everything.
fn memory_group(groups: &str, mountinfo: &str) -> Option<PathBuf> {
    let groups = memberships(groups);
    let mounts = mounts(mountinfo);
    let by_name = groups.iter().find(|group| group.controllers.iter().any(|name| name == "memory"));
    let (group, mount) = if let Some(group) = by_name {
        let carries = |option: &String| option == "memory";
        let mut of_first = mounts.iter().filter(|mount| mount.kind == "cgroup");
        (group, of_first.find(|mount| mount.options.iter().any(carries))?)
    } else {
        let group = groups.iter().find(|group| group.controllers.is_empty())?;
        (group, mounts.iter().find(|mount| mount.kind == "cgroup2")?)
    };
    let shown = Path::new(&group.path).strip_prefix(&mount.root).ok()?;
    Some(mount.point.join(shown))
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: &str = "423d03e71c6a4e318a01016e0371fc7a1ecd0167ec380be4705c498f4b706880";

    #[test]
    fn first_process_is_known_by_its_cgroups() {
        for (groups, expected) in [
            (format!("8:pids:/docker/{ID}\n0::/docker/{ID}\n"), true),
            (format!("0::/system.slice/docker-{ID}.scope\n"), true),
            ("0::/init.scope\n".to_owned(), false),
            (String::new(), false),
        ] {
            assert_eq!(is_of(&groups, ID), expected, "{groups}");
        }
        assert!(!is_of("0::/docker/x\n", ""), "an empty id matches no process");
    }

    #[test]
    fn memory_cgroup_is_found_in_every_cgroup_layout() {
        let first = "30 20 0:26 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n\
                     31 20 0:27 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n";
        let second = "30 20 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n";
        let part = "30 20 0:26 /outer /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n";
        for (groups, mountinfo, expected) in [
            ("4:memory:/docker/a\n0::/docker/a\n", first, Some("/sys/fs/cgroup/memory/docker/a")),
            ("0::/docker/a\n", second, Some("/sys/fs/cgroup/docker/a")),
            ("0::/outer/docker/a\n", part, Some("/sys/fs/cgroup/docker/a")),
            ("0::/elsewhere/a\n", part, None),
            ("4:memory:/docker/a\n", second, None),
            ("", second, None),
        ] {
            let expected = expected.map(PathBuf::from);
            assert_eq!(memory_group(groups, mountinfo), expected, "{groups} {mountinfo}");
        }
    }

    #[test]
    fn first_process_files_are_compared_by_inode() {
        let ourselves = FirstProcess {
            pid: std::process::id(),
            memory: None,
            kills_seen: AtomicU64::new(0),
            cpu: None,
        };
        for (place, ours, expected) in [
            ("/usr", "/usr", Some(true)),
            ("/usr/", "/usr/../usr", Some(true)),
            ("/usr", "/etc", Some(false)),
            ("/nowhere", "/etc", None),
            ("/etc", "/nowhere", None),
        ] {
            assert_eq!(ourselves.shows(place, ours), expected, "{place} {ours}");
        }
    }

    #[test]
    fn first_process_of_another_container_is_refused() {
        assert!(FirstProcess::find(i64::from(std::process::id()), ID).is_none());
        assert!(FirstProcess::find(0, ID).is_none());
        assert!(FirstProcess::find(-1, ID).is_none());
    }
}

//! The processor time of a sandbox, as its control group counts it. A counter is read and never
//! set: it goes on where a slot serves one sandbox after another.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::time::Duration;

use jail::machine::parse::{Mount, memberships, mounts};

/// The counters of the second and of the first generation.
const SECOND: &str = "cpu.stat";
const FIRST: &str = "cpuacct.usage";

/// The counter of one sandbox.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct CpuCounter {
    file: PathBuf,
}

impl CpuCounter {
    /// The first counter in these groups that can be read.
    pub(crate) fn among<'a>(groups: impl IntoIterator<Item = &'a Path>) -> Option<Self> {
        let files = groups.into_iter().flat_map(|group| [group.join(SECOND), group.join(FIRST)]);
        files.map(|file| Self { file }).find(|counter| counter.read().is_some())
    }

    /// The counter of a process, among its groups whose path is `wanted`: other groups are not its
    /// sandbox's alone.
    pub(crate) fn of_process(pid: u32, wanted: impl Fn(&str) -> bool) -> Option<Self> {
        let groups = fs::read_to_string(format!("/proc/{pid}/cgroup")).ok()?;
        let places = places(&groups, hierarchies(), wanted);
        Self::among(places.iter().map(PathBuf::as_path))
    }

    /// What it shows now; none if the group is gone or does not count.
    pub(crate) fn read(&self) -> Option<Duration> {
        let text = fs::read_to_string(&self.file).ok()?;
        // The first generation shows a number of nanoseconds; its `cpu.stat` has no time.
        if let Ok(nanoseconds) = text.trim().parse() {
            return Some(Duration::from_nanos(nanoseconds));
        }
        let microseconds = text.lines().find_map(|line| line.strip_prefix("usage_usec "))?;
        microseconds.trim().parse().ok().map(Duration::from_micros)
    }
}

/// Where control groups are mounted. Read once: a launch must not wait for a long list of mounts.
fn hierarchies() -> &'static [Mount] {
    static MOUNTED: OnceLock<Vec<Mount>> = OnceLock::new();
    let read = || of_groups(&fs::read_to_string("/proc/self/mountinfo").unwrap_or_default());
    MOUNTED.get_or_init(read)
}

fn of_groups(mountinfo: &str) -> Vec<Mount> {
    let mut mounts = mounts(mountinfo);
    mounts.retain(|mount| ["cgroup", "cgroup2"].contains(&&*mount.kind));
    mounts
}

/// Where these groups are on this machine.
fn places(groups: &str, mounts: &[Mount], wanted: impl Fn(&str) -> bool) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for group in memberships(groups).into_iter().filter(|group| wanted(&group.path)) {
        let mount = mounts.iter().find(|mount| match &*group.controllers {
            [] => mount.kind == "cgroup2",
            named => mount.kind == "cgroup" && named.iter().all(|one| mount.options.contains(one)),
        });
        let Some(mount) = mount else { continue };
        if let Ok(shown) = Path::new(&group.path).strip_prefix(&mount.root) {
            found.push(mount.point.join(shown));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpu_time_is_read_in_both_cgroup_generations() {
        let second = "usage_usec 1500000\nuser_usec 1\nsystem_usec 2\n";
        let without_time = "nr_periods 9\nnr_throttled 4\nthrottled_time 5\n";
        let time = |ms| Some(Duration::from_millis(ms));
        for (name, file, text, expected) in [
            ("v2", SECOND, second, time(1_500)),
            ("v1", FIRST, "2500000000\n", time(2_500)),
            ("cpu-alone", SECOND, without_time, None),
            ("other", "memory.events", "oom_kill 1\n", None),
        ] {
            let place = std::env::temp_dir().join(format!("cpu-{}-{name}", std::process::id()));
            fs::create_dir_all(&place).unwrap();
            fs::write(place.join(file), text).unwrap();
            let counter = CpuCounter::among([Path::new("/nowhere"), &*place]);
            assert_eq!(counter.as_ref().and_then(CpuCounter::read), expected, "{name}");
            fs::remove_dir_all(place).unwrap();
            assert_eq!(counter.and_then(|counter| counter.read()), None, "{name} is gone");
        }
    }

    #[test]
    fn only_groups_of_the_sandbox_count() {
        let mountinfo = "30 20 0:26 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n\
                         31 20 0:27 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n";
        let groups = "4:cpu,cpuacct:/shoal/r/7\n3:memory:/shoal/r/7\n0::/user.slice\n";
        let found =
            |wanted: &str| places(groups, &of_groups(mountinfo), |path| path.ends_with(wanted));
        assert_eq!(found("/shoal/r/7"), [Path::new("/sys/fs/cgroup/cpu,cpuacct/shoal/r/7")]);
        assert_eq!(found("/user.slice"), [Path::new("/sys/fs/cgroup/unified/user.slice")]);
        assert_eq!(found("/shoal/r/77"), Vec::<PathBuf>::new());
    }
}
